"""What our tasks have in common, and those that wait for the turn to commit: deferring, failing, noting the commit.

Source: protocol.md §§2, 6.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
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
from airflow_tx.processing.task import failure_reason
from airflow_tx.spec import COMMIT_KEY, TransactionSpec, begun_by, spec_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.commit.commit import Commit
    from airflow_tx.commit.turn import WaitingLine
    from airflow_tx.protocol.answers import Begun

log = logging.getLogger(__name__)

# Another try may have what this one was refused: it outranks in turn, or finds the transaction committed, or the ack
# of a task that Airflow knows to have succeeded a moment before the ledger does, or the output of one that works again.
_TRY_AGAIN = (StateUnavailable, FenceOutranked, Outranked, IncompleteBatch, StagingError)


def note_commit_failure(context: Context) -> None:
    """Run when a task that commits, or one of a commit phase, has failed and is not tried again."""
    from airflow_tx.commit.run_slots import Yielded
    from airflow_tx.protocol import commit

    if isinstance(context.get("exception"), Yielded):
        return
    spec, ti = spec_of(context["dag"]), context["ti"]
    attempt = begun_by(ti, spec).attempt
    known: Commit | None = context.get(COMMIT_KEY)  # type: ignore[assignment]
    try:
        with spec.store() as store:
            spec.ledger(store).run(
                commit.note_commit_failed, attempt, known.epoch if known else None, failure_reason(context)
            )
    except Refused as error:
        log.info("%s", error)


class RetriedOperator(BaseOperator):
    """A task that is tried again: every line of it may be killed and run again."""

    def __init__(self, *, retries: int = 3, retry_delay: timedelta = timedelta(seconds=2), **kwargs: Any) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)


class InTurnOperator(RetriedOperator):
    """A task that defers by `wait_for_turn` until the turn is near, and is then executed again."""

    ui_color = "#cfe2ff"

    def execute_turn(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Run when the turn is near, or when this run is to give up its run slot."""
        from airflow_tx.commit.run_slots import yield_slot

        if event and "yield" in event:
            spec = spec_of(context["dag"])
            txid = begun_by(context["ti"], spec).txid
            yield_slot(spec, context, blocking=event["yield"], txid=txid, log=self.log)
        return self.execute(context)


@contextmanager
def final_errors() -> Iterator[None]:
    """End the task at once by what another try would be refused again.

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


def wait_for_turn(operator: Any, spec: TransactionSpec, context: Context, line: WaitingLine) -> NoReturn:
    """Defer until the turn is near; the operator goes on in its `execute_turn`."""
    from airflow_tx.commit.run_slots import slots_of
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
        waited=line.waited_for,
    )
    operator.defer(trigger=trigger, method_name="execute_turn")
    raise AssertionError("defer returned")


def push_new_values(ti: Any, refs: Mapping[str, Any]) -> None:
    """Push references to what the updates have left for later tasks, one XCom each."""
    for name, ref in refs.items():
        ti.xcom_push(key=name, value=ref)


def note_commit(operator: Any, context: Context, spec: TransactionSpec, begun: Begun) -> None:
    """Let the asset events of the task carry txid and attempt."""
    for outlet in operator.outlets:
        if isinstance(outlet, Asset):
            extra = context["outlet_events"][outlet].extra
            extra.update(topology=spec.topology, txid=begun.txid, attempt=begun.attempt.attempt)
