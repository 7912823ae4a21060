"""The committer: waits for its transaction's turn, updates the states, marks the commit. Source: PROTOCOL §§2, 4, 7."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx.config import Settings
from airflow_tx.errors import (
    FenceOutranked,
    IncompleteBatch,
    Outranked,
    Refused,
    SkippedTransaction,
    StagingError,
    StateError,
    StateUnavailable,
)
from airflow_tx.operators.spec import Payload, TransactionSpec, spec_of
from airflow_tx.operators.updates import Update

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.operators.turn import Line

# Another try may have what this one was refused: it outranks in turn, or finds the transaction committed, or the ack
# of a task that Airflow knows to have succeeded a moment before the ledger does, or the output of one that works again.
_TRY_AGAIN = (StateUnavailable, FenceOutranked, Outranked, IncompleteBatch, StagingError)


class CommitOperator(BaseOperator):
    """Commits the run's transaction: one at a time, in the order of their txids, exactly once.

    Values of a transaction are visible in a state a moment before the transaction is marked as committed.
    Its asset event carries txid and attempt; it is emitted at least once.

    :param updates: what to add to which state, see `persistent_aggregate`; none: the order of commits is all it gives.
    :param retries: every line of it may be killed and run again.
    """

    template_fields: Sequence[str] = ("inputs",)
    ui_color = "#cfe2ff"

    def __init__(
        self,
        *,
        updates: Sequence[Update] = (),
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=2),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.updates = tuple(updates)
        # Airflow finds tasks to be upstream in template fields only.
        self.inputs = [getattr(update, "input", None) for update in self.updates]

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Nothing: what is rendered before the turn may not be what was acked, and rows are no text for the UI."""

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Commit, or defer until the turn is near; in a commit phase, write.

        :raises AirflowSkipException: a person has it skipped.
        :raises AirflowFailException: the ledger or a state refuses, and would again.
        """
        from airflow_tx.operators.committing import Commit
        from airflow_tx.operators.waiting import commit_in_turn

        spec, ti = spec_of(context["dag"]), context["ti"]
        if spec.phase is not None:
            from airflow_tx.operators.phase import write_in_phase

            return write_in_phase(context, self.updates, self.log)
        payload = Payload.of_run(ti, spec)
        with final_errors(), spec.store() as store:
            commit = Commit(spec, payload, self.updates, spec.ledger(store), ti, self.log)
            line = commit_in_turn(commit, store, patience=Settings.load().warm_wait)
        if line is not None:
            wait_for_turn(self, spec, context, line)
        told_of_commit(self, context, spec, payload)
        return None

    def execute_turn(self, context: Context, event: dict[str, Any] | None = None) -> None:
        """Called when the turn is near, or when this run is to give up its run slot."""
        from airflow_tx.operators.yielding import give_way

        if event and "yield" in event:
            spec = spec_of(context["dag"])
            txid = Payload.of_run(context["ti"], spec).txid
            give_way(spec, context, blocking=event["yield"], txid=txid, log=self.log)
        self.execute(context)


@contextmanager
def final_errors() -> Iterator[None]:
    """What another try would be refused again ends the task at once.

    :raises AirflowSkipException, AirflowFailException: in place of those.
    """
    try:
        yield
    except _TRY_AGAIN:
        raise
    except SkippedTransaction as error:
        raise AirflowSkipException(str(error)) from None
    except (Refused, StateError) as error:
        raise AirflowFailException(str(error)) from None


def wait_for_turn(operator: Any, spec: TransactionSpec, context: Context, line: Line) -> NoReturn:
    """Defer until the turn is near; the operator goes on in its `execute_turn`."""
    from airflow_tx.operators.turn import standing
    from airflow_tx.operators.yielding import slots_of
    from airflow_tx.triggers.turn import TurnTrigger

    trigger = TurnTrigger(
        zookeeper_conn_id=spec.conn_id,
        root=spec.paths.root,
        topology=spec.topology,
        txid=line.txid,
        op=line.op,
        mapped=sorted(spec.mapped),
        hold=Settings.load().min_deferral,
        slots=slots_of(spec, context, txid=line.txid),
        waited=standing(line),
    )
    operator.defer(trigger=trigger, method_name="execute_turn")
    raise AssertionError("defer returned")


def told_of_commit(operator: Any, context: Context, spec: TransactionSpec, payload: Payload) -> None:
    """Let the asset events of the task carry txid and attempt."""
    for outlet in operator.outlets:
        if isinstance(outlet, Asset):
            extra = context["outlet_events"][outlet].extra
            extra.update(topology=spec.topology, txid=payload.txid, attempt=payload.attempt)
