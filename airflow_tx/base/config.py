"""The options of the section ``[tx]`` of Airflow's configuration, checked and typed."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import lru_cache
from typing import Any

from airflow_tx.base.errors import ConfigError
from airflow_tx.provider_info import OPTIONS

SECTION = "tx"
_VARIABLE = f"AIRFLOW__{SECTION.upper()}__"
_EARLIER = {"message_timeout": "processing_timeout"}
"""The current name of each renamed option, by its former name. The former name is still read."""

# Returns the text of an option from the configuration, or None if the option is not set.
Lookup = Callable[[str], str | None]


def _refuse(option: str, value: str, what: str) -> ConfigError:
    variable = _VARIABLE + option.upper()
    default = OPTIONS[_EARLIER.get(option, option)]["default"]
    remedy = (
        f"It must be {what}. Set it in airflow.cfg or by {variable}; the default is {default!r}."
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
    if (
        not path.startswith("/")
        or any(part in ("", ".", "..") for part in parts)
        or parts[0] == "zookeeper"
    ):
        raise _refuse(
            option, value, "the path of a znode such as /airflow_tx, with no slash at its end"
        )
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


def _names(option: str, value: str) -> tuple[str, ...]:
    return tuple(name.strip() for name in value.split(",") if name.strip())


def _positive_seconds(option: str, value: str) -> float:
    number = _seconds(option, value)
    if number == 0:
        raise _refuse(option, value, "a number of seconds greater than 0")
    return number


def _flag(option: str, value: str) -> bool:
    if value.strip().lower() not in ("true", "false"):
        raise _refuse(option, value, "True or False")
    return value.strip().lower() == "true"


def _rows_required(option: str, value: str) -> str:
    if value.strip().lower() not in ("counted", "proven"):
        raise _refuse(option, value, "counted or proven")
    return value.strip().lower()


def _read_by(reader: Callable[[str, str], Any]) -> Any:
    return field(metadata={"read": reader})


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The options of ``[tx]``. Times are in seconds. :mod:`airflow_tx.provider_info` describes each option."""

    zookeeper_conn_id: str = _read_by(_connection_id)
    root: str = _read_by(_znode)
    max_pending: int = _read_by(_count)
    processing_timeout: float = _read_by(_positive_seconds)
    staging: str = _read_by(_text)
    history: int = _read_by(_count)
    keep_new_values: int = _read_by(_count)
    trial_rows: int = _read_by(_count)
    journal: int = _read_by(_count_or_none)
    warm_wait: float = _read_by(_seconds)
    warm_places: int = _read_by(_count)
    min_deferral: float = _read_by(_seconds)
    yield_after: float = _read_by(_seconds)
    max_replays: int = _read_by(_count_or_none)
    replay_backoff: float = _read_by(_seconds)
    lane: bool = _read_by(_flag)
    require_rows: str = _read_by(_rows_required)
    coordinator_poll: float = _read_by(_positive_seconds)
    coordinator_linger: float = _read_by(_seconds)
    preload: tuple[str, ...] = _read_by(_names)
    dag_environment: tuple[str, ...] = _read_by(_names)
    session_timeout: float = _read_by(_positive_seconds)
    connect_timeout: float = _read_by(_positive_seconds)

    @classmethod
    def load(cls) -> Settings:
        """Read the current configuration of Airflow. It raises the same errors as `read`."""
        return _loaded(tuple(map(os.environ.get, _VARIABLES)))

    @classmethod
    def read(cls, lookup: Lookup) -> Settings:
        """Read the options with `lookup`. An option that is not set gets its default.

        :raises ConfigError: an option has a value that cannot be used.
        """
        values: dict[str, Any] = {}
        for each in fields(cls):
            values[each.name] = each.metadata["read"](*_given(each.name, lookup))
        return cls(**values)


def _given(option: str, lookup: Lookup) -> tuple[str, str]:
    """Return an option's text, and the name under which it is set."""
    default = OPTIONS[option]["default"]
    text = lookup(option)
    text = default if text is None else text
    for earlier, now in _EARLIER.items():
        found = lookup(earlier) if now == option else None
        if found is None:
            continue
        if text != default:
            remedy = f"[{SECTION}] {option} = {text!r} means the same. "
            remedy += f"Remove {earlier} from airflow.cfg, or unset {_VARIABLE}{earlier.upper()}."
            raise ConfigError(option=f"[{SECTION}] {earlier}", value=found, remedy=remedy)
        return earlier, found
    return option, text


_VARIABLES = tuple(_VARIABLE + name.upper() for name in (*OPTIONS, *_EARLIER))


@lru_cache(maxsize=1)
def _loaded(variables: tuple[str | None, ...]) -> Settings:
    """Read the configuration. Airflow needs 2 ms for this. Within a process, only environment variables can change it.

    :param variables: environment variables, which are the cache key.
    """
    from airflow.sdk.configuration import conf

    return Settings.read(lambda option: conf.get(SECTION, option, fallback=None))
