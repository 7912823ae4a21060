"""The first and the last task of a commit phase, and what happens around those between."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx import compat
from airflow_tx.errors import FailedBatch, Refused, RowsRefused
from airflow_tx.operators.commit import (
    InTurnOperator,
    RetriedOperator,
    commit_case,
    final_errors,
    note_commit,
    note_commit_failure,
)
from airflow_tx.operators.lineage import LineageOperator
from airflow_tx.processing.stale_input import check_arguments
from airflow_tx.spec import begun_by, spec_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.commit.update import Update


class AcquireTurnOperator(InTurnOperator):
    """Takes the turn to commit for the tasks of a commit phase; made by `commit_phase`, never by hand."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Raise every fence, or defer until the turn is near.

        :raises AirflowSkipException: a person has it skipped.
        :raises AirflowFailException: the ledger or a state refuses, and would again.
        """
        from airflow_tx.commit.phase import FIRST_OF_PHASE

        return self.take_turn(context, _updates(context), FIRST_OF_PHASE).left


class MarkCommittedOperator(RetriedOperator, LineageOperator):
    """Marks the commit if every task of the phase has succeeded, else fails; made by `commit_phase`, never by hand.

    Its asset event carries topology, txid and attempt. There is one for each commit, however often the run is cleared.
    """

    ui_color = "#cfe2ff"

    def execute(self, context: Context) -> None:
        """Mark.

        :raises AirflowFailException: a task of the phase has failed; naming it.
        """
        from airflow_tx.commit.phase import mark_in_phase

        with final_errors(), commit_case(context, _updates(context), self.log) as case:
            is_first = case.ledger.status(case.begun.txid) is not None
            rows = mark_in_phase(case)
            note_commit(self, context, case, is_first=is_first)
        self.note_lineage(case.spec.topology, case.begun, rows)


def _updates(context: Context) -> tuple[Update, ...]:
    """Give the updates of all committers of the phase."""
    dag: Any = context["dag"]
    phase = spec_of(dag).phase
    assert phase is not None
    return tuple(update for task in phase.committers for update in dag.get_task(task).updates)


# --- around any other task of the phase --------------------------------------------------------------------------


def before_inside(context: Context) -> None:
    """Run before a task of the phase: it works in the commit phase, or not at all.

    :raises AirflowSkipException: the transaction is committed.
    :raises AirflowFailException: another grant has taken the turn.
    """
    from airflow_tx.commit.phase import grant_of, incomplete, read_shared
    from airflow_tx.processing.task import Processing

    check_arguments(context["task"], Processing.of(context).attempt)
    with commit_case(context, (), None) as case:
        spec = case.spec
        assert spec.phase is not None
        try:
            grant = grant_of(read_shared(case), spec.topology)
            held = grant is None or case.ledger.holds(grant.token)
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        if grant is None:
            raise AirflowSkipException(
                f"Transaction {case.begun.txid} is already committed: nothing to do."
            )
        if not held:
            lost = incomplete(
                case, "the turn was taken again since this task was scheduled", spec.phase.acquire
            )
            raise AirflowFailException(str(lost))


def after_inside(context: Context, result: Any = None) -> None:
    """Run after a task of the phase: note of which attempt its result is."""
    from airflow_tx.commit.phase import INSIDE_KEY
    from airflow_tx.processing.outputs import xcom_fingerprint
    from airflow_tx.processing.passed_on import check_returned
    from airflow_tx.protocol.attempt import TaskTry

    ti = context["ti"]
    spec = spec_of(context["dag"])
    own = begun_by(ti, spec)
    task = TaskTry(ti.task_id, compat.map_index(ti), compat.task_try(ti))
    check_returned(result, spec, task, own.attempt)
    note = {"txid": own.txid, "attempt": own.attempt.attempt, "digest": xcom_fingerprint(result)}
    ti.xcom_push(key=INSIDE_KEY, value=note)


def hook_up_inside(task: Any) -> None:
    """Bind a task of any operator to the phase that it stands in.

    The ledger does not learn that it ends well: the last task of the phase checks the states of the others.
    """
    compat.add_hooks(
        task,
        before=before_inside,
        after=after_inside,
        failed=note_commit_failure,
        final=(FailedBatch, RowsRefused),
    )
