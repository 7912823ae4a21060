"""The steps of a commit, in their order: complete, read, acquire, write, mark, after. No step waits.

A `Commit` keeps the result of each step for later steps. Three drivers call the steps, and wait between them: a
committer (`turn.py`), the tasks of a commit phase (`PhaseCommit`, below), and a lane (`coordinator/lane_tasks.py`).
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field, replace
from enum import Enum
from functools import partial
from operator import attrgetter
from typing import Any

from msgspec import structs, to_builtins

from airflow_tx.base import compat
from airflow_tx.base.errors import (
    IncompleteBatch,
    InputSkipped,
    Outranked,
    PhaseIncomplete,
    Refused,
    SkippedTransaction,
    StagingError,
    StateError,
)
from airflow_tx.base.failpoints import failpoint
from airflow_tx.ledger import (
    ASIDE,
    AcquireAnswer,
    AcquireRequest,
    AlreadyCommitted,
    BoundStep,
    CheckNote,
    Committed,
    Granted,
    NotYet,
    Processed,
    Receipt,
    Restarted,
    ToBeSkipped,
    Token,
    Written,
    code_of,
    shortened,
    tasks_of,
)
from airflow_tx.sources import SourceKind
from airflow_tx.spark import NewValues, newest_outputs
from airflow_tx.state import FencedState, Grant, QueryableState, StateKind, raise_fences
from airflow_tx.transaction.commit import handoff
from airflow_tx.transaction.commit.case import CommitCase
from airflow_tx.transaction.commit.check import (
    ERROR,
    Check,
    CheckedCommit,
    ChecksFailed,
    FailedCheck,
    OutputRows,
    find_all,
    output_rows,
)
from airflow_tx.transaction.commit.handoff import (
    Messages,
    await_messages,
    began,
    note_committed,
    outranked_explained,
    take_skip,
)
from airflow_tx.transaction.commit.rejected import check_aside, max_rejected_check, rows_rejected
from airflow_tx.transaction.commit.restatement import (
    NOTHING_REPLACED,
    Replacing,
    check_taken,
    differences,
    is_kept,
    shared_differences,
    write_entry,
)
from airflow_tx.transaction.commit.run_slots import TaskRuns
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.commit.write import (
    Pull,
    RowsToWrite,
    StagedRows,
    UpdateRows,
    acked_values,
    check_empty,
    moment_of,
    new_values_of,
    output_digests,
    rows_to_write,
    take_other_output,
    values_of,
    whole,
    write_instead,
    write_moment,
    write_update,
)
from airflow_tx.transaction.metrics import send_commit, send_open_of
from airflow_tx.transaction.processing.outputs import RETURN_KEY, is_ref, xcom_fingerprint
from airflow_tx.transaction.spec import PhaseSpec

# --- commit -------------------------------------------------------------------------------------------------------


InstanceStates = Mapping[tuple[str, int], "str | None"]
"""The states of task instances, by task id and map index. An unmapped task has the map index −1."""


class Completion(Enum):
    """Whether a transaction is ready for its commit."""

    READY = "all tasks and messages are acked"
    NOT_YET = "a task runs again"
    MESSAGES = "some of its messages are not acked"
    OVER = "the transaction is already final"


@dataclass(eq=False)
class Commit(CommitCase):
    """The commit of one attempt as a sequence of steps, which the caller may repeat.

    The output is read before the turn, and kept until the ledger reports that it is out of date.

    :param checks: the checks that the outputs must pass.
    :ivar epoch: the epoch of the grant or, before the grant, of the acked output. It is None if it is unknown.
    :ivar messages: the status of the attempt's messages.
    :ivar processed: the acks of all tasks, or None while an ack is missing.
    :ivar rows_read: the whole output of each update.
    :ivar replacing: the rows that a restatement writes in place of the output.
    :ivar acquire_request: the request for the turn, or None before the output is read and checked.
    :ivar granted: the granted turn, or None if this commit does not have the turn.
    :ivar left: references to new values for later tasks, by name.
    """

    checks: Sequence[Check] = ()
    epoch: int | None = field(default=None, init=False)
    messages: Messages = field(default_factory=Messages, init=False)
    processed: Processed | None = field(default=None, init=False)
    rows_read: Sequence[RowsToWrite] = field(default=(), init=False)
    replacing: Replacing = field(default=NOTHING_REPLACED, init=False)
    acquire_request: AcquireRequest | None = field(default=None, init=False)
    granted: Granted | None = field(default=None, init=False)
    left: dict[str, Any] = field(default_factory=dict, init=False)

    def forget(self) -> None:
        """Drop the output that was read, because the transaction has changed."""
        self.processed = None
        self.acquire_request = None
        self.epoch = None

    # --- its run ----------------------------------------------------------------------------------------------------

    @property
    def dag_file(self) -> str:
        """Return the path of the DAG file, or "" if it is unknown."""
        task = getattr(self.ti, "task", None)
        return str(task.dag.fileloc) if task is not None else ""

    @property
    def dag_version(self) -> str:
        """Return the version of the DAG, or "" if it is unknown."""
        return compat.dag_version(self.ti)

    @property
    def output(self) -> Pull:
        """Return a function that reads an XCom by task id, name and map index. It returns None if there is no XCom."""
        return partial(compat.pull, self.ti)

    def instance_states(self, tasks: Collection[str], mapped: Collection[str]) -> InstanceStates:
        """Return the state of every instance of the tasks.

        :param tasks: ids of the tasks.
        :param mapped: ids of the mapped tasks among them.
        """
        return compat.instance_states(self.ti, tasks, mapped)

    # --- complete: has everything acked? ----------------------------------------------------------------------------

    def complete(self) -> Completion:
        """Read the acks of all task instances in Airflow, and note in the ledger that the batch is complete.

        :raises IncompleteBatch: an instance has not acked in this attempt. It failed, or a user marked it as success.
        :raises InputSkipped: a required task was skipped.
        :raises Refused: the attempt can never be complete.
        """
        if self.processed is not None:
            return Completion.READY
        self.messages = await_messages(self.spec, self.ledger, self.begun)
        if self.messages.waiting:
            return Completion.MESSAGES
        states = self.instance_states(self.spec.tasks, self.spec.mapped)
        self._check_inputs(states)
        try:
            answer = self.ledger.run(self.processed_step(states))
        except IncompleteBatch:
            if not any(map(compat.is_live, states.values())):
                raise
            return Completion.NOT_YET
        if isinstance(answer, AlreadyCommitted):
            # An earlier try may have died after it marked the commit and before it handed over the
            # turn. Handing over the turn twice is safe.
            self._hand_over(Committed.first(self.ledger.topology(), self.begun.txid))
            self.left = self._committed_before()
            return Completion.OVER
        if self.epoch is None:  # Keep the epoch of the grant. A later grant may have outranked it.
            self.epoch = answer.epoch
        self._check_failed(states)
        self.processed = answer
        return Completion.READY

    def processed_step(self, states: InstanceStates) -> BoundStep[Processed | AlreadyCommitted]:
        """Return the step that notes in the ledger that the batch is complete."""
        return self.ledger.processed.bind(
            attempt=self.begun.attempt,
            rows_digest=self.begun.rows_digest,
            expected={each for each, state in states.items() if not compat.is_left_out(state)},
            emitted=self.messages.emitted,
            same_rows=self.spec.source.kind is SourceKind.TRANSACTIONAL,
            proven=self.spec.requires_proof,
        )

    def _check_inputs(self, states: InstanceStates) -> None:
        """Refuse to commit if a required task was skipped, as `all_success` does.

        Do nothing if the transaction is final.

        :raises InputSkipped: a required task was skipped. The error names the tasks.
        """
        own = self.begun.attempt
        skipped = {task for (task, _), state in states.items() if state == "skipped"}
        skipped &= self.spec.needed
        if skipped and self.ledger.status(own.txid) is not None:
            tasks = ", ".join(sorted(skipped))
            raise InputSkipped(txid=own.txid, attempt=own.attempt, tasks=tasks)

    def _check_failed(self, states: InstanceStates) -> None:
        """Refuse to commit if a task instance has acked, but has failed in Airflow.

        :raises IncompleteBatch: the error names the failed tasks.
        """
        own = self.begun.attempt
        failed = sorted(instance for instance, state in states.items() if compat.is_failed(state))
        if failed:
            names = [task if index < 0 else f"{task}[{index}]" for task, index in failed]
            tasks = ", ".join(shortened(names))
            raise IncompleteBatch(txid=own.txid, attempt=own.attempt, tasks=tasks)

    # --- read: the acked output, before the turn --------------------------------------------------------------------

    def prepare(self) -> AcquireRequest:
        """Read and check the acked output, unless an earlier call has done this.

        This step also computes the differences of a restatement, and writes the journal entry.

        :return: the request for the turn.
        :raises StateError, StagingError, ChecksFailed: the output cannot be committed.
        """
        if self.acquire_request is not None:
            return self.acquire_request
        assert self.processed is not None
        processed = self.processed
        outputs = (each for ack in processed.acks.values() for each in ack.outputs)
        if any(each["name"].startswith(ASIDE) for each in outputs):
            check_aside(self, processed.acks)
        self.rows_read = self.read(processed)
        self.replacing = replacing = differences(self, self.rows_read)
        journal = write_entry(self, processed, self.rows_read, left=replacing.left)
        self.acquire_request = AcquireRequest(
            self.begun.attempt,
            processed.epoch,
            self.begun.rows_digest,
            # Use the digest of the whole output, since differences of equal outputs may have
            # different digests.
            output_digests(self.updates, self.rows_read),
            tuple(self.states),
            by_phase=self.spec.phase is not None,
            metadata=self.begun.metadata,
            position=self.begun.position,
            rows=processed.rows,
            tasks=tasks_of(processed.acks),
            code=code_of(processed.acks, self.dag_version),
            unproven=processed.unproven,
            journal=journal,
            taken_back=replacing.taken_back,
            held=replacing.held,
            sole=replacing.sole,
            own=replacing.own,
            checks=self._check_outputs(processed),
        )
        return self.acquire_request

    def read(self, processed: Processed) -> Sequence[RowsToWrite]:
        """Read the acked output for every update."""
        return [whole(update, self.rows_of(update, processed)) for update in self.updates]

    def rows_of(self, update: Update, processed: Processed) -> RowsToWrite:
        """Read the acked output for one update."""
        attempt = self.begun.attempt
        if update.input is None:
            return rows_rejected(update, processed.acks, self.area, attempt)
        empty = self.begun.metadata is None  # The replay found no rows.
        values = values_of(update, processed.acks, attempt, self.output, empty=empty)
        return rows_to_write(update, values, self.area, attempt)

    def _check_outputs(self, processed: Processed) -> dict[str, CheckNote]:
        """Run the checks over the acked outputs, and return their results for the receipt.

        The checks of a restatement read its whole output, not the difference.

        :raises ChecksFailed: a check failed, and no person has accepted the finding for this output.
        :raises ConfigError: a check cannot be run.
        """
        checks = list(self.checks)
        if self.spec.max_rejected is not None:
            checks.append(max_rejected_check(self, self.spec.max_rejected))
        if not checks:
            return {}
        results = {each.name: CheckNote(True) for each in checks}
        commit = CheckedCommit(processed, partial(self._checked, processed))
        findings = list(find_all(checks, commit))
        if not findings:
            return results
        own = self.begun.attempt
        accepted = self._accepted_checks()
        failed = list[FailedCheck]()
        for each in findings:
            each.log_samples()
            results[each.check.name] = each.note
            if each.digest and (known := accepted.get((each.check.name, each.digest))):
                results[each.check.name] = structs.replace(each.note, accepted=known.accepted)
            elif each.check.severity == ERROR:
                failed.append(each)
            else:
                self.log.warning("Transaction %s of %s: %s", own, self.spec.topology, each.text)
        if failed:
            raise ChecksFailed(
                topology=self.spec.topology,
                txid=own.txid,
                attempt=own.attempt,
                problem="; ".join(each.text for each in failed),
                names=[each.check.name for each in failed],
                checks={each.check.name: each.note for each in failed},
            )
        return results

    def _accepted_checks(self) -> dict[tuple[str, str], CheckNote]:
        """Return the accepted checks of this transaction and of the one that it restates, by name and digest."""
        record = self.ledger.status(self.begun.txid)
        replaced = self.begun.replaces
        history = None if replaced is None else self.ledger.outcome(replaced.txid)
        receipt = None if history is None else history.receipt
        before = {} if receipt is None else receipt.checks or {}
        own = {} if record is None else record.accepted_checks
        return {
            (name, each.digest): each
            for checks in (before, own)
            for name, each in checks.items()
            if each.accepted is not None
        }

    def _checked(self, processed: Processed, output: Any) -> OutputRows:
        own = self.begun.attempt
        values = acked_values(output, processed.acks, own, self.output)
        table = self.spec.tables.get((output.operator.task_id, output.key))
        return output_rows(values, self.area, own, table)

    # --- acquire: the turn ------------------------------------------------------------------------------------------

    def try_to_commit(self) -> bool:
        """Take the turn, write, and mark the commit. Return False if the ledger does not grant the turn now.

        :raises SkippedTransaction: this call has skipped the transaction, as requested by a user.
        :raises Refused, StateError: the transaction cannot be committed now.
        """
        answer = self.ledger.run(self.acquire_step())
        self.take(answer)
        if isinstance(answer, Granted):
            self.use()
            return True
        if isinstance(answer, AlreadyCommitted):
            self.left = self._committed_before()
            return True
        if isinstance(answer, ToBeSkipped):
            self.skip_now(answer.txid)
            raise SkippedTransaction(topology=self.spec.topology, txid=answer.txid)
        if isinstance(answer, Restarted):
            self.forget()
        return False

    def acquire_step(self) -> BoundStep[AcquireAnswer]:
        """Return the step that takes the turn.

        :raises StateError, StagingError, ChecksFailed: see `prepare`.
        """
        request = self.prepare()
        failpoint("commit.before_acquire", **self.where)
        return self.ledger.acquire.bind(request)

    def take(self, answer: AcquireAnswer | None) -> None:
        """Store the grant if the ledger has granted the turn. Ignore any other response."""
        if isinstance(answer, Granted):
            self.granted = answer
            self.epoch = answer.grant.token.epoch

    # --- write and mark: in the turn --------------------------------------------------------------------------------

    def use(self) -> None:
        """Write every update, mark the commit, and do the work after the commit.

        :raises Refused, StateError: the transaction cannot be committed now.
        """
        assert self.granted is not None
        grant = self.granted.grant
        with self.show(grant):
            self.tell("Transaction %s of %s commits", self.begun.attempt, self.spec.topology)
            failpoint("commit.after_acquire", **self.where)
            staged = NewValues(self.area.kept, grant, self.task_id)
            with outranked_explained(self.ledger, self.states, grant):
                written = self.write(staged)
            for name, each in written.items():
                self.tell("State %s: %s keys", name, each.keys)
            left = staged.finish() if staged.outputs else {}
            committed = self.mark(self.mark_step(grant, written))
        self.after(committed)
        self.left = left

    def show(self, grant: Grant) -> AbstractContextManager[None]:
        """Record in the ledger which run and try hold the turn, until the end of the `with` block."""
        shown = {
            "token": grant.token.to_json(),
            "run_id": self.run_id,
            "task_try": str(self.ti.id),
        }
        return self.ledger.announce_owner(grant.token.nonce, shown)

    def tell(self, text: str, *arguments: object) -> None:
        """Log a step of the commit."""
        self.log.info(text, *arguments)

    def write(self, staged: NewValues) -> dict[str, Written]:
        """Write every update, and return the written counts by state.

        :param staged: the staging of new values.
        :raises NotTakenBack: a state lacks a key that a restatement takes back.
        """
        grant = staged.grant
        found = self.updates_to_write()
        moment = moment_of(found)
        inside = [each.state for each in moment]
        others = [each for each in found if each not in moment]
        outside = [each.state for each in others]
        # Raise every fence before or with the first write, since an outranked attempt may still
        # write to states whose fence is not raised.
        raise_fences(outside, grant)
        self._take_other_output(outside)
        check_taken(outside, self.replacing.differences)
        if len(moment) > 1:
            names = ", ".join(state.name for state in inside)
            self.log.info("One transaction of the database writes %s", names)
        self._before_writes(moment)
        written = write_moment(moment, grant, staged)
        # Record a changed output only after the fences are raised, since raising a fence checks for
        # it.
        self._take_other_output(inside)
        for each in sorted(others, key=attrgetter("for_good")):
            self._before_writes([each])
            own = grant
            output = new_values_of(each.update, staged)
            if each.require is not None:
                own = write_instead(each.state, grant, each.instead, output)
            written[each.state.name] = own.written + write_update(
                each.update, own, each.rows, dag_file=self.dag_file, log=self.log, output=output
            )
        return _marked(written, self.replacing.left)

    def updates_to_write(self) -> list[UpdateRows]:
        """Return the rows to write for each update.

        A restatement writes the difference. It writes no rows to a state that it leaves unchanged.
        """
        found = list[UpdateRows]()
        for update, rows in zip(self.updates, self.rows_read, strict=True):
            name = update.state.name
            given = UpdateRows(update, () if name in self.replacing.left else rows)
            if (difference := self.replacing.differences.get(name)) is not None:
                assert isinstance(update.state, QueryableState)
                require = partial(difference.check_taken, update.state)
                given = UpdateRows(update, difference.rows, difference.instead, require)
            found.append(replace(given, for_good=self._cannot_be_undone(update)))
        return found

    def _take_other_output(self, states: Sequence[FencedState]) -> None:
        assert self.granted is not None
        assert self.acquire_request is not None
        take_other_output(self.ledger, states, self.granted, self.acquire_request.outputs)

    def _before_writes(self, found: Sequence[UpdateRows]) -> None:
        for each in found:
            failpoint("commit.before_write", state=each.state.name, **self.where)

    def _cannot_be_undone(self, update: Update) -> bool:
        """Return whether the update removes rows that cannot be restored, and must therefore be written last."""
        return self.begun.replaces is not None and update.state.takes_back_by_txid

    def mark_step(self, grant: Grant, written: Mapping[str, Written]) -> BoundStep[Committed]:
        """Return the step that marks the transaction as committed and hands over the turn."""
        failpoint("commit.before_mark", **self.where)
        return self.ledger.commit.bind(
            token=grant.token,
            states=list(self.states),
            written=written,
            columns={
                name: list(state.columns.values)
                for name, state in self.states.items()
                if state.columns is not None
            },
            began=began(self.states, grant),
        )

    def mark(self, step: BoundStep[Committed]) -> Committed:
        """Run the step that marks the transaction as committed."""
        return self.ledger.run(step)

    # --- after: what follows a commit -------------------------------------------------------------------------------

    def after(self, committed: Committed) -> None:
        """Hand over the turn, send the metrics, delete data that is no longer needed, and notify the source."""
        failpoint("commit.after_mark", **self.where)
        self.tell("Transaction %s of %s is committed", self.begun.attempt, self.spec.topology)
        self._hand_over(committed)
        send_commit(self.ledger, self.begun.txid)
        self.clean_up()
        note_committed(self.spec, self.begun, log=self.log)

    def clean_up(self) -> None:
        """Delete data that no task needs after the commit."""
        handoff.clean_up(self.spec, self.ledger, self.ti, self.begun.txid, log=self.log)
        send_open_of(self.ledger)

    def _committed_before(self) -> dict[str, Any]:
        """Finish a commit that an earlier try has marked. Return references to its new values, by name."""
        # The earlier try may have been killed before it pushed the new values.
        own = self.begun.attempt
        topology = self.spec.topology
        wanted = {update.new_values for update in self.updates} - {None}
        found = (
            newest_outputs(self.area.kept, topology, own.txid, self.task_id, own.birth)
            if wanted
            else {}
        )
        self.log.info(
            "Transaction %s of %s is already committed: nothing to do", own.txid, topology
        )
        note_committed(self.spec, self.begun, log=self.log)
        return {name: ref.to_json() for name, ref in found.items() if name in wanted}

    def skip_now(self, txid: int) -> None:
        """Skip this transaction, or another transaction that has the turn.

        :param txid: the transaction to skip.
        :raises Refused, StateError: this transaction cannot be skipped now. For another transaction, the error is only
            logged.
        """
        try:
            self._hand_over(take_skip(self.ledger, txid, self.states, log=self.log))
        except (Refused, StateError) as error:
            if txid == self.begun.txid:
                raise
            self.log.warning("Transaction %s is not skipped now: %s", txid, error)

    def _hand_over(self, ended: Committed | NotYet) -> None:
        """Hand over the turn: run the skips that are due, and start runs that yielded."""
        runs = TaskRuns(self.spec.dag_id, self.ti)
        handoff.pass_on(self.ledger, self.states, runs, ended, log=self.log)


def _marked(written: Mapping[str, Written], left: Collection[str]) -> dict[str, Written]:
    """Set `left` in the written counts of the states that the restatement leaves unchanged."""
    return {
        name: structs.replace(each, left=True) if name in left else each
        for name, each in written.items()
    }


# --- phase --------------------------------------------------------------------------------------------------------
# This section is a commit by several tasks. The first task takes the turn, the committers write,
# and the last task marks the commit. The first task raises every fence, which undoes the writes of
# an earlier grant. A committer that succeeded under the earlier grant may not run again. Then the
# first task repeats its writes.


INSIDE_KEY = "airflow_tx_inside"
"""The XCom in which a task of the phase stores the attempt and the fingerprint of its result."""


class PhaseCommit(Commit):
    """The work of one task in a commit phase."""

    @property
    def phase(self) -> PhaseSpec:
        assert self.spec.phase is not None
        return self.spec.phase

    def incomplete(self, problem: str, task: str) -> PhaseIncomplete:
        """Return an error that names the task to clear."""
        own = self.begun.attempt
        return PhaseIncomplete(txid=own.txid, attempt=own.attempt, problem=problem, task=task)

    # --- the first task: takes the turn, with the updates of all committers -----------------------------------------

    def read(self, processed: Processed) -> Sequence[RowsToWrite]:
        """Read the output of transactional states, and the output for the journal entry, before the turn."""
        inside = self.phase.inside
        keeps = bool(self.spec.journal_time) or self.begun.replaces is not None
        return [
            self.rows_of(update, processed)
            if update.state.kind is StateKind.TRANSACTIONAL or (keeps and is_kept(update, inside))
            else ()
            for update in self.updates
        ]

    def use(self) -> None:
        """Raise every fence, and repeat the writes of committers that do not run again under this grant."""
        assert self.granted is not None
        grant = self.granted.grant
        self.tell("Transaction %s of %s commits", self.begun.attempt, self.spec.topology)
        failpoint("commit.after_acquire", **self.where)
        with outranked_explained(self.ledger, self.states, grant):
            states = list(self.states.values())
            raise_fences(states, grant)
            self._take_other_output(states)
            check_taken(states, self.replacing.differences)
            left = self.replacing.left
            shared = shared_differences(self.replacing.differences) | dict.fromkeys(left)
            healed = self._heal(grant, shared)
        assert grant.claim is not None
        self.left = {
            "token": grant.token.to_json(),
            "incarnation": grant.incarnation,
            "last": dict(grant.last_txids),
            "healed": list(healed),
            "written": healed,
            "claim": grant.claim.text,
            **({"differences": shared} if shared else {}),
            **({"left": sorted(left)} if left else {}),
        }

    @property
    def shared(self) -> dict[str, Any]:
        """Return the grant as JSON, which the first task shares with the other tasks of the phase.

        The JSON also contains the written counts of each committer that does not run again. For a restatement it
        contains the staged differences, see `shared_differences`, and the names of the states that are left unchanged.
        """
        return {"final": True} if self.granted is None else self.left

    def _heal(self, grant: Grant, shared: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
        """Repeat the writes of committers that succeeded under an earlier grant and do not run again."""
        phase = self.phase
        updates = {
            task: tuple(self.ti.task.dag.get_task(task).updates) for task in phase.committers
        }
        inputs = {
            task: {
                update.input.operator.task_id for update in own if update.input is not None
            }.intersection(phase.inside)
            for task, own in updates.items()
        }
        states = compat.task_states(
            self.ti, {*inputs, *(each for found in inputs.values() for each in found)}
        )
        healed = dict[str, dict[str, Any]]()
        for task, own in updates.items():
            # A committer must run again if its input is computed again. Otherwise the last task
            # fails and names this committer.
            if any(states.get(each) != "success" for each in (task, *inputs[task])):
                continue
            self.log.info("Writing the updates of task %s again, under the new grant", task)
            written, _ = self._write_own(own, grant, shared, task_id=task)
            healed[task] = to_builtins(written)
        return healed

    # --- a committer: writes its own updates ------------------------------------------------------------------------

    def write_in_phase(self) -> dict[str, Any] | None:
        """Write under the grant that the first task shared.

        :return: the token and the written counts, which the last task checks, or None if the transaction was final.
        :raises Refused, StateError: nothing was written.
        """
        grant = self.shared_grant()
        if grant is None:
            self.left = self._committed_before()
            return None
        written = self.write_under(grant)
        return {"token": grant.token.to_json(), "written": to_builtins(written)}

    def write_under(self, grant: Grant) -> dict[str, Written]:
        """Write the updates of this committer under the grant of the phase. A retry writes the same rows.

        :return: the written counts by state, or an empty dict if the transaction is already final.
        :raises Refused, StateError: nothing was written.
        """
        # This step comes first, since it finds out whether the transaction is already skipped or
        # committed.
        completion = self.complete()
        if completion is Completion.OVER:
            return {}
        if completion is not Completion.READY or not self.ledger.holds(grant.token):
            raise Outranked(txid=grant.txid, token=str(grant.token), found="a later grant")
        with outranked_explained(self.ledger, self.states, grant):
            restates = self.begun.replaces is not None
            shared = self.read_shared().get("differences", {}) if restates else {}
            written, self.left = self._write_own(self.updates, grant, shared, task_id=self.task_id)
            return written

    def _write_own(
        self, updates: Sequence[Update], grant: Grant, shared: Mapping[str, Any], *, task_id: str
    ) -> tuple[dict[str, Written], dict[str, Any]]:
        """Write the updates of one committer, and make its new values visible.

        All tries of a committer write under the single grant of the phase. A task that Airflow declared dead may still
        run, and read values that a later transaction has changed. So the new values are used only if the grant still
        holds after the reading.

        :return: the written counts by state, and references to new values by name.
        :raises Outranked: the grant no longer holds.
        """
        staged = NewValues(self.area.kept, grant, task_id)
        found = [
            UpdateRows(each, self._given(each, shared), for_good=self._cannot_be_undone(each))
            for each in updates
        ]
        moment = [each for each in moment_of(found) if each.state.store_key is not None]
        written: dict[str, Written] = {}
        others = (each for each in found if each not in moment)
        for group in (moment, *([each] for each in sorted(others, key=attrgetter("for_good")))):
            self._before_writes(group)
            # An earlier try of this committer may have written other keys, so its rows are undone
            # first. The earlier try may still run, and could undo the rows of this try. So a single
            # store transaction undoes and writes.
            if all(each.fits() for each in group):
                written |= write_moment(group, grant, staged, raising=False)
                continue
            (each,) = group
            each.state.undo(grant)
            written[each.state.name] = write_update(
                each.update,
                grant,
                each.rows,
                dag_file=self.dag_file,
                log=self.log,
                output=new_values_of(each.update, staged),
            )
        for name, done in written.items():
            self.log.info("State %s: %s keys", name, done.keys)
        if not staged.outputs:
            return written, {}
        if not self.ledger.holds(grant.token):
            found_now = "a later grant, or a commit"
            raise Outranked(txid=grant.txid, token=str(grant.token), found=found_now)
        return written, staged.finish()

    # --- its rows: an update may use the output of a task inside the phase ------------------------------------------

    def _given(self, update: Update, shared: Mapping[str, Any]) -> RowsToWrite:
        """Return the difference that the first task has shared, or the output if there is no difference."""
        name = update.state.name
        if name not in shared:
            assert self.processed is not None
            return self.rows_of(update, self.processed)
        ref = shared[name]
        own = self.begun.attempt
        return [] if ref is None else StagedRows(self.area, ref, update.state, own)

    def rows_of(self, update: Update, processed: Processed) -> RowsToWrite:
        if update.input is None:
            return super().rows_of(update, processed)
        task = update.input.operator.task_id
        name = update.input.key
        own = self.begun.attempt
        if task not in self.phase.inside:
            return super().rows_of(update, processed)
        if task in self.phase.committers:
            area = self.area.kept
            left = newest_outputs(area, self.spec.topology, own.txid, task, own.birth)
            values = [left[name].to_json()] if name in left else []
            return rows_to_write(update, values, area, own)
        value = compat.pull(self.ti, task, name)
        self._check_inside(task, name, value)
        if value is None and self.begun.metadata is not None:
            check_empty(update, own)
        return rows_to_write(update, [] if value is None else [value], self.area, own)

    def _check_inside(self, task: str, name: str, value: Any) -> None:
        """Refuse output from an earlier attempt. Only an XCom that the task itself has pushed names its attempt."""
        own = self.begun.attempt
        found = compat.pull(self.ti, task, INSIDE_KEY)
        same = isinstance(found, dict) and (found["txid"], found["attempt"]) == (
            own.txid,
            own.attempt,
        )
        if same and (
            name != RETURN_KEY or is_ref(value) or found["digest"] == xcom_fingerprint(value)
        ):
            return
        raise StagingError(
            output=name,
            task=task,
            txid=own.txid,
            attempt=own.attempt,
            problem="its XCom is not the output of the task in this attempt",
            remedy=f"Clear task {task}.",
        )

    # --- the last task: marks ---------------------------------------------------------------------------------------

    def mark_in_phase(self) -> None:
        """Mark the commit. Every task of the phase must have succeeded under the same grant.

        :raises PhaseIncomplete: a task of the phase has not succeeded, or a committer wrote under another grant.
        """
        shared = self.read_shared()
        grant = grant_of(shared, self.spec.topology)
        if grant is None:
            return
        completion = self.complete()
        if completion is Completion.OVER:  # An earlier try has marked the commit.
            return
        if completion is not Completion.READY:
            raise self.incomplete("a task before the commit phase runs again", self.phase.acquire)
        self._check_states()
        written = {name: Written(**each) for name, each in self._collected(shared).items()}
        written = _marked(written, shared.get("left", ()))
        self.after(self.mark(self.mark_step(grant, written)))

    def _collected(self, shared: Any) -> dict[str, Any]:
        """Return how many rows all committers have written, by state, as JSON.

        :raises PhaseIncomplete: a committer wrote under another grant.
        """
        found = dict[str, Any]()
        for task in self.phase.committers:
            wrote = compat.pull(self.ti, task)
            if not isinstance(wrote, dict) or wrote.get("token") != shared["token"]:
                if task in shared["healed"]:
                    found |= shared["written"][task]
                    continue
                raise self.incomplete(
                    f"{task} has not written with the grant of this commit phase", task
                )
            found |= wrote["written"]
        return found

    def _check_states(self) -> None:
        states = compat.instance_states(self.ti, self.phase.inside, self.phase.mapped)
        for (task, index), state in sorted(states.items()):
            left_out = task not in self.phase.committers and compat.is_left_out(state)
            if state != "success" and not left_out:
                name = task if index < 0 else f"{task}[{index}]"
                raise self.incomplete(f"{name} is {state or 'not run'}", task)

    # --- what the first task has shared -----------------------------------------------------------------------------

    def read_shared(self) -> Any:
        """Read the XCom that the first task of the phase shared.

        :raises PhaseIncomplete: the first task shared nothing.
        """
        acquire = self.phase.acquire
        shared = compat.pull(self.ti, acquire)
        if not isinstance(shared, dict):
            raise self.incomplete(f"{acquire} has not taken the turn", acquire)
        if not shared.get("final"):
            self.epoch = shared["token"]["epoch"]
        return shared

    def shared_grant(self) -> Grant | None:
        """Read the grant that the first task of the phase shared. Return None if the transaction was already final.

        :raises PhaseIncomplete: the first task shared nothing.
        """
        return grant_of(self.read_shared(), self.spec.topology)


def grant_of(shared: Any, topology: str) -> Grant | None:
    """Return the grant that is stored in the first task's XCom, or None if the transaction was already final."""
    if shared.get("final"):
        return None
    token = Token.from_json(shared["token"])
    claim = Receipt.from_json(json.loads(shared["claim"]))
    return Grant(topology, shared["incarnation"], token, shared["last"], claim=claim)
