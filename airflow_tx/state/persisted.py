"""A state that its user has written, as the commit sees it. Source: Trident's partitionPersist."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.api import Fence, FencedState, Grant, State, StateKind
from airflow_tx.state.query import StateUpdater, update

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Updated:
    """The outcome of an updater: how many rows it took, and what it emitted.

    :param rows: how many it took.
    """

    rows: int
    new_values: list[dict[str, Any]]


class PersistedState(FencedState):
    """Applies the rows of a transaction by `begin_commit(txid)`, the updater, `commit(txid)`.

    There is no fence: whether a replay counts twice, and what a committer thought dead can do, is the state's own
    affair. What it promises is its `kind`, and by an attribute `can_roll_back` that `begin_commit(txid)` takes back
    what it holds of that txid, also of keys that the rows that follow leave alone. For a skipped transaction no row
    follows, and the updater is not called.

    :param state: with `begin_commit` and `commit`.
    :param updater: with `update_state(state, rows)`.
    :param kind: what the state promises; None: its attribute `kind`, and without one it is non-transactional.
    """

    def __init__(self, state: State, updater: StateUpdater[Any], kind: StateKind | str | None = None) -> None:
        for made, method in ((state, "begin_commit"), (state, "commit"), (updater, "update_state")):
            if not callable(getattr(made, method, None)):
                raise ConfigError(
                    option="partition_persist(state=, updater=)",
                    value=type(made).__name__,
                    remedy=f"It has no method {method}.",
                )
        self.state = state
        self.updater = updater
        # A class of the user's own need not be one of ours. What it says of itself is read here, and only here.
        self.name = str(getattr(state, "name", type(state).__name__))
        self.kind = StateKind(kind or getattr(state, "kind", StateKind.NON_TRANSACTIONAL))
        # Without a fence there is nothing to undo by, unless its user says otherwise.
        self.can_roll_back = bool(getattr(state, "can_roll_back", False))
        self._holds: Callable[[int], bool] = getattr(state, "holds", super().holds)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({type(self.state).__name__}, {type(self.updater).__name__})"

    def _parameters(self) -> dict[str, Any]:
        return {"state": type(self.state).__name__, "updater": type(self.updater).__name__}

    def raise_fence(self, grant: Grant) -> None:
        """Nothing: there is no fence."""

    def write(self, grant: Grant, rows: Iterable[Mapping[str, Any]], *, chunk: int = 0, complete: bool = True) -> int:
        """Hand the rows to the updater, between `begin_commit` and `commit`.

        :return: how many rows there were.
        """
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
        """The same, with the rows of the new values stream."""
        given = list(rows)
        return Updated(len(given), update(self.state, grant.txid, given, self.updater))

    def pass_over(self, grant: Grant) -> None:
        """Let a state that can roll back undo a skipped transaction: it begins again and has no rows.

        :raises StateError: it fails to; the transaction stays open, and the skip can be repeated.
        """
        if not self.can_roll_back:
            return
        try:
            self.state.begin_commit(grant.txid)
            self.state.commit(grant.txid)
        except Exception as error:
            raise StateError(
                state=self.name,
                problem=f"it did not undo transaction {grant.txid}: {type(error).__name__}: {error}",
                remedy="The transaction stays open. Remove the cause and repeat the skip.",
            ) from error

    def holds(self, txid: int) -> bool:
        return bool(self._holds(txid))

    def fence(self) -> Fence | None:
        return None


def as_fenced(state: Any, updater: Any, kind: StateKind | str | None) -> FencedState:
    """The state as a committer uses it.

    :param updater: None: the state takes rows as they are, such as a guard.
    :raises ConfigError: it cannot take them.
    """
    if updater is not None:
        return PersistedState(state, updater, kind)
    if not isinstance(state, FencedState) or state.columns is not None:
        remedy = "Give updater=, or a state that takes rows as they are, such as SqlGuard; else persistent_aggregate."
        raise ConfigError(option="partition_persist(state=)", value=type(state).__name__, remedy=remedy)
    return state
