"""The options of the section ``[tx]`` of Airflow's configuration, checked and typed."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from airflow_tx.errors import ConfigError
from airflow_tx.provider_info import OPTIONS

SECTION = "tx"

# One option's text from the configuration, or None where nothing is said about it.
Lookup = Callable[[str], str | None]


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What ``[tx]`` says; times are in seconds, what each option means stands in :mod:`airflow_tx.provider_info`."""

    zookeeper_conn_id: str
    root: str
    max_pending: int
    message_timeout: float
    staging: str
    history: int
    keep_new_values: int
    warm_wait: float
    min_deferral: float
    yield_after: float
    max_replays: int
    replay_backoff: float
    coordinator_poll: float
    coordinator_linger: float
    session_timeout: float
    connect_timeout: float

    @classmethod
    def load(cls) -> Settings:
        """Read Airflow's configuration as it is now. Raises as `read`."""
        from airflow.sdk.configuration import conf

        return cls.read(lambda option: conf.get(SECTION, option, fallback=None))

    @classmethod
    def read(cls, lookup: Lookup) -> Settings:
        """Read the options with `lookup`; those that it does not know have their defaults.

        :raises ConfigError: if an option has a value that cannot be used.
        """
        values: dict[str, Any] = {}
        for field in fields(cls):
            text = lookup(field.name)
            values[field.name] = _READERS[field.name](
                field.name, OPTIONS[field.name]["default"] if text is None else text
            )
        return cls(**values)


def _refuse(option: str, value: str, what: str) -> ConfigError:
    variable = f"AIRFLOW__{SECTION.upper()}__{option.upper()}"
    remedy = (
        f"It has to be {what}. Set it in airflow.cfg or by {variable}; the default is {OPTIONS[option]['default']!r}."
    )
    return ConfigError(option=f"[{SECTION}] {option}", value=value, remedy=remedy)


def _text(option: str, value: str) -> str:
    return value.strip()


def _connection_id(option: str, value: str) -> str:
    if not value.strip():
        raise _refuse(option, value, "the id of a ZooKeeper connection")
    return value.strip()


def _znode(option: str, value: str) -> str:
    path = value.strip()
    parts = path.split("/")[1:]
    if not path.startswith("/") or any(part in ("", ".", "..") for part in parts) or parts[0] == "zookeeper":
        raise _refuse(option, value, "the path of a znode such as /airflow_tx, with no slash at its end")
    return path


def _count(option: str, value: str, least: int = 1) -> int:
    try:
        number = int(value)
    except ValueError:
        number = least - 1
    if number < least:
        raise _refuse(option, value, f"a whole number, {least} or more")
    return number


def _count_or_none(option: str, value: str) -> int:
    return _count(option, value, least=0)


def _seconds(option: str, value: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = math.nan
    if not 0 <= number < math.inf:
        raise _refuse(option, value, "a number of seconds, 0 or more")
    return number


def _positive_seconds(option: str, value: str) -> float:
    number = _seconds(option, value)
    if number == 0:
        raise _refuse(option, value, "a number of seconds greater than 0")
    return number


_READERS: dict[str, Callable[[str, str], Any]] = {
    "zookeeper_conn_id": _connection_id,
    "root": _znode,
    "max_pending": _count,
    "message_timeout": _positive_seconds,
    "staging": _text,
    "history": _count,
    "keep_new_values": _count,
    "warm_wait": _seconds,
    "min_deferral": _seconds,
    "yield_after": _seconds,
    "max_replays": _count_or_none,
    "replay_backoff": _seconds,
    "coordinator_poll": _positive_seconds,
    "coordinator_linger": _seconds,
    "session_timeout": _positive_seconds,
    "connect_timeout": _positive_seconds,
}
