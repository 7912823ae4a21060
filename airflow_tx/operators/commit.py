"""The operators around a transaction: begin, the committer and a commit phase; what other tasks share with them.

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
# What OpenLineage learns of a run, if its provider is installed: the transaction, as a facet of the run; and the places
# of its source and its states, as input and output datasets.


_LISTENER = "airflow.providers.openlineage"
"""The package that Airflow has imported before a task begins, if it listens."""
FACET = "airflow_tx"
"""Under which name the facet is in the run."""
_FIELDS = ("topology", "txid", "attempt", "position", "rows", "restates")


class LineageOperator:
    """An operator that keeps the transaction it worked on until OpenLineage asks for it, in the same process."""

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
        """Keep the transaction that the task works on, and its datasets.

        Places are looked up now: when OpenLineage asks, it may do so in a fork of this process, whose connections to
        servers it must not use.

        :param rows: of its batch, if they are counted.
        :param source: that the transaction reads. `states`: that it writes.
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
        """Keep the transaction that the task has committed, and the datasets of its source and its states."""
        spec = commit.spec
        rows = commit.processed.rows if commit.processed else None
        states = [update.state for update in commit.updates]
        self.note_lineage(spec.topology, commit.begun, rows, source=spec.source, states=states)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> Any:
        """Give the facet and the datasets; called by the provider of OpenLineage when the task has ended."""
        from airflow.providers.openlineage.extractors import OperatorLineage  # type: ignore[import-not-found]

        if self._transaction_facet is None:
            return OperatorLineage()
        found = OperatorLineage(run_facets={FACET: _facet_class()(**self._transaction_facet)})
        if self._reads or self._writes:
            _add_datasets(self, found)
        return found


def _datasets(place: Source | FencedState, name: Callable[[], Any]) -> list[Dataset]:
    """Let a source or a state name its places. An error is logged in one line, and fails no task."""
    try:
        found = name()
        return [Dataset(*each) for each in ([found] if isinstance(found, Dataset) else found or ())]
    except Exception as error:  # noqa: BLE001 - clients and code of the user's own may raise anything
        reason = error if isinstance(error, TxError) else type(error).__name__
        log.warning("OpenLineage does not learn the place of %r: %s", place, reason)
        return []


def _add_datasets(operator: Any, lineage: Any) -> None:
    """Add the datasets of a transaction to the inlets and outlets of its task.

    OpenLineage's provider reads these itself where an operator names no dataset, and only there.
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
_SKEW = timedelta(hours=1)  # between the clocks of a worker and of Airflow's API server

# Another try may succeed: it outranks in turn, or finds the transaction committed. Or it finds the ack of a task that
# Airflow knows to have succeeded a moment before the ledger does, or the output of a task that works again.
_TRY_AGAIN = (StateUnavailable, FenceOutranked, Outranked, IncompleteBatch, StagingError)


def note_commit_failure(context: Context) -> None:
    """Run when a task that commits, or one of a commit phase, has failed and is not tried again."""
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
"""The options that `default_args`, the configuration and cluster policies set for tasks that work."""


class RetriedOperator(BaseOperator):
    """A task that waits and is tried again: every line of it may be killed and run again.

    Options for work do not reach it: a time limit would fail a task that only waits, and a batch is tried again by a
    replay. An argument of the operator itself counts. Options that say where a task runs or who gets a
    message, such as `queue`, `pool` and `email`, reach it like any task.
    """

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**{**_OWN, **kwargs})


class InTurnOperator(RetriedOperator, LineageOperator):
    """A task that defers until the turn is near, or messages are acked, and is then executed again."""

    ui_color = "#cfe2ff"

    def execute_turn(self, context: Context, event: dict[str, Any] | None = None) -> Any:
        """Run when the turn is near, or when this run is to give up its run slot."""
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
        """Commit in its turn, or defer until that is near.

        :param kind: what commits: the task alone, or several.
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
def connected(
    kind: type[C],
    context: Context,
    updates: Sequence[Update],
    log: Any,
    checks: Sequence[Check] = (),
) -> Iterator[C]:
    """Connect one task's part of a commit to the ledger as long as the block."""
    ti = context["ti"]
    spec = spec_of(context["dag"])
    begun = begun_by(ti, spec)
    with spec.store() as store:
        commit = kind(spec, begun, updates, spec.ledger(store), ti, log, checks=checks)
        context[COMMIT_KEY] = commit  # type: ignore[literal-required]
        yield commit


def push_new_values(ti: Any, left: Mapping[str, Any]) -> None:
    """Push references to what the updates have left for later tasks, one XCom each."""
    for name, ref in left.items():
        ti.xcom_push(key=name, value=ref)


def note_commit(operator: Any, context: Context, commit: Commit, *, is_first: bool) -> None:
    """Let the asset events of the task tell of the commit, unless Airflow has stored such an event already.

    :param is_first: this try has committed, so there is no such event.
    """
    own = commit.begun.attempt
    # Airflow stores an event together with the success of its task. So a try that died in between left none.
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
    if own.birth:  # else the ledger has forgotten it
        said["birth"] = own.birth
    history = commit.ledger.outcome(own.txid)
    ended = None if history is None else moment(history.final.when)
    return compat.has_event(outlet, said, after=None if ended is None else ended - _SKEW)


class CommitOperator(InTurnOperator):
    """Commits the run's transaction: one at a time, in the order of their txids, exactly once.

    Updates of one database become visible all at once, where one transaction of it can write them: `together=True`
    promises it. Updates of several databases do so one after another, before the transaction is marked as committed.
    Its asset event carries topology, txid and attempt. There is one for each commit, however often the run is cleared.

    New values that an update names are outputs: ``commit.output["name"]``, for tasks after it.

    :param updates: what to add to which state, see `persistent_aggregate`; none: the order of commits is all it gives.
    :param checks: what outputs have to pass before, see `check`.
    :param together: promise that one transaction of the database writes all its updates, of any size: of the states
        with one `conn_id`, and `rejected=` of the block. A `SqlGuard` sees the rows of the updates before it.
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
        """Take the updates. Further arguments go to `BaseOperator`, such as `task_id` and `outlets`."""
        updates = checked_updates(updates)  # before the DAG knows of the task
        checks = checked_checks(checks)
        super().__init__(**kwargs)
        self.updates = updates
        self.checks = checks
        self.together = together
        # Airflow finds tasks to be upstream in template fields only.
        self.inputs = [getattr(taken, "input", None) for taken in (*updates, *checks)]

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
        from airflow_tx.transaction import Commit

        if spec_of(context["dag"]).phase is not None:
            return self._write_in_phase(context)
        commit = self.take_turn(context, self.updates, self.checks, Commit)
        push_new_values(context["ti"], commit.left)
        return None

    def _write_in_phase(self, context: Context) -> dict[str, Any] | None:
        """Write; the last task of the phase looks at what it returns."""
        from airflow_tx.transaction import PhaseCommit

        with final_errors(), connected(PhaseCommit, context, self.updates, self.log) as commit:
            wrote = commit.write_in_phase()
            push_new_values(context["ti"], commit.left)
            return wrote


# --- commit phase -------------------------------------------------------------------------------------------------
# The first and the last task of a commit phase, and what happens around those between.


class AcquireTurnOperator(InTurnOperator):
    """Takes the turn to commit for the tasks of a commit phase; made by `commit_phase`, never by hand."""

    def execute(self, context: Context) -> dict[str, Any]:
        """Raise every fence, or defer until the turn is near.

        :raises AirflowSkipException: a person has it skipped.
        :raises AirflowFailException: the ledger or a state refuses, and would again.
        """
        from airflow_tx.transaction import PhaseCommit

        checks = [each for task in _committers(context) for each in task.checks]
        return self.take_turn(context, _updates(context), checks, PhaseCommit).shared


class MarkCommittedOperator(RetriedOperator, LineageOperator):
    """Marks the commit if every task of the phase has succeeded, else fails; made by `commit_phase`, never by hand.

    Its asset event carries topology, txid and attempt. There is one for each commit, however often the run is cleared.
    """

    ui_color = "#cfe2ff"

    def execute(self, context: Context) -> None:
        """Mark.

        :raises AirflowFailException: a task of the phase has failed; naming it.
        """
        from airflow_tx.transaction import PhaseCommit

        with final_errors(), connected(PhaseCommit, context, _updates(context), self.log) as commit:
            is_first = commit.ledger.status(commit.begun.txid) is not None
            commit.mark_in_phase()
            note_commit(self, context, commit, is_first=is_first)
        self.note_commit_lineage(commit)


def _updates(context: Context) -> tuple[Update, ...]:
    """Give the updates of all committers of the phase."""
    return tuple(update for task in _committers(context) for update in task.updates)


def _committers(context: Context) -> list[CommitOperator]:
    dag: Any = context["dag"]
    phase = spec_of(dag).phase
    assert phase is not None
    return [dag.get_task(task) for task in phase.committers]


# --- around any other task of the phase --------------------------------------------------------------------------


def before_inside(context: Context) -> None:
    """Run before a task of the phase: it works in the commit phase, or not at all.

    :raises AirflowSkipException: the transaction is committed.
    :raises AirflowFailException: another grant has taken the turn.
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
    """Run after a task of the phase: note of which attempt its result is."""
    from airflow_tx.transaction import INSIDE_KEY, check_returned, xcom_fingerprint

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


# --- begin --------------------------------------------------------------------------------------------------------
# The first task of a run: it gives the run its transaction. Source: protocol.md §3.


_WHY_KEPT = 1000


class BeginTransactionOperator(HasTransaction, RetriedOperator, SkipMixin, LineageOperator):
    """Takes the next batch of the source, or the run's own again; made by `Transaction`, never by hand.

    Its XCom is the batch as plain JSON: topology, txid, attempt, rows, position, rows_digest, replay.

    :param transaction: the block it begins.
    """

    # Without it the scheduler does not look for the tasks that this one has skipped when they are cleared alone.
    inherits_from_skipmixin = True
    template_fields: Sequence[str] = ()
    ui_color = "#d9f2e6"

    def __init__(self, *, transaction: TransactionSpec, **kwargs: Any) -> None:
        """Take the block. Further arguments go to `BaseOperator`."""
        super().__init__(**kwargs)
        self.transaction = transaction

    def execute(self, context: Context) -> dict[str, Any]:
        """Allocate or replay; defer while the window is full.

        :raises AirflowSkipException: the source has no data.
        :raises AirflowFailException: the ledger refuses, and would again.
        """
        spec = self.transaction
        ti = context["ti"]
        failpoint("begin.before_ask", topology=spec.topology, run_id=ti.run_id)
        compat.note_running(ti, context)
        try:
            answer = self._ask(context)
        except SkippedTransaction as error:
            # Green, as the run that found the skip still to be done.
            self.log.warning("%s", error)
            self._skip_tasks(ti, spec.inside)
        except AheadOfOrder as ahead:
            self._wait_in_order(context, ahead)
        except TxError as error:
            # For the board: a task without a transaction has no other record than this text.
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
        """Run when there may be room in the window, or when this run is to give up its run slot."""
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
            check_entry,  # only a restatement loads it
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
            self.log.info("It has %s", size_in_words(begun.size))
        for lost in begun.lost:
            self.log.warning("Before it, accepted as lost and in no batch: %s", lost)
        if begun.skip is not None:
            self._skip(context, begun)
        return {"topology": spec.topology, **begun.to_json()}

    def _wait(self, context: Context, full: WindowFull) -> None:
        from airflow_tx.transaction import key_of, slots_of
        from airflow_tx.triggers import ReadyTrigger

        spec = self.transaction
        self.log.info(
            "Waiting for room: transactions %s to %s of %s are open, and max_pending is %s. "
            "The next one begins when transaction %s is committed or skipped.",
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
        """A person wants it skipped: nothing is processed; the process with the turn skips it, this task if it can."""
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
        """Skip the tasks before the commit: the committer finds it done, and the tasks after it run.

        :raises AirflowFailException: Airflow would skip some of those as well.
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
