"""A state in a table of SQLite, PostgreSQL, MySQL or MariaDB, by a guarded upsert. Source: protocol.md §7."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from airflow_tx.base.dataset import Dataset
from airflow_tx.state.aggregators import Aggregator, Cells, checked_columns
from airflow_tx.state.api import (
    Addressed,
    Fence,
    Grant,
    SoleWriterState,
    StateKind,
    StatePart,
    StateReading,
    StateWrite,
    StoredReceipt,
    StoredState,
    fenced_kind,
)
from airflow_tx.state.column_types import PREV, split_table

if TYPE_CHECKING:
    from airflow_tx.state.sql.fence import FencedStore
    from airflow_tx.state.sql.store import SqlStore

_Store = TypeVar("_Store", bound="FencedStore")
_Answer = TypeVar("_Answer")


class FencedInSql(Addressed[_Store], StoredState):
    """A state in a database. Its fence is a row in the same database."""

    can_clear = can_release = True

    @property
    def store_key(self) -> Hashable:  # type: ignore[override]
        return self.conn_id, self._url

    @contextmanager
    def _transactions(
        self, writes: Sequence[tuple[StoredState, StateWrite]]
    ) -> Iterator[list[StatePart]]:
        from airflow_tx.state.sql.fence import begun_together

        pairs = [(state._store, write) for state, write in writes if isinstance(state, FencedInSql)]
        first, *others = (store for store, _ in pairs)
        with first.transaction(beside=others) as connection:
            yield [*begun_together(connection, pairs)]

    def _asked(self, question: Callable[..., _Answer], *given: Any) -> _Answer:
        """Call a store's query method in a read-only transaction."""
        with self._store.transaction(reading=True) as connection:
            return question(connection, *given)

    def ddl(self) -> dict[str, list[str]]:
        return {self._store.where: self._asked(self._store.owner_ddl)}

    def fence(self) -> Fence | None:
        return self._asked(self._store.read_fence)

    def at(self, txid: int, newest: int) -> str:
        with self._store.transaction(reading=True, frozen=True) as connection:
            return self._store.at(connection, txid, newest)

    def receipts(self) -> list[StoredReceipt]:
        return self._asked(self._store.receipts)

    def accept_values(self, change: int = 0) -> None:
        with self._store.transaction() as connection:
            self._store.accept_values(connection, change)

    def fence_of(self, old: str) -> Fence | None:
        with self._store.transaction(reading=True) as connection:
            own = self._store.read_fence(connection)
            return own or self._store.read_fence(
                connection, of=old.removeprefix(f"{self.conn_id}.")
            )

    def take_over(self, old: str) -> None:
        with self._store.transaction() as connection:
            self._store.take_over(connection, old.removeprefix(f"{self.conn_id}."))

    def put_back(self, grant: Grant) -> None:
        with self._store.transaction() as connection:
            self._store.put_back(connection, grant)

    def clear(self) -> None:
        with self._store.transaction() as connection:
            self._store.clear(connection)

    def release(self) -> None:
        with self._store.transaction() as connection:
            self._store.release(connection)


class SqlState(FencedInSql["SqlStore"], SoleWriterState):
    """A table of values per key that transactions add to, each exactly once.

    The first update creates the table, with your names for key and value columns. You can read it with plain SQL.
    Columns of this package begin with `tx_`. The table `airflow_tx_fence` beside it holds the fence.

    The database itself combines sums, counts, minima, maxima, first and last values, with one statement per 10,000
    keys. With any other aggregator, such as CollectSet or your own, a commit reads the values, combines them in Python
    and writes them back. This takes two statements in the same transaction. docs/stores.md describes time-outs,
    versions and limits.

    :param conn_id: Airflow connection of type sqlite, postgres or mysql, looked up when the state is used, not when
        Airflow parses a DAG.
    :param table: "table" or "schema.table".
    :param keys: key columns; [] for a state with one row.
    :param values: aggregator by value column, such as Sum(), Count(), Max("timestamp") or Avg().
    :param kind: "opaque" (a replay may have other rows) or "transactional" (a replay has the same output).
    :param types: type by key column: bigint, double, numeric, text, boolean, date, timestamp, timestamptz or bytes.
    """

    def __init__(
        self,
        conn_id: str,
        *,
        table: str,
        keys: Sequence[str],
        values: Mapping[str, Aggregator],
        kind: StateKind | str = StateKind.OPAQUE,
        types: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__(conn_id, table)
        self.table = table
        self.kind = fenced_kind(kind, state=self.name)
        self.columns = checked_columns(self, keys, values, types)
        names = (*self.columns.keys, *(f"{PREV}{value}" for value in self.columns.values))
        split_table(table, names, state=self.name, also=PREV)
        self._keeps_connection = True

    def dataset(self) -> Dataset:
        return self._asked(self._store.dataset)

    def holds(self, txid: int) -> bool:
        return self._asked(self._store.holds, txid)

    def holds_for_good(self, txid: int, birth: str, incarnation: str) -> bool:
        return self._asked(self._store.holds_for_good, txid, birth, incarnation)

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        return self._asked(self._store.read, limit)

    def totals(self, names: Collection[str]) -> dict[str, int]:
        return self._asked(self._store.totals, names)

    def totals_before(self, names: Collection[str], txid: int) -> dict[str, int] | None:
        if self.kind is not StateKind.OPAQUE:
            return None
        return self._asked(partial(self._store.totals, without=txid), names)

    def rows_by_grant(self) -> dict[tuple[int, int, int], int]:
        return self._asked(self._store.rows_by_grant)

    @contextmanager
    def reading(self) -> Iterator[StateReading]:
        """Read all rows of a single database snapshot, row by row."""
        with self._store.transaction(reading=True, frozen=True) as connection:
            fence = self._store.read_fence(connection)
            types = self._store.key_types(connection)
            yield StateReading(fence, types, self._store.each_row(connection))

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        return self._asked(self._store.multi_get, keys)

    def sole_values(
        self, keys: Sequence[Cells], txids: Collection[int], own: int
    ) -> list[Cells | None]:
        return self._asked(self._store.sole_values, keys, txids, own)

    def key_types(self) -> dict[str, str] | None:
        return self._asked(self._store.key_types)

    def for_executors(self) -> SqlState | None:
        return self.for_readers(local=False)

    def for_readers(self, *, local: bool) -> SqlState | None:
        from airflow_tx.base.connections import parsed_url, url_of_connection

        url = parsed_url(self._url) if self._url is not None else url_of_connection(self.conn_id)
        # SQLite allows only one writer. On another machine, the same path would be another file.
        if url.get_backend_name() == "sqlite" and not local:
            return None
        copied = self._copy_at(url.render_as_string(hide_password=False))
        # Do not keep the connection. A worker process of Spark outlives its tasks, and there may be
        # hundreds of workers.
        copied._keeps_connection = False
        return copied

    def _open(self) -> SqlStore:
        from airflow_tx.base.connections import located
        from airflow_tx.state.sql.store import SqlStore

        url, where = located(self.conn_id, self._url)
        return SqlStore(
            url,
            table=self.table,
            columns=self.columns,
            kind=self.kind,
            where=where,
            keeps_connection=self._keeps_connection,
        )
