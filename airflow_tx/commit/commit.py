"""One pass of a commit: complete, read, acquire, write, mark. Nothing here waits; the operator does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from enum import Enum
from functools import partial
from typing import Any

from airflow_tx import compat
from airflow_tx.commit.handoff import NewValues, clean_up, found_again, pass_on, take_skip
from airflow_tx.commit.messages import Messages, await_messages
from airflow_tx.commit.rows import RowsToWrite, rows_to_write, values_of
from airflow_tx.commit.run import AirflowRun, CommittingRun, InstanceStates
from airflow_tx.commit.run_slots import TaskRuns
from airflow_tx.commit.update import Update
from airflow_tx.commit.write import (
    explain_outranked,
    fits_one_write,
    output_digests,
    take_other_output,
    whole,
    write_at_once,
    write_update,
)
from airflow_tx.errors import (
    FenceOutranked,
    IncompleteBatch,
    InputSkipped,
    LedgerBehind,
    Refused,
    SkippedTransaction,
    StateError,
)
from airflow_tx.failpoints import failpoint
from airflow_tx.metrics import send_commit, send_open_of
from airflow_tx.processing.outcome import note_committed
from airflow_tx.protocol import commit, processing
from airflow_tx.protocol.answers import (
    AlreadyCommitted,
    Begun,
    Committed,
    Granted,
    NotYet,
    Processed,
    Restarted,
    ToBeSkipped,
)
from airflow_tx.protocol.commit import AcquireAnswer
from airflow_tx.protocol.joined import BoundStep
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.loss import shortened
from airflow_tx.protocol.receipt import Written, code_of, tasks_of
from airflow_tx.protocol.records import dumps
from airflow_tx.sources.api import SourceKind
from airflow_tx.spec import TransactionSpec
from airflow_tx.state.api import Grant


class Completion(Enum):
    """Whether there is something to commit."""

    READY = "everything has acked"
    NOT_YET = "a task works again"
    MESSAGES = "messages of it are not acked"
    OVER = "it is final already"


class Commit:
    """The commit of one attempt, in steps that its caller may repeat.

    What is read before the turn is kept until the ledger says that it is out of date.
    """

    def __init__(
        self, spec: TransactionSpec, begun: Begun, updates: Sequence[Update], ledger: Ledger, ti: Any, log: Any
    ) -> None:
        self.spec = spec
        self.begun = begun
        self.updates = updates
        self.states = {update.state.name: update.state for update in updates}
        self.ledger = ledger
        self.ti = ti
        self.own_run: CommittingRun = AirflowRun(ti)
        self.log = log
        self.new_values: dict[str, dict[str, Any]] = {}
        """References to what the updates have left for later tasks, by name; once it is committed, or written."""
        self.epoch: int | None = None
        """The newest that it knows: of its grant, or before that of the output that has acked."""
        self.messages = Messages()
        self._processed: Processed | None = None
        self._outputs: dict[str, str] = {}
        self._rows: list[RowsToWrite] | None = None

    @property
    def rows(self) -> int | None:
        return None if self._processed is None else self._processed.rows

    def forget(self) -> None:
        """Drop what was read: something happened to the transaction."""
        self._processed = self._rows = self.epoch = None

    def complete(self) -> Completion:
        """Ask whether everything has acked, and note it.

        :raises Refused: it never will, as it is.
        """
        if self._processed is None:
            self.messages = await_messages(self.spec, self.ledger, self.begun)
            if self.messages.waiting:
                return Completion.MESSAGES
            answer = self._ask()
            if isinstance(answer, AlreadyCommitted):
                # Whoever marked it may have been killed before it passed the turn on; twice is harmless.
                self._pass_on(Committed.first(self.ledger.topology(), self.begun.txid))
                self._log_already()
                return Completion.OVER
            self._processed = answer
        return Completion.NOT_YET if self._processed is None else Completion.READY

    def prepare(self) -> None:
        """Read the acked output.

        :raises StateError, StagingError: it cannot be committed.
        """
        if self._rows is None:
            self._rows = [whole(update, self._read(update)) for update in self.updates]

    def commit(self) -> bool:
        """Take the turn, write and mark; False if the turn is not to be had now.

        :raises SkippedTransaction: it is skipped now, as a person wants it.
        :raises Refused, StateError: it cannot be committed as it is.
        """
        assert self._processed is not None
        assert self._rows is not None
        answer = self._acquire(self._processed, self._rows)
        if isinstance(answer, AlreadyCommitted):
            self._log_already()
        elif isinstance(answer, Granted):
            self.epoch = answer.grant.token.epoch
            self._granted(answer, self._processed, self._rows)
        elif isinstance(answer, ToBeSkipped):
            self.skip(answer.txid)
            raise SkippedTransaction(topology=self.spec.topology, txid=answer.txid)
        elif isinstance(answer, Restarted):
            self.forget()
        return isinstance(answer, (AlreadyCommitted, Granted))

    def skip(self, txid: int) -> None:
        """Take the skip of a transaction into effect, its own or that of the one whose turn it is.

        :raises Refused, StateError: it cannot be skipped as it is; the run of another one has to see to that.
        """
        try:
            self._pass_on(take_skip(self.ledger, txid, self.states, log=self.log))
        except (Refused, StateError) as error:
            if txid == self.begun.txid:
                raise
            self.log.warning("Transaction %s is not skipped now: %s", txid, error)

    # --- before the turn

    def _ask(self) -> Processed | AlreadyCommitted | None:
        """Ask for what the instances acked that count for Airflow, too; None if one of them works again.

        :raises IncompleteBatch: one has not acked in this attempt: it failed, or it was marked success by hand.
        """
        own, states = self.begun.attempt, self.own_run.instance_states(self.spec.tasks, self.spec.mapped)
        self._check_inputs(states)
        try:
            answer = self.ledger.run(self._processed_step(states))
        except IncompleteBatch:
            if compat.LIVE_TASK_STATES.isdisjoint(states.values()):
                raise
            return None
        if isinstance(answer, Processed) and self.epoch is None:  # else that of a grant, which may be outranked
            self.epoch = answer.epoch
        failed = sorted(instance for instance, state in states.items() if state in compat.FAILED_TASK_STATES)
        if failed and isinstance(answer, Processed):
            names = [task if index < 0 else f"{task}[{index}]" for task, index in failed]
            raise IncompleteBatch(txid=own.txid, attempt=own.attempt, tasks=", ".join(shortened(names)))
        return answer

    def _check_inputs(self, states: InstanceStates) -> None:
        """Refuse to commit after a skipped task, as `all_success` does, unless the transaction is final already.

        :raises InputSkipped: naming the tasks.
        """
        skipped = {task for (task, _), state in states.items() if state == "skipped"} & self.spec.needed
        own = self.begun.attempt
        if skipped and self.ledger.status(own.txid) is not None:
            raise InputSkipped(txid=own.txid, attempt=own.attempt, tasks=", ".join(sorted(skipped)))

    def _processed_step(self, states: InstanceStates) -> BoundStep[Processed | AlreadyCommitted]:
        return partial(
            processing.processed,
            attempt=self.begun.attempt,
            rows_digest=self.begun.rows_digest,
            expected={instance for instance, state in states.items() if state not in compat.EMPTY_TASK_STATES},
            emitted=self.messages.emitted,
            same_rows=self.spec.source.kind is SourceKind.TRANSACTIONAL,
            proven=self.spec.requires_proof,
        )

    def _read(self, update: Update) -> RowsToWrite:
        assert self._processed is not None
        attempt = self.begun.attempt
        empty = self.begun.metadata is None  # a replay that found no rows
        values = values_of(update, self._processed.acks, attempt, self.own_run.output, empty=empty)
        return rows_to_write(update, values, self.spec.staging(), attempt)

    def _acquire(self, processed: Processed, rows: Sequence[RowsToWrite]) -> AcquireAnswer:
        return self.ledger.run(self._acquire_step(processed, rows))

    def _acquire_step(self, processed: Processed, rows: Sequence[RowsToWrite]) -> BoundStep[AcquireAnswer]:
        self._outputs = output_digests(self.updates, rows)
        failpoint("commit.before_acquire", **self._where)
        request = commit.AcquireRequest(
            self.begun.attempt,
            processed.epoch,
            self.begun.rows_digest,
            self._outputs,
            tuple(self.states),
            by_phase=self.spec.phase is not None,
            metadata=self.begun.metadata,
            position=self.begun.position,
            rows=processed.rows,
            tasks=tasks_of(processed.acks),
            code=code_of(processed.acks, self.own_run.dag_version),
            unproven=processed.unproven,
        )
        return partial(commit.acquire, request=request)

    # --- in the turn

    def _granted(self, granted: Granted, processed: Processed, rows: Sequence[RowsToWrite]) -> None:
        grant = granted.grant
        with self._announced(grant):
            self._log_step("Transaction %s of %s commits", self.begun.attempt, self.spec.topology)
            failpoint("commit.after_acquire", **self._where)
            try:
                take_other_output(self.ledger, self.states, grant, granted.changed, self._outputs)
                written = self._write(grant, rows)
            except (LedgerBehind, FenceOutranked) as error:
                raise explain_outranked(self.ledger, self.states, grant, error) from None
            committed = self._mark_final(grant, processed, written)
        self._done(committed)

    def _mark_final(self, grant: Grant, processed: Processed, written: Mapping[str, Written]) -> Committed:
        failpoint("commit.before_mark", **self._where)
        step = partial(
            commit.commit,
            token=grant.token,
            states=list(self.states),
            rows=processed.rows,
            ack_val=processed.ack_val,
            written=written,
        )
        return self._run_mark(step)

    def _run_mark(self, step: BoundStep[Committed]) -> Committed:
        return self.ledger.run(step)

    def _done(self, committed: Committed) -> None:
        failpoint("commit.after_mark", **self._where)
        self._log_step("Transaction %s of %s is committed", self.begun.attempt, self.spec.topology)
        self._pass_on(committed)
        send_commit(self.ledger, self.begun.txid)
        self._clean_up()
        note_committed(self.spec, self.begun)

    def _clean_up(self) -> None:
        clean_up(self.spec, self.ledger, self.ti, self.begun.txid, log=self.log)
        send_open_of(self.ledger)

    def _pass_on(self, ended: Committed | NotYet) -> None:
        pass_on(self.ledger, self.states, TaskRuns(self.spec.dag_id, self.ti), ended, log=self.log)

    def _write(self, grant: Grant, rows: Sequence[RowsToWrite]) -> dict[str, Written]:
        staged, written = self._new_values(grant), dict[str, Written]()
        if len(self.updates) == 1 and fits_one_write(self.updates[0], rows[0]):
            (update,) = self.updates
            written[update.state.name] = write_at_once(update, grant, rows[0], staged.of(update))
        else:
            # Before the first write to any: an outranked attempt may still write to a state that this one leaves alone.
            for update in self.updates:
                update.state.raise_fence(grant)
            for update, found in zip(self.updates, rows, strict=True):
                failpoint("commit.before_write", state=update.state.name, **self._where)
                own, file = staged.of(update), self.own_run.dag_file
                written[update.state.name] = write_update(update, grant, found, dag_file=file, log=self.log, output=own)
        for name, each in written.items():
            self._log_step("State %s: %s keys", name, each.keys)
        self.new_values = staged.finish()
        return written

    def _new_values(self, grant: Grant, task_id: str | None = None) -> NewValues:
        return NewValues(self.spec.staging().kept, grant, task_id or self.own_run.task_id)

    def _announced(self, grant: Grant) -> AbstractContextManager[None]:
        """Show in the ledger who holds the turn, if the store can."""
        run = {"run_id": self.own_run.run_id, "task_try": self.own_run.task_try}
        text = dumps({"token": grant.token.to_json(), **run})
        return self.ledger.store.announce(self.spec.paths.owner(grant.token.nonce), text.encode())

    def _log_step(self, text: str, *arguments: object) -> None:
        self.log.info(text, *arguments)

    def _log_already(self) -> None:
        # The task that committed it may have been killed before it left its new values.
        area, own, task = self.spec.staging().kept, self.begun.attempt, self.own_run.task_id
        self.new_values = found_again(area, self.spec.topology, own.txid, task, own.birth, self.updates)
        self.log.info("Transaction %s of %s is already committed: nothing to do", self.begun.txid, self.spec.topology)
        note_committed(self.spec, self.begun)

    @property
    def _where(self) -> Mapping[str, Any]:
        return {"topology": self.spec.topology, "txid": self.begun.txid, "attempt": self.begun.attempt.attempt}
