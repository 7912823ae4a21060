"""A state that its user has written, as the commit sees it. Source: Trident's partitionPersist."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_tx.errors import ConfigError
from airflow_tx.state.api import FencedState, Grant, State, StateKind
from airflow_tx.state.query import StateFactory, StateUpdater, update
from airflow_tx.state.trident.state import TridentState, has_methods, is_factory

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Updated:
    """The outcome of an updater: how many rows it took, and what it emitted."""

    rows: int
    new_values: list[dict[str, Any]]


class PersistedState(TridentState):
    """Applies the rows of a transaction by `begin_commit(txid)`, the updater, `commit(txid)`.

    Whether a replay counts twice is the state's own affair. What it promises is its `kind`, and by an attribute
    `can_roll_back` that `begin_commit(txid)` takes back what it holds of that txid, also of keys that the rows that
    follow leave alone; an opaque map without that attribute is made to. For a skipped transaction no row follows, and
    the updater is not called.

    :param state: with `begin_commit` and `commit`; or a factory, with `make_state`.
    :param updater: with `update_state(state, rows)`.
    :param kind: what the state promises; None: its attribute `kind`, and without one it is non-transactional.
    """

    def __init__(
        self, state: State | StateFactory[State], updater: StateUpdater[Any], kind: StateKind | str | None = None
    ) -> None:
        wanted = ("make_state",) if is_factory(state) else ("begin_commit", "commit")
        for made, method in (*((state, each) for each in wanted), (updater, "update_state")):
            if not has_methods(made, method):
                option, remedy = "partition_persist(state=, updater=)", f"It has no method {method}."
                raise ConfigError(option=option, value=type(made).__name__, remedy=remedy)
        super().__init__(state, kind, option="partition_persist")
        self.updater = updater

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.given).__name__}, {type(self.updater).__name__})"

    def _parameters(self) -> dict[str, Any]:
        return {"state": type(self.given).__name__, "updater": type(self.updater).__name__}

    def write(self, grant: Grant, rows: Iterable[Mapping[str, Any]], *, chunk: int = 0, complete: bool = True) -> int:
        done = self.updated(grant, rows)
        if done.new_values:
            _log.info(
                "%s emitted %d new values, which nobody asks for: partition_persist(..., new_values=NAME) makes them "
                "an output of the committer",
                type(self.updater).__name__,
                len(done.new_values),
            )
        return done.rows

    def updated(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> Updated:
        """Hand the rows to the updater, between `begin_commit` and `commit`."""
        given = list(rows)
        return Updated(len(given), update(self.state, grant.txid, given, self.updater))


def as_fenced(state: Any, updater: Any, kind: StateKind | str | None) -> FencedState:
    """Make of a state what a committer uses; without an updater it has to take rows as they are, as a guard does.

    :raises ConfigError: it does not.
    """
    if updater is not None:
        return PersistedState(state, updater, kind)
    if not isinstance(state, FencedState) or state.columns is not None:
        remedy = "Give updater=, or a state that takes rows as they are, such as SqlGuard; else persistent_aggregate."
        raise ConfigError(option="partition_persist(state=)", value=type(state).__name__, remedy=remedy)
    return state
