"""The adapters through which a commit uses user-defined states. Source: Trident's partitionPersist."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import chain, islice
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

from airflow_tx.base.errors import ConfigError, StateError
from airflow_tx.state.aggregators import Cells
from airflow_tx.state.api import (
    Fence,
    FencedState,
    Grant,
    QueryableState,
    State,
    StateKind,
    StatePart,
    StateUpdate,
    StateWrite,
    StoredState,
)
from airflow_tx.state.keys import Key, as_key
from airflow_tx.state.maps import (
    NonTransactionalMap,
    OpaqueValue,
    TransactionalValue,
    portable,
)
from airflow_tx.state.memory import MemoryDatabase, MemoryMap, MemoryState
from airflow_tx.state.trident import (
    PartitionedState,
    TridentAggregate,
    TridentState,
    has_methods,
    is_factory,
    is_map,
    is_snapshottable,
    made_by,
)

# --- query --------------------------------------------------------------------------------------------------------
# Look up rows in a state in bulk. Users can write their own classes that create, query and update
# such a state.
# Source: trident-state seed.


StateRow: TypeAlias = Mapping[str, Any]
_Rows: TypeAlias = list[dict[str, Any]]
S = TypeVar("S", bound=State)
S_co = TypeVar("S_co", bound=State, covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
_T = TypeVar("_T")


class StateFactory(Protocol[S_co]):
    """Creates the state object that one writer of a task uses."""

    def make_state(
        self, conf: Mapping[str, Any], partition_index: int, num_partitions: int
    ) -> S_co:
        """Return the state for one of `num_partitions` writers. Writers are counted from 0."""


class QueryFunction(Protocol[S_contra, _T]):
    """Queries a state for rows. The first method looks up all rows, and the second one adds the results to each row."""

    def batch_retrieve(self, state: S_contra, rows: Sequence[StateRow]) -> Sequence[_T]:
        """Look up the rows, and return one result per row, in their order."""

    def execute(self, row: StateRow, result: _T) -> Iterable[StateRow]:
        """Yield the fields to add to the row.

        Without a result, the row is dropped. Several results give several rows.
        """


class StateUpdater(Protocol[S_contra]):
    """Updates a state with the rows of a batch."""

    def update_state(self, state: S_contra, rows: Sequence[StateRow]) -> Iterable[StateRow] | None:
        """Apply the rows to the state, and return the rows of the new values stream."""


def query(
    state: S, rows: Iterable[StateRow], function: QueryFunction[S, _T]
) -> Iterator[dict[str, Any]]:
    """Add fields from a state to rows. Raises the same errors as `results_of`."""
    batch = list(rows)
    for number, fields in results_of(state, batch, function):
        yield {**batch[number], **fields}


def for_readers(state: Any, *, local: bool) -> Any:
    """Copy a state or a factory for Spark executors that query it. Return None if they cannot query it.

    :param local: whether the executors run on this machine.
    """
    return state.for_readers(local=local) if isinstance(state, FencedState) else portable(state)


def results_of(
    state: S, rows: Sequence[StateRow], function: QueryFunction[S, _T]
) -> Iterator[tuple[int, StateRow]]:
    """Query a state for each row. Yield the fields to add to the row, with the row number.

    :raises StateError: the function does not return one result per row.
    """
    if isinstance(state, PartitionedState):
        yield from sorted(_results_of_parts(state, rows, function), key=itemgetter(0))
        return
    results = function.batch_retrieve(state, rows) if rows else []
    if len(results) != len(rows):
        problem = f"{type(function).__name__}.batch_retrieve gave {len(results)} results for {len(rows)} rows"
        remedy = "Return one result a row, in the order of the rows."
        raise StateError(state=type(state).__name__, problem=problem, remedy=remedy)
    for number, (row, result) in enumerate(zip(rows, results, strict=True)):
        for fields in function.execute(row, result):
            yield number, fields


def _results_of_parts(
    state: PartitionedState, rows: Sequence[StateRow], function: QueryFunction[Any, _T]
) -> Iterator[tuple[int, StateRow]]:
    for part, numbers in state.shared_out(rows):
        for index, fields in results_of(part, [rows[number] for number in numbers], function):
            yield numbers[index], fields


def update(state: S, txid: int | None, rows: Iterable[StateRow], updater: StateUpdater[S]) -> _Rows:
    """Apply one batch to a state (Trident's partitionPersist). Return the rows of the new values stream."""
    state.begin_commit(txid)
    new_values = [dict(row) for row in updater.update_state(state, list(rows)) or ()]
    state.commit(txid)
    return new_values


def state_query(
    rows: Iterable[StateRow],
    *,
    state: Any,
    query: QueryFunction[Any, Any] | None = None,
    batch_size: int = 10_000,
) -> Iterator[dict[str, Any]]:
    """Add fields from a state to rows, in the order of the rows (Trident's stateQuery).

        found = state_query(current_batch().read(), state=carriers)              # adds the value columns
        known = [row for row in found if row["name"] is not None]                # what Trident's FilterNull does

    Inside `commit_phase`, all values are exactly the values after one transaction. The same applies to a task after the
    commit, unless a later transaction commits before the task reads. In the processing phase, other transactions commit
    at the same time. Two look-ups may then see different transactions. Values of an open commit may still change.

    :param rows: the rows. They are read on demand, and at most `batch_size` rows are in memory.
    :param state: any state of this package, a map, your own state, or a StateFactory. For an update from
        `partition_persist` or `persistent_aggregate`, its state is queried. A state without updates is a static state,
        such as `StaticState` or a table that you fill by hand.
    :param query: the query function; None for `MapGet()`.
    :param batch_size: number of rows in one look-up.
    :raises StateError: the state refuses a row, or the function does not return one result per row.
    """
    if batch_size < 1:
        raise ConfigError(
            option="state_query(batch_size=)",
            value=batch_size,
            remedy="Use a number of rows from 1.",
        )
    return _answered(
        iter(rows), resolved_state(state), MapGet() if query is None else query, batch_size
    )


def resolved_state(state: Any) -> Any:
    """Return the state that a query reads.

    If the given state is a factory or a static state, this is the state that it creates or contains.
    """
    state = state_of(state)
    if isinstance(state, StaticState):
        return state.state
    if isinstance(state, TridentState) and not isinstance(state, QueryableState):
        return state.state
    return made_by(state)


def state_of(given: Any) -> Any:
    """Return the state of an update. Return any other object unchanged."""
    return given.state if isinstance(given, StateUpdate) else given


def _answered(
    rows: Iterator[StateRow], state: Any, function: Any, size: int
) -> Iterator[dict[str, Any]]:
    while batch := list(islice(rows, size)):
        yield from query(state, batch, function)


def new_values_stream(
    rows: Iterable[StateRow], *, state: QueryableState, batch_size: int = 10_000
) -> Iterator[dict[str, Any]]:
    """Look up the new values of the keys that an update has written.

    Each key is looked up once (Trident's newValuesStream).

    Use it in `commit_phase`, in a task after the committer that wrote these values. A replay returns the same values
    again.

    :param rows: the rows of the committer, with the key columns.
    :param batch_size: number of keys in one look-up.
    :param state: the state to which the committer has written.
    """
    names = state.columns.keys
    seen = set[Key]()

    def keys() -> Iterator[StateRow]:
        for row in rows:
            key = tuple(row.get(name) for name in names)
            if key not in seen:
                seen.add(key)
                # omit a missing key field; the look-up then reports the row
                yield {name: row[name] for name in names if name in row}

    return state_query(keys(), state=state, batch_size=batch_size)


class MapGet:
    """Looks up the key of each row, and adds the stored values to the row. If there is no such key, each value is None.

    :param keys: the fields of a row that form the key, in the order of the key columns. None if these fields are named
        like the key columns.
    :param values: the fields to add. For a state with value columns, name some of these columns, or pass None for all.
        A map has no column names, so choose a name for its value, or several names if its values are dicts.
    """

    def __init__(
        self, keys: Sequence[str] | None = None, values: Sequence[str] | None = None
    ) -> None:
        for option, given in (("keys", keys), ("values", values)):
            if isinstance(given, str):
                raise ConfigError(
                    option=f"MapGet({option}=)", value=given, remedy=f"Give a list: [{given!r}]."
                )
        self._keys = None if keys is None else tuple(keys)
        self._values = None if values is None else tuple(values)

    def __repr__(self) -> str:
        return f"MapGet(keys={self._keys}, values={self._values})"

    def batch_retrieve(self, state: Any, rows: Sequence[StateRow]) -> _Rows:
        """Look up the fields to add to each row. A single `multi_get` looks up each key once.

        :raises StateError: a row lacks a key field, or the state refuses a key.
        """
        names, fields = self.names(state)
        keys = [self._key(state, names, row) for row in rows]
        distinct = list(dict.fromkeys(keys))
        found = dict(zip(distinct, state.multi_get(distinct), strict=True))
        if len(fields) == 1 and not isinstance(state, QueryableState):
            return [{fields[0]: found[key]} for key in keys]
        return [
            {name: None if (value := found[key]) is None else value[name] for name in fields}
            for key in keys
        ]

    def execute(self, row: StateRow, result: Mapping[str, Any]) -> Iterable[StateRow]:
        return (result,)

    def names(self, state: Any) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return the names of the key fields and the value fields. Raise ConfigError if the state has no such names."""
        if isinstance(state, StoredState) and state.takes_back_by_txid:
            remedy = (
                "Its rows have no key, and several may have the same columns. Also keep values by key in a SqlState, "
                "or query the table with your own QueryFunction."
            )
            raise ConfigError(
                option=f"MapGet of state {state.name!r}", value=type(state).__name__, remedy=remedy
            )
        if not isinstance(state, QueryableState):
            if self._keys is None or not self._values:
                remedy = f"A {type(state).__name__} has no names: MapGet(keys=['user'], values=['location'])."
                raise ConfigError(
                    option="MapGet(keys=, values=)", value=(self._keys, self._values), remedy=remedy
                )
            return self._keys, self._values
        columns = state.columns
        every = (*columns.values, *columns.composites)
        if unknown := [name for name in self._values or () if name not in every]:
            remedy = f"State {columns.state!r} has the value columns {', '.join(every)}."
            raise ConfigError(option="MapGet(values=)", value=unknown, remedy=remedy)
        if self._keys is not None and len(self._keys) != len(columns.keys):
            remedy = f"Name a field for each key column of state {columns.state!r}: {', '.join(columns.keys)}."
            raise ConfigError(option="MapGet(keys=)", value=list(self._keys), remedy=remedy)
        return self._keys if self._keys is not None else columns.keys, self._values or every

    def _key(self, state: Any, names: tuple[str, ...], row: StateRow) -> Key:
        try:
            return tuple(row[name] for name in names)
        except KeyError as error:
            name = getattr(state, "name", type(state).__name__)
            problem = f"row {str(dict(row))[:200]} has no field {error}, which is part of the key"
            remedy = "Name the fields of the rows: MapGet(keys=[...])."
            raise StateError(state=name, problem=problem, remedy=remedy) from None


class StaticState:
    """A state without updates (Trident's newStaticState): values by key, or the state that a StateFactory creates.

        names = StaticState({"AA": "American", "UA": "United"})
        state_query(rows, state=names, query=MapGet(keys=["carrier"], values=["name"]))
        state_query(rows, state=StaticState(LocationDBFactory()), query=QueryLocation())

    :param values: value by key, where a tuple is a key of several columns; or a factory, which is called on the first
        query.
    """

    def __init__(self, values: Mapping[Any, Any] | StateFactory[Any]) -> None:
        if not isinstance(values, Mapping) and not is_factory(values):
            remedy = 'Give a dict of values by key, or a factory with make_state: StaticState({"AA": "American"}).'
            raise ConfigError(
                option="StaticState(values)", value=type(values).__name__, remedy=remedy
            )
        self._values = values

    def __repr__(self) -> str:
        made = (
            f"{len(self._values)} keys"
            if isinstance(self._values, Mapping)
            else type(self._values).__name__
        )
        return f"StaticState({made})"

    def __getstate__(self) -> dict[str, Any]:
        return {"_values": self._values}

    def for_executors(self) -> StaticState:
        """Return a copy of the state that works in a process without Airflow."""
        return self if isinstance(self._values, Mapping) else StaticState(portable(self._values))

    @cached_property
    def state(self) -> Any:
        """Return the state that a query reads: this object, or the state created by the factory."""
        return self if isinstance(self._values, Mapping) else made_by(self._values)

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[Any]:
        if not isinstance(self._values, Mapping):
            return list(self.state.multi_get(keys))
        return [self._found.get(as_key(key)) for key in keys]

    @cached_property
    def _found(self) -> dict[Key, Any]:
        assert isinstance(self._values, Mapping)
        return {as_key(key): value for key, value in self._values.items()}


# --- persisted ----------------------------------------------------------------------------------------------------


_MOST_THREADS = 32
_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Updated:
    """The result of an updater: how many rows it applied, and the new values that it emitted."""

    rows: int
    new_values: _Rows


@dataclass(frozen=True)
class Writers:
    """The parallel writers of an update, like the tasks of Trident's partitionPersist.

    :param count: number of writers. A factory makes a state for each of them.
    :param by: the fields of a row that choose its writer.
    :param conf: the configuration that is passed to the factory.
    """

    count: int = 1
    by: tuple[str, ...] = ()
    conf: Mapping[str, Any] | None = field(default=None, repr=False)

    def check(self, state: Any) -> None:
        """Raise ConfigError if these arguments contradict each other, or do not fit the state."""
        option = "partition_persist(partitions=)"
        problem = ""
        if self.count < 1:
            problem = "Give a number of writers from 1."
        elif self.count > 1 and not is_factory(state):
            problem = "Each writer needs its own state: pass a StateFactory."
        elif self.count > 1 and not self.by:
            problem = 'Name the fields whose rows belong together: partition_by=["user"].'
        if problem:
            raise ConfigError(option=option, value=self.count, remedy=problem)
        if self.conf is not None and not is_factory(state):
            remedy = (
                f"Only a StateFactory gets conf, and {type(state).__name__} is not a StateFactory."
            )
            raise ConfigError(option="partition_persist(conf=)", value="...", remedy=remedy)


class PersistedState(TridentState):
    """Applies the rows of a transaction: first `begin_commit(txid)`, then the updater, and then `commit(txid)`.

    The attribute `kind` of the state determines whether the rows of a replay count twice. If its attribute
    `can_roll_back` is true, `begin_commit(txid)` undoes all updates of that txid, including keys that do not occur in
    the following rows. An opaque map without this attribute is wrapped, so that it undoes them. A skipped transaction
    has no rows, and the updater is not called.

    :param state: a state with `begin_commit` and `commit`, or a factory with `make_state`.
    :param updater: an object with `update_state(state, rows)`.
    :param kind: kind of the state; None for its attribute `kind`, or non-transactional without that attribute.
    :param writers: the parallel writers.
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
        """Return whether the state is a map. A committer can read the new values from a map."""
        return is_map(self.given)

    def _written(self, write: StateWrite) -> int:
        done = self.updated(write.grant, write.rows or ())
        if done.new_values:
            _log.info(
                "%s emitted %d new values, which no task can read. To make them an output of the committer, set "
                "partition_persist(..., new_values=NAME)",
                type(self.updater).__name__,
                len(done.new_values),
            )
        return done.rows

    def updated(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> Updated:
        """Pass the rows to the updater, between `begin_commit` and `commit`. Several writers run in parallel."""
        given = list(rows)
        if not isinstance(self.state, PartitionedState):
            return Updated(len(given), update(self.state, grant.txid, given, self.updater))

        def write(own: tuple[Any, list[int]]) -> _Rows:
            part, numbers = own
            return update(part, grant.txid, [given[number] for number in numbers], self.updater)

        # If one writer fails, wait for the others before the task retries the commit.
        with ThreadPoolExecutor(min(len(self.state.parts), _MOST_THREADS)) as pool:
            done = list(pool.map(write, self.state.shared_out(given)))
        return Updated(len(given), list(chain.from_iterable(done)))

    @cached_property
    def state(self) -> Any:
        """Create the state on first use, or one state per writer if there are several writers."""
        count = self._writers.count
        if count == 1:
            return self._made()
        return PartitionedState(
            self.name, [self._made(index, count) for index in range(count)], self._writers.by
        )


def as_fenced(
    state: Any, updater: Any, kind: StateKind | str | None, writers: Writers
) -> FencedState:
    """Return a state, or its wrapper, that a committer can write.

    :raises ConfigError: there is no updater, and the state does not store rows unchanged, as a guard does.
    """
    if updater is not None:
        return PersistedState(state, updater, kind, writers)
    if writers != Writers():
        remedy = "A state that stores rows unchanged has one writer and no factory: leave it out."
        raise ConfigError(
            option="partition_persist(partitions=, partition_by=, conf=)",
            value=writers,
            remedy=remedy,
        )
    if not isinstance(state, FencedState) or state.columns is not None:
        remedy = (
            "Set updater=, or pass a state that stores rows unchanged, such as SqlGuard. "
            "Otherwise use persistent_aggregate."
        )
        raise ConfigError(
            option="partition_persist(state=)", value=type(state).__name__, remedy=remedy
        )
    return state


def as_aggregate(
    state: Any, keys: Sequence[str] | None, values: Mapping[str, Any] | None, kind: str | None
) -> Any:
    """Add key and value columns to a state without columns. Return an object that is not a state unchanged.

    :raises ConfigError: the state has its own columns, or cannot keep values by key.
    """

    given = {"keys": keys, "values": values, "kind": kind}
    if isinstance(state, FencedState):
        for option, value in given.items():
            if value is not None:
                remedy = f"{type(state).__name__} already defines it: leave {option}= out."
                raise ConfigError(
                    option=f"persistent_aggregate({option}=)", value=value, remedy=remedy
                )
        return state
    name = type(state).__name__
    if not (is_factory(state) or has_methods(state, "begin_commit", "commit")):
        if has_methods(state, "multi_get", "multi_put"):
            remedy = f"It keeps values without txids: state=OpaqueMap({name}(...))."
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


# --- trial --------------------------------------------------------------------------------------------------------
# The states of a trial. They start with the values of the real states, but never write to them.


@dataclass(frozen=True)
class TrialChange:
    """A change that a real run would make to one value column of one key.

    :param key: value by key column.
    :param before: the value in the real state; None if the key is new.
    :param added: the delta of the batch.
    """

    key: Mapping[str, Any]
    column: str
    before: Any
    added: Any
    after: Any


class TrialState(MemoryState):
    """Computes the values that a state would have after a real run.

    :param real: the state of the DAG. The trial queries it for the keys that the trial writes.
    :param rows: the rows before the trial; None for the rows of the real state.
    """

    def __init__(self, real: QueryableState, rows: Sequence[StateRow] | None = None) -> None:
        self.real = real
        self.name = real.name
        self.kind = StateKind.OPAQUE if real.kind is StateKind.NON_TRANSACTIONAL else real.kind
        self.columns = real.columns
        self.database = MemoryDatabase()
        self._start = None if rows is None else {self._key(row): row for row in rows}
        self._before: dict[Cells, StateRow | None] = {}
        self._added: dict[Cells, StateRow] = {}

    def __repr__(self) -> str:
        return repr(self.real)

    def for_executors(self) -> None:
        """Return None, because a trial must stay in this process."""

    def changes(self) -> Iterator[TrialChange]:
        """Yield the changes that the trial makes, in the order of the keys."""
        for key in sorted(self._added, key=str):
            shown = dict(zip(self.columns.keys, key, strict=True))
            before, (after,) = self._before[key], self.multi_get([key])
            for column in self.columns.values:
                old = None if before is None else before[column]
                new = None if after is None else after[column]
                yield TrialChange(shown, column, old, self._added[key].get(column), new)

    @contextmanager
    def _transactions(
        self, writes: Sequence[tuple[StoredState, StateWrite]]
    ) -> Iterator[list[StatePart]]:
        for _, write in writes:
            self._seed([row for each in write.portions() for row in each.listed])
        with super()._transactions(writes) as transactions:
            yield transactions

    def _seed(self, rows: Sequence[StateRow]) -> None:
        """Copy the values of the keys that the trial will write."""
        split = len(self.columns.keys)
        checked = {cells[:split]: cells[split:] for cells in self.checked(rows)}

        missing = [key for key in checked if key not in self._before]
        for key, values in zip(missing, self._found(missing), strict=True):
            self._before[key] = values
            if values is not None:
                self.database.rows[key] = self._stored(values)
        self._added |= {
            key: dict(zip(self.columns.values, deltas, strict=True))
            for key, deltas in checked.items()
        }

    def _found(self, keys: Sequence[Cells]) -> list[Any]:
        if self._start is not None:
            return [self._start.get(key) for key in keys]
        return self.real.multi_get(keys)

    def _stored(self, row: StateRow) -> OpaqueValue[Cells] | TransactionalValue[Cells]:
        values = self._frozen(tuple(row[name] for name in self.columns.values))
        if self.kind is StateKind.OPAQUE:
            return OpaqueValue(0, values, None)
        return TransactionalValue(0, values)

    def _key(self, row: StateRow) -> Cells:
        return tuple(row.get(name) for name in self.columns.keys)


class TrialRows(FencedState):
    """Collects the rows that a real run would write to a state without columns.

    :param real: the state of the DAG. The trial does not query it.
    """

    def __init__(self, real: FencedState) -> None:
        self.real = real
        self.name = real.name
        self.kind = StateKind.OPAQUE
        self.rows: _Rows = []

    def __repr__(self) -> str:
        return repr(self.real)

    def raise_fence(self, grant: Grant) -> None:
        self.rows.clear()

    def _written(self, write: StateWrite) -> int:
        given = [dict(row) for row in write.rows or ()]
        self.rows += given
        return len(given)

    def read(self, limit: int | None = None) -> _Rows:
        """Return the rows that the state would get."""
        return self.rows[:limit]

    def fence(self) -> Fence | None:
        return None


class TrialUpdates(PersistedState):
    """Runs a map's updater on a copy of the map's values, and stores the rows.

    :param real: the map of the DAG, with its updater.
    :param asked: whether the copy takes its values from the real map; if False, it starts empty.
    """

    def __init__(self, real: PersistedState, *, asked: bool) -> None:
        copied = _CopiedMap(real.state if asked else MemoryMap())
        super().__init__(NonTransactionalMap(copied, name=real.name), real.updater)
        self.real = real
        self.rows: _Rows = []

    def __repr__(self) -> str:
        return repr(self.real)

    def updated(self, grant: Grant, rows: Iterable[StateRow]) -> Updated:
        self.rows = [dict(row) for row in rows]
        return super().updated(grant, self.rows)


class _CopiedMap(MemoryMap[Any]):
    """A copy of a map, which reads values from the original map until the trial replaces them."""

    def __init__(self, real: Any) -> None:
        super().__init__()
        self._real = real
        self._replaced = set[Cells]()

    def multi_get(self, keys: Sequence[Cells]) -> list[Any]:
        missing = [key for key in keys if key not in self._replaced]
        found = dict(zip(missing, self._real.multi_get(missing), strict=True))
        return [self.values.get(key) if key in self._replaced else found[key] for key in keys]

    def multi_put(self, keys: Sequence[Cells], values: Sequence[Any]) -> None:
        self._replaced.update(keys)
        super().multi_put(keys, values)


AnyTrialState: TypeAlias = TrialState | TrialRows | TrialUpdates


def trial_state(real: FencedState, rows: Sequence[StateRow] | None = None) -> AnyTrialState:
    """Return the object that replaces a state in a trial. See `TrialState`."""
    if isinstance(real, QueryableState):
        return TrialState(real, rows)
    if isinstance(real, PersistedState) and is_map(real.given):
        return TrialUpdates(real, asked=rows is None)
    return TrialRows(real)
