"""Hide addresses and credentials that an error quotes. A browser must not show them."""

from __future__ import annotations

import json
import logging
import os
import re
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass, replace
from functools import lru_cache
from ipaddress import ip_address
from typing import Annotated, Any, TypeVar

from airflow.models.connection import Connection
from airflow.utils.session import create_session
from pydantic import PlainSerializer
from sqlalchemy import select

from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger import REDACTION

log = logging.getLogger(__name__)

EVERY_SECONDS = 60.0
HIDDEN = "***"
_VARIABLE = "AIRFLOW_CONN_"
_OWN_HOSTS = frozenset({"localhost", "127.0.0.1", "::1", "0.0.0.0"})
# The patterns match where credentials and addresses appear, not the secrets themselves. Otherwise,
# a user could find out a password by guessing in a reason. A password such as "airflow" would hide
# a word of every sentence. Every repetition has a limit, so that a search is fast in any text.
_QUOTED = r"(?:\"(?:[^\"\\]|\\.){0,500}\"|'(?:[^'\\]|\\.){0,500}')"
_SECRET = (
    r"[\w.-]{0,30}(?:passw(?:or)?d|passphrase|pwd|secret|token|(?:api|access|private|account)[_-]?key)[\w.-]{0,30}"
    r"|pass|pw|sasl\.[\w.-]{1,30}"
)
_WHO = r"user(?:name|_?id)?|uid|login|host(?:name|addr)?|server"
_WORD = r"[^\s,;&)}\]\"']"
_PART = r"[^\s,;&)}\]\"'/]"
_ENDS = r"(?=\s*(?:[,;)}\]\n]|$))"
_SIGNED = r"X-Amz-[\w-]{1,30}|X-Goog-[\w-]{1,30}|AWSAccessKeyId|Signature|sig"
_URLS = (
    # In an address, a port follows the first colon. In credentials, a password follows it.
    (
        re.compile(
            r"(?<=://)(?:[^\s\"'<>/?#@:]{0,200}:(?!\d+(?:[/?#]))[^\s\"'<>]{0,300}|[^\s\"'<>/?#@:]{1,200})@"
        ),
        f"{HIDDEN}@",
    ),
    (re.compile(rf"(?i)([?&](?:{_SIGNED})=)[^&\s\"'<>]+"), rf"\1{HIDDEN}"),
)
_ANYWHERE = (
    *_URLS,
    (
        re.compile(
            r"-----BEGIN [A-Z ]{0,30}PRIVATE KEY-----.{0,8000}?(?:-----END[^-]{0,40}-----|$)", re.S
        ),
        HIDDEN,
    ),
    (re.compile(r"(?<=jdbc:oracle:)([a-z]{1,10}:)[^@\s]{1,300}@"), rf"\1{HIDDEN}@"),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b(?:\s+[A-Za-z0-9/+=]{40}(?![\w/+=]))?"), HIDDEN),
    # A slash before the name shows that it is the folder of a partition, such as
    # events/token=abc/day=2.
    (
        re.compile(
            rf"(?i)(?<![\w/.-])({_SECRET})([\"']?\s*(?:=>|=)\s*)(?:{_QUOTED}|{_WORD}{{1,2000}})"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (
        re.compile(
            rf"(?i)(?<![\w/.-])({_SECRET})([\"']?\s*:\s*)({_QUOTED}|{_WORD}{{1,2000}}{_ENDS})"
        ),
        None,
    ),
    (
        re.compile(
            rf"(?i)(?<![\w/-])({_WHO})(\s*=\s*)(?!{_PART}{{0,300}}/)(?:{_QUOTED}|{_PART}{{1,300}})"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(rf"(?i)([\"'](?:{_WHO})[\"']\s*(?:=>|:)\s*){_QUOTED}"), rf"\1{HIDDEN}"),
    (re.compile(rf"(?i)(--(?:{_SECRET})\s+)[^\s-]\S*"), rf"\1{HIDDEN}"),
    (
        re.compile(
            r"(?i)\b(pass(?:word|wd|phrase)?|pwd?|token|secret|api_key)"
            r"(\s+(?:is\s+)?|\s+for\s+\S{1,100}:\s+)(?=\S{0,100}\d)[\w.+/=-]{6,500}"
        ),
        rf"\1\2{HIDDEN}",
    ),
    (re.compile(r"(?i)\b(bearer|basic)\s+[\w.~+/=-]{8,}"), rf"\1 {HIDDEN}"),
    (
        re.compile(
            rf"(?i)((?:failed|denied)[^\"'\n]{{0,20}}? for (?:user |role |login )?){_QUOTED}"
        ),
        rf"\1{HIDDEN}",
    ),
    (
        re.compile(rf"(?i)\b(host|host name|server at|connect(?:ion)? to)\s+{_QUOTED}"),
        rf"\1 {HIDDEN}",
    ),
    (re.compile(r"(?<=@)'[^']{1,300}'"), HIDDEN),
    (re.compile(r"(?i)(\bmysql[^\n]{0,200}?\s-p|\blogon denied\s+)[^\s]+"), rf"\1{HIDDEN}"),
)
# The pattern does not match versions and folders of a path.
_ADDRESS = re.compile(
    r"(?<![\w.:])(?<!version )(?<![^/]/)\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)(?!/)"
    r"|(?<=//)\d{1,3}(?:\.\d{1,3}){3}(?!\.?\w)"
    r"|(?<![\w.:])(?:[0-9a-fA-F]{0,4}:){4,7}[0-9a-fA-F]{0,4}(?!\.?\w)"
)
_HOST_AND_PORT = re.compile(r"[\w-]+(?:\.[\w-]+)+(?=:\d)|(?<=://)[\w.-]+")
_SHORTEST = 5
"""Minimum number of characters of a secret that Airflow masks."""


def _hosts(connections: Iterable[Connection]) -> Iterator[str]:
    for each in connections:
        for host in re.split(r"[,\s]+", each.host or ""):
            address = host.rpartition("://")[2].rpartition("@")[2].rstrip("/")
            if "://" in host and "/" in address:
                yield address  # The path of a webhook is its secret.
            yield re.sub(r":\d+$", "", address.partition("/")[0])
        yield from _HOST_AND_PORT.findall(each.extra or "")


class Redactor:
    """Redacts texts. Every minute, it reads the connections from Airflow's database and from the environment."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._read_at = float("-inf")
        self._pattern: re.Pattern[str] | None = None

    def redacted(self, text: str) -> str:
        """Hide the parts of a text that are part of a connection, or look like a secret or an address."""
        text = fit(str(text))
        text = _without_values(text) if len(text) > _LONG else _known_without_values(text)
        pattern = self._current()
        return text if pattern is None else pattern.sub(HIDDEN, text)

    def _current(self) -> re.Pattern[str] | None:
        with self._lock:
            if time.monotonic() - self._read_at >= EVERY_SECONDS:
                self._read_at = time.monotonic()
                try:
                    self._pattern = pattern_of(list(_connections()))
                except Exception as error:  # noqa: BLE001 - the known connections are still hidden
                    log.warning("Airflow's connections cannot be read: %s", error)
            return self._pattern


def _without_values(text: str) -> str:
    """Hide each part of a text that looks like a secret or an address."""
    for found, instead in _ANYWHERE:
        text = found.sub(_hidden_value if instead is None else instead, text)
    return _ADDRESS.sub(_hidden_address, text)


_LONG = 500
"""The length from which a redacted text is no longer cached, in characters."""
# Answers repeat the same sentences, and about twenty patterns are applied to each sentence. So the
# results are cached.
_known_without_values = lru_cache(maxsize=2048)(_without_values)


def _hidden_value(found: re.Match[str]) -> str:
    is_short = len(found[3].strip("\"'")) < _SHORTEST and "pass" not in found[1].lower()
    return found[0] if is_short else f"{found[1]}{found[2]}{HIDDEN}"


def _hidden_address(found: re.Match[str]) -> str:
    try:
        ip_address(found[0])
    except ValueError:
        return found[0]  # It is another kind of address, such as a MAC address.
    return found[0] if found[0] in _OWN_HOSTS else HIDDEN


def without_credentials(text: str) -> str:
    """Hide the credentials in the name of a batch.

    Its other parts stay visible, since a batch name is data, not an error.
    """
    text = fit(text)
    for found, instead in _URLS:
        text = found.sub(instead, text)
    return text


def _rows(value: Any) -> Any:
    if isinstance(value, str):
        return without_credentials(value)
    if isinstance(value, Mapping):
        return {without_credentials(str(name)): _rows(each) for name, each in value.items()}
    return [_rows(each) for each in value] if isinstance(value, (list, tuple)) else value


BatchName = Annotated[str, PlainSerializer(without_credentials, return_type=str)]
"""The name of a batch, such as a file, a range or an interval, with hidden credentials."""
RowText = Annotated[str, PlainSerializer(without_credentials, return_type=str)]
"""A text from a row. It is data, so only credentials in it are hidden."""
ShownRows = Annotated[Any, PlainSerializer(_rows)]
"""The metadata of a batch, or a position of the source, as JSON with hidden credentials."""


def pattern_of(connections: Iterable[Connection]) -> re.Pattern[str] | None:
    """Return a pattern that matches the hosts of all connections, or None if no connection has a host."""
    hosts = {
        each
        for each in _hosts(connections)
        if each and each not in _OWN_HOSTS and not each.startswith(("/", "."))
    }
    # A host such as redis may also be an ordinary word. So the pattern matches it only in an
    # address.
    words = {each for each in hosts if re.fullmatch(r"[A-Za-z]+", each)}
    parts = [
        rf"(?<![\w.-]){re.escape(each)}(?![\w-])"
        for each in sorted(hosts - words, key=len, reverse=True)
    ]
    parts += [
        rf"(?<![\w.-]){re.escape(each)}(?=:\d\d)|(?:(?<=@)|(?<=//)|(?<=host )){re.escape(each)}(?![\w-])"
        for each in sorted(words)
    ]
    return re.compile("|".join(parts), re.IGNORECASE) if parts else None


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
    """Hide the parts of a text that are part of a connection."""
    return _redactor.redacted(text)


_WORDS = PlainSerializer(lambda words: redacted(str(words)), return_type=str)


def _schema(source: Any, handler: Any) -> Any:
    return _WORDS.__get_pydantic_core_schema__(Any if source is Remedy else source, handler)


REDACTION.schema = _schema


# --- answers ------------------------------------------------------------------------------------------------------


_T = TypeVar("_T")


def fit(value: _T) -> _T:
    """Escape lone surrogates in a text, or in all texts of a value.

    Otherwise, the response would not be valid UTF-8.
    """
    made: Any = value
    if isinstance(value, str):
        made = value if value.isascii() else value.encode("utf-8", "backslashreplace").decode()
    elif isinstance(value, Mapping):
        made = {fit(name): fit(each) for name, each in value.items()}
    elif is_dataclass(value) and not isinstance(value, (type, Remedy)):
        made = replace(
            value, **{each.name: fit(getattr(value, each.name)) for each in fields(value)}
        )
    elif isinstance(value, (list, tuple)):
        made = tuple(map(fit, value)) if isinstance(value, tuple) else [*map(fit, value)]
    return made  # type: ignore[no-any-return]
