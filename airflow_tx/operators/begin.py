"""The first task of a run: it gives the run its transaction. Source: protocol.md §3."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from functools import partial
from typing import TYPE_CHECKING, Any, NoReturn

from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx import compat
from airflow_tx.config import Settings
from airflow_tx.errors import AheadOfOrder, Refused, SkippedAfterCommit, SkippedTransaction, TxError
from airflow_tx.failpoints import failpoint
from airflow_tx.metrics import Metric
from airflow_tx.operators.commit import RetriedOperator
from airflow_tx.operators.lineage import LineageOperator
from airflow_tx.spec import WHY_NOT, HasTransaction, TransactionSpec

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.journal.entry import Entry
    from airflow_tx.protocol.answers import AlreadyCommitted, Begun, NoData, WindowFull
    from airflow_tx.protocol.records import TopologyRecord


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
        from airflow_tx.commit.alarm import raise_own_alarms
        from airflow_tx.protocol.answers import AlreadyCommitted, Begun, WindowFull

        spec = self.transaction
        ti = context["ti"]
        failpoint("begin.before_ask", topology=spec.topology, run_id=ti.run_id)
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
            ti.xcom_push(key=WHY_NOT, value=str(error)[:_WHY_KEPT])
            if isinstance(error, Refused):
                raise AirflowFailException(str(error)) from None
            raise
        raise_own_alarms(spec, context, self.log)
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
        from airflow_tx.commit.run_slots import yield_slot

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

    def _check_entry(self, entry: Entry, topology: TopologyRecord) -> None:
        from airflow_tx.commit.restatement import check_entry  # only a restatement loads it

        check_entry(self.transaction, self.dag, entry, topology)

    def _ask(self, context: Context) -> Begun | NoData | WindowFull | AlreadyCommitted:
        from airflow_tx.processing.begin import ask, key_of
        from airflow_tx.processing.order import await_lane, comes_soon

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
        from airflow_tx.protocol.status import size_in_words

        spec = self.transaction
        attempt = begun.attempt
        failpoint(
            "begin.after_allocate",
            topology=spec.topology,
            txid=attempt.txid,
            attempt=attempt.attempt,
        )
        self.note_lineage(spec.topology, begun)
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
        from airflow_tx.commit.run_slots import slots_of
        from airflow_tx.processing.begin import key_of
        from airflow_tx.triggers.ready import ReadyTrigger

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
        from airflow_tx.commit.run_slots import slots_of
        from airflow_tx.processing.begin import key_of
        from airflow_tx.processing.order import gap
        from airflow_tx.protocol.replay import LIVE_RUN_STATES
        from airflow_tx.triggers.order import OrderTrigger

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
        from airflow_tx.commit.handoff import pass_on, states_of, take_skip_in_peace
        from airflow_tx.commit.run_slots import TaskRuns

        spec = self.transaction
        txid = begun.attempt.txid
        assert begun.skip is not None
        self.log.info(
            "Transaction %s is to be skipped (%s: %s)", txid, begun.skip["who"], begun.skip["why"]
        )
        with spec.store() as store:
            ledger = spec.ledger(store)
            states = states_of(context["dag"])
            try:
                ended = take_skip_in_peace(ledger, txid, states, log=self.log)
            except Refused as error:
                raise AirflowFailException(str(error)) from None
            pass_on(ledger, states, TaskRuns(spec.dag_id, context["ti"]), ended, log=self.log)
        self._skip_tasks(context["ti"], spec.inside)

    def _already_committed(self, ti: Any, txid: int) -> dict[str, Any]:
        """Skip the tasks before the commit: the committer finds it done, and the tasks after it run.

        :raises AirflowFailException: Airflow would skip some of those as well.
        """
        from airflow_tx.processing.begin import committed_batch

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
