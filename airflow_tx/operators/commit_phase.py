"""The first and the last task of a commit phase, and what happens around those between."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx import compat
from airflow_tx.config import Settings
from airflow_tx.errors import FailedBatch, Refused
from airflow_tx.operators.turn import (
    InTurnOperator,
    RetriedOperator,
    final_errors,
    note_commit,
    note_commit_failure,
    push_new_values,
    wait_for_turn,
)
from airflow_tx.processing.task import check_arguments
from airflow_tx.spec import COMMIT_KEY, TransactionSpec, begun_by, spec_of

if TYPE_CHECKING:
    from collections.abc import Iterator

    from airflow.sdk import Context

    from airflow_tx.commit.update import Update


class AcquireTurnOperator(InTurnOperator):
    """Takes the turn to commit for the tasks of a commit phase; made by `commit_phase`, never by hand."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Raise every fence, or defer until the turn is near.

        :raises AirflowSkipException: a person has it skipped.
        :raises AirflowFailException: the ledger or a state refuses, and would again.
        """
        from airflow_tx.commit.phase import PhaseTurn
        from airflow_tx.commit.turn import commit_in_turn

        spec, ti = spec_of(context["dag"]), context["ti"]
        with final_errors(), spec.store() as store:
            turn = PhaseTurn(
                spec, begun_by(ti, spec), updates_of(context["dag"], spec), spec.ledger(store), ti, self.log
            )
            context[COMMIT_KEY] = turn  # type: ignore[literal-required]
            line = commit_in_turn(turn, store, patience=Settings.load().warm_wait)
        if line is not None:
            wait_for_turn(self, spec, context, line)
        return turn.shared()


class MarkCommittedOperator(RetriedOperator):
    """Marks the commit if every task of the phase has succeeded, else fails; made by `commit_phase`, never by hand.

    Its asset event carries txid and attempt; it is emitted at least once.
    """

    ui_color = "#cfe2ff"

    def execute(self, context: Context) -> None:
        """Mark.

        :raises AirflowFailException: a task of the phase has failed; naming it.
        """
        from airflow_tx.commit.phase import PhaseEnd

        spec = spec_of(context["dag"])
        with final_errors(), part(PhaseEnd, context, updates_of(context["dag"], spec), self.log) as end:
            end.run()
        note_commit(self, context, spec, end.begun)


def write_in_phase(context: Context, updates: Sequence[Update], log: Any) -> dict[str, Any] | None:
    """Write as a CommitOperator inside of a phase; the last task looks at what it returns.

    :raises AirflowFailException: the ledger or a state refuses, and would again.
    """
    from airflow_tx.commit.phase import PhaseWrite

    with final_errors(), part(PhaseWrite, context, updates, log) as own:
        wrote: dict[str, Any] | None = own.run()
        push_new_values(own.ti, own.new_values)
        return wrote


@contextmanager
def part(kind: type[Any], context: Context, updates: Sequence[Update], log: Any) -> Iterator[Any]:
    """Connect one task's part of the phase to the ledger as long as the block."""
    spec, ti = spec_of(context["dag"]), context["ti"]
    with spec.store() as store:
        made = kind(spec, begun_by(ti, spec), updates, spec.ledger(store), ti, log)
        context[COMMIT_KEY] = made  # type: ignore[literal-required]
        yield made


def updates_of(dag: Any, spec: TransactionSpec) -> tuple[Update, ...]:
    """Return the updates of all committers of the phase."""
    assert spec.phase is not None
    return tuple(update for task in spec.phase.committers for update in dag.get_task(task).updates)


# --- around any other task of the phase --------------------------------------------------------------------------


def before_inside(context: Context) -> None:
    """Run before a task of the phase: it works in the commit phase, or not at all.

    :raises AirflowSkipException: the transaction is committed.
    :raises AirflowFailException: another grant has taken the turn.
    """
    from airflow_tx.commit.phase import PhaseWrite, grant_of
    from airflow_tx.processing.task import Processing

    check_arguments(context["task"], Processing.of(context))
    with part(PhaseWrite, context, (), None) as own:
        try:
            grant = grant_of(own.read_shared(), own.spec.topology)
            held = grant is None or own.ledger.holds(grant.token)
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        if grant is None:
            raise AirflowSkipException(f"Transaction {own.begun.txid} is already committed: nothing to do.")
        if not held:
            lost = own.incomplete("the turn was taken again since this task was scheduled", own.phase.acquire)
            raise AirflowFailException(str(lost))


def after_inside(context: Context, result: Any = None) -> None:
    """Run after a task of the phase: note of which attempt its result is."""
    from airflow_tx.commit.phase import INSIDE_KEY
    from airflow_tx.processing.outputs import xcom_fingerprint

    ti = context["ti"]
    own = begun_by(ti, spec_of(context["dag"]))
    note = {"txid": own.txid, "attempt": own.attempt.attempt, "digest": xcom_fingerprint(result)}
    ti.xcom_push(key=INSIDE_KEY, value=note)


def hook_up_inside(task: Any) -> None:
    """Bind a task of any operator to the phase that it stands in.

    The ledger does not learn that it ends well: the last task of the phase checks the states of the others.
    """
    compat.add_hooks(task, before=before_inside, after=after_inside, failed=note_commit_failure, final=(FailedBatch,))
