"""A commit, from top to bottom: complete, read, acquire, write, mark, after. Nothing here waits; its drivers do.

Each step is a function of a `CommitCase` and of what the step before it gave. Three drivers call the steps: a committer
in its turn (`turn.py`), the tasks of a commit phase (`phase.py`), and a lane (`coordinator/lane_commit.py`).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from functools import partial
from typing import Any

from airflow_tx import compat
from airflow_tx.commit import handoff
from airflow_tx.commit.case import (
    CommitCase,
    CommitPart,
    CommitPorts,
    InstanceStates,
    Prepared,
    ports_of,
)
from airflow_tx.commit.entry import write_entry
from airflow_tx.commit.handoff import NewValues, found_again, outranked_explained, take_skip
from airflow_tx.commit.messages import Messages, await_messages
from airflow_tx.commit.restatement import check_taken, differences
from airflow_tx.commit.rows import RowsToWrite, rows_to_write, values_of
from airflow_tx.commit.run_slots import TaskRuns
from airflow_tx.commit.update import Update
from airflow_tx.commit.write import (
    fits_one_write,
    output_digests,
    take_other_output,
    whole,
    write_at_once,
    write_instead,
    write_update,
)
from airflow_tx.errors import IncompleteBatch, InputSkipped, Refused, SkippedTransaction, StateError
from airflow_tx.failpoints import failpoint
from airflow_tx.metrics import send_commit
from airflow_tx.processing.outcome import note_committed
from airflow_tx.protocol import commit, processing
from airflow_tx.protocol.answers import (
    AlreadyCommitted,
    Committed,
    Granted,
    NotYet,
    Processed,
    Restarted,
    ToBeSkipped,
)
from airflow_tx.protocol.commit import AcquireAnswer
from airflow_tx.protocol.joined import BoundStep
from airflow_tx.protocol.loss import shortened
from airflow_tx.protocol.receipt import Written, code_of, tasks_of
from airflow_tx.sources.api import SourceKind
from airflow_tx.state.api import Grant


class Completion(Enum):
    """Whether there is something to commit."""

    READY = "everything has acked"
    NOT_YET = "a task works again"
    MESSAGES = "some of its messages are not acked"
    OVER = "it is final already"


class Commit:
    """The commit of one attempt in its turn, in steps that its driver may repeat.

    It keeps what was read before the turn, until the ledger says that it is out of date.

    :ivar left: for later tasks, references to new values by name; of the first task of a phase, the grant as JSON.
    """

    def __init__(
        self, case: CommitCase, part: CommitPart | None = None, ports: CommitPorts | None = None
    ) -> None:
        self.case = case
        self.part = part or WHOLE_COMMIT
        self.ports = ports or ports_of(case)
        self.messages = Messages()
        self.processed: Processed | None = None
        self.prepared: Prepared | None = None
        self.granted: Granted | None = None
        self.left: dict[str, Any] = {}

    def forget(self) -> None:
        """Drop what was read: something happened to the transaction."""
        self.processed = None
        self.prepared = None
        self.case.known.epoch = None

    def complete(self) -> Completion:
        """Ask whether everything has acked, and note it.

        :raises Refused: it never will.
        """
        if self.processed is not None:
            return Completion.READY
        answer = complete(self.case)
        if isinstance(answer, Messages):
            self.messages = answer
            return Completion.MESSAGES
        if isinstance(answer, AlreadyCommitted):
            self.left = self.part.over(committed_before(self.case))
            return Completion.OVER
        self.processed = answer
        return Completion.NOT_YET if answer is None else Completion.READY

    def prepare(self) -> Prepared:
        """Read the acked output, unless it is read.

        :raises StateError, StagingError: it cannot be committed.
        """
        assert self.processed is not None
        if self.prepared is None:
            self.prepared = self.part.read(self.case, self.processed)
        return self.prepared

    def commit(self) -> bool:
        """Take the turn, write and mark; False if the turn is not to be had now.

        :raises SkippedTransaction: it is skipped now, as a person wants it.
        :raises Refused, StateError: it cannot be committed now.
        """
        answer = self.case.ledger.run(acquire_step(self.case, self.prepare()))
        self.take(answer)
        if isinstance(answer, Granted):
            self.use()
            return True
        if isinstance(answer, AlreadyCommitted):
            self.left = self.part.over(committed_before(self.case))
            return True
        if isinstance(answer, ToBeSkipped):
            skip_now(self.case, answer.txid)
            raise SkippedTransaction(topology=self.case.spec.topology, txid=answer.txid)
        if isinstance(answer, Restarted):
            self.forget()
        return False

    def take(self, answer: AcquireAnswer | None) -> None:
        """Keep the turn, if the answer grants it."""
        if isinstance(answer, Granted):
            self.granted = answer
            self.case.known.epoch = answer.grant.token.epoch

    def use(self) -> None:
        """Use the turn that is taken. Raises as `commit`."""
        assert self.granted is not None
        self.left = self.part.use(self.case, self.ports, self.prepare(), self.granted)


# --- complete: has everything acked? ------------------------------------------------------------------------------


def complete(case: CommitCase) -> Processed | AlreadyCommitted | Messages | None:
    """Ask for what the instances acked that count for Airflow, too, and note that it is complete.

    :return: Messages: some of them are not acked. None: a task works again.
    :raises IncompleteBatch: an instance has not acked in this attempt: it failed, or it was marked success by hand.
    :raises Refused: it can never be complete.
    """
    messages = await_messages(case.spec, case.ledger, case.begun)
    if messages.waiting:
        return messages
    states = case.run.instance_states(case.spec.tasks, case.spec.mapped)
    _check_inputs(case, states)
    try:
        answer = case.ledger.run(processed_step(case, states, messages.emitted))
    except IncompleteBatch:
        if not any(map(compat.is_live, states.values())):
            raise
        return None
    if isinstance(answer, AlreadyCommitted):
        # The committer may have died after the mark, before it passed the turn on. Passing it on twice is safe.
        hand_over(case, Committed.first(case.ledger.topology(), case.begun.txid))
        return answer
    if case.known.epoch is None:  # else it is the epoch of a grant, which may be outranked
        case.known.epoch = answer.epoch
    _check_failed(case, states)
    return answer


def processed_step(
    case: CommitCase, states: InstanceStates, emitted: Mapping[Any, int]
) -> BoundStep[Processed | AlreadyCommitted]:
    """Make the step that notes that the batch is complete."""
    return partial(
        processing.processed,
        attempt=case.begun.attempt,
        rows_digest=case.begun.rows_digest,
        expected={instance for instance, state in states.items() if not compat.is_left_out(state)},
        emitted=emitted,
        same_rows=case.spec.source.kind is SourceKind.TRANSACTIONAL,
        proven=case.spec.requires_proof,
    )


def _check_inputs(case: CommitCase, states: InstanceStates) -> None:
    """Refuse to commit after a skipped task, as `all_success` does, unless the transaction is final already.

    :raises InputSkipped: naming the tasks.
    """
    own = case.begun.attempt
    skipped = {task for (task, _), state in states.items() if state == "skipped"} & case.spec.needed
    if skipped and case.ledger.status(own.txid) is not None:
        raise InputSkipped(txid=own.txid, attempt=own.attempt, tasks=", ".join(sorted(skipped)))


def _check_failed(case: CommitCase, states: InstanceStates) -> None:
    """Refuse to commit while Airflow takes an instance for failed, although it has acked."""
    own = case.begun.attempt
    failed = sorted(instance for instance, state in states.items() if compat.is_failed(state))
    if failed:
        names = [task if index < 0 else f"{task}[{index}]" for task, index in failed]
        raise IncompleteBatch(txid=own.txid, attempt=own.attempt, tasks=", ".join(shortened(names)))


# --- read: the acked output, before the turn ----------------------------------------------------------------------


def read(case: CommitCase, processed: Processed) -> Prepared:
    """Read the acked output of every update, form what a restatement writes, and write the journal entry."""
    rows = [whole(update, rows_of(case, update, processed)) for update in case.updates]
    replacing = differences(case, rows)
    journal = write_entry(case, processed, rows)
    # A replay is compared by the output: a difference of two outputs that are equal may have other digits.
    return Prepared(processed, rows, output_digests(case.updates, rows), journal, replacing)


def rows_of(case: CommitCase, update: Update, processed: Processed) -> RowsToWrite:
    """Read the acked output of one update."""
    attempt = case.begun.attempt
    empty = case.begun.metadata is None  # a replay that found no rows
    values = values_of(update, processed.acks, attempt, case.run.output, empty=empty)
    return rows_to_write(update, values, case.area, attempt)


# --- acquire: the turn --------------------------------------------------------------------------------------------


def acquire_step(case: CommitCase, prepared: Prepared) -> BoundStep[AcquireAnswer]:
    """Make the step that takes the turn."""
    failpoint("commit.before_acquire", **case.where)
    processed = prepared.processed
    request = commit.AcquireRequest(
        case.begun.attempt,
        processed.epoch,
        case.begun.rows_digest,
        prepared.outputs,
        tuple(case.states),
        by_phase=case.spec.phase is not None,
        metadata=case.begun.metadata,
        position=case.begun.position,
        rows=processed.rows,
        tasks=tasks_of(processed.acks),
        code=code_of(processed.acks, case.run.dag_version),
        unproven=processed.unproven,
        journal=prepared.journal,
        taken_back=prepared.replacing.taken_back,
        held=prepared.replacing.held,
        sole=prepared.replacing.sole,
    )
    return partial(commit.acquire, request=request)


# --- write and mark: in the turn ----------------------------------------------------------------------------------


def write_and_mark(
    case: CommitCase, ports: CommitPorts, prepared: Prepared, granted: Granted
) -> dict[str, Any]:
    """Write every update under the grant, mark the commit, and do what follows it.

    :return: references to new values, by name.
    """
    grant = granted.grant
    with ports.show(grant):
        ports.log("Transaction %s of %s commits", case.begun.attempt, case.spec.topology)
        failpoint("commit.after_acquire", **case.where)
        staged = NewValues(case.area.kept, grant, case.run.task_id)
        with outranked_explained(case.ledger, case.states, grant):
            take_other_output(case.ledger, case.states, granted, prepared.outputs)
            written = write(case, grant, prepared, staged)
        for name, each in written.items():
            ports.log("State %s: %s keys", name, each.keys)
        left = staged.finish()
        committed = ports.run(mark_step(case, grant, prepared.processed, written))
    after(case, ports, committed)
    return left


def write(
    case: CommitCase, grant: Grant, prepared: Prepared, staged: NewValues
) -> dict[str, Written]:
    """Write every update; what was written, per state.

    :raises NotTakenBack: a state lacks a key that a restatement takes back.
    """
    if len(case.updates) == 1 and not prepared.replacing.differences:
        update, rows = case.updates[0], prepared.rows[0]
        if fits_one_write(update, rows):
            return {update.state.name: write_at_once(update, grant, rows, staged.of(update))}
    # Raise every fence before the first write: an outranked attempt may still write to a state without rows here.
    for update in case.updates:
        update.state.raise_fence(grant)
    check_taken(case, prepared.replacing.differences)
    written = dict[str, Written]()
    for update, found in zip(case.updates, prepared.rows, strict=True):
        failpoint("commit.before_write", state=update.state.name, **case.where)
        own = grant
        output = staged.of(update)
        if (replacing := prepared.replacing.differences.get(update.state.name)) is not None:
            found = replacing.rows
            own = write_instead(update.state, grant, replacing.instead, output)
        written[update.state.name] = own.written + write_update(
            update, own, found, dag_file=case.run.dag_file, log=case.log, output=output
        )
    return written


def mark_step(
    case: CommitCase, grant: Grant, processed: Processed, written: Mapping[str, Written]
) -> BoundStep[Committed]:
    """Make the step that marks the commit and passes the turn on."""
    failpoint("commit.before_mark", **case.where)
    return partial(
        commit.commit,
        token=grant.token,
        states=list(case.states),
        rows=processed.rows,
        ack_val=processed.ack_val,
        written=written,
        columns={
            name: list(state.columns.values)
            for name, state in case.states.items()
            if state.columns is not None
        },
    )


# --- after: what follows a commit ---------------------------------------------------------------------------------


def after(case: CommitCase, ports: CommitPorts, committed: Committed) -> None:
    """Pass the turn on, send the metrics, clean up, and tell the source."""
    failpoint("commit.after_mark", **case.where)
    ports.log("Transaction %s of %s is committed", case.begun.attempt, case.spec.topology)
    hand_over(case, committed)
    send_commit(case.ledger, case.begun.txid)
    ports.clean_up()
    note_committed(case.spec, case.begun)


def committed_before(case: CommitCase) -> dict[str, Any]:
    """Do what follows a commit that an earlier try has marked; references to its new values, by name."""
    # The task that marked it may have been killed before it left its new values.
    own = case.begun.attempt
    left = found_again(case.area.kept, case.spec.topology, own, case.run.task_id, case.updates)
    case.log.info(
        "Transaction %s of %s is already committed: nothing to do", own.txid, case.spec.topology
    )
    note_committed(case.spec, case.begun)
    return left


def skip_now(case: CommitCase, txid: int) -> None:
    """Take the skip of a transaction into effect, its own, or the one whose turn it is.

    :raises Refused, StateError: it cannot be skipped now; the run of another transaction must do it.
    """
    try:
        hand_over(case, take_skip(case.ledger, txid, case.states, log=case.log))
    except (Refused, StateError) as error:
        if txid == case.begun.txid:
            raise
        case.log.warning("Transaction %s is not skipped now: %s", txid, error)


def hand_over(case: CommitCase, ended: Committed | NotYet) -> None:
    """Pass the turn on: take skips that are due, start runs that yielded."""
    runs = TaskRuns(case.spec.dag_id, case.ti)
    handoff.pass_on(case.ledger, case.states, runs, ended, log=case.log)


WHOLE_COMMIT = CommitPart(read, write_and_mark, over=lambda left: left)
"""The whole commit, by one task."""
