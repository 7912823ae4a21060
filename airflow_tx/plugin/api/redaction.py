"""Hide addresses and credentials that an error quotes: a browser must not show them."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator

from airflow.models.connection import Connection
from airflow.utils.session import create_session
from pydantic import PlainSerializer
from sqlalchemy import select

from airflow_tx.protocol.person import REDACTION

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
HIDDEN = "***"
_VARIABLE = "AIRFLOW_CONN_"
_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
# Places of a text where credentials or an address are. No text is searched for a secret itself: a person could
# find out a password by writing guesses into a reason, and a password such as "airflow" is a word of every sentence.
_VALUE = r"(?:\"[^\"]*\"|'[^']*'|[^\s,;&)}\]\"']+)"
_NAMES = (
    r"pass(?:word|wd|phrase)?|pwd|[\w-]{0,30}(?:secret|token|(?:api|access|private|account)[_-]?key)[\w-]{0,30}|"
    r"sasl[\w.-]*|user(?:name|_?id)?|uid|login|host(?:name|addr)?|server"
)
_BEFORE = r"user|role|login|host|host name|server at|connect(?:ion)? to"
_ANYWHERE = (
    (re.compile(r"(?<=://)[^\s\"'<>]*@"), f"{HIDDEN}@"),
    (
        re.compile(rf"(?i)(?<![\w-])({_NAMES})([\"']?\s*(?:=>|[=:])\s*){_VALUE}"),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (re.compile(rf"(?i)\b({_BEFORE})\s+(?:\"[^\"]+\"|'[^']+')"), rf"\1 {HIDDEN}"),
    (re.compile(r"(?<=@)'[^']+'"), HIDDEN),
)
_ADDRESS = re.compile(
    r"(?<![\w.:])(?:\d{1,3}(?:\.\d{1,3}){3}|(?:[0-9a-fA-F]{0,4}:){4,7}[0-9a-fA-F]{0,4})(?!\.?\w)"
)


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
        for found, instead in _ANYWHERE:
            text = found.sub(instead, text)
        text = _ADDRESS.sub(_hidden_address, text)
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


def _hidden_address(found: re.Match[str]) -> str:
    return found[0] if found[0] in _OWN_HOSTS else HIDDEN


def pattern_of(connections: Iterable[Connection]) -> re.Pattern[str] | None:
    """Make the pattern of all hosts of connections where they stand; None: there are none."""
    hosts = {
        each for each in _hosts(connections) if each and each not in _OWN_HOSTS and "/" not in each
    }
    # A name such as redis is a word as well: it is a host where an address stands.
    words = {each for each in hosts if re.fullmatch(r"[A-Za-z]+", each)}
    parts = [
        rf"(?<![\w.-]){re.escape(each)}(?![\w-])"
        for each in sorted(hosts - words, key=len, reverse=True)
    ]
    parts += [
        rf"(?<![\w.-]){re.escape(each)}(?=:\d)|(?<=[@/]){re.escape(each)}(?![\w-])"
        for each in sorted(words)
    ]
    return re.compile("|".join(parts)) if parts else None


def _connections() -> Iterator[Connection]:
    for name, value in os.environ.items():
        if name.startswith(_VARIABLE):
            text = value.strip()
            conn_id = name.removeprefix(_VARIABLE).lower()
            yield (
                Connection.from_json(text, conn_id)
                if _is_json(text)
                else Connection(conn_id=conn_id, uri=text)
            )
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


REDACTION.schema = PlainSerializer(redacted, return_type=str).__get_pydantic_core_schema__
