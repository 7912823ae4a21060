"""The first task of a run: it gives the run its transaction. Source: PROTOCOL §3."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator
from airflow.sdk.bases.skipmixin import SkipMixin
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException

from airflow_tx import compat
from airflow_tx.config import Settings
from airflow_tx.errors import Refused, SourceError, TxError
from airflow_tx.failpoints import failpoint
from airflow_tx.operators.spec import Payload, TransactionSpec
from airflow_tx.protocol.beginning import BeginRequest, TopologyRequest
from airflow_tx.protocol.records import dumps
from airflow_tx.protocol.step import AlreadyCommitted, Begun, NoData, WindowFull
from airflow_tx.sources.api import as_batch

if TYPE_CHECKING:
    from airflow.sdk import Context


class BeginTransactionOperator(BaseOperator, SkipMixin):
    """Takes the next batch of the source, or the run's own again; made by `Transaction`, never by hand.

    Its XCom is the batch as plain JSON: topology, txid, attempt, rows, position, rows_digest, replay.

    :param transaction: the block it begins.
    :param retries: every line of it may be killed and run again.
    """

    # Without it the scheduler does not look for the tasks that this one has skipped when they are cleared alone.
    inherits_from_skipmixin = True
    template_fields: Sequence[str] = ()
    ui_color = "#d9f2e6"

    def __init__(
        self,
        *,
        transaction: TransactionSpec,
        retries: int = 3,
        retry_delay: timedelta = timedelta(seconds=2),
        **kwargs: Any,
    ) -> None:
        super().__init__(retries=retries, retry_delay=retry_delay, **kwargs)
        self.transaction = transaction

    def execute(self, context: Context) -> dict[str, Any]:
        """Allocate or replay; defer while the window is full.

        :raises AirflowSkipException: the source has no data.
        :raises AirflowFailException: the ledger refuses, and would again.
        """
        spec, ti = self.transaction, context["ti"]
        try:
            with spec.store() as store:
                answer = spec.ledger(store).begin(
                    self._request(ti),
                    decide=self._decide,
                    run_state=lambda run_id: compat.run_state(ti, spec.dag_id, run_id),
                )
        except Refused as error:
            raise AirflowFailException(str(error)) from None
        if isinstance(answer, Begun):
            return self._begun(answer)
        if isinstance(answer, WindowFull):
            self._wait(answer)
        if isinstance(answer, AlreadyCommitted):
            self._skip_all(ti, answer.txid)
        assert isinstance(answer, NoData)
        raise AirflowSkipException(
            f"The source of topology {spec.topology!r} has no rows for a transaction {answer.txid} now."
        )

    def execute_again(self, context: Context, event: dict[str, Any] | None = None) -> dict[str, Any]:
        """Called when there may be room in the window."""
        return self.execute(context)

    def _request(self, ti: Any) -> BeginRequest:
        spec = self.transaction
        return BeginRequest(
            topology=TopologyRequest(spec.dag_id, spec.source.kind.value, spec.window),
            key=ti.run_id,
            run_id=ti.run_id,
            task_try=str(ti.id),
            retry=compat.is_retry(ti, self.retries or 0),
            tasks={task: f"{secrets.randbits(64) or 1:016x}" for task in spec.tasks},
        )

    def _decide(self, txid: int, position: Any) -> tuple[Any, Any] | None:
        """Ask the source, and let whatever goes wrong there be one line: nothing is allocated yet."""
        source = self.transaction.source
        try:
            batch = as_batch(source.initialize_transaction(txid, position)) if source.is_ready() else None
            if batch is not None:
                dumps([batch.rows, batch.position])
        except TxError:
            raise
        except Exception as error:
            raise SourceError(
                source=type(source).__name__,
                problem=f"transaction {txid} after position {dumps(position)[:200]}: {type(error).__name__}: {error}",
                remedy="Nothing was allocated; correct the source, then clear this task.",
            ) from error
        return None if batch is None else (batch.rows, batch.position)

    def _begun(self, begun: Begun) -> dict[str, Any]:
        spec, attempt = self.transaction, begun.attempt
        failpoint("begin.after_allocate", topology=spec.topology, txid=attempt.txid, attempt=attempt.attempt)
        self.log.info(
            "Transaction %s of %s (%s): rows %s",
            attempt,
            spec.topology,
            "replay" if begun.replay else "new",
            dumps(begun.rows)[:2000],
        )
        return Payload(
            topology=spec.topology,
            txid=attempt.txid,
            attempt=attempt.attempt,
            rows=begun.rows,
            position=begun.position,
            rows_digest=begun.rows_digest,
            replay=begun.replay,
        ).to_json()

    def _wait(self, full: WindowFull) -> None:
        from airflow_tx.triggers.ready import ReadyTrigger

        spec = self.transaction
        self.log.info(
            "Waiting for room: transactions %s to %s of %s are open, and max_pending is %s. "
            "The next one begins when %s is committed or skipped.",
            full.current,
            full.allocated,
            spec.topology,
            full.max_pending,
            full.current,
        )
        trigger = ReadyTrigger(
            zookeeper_conn_id=spec.conn_id,
            root=spec.paths.root,
            topology=spec.topology,
            max_pending=full.max_pending,
            hold=Settings.load().min_deferral,
        )
        self.defer(trigger=trigger, method_name="execute_again")

    def _skip_all(self, ti: Any, txid: int) -> None:
        self.log.info(
            "Transaction %s of %s is already committed: its tasks are skipped, nothing is counted again.",
            txid,
            self.transaction.topology,
        )
        assert self.dag is not None
        compat.skip_tasks(self, ti, [self.dag.get_task(task) for task in self.transaction.inside])
