"""The kind of a source that can be either, as an argument says it."""

from __future__ import annotations

from airflow_tx.errors import ConfigError
from airflow_tx.sources.api import SourceKind


def source_kind(kind: str, source: str) -> SourceKind:
    """Read the argument `kind`.

    :param source: whose argument it is, for the message.
    :raises ConfigError: if it is neither transactional nor opaque.
    """
    if kind not in (SourceKind.TRANSACTIONAL.value, SourceKind.OPAQUE.value):
        remedy = 'Give "transactional" (a replay has the same rows) or "opaque" (it is decided anew).'
        raise ConfigError(option=f"kind of {source}", value=kind, remedy=remedy)
    return SourceKind(kind)
