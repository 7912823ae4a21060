"""The engines that keep a connection between transactions: one a process and address of a database server.

To connect takes several times as long as a small commit, and one process may commit a hundred in a second.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, Protocol

from sqlalchemy.engine import URL, Engine
from sqlalchemy.pool import NullPool

NOTHING_KEPT: Mapping[str, Any] = {"poolclass": NullPool}
# One connection is kept. A second one at the same time is closed after its use. A connection that the server has ended
# is replaced before use. Each is replaced after 30 seconds: a server ends sessions that are silent for 60.
_KEEPING: Mapping[str, Any] = {
    "pool_size": 1,
    "max_overflow": -1,
    "pool_recycle": 30,
    "pool_pre_ping": True,
}
_ADDRESSES = 8
_engines: dict[tuple[type[MakesEngines], URL], Engine] = {}


class MakesEngines(Protocol):
    """The work of a `Dialect` here."""

    def engine(self, url: URL, pool: Mapping[str, Any]) -> Engine: ...


def keeping_engine(dialect: MakesEngines, url: URL) -> Engine:
    """Return the engine of an address, made when it is first wanted; the oldest of too many keeps no more."""
    address = (type(dialect), url)
    if address not in _engines:
        _engines[address] = dialect.engine(url, _KEEPING)
        while len(_engines) > _ADDRESSES:
            _engines.pop(next(iter(_engines))).dispose()
    return _engines[address]


def _leave_to_parent() -> None:
    """Forget the connections without a word to the server: they belong to the process that has forked."""
    for engine in _engines.values():
        engine.dispose(close=False)


os.register_at_fork(after_in_child=_leave_to_parent)
