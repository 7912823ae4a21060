"""Takes skips into effect that are due, for a person who asked for one. Source: protocol.md §5."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property

from airflow_tx import compat
from airflow_tx.actions.preview import Effect
from airflow_tx.actions.runs import Restarts
from airflow_tx.commit.handoff import due_skip, take_skip_in_peace, undoable
from airflow_tx.errors import SkipRefused, StaleBatch, StateUnavailable, TxError
from airflow_tx.protocol import recovery, skip
from airflow_tx.protocol.answers import AlreadySkipped, Committed, NotYet
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.records import TransactionRecord
from airflow_tx.protocol.skip import check_undoable
from airflow_tx.protocol.step import Audit
from airflow_tx.state.api import FencedState

log = logging.getLogger(__name__)

# A person waits for it: seconds that another one gets to finish the same skip.
_PAUSES = (0.2, 0.4, 0.6, 0.8, 1.0)


class NotInEffect(TxError):
    """A skip that is noted and could not be taken into effect at its turn."""

    template = (
        "The skip of transaction {txid} is noted, but not in effect: {reason} To try again: "
        "airflow tx skip {topology} {txid} --why TEXT; to replay it instead: airflow tx replay {topology} {txid}"
    )


class Skips:
    """The skips of one topology.

    :param states: gives its states by name, from its DAG; asked only when it is the turn of one to be skipped.
    """

    def __init__(self, ledger: Ledger, restarts: Restarts, states: Callable[[], Mapping[str, FencedState]]) -> None:
        self.ledger = ledger
        self._restarts = restarts
        self._ask_states = states

    def check(self, txid: int, record: TransactionRecord) -> None:
        """Find out before anything is noted: what cannot be skipped at its turn would wait for ever.

        :raises SkipRefused, StateMissing: it may be in a state that cannot undo it, or that the DAG has no more.
        """
        if self.ledger.turn().current != txid:
            return
        check_undoable(self.ledger.paths, txid, record, undoable(self._states, txid), noted=False)

    def note(self, txid: int, audit: Audit) -> Iterator[Effect]:
        """Note a skip, and take it into effect if it is its turn, with those after it that are noted, too.

        :raises AlreadyFinal, UnknownTransaction: it is not open.
        :raises NotInEffect: it is its turn, but it cannot be skipped now.
        :raises SkipRefused: a state that cannot undo it has got something of it since `check`; the wish is taken back.
        """
        if isinstance(self.ledger.run(skip.note_skip, txid, audit), AlreadySkipped):
            yield Effect(txid, "", f"nothing: it is skipped already. {self._readmit(txid)}")
            return
        self.ledger.run(recovery.unblock)
        try:
            outcome, done = self._take(txid)
        except SkipRefused:
            raise
        except TxError as error:
            raise NotInEffect(topology=self.ledger.paths.topology, txid=txid, reason=_reason(error)) from error
        yield outcome
        while done is not None and (following := due_skip(self.ledger)) is not None:
            try:
                outcome, done = self._take(following)
            except TxError as error:
                yield Effect(following, "", f"it was to be skipped next, and is not: {_reason(error)}")
                break
            yield outcome
        if done is not None and done.waiting:
            yield from self._restarts.yielded(done.waiting)

    def _take(self, txid: int) -> tuple[Effect, Committed | None]:
        record = self.ledger.status(txid)
        run_id = "" if record is None else record.run_id
        if self.ledger.turn().current < txid:
            return self._later(txid, run_id), None
        try:
            # A waiting committer may take the same skip: the later grant wins, and does the same.
            answer = take_skip_in_peace(self.ledger, txid, self._states, log=log, pauses=_PAUSES)
        except StaleBatch:
            assert record is not None
            how = self._restarts.runs.start(record.run_id, record.key, past_limit=True)
            return Effect(txid, run_id, f"{_after_replay(txid)}: {how}"), None
        if isinstance(answer, NotYet):
            return self._later(txid, run_id), None
        return Effect(txid, run_id, f"skipped. {self._readmit(txid)}{self._red(run_id)}"), answer

    def outlook(self, txid: int, *, is_stale: bool) -> str:
        """Say what becomes of an open transaction that a person wants skipped.

        :param is_stale: its predecessor ended elsewhere than its batch starts.
        """
        if self.ledger.turn().current == txid:
            if is_stale:
                return _after_replay(txid)
            return "skipped at once, and its rows are counted nowhere until they are re-admitted"
        return f"to be skipped at its turn; it waits for {self._first()}"

    def _later(self, txid: int, run_id: str) -> Effect:
        done = f"to be skipped at its turn; it waits for {self._first()}{self._red(run_id)}"
        return Effect(txid, run_id, done)

    def _red(self, run_id: str) -> str:
        """Say what to do about a run that stays failed, although its transaction is out of the way."""
        if compat.runs_of(self._restarts.runs.dag_id, [run_id]).get(run_id) != "failed":
            return ""
        return ". Its run stays failed in Airflow: clear it, and it ends as success with nothing processed"

    def _first(self) -> str:
        turn = self.ledger.turn()
        record = turn.record
        if record is None:
            return f"transaction {turn.current}"
        return f"transaction {turn.current} (run {record.run_id}, {record.phase.value})"

    def _readmit(self, txid: int) -> str:
        return f"To get its rows back: airflow tx readmit {self.ledger.paths.topology} {txid} --why TEXT"

    @cached_property
    def _states(self) -> Mapping[str, FencedState]:
        return self._ask_states()


def _after_replay(txid: int) -> str:
    why = f"transaction {txid - 1} ended elsewhere than its batch starts"
    return f"{why}, so it is replayed first, and then skipped"


def _reason(error: TxError) -> str:
    """Why something failed, without the advice that is meant for the tasks of a transaction."""
    if isinstance(error, StateUnavailable):
        return f"state {error.state!r} ({error.where}) cannot be reached: {error.reason}."
    return str(error)
