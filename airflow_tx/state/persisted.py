"""A state that its user has written, as the commit sees it. Source: Trident's partitionPersist."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain
from typing import Any

from airflow_tx.errors import ConfigError
from airflow_tx.state.api import FencedState, Grant, State, StateKind, StateWrite
from airflow_tx.state.query import StateFactory, StateUpdater, update
from airflow_tx.state.trident.partitions import PartitionedState
from airflow_tx.state.trident.state import (
    TridentState,
    has_methods,
    is_factory,
    is_map,
    is_snapshottable,
)

_MOST_THREADS = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Updated:
    """The outcome of an updater: how many rows it took, and what it emitted."""

    rows: int
    new_values: list[dict[str, Any]]


@dataclass(frozen=True)
class Writers:
    """Who writes the rows of an update: Trident's tasks of a partitionPersist.

    :param count: how many, each with a state of its own, which a factory makes.
    :param by: the fields of a row that choose its writer.
    :param conf: what the factory gets.
    """

    count: int = 1
    by: tuple[str, ...] = ()
    conf: Mapping[str, Any] | None = field(default=None, repr=False)

    def check(self, state: Any) -> None:
        """Refuse what cannot be, by a ConfigError."""
        option = "partition_persist(partitions=)"
        problem = ""
        if self.count < 1:
            problem = "Give a number of writers from 1."
        elif self.count > 1 and not is_factory(state):
            problem = "Each writer needs a state of its own: give a StateFactory."
        elif self.count > 1 and not self.by:
            problem = 'Name the fields whose rows belong together: partition_by=["user"].'
        if problem:
            raise ConfigError(option=option, value=self.count, remedy=problem)
        if self.conf is not None and not is_factory(state):
            remedy = f"Only a StateFactory gets it, and {type(state).__name__} is none."
            raise ConfigError(option="partition_persist(conf=)", value="...", remedy=remedy)


class PersistedState(TridentState):
    """Applies the rows of a transaction by `begin_commit(txid)`, the updater, `commit(txid)`.

    The state decides whether a replay counts twice. Its promise is its `kind`, and by an attribute
    `can_roll_back` that `begin_commit(txid)` takes back what it holds of that txid, also of keys that the rows that
    follow leave alone; an opaque map without that attribute is made to. For a skipped transaction no row follows, and
    the updater is not called.

    :param state: with `begin_commit` and `commit`; or a factory, with `make_state`.
    :param updater: with `update_state(state, rows)`.
    :param kind: what the state promises; None: its attribute `kind`, and without one it is non-transactional.
    :param writers: how many write at once.
    """

    left_out = ("writers",)

    def __init__(
        self,
        state: State | StateFactory[State],
        updater: StateUpdater[Any],
        kind: StateKind | str | None = None,
        writers: Writers | None = None,
    ) -> None:
        wanted = ("make_state",) if is_factory(state) else ("begin_commit", "commit")
        for made, method in (*((state, each) for each in wanted), (updater, "update_state")):
            if not has_methods(made, method):
                option = "partition_persist(state=, updater=)"
                raise ConfigError(
                    option=option, value=type(made).__name__, remedy=f"It has no method {method}."
                )
        self._writers = writers or Writers()
        self._writers.check(state)
        super().__init__(state, kind, option="partition_persist", conf=self._writers.conf)
        self.updater = updater
        self.normalize(state=type(state).__name__, updater=type(updater).__name__)

    @property
    def updates_map(self) -> bool:
        """Whether the new values can be read from the state itself, which is a map."""
        return is_map(self.given)

    def _written(self, write: StateWrite) -> int:
        done = self.updated(write.grant, write.rows or ())
        if done.new_values:
            _log.info(
                "%s emitted %d new values, which no task reads: partition_persist(..., new_values=NAME) makes them "
                "an output of the committer",
                type(self.updater).__name__,
                len(done.new_values),
            )
        return done.rows

    def updated(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> Updated:
        """Hand the rows to the updater, between `begin_commit` and `commit`: to all writers at once."""
        given = list(rows)
        if not isinstance(self.state, PartitionedState):
            return Updated(len(given), update(self.state, grant.txid, given, self.updater))

        def write(own: tuple[Any, list[int]]) -> list[dict[str, Any]]:
            part, numbers = own
            return update(part, grant.txid, [given[number] for number in numbers], self.updater)

        # If one writer fails, the others end before the commit is retried.
        with ThreadPoolExecutor(min(len(self.state.parts), _MOST_THREADS)) as pool:
            done = list(pool.map(write, self.state.shared_out(given)))
        return Updated(len(given), list(chain.from_iterable(done)))

    @cached_property
    def state(self) -> Any:
        """Make the state, or one for each of several writers, when it is first used."""
        count = self._writers.count
        if count == 1:
            return self._made()
        return PartitionedState(
            self.name, [self._made(index, count) for index in range(count)], self._writers.by
        )


def as_fenced(
    state: Any, updater: Any, kind: StateKind | str | None, writers: Writers
) -> FencedState:
    """Wrap a state for a committer; without an updater it must take rows unchanged, as a guard does.

    :raises ConfigError: it does not.
    """
    if updater is not None:
        return PersistedState(state, updater, kind, writers)
    if writers != Writers():
        remedy = "A state that takes rows unchanged has one writer, and no factory: leave it out."
        raise ConfigError(
            option="partition_persist(partitions=, partition_by=, conf=)",
            value=writers,
            remedy=remedy,
        )
    if not isinstance(state, FencedState) or state.columns is not None:
        remedy = "Give updater=, or a state that takes rows unchanged, such as SqlGuard; else persistent_aggregate."
        raise ConfigError(
            option="partition_persist(state=)", value=type(state).__name__, remedy=remedy
        )
    return state


def as_aggregate(
    state: Any, keys: Sequence[str] | None, values: Mapping[str, Any] | None, kind: str | None
) -> Any:
    """Give a state the columns that rows have. The block refuses what is no state at all.

    :raises ConfigError: the state has its own columns, or cannot keep values by key.
    """
    from airflow_tx.state.trident.aggregate import TridentAggregate

    given = {"keys": keys, "values": values, "kind": kind}
    if isinstance(state, FencedState):
        for option, value in given.items():
            if value is not None:
                remedy = f"{type(state).__name__} has its own: leave {option} out here."
                raise ConfigError(
                    option=f"persistent_aggregate({option}=)", value=value, remedy=remedy
                )
        return state
    name = type(state).__name__
    if not (is_factory(state) or has_methods(state, "begin_commit", "commit")):
        if has_methods(state, "multi_get", "multi_put"):
            remedy = f"It keeps values, and no txids: state=OpaqueMap({name}(...))."
            raise ConfigError(option="persistent_aggregate(state=)", value=name, remedy=remedy)
        return state
    if not (is_factory(state) or is_map(state) or is_snapshottable(state)):
        remedy = "It has no multi_get, multi_update and multi_put: use partition_persist(..., updater=...)."
        raise ConfigError(option="persistent_aggregate(state=)", value=name, remedy=remedy)
    for option in ("keys", "values"):
        if given[option] is None:
            remedy = f'{name} has no columns: give keys=["word"], values={{"count": Count()}}; keys=[] for one value.'
            raise ConfigError(option=f"persistent_aggregate({option}=)", value=None, remedy=remedy)
    assert keys is not None
    assert values is not None
    return TridentAggregate(state, keys=keys, values=values, kind=kind)
