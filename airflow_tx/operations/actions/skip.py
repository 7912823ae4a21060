"""User skip: the transaction is skipped when it has the turn, so that later transactions can commit.

Source: protocol.md §5.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.errors import Refused, SkipRefused, StaleBatch, StateUnavailable, TxError
from airflow_tx.base.remedy import Command
from airflow_tx.ledger import (
    AlreadySkipped,
    Audit,
    Committed,
    NotYet,
    TransactionRecord,
    batch_in_words,
    check_undoable,
    dumps,
    transaction_details,
)
from airflow_tx.operations.actions.action import (
    ActionPlan,
    EffectLine,
    PlannedEffect,
    TransactionAction,
    started_again,
)
from airflow_tx.state import FencedState
from airflow_tx.transaction import due_skip, start_yielded, take_skip_or_wait, undoable

log = logging.getLogger(__name__)

_ROWS_SHOWN = 500
# Seconds between tries of a skip that another process may be completing. A user waits, so keep them
# short.
_PAUSES = (0.2, 0.4, 0.6, 0.8, 1.0)


class NotInEffect(TxError):
    """Signals that the ledger has recorded a skip, but the transaction could not be skipped when it had the turn."""

    template = (
        "The skip of transaction {txid} is noted, but not in effect: {reason}",
        "Try again: ",
        Command.of("skip", "{topology}", "{txid}", "--why", "TEXT"),
        ". Or replay it: ",
        Command.of("replay", "{topology}", "{txid}"),
    )


class TransactionSkip(TransactionAction):
    """Skips a transaction when it has the turn, so that later transactions can commit."""

    needs_reason = asks_dag = True

    def plan(self) -> ActionPlan:
        version = self.target.version([self.txid])
        record = self.target.opened([self.txid])[self.txid]
        if isinstance(record, Refused):
            line = EffectLine(self.txid, None, str(record))
            effect = PlannedEffect(
                [line], self.note, is_refused=True
            )  # this does nothing if the transaction was skipped
            return ActionPlan(version, str(record), [effect], [self.txid])
        try:
            self.check(record)
        except Refused as refused:
            return self.refused(version, refused, self.txid, record.run_id)
        batch = self.ledger.kept_batch(self.txid)
        rows = "unknown rows" if batch is None else shown_rows(batch.rows)
        sentence = (
            f"Skip transaction {self.txid}.{record.attempt} of topology {self.target.topology} (run {record.run_id}, "
            f"{record.phase.value}), and count its rows nowhere: {rows}."
        )
        return ActionPlan(
            version, sentence, [PlannedEffect(self._outlook(record), self.note)], [self.txid]
        )

    def check(self, record: TransactionRecord) -> None:
        """Refuse a skip that can never happen, before the ledger records it.

        Otherwise the transaction would wait forever.

        :raises SkipRefused: a state may have values from the transaction, and cannot undo them.
        :raises StateMissing: the DAG no longer has a state that may have values from the transaction.
        """
        if self.ledger.turn().current != self.txid:
            return
        check_undoable(
            self.ledger.paths,
            record,
            undoable(self.ledger, self._states, self.txid),
            noted=False,
        )

    def note(self, audit: Audit) -> Iterator[EffectLine]:
        """Record a skip in the ledger.

        If the transaction has the turn, skip it and all directly following ones with a recorded skip.

        :raises AlreadyFinal, UnknownTransaction: the transaction is not open.
        :raises NotInEffect: the transaction has the turn, but cannot be skipped now.
        :raises SkipRefused: after `check`, a state received values that it cannot undo. The recorded skip was removed.
        """
        if isinstance(self.ledger.note_skip(self.txid, audit), AlreadySkipped):
            yield EffectLine(
                self.txid,
                None,
                f"it is already skipped. {self._afterwards(self.txid)}",
            )
            return
        self.ledger.unblock()
        try:
            outcome, done = self._take(self.txid)
        except SkipRefused:
            raise
        except TxError as error:
            raise NotInEffect(
                topology=self.ledger.paths.topology, txid=self.txid, reason=_reason(error)
            ) from error
        yield outcome
        while done is not None and (following := due_skip(self.ledger)) is not None:
            try:
                outcome, done = self._take(following)
            except TxError as error:
                yield EffectLine(
                    following,
                    None,
                    f"it should have been skipped next, but was not: {_reason(error)}",
                )
                break
            yield outcome
        if done is not None and done.waiting:
            for each in start_yielded(self.ledger, self.target.runs, done.waiting):
                yield started_again(*each)

    def _take(self, txid: int) -> tuple[EffectLine, Committed | None]:
        record = self.ledger.status(txid)
        run_id = None if record is None else record.run_id
        if self.ledger.turn().current < txid:
            return self._later(txid, run_id), None
        try:
            # A waiting committer may perform the same skip. The later grant wins, and the result is
            # the same.
            answer = take_skip_or_wait(self.ledger, txid, self._states, log=log, pauses=_PAUSES)
        except StaleBatch:
            assert record is not None
            how = self.target.runs.start(record.run_id, record.key, past_limit=True)
            return EffectLine(txid, run_id, f"{self._after_replay(txid)}: {how}"), None
        if isinstance(answer, NotYet):
            return self._later(txid, run_id), None
        return EffectLine(
            txid, run_id, f"skipped. {self._afterwards(txid)}{self._red(run_id)}"
        ), answer

    def _outlook(self, record: TransactionRecord) -> Iterator[EffectLine]:
        """Describe the effect of a skip on an open transaction."""
        what = f"to be skipped at its turn; it waits for {self._first()}"
        if self.ledger.turn().current == self.txid:
            what = "skipped at once, and its rows are counted nowhere until they are re-admitted"
            details = transaction_details(self.ledger.store, self.ledger.paths, self.txid)
            if details.transaction.stale:  # its batch does not start where its predecessor ended
                what = self._after_replay(self.txid)
        yield EffectLine(self.txid, record.run_id, what)

    def _after_replay(self, txid: int) -> str:
        why = f"its batch does not start where transaction {txid - 1} ended"
        held_up = compat.why_none_starts(self.target.record.dag_id)
        then = "" if held_up is None else f" ({held_up})"
        return f"{why}, so it is replayed first, and then skipped{then}"

    def _later(self, txid: int, run_id: str | None) -> EffectLine:
        done = f"to be skipped at its turn; it waits for {self._first()}{self._red(run_id)}"
        return EffectLine(txid, run_id, done)

    def _red(self, run_id: str | None) -> str:
        """Describe what to do about a run that remains failed in Airflow after its transaction was skipped."""
        if run_id is None or self.target.runs.state(run_id) != "failed":
            return ""
        return ". Its run stays failed in Airflow. If you clear it, it succeeds without processing any rows"

    def _first(self) -> str:
        turn = self.ledger.turn()
        return turn.first or f"transaction {turn.current}"

    def _afterwards(self, txid: int) -> str:
        """Describe which transaction counts after the skip, or how to bring the rows back."""
        skipped = self.ledger.skipped(txid)
        if skipped is not None and skipped.replaces is not None:
            return f"Transaction {skipped.replaces}, which it was meant to restate, still counts"
        back = Command.of("readmit", self.ledger.paths.topology, txid, "--why", "TEXT")
        return f"To get its rows back: {back}"

    @cached_property
    def _states(self) -> Mapping[str, FencedState]:
        return self.target.dag()[1]


def shown_rows(rows: Any) -> str:
    """Describe the rows of a batch in one line."""
    if name := batch_in_words(rows):
        return name
    text = dumps(rows)
    return text if len(text) <= _ROWS_SHOWN else f"{text[:_ROWS_SHOWN]} ..."


def _reason(error: TxError) -> str:
    """Return the reason from an error, without a remedy that is only for tasks."""
    if isinstance(error, StateUnavailable):
        return f"state {error.state!r} ({error.where}) cannot be reached: {error.reason}."
    return str(error)
