"""A commit, from top to bottom: complete, read, acquire, write, mark, after. Nothing here waits; its drivers do.

Each step is a function of a `CommitCase` and of what the step before it gave. Three drivers call the steps: a committer
in its turn (`turn.py`), the tasks of a commit phase (below), and a lane (`coordinator/lane_tasks.py`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
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
from airflow_tx.state import Grant, QueryableState, StateKind, raise_fences
from airflow_tx.transaction.commit import handoff
from airflow_tx.transaction.commit.case import (
    CommitCase,
    CommitPart,
    CommitPorts,
    InstanceStates,
    Prepared,
    Wrote,
    ports_of,
)
from airflow_tx.transaction.commit.check import (
    ERROR,
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
    outranked_explained,
    take_skip,
)
from airflow_tx.transaction.commit.rejected import check_aside, max_rejected_check, rows_rejected
from airflow_tx.transaction.commit.restatement import (
    check_taken,
    differences,
    is_kept,
    shared_differences,
    write_entry,
)
from airflow_tx.transaction.commit.run_slots import TaskRuns
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.commit.write import (
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
from airflow_tx.transaction.metrics import send_commit
from airflow_tx.transaction.processing.begin import note_committed
from airflow_tx.transaction.processing.outputs import RETURN_KEY, is_ref, xcom_fingerprint
from airflow_tx.transaction.spec import PhaseSpec

# --- commit -------------------------------------------------------------------------------------------------------


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
        """Read the acked output and check it, unless that is done.

        :raises StateError, StagingError, ChecksFailed: it cannot be committed.
        """
        assert self.processed is not None
        if self.prepared is None:
            acks = self.processed.acks
            if any(each["name"].startswith(ASIDE) for ack in acks.values() for each in ack.outputs):
                check_aside(self.case, acks)
            read = self.part.read(self.case, self.processed)
            self.prepared = replace(read, notes=check_outputs(self.case, self.processed))
        return self.prepared

    def try_to_commit(self) -> bool:
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
        """Use the turn that is taken. Raises as `try_to_commit`."""
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
    return case.ledger.processed.bind(
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
    journal = write_entry(case, processed, rows, left=replacing.left)
    # A replay is compared by the output: a difference of two outputs that are equal may have other digits.
    return Prepared(processed, rows, output_digests(case.updates, rows), journal, replacing)


def rows_of(case: CommitCase, update: Update, processed: Processed) -> RowsToWrite:
    """Read the acked output of one update."""
    attempt = case.begun.attempt
    if update.input is None:
        return rows_rejected(update, processed.acks, case.area, attempt)
    empty = case.begun.metadata is None  # a replay that found no rows
    values = values_of(update, processed.acks, attempt, case.run.output, empty=empty)
    return rows_to_write(update, values, case.area, attempt)


def check_outputs(case: CommitCase, processed: Processed) -> dict[str, Any]:
    """Run the checks over the acked outputs: what they found, as the receipt keeps it.

    A restatement is checked by its whole output: by the rows that its tasks made.

    :raises ChecksFailed: some failed, and no person accepted that for this output.
    :raises ConfigError: a check cannot be run.
    """
    checks = list(case.checks)
    if case.spec.max_rejected is not None:
        checks.append(max_rejected_check(case, case.spec.max_rejected))
    if not checks:
        return {}
    results = {each.name: CheckNote(True) for each in checks}
    commit = CheckedCommit(processed, partial(_checked, case, processed))
    findings = list(find_all(checks, commit))
    if not findings:
        return results
    own = case.begun.attempt
    accepted = _accepted_checks(case)
    failed = list[FailedCheck]()
    for each in findings:
        each.log_samples()
        results[each.check.name] = each.note
        if each.digest and (known := accepted.get((each.check.name, each.digest))):
            results[each.check.name] = structs.replace(each.note, accepted=known.accepted)
        elif each.check.severity == ERROR:
            failed.append(each)
        else:
            case.log.warning("Transaction %s of %s: %s", own, case.spec.topology, each.text)
    if failed:
        raise ChecksFailed(
            topology=case.spec.topology,
            txid=own.txid,
            attempt=own.attempt,
            problem="; ".join(each.text for each in failed),
            names=[each.check.name for each in failed],
            checks={each.check.name: each.note for each in failed},
        )
    return results


def _accepted_checks(case: CommitCase) -> dict[tuple[str, str], CheckNote]:
    """Find the accepted checks, by name and digest: of this transaction, and of the one that it restates."""
    record = case.ledger.status(case.begun.txid)
    replaced = case.begun.replaces
    history = None if replaced is None else case.ledger.outcome(replaced.txid)
    receipt = None if history is None else history.receipt
    before = {} if receipt is None else receipt.checks or {}
    own = {} if record is None else record.accepted_checks
    return {
        (name, each.digest): each
        for checks in (before, own)
        for name, each in checks.items()
        if each.accepted is not None
    }


def _checked(case: CommitCase, processed: Processed, output: Any) -> OutputRows:
    own = case.begun.attempt
    values = acked_values(output, processed.acks, own, case.run.output)
    table = case.spec.tables.get((output.operator.task_id, output.key))
    return output_rows(values, case.area, own, table)


# --- acquire: the turn --------------------------------------------------------------------------------------------


def acquire_step(case: CommitCase, prepared: Prepared) -> BoundStep[AcquireAnswer]:
    """Make the step that takes the turn."""
    failpoint("commit.before_acquire", **case.where)
    processed = prepared.processed
    request = AcquireRequest(
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
        own=prepared.replacing.own,
        checks=prepared.notes,
    )
    return case.ledger.acquire.bind(request)


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
            written = write(case, granted, prepared, staged)
        for name, each in written.items():
            ports.log("State %s: %s keys", name, each.keys)
        left = staged.finish() if staged.outputs else {}
        committed = ports.mark(mark_step(case, grant, prepared.processed, written))
    after(case, ports, committed)
    return left


def write(
    case: CommitCase, granted: Granted, prepared: Prepared, staged: NewValues
) -> dict[str, Written]:
    """Write every update; what was written, per state.

    :raises NotTakenBack: a state lacks a key that a restatement takes back.
    """
    grant = granted.grant
    found = _rows_of_updates(case, prepared)
    moment = moment_of(found)
    inside = [each.state for each in moment]
    others = [each for each in found if each not in moment]
    outside = [each.state for each in others]
    # Every fence is raised before the first write, or with it: an outranked attempt may still write elsewhere.
    raise_fences(outside, grant)
    take_other_output(case.ledger, outside, granted, prepared.outputs)
    check_taken(outside, prepared.replacing.differences)
    if len(moment) > 1:
        names = ", ".join(state.name for state in inside)
        case.log.info("One transaction of the database writes %s", names)
    _before_writes(case, moment)
    written = write_moment(moment, grant, staged)
    # The fences have decided, so it is noted behind them.
    take_other_output(case.ledger, inside, granted, prepared.outputs)
    for each in sorted(others, key=attrgetter("for_good")):
        _before_writes(case, [each])
        own = grant
        output = new_values_of(each.update, staged)
        if each.require is not None:
            own = write_instead(each.state, grant, each.instead, output)
        written[each.state.name] = own.written + write_update(
            each.update, own, each.rows, dag_file=case.run.dag_file, log=case.log, output=output
        )
    return _marked(written, prepared.replacing.left)


def _rows_of_updates(case: CommitCase, prepared: Prepared) -> list[UpdateRows]:
    """Give what is written of each update: of a restatement the difference, nothing to a state that is passed over."""
    replacing = prepared.replacing
    found = list[UpdateRows]()
    for update, rows in zip(case.updates, prepared.rows, strict=True):
        name = update.state.name
        given = UpdateRows(update, () if name in replacing.left else rows)
        if (difference := replacing.differences.get(name)) is not None:
            assert isinstance(update.state, QueryableState)
            require = partial(difference.check_taken, update.state)
            given = UpdateRows(update, difference.rows, difference.instead, require)
        found.append(replace(given, for_good=_cannot_be_undone(case, update)))
    return found


def _before_writes(case: CommitCase, found: Sequence[UpdateRows]) -> None:
    for each in found:
        failpoint("commit.before_write", state=each.state.name, **case.where)


def _cannot_be_undone(case: CommitCase, update: Update) -> bool:
    """Whether nothing brings back what this update takes out, so that it is written last of its committer."""
    return case.begun.replaces is not None and update.state.takes_back_by_txid


def _marked(written: Mapping[str, Written], left: Collection[str]) -> dict[str, Written]:
    """Say of states that were passed over that they were."""
    return {
        name: structs.replace(each, left=True) if name in left else each
        for name, each in written.items()
    }


def mark_step(
    case: CommitCase, grant: Grant, processed: Processed, written: Mapping[str, Written]
) -> BoundStep[Committed]:
    """Make the step that marks the commit and passes the turn on."""
    failpoint("commit.before_mark", **case.where)
    return case.ledger.commit.bind(
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
        began=began(case.states, grant),
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
    kept = case.area.kept
    topology = case.spec.topology
    wanted = {update.new_values for update in case.updates} - {None}
    found = newest_outputs(kept, topology, own.txid, case.run.task_id, own.birth) if wanted else {}
    case.log.info("Transaction %s of %s is already committed: nothing to do", own.txid, topology)
    note_committed(case.spec, case.begun)
    return {name: ref.to_json() for name, ref in found.items() if name in wanted}


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


# --- phase --------------------------------------------------------------------------------------------------------
# A commit by several tasks: the first takes the turn, others write, the last one marks.
#
# The task that takes the turn raises every fence, which undoes what an earlier grant wrote. A committer that has
# succeeded under that one does not run again when only another task is cleared. So its update is written again at
# once.


INSIDE_KEY = "airflow_tx_inside"
"""XCom in which a task of the phase says of which attempt its result is, and what it is."""


# --- what the first task shares with the others -------------------------------------------------------------------


def grant_of(shared: Any, topology: str) -> Grant | None:
    """Return the grant that the phase's first task shared; None: the transaction was final already."""
    if shared.get("final"):
        return None
    token = Token.from_json(shared["token"])
    claim = Receipt.from_json(json.loads(shared["claim"]))
    return Grant(topology, shared["incarnation"], token, shared["last"], claim=claim)


def _as_shared(
    grant: Grant,
    healed: Mapping[str, Mapping[str, Any]],
    differences: Mapping[str, Any],
    left: Collection[str],
) -> dict[str, Any]:
    """Describe the grant for the other tasks of the phase.

    :param healed: by committer that is not to run again, what was written for it.
    :param differences: see `shared_differences`; `left`: the states that are passed over.
    """
    return {
        "token": grant.token.to_json(),
        "incarnation": grant.incarnation,
        "last": dict(grant.last_txids),
        "healed": list(healed),
        "written": healed,
        "claim": grant.claim and grant.claim.text,
        **({"differences": differences} if differences else {}),
        **({"left": sorted(left)} if left else {}),
    }


def read_shared(case: CommitCase) -> Any:
    """Read what the first task of the phase shared.

    :raises PhaseIncomplete: nothing.
    """
    acquire = _phase(case).acquire
    shared = compat.pull(case.ti, acquire)
    if not isinstance(shared, dict):
        raise incomplete(case, f"{acquire} has not taken the turn", acquire)
    if not shared.get("final"):
        case.known.epoch = shared["token"]["epoch"]
    return shared


def incomplete(case: CommitCase, problem: str, task: str) -> PhaseIncomplete:
    """Make the error that names the task to clear."""
    own = case.begun.attempt
    return PhaseIncomplete(txid=own.txid, attempt=own.attempt, problem=problem, task=task)


def _phase(case: CommitCase) -> PhaseSpec:
    assert case.spec.phase is not None
    return case.spec.phase


# --- the first task: takes the turn, with the updates of all committers -------------------------------------------


def _read_before_phase(case: CommitCase, processed: Processed) -> Prepared:
    """Read the data that counts before the turn: the rows of transactional states, and of the journal entry."""
    inside = _phase(case).inside
    rows: list[RowsToWrite] = [
        _rows_in_phase(case, update, processed)
        if update.state.kind is StateKind.TRANSACTIONAL
        or ((case.spec.journal_time or case.begun.replaces is not None) and is_kept(update, inside))
        else ()
        for update in case.updates
    ]
    replacing = differences(case, rows, staged=True)
    journal = write_entry(case, processed, rows, left=replacing.left)
    return Prepared(processed, rows, output_digests(case.updates, rows), journal, replacing)


def _share_turn(
    case: CommitCase, ports: CommitPorts, prepared: Prepared, granted: Granted
) -> dict[str, Any]:
    """Raise every fence, and write again for committers that are not to run again."""
    grant = granted.grant
    ports.log("Transaction %s of %s commits", case.begun.attempt, case.spec.topology)
    failpoint("commit.after_acquire", **case.where)
    with outranked_explained(case.ledger, case.states, grant):
        states = list(case.states.values())
        raise_fences(states, grant)
        take_other_output(case.ledger, states, granted, prepared.outputs)
        check_taken(states, prepared.replacing.differences)
        left = prepared.replacing.left
        shared = shared_differences(prepared.replacing.differences) | dict.fromkeys(left)
        healed = _heal(case, prepared.processed, grant, shared)
    return _as_shared(grant, healed, shared, left)


FIRST_OF_PHASE = CommitPart(_read_before_phase, _share_turn, over=lambda _: {"final": True})
"""The work of the first task of a phase with the turn."""


def _heal(
    case: CommitCase, processed: Processed, grant: Grant, shared: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Write again what committers that are not to run again had written under an earlier grant."""
    phase = _phase(case)
    updates = {task: tuple(case.ti.task.dag.get_task(task).updates) for task in phase.committers}
    inputs = {
        task: {
            update.input.operator.task_id for update in own if update.input is not None
        }.intersection(phase.inside)
        for task, own in updates.items()
    }
    states = compat.task_states(
        case.ti, {*inputs, *(each for found in inputs.values() for each in found)}
    )
    healed = dict[str, dict[str, Any]]()
    for task, own in updates.items():
        # A committer whose input is made again has to run again, too: the last task names it.
        if any(states.get(each) != "success" for each in (task, *inputs[task])):
            continue
        case.log.info("What task %s wrote under an earlier grant is written again", task)
        rows = partial(_given, case, processed, shared)
        wrote = _write_own(case, own, rows, grant, task_id=task)
        healed[task] = to_builtins(wrote.written)
    return healed


# --- a committer: writes its own updates --------------------------------------------------------------------------


def write_in_phase(case: CommitCase) -> tuple[dict[str, Any] | None, dict[str, Any]]:
    """Write under the grant that the first task shared.

    :return: what the last task checks, None if the transaction was final before; and references to new values, by name.
    :raises Refused, StateError: nothing was written.
    """
    grant = grant_of(read_shared(case), case.spec.topology)
    if grant is None:
        return None, committed_before(case)
    wrote = write_under(case, grant)
    return {
        "token": grant.token.to_json(),
        "written": to_builtins(wrote.written),
    }, wrote.left


def write_under(case: CommitCase, grant: Grant) -> Wrote:
    """Write its updates under the grant of the phase; a retry does the same again.

    :return: nothing is written, if the transaction is final.
    :raises Refused, StateError: nothing was written.
    """
    # First, because this step knows whether the transaction was skipped, or is committed.
    processed = complete(case)
    if isinstance(processed, AlreadyCommitted):
        return Wrote({}, committed_before(case))
    if not isinstance(processed, Processed) or not case.ledger.holds(grant.token):
        raise Outranked(txid=grant.txid, token=str(grant.token), found="a later grant")
    with outranked_explained(case.ledger, case.states, grant):
        replacing = {} if case.begun.replaces is None else read_shared(case).get("differences", {})
        rows = partial(_given, case, processed, replacing)
        return _write_own(case, case.updates, rows, grant, task_id=case.run.task_id)


def _write_own(
    case: CommitCase,
    updates: Sequence[Update],
    rows: Callable[[Update], RowsToWrite],
    grant: Grant,
    *,
    task_id: str,
) -> Wrote:
    """Write the updates of one committer, and make its new values visible.

    All tries of a committer write under the one grant of the phase. A task that was declared dead may have looked them
    up when a later transaction had changed them, so they count only if the grant still holds afterwards.

    :raises Outranked: the grant does not hold any more.
    """
    staged = NewValues(case.area.kept, grant, task_id)
    found = [
        UpdateRows(each, rows(each), for_good=_cannot_be_undone(case, each)) for each in updates
    ]
    moment = [each for each in moment_of(found) if each.state.store_key is not None]
    written: dict[str, Written] = {}
    others = (each for each in found if each not in moment)
    for group in (moment, *([each] for each in sorted(others, key=attrgetter("for_good")))):
        _before_writes(case, group)
        # An earlier try of this committer may have written keys that this one does not. It may run still, and die after
        # it has undone the rows of a newer try: so one transaction undoes and writes.
        if all(each.fits() for each in group):
            written |= write_moment(group, grant, staged, raising=False)
            continue
        (each,) = group
        each.state.undo(grant)
        written[each.state.name] = write_update(
            each.update,
            grant,
            each.rows,
            dag_file=case.run.dag_file,
            log=case.log,
            output=new_values_of(each.update, staged),
        )
    for name, done in written.items():
        case.log.info("State %s: %s keys", name, done.keys)
    if staged.outputs and not case.ledger.holds(grant.token):
        raise Outranked(txid=grant.txid, token=str(grant.token), found="a later grant, or a commit")
    return Wrote(written, staged.finish() if staged.outputs else {})


# --- its rows: an update may take the output of a task inside the phase -------------------------------------------


def _given(
    case: CommitCase, processed: Processed, shared: Mapping[str, Any], update: Update
) -> RowsToWrite:
    """Give the difference that the first task has shared, else the output."""
    name = update.state.name
    if name not in shared:
        return _rows_in_phase(case, update, processed)
    ref = shared[name]
    own = case.begun.attempt
    return [] if ref is None else StagedRows(case.area, ref, update.state, own)


def _rows_in_phase(case: CommitCase, update: Update, processed: Processed) -> RowsToWrite:
    if update.input is None:
        return rows_of(case, update, processed)
    task = update.input.operator.task_id
    name = update.input.key
    own = case.begun.attempt
    phase = _phase(case)
    if task not in phase.inside:
        return rows_of(case, update, processed)
    if task in phase.committers:
        area = case.area.kept
        left = newest_outputs(area, case.spec.topology, own.txid, task, own.birth)
        values = [left[name].to_json()] if name in left else []
        return rows_to_write(update, values, area, own)
    value = compat.pull(case.ti, task, name)
    _check_inside(case, task, name, value)
    if value is None and case.begun.metadata is not None:
        check_empty(update, own)
    return rows_to_write(update, [] if value is None else [value], case.area, own)


def _check_inside(case: CommitCase, task: str, name: str, value: Any) -> None:
    """Refuse the output of an earlier attempt: only the XCom says of which one it is."""
    own = case.begun.attempt
    found = compat.pull(case.ti, task, INSIDE_KEY)
    fits = isinstance(found, dict) and (found["txid"], found["attempt"]) == (own.txid, own.attempt)
    if fits and (name != RETURN_KEY or is_ref(value) or found["digest"] == xcom_fingerprint(value)):
        return
    raise StagingError(
        output=name,
        task=task,
        txid=own.txid,
        attempt=own.attempt,
        problem="its XCom is not what the task gave in this attempt",
        remedy=f"Clear task {task}.",
    )


# --- the last task: marks -----------------------------------------------------------------------------------------


def mark_in_phase(case: CommitCase) -> int | None:
    """Make the transaction final, if every task of the phase has done its part under one grant.

    :return: the rows of the batch; None: they were not counted, or the transaction was final when the phase began.
    :raises PhaseIncomplete: a task inside has not succeeded, or a committer wrote under another grant.
    """
    shared = read_shared(case)
    grant = grant_of(shared, case.spec.topology)
    if grant is None:
        return None
    processed = complete(case)
    if isinstance(processed, AlreadyCommitted):  # an earlier try has marked it
        committed_before(case)
        return None
    if not isinstance(processed, Processed):
        raise incomplete(case, "a task before the phase works again", _phase(case).acquire)
    _check_states(case)
    written = {name: Written(**each) for name, each in _collected(case, shared).items()}
    written = _marked(written, shared.get("left", ()))
    ports = ports_of(case)
    after(case, ports, ports.mark(mark_step(case, grant, processed, written)))
    return processed.rows


def _collected(case: CommitCase, shared: Any) -> dict[str, Any]:
    """Collect what each committer wrote, per state and as JSON.

    :raises PhaseIncomplete: one of them wrote under another grant.
    """
    found = dict[str, Any]()
    for task in _phase(case).committers:
        wrote = compat.pull(case.ti, task)
        if not isinstance(wrote, dict) or wrote.get("token") != shared["token"]:
            if task in shared["healed"]:
                found |= shared["written"][task]
                continue
            raise incomplete(case, f"{task} has not written under the grant of this phase", task)
        found |= wrote["written"]
    return found


def _check_states(case: CommitCase) -> None:
    phase = _phase(case)
    states = compat.instance_states(case.ti, phase.inside, phase.mapped)
    for (task, index), state in sorted(states.items()):
        left_out = task not in phase.committers and compat.is_left_out(state)
        if state != "success" and not left_out:
            name = task if index < 0 else f"{task}[{index}]"
            raise incomplete(case, f"{name} is {state or 'not run'}", task)
