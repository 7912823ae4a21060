"""A source that reads a table of another topology. Each batch is a range of that topology's transactions.

Source: docs/protocol.md §12.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow_tx.base.config import Settings
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.described import remade
from airflow_tx.base.errors import (
    FailedBatch,
    OtherSource,
    SourceNotSettled,
    TxError,
    UnreadableRecord,
)
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.ledger import (
    CorrectionReader,
    Corrections,
    Paths,
    ReadOnlyLedger,
    TakenRange,
    TransactionAttempt,
    UpstreamPosition,
    UpstreamReading,
    counted,
)
from airflow_tx.sources.api import Batch, BatchSize, EmittedRows, Json, RowTypes, Source, SourceKind
from airflow_tx.state import CommittedTable

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import SparkSession

    from airflow_tx.state import TableCounts

MOST_TRANSACTIONS = 1000
"""Maximum number of transactions in a batch, since one ledger record holds all their row counts."""


class UpstreamSource(Source):
    """A source of rows that another topology has committed to a table. Each transaction is in exactly one batch.

        orders = SqlTable("warehouse", table="orders")     # topology "orders" appends to this table
        with Transaction(source=UpstreamSource(orders, topology="orders"), max_pending=2):
            ...

    A batch is a range of transactions. If a transaction was restated, the batch has the rows of its last restatement. A
    restatement that is committed after the batch is a correction. The batch is then behind until its own transaction is
    restated.

    :param table: `SqlTable` or `DeltaTable` of the other topology.
    :param topology: name of the other topology. Its ledger is in the same ZooKeeper, below the same root.
    :param start: first txid of the first batch.
    :param max_transactions: maximum number of transactions in a batch, up to 1000. A correction processes the entire
        batch again.
    :param max_rows_per_batch: maximum number of rows in a batch. A single transaction may have more rows.
    :param target_seconds: seconds that a batch should take. Its size follows from the speed of the last transactions.
    :param upstream_txid: whether each row has a column `upstream_txid` with the txid of its transaction.
    :param on_correction: how to handle a batch that is behind. With ``restate``, the coordinator requests its
        restatement. With ``report``, the commands, the Transactions page and an alert name the batch.
    :param zookeeper_conn_id: ZooKeeper connection of the ledgers. The `Transaction` must have the same connection.
    :param root: root path of the ledgers. The `Transaction` must have the same root.
    """

    kind = SourceKind.OPAQUE
    keeps_rows = False
    unit = "transactions"
    always_written = ("topology",)

    def __init__(
        self,
        table: CommittedTable | Mapping[str, Any],
        *,
        topology: str,
        start: int = 1,
        max_transactions: int = 100,
        max_rows_per_batch: int | None = None,
        target_seconds: float | None = None,
        upstream_txid: bool = False,
        on_correction: str = "restate",
        zookeeper_conn_id: str | None = None,
        root: str | None = None,
    ) -> None:
        self.table: CommittedTable = self._checked_table(remade(table))
        if not isinstance(topology, str) or not topology:
            raise self.unusable("topology", topology, "Name the topology that writes the table.")
        self.upstream = topology
        self.upstream_table = self.table.name
        self.start = self._number("start", start)
        self.max_transactions = self._number("max_transactions", max_transactions)
        if max_transactions > MOST_TRANSACTIONS:
            remedy = f"Give {MOST_TRANSACTIONS} at most."
            raise self.unusable("max_transactions", max_transactions, remedy)
        if on_correction not in ("restate", "report"):
            raise self.unusable("on_correction", on_correction, "Use 'restate' or 'report'.")
        self.on_correction = on_correction
        self.upstream_txid = upstream_txid
        self.zookeeper_conn_id = zookeeper_conn_id
        self.root = root
        size = BatchSize.checked(
            type(self).__name__,
            max_rows=max_rows_per_batch,
            max_bytes=None,
            target_seconds=target_seconds,
        )
        self.batch_size = size if size.arguments() else None
        self._taken: TakenRange | None = None
        self._counted: list[TableCounts] = []
        self._owners: set[tuple[str, int]] = set()

    def _checked_table(self, table: Any) -> CommittedTable:
        if not isinstance(table, CommittedTable):
            remedy = (
                "Give the table that the other topology appends to: a SqlTable or a DeltaTable. Values by key are no "
                "source: let that topology append its rows to a table beside them."
            )
            raise self.unusable("table", table, remedy)
        return table

    def _number(self, name: str, value: Any) -> int:
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            raise self.unusable(name, value, "Give a whole number from 1 on.")
        return value

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self.table!r}, topology={self.upstream!r})"

    def connections(self) -> Mapping[str, str]:
        return self.table.connections()

    def datasets(self) -> list[Dataset]:
        return [self.table.dataset()]

    def in_ledger(self, conn_id: str | None, root: str | None) -> UpstreamSource:
        for option, own, other in (
            ("zookeeper_conn_id", self.zookeeper_conn_id, conn_id),
            ("root", self.root, root),
        ):
            if own not in (None, other):
                remedy = f"The ledgers of both topologies are in one place, and the Transaction says {other!r}."
                raise self.unusable(option, own, remedy)
        placed = copy.copy(
            self
        )  # a shallow copy, since the table may hold objects that only this process can use
        placed._given = dict(self._given)
        placed.normalize(zookeeper_conn_id=conn_id, root=root)
        placed.zookeeper_conn_id = conn_id
        placed.root = root
        return placed

    # --- begin ------------------------------------------------------------------------------------------------------

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        upstream = self._upstream()
        first = self._first(upstream, position)
        if upstream is None or first >= upstream.current:
            return None
        self._check_table(upstream, first)
        last = min(upstream.current - 1, first + self.max_transactions - 1)
        taken = upstream.taken(first, last, self.limit.rows)
        count = taken.last - first + 1
        # Collect upstream transactions without rows in one batch, so that they cause only one
        # transaction here.
        if not any(taken.counts.values()) and count < self.max_transactions:
            return None
        return self._batch(taken, UpstreamPosition.behind(taken).to_json(), upstream)

    def decide_again(self, attempt: TransactionAttempt, metadata: Json) -> Batch:
        before = TakenRange.of(metadata)
        upstream = self._upstream()
        self._check_life(upstream, UpstreamPosition.behind(before))
        assert upstream is not None, "the upstream ledger must exist"
        self._check_table(upstream, before.first)
        return self._batch(upstream.taken(before.first, before.last), None, upstream)

    def _batch(self, taken: TakenRange, position: Json, upstream: UpstreamReading) -> Batch:
        behind = upstream.current - 1 - taken.last
        rest = f", and {counted(behind, 'later ones')} not taken yet" if behind else ""
        reason = f"transactions {taken.first} to {taken.last} of {self.upstream}{rest}"
        return Batch(taken.to_json(), position, sum(taken.counts.values()), reason)

    def backlog(self, position: Json) -> int | None:
        upstream = self._upstream()
        first = self._first(upstream, position)
        return 0 if upstream is None else upstream.left_from(first)

    def contains(self, metadata: Json, what: str) -> bool | None:
        name, _, txid = what.rpartition(":")
        if name not in ("", self.upstream) or not txid.isdecimal():
            return False
        taken = TakenRange.of(metadata)
        return txid in taken.counts or txid in taken.ends

    def reaches(self, position: Json, what: str) -> bool | None:
        return self._txid_of(position) >= int(what) if what.isdecimal() else None

    def refuses_again(self, metadata: Json) -> str | None:
        before = UpstreamPosition.behind(TakenRange.of(metadata))
        return self._other_life(before, self._upstream())

    def lacks(self, position: Json) -> str | None:
        if position is None:
            return None
        return self._other_life(self._position(position), self._upstream())

    # --- corrections ------------------------------------------------------------------------------------------------

    def corrections(self, ledger: ReadOnlyLedger, now: datetime) -> Corrections | None:
        position = ledger.position() if ledger.topology_if_any() is not None else None
        upstream = self._beside(ledger)
        if position is None or upstream is None:
            return None
        # Another topology's transactions cannot be compared. The next `decide` refuses that
        # topology.
        if self._other_life(self._position(position), upstream) is not None:
            return None
        # A correction may be newer than the last taken transaction.
        known = ledger.followed()
        if known is not None and known.incarnation == upstream.topology.incarnation:
            before = UpstreamPosition(known.incarnation, known.txid, known.birth)
            self._check_life(upstream, before)
        return CorrectionReader(ledger, upstream).read(now)

    def rows_upstream(self, txids: Collection[int]) -> Mapping[int, int]:
        counted = self.table.counts(txids)
        counted.close()
        return counted.rows

    def watched(self, root: str) -> Sequence[str]:
        return (Paths(root, self.upstream).current,)

    # --- the upstream topology --------------------------------------------------------------------------------------

    def _upstream(self) -> UpstreamReading | None:
        """Read the upstream ledger. Return None if the upstream topology has not begun."""
        own = self._place()
        own.store.sync()
        return self._beside(own)

    def _place(self) -> ReadOnlyLedger:
        """Return the ledger of the topology that uses this source."""
        # A Spark cluster has no Airflow, and does not call this method.
        from airflow_tx.hooks import shared_store

        settings = Settings.load()
        store = shared_store(self.zookeeper_conn_id or settings.zookeeper_conn_id)
        return ReadOnlyLedger(store, Paths(self.root or settings.root, self.topology))

    def _beside(self, ledger: ReadOnlyLedger) -> UpstreamReading | None:
        """Read the upstream ledger, which is in the same ZooKeeper as `ledger`."""
        return UpstreamReading.of(ledger.beside(self.upstream), self.table.name)

    def _first(self, upstream: UpstreamReading | None, position: Json) -> int:
        """Return the first txid of the next range. Raises the same errors as `_check_life`."""
        if position is None:
            return self.start
        before = self._position(position)
        self._check_life(upstream, before)
        return before.txid + 1

    def _txid_of(self, position: Json) -> int:
        return 0 if position is None else self._position(position).txid

    def _position(self, position: Json) -> UpstreamPosition:
        try:
            return UpstreamPosition.of(position)
        except UnreadableRecord:
            problem = f"{position!r} is not a position of this source"
            raise OtherSource(source=repr(self), problem=problem) from None

    def _other_life(self, before: UpstreamPosition, upstream: UpstreamReading | None) -> str | None:
        """Return a clause that explains how the upstream topology differs from the last batch's topology, or None."""
        place = self._place().beside(self.upstream) if upstream is None else upstream.ledger
        return before.difference(place, upstream)

    def _check_life(self, upstream: UpstreamReading | None, before: UpstreamPosition) -> None:
        """Raise an error if the upstream topology went back, or is not the topology of the last batch.

        :raises SourceError: the topology differs. The error names the remedy.
        """
        problem = self._other_life(before, upstream)
        if problem is None:
            return
        if upstream is None and (now := before.called_now(self._place())) is not None:
            raise self.refused(problem, f"Set UpstreamSource(..., topology={now!r}).")
        back = Command("repair", self.topology, options=("--reset", "--why", "TEXT"))
        went_back = upstream is not None and upstream.may_have_lost(before)
        lost = Command("repair", self.upstream, options=("--ledger-lost", "--why", "TEXT"))
        first = Remedy.of("If its ledger alone went back: ", lost, ". Else: restore ")
        words = first if went_back else Remedy.of("Restore ")
        raise self.refused(
            problem,
            words + Remedy.of("this topology to the same moment, or let it begin again: ", back),
        )

    def _check_table(self, upstream: UpstreamReading, first: int) -> None:
        """Raise an error for another topology's table, or for transactions that are not in the book of ends.

        :raises SourceError: the table or the book of ends is not the expected one. The error names the remedy.
        """
        self._check_owner(upstream)
        begins = upstream.topology.book
        if not begins or first < begins:
            since = f"begins at transaction {begins}" if begins else "has not begun"
            raise self.refused(
                f"the book of topology {self.upstream!r} {since}, but the next transaction to read is {first}",
                Remedy.of(
                    "Create its older lines: ",
                    Command("repair", self.upstream, options=("--ends", "--why", "TEXT")),
                ),
            )

    def _check_owner(self, upstream: UpstreamReading) -> None:
        """Raise an error for another topology's table. A process checks it once for each incarnation and generation."""
        life = (upstream.topology.incarnation, upstream.topology.generation)
        if life in self._owners:
            return
        found = self.table.incarnation()
        if (
            found != upstream.topology.incarnation
            or self.table.name not in upstream.topology.states
        ):
            problem = (
                "no topology has written to it"
                if found is None
                else "another topology writes to it"
            )
            states = ", ".join(sorted(upstream.topology.states)) or "none"
            raise self.refused(
                f"state {self.table.name!r} is not a table of topology {self.upstream!r}: {problem}",
                f"Name the topology that appends to it. The states of {self.upstream!r}: {states}.",
            )
        self._owners.add(life)

    # --- rows -------------------------------------------------------------------------------------------------------

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        if spark is None:
            rows: EmittedRows = self.emit_arrow(attempt, metadata)
            return rows
        frame: EmittedRows = self.table.frame(
            spark, self._counts(metadata), upstream_txid=self.upstream_txid
        )
        return frame

    def emit_arrow(self, attempt: TransactionAttempt, metadata: Json) -> pa.RecordBatchReader:
        return self.table.arrow(self._counts(metadata), upstream_txid=self.upstream_txid)

    def row_types(self, attempt: TransactionAttempt, metadata: Json) -> RowTypes | None:
        return self.table.row_types(upstream_txid=self.upstream_txid)

    def check_read(self, attempt: TransactionAttempt) -> None:
        if self._taken is not None:
            self._count(self._taken).close()

    def close(self) -> None:
        while self._counted:
            self._counted.pop().close()
        super().close()

    def _counts(self, metadata: Json) -> TableCounts:
        """Count the rows of a batch in the snapshot from which they are then read.

        Raises the same errors as `_count`.
        """
        self._taken = TakenRange.of(metadata)
        counted = self._count(self._taken)
        self._counted.append(counted)
        return counted

    def _count(self, taken: TakenRange) -> TableCounts:
        """Count the rows of the transactions in `taken.counts`.

        :raises SourceNotSettled: the number of rows in the table differs from the number in the book of ends.
        """
        counted = self.table.counts([int(txid) for txid in taken.counts])
        problem = self._difference(taken, counted)
        if problem is not None:
            counted.close()
            raise SourceNotSettled(source=repr(self), problem=problem)
        return counted

    def _difference(self, taken: TakenRange, counted: TableCounts) -> str | None:
        """Return a clause that names a transaction whose row count in the table has changed, or None."""
        for txid, rows in taken.counts.items():
            found = counted.rows[int(txid)]
            if found != rows:
                return f"the table has {found} rows of transaction {txid} of {self.upstream!r} instead of {rows}"
        return None

    def unsettled(self, metadata: Json, error: SourceNotSettled) -> TxError:
        taken = TakenRange.of(metadata)
        again = TakenRange.of(self.decide_again(TransactionAttempt(0, 0), metadata).metadata)
        if again != taken:
            moved = [txid for txid, rows in again.counts.items() if taken.counts.get(txid) != rows]
            named = ", ".join(moved)
            return FailedBatch(
                f"transaction {named} of {self.upstream!r} counts since this attempt began: the next attempt reads it"
            )
        upstream = self._upstream()
        counted = self.table.counts([int(txid) for txid in taken.counts])
        counted.close()
        problem = self._difference(taken, counted)
        if problem is None or (upstream is not None and upstream.may_settle(taken)):
            return error
        return self.refused(
            problem,
            Remedy.of(
                "Find out what changed the table: ",
                Command("verify", self.upstream, options=("--values",)),
                ". If the change was on purpose: ",
                Command(
                    "accept-change",
                    self.upstream,
                    options=("--state", self.table.name, "--why", "TEXT"),
                ),
            ),
        )
