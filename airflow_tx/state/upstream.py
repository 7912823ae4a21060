"""Tables whose committed rows are the source of another topology, which reads them by txid.

The reading topology skips rows of a released topology, which have a negative txid, and manually inserted rows, which
have no txid.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import StateDiffers
from airflow_tx.state.api import StateKind, StoredState

UPSTREAM_TXID = "upstream_txid"
"""The column with the txid of the transaction that committed the row."""


class TableSnapshot:
    """A snapshot of a table. All of its queries find the same rows."""

    def close(self) -> None:
        """Release the snapshot. Readers that use it cannot continue."""


@dataclass(frozen=True)
class TableCounts:
    """The number of rows of some transactions in a table, from one query.

    :param rows: number of rows by txid; 0 for a transaction without rows. Txids below 1 are omitted, because no
        transaction has them.
    :param snapshot: the snapshot that was read; None if the store cannot keep a snapshot for a second reading.
    """

    rows: Mapping[int, int]
    snapshot: TableSnapshot | None = None

    def close(self) -> None:
        """Release the snapshot, if there is one."""
        if self.snapshot is not None:
            self.snapshot.close()


# --- rejected rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RejectedFilter:
    """Selects rejected rows.

    :param first: the first transaction.
    :param last: the last transaction.
    :param task: the task that rejected the rows, including all of its map indexes; "" for malformed rows of the source;
        None for any task.
    :param reason: the complete reason; None for any reason.
    """

    first: int
    last: int
    task: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class RejectedCount:
    """The number of rows that a task has rejected for one reason.

    :param task: name of the task; "" if the source has kept malformed rows aside.
    :param transactions: number of transactions with such rows, from transaction `first` to transaction `last`.
    """

    task: str
    reason: str
    rows: int
    transactions: int
    first: int
    last: int


@dataclass(frozen=True)
class RejectedCounts:
    """The counts of a table.

    :param counts: the counts, in descending order of their rows.
    :param others: number of counts that are not listed.
    :param rows: number of rows in all counts, listed or not.
    """

    counts: tuple[RejectedCount, ...] = ()
    others: int = 0
    rows: int = 0


# --- committed rows -----------------------------------------------------------------------------------------------


class CommittedTable(StoredState):
    """A table that records, for each row, which transaction committed it, so that another topology can read the rows.

    Rows are read without this package's columns, `tx_txid` and `tx_row`. A batch contains exactly the rows of its
    transactions.
    """

    kind = StateKind.OPAQUE
    takes_back_by_txid = True

    def incarnation(self) -> str | None:
        """Return the incarnation of the ledger that wrote the rows. Return None if no grant has raised the fence."""
        found = self.fence()
        return None if found is None else found.incarnation

    @abstractmethod
    def connections(self) -> dict[str, str]:
        """Return the ids and the types of the Airflow connections that the table needs."""

    @abstractmethod
    def dataset(self) -> Dataset:
        """Return the dataset of the table for lineage."""

    @abstractmethod
    def row_types(self, *, upstream_txid: bool = False) -> dict[str, Any]:
        """Return the Arrow type of each column of the rows, even if there are no rows.

        :raises StateError: no reader supports the values of a column, or a column has the name of the added txid
            column.
        """

    @abstractmethod
    def counts(self, txids: Collection[int]) -> TableCounts:
        """Count the rows of each of these transactions in one query. The caller must close the result.

        :raises StateError: the table cannot be read.
        :raises StateUnavailable: the store cannot be reached.
        """

    @abstractmethod
    def select_rejected(
        self, wanted: RejectedFilter, most: int, *, counting: bool
    ) -> list[dict[str, Any]]:
        """Count rejected rows by task and reason, or read some of them. The engine of the table does the work.

        The result is empty if the table has no rejected rows yet.

        :param most: maximum number of counts or rows to return.
        :raises StateError: the table cannot be read.
        :raises StateUnavailable: the store cannot be reached.
        """

    def rejected_counts(self, wanted: RejectedFilter, *, most: int) -> RejectedCounts:
        """Count rejected rows by task and reason. Raises the same errors as `select_rejected`.

        :param most: maximum number of counts to return, at least 1.
        """
        selected = self.select_rejected(wanted, most, counting=True)
        if not selected:
            return RejectedCounts()
        rows = [tuple(row.values()) for row in selected]
        *_, every, of_all = rows[0]
        # Some databases return sums with a type other than int.
        counts = tuple(RejectedCount(*row[:2], *map(int, row[2:6])) for row in rows)
        return RejectedCounts(counts, int(every) - len(counts), int(of_all))

    def rejected_rows(self, wanted: RejectedFilter, *, most: int) -> list[dict[str, str]]:
        """Read some rejected rows, with the columns `REJECTED_COLUMNS`. Raises the same errors as `select_rejected`."""
        return self.select_rejected(wanted, most, counting=False)

    @abstractmethod
    def arrow(self, counted: TableCounts, *, upstream_txid: bool = False) -> Any:
        """Return a pyarrow RecordBatchReader that streams the counted rows.

        The rows are in the order of their txids. If the table has row numbers, the order within each transaction is
        stable, too.

        :param counted: the transactions. Without a snapshot, the current rows are read.
        :param upstream_txid: whether the rows include their txid, in the column `upstream_txid`.
        :raises StateError: as for `row_types`. The reader also raises it for a value that it does not support.
        """

    @abstractmethod
    def frame(self, spark: Any, counted: TableCounts, *, upstream_txid: bool = False) -> Any:
        """Return a DataFrame that Spark executors use to read the same rows in parallel.

        The snapshot must stay open until Spark has read the rows.

        :param spark: the Spark session.
        :raises ConfigError: Spark cannot read this store, or a setting of the Spark session would change rows.
        """


def owned(txids: Collection[int]) -> list[int]:
    """Return the valid txids, without duplicates, in ascending order."""
    return sorted({txid for txid in txids if txid > 0})


def check_free(columns: Collection[str], state: str) -> None:
    """Refuse to add the txid column if the table already has a column of that name, for example with copied upstream
    rows.

    :raises StateDiffers: the table has such a column.
    """
    if found := [name for name in columns if name.casefold() == UPSTREAM_TXID]:
        problem = f"the table already has a column {found[0]}"
        remedy = "Read it without upstream_txid=True, or rename the column."
        raise StateDiffers(state=state, problem=problem, remedy=remedy)
