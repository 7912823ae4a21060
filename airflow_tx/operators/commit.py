"""The committer: waits for its turn, updates the states, marks the commit. Source: protocol.md §§2, 4, 7."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from airflow_tx.commit.update import Update, checked_updates
from airflow_tx.config import Settings
from airflow_tx.operators.turn import InTurnOperator, final_errors, note_commit, push_new_values, wait_for_turn
from airflow_tx.spec import COMMIT_KEY, begun_by, spec_of

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import PlainXComArg


class CommitOperator(InTurnOperator):
    """Commits the run's transaction: one at a time, in the order of their txids, exactly once.

    Values of a transaction are visible in a state a moment before the transaction is marked as committed.
    Its asset event carries txid and attempt; it is emitted at least once.

    New values that an update names are outputs: ``commit.output["name"]``, for tasks after it.

    :param updates: what to add to which state, see `persistent_aggregate`; none: the order of commits is all it gives.
    """

    template_fields: Sequence[str] = ("inputs",)

    def __init__(self, *, updates: Sequence[Update] = (), **kwargs: Any) -> None:
        updates = checked_updates(updates)  # before the DAG knows of the task
        super().__init__(**kwargs)
        self.updates = updates
        # Airflow finds tasks to be upstream in template fields only.
        self.inputs = [getattr(update, "input", None) for update in self.updates]

    @property
    def output(self) -> PlainXComArg:
        """The new values that an update leaves: ``commit.output["name"]``."""
        return cast("PlainXComArg", super().output)

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Nothing: what is rendered before the turn may not be what was acked, and rows are no text for the UI."""

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Commit, or defer until the turn is near; in a commit phase, write.

        :raises AirflowSkipException: a person has it skipped.
        :raises AirflowFailException: the ledger or a state refuses, and would again.
        """
        from airflow_tx.commit.commit import Commit
        from airflow_tx.commit.turn import commit_in_turn

        spec, ti = spec_of(context["dag"]), context["ti"]
        if spec.phase is not None:
            from airflow_tx.operators.commit_phase import write_in_phase

            return write_in_phase(context, self.updates, self.log)
        begun = begun_by(ti, spec)
        with final_errors(), spec.store() as store:
            commit = Commit(spec, begun, self.updates, spec.ledger(store), ti, self.log)
            context[COMMIT_KEY] = commit  # type: ignore[literal-required]
            line = commit_in_turn(commit, store, patience=Settings.load().warm_wait)
        if line is not None:
            wait_for_turn(self, spec, context, line)
        push_new_values(ti, commit.new_values)
        note_commit(self, context, spec, begun)
        return None
