"""A commit by several tasks: the first takes the turn, others write, the last one marks.

The task that takes the turn raises every fence, which undoes what an earlier grant wrote. A committer that has
succeeded under that one does not run again when only another task is cleared, so its update is written again at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from airflow_tx import compat
from airflow_tx.commit.case import CommitCase, CommitPart, CommitPorts, Prepared, Wrote, ports_of
from airflow_tx.commit.commit import after, committed_before, complete, mark_step, rows_of
from airflow_tx.commit.entry import no_contribution, write_entry
from airflow_tx.commit.handoff import NewValues, outranked_explained
from airflow_tx.commit.restatement import check_taken, differences, shared_differences
from airflow_tx.commit.rows import RowsToWrite, StagedRows, check_empty, rows_to_write
from airflow_tx.commit.update import Update
from airflow_tx.commit.write import (
    output_digests,
    take_other_output,
    write_update,
)
from airflow_tx.errors import Outranked, PhaseIncomplete, StagingError
from airflow_tx.failpoints import failpoint
from airflow_tx.processing.outputs import RETURN_KEY, is_ref, xcom_fingerprint
from airflow_tx.protocol.answers import AlreadyCommitted, Granted, Processed
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.receipt import Written
from airflow_tx.spark.new_values import newest_outputs
from airflow_tx.spec import PhaseSpec
from airflow_tx.state.api import Grant, StateKind

INSIDE_KEY = "airflow_tx_inside"
"""XCom in which a task of the phase says of which attempt its result is, and what it is."""


# --- what the first task shares with the others -------------------------------------------------------------------


def grant_of(shared: Any, topology: str) -> Grant | None:
    """Return the grant that the phase's first task shared; None: the transaction was final already."""
    if shared.get("final"):
        return None
    token = Token.from_json(shared["token"])
    return Grant(topology, shared["incarnation"], token, shared["last"], claim=shared["claim"])


def _as_shared(
    grant: Grant,
    healed: Mapping[str, Mapping[str, Any]],
    differences: Mapping[str, Any],
) -> dict[str, Any]:
    """Describe the grant for the other tasks of the phase.

    :param healed: by committer that is not to run again, what was written for it.
    :param differences: see `shared_differences`.
    """
    return {
        "token": grant.token.to_json(),
        "incarnation": grant.incarnation,
        "last": dict(grant.last_txids),
        "healed": list(healed),
        "written": healed,
        "claim": grant.claim,
        **({"differences": differences} if differences else {}),
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
        or (
            (case.spec.journal_time or case.begun.replaces is not None)
            and not no_contribution(update, inside)
        )
        else ()
        for update in case.updates
    ]
    replacing = differences(case, rows, staged=True)
    journal = write_entry(case, processed, rows)
    return Prepared(processed, rows, output_digests(case.updates, rows), journal, replacing)


def _share_turn(
    case: CommitCase, ports: CommitPorts, prepared: Prepared, granted: Granted
) -> dict[str, Any]:
    """Raise every fence, and write again for committers that are not to run again."""
    grant = granted.grant
    ports.log("Transaction %s of %s commits", case.begun.attempt, case.spec.topology)
    failpoint("commit.after_acquire", **case.where)
    with outranked_explained(case.ledger, case.states, grant):
        for state in case.states.values():
            state.raise_fence(grant)
        take_other_output(case.ledger, case.states, granted, prepared.outputs)
        check_taken(case, prepared.replacing.differences)
        shared = shared_differences(prepared.replacing.differences)
        healed = _heal(case, prepared.processed, grant, shared)
    return _as_shared(grant, healed, shared)


FIRST_OF_PHASE = CommitPart(_read_before_phase, _share_turn, over=lambda _: {"final": True})
"""The work of the first task of a phase with the turn."""


def _heal(
    case: CommitCase, processed: Processed, grant: Grant, shared: Mapping[str, Any]
) -> dict[str, dict[str, Any]]:
    """Write again what committers that are not to run again had written under an earlier grant."""
    phase = _phase(case)
    updates = {task: tuple(case.ti.task.dag.get_task(task).updates) for task in phase.committers}
    inputs = {
        task: {update.input.operator.task_id for update in own}.intersection(phase.inside)
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
        healed[task] = {name: each.to_json() for name, each in wrote.written.items()}
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
        "written": {name: each.to_json() for name, each in wrote.written.items()},
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
    written = dict[str, Written]()
    for update in updates:
        failpoint("commit.before_write", state=update.state.name, **case.where)
        # An earlier try of this committer may have written keys that this one does not.
        update.state.undo(grant)
        done = write_update(
            update,
            grant,
            rows(update),
            dag_file=case.run.dag_file,
            log=case.log,
            output=staged.of(update),
        )
        written[update.state.name] = done
        case.log.info("State %s: %s keys", update.state.name, done.keys)
    if staged.outputs and not case.ledger.holds(grant.token):
        raise Outranked(txid=grant.txid, token=str(grant.token), found="a later grant, or a commit")
    return Wrote(written, staged.finish())


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
    ports = ports_of(case)
    after(case, ports, ports.run(mark_step(case, grant, processed, written)))
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
