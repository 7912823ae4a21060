"""Write from the journal the transactions that a state lacks after a restore from a backup.

Each transaction is written with its own txid, birth, attempt, epoch and receipt. As in any commit, the state stores the
fence and the previous values, and can roll back. Source: docs/protocol.md §5.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs, to_builtins

from airflow_tx.base.errors import JournalError, NotTakenBack, RollForwardRefused, StateError
from airflow_tx.base.failpoints import failpoint
from airflow_tx.ledger import (
    CHANGE,
    NOTHING_WRITTEN,
    FenceBatch,
    Grant,
    LedgerEvidence,
    Outcome,
    Receipt,
    RepairRecord,
    RolledState,
    Rolling,
    Token,
    TransactionAttempt,
    Written,
    dumps,
    fence_batch,
    is_shortened,
    renamed_since,
)
from airflow_tx.outputs import Contribution, Entry, JournalArea, StagingArea
from airflow_tx.state import FencedState, QueryableState, RowTally, StateKind, StoredState
from airflow_tx.transaction.commit.contributions import ReplacedThen, StagingPlace, difference_of
from airflow_tx.transaction.commit.restatement import contributions, is_asked, misfit, still_held
from airflow_tx.transaction.commit.state_history import StateHistory, StateLook
from airflow_tx.transaction.commit.write import (
    ROWS_A_WRITE,
    RowsToWrite,
    output_digest,
    portions,
    write_instead,
    write_portions,
)


@dataclass(frozen=True)
class ContributedRows(Iterable[Mapping[str, Any]]):
    """The rows of a contribution, whose number is known. Each iteration reads the rows again."""

    contribution: Contribution

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return self.contribution.rows()

    def __len__(self) -> int:
        return self.contribution.count


class FilledTally(RowTally):
    """Rows that are digested in their original form, and yielded with the columns that the state got later.

    :param added_later: value columns of the state that the rows lack. Their value is NULL, which does not change a sum.
    """

    def __init__(
        self,
        rows: RowsToWrite,
        added: Collection[str],
        added_later: Collection[str],
    ) -> None:
        super().__init__(rows, added)
        self._lacking = dict.fromkeys(added_later)

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        rows = super().__iter__()
        return ({**self._lacking, **row} for row in rows) if self._lacking else rows


@dataclass(frozen=True)
class MissingTransaction:
    """A missing transaction, which the roll forward writes again.

    :param receipt: the receipt of the transaction.
    :param batch: the batch that the fence keeps.
    :param rows: the rows that were written to the state. A skip has no rows.
    :param instead: for a restatement, the rows whose values replaced stored values.
    :param written: the written counts in the receipt.
    :param added_later: see `FilledTally`.
    :param lacking: for a table, the reason why the journal lacks the rows. Then no rows are written. "" if it has them.
    """

    receipt: Receipt
    batch: FenceBatch
    rows: RowsToWrite = ()
    instead: RowsToWrite = ()
    written: Written = NOTHING_WRITTEN
    added_later: tuple[str, ...] = ()
    lacking: str = ""

    @property
    def is_skip(self) -> bool:
        return self.receipt.outcome == Outcome.SKIPPED.value


class RollForward:
    """The roll forward of one state. It compares the missing transactions with their receipts, and writes them.

    :param ledger: a reading of the ledger at one moment.
    :param state: the state.
    :param journal: the journal of the topology.
    :param area: the staging area of the topology.
    :param until: the last transaction to write, or None to write all missing transactions.
    :param changed: numbers of the repairs whose accepted change the values have.
    :param unchanged: numbers of the repairs whose accepted change the values lack, and which is no longer wanted.
    :param restate: for a table, whether to leave out the transactions whose rows the journal lacks.
    """

    def __init__(
        self,
        ledger: LedgerEvidence,
        state: FencedState,
        journal: JournalArea,
        area: StagingArea,
        *,
        until: int | None = None,
        changed: Collection[int] = (),
        unchanged: Collection[int] = (),
        restate: bool = False,
    ) -> None:
        self._ledger = ledger
        self._restate = restate
        self._passed = set[int]()
        self._journal = journal
        self._area = area
        self._until = until
        self._changed = changed
        self._settled = {*changed, *unchanged}
        self._unchanged = set(unchanged)
        self._given = state

    def history(self) -> StateHistory:
        """Return the history of the state.

        :raises RollForwardRefused: a state of this kind can never be rolled forward.
        """
        state = self._given
        if isinstance(state, StoredState) and isinstance(state, QueryableState):
            return StateHistory(self._ledger, state, self._changed)
        problem = f"{type(state).__name__} keeps no values by key behind a fence"
        if not state.has_fence:
            problem = f"{type(state).__name__} keeps no fence, so its transactions are unknown"
        raise RollForwardRefused(
            state=state.name,
            topology=self._ledger.name,
            problem=problem,
            remedy=state.remedy_behind(self._ledger.name),
        )

    # --- the proof --------------------------------------------------------------------------------------------------

    def proved(self, history: StateHistory, look: StateLook) -> list[MissingTransaction]:
        """Read every missing transaction from the journal, and compare it with its receipt.

        This function writes nothing.

        :raises RollForwardRefused: a journal entry is incomplete or differs, or values were changed manually.
        """
        last = self._end(history, look)
        lost = history.life.forgotten(max(look.first, history.life.first), last)
        if lost is not None:
            raise history.refused(
                f"the ledger no longer has transaction {lost}: it was rebuilt since, or [tx] history is shorter"
            )
        return [
            self._missing(history, txid)
            for txid in history.written
            if look.first <= txid <= last and (look.heals or history.life.kept(txid))
        ]

    def _end(self, history: StateHistory, look: StateLook) -> int:
        """Return the last transaction to write. The roll forward stops before a manual change, which no journal has."""
        last = history.last if self._until is None else min(self._until, history.last)
        pending = [each for each in look.pending.missing if each.number not in self._settled]
        for each in pending:
            stop: int = each.change["txid"]
            if stop >= last and look.first <= last:
                continue
            if stop < look.first:
                problem, remedy = self._change(each, asked=look.pending.asked)
                raise history.refused(problem, remedy)
            last = stop
        return last

    def left(self, history: StateHistory, look: StateLook) -> list[str]:
        """Return the accepted changes that the state lacks after the roll forward, which must be made again."""
        last = history.last if self._until is None else min(self._until, history.last)
        pending = (each for each in look.pending.missing if each.number not in self._settled)
        return [
            ". ".join(self._change(each, asked=look.pending.asked))
            for each in pending
            if each.change["txid"] >= last
        ]

    def _change(self, repair: RepairRecord, *, asked: bool) -> tuple[str, str]:
        """Describe the accepted change that the values lack, or may lack. Return the description and the remedy."""
        what = f"(repair {repair.number}, {repair.when}: {repair.told})"
        again = f"--changed {repair.number}"
        never = f"If you no longer want the change, repeat with --unchanged {repair.number}."
        if asked:
            problem = (
                f"{repair.who} has changed its values by hand {what}, and it is unknown whether the values have "
                "this change"
            )
            return (
                problem,
                f"Read the values. If they lack the change, make it again. Then repeat with {again}. {never}",
            )
        problem = f"{repair.who} has changed its values by hand at this place {what}"
        return problem, f"Make the change again, then repeat with {again}. {never}"

    def _missing(self, history: StateHistory, txid: int) -> MissingTransaction:
        receipt = history.receipts[txid]
        if receipt.outcome == Outcome.SKIPPED.value:
            return MissingTransaction(receipt, self._batch(receipt, self._skipped_rows(receipt)))
        if history.written[txid].left:
            entry = self._journal.check(receipt.journal or "")
            return MissingTransaction(receipt, self._batch(receipt, entry.metadata))
        said = history.written[txid]
        got = list[Written]()
        ways: list[ReplacedThen] = ["changed"]
        if receipt.replaces is not None and is_asked(history.state):
            ways.append("all")  # only the receipt shows an unchanged maximum
        try:
            for done in ways:
                found = self._read(history, receipt, done)
                written = self._tallied(history, found)
                got.append(written)
                if written == said:
                    return replace(found, written=written)
        except (JournalError, NotTakenBack, StateError) as error:
            raise history.refused(f"transaction {txid}: {error}") from error
        problem = (
            f"transaction {txid}: its journal entry gives {dumps(to_builtins(got[0]))}, and its receipt says "
            f"{dumps(to_builtins(said))}"
        )
        raise history.refused(problem)

    def _tallied(self, history: StateHistory, found: MissingTransaction) -> Written:
        """Return the written counts of a transaction, for comparison with its receipt."""
        both = (found.rows, found.instead)
        tallies = [RowTally(rows, history.state.added_up) for rows in both]
        one, other = (each.written(sum(1 for _ in each)) for each in tallies)
        return one + other

    def _skipped_rows(self, receipt: Receipt) -> Any:
        decisive = self._ledger.decisive
        kept = None if decisive is None else decisive.skipped.get(receipt.txid)
        return receipt.metadata if kept is None or kept.rows is None else kept.rows

    def _read(
        self, history: StateHistory, receipt: Receipt, done: ReplacedThen
    ) -> MissingTransaction:
        if not receipt.journal:
            raise history.refused(f"transaction {receipt.txid} has no journal entry")
        entry = self._journal.check(receipt.journal)
        found = self._rows_of(history, receipt, entry, done=done)
        return found or MissingTransaction(receipt, self._batch(receipt, entry.metadata))

    def _rows_of(
        self, history: StateHistory, receipt: Receipt, entry: Entry, *, done: ReplacedThen
    ) -> MissingTransaction | None:
        """Return the transaction to write, with the rows of an entry for the state.

        Return None if the entry has none.
        """
        state = history.state
        own = self._contribution(history, receipt, entry)
        if own is None:
            return None
        rows: RowsToWrite = ContributedRows(own)
        output = output_digest(rows, state) if state.kind is StateKind.TRANSACTIONAL else ""
        assert state.columns is not None
        later = tuple(name for name in state.columns.values if name not in own.values)
        instead: RowsToWrite = ()
        if receipt.replaces is not None:
            rows, instead = self._difference(history, receipt, rows, later, done=done)
        outputs = {state.name: output} if output else None
        batch = self._batch(receipt, entry.metadata, outputs)
        return MissingTransaction(receipt, batch, rows, instead, added_later=later)

    def _contribution(
        self, history: StateHistory, receipt: Receipt, entry: Entry
    ) -> Contribution | None:
        """Return the contribution of an entry to the state, or None if there is none."""
        state = history.state
        renamed = renamed_since(self._ledger.repairs, entry.contributions, entry.txid)
        own = contributions(entry, renamed).get(state.name)
        if own is None:
            return None
        lives = self._ledger.topology.columns.get(state.name)
        problem = own.refusal or misfit(state, own, lives, entry.txid)
        if not problem and still_held(state, own, lives, entry.txid) != own:
            problem = "one of its columns was later dropped and added again"
        if problem:
            raise history.refused(f"transaction {receipt.txid}: {problem}")
        return own

    def _difference(
        self,
        history: StateHistory,
        receipt: Receipt,
        rows: RowsToWrite,
        later: Collection[str],
        *,
        done: ReplacedThen,
    ) -> tuple[RowsToWrite, RowsToWrite]:
        state = history.state
        assert receipt.replaces is not None
        assert isinstance(state, QueryableState)
        entry = self._journal.check(receipt.replaces.entry)
        old = self._contribution(history, receipt, entry)
        if old is None:
            return rows, ()
        if later:
            names = ", ".join(later)
            raise history.refused(
                f"transaction {receipt.txid} is a restatement from before column {names}, which its journal entry lacks"
            )
        gone = history.life.gone(entry.txid, receipt.txid)
        attempt = TransactionAttempt(receipt.txid, receipt.attempt, receipt.birth)
        place = StagingPlace(self._area, self._ledger.name, attempt, "roll-forward")
        found = difference_of(state, old, rows, place, gone=gone, done=done)
        return found.rows, found.instead

    # --- the writes -------------------------------------------------------------------------------------------------

    def take(
        self, history: StateHistory, look: StateLook, rolling: Rolling
    ) -> tuple[StateLook, list[MissingTransaction]]:
        """Raise the fence, which refuses every other writer and undoes the open transaction.

        Then read the values again.

        This is necessary if the fence does not show which transactions the state has, so that only the values show it.

        :return: the transactions that the values have, and the missing transactions, compared with their receipts.
        :raises RollForwardRefused: the values do not identify their transactions. The earlier fence is restored.
        :raises FenceOutranked: another run of the command has taken over.
        """
        self._take_over(history, look)
        birth = rolling.birth or rolling.nonce
        if look.over is not None and look.over.txid == rolling.current:
            # Use the birth of the open transaction, or of an earlier run of this command.
            birth = look.over.birth
        generation = rolling.generation - 1
        token = Token(generation, rolling.current, 0, 0, rolling.nonce, birth)
        grant = Grant(
            self._ledger.name,
            self._ledger.topology.incarnation,
            token,
            {},
            over={history.state.name: look.over},
        )
        history.state.raise_fence(grant)
        failpoint("roll_forward.looking", state=history.state.name)
        try:
            found = history.look_at_values(replace(look, over=token))
            return replace(found, change=0), self.proved(history, found)
        except RollForwardRefused:
            history.state.put_back(grant)
            failpoint("roll_forward.put_back", state=history.state.name)
            raise

    def write(
        self,
        history: StateHistory,
        look: StateLook,
        missing: Sequence[MissingTransaction],
        rolling: Rolling,
    ) -> RolledState:
        """Write the missing transactions in order. Record in the fence which accepted changes the values have.

        :raises FenceOutranked: another run of the command has taken over.
        :raises StateError, StateUnavailable: the state refuses a write, or cannot be reached. You can repeat the
            command.
        """
        self._take_over(history, look)
        change = self.change(history, look)
        if change > look.change and not look.apart:
            history.state.accept_values(change)
            failpoint("roll_forward.accepted", state=history.state.name)
        if look.over is not None and look.over.is_look:
            self._write_receipts(history, look, look.over)
        before = None if look.apart else history.before(look.first)
        over: Mapping[str, Token | None] = {history.state.name: look.over}
        for each in missing:
            grant = replace(
                self._grant(history, each, rolling, before),
                over=over,
                accepted={history.state.name: {CHANGE: change}} if over else {},
            )
            self._write_one(history.state, grant, each)
            failpoint("roll_forward.wrote", txid=each.receipt.txid, state=history.state.name)
            before = each.receipt.txid
            over = {}
        last = missing[-1].receipt if missing else history.receipts[history.last]
        return self.rolled(history, last, look)

    def rolled(self, history: StateHistory, last: Receipt, look: StateLook) -> RolledState:
        """Return the note for the ledger about the state that was rolled forward.

        :param last: the receipt of the last transaction that the state has after the roll forward.
        :param look: the facts that were read from the state before the roll forward.
        """
        changes = {each.number for each in history.life.changes} - self._unchanged
        whole = last.txid == history.last
        change = max(changes, default=0)
        return RolledState.of(last, look.found, whole=whole, change=change, heals=look.heals)

    def change(self, history: StateHistory, look: StateLook) -> int:
        """Return the number of the newest accepted change for which the values have it and all earlier changes."""
        lacks = {each.number for each in look.pending.missing} - self._settled
        has = [
            each.number
            for each in history.life.changes
            if each.number < min(lacks, default=each.number + 1)
        ]
        return max(has, default=0)

    def _write_receipts(self, history: StateHistory, look: StateLook, token: Token) -> None:
        """Write only the receipts of transactions whose rows the state already has, with this command's token.

        Use the token that this command raised.
        """
        incarnation = self._ledger.topology.incarnation
        for txid in history.without_receipt(look):
            written = structs.replace(history.written[txid], left=False)
            claim = history.receipts[txid]
            grant = Grant(self._ledger.name, incarnation, token, {}, claim=claim, written=written)
            history.state.pass_over(grant)
            failpoint("roll_forward.wrote_receipt", txid=txid, state=history.state.name)

    def _take_over(self, history: StateHistory, look: StateLook) -> None:
        """Store the current name of the state in the fence if the state was renamed after the backup."""
        if look.named:
            history.state.take_over(look.named)
            failpoint("roll_forward.took_over", state=history.state.name)

    def _grant(
        self,
        history: StateHistory,
        missing: MissingTransaction,
        rolling: Rolling,
        before: int | None,
    ) -> Grant:
        receipt = missing.receipt
        name = history.state.name
        token = Token(
            rolling.generation,
            receipt.txid,
            receipt.attempt,
            receipt.epoch,
            rolling.nonce,
            receipt.birth,
        )
        earlier = None if before is None else history.receipts.get(before)
        return Grant(
            self._ledger.name,
            self._ledger.topology.incarnation,
            token,
            {} if before is None else {name: before},
            batch=missing.batch,
            births={} if earlier is None else {name: earlier.birth},
            claim=receipt,
        )

    def _batch(
        self, receipt: Receipt, metadata: Any, outputs: Mapping[str, str] | None = None
    ) -> FenceBatch:
        """Return the batch that a grant stores with the fence, so that a lost ledger can be rebuilt from it."""
        after = receipt.after
        if is_shortened(after) and receipt.txid == self._ledger.current - 1:
            after = self._ledger.position
        return fence_batch(
            receipt,
            receipt.granted,
            rows=metadata,
            position=after,
            prev=receipt.before,
            outputs=outputs,
        )

    def _write_one(self, state: FencedState, grant: Grant, missing: MissingTransaction) -> None:
        """Write one transaction in a single store transaction, or in portions if it is large."""
        if missing.is_skip:
            state.raise_fence(grant)
            state.pass_over(grant)
            return

        def tally(rows: RowsToWrite) -> RowTally:
            return FilledTally(rows, state.added_up, missing.added_later)

        if missing.written.keys <= ROWS_A_WRITE and not missing.instead:
            state.raise_and_write(grant, tally(missing.rows))
            return

        def tallies() -> Iterator[RowTally]:
            for portion in portions(missing.rows, state, size=ROWS_A_WRITE):
                yield tally(portion)
                failpoint("roll_forward.between_portions", state=state.name)

        state.raise_fence(grant)
        if missing.instead:
            grant = write_instead(state, grant, missing.instead, None)
        write_portions(state, grant, tallies())
