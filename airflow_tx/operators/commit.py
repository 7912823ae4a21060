"""The committer waits for its turn, updates the states and marks the commit; what other tasks share with it.

Source: protocol.md §§2, 4, 6, 7.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NoReturn, cast

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx import compat
from airflow_tx.commit.update import Update, checked_updates
from airflow_tx.config import Settings
from airflow_tx.errors import (
    FenceOutranked,
    IncompleteBatch,
    InputSkipped,
    Outranked,
    Refused,
    SkippedTransaction,
    StagingError,
    StateError,
    StateUnavailable,
    TxError,
)
from airflow_tx.metrics import send_failure
from airflow_tx.operators.lineage import LineageOperator
from airflow_tx.processing.failure import advice_of, noted_reason, refusal_of
from airflow_tx.spec import COMMIT_KEY, TransactionSpec, begun_by, spec_of

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    from airflow_tx.commit.case import CommitCase, CommitPart
    from airflow_tx.commit.commit import Commit
    from airflow_tx.commit.turn import WaitingLine
    from airflow_tx.triggers.base import WaitTrigger

log = logging.getLogger(__name__)
_SKEW = timedelta(hours=1)  # between the clocks of a worker and of Airflow's API server

# Another try may succeed: it outranks in turn, or finds the transaction committed. Or it finds the ack of a task that
# Airflow knows to have succeeded a moment before the ledger does, or the output of a task that works again.
_TRY_AGAIN = (StateUnavailable, FenceOutranked, Outranked, IncompleteBatch, StagingError)


def note_commit_failure(context: Context) -> None:
    """Run when a task that commits, or one of a commit phase, has failed and is not tried again."""
    from airflow_tx.commit.run_slots import Yielded
    from airflow_tx.protocol import commit

    if isinstance(context.get("exception"), Yielded):
        return
    ti = context["ti"]
    spec = spec_of(context["dag"])
    attempt = begun_by(ti, spec).attempt
    case: CommitCase | None = context.get(COMMIT_KEY)  # type: ignore[assignment]
    refusal = refusal_of(context)
    try:
        with spec.store() as store:
            noted = spec.ledger(store).run(
                commit.note_commit_failed,
                attempt,
                case.known.epoch if case else None,
                reason=noted_reason(context, refusal),
                remedy=advice_of(refusal),
                for_good=refusal is not None and refusal.for_good,
            )
            send_failure(spec.paths, noted)
    except Refused as error:
        log.info("%s", error)


class RetriedOperator(BaseOperator):
    """A task that is tried again: every line of it may be killed and run again.

    `retries` and `retry_delay` are no parameters here, so Airflow does not take them from `default_args`: these are
    meant for the tasks of the user. An argument of the operator itself counts.
    """

    def __init__(self, **kwargs: Any) -> None:
        own = {"retries": 3, "retry_delay": timedelta(seconds=2)}
        super().__init__(**{**own, **kwargs})


class InTurnOperator(RetriedOperator, LineageOperator):
    """A task that defers until the turn is near, or messages are acked, and is then executed again."""

    ui_color = "#cfe2ff"

    def execute_turn(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Run when the turn is near, or when this run is to give up its run slot."""
        from airflow_tx.commit.run_slots import yield_slot

        if event and "yield" in event:
            spec = spec_of(context["dag"])
            txid = begun_by(context["ti"], spec).txid
            yield_slot(spec, context, blocking=event["yield"], txid=txid, log=self.log)
        return self.execute(context)

    def take_turn(
        self, context: Context, updates: Sequence[Update], part: CommitPart | None = None
    ) -> Commit:
        """Commit in its turn, or defer until that is near.

        :param part: the part of the commit that the task does; None: the whole commit.
        """
        from airflow_tx.commit.alarm import raise_own_alarms
        from airflow_tx.commit.commit import Commit
        from airflow_tx.commit.turn import RESUMED, commit_in_turn

        with final_errors(), commit_case(context, updates, self.log) as case:
            settings = Settings.load()
            commit = Commit(case, part)
            line = commit_in_turn(
                commit,
                case.ledger.store,
                patience=settings.warm_wait,
                places=settings.warm_places,
                away=settings.min_deferral + RESUMED,
            )
            if line is None:
                note_commit(self, context, case, is_first=commit.granted is not None)
        raise_own_alarms(case.spec, context, self.log)
        if line is not None:
            self._wait(case.spec, context, line)
        rows = commit.processed.rows if commit.processed else None
        self.note_lineage(case.spec.topology, case.begun, rows)
        return commit

    def _wait(self, spec: TransactionSpec, context: Context, line: WaitingLine) -> NoReturn:
        from airflow_tx.commit.run_slots import slots_of
        from airflow_tx.triggers.messages import MessagesTrigger
        from airflow_tx.triggers.turn import TurnTrigger

        common: dict[str, Any] = {
            "zookeeper_conn_id": spec.conn_id,
            "root": spec.paths.root,
            "topology": spec.topology,
            "txid": line.txid,
            "hold": Settings.load().min_deferral,
            "slots": slots_of(spec, context, txid=line.txid),
        }
        trigger: WaitTrigger
        if line.messages:
            begun = begun_by(context["ti"], spec)
            trigger = MessagesTrigger(
                **common,
                attempt=begun.attempt.attempt,
                incarnation=begun.incarnation,
                acker_store=spec.acker_store,
                timeout=spec.timeout,
            )
        else:
            trigger = TurnTrigger(
                **common,
                op=line.op,
                mapped=sorted(spec.mapped),
                waited=line.waited_for,
                places=line.places,
            )
        self.defer(trigger=trigger, method_name="execute_turn")


@contextmanager
def final_errors() -> Iterator[None]:
    """End the task at once by what another try would be refused again.

    :raises AirflowSkipException, AirflowFailException: in place of those.
    """
    try:
        yield
    except _TRY_AGAIN:
        raise
    except (SkippedTransaction, InputSkipped) as error:
        raise AirflowSkipException(str(error)) from None
    except TxError as error:
        if not (error.for_good or isinstance(error, (Refused, StateError))):
            raise
        raise AirflowFailException(str(error)) from None


@contextmanager
def commit_case(context: Context, updates: Sequence[Update], log: Any) -> Iterator[CommitCase]:
    """Connect one task's part of a commit to the ledger as long as the block."""
    from airflow_tx.commit.case import CommitCase

    ti = context["ti"]
    spec = spec_of(context["dag"])
    begun = begun_by(ti, spec)
    with spec.store() as store:
        case = CommitCase(spec, begun, updates, spec.ledger(store), ti, log)
        context[COMMIT_KEY] = case  # type: ignore[literal-required]
        yield case


def push_new_values(ti: Any, left: Mapping[str, Any]) -> None:
    """Push references to what the updates have left for later tasks, one XCom each."""
    for name, ref in left.items():
        ti.xcom_push(key=name, value=ref)


def note_commit(operator: Any, context: Context, case: CommitCase, *, is_first: bool) -> None:
    """Let the asset events of the task tell of the commit, unless Airflow has stored such an event already.

    :param is_first: this try has committed, so there is no such event.
    """
    own = case.begun.attempt
    # Airflow stores an event together with the success of its task. So a try that died in between left none.
    if not is_first:
        operator.outlets = [each for each in operator.outlets if not _is_emitted(each, case)]
    replaces = case.begun.replaces
    restates = {} if replaces is None else {"restates": replaces.txid}
    for outlet in filter(compat.is_asset, operator.outlets):
        context["outlet_events"][outlet].extra.update(
            topology=case.spec.topology,
            txid=own.txid,
            attempt=own.attempt,
            birth=own.birth,
            **restates,
        )


def _is_emitted(outlet: Any, case: CommitCase) -> bool:
    if not compat.is_asset(outlet):
        return False
    from airflow_tx.protocol.person import moment

    own = case.begun.attempt
    said = {"topology": case.spec.topology, "txid": own.txid}
    if own.birth:  # else the ledger has forgotten it
        said["birth"] = own.birth
    history = case.ledger.outcome(own.txid)
    ended = None if history is None else moment(history.ended)
    return compat.has_event(outlet, said, after=None if ended is None else ended - _SKEW)


class CommitOperator(InTurnOperator):
    """Commits the run's transaction: one at a time, in the order of their txids, exactly once.

    Values of a transaction are visible in a state a moment before the transaction is marked as committed.
    Its asset event carries topology, txid and attempt. There is one for each commit, however often the run is cleared.

    New values that an update names are outputs: ``commit.output["name"]``, for tasks after it.

    :param updates: what to add to which state, see `persistent_aggregate`; none: the order of commits is all it gives.
    """

    template_fields: Sequence[str] = ("inputs",)

    def __init__(self, *, updates: Sequence[Update] = (), **kwargs: Any) -> None:
        """Take the updates. Further arguments go to `BaseOperator`, such as `task_id` and `outlets`."""
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
        if spec_of(context["dag"]).phase is not None:
            return self._write_in_phase(context)
        commit = self.take_turn(context, self.updates)
        push_new_values(context["ti"], commit.left)
        return None

    def _write_in_phase(self, context: Context) -> dict[str, Any] | None:
        """Write; the last task of the phase looks at what it returns."""
        from airflow_tx.commit.phase import write_in_phase

        with final_errors(), commit_case(context, self.updates, self.log) as case:
            wrote, left = write_in_phase(case)
            push_new_values(context["ti"], left)
            return wrote
