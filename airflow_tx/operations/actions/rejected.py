"""The rejected rows of a topology, for commands and for the Transactions page."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from airflow_tx.base.errors import ConfigError, StateError, StateUnavailable, TxError
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import Outcome, Phase, TransactionView
from airflow_tx.state import CommittedTable, Fence, RejectedCounts, RejectedFilter
from airflow_tx.transaction import TransactionSpec

MOST_COUNTS = 1000
"""Maximum number of counts by reason in one response. Reasons may quote values, so each row may have its own."""


class TableAway(TxError):
    """Signals that the store of a table of rejected rows does not respond."""

    template = (
        "State {state!r} ({where}) cannot be reached: {reason}.",
        "Repeat the command when the store answers.",
    )


@dataclass(frozen=True)
class RejectedRows:
    """The rejected rows that a read of a topology's table has found.

    :param rows: some of the rejected rows.
    :param before: fence of the table before the rows were read.
    :param after: fence of the table after the rows were read.
    """

    counts: RejectedCounts
    rows: list[dict[str, str]]
    before: Fence | None = None
    after: Fence | None = None


def rejected_table(spec: TransactionSpec) -> CommittedTable:
    """Return the table of rejected rows that a `Transaction` defines.

    :raises ConfigError: the `Transaction` defines no such table.
    """
    if isinstance(spec.rejected, CommittedTable):
        return spec.rejected
    remedy = "The Transaction of its DAG keeps no rejected rows. Name a table for them: rejected=DeltaTable(...)."
    raise ConfigError(option="TOPOLOGY", value=spec.topology, remedy=remedy)


def rejected_rows_of(
    table: CommittedTable,
    wanted: RejectedFilter,
    *,
    topology: str,
    incarnation: str,
    most: int,
    most_counts: int = MOST_COUNTS,
) -> RejectedRows:
    """Count the rejected rows, and read some of them.

    :param incarnation: incarnation of the ledger that must have written the rows.
    :param most: maximum number of rows to read.
    :raises TableAway: the table's store does not respond.
    :raises StateError: the table has rows of another topology, or cannot be read.
    """
    with _table_answers():
        before = table.fence()
        if before is None:
            return RejectedRows(RejectedCounts(), [])
        if before.incarnation != incarnation:
            problem = "another topology writes it, or an earlier ledger of this topology wrote it"
            remedy = "Compare them: " + Command.of("verify", topology)
            raise StateError(state=table.name, problem=problem, remedy=remedy)
        counts = table.rejected_counts(wanted, most=most_counts)
        rows = table.rejected_rows(wanted, most=most) if most and counts.rows else []
        return RejectedRows(counts, rows, before, table.fence())


@contextmanager
def _table_answers() -> Iterator[None]:
    """Convert a table error, whose remedy is for committers, to an error with a remedy for readers."""
    try:
        yield
    except StateUnavailable as error:
        told = {"state": error.state, "where": error.where, "reason": error.reason}
        raise TableAway(**told) from error


def check_rejected(view: TransactionView, topology: str) -> None:
    """Raise an error if a transaction's status explains why the table has no rows from it.

    :raises ConfigError: the transaction is open, was skipped, or was restated.
    """
    if remedy := _no_rows(view, topology):
        raise ConfigError(option="TXID", value=view.txid, remedy=remedy)


def _no_rows(view: TransactionView, topology: str) -> Remedy | None:
    if view.restated_by is not None:
        told = f"Transaction {view.restated_by} restated it, and took its rejected rows out of the table: "
        return told + Command.of("rejected", topology, view.restated_by)
    if view.status == Outcome.COMMITTED.value:
        return None
    if view.readmitted_as is not None:
        told = f"It was skipped, so nothing was written. It was re-admitted as transaction {view.readmitted_as}: "
        return told + Command.of("show", topology, view.readmitted_as)
    if not view.open:
        return "It was skipped, so nothing was written. See why: " + Command.of(
            "show", topology, view.txid
        )
    is_written = view.status == Phase.COMMITTING.value
    now = "its rows count once it is COMMITTED" if is_written else "nothing has been written yet"
    return (
        f"The transaction is {view.status}, and {now}. See what its tasks have rejected: "
        + Command.of("show", topology, view.txid)
    )
