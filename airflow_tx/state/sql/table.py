"""A database table to which transactions append rows, and from which a restatement removes them.

Source: protocol.md §7.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import ConfigError
from airflow_tx.state.api import StoredReceipt
from airflow_tx.state.column_types import STATE_TYPES, split_table
from airflow_tx.state.sql.state import FencedInSql
from airflow_tx.state.upstream import CommittedTable, RejectedFilter, TableCounts

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.state.sql.table_store import TableStore


class SqlTable(FencedInSql["TableStore"], CommittedTable):
    """A table in SQLite, PostgreSQL, MySQL or MariaDB to which each transaction appends its rows exactly once.

        updates=[append(orders.output["rows"], state=SqlTable("warehouse", table="orders"))]

    One transaction of the database inserts the rows of the topology's transaction. It first deletes the rows of
    replaced attempts, and of the transaction that is restated. Readers see either all rows of a transaction or none.

    The column `tx_txid` has the txid of each row. `tx_row` is the number of the row in the output, in the order of the
    map indexes, the files and the rows. If the first rows create the table, both columns are its primary key. A table
    of your own needs a column `tx_txid` and an index that begins with it. It may lack `tx_row`.

    :param conn_id: Airflow connection of type sqlite, postgres or mysql, looked up when the state is used.
    :param table: "table" or "schema.table".
    :param types: type by column: bigint, double, numeric, text, boolean, date, timestamp, timestamptz, bytes or json.
        The first rows decide the type of any other column.
    :param add_columns: whether a commit adds the columns that the table lacks; if False, it refuses rows with such
        columns.
    :param journal_rows: whether the journal keeps the rows. A restored table then gets its missing rows from the
        journal. If False, only a newer backup has them. docs/journal.md describes the cost.
    """

    def __init__(
        self,
        conn_id: str,
        *,
        table: str,
        types: Mapping[str, str] | None = None,
        add_columns: bool = False,
        journal_rows: bool = True,
    ) -> None:
        super().__init__(conn_id, table)
        split_table(table, types or (), state=self.name)
        self.journal_rows = journal_rows
        self.table = table
        self.types = dict(types or {})
        self.add_columns = add_columns
        for column, kind in self.types.items():
            if kind not in STATE_TYPES:
                remedy = f"Use one of {', '.join(STATE_TYPES)}."
                option = f"SqlTable({table!r}, types=), column {column!r}"
                raise ConfigError(option=option, value=str(kind), remedy=remedy)

    def holds(self, txid: int) -> bool:
        return self._asked(self._store.holds, txid)

    def holds_for_good(self, txid: int, birth: str, incarnation: str) -> bool:
        return self._asked(self._store.holds_for_good, txid, birth, incarnation)

    def receipts(self) -> list[StoredReceipt]:
        return [replace(each, takes_out=True) for each in super().receipts()]

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        return self._asked(self._store.read, limit)

    def rows_by_txid(self) -> dict[int | None, int]:
        return self._asked(self._store.rows_by_txid)

    def select_rejected(
        self, wanted: RejectedFilter, most: int, *, counting: bool
    ) -> list[dict[str, Any]]:
        select = partial(self._store.select_rejected, counting=counting)
        return self._asked(select, wanted, most)

    def connections(self) -> dict[str, str]:
        return {} if self._url is not None else {self.conn_id: "postgres"}

    def dataset(self) -> Dataset:
        return self._asked(self._store.dataset)

    def row_types(self, *, upstream_txid: bool = False) -> dict[str, pa.DataType]:
        return self._store.row_types(upstream_txid=upstream_txid)

    def counts(self, txids: Collection[int]) -> TableCounts:
        return self._store.counts(txids)

    def arrow(self, counted: TableCounts, *, upstream_txid: bool = False) -> pa.RecordBatchReader:
        return self._store.arrow(counted, upstream_txid=upstream_txid)

    def frame(self, spark: Any, counted: TableCounts, *, upstream_txid: bool = False) -> Any:
        return self._store.frame(spark, counted, upstream_txid=upstream_txid)

    def _open(self) -> TableStore:
        from airflow_tx.base.connections import located
        from airflow_tx.state.sql.table_store import TableStore

        url, where = located(self.conn_id, self._url)
        return TableStore(
            url,
            table=self.table,
            types=self.types,
            add_columns=self.add_columns,
            state=self.name,
            where=where,
        )
