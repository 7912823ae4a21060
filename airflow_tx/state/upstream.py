"""Tables whose rows are the source of another topology: what transactions of this one have committed is read by txid.

Rows of a released topology have a negative number, and the rows of a person have none: they are never read.
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
"""The column of rows that says which transaction has committed them."""


class TableSnapshot:
    """One moment of a table, at which several readings find the same rows."""

    def close(self) -> None:
        """Let go of it. No reading that was opened at it can continue."""


@dataclass(frozen=True)
class TableCounts:
    """How many rows a table had of some transactions, in one reading.

    :param rows: by txid; of a transaction without rows, 0. Numbers below 1, which no transaction has, are left out.
    :param snapshot: the moment of the reading; None: the store has none that another reading could find again.
    """

    rows: Mapping[int, int]
    snapshot: TableSnapshot | None = None

    def close(self) -> None:
        """Let go of the snapshot, if there is one."""
        if self.snapshot is not None:
            self.snapshot.close()


# --- rejected rows ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class RejectedFilter:
    """Says which rejected rows are wanted.

    :param first: the first transaction, `last`: the last one.
    :param task: the task that has rejected them, with all of its map indexes; "": malformed rows; None: any.
    :param reason: the whole reason; None: any.
    """

    first: int
    last: int
    task: str | None = None
    reason: str | None = None


@dataclass(frozen=True)
class RejectedCount:
    """Counts the rows that a task has rejected for one reason.

    :param task: "": the source has kept malformed rows aside.
    :param transactions: how many have such rows, from transaction `first` to transaction `last`.
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

    :param counts: most rows first.
    :param others: how many further counts there are.
    :param rows: how many rows all of these counts have.
    """

    counts: tuple[RejectedCount, ...] = ()
    others: int = 0
    rows: int = 0


# --- committed rows -----------------------------------------------------------------------------------------------


class CommittedTable(StoredState):
    """A table whose rows say which transaction has committed them, so that another topology can read them.

    Rows come without the columns of this package, `tx_txid` and `tx_row`. A batch is the rows of exactly these
    transactions, and of no other ones.
    """

    kind = StateKind.OPAQUE
    takes_back_by_txid = True

    def incarnation(self) -> str | None:
        """Read the life of the ledger whose transactions the rows are of; None: no grant has raised the fence."""
        found = self.fence()
        return None if found is None else found.incarnation

    @abstractmethod
    def connections(self) -> dict[str, str]:
        """Map the ids of the Airflow connections that it needs to their types."""

    @abstractmethod
    def dataset(self) -> Dataset:
        """Name the place of the table for lineage."""

    @abstractmethod
    def row_types(self, *, upstream_txid: bool = False) -> dict[str, Any]:
        """Give the types that Arrow has for the columns of the rows, also where there are no rows.

        :raises StateError: no reader has the values of a column, or a column has the name of the txid.
        """

    @abstractmethod
    def counts(self, txids: Collection[int]) -> TableCounts:
        """Count the rows of each of these transactions, in one reading. The caller closes the counts.

        :raises StateError: the table is none that can be read.
        :raises StateUnavailable: the store cannot be reached.
        """

    @abstractmethod
    def select_rejected(
        self, wanted: RejectedFilter, most: int, *, counting: bool
    ) -> list[dict[str, Any]]:
        """Let the engine of the table count rejected rows by task and reason, or read some of them.

        A table that has none yet gives nothing.

        :param most: how many counts or rows to give.
        :raises StateError: the table is none that can be read.
        :raises StateUnavailable: the store cannot be reached.
        """

    def rejected_counts(self, wanted: RejectedFilter, *, most: int) -> RejectedCounts:
        """Count rejected rows by task and reason. Raises as `select_rejected`.

        :param most: how many counts to give, 1 at least.
        """
        selected = self.select_rejected(wanted, most, counting=True)
        if not selected:
            return RejectedCounts()
        rows = [tuple(row.values()) for row in selected]
        *_, every, of_all = rows[0]
        # Some databases have other numbers than int for a sum.
        counts = tuple(RejectedCount(*row[:2], *map(int, row[2:6])) for row in rows)
        return RejectedCounts(counts, int(every) - len(counts), int(of_all))

    def rejected_rows(self, wanted: RejectedFilter, *, most: int) -> list[dict[str, str]]:
        """Read some rejected rows, with the columns `REJECTED_COLUMNS`. Raises as `select_rejected`."""
        return self.select_rejected(wanted, most, counting=False)

    @abstractmethod
    def arrow(self, counted: TableCounts, *, upstream_txid: bool = False) -> Any:
        """Stream the rows that were counted, batch after batch: a RecordBatchReader of pyarrow.

        The order is stable: by txid and number of the row, where the table has such a number.

        :param counted: the transactions; without a snapshot their newest rows are read.
        :param upstream_txid: whether the rows have the number of their transaction, in the column `upstream_txid`.
        :raises StateError: as `row_types`; also during the reading, for a value that a reader does not have.
        """

    @abstractmethod
    def frame(self, spark: Any, counted: TableCounts, *, upstream_txid: bool = False) -> Any:
        """Let the executors of Spark read the same rows, in parallel: a DataFrame. The snapshot stays open until then.

        :param spark: the session.
        :raises ConfigError: Spark cannot read this store, or a setting of the session changes rows.
        """


def owned(txids: Collection[int]) -> list[int]:
    """List numbers that a transaction can have, each once, in their order."""
    return sorted({txid for txid in txids if txid > 0})


def check_free(columns: Collection[str], state: str) -> None:
    """Refuse the column of the txid where the table has a column of that name, as rows of an upstream may have.

    :raises StateDiffers: it has.
    """
    if found := [name for name in columns if name.casefold() == UPSTREAM_TXID]:
        problem = f"the table has a column {found[0]} of its own"
        remedy = "Read it without upstream_txid=True, or rename the column."
        raise StateDiffers(state=state, problem=problem, remedy=remedy)
