"""Hosts and secrets of connections are nobody's business in a browser: what an error quotes of them is left out."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from airflow.models.connection import Connection
from airflow.utils.session import create_session
from pydantic import AfterValidator
from sqlalchemy import select

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
HIDDEN = "***"
_VARIABLE = "AIRFLOW_CONN_"
_SHORTEST = 4
_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
_CREDENTIALS = re.compile(r"(?<=://)[^\s/@]+@")
# What names no secret in a connection's extra: to hide such words would make sentences unreadable.
_PLAIN = re.compile(r"[a-z_]{1,12}|true|false|\d{1,5}", re.IGNORECASE)


def _secrets(connections: Iterable[Connection]) -> Iterator[str]:
    for each in connections:
        yield each.password or ""
        try:
            extra = each.extra_dejson
        except Exception:  # noqa: BLE001 - it may be no JSON
            continue
        yield from (text for text in _texts(extra) if not _PLAIN.fullmatch(text))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for each in value:
            yield from _texts(each)
    elif isinstance(value, str):
        yield value


def _hosts(connections: Iterable[Connection]) -> Iterator[str]:
    for each in connections:
        for host in re.split(r"[,\s]+", each.host or ""):
            name = host.rpartition("://")[2].rpartition("@")[2].partition("/")[0]
            yield re.sub(r":\d+$", "", name)


class Redactor:
    """Knows the connections that Airflow's database and the environment have; looks again every minute."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._pattern: re.Pattern[str] | None = None

    def redacted(self, text: str) -> str:
        """Leave out of a text what belongs to a connection."""
        text = _CREDENTIALS.sub(f"{HIDDEN}@", text)
        pattern = self._current()
        return text if pattern is None else pattern.sub(HIDDEN, text)

    def _current(self) -> re.Pattern[str] | None:
        with self._lock:
            if time.monotonic() - self._read_at >= EVERY_SECONDS:
                self._read_at = time.monotonic()
                try:
                    self._pattern = pattern_of(list(_connections()))
                except Exception as error:  # noqa: BLE001 - those that are known are left out still
                    log.warning("Airflow's connections cannot be read: %s", error)
            return self._pattern


def pattern_of(connections: Iterable[Connection]) -> re.Pattern[str] | None:
    """Make the pattern of all hosts and secrets; None: there are none."""
    known = list(connections)
    secrets = {each for each in _secrets(known) if len(each) >= _SHORTEST}
    hosts = {each for each in _hosts(known) if each and each not in _OWN_HOSTS and "/" not in each}
    # A name such as redis is a word as well: it is a host where an address stands.
    words = {each for each in hosts if re.fullmatch(r"[A-Za-z]+", each)}
    parts = [re.escape(each) for each in sorted(secrets, key=len, reverse=True)]
    parts += [rf"(?<![\w.-]){re.escape(each)}(?![\w-])" for each in sorted(hosts - words, key=len, reverse=True)]
    parts += [rf"(?<![\w.-]){re.escape(each)}(?=:\d)|(?<=[@/]){re.escape(each)}(?![\w-])" for each in sorted(words)]
    return re.compile("|".join(parts)) if parts else None


def _connections() -> Iterator[Connection]:
    for name, value in os.environ.items():
        if name.startswith(_VARIABLE):
            text = value.strip()
            conn_id = name.removeprefix(_VARIABLE).lower()
            yield Connection.from_json(text, conn_id) if _is_json(text) else Connection(conn_id=conn_id, uri=text)
    with create_session() as session:
        yield from session.scalars(select(Connection))


def _is_json(text: str) -> bool:
    try:
        return isinstance(json.loads(text), dict)
    except ValueError:
        return False


_redactor = Redactor()


def redacted(text: str) -> str:
    """Leave out of a text what belongs to a connection."""
    return _redactor.redacted(text)


Words = Annotated[str, AfterValidator(redacted)]
"""A text that may quote an error, as it is shown."""
