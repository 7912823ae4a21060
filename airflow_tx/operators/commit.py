"""The operators that begin and commit a transaction, and the lineage of all tasks of a transaction.

Source: protocol.md §§2, 4, 6, 7.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import datetime, timedelta
from functools import cache, partial
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar, cast

from airflow.sdk import BaseOperator
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.base.dataset import Dataset
from airflow_tx.base.errors import (
    AheadOfOrder,
    FailedBatch,
    FenceOutranked,
    IncompleteBatch,
    InputSkipped,
    Outranked,
    Refused,
    RowsRefused,
    SkippedAfterCommit,
    SkippedTransaction,
    StagingError,
    StateError,
    StateUnavailable,
    TxError,
)
from airflow_tx.base.failpoints import failpoint
from airflow_tx.ledger import (
    POSITION_KEPT,
    AlreadyCommitted,
    Begun,
    NoData,
    TaskTry,
    TopologyRecord,
    WindowFull,
    as_kept,
)
from airflow_tx.transaction import (
    COMMIT_KEY,
    WHY_NOT,
    Check,
    HasTransaction,
    Metric,
    Processing,
    TransactionSpec,
    Update,
    advice_of,
    begun_by,
    check_arguments,
    checked_checks,
    checked_updates,
    noted_reason,
    refusal_of,
    send_failure,
    spec_of,
)

if TYPE_CHECKING:
    from airflow.sdk import Context
    from airflow.sdk.definitions.xcom_arg import PlainXComArg

    from airflow_tx.outputs import Entry
    from airflow_tx.sources import Source
    from airflow_tx.state import FencedState
    from airflow_tx.transaction import Commit, WaitingLine
    from airflow_tx.triggers import WaitTrigger


# --- lineage ------------------------------------------------------------------------------------------------------
# If OpenLineage's provider is installed, it reports the transaction as a facet of the run. It
# reports the source as an input dataset, and the states as output datasets.


_LISTENER = "airflow.providers.openlineage"
"""The package of the OpenLineage provider.

If its listener is active, Airflow imports the package before a task starts.
"""
FACET = "airflow_tx"
"""The name of the OpenLineage facet that describes the transaction of a run."""
_FIELDS = ("topology", "txid", "attempt", "position", "rows", "restates")


class LineageOperator:
    """An operator that keeps its task's transaction until OpenLineage reads it in the same process."""

    _transaction_facet: dict[str, Any] | None = None
    _reads: Sequence[Dataset] = ()
    _writes: Sequence[Dataset] = ()

    def note_lineage(
        self,
        topology: str,
        begun: Begun,
        rows: int | None = None,
        *,
        source: Source | None = None,
        states: Iterable[FencedState] = (),
    ) -> None:
        """Store the task's transaction and its datasets for OpenLineage.

        The method queries the datasets immediately, because OpenLineage may read them in a fork of this process. A fork
        must not use the connections of its parent.

        :param rows: number of rows of the batch; None if they are not counted.
        :param source: the source that the transaction reads.
        :param states: the states that the transaction writes.
        """
        position = as_kept(begun.position, POSITION_KEPT)
        restates = None if begun.replaces is None else begun.replaces.txid
        values = (topology, begun.txid, begun.attempt.attempt, position, rows, restates)
        self._transaction_facet = dict(zip(_FIELDS, values, strict=True))
        if _LISTENER in sys.modules:
            self._reads = [] if source is None else _datasets(source, source.datasets)
            named = [each for state in states for each in _datasets(state, state.dataset)]
            self._writes = [*dict.fromkeys(named)]

    def note_commit_lineage(self, commit: Commit) -> None:
        """Store the committed transaction for OpenLineage, with the datasets of its source and states."""
        spec = commit.spec
        rows = commit.processed.rows if commit.processed else None
        states = [update.state for update in commit.updates]
        self.note_lineage(spec.topology, commit.begun, rows, source=spec.source, states=states)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Return the OpenLineage facet and the datasets.

        The OpenLineage provider calls this method when the task has ended.
        """
        from airflow.providers.openlineage.extractors import OperatorLineage  # type: ignore[import-not-found]

        if self._transaction_facet is None:
            return OperatorLineage()
        found = OperatorLineage(run_facets={FACET: _facet_class()(**self._transaction_facet)})
        if self._reads or self._writes:
            _add_datasets(self, found)
        return found


def _datasets(place: Source | FencedState, name: Callable[[], Any]) -> list[Dataset]:
    """Return the datasets of a source or a state. An error is logged on one line and does not fail the task."""
    try:
        found = name()
        return [Dataset(*each) for each in ([found] if isinstance(found, Dataset) else found or ())]
    except Exception as error:  # noqa: BLE001 - clients and code of the user's own may raise anything
        reason = error if isinstance(error, TxError) else type(error).__name__
        log.warning("OpenLineage gets no dataset for %r: %s", place, reason)
        return []


def _add_datasets(operator: Any, lineage: Any) -> None:
    """Add a transaction's datasets to the inlets and outlets of its task.

    If an operator returns datasets itself, OpenLineage's provider ignores the inlets and outlets of its task.
    """
    from airflow.providers.openlineage.extractors.manager import (  # type: ignore[import-not-found]
        ExtractorManager,
    )
    from openlineage.client.event_v2 import Dataset as Named  # type: ignore[import-not-found]

    ExtractorManager().extract_inlets_and_outlets(lineage, operator)
    for listed, own in ((lineage.inputs, operator._reads), (lineage.outputs, operator._writes)):
        known = {(each.namespace, each.name) for each in listed}
        listed += [Named(each.namespace, each.name) for each in own if each not in known]


@cache
def _facet_class() -> Any:
    from attr import ib, make_class
    from openlineage.client.generated.base import RunFacet  # type: ignore[import-not-found]

    return make_class(
        "TransactionRunFacet", {name: ib(default=None) for name in _FIELDS}, bases=(RunFacet,)
    )


# --- commit -------------------------------------------------------------------------------------------------------


log = logging.getLogger(__name__)
C = TypeVar("C", bound="Commit")
# Maximum clock difference between a worker and Airflow's API server.
_SKEW = timedelta(hours=1)

# Errors after which another try may succeed. The next try may outrank the other writer, or find
# that the transaction is committed. An ack may be missing because Airflow marks a task as success
# before the ack. An output may be missing because its task is running again.
_TRY_AGAIN = (StateUnavailable, FenceOutranked, Outranked, IncompleteBatch, StagingError)


def note_commit_failure(context: Context) -> None:
    """Record the failure of a committer or a commit phase task in the ledger, unless Airflow retries the task."""
    from airflow_tx.transaction import Yielded

    if isinstance(context.get("exception"), Yielded):
        return
    ti = context["ti"]
    spec = spec_of(context["dag"])
    attempt = begun_by(ti, spec).attempt
    commit: Commit | None = context.get(COMMIT_KEY)  # type: ignore[assignment]
    refusal = refusal_of(context)
    reason, failed_task = noted_reason(context, refusal)
    try:
        with spec.store() as store:
            noted = spec.ledger(store).note_commit_failed(
                attempt,
                commit.epoch if commit else None,
                reason=reason,
                failed_task=failed_task,
                remedy=advice_of(refusal),
                for_good=refusal is not None and refusal.for_good,
                repairable=refusal is not None and refusal.repairable,
                checks=getattr(refusal, "checks", None),
            )
            send_failure(spec.paths, noted)
    except Refused as error:
        log.info("%s", error)


_OWN: Mapping[str, Any] = {
    "retries": 3,
    "retry_delay": timedelta(seconds=2),
    **({} if compat.is_airflow_3_2() else {"retry_policy": None}),
    "retry_exponential_backoff": 0,
    "max_retry_delay": None,
    "execution_timeout": None,
    "trigger_rule": "all_success",
    "pool_slots": 1,
    "do_xcom_push": True,
    "multiple_outputs": False,
    "map_index_template": None,
}
FOR_WORK = tuple(_OWN)
"""Names of task options that are meant for tasks that process data.

Airflow sets them from `default_args`, the configuration and cluster policies."""


class RetriedOperator(BaseOperator):
    """An operator that waits and is retried. A kill at any line is safe, because the next try resumes the work.

    The task ignores `default_args` such as a time limit, because they could fail a task that is only waiting. You can
    still pass these options as arguments of the operator. Options such as `queue`, `pool` and `email` apply as usual.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**_OWN, **kwargs})


class InTurnOperator(RetriedOperator, LineageOperator):
    """An operator that defers until its turn is near, or until its messages are acked.

    Airflow then executes the task again.
    """

    ui_color = "#cfe2ff"

    def execute_turn(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        from airflow_tx.transaction import yield_slot

        if event and "yield" in event:
            spec = spec_of(context["dag"])
            txid = begun_by(context["ti"], spec).txid
            yield_slot(spec, context, blocking=event["yield"], txid=txid, log=self.log)
        return self.execute(context)

    def take_turn(
        self,
        context: Context,
        updates: Sequence[Update],
        checks: Sequence[Check],
        kind: type[C],
    ) -> C:
        """Commit if the transaction gets the turn, or defer until the turn is near.

        :param kind: `Commit` for a single committer, `PhaseCommit` for a commit phase.
        """
        from airflow_tx.transaction import RESUMED, commit_in_turn

        with final_errors(), connected(kind, context, updates, self.log, checks) as commit:
            settings = Settings.load()
            line = commit_in_turn(
                commit,
                commit.ledger.store,
                patience=settings.warm_wait,
                places=settings.warm_places,
                away=settings.min_deferral + RESUMED,
            )
            if line is None:
                note_commit(self, context, commit, is_first=commit.granted is not None)
        commit.spec.raise_own_alarms(context, self.log)
        if line is not None:
            self._wait(commit.spec, context, line)
        self.note_commit_lineage(commit)
        return commit

    def _wait(self, spec: TransactionSpec, context: Context, line: WaitingLine) -> NoReturn:
        from airflow_tx.transaction import slots_of
        from airflow_tx.triggers import MessagesTrigger, TurnTrigger

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
    """Convert errors that a retry cannot fix into exceptions that end the task without a retry.

    :raises AirflowSkipException: a user skipped the transaction, or its input was skipped.
    :raises AirflowFailException: the ledger or a state refused the commit. A retry would fail with the same error.
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
def connected(
    kind: type[C],
    context: Context,
    updates: Sequence[Update],
    log: Any,
    checks: Sequence[Check] = (),
) -> Iterator[C]:
    """Connect a task's `Commit` to the ledger until the `with` block ends."""
    ti = context["ti"]
    spec = spec_of(context["dag"])
    begun = begun_by(ti, spec)
    with spec.store() as store:
        commit = kind(spec, begun, updates, spec.ledger(store), ti, log, checks=checks)
        context[COMMIT_KEY] = commit  # type: ignore[literal-required]
        yield commit


def push_new_values(ti: Any, left: Mapping[str, Any]) -> None:
    """Push an XCom for each update that outputs new values.

    The XCom references these values, so that later tasks can read them."""
    for name, ref in left.items():
        ti.xcom_push(key=name, value=ref)


def note_commit(operator: Any, context: Context, commit: Commit, *, is_first: bool) -> None:
    """Add the commit to the asset events of the task. Remove the outlets whose events Airflow has already stored.

    :param is_first: whether this try made the commit, so that Airflow has no event yet.
    """
    own = commit.begun.attempt
    # Airflow stores an event together with the success of its task. So a try that died after the
    # commit has stored no event.
    if not is_first:
        operator.outlets = [each for each in operator.outlets if not _is_emitted(each, commit)]
    replaces = commit.begun.replaces
    restates = {} if replaces is None else {"restates": replaces.txid}
    for outlet in filter(compat.is_asset, operator.outlets):
        context["outlet_events"][outlet].extra.update(
            topology=commit.spec.topology,
            txid=own.txid,
            attempt=own.attempt,
            birth=own.birth,
            **restates,
        )


def _is_emitted(outlet: Any, commit: Commit) -> bool:
    if not compat.is_asset(outlet):
        return False
    from airflow_tx.ledger import moment

    own = commit.begun.attempt
    said = {"topology": commit.spec.topology, "txid": own.txid}
    if own.birth:  # no birth: the ledger has forgotten the transaction
        said["birth"] = own.birth
    history = commit.ledger.outcome(own.txid)
    ended = None if history is None else moment(history.final.when)
    return compat.has_event(outlet, said, after=None if ended is None else ended - _SKEW)


class CommitOperator(InTurnOperator):
    """An operator that commits the run's transaction exactly once. Transactions commit one at a time, in txid order.

    If one database transaction can write all updates of a database, they become visible together. `together=True`
    guarantees this. Updates of several databases become visible one after another, and then the operator marks the
    transaction as committed. Each commit emits one asset event with topology, txid and attempt, however often you
    clear the run.

    If an update names its new values, later tasks read them as ``commit.output["name"]``.

    :param updates: the updates of states, see `persistent_aggregate`. Without them, the operator only orders the runs.
    :param checks: the checks that outputs must pass before the commit, see `check`.
    :param together: whether one database transaction of any size writes all states that share a `conn_id`. It also
        writes the table `rejected` of the block. The statements of a `SqlGuard` see the rows of the updates that
        precede the guard.
    """

    template_fields: Sequence[str] = ("inputs",)

    def __init__(
        self,
        *,
        updates: Sequence[Update] = (),
        checks: Sequence[Check] = (),
        together: bool = False,
        **kwargs: Any,
    ) -> None:
        """Store the updates and checks. Further arguments, such as `task_id` and `outlets`, go to `BaseOperator`."""
        updates = checked_updates(updates)  # set before `BaseOperator` adds the task to the DAG
        checks = checked_checks(checks)
        super().__init__(**kwargs)
        self.updates = updates
        self.checks = checks
        self.together = together
        # Airflow finds upstream tasks in template fields only.
        self.inputs = [getattr(taken, "input", None) for taken in (*updates, *checks)]

    @property
    def output(self) -> PlainXComArg:
        """Return a reference to the new values of an update: ``commit.output["name"]``."""
        return cast("PlainXComArg", super().output)

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Render no templates.

        Before the turn, a rendered value may differ from the acked value, and the UI cannot display rows."""

    def execute(self, context: Context) -> dict[str, Any] | None:
        """Commit, or defer until the turn is near. In a commit phase, write the updates.

        :raises AirflowSkipException: a user skipped the transaction.
        :raises AirflowFailException: the ledger or a state refuses the commit. A retry would fail with the same error.
        """
        from airflow_tx.transaction import Commit

        if spec_of(context["dag"]).phase is not None:
            return self._write_in_phase(context)
        commit = self.take_turn(context, self.updates, self.checks, Commit)
        push_new_values(context["ti"], commit.left)
        return None

    def _write_in_phase(self, context: Context) -> dict[str, Any] | None:
        """Write the updates. The last task of the phase reads the return value."""
        from airflow_tx.transaction import PhaseCommit

        with final_errors(), connected(PhaseCommit, context, self.updates, self.log) as commit:
            wrote = commit.write_in_phase()
            push_new_values(context["ti"], commit.left)
            return wrote


# --- commit phase -------------------------------------------------------------------------------------------------
# The first and last task of a commit phase, and the hooks of the tasks between them.


class AcquireTurnOperator(InTurnOperator):
    """An operator that takes the turn for all tasks of a commit phase. `commit_phase` creates it; do not create it."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Raise the fence of each state, or defer until the turn is near.

        :raises AirflowSkipException: a user skipped the transaction.
        :raises AirflowFailException: the ledger or a state refuses the commit. A retry would fail with the same error.
        """
        from airflow_tx.transaction import PhaseCommit

        checks = [each for task in _committers(context) for each in task.checks]
        return self.take_turn(context, _updates(context), checks, PhaseCommit).shared


class MarkCommittedOperator(RetriedOperator, LineageOperator):
    """An operator that marks the transaction as committed if all tasks of the phase have succeeded. Otherwise, it
    fails.

    `commit_phase` creates it; do not create it. Each commit emits one asset event with topology, txid and attempt,
    however often you clear the run.
    """

    ui_color = "#cfe2ff"

    def execute(self, context: Context) -> None:
        """Mark the transaction as committed.

        :raises AirflowFailException: a task of the phase has failed. The error names the task.
        """
        from airflow_tx.transaction import PhaseCommit

        with final_errors(), connected(PhaseCommit, context, _updates(context), self.log) as commit:
            is_first = commit.ledger.status(commit.begun.txid) is not None
            commit.mark_in_phase()
            note_commit(self, context, commit, is_first=is_first)
        self.note_commit_lineage(commit)


def _updates(context: Context) -> tuple[Update, ...]:
    """Return the updates of all committers of the phase."""
    return tuple(update for task in _committers(context) for update in task.updates)


def _committers(context: Context) -> list[CommitOperator]:
    dag: Any = context["dag"]
    phase = spec_of(dag).phase
    assert phase is not None
    return [dag.get_task(task) for task in phase.committers]


# --- around any other task of the phase --------------------------------------------------------------------------


def before_inside(context: Context) -> None:
    """Check that the transaction has the turn, before a task of the phase runs.

    :raises AirflowSkipException: the transaction is already committed.
    :raises AirflowFailException: a later grant has taken the turn.
    """
    from airflow_tx.transaction import PhaseCommit

    check_arguments(context["task"], Processing.of(context).attempt)
    with connected(PhaseCommit, context, (), None) as commit:
        try:
            grant = commit.shared_grant()
            held = grant is None or commit.ledger.holds(grant.token)
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        if grant is None:
            raise AirflowSkipException(
                f"Transaction {commit.begun.txid} is already committed: nothing to do."
            )
        if not held:
            lost = commit.incomplete(
                "the turn was taken again since this task was scheduled", commit.phase.acquire
            )
            raise AirflowFailException(str(lost))


def after_inside(context: Context, result: Any = None) -> None:
    """Push an XCom that records which attempt produced the task's result."""
    from airflow_tx.transaction import INSIDE_KEY, check_returned, xcom_fingerprint

    ti = context["ti"]
    spec = spec_of(context["dag"])
    own = begun_by(ti, spec)
    task = TaskTry(ti.task_id, compat.map_index(ti), compat.task_try(ti))
    check_returned(result, spec, task, own.attempt)
    note = {"txid": own.txid, "attempt": own.attempt.attempt, "digest": xcom_fingerprint(result)}
    ti.xcom_push(key=INSIDE_KEY, value=note)


def hook_up_inside(task: Any) -> None:
    """Add the commit phase hooks to a task, for any operator.

    The ledger does not record the success of the task. The last task of the phase checks the states of all other tasks.
    """
    compat.add_hooks(
        task,
        before=before_inside,
        after=after_inside,
        failed=note_commit_failure,
        final=(FailedBatch, RowsRefused),
    )


# --- begin --------------------------------------------------------------------------------------------------------
# The first task of a run gives the run its transaction. Source: protocol.md §3.


_WHY_KEPT = 1000


class BeginTransactionOperator(HasTransaction, RetriedOperator, SkipMixin, LineageOperator):
    """An operator that gives the run the next batch of the source. A replay gets the batch of its transaction again.

    `Transaction` creates it; do not create it. Its XCom is the batch as plain JSON: topology, txid, attempt, rows,
    position, rows_digest, replay.

    :param transaction: the description of the `Transaction` block.
    """

    # Without this flag, a skipped task would run if it were cleared alone. With the flag, the
    # scheduler skips it again.
    inherits_from_skipmixin = True
    template_fields: Sequence[str] = ()
    ui_color = "#d9f2e6"

    def __init__(self, *, transaction: TransactionSpec, **kwargs: Any) -> None:
        """Store the description of the block. Further arguments go to `BaseOperator`."""
        super().__init__(**kwargs)
        self.transaction = transaction

    def execute(self, context: Context) -> dict[str, Any]:
        """Allocate or replay a transaction, or defer while `max_pending` transactions are open.

        :raises AirflowSkipException: the source has no data.
        :raises AirflowFailException: the ledger refuses the transaction. A retry would fail with the same error.
        """
        spec = self.transaction
        ti = context["ti"]
        failpoint("begin.before_ask", topology=spec.topology, run_id=ti.run_id)
        compat.note_running(ti, context)
        try:
            answer = self._ask(context)
        except SkippedTransaction as error:
            # The task succeeds if a skip was requested, even before the transaction is skipped.
            self.log.warning("%s", error)
            self._skip_tasks(ti, spec.inside)
        except AheadOfOrder as ahead:
            self._wait_in_order(context, ahead)
        except TxError as error:
            # Store the error for the Transactions page. A task without a transaction leaves no
            # other record.
            advice = advice_of(error)
            said = {
                "problem": error.problem_text[:_WHY_KEPT],
                "advice": advice and advice.as_stored(),
            }
            ti.xcom_push(key=WHY_NOT, value=said)
            if isinstance(error, Refused):
                raise AirflowFailException(str(error)) from None
            raise
        spec.raise_own_alarms(context, self.log)
        if isinstance(answer, Begun):
            return self._begun(context, answer)
        if isinstance(answer, WindowFull):
            self._wait(context, answer)
        if isinstance(answer, AlreadyCommitted):
            return self._already_committed(ti, answer.txid)
        raise AirflowSkipException(
            f"The source of topology {spec.topology!r} has no rows for another transaction now."
        )

    def execute_again(
        self, context: Context, event: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Resume after the deferral: begin the transaction, wait again, or give up the run slot."""
        from airflow_tx.transaction import yield_slot

        if event and "yield" in event:
            missing = datetime.fromisoformat(event["missing"]) if "missing" in event else None
            yield_slot(
                self.transaction,
                context,
                blocking=event["yield"],
                txid=None,
                missing=missing,
                log=self.log,
            )
        return self.execute(context)

    def _check_entry(self, entry: Entry, topology: TopologyRecord) -> Collection[str]:
        from airflow_tx.transaction import (
            check_entry,  # only a restatement needs this import
        )

        return check_entry(self.transaction, self.dag, entry, topology)

    def _ask(self, context: Context) -> Begun | NoData | WindowFull | AlreadyCommitted:
        from airflow_tx.transaction import ask, await_lane, comes_soon, key_of

        spec = self.transaction
        ti = context["ti"]
        run = compat.run_info(context)
        if spec.source.in_order:
            await_lane(spec, key_of(spec, run), seconds=Settings.load().warm_wait)
        asked = partial(
            ask,
            spec,
            ti,
            run,
            retry=compat.is_retry(ti, self.retries or 0),
            dag=self.dag,
            check_entry=self._check_entry,
            log=self.log,
        )
        try:
            return asked()
        except AheadOfOrder as ahead:
            if not comes_soon(spec, ahead, seconds=Settings.load().warm_wait):
                raise
        return asked()

    def _begun(self, context: Context, begun: Begun) -> dict[str, Any]:
        from airflow_tx.ledger import size_in_words

        spec = self.transaction
        attempt = begun.attempt
        failpoint(
            "begin.after_allocate",
            topology=spec.topology,
            txid=attempt.txid,
            attempt=attempt.attempt,
        )
        self.note_lineage(spec.topology, begun, source=spec.source)
        if begun.replay:
            Metric.REPLAYED.send(spec.paths)
        self.log.info(
            "Transaction %s of %s (%s): rows %.2000s",
            attempt,
            spec.topology,
            "replay" if begun.replay else "new",
            begun.metadata,
        )
        if begun.size is not None:
            self.log.info("The batch has %s", size_in_words(begun.size))
        for lost in begun.lost:
            self.log.warning(
                "Rows before this batch were accepted as lost, and no batch contains them: %s", lost
            )
        if begun.skip is not None:
            self._skip(context, begun)
        return {"topology": spec.topology, **begun.to_json()}

    def _wait(self, context: Context, full: WindowFull) -> None:
        from airflow_tx.transaction import key_of, slots_of
        from airflow_tx.triggers import ReadyTrigger

        spec = self.transaction
        self.log.info(
            "Waiting for room: transactions %s to %s of %s are open, and max_pending is %s. The next one begins when "
            "transaction %s is committed or skipped.",
            full.current,
            full.allocated,
            spec.topology,
            full.max_pending,
            full.current,
        )
        self.defer(
            trigger=ReadyTrigger(
                zookeeper_conn_id=spec.conn_id,
                root=spec.paths.root,
                topology=spec.topology,
                max_pending=full.max_pending,
                hold=Settings.load().min_deferral,
                slots=slots_of(spec, context, txid=None),
                key=key_of(spec, compat.run_info(context)),
            ),
            method_name="execute_again",
        )

    def _wait_in_order(self, context: Context, ahead: AheadOfOrder) -> NoReturn:
        from airflow_tx.ledger import LIVE_RUN_STATES
        from airflow_tx.transaction import gap, key_of, slots_of
        from airflow_tx.triggers import OrderTrigger

        spec = self.transaction
        self.log.info("%s", ahead)
        if not compat.runs_on(spec.dag_id, ahead.missing, LIVE_RUN_STATES):
            self.log.warning("%s", gap(spec.dag_id, ahead.missing, ahead.after))
        self.defer(
            trigger=OrderTrigger(
                zookeeper_conn_id=spec.conn_id,
                root=spec.paths.root,
                topology=spec.topology,
                max_pending=spec.request.max_pending,
                hold=Settings.load().min_deferral,
                slots=slots_of(spec, context, txid=None),
                key=key_of(spec, compat.run_info(context)),
                after=ahead.after.isoformat(),
                missing=ahead.missing.isoformat(),
            ),
            method_name="execute_again",
        )

    def _skip(self, context: Context, begun: Begun) -> None:
        """Skip a transaction for which a user has requested a skip.

        If the transaction has no turn yet, the process that gets the turn skips it.
        """
        from airflow_tx.transaction import TaskRuns, pass_on, states_of, take_skip_or_wait

        spec = self.transaction
        txid = begun.attempt.txid
        assert begun.skip is not None
        self.log.info(
            "Transaction %s is to be skipped (%s: %s)", txid, begun.skip.who, begun.skip.why
        )
        with spec.store() as store:
            ledger = spec.ledger(store)
            states = states_of(context["dag"])
            try:
                ended = take_skip_or_wait(ledger, txid, states, log=self.log)
            except Refused as error:
                raise AirflowFailException(str(error)) from None
            pass_on(ledger, states, TaskRuns(spec.dag_id, context["ti"]), ended, log=self.log)
        self._skip_tasks(context["ti"], spec.inside)

    def _already_committed(self, ti: Any, txid: int) -> dict[str, Any]:
        """Skip the tasks before the commit, because the transaction is already committed.

        Tasks after the commit still run.

        :raises AirflowFailException: this would also skip a task after the commit.
        """
        from airflow_tx.transaction import committed_batch

        spec = self.transaction
        skipped = frozenset(spec.inside).difference(spec.ends)
        self._check_after_commit(txid, skipped)
        text = "Transaction %s of %s is already committed: %s. Nothing is counted again. Tasks after the commit run."
        self.log.info(
            text,
            txid,
            spec.topology,
            "its other tasks are skipped" if skipped else "it has no other tasks",
        )
        batch = committed_batch(spec, txid)
        if skipped:
            ti.xcom_push(key="return_value", value=batch)
            self._skip_tasks(ti, skipped)
        return batch

    def _check_after_commit(self, txid: int, skipped: frozenset[str]) -> None:
        assert self.dag is not None
        spec = self.transaction
        after = {each for end in spec.ends for each in compat.downstream(self.dag.get_task(end))}
        for task_id in sorted(
            compat.skipped_along(self.dag, skipped) & after.difference(spec.inside)
        ):
            needs = sorted(skipped.intersection(self.dag.get_task(task_id).upstream_task_ids))
            if needs:
                named = {"tasks": task_id, "needs": ", ".join(needs)}
                raise AirflowFailException(
                    str(SkippedAfterCommit(topology=spec.topology, txid=txid, **named))
                )

    def _skip_tasks(self, ti: Any, tasks: Iterable[str]) -> NoReturn:
        assert self.dag is not None
        compat.skip_tasks(self, ti, [self.dag.get_task(task) for task in sorted(tasks)])
