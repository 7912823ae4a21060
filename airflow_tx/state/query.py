"""Look-ups of rows in a state, in bulk; states of one's own: made, queried and updated. Source: trident-state seed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from itertools import islice
from operator import itemgetter
from typing import Any, Protocol, TypeAlias, TypeVar

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.api import FencedState, QueryableState, State, StateUpdate
from airflow_tx.state.keys import Key, as_key
from airflow_tx.state.trident.partitions import PartitionedState
from airflow_tx.state.trident.portable import portable
from airflow_tx.state.trident.state import TridentState, is_factory, made_by

StateRow: TypeAlias = Mapping[str, Any]
S = TypeVar("S", bound=State)
S_co = TypeVar("S_co", bound=State, covariant=True)
S_contra = TypeVar("S_contra", contravariant=True)
_T = TypeVar("_T")


class StateFactory(Protocol[S_co]):
    """Makes the object with which one task uses a state."""

    def make_state(
        self, conf: Mapping[str, Any], partition_index: int, num_partitions: int
    ) -> S_co:
        """Make the state for one of `num_partitions` writers, counted from 0."""


class QueryFunction(Protocol[S_contra, _T]):
    """Asks a state about rows: first all at once, then row by row."""

    def batch_retrieve(self, state: S_contra, rows: Sequence[StateRow]) -> Sequence[_T]:
        """Look the rows up: one result a row, in their order."""

    def execute(self, row: StateRow, result: _T) -> Iterable[StateRow]:
        """Give the fields to add to the row: none drops it, several give several rows."""


class StateUpdater(Protocol[S_contra]):
    """Updates a state with the rows of a batch."""

    def update_state(self, state: S_contra, rows: Sequence[StateRow]) -> Iterable[StateRow] | None:
        """Apply the rows; what it returns are the rows of the new values stream."""


def query(
    state: S, rows: Iterable[StateRow], function: QueryFunction[S, _T]
) -> Iterator[dict[str, Any]]:
    """Add to the rows what the state says about them; a StateError if the function does not give one result a row."""
    batch = list(rows)
    for number, fields in results_of(state, batch, function):
        yield {**batch[number], **fields}


def for_readers(state: Any, *, local: bool) -> Any:
    """Copy a state, or what a factory has made, for executors of Spark that ask it; None: they cannot.

    :param local: whether they are on this machine.
    """
    return state.for_readers(local=local) if isinstance(state, FencedState) else portable(state)


def results_of(
    state: S, rows: Sequence[StateRow], function: QueryFunction[S, _T]
) -> Iterator[tuple[int, StateRow]]:
    """Ask a function about rows: fields to add, each with the number of its row.

    :raises StateError: the function does not give one result a row.
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


def update(
    state: S, txid: int | None, rows: Iterable[StateRow], updater: StateUpdater[S]
) -> list[dict[str, Any]]:
    """Apply one batch to a state (Trident's partitionPersist); returns the rows of the new values stream."""
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
    """Add to rows, in their order, what a state says about them (Trident's stateQuery).

        found = state_query(current_batch().read(), state=carriers)              # adds the value columns
        known = [row for row in found if row["name"] is not None]                # what Trident's FilterNull does

    Inside `commit_phase`, and in a task after the commit that no later commit overtakes, the values are exactly the
    ones up to a transaction. In the processing phase other transactions commit at the same time: a batch may see a
    transaction and the next one not, and values of a transaction that is being committed may still change.

    :param rows: read on demand: `batch_size` rows are in memory.
    :param state: any state of this package, a map, one of your own, or a StateFactory; or what `partition_persist` or
        `persistent_aggregate` gave, which means its state. A state without updates (`StaticState`, or a table that
        was filled by hand) is a static state.
    :param query: None: `MapGet()`.
    :param batch_size: how many rows are looked up at once.
    :raises StateError: the state refuses a row, or the function does not give one result a row.
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
    """Find the state that a query asks: that which a factory makes, or for which a static state stands."""
    state = state_of(state)
    if isinstance(state, StaticState):
        return state.state
    if isinstance(state, TridentState) and not isinstance(state, QueryableState):
        return state.state
    return made_by(state)


def state_of(given: Any) -> Any:
    """Find the state of an update; another object stays unchanged."""
    return given.state if isinstance(given, StateUpdate) else given


def _answered(
    rows: Iterator[StateRow], state: Any, function: Any, size: int
) -> Iterator[dict[str, Any]]:
    while batch := list(islice(rows, size)):
        yield from query(state, batch, function)


def new_values_stream(
    rows: Iterable[StateRow], *, state: QueryableState, batch_size: int = 10_000
) -> Iterator[dict[str, Any]]:
    """Look up the new values of an update's keys, each once (Trident's newValuesStream).

    For a task in `commit_phase` after the committer, which has left these values. A replay gives them again.

    :param rows: the rows of the committer, with the key columns.
    :param batch_size: how many keys are looked up at once.
    :param state: that it was committed to.
    """
    names = state.columns.keys
    seen = set[Key]()

    def keys() -> Iterator[StateRow]:
        for row in rows:
            key = tuple(row.get(name) for name in names)
            if key not in seen:
                seen.add(key)
                # One without a field of the key is named by the look-up.
                yield {name: row[name] for name in names if name in row}

    return state_query(keys(), state=state, batch_size=batch_size)


class MapGet:
    """Looks a row's key up and adds the values that are kept under it; None for each if there is no such key.

    :param keys: the fields of a row that make the key, in the order of the state's key columns; None: the fields of the
        same names.
    :param values: the fields to add. Of a state with value columns some of these; None: all fields. Of a map, which
        has no names, the field of its value; or several, if a value is a dict.
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

    def batch_retrieve(self, state: Any, rows: Sequence[StateRow]) -> list[dict[str, Any]]:
        """Find the fields to add to each row: one `multi_get` for all, every key once.

        :raises StateError: a row lacks a field of the key, or the state refuses a key.
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
        """Name the fields of the key and of the values; a ConfigError if the state has no such names."""
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
            remedy = f"State {columns.state!r} has {', '.join(every)}."
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
            problem = f"row {str(dict(row))[:200]} has no field {error}, which belongs to its key"
            remedy = "Name the fields of the rows: MapGet(keys=[...])."
            raise StateError(state=name, problem=problem, remedy=remedy) from None


class StaticState:
    """A state without updates (Trident's newStaticState): values by key, or the state that a StateFactory makes.

        names = StaticState({"AA": "American", "UA": "United"})
        state_query(rows, state=names, query=MapGet(keys=["carrier"], values=["name"]))
        state_query(rows, state=StaticState(LocationDBFactory()), query=QueryLocation())

    :param values: value by key, where a tuple is a key of several columns; or a factory, asked at the first query.
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
        """Copy it for a process without Airflow."""
        return self if isinstance(self._values, Mapping) else StaticState(portable(self._values))

    @cached_property
    def state(self) -> Any:
        """Find the state that a query asks: this object, or what the factory makes."""
        return self if isinstance(self._values, Mapping) else made_by(self._values)

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[Any]:
        if not isinstance(self._values, Mapping):
            return list(self.state.multi_get(keys))
        return [self._found.get(as_key(key)) for key in keys]

    @cached_property
    def _found(self) -> dict[Key, Any]:
        assert isinstance(self._values, Mapping)
        return {as_key(key): value for key, value in self._values.items()}
