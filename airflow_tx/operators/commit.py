"""The committer: waits for its transaction's turn, updates the states, marks the commit. Source: PROTOCOL §§2, 4, 7."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.sdk import Asset, BaseOperator
from airflow.sdk.exceptions import AirflowFailException

from airflow_tx import compat
from airflow_tx.config import Settings
from airflow_tx.errors import FenceOutranked, Outranked, Refused, StagingError, StateError, StateUnavailable
from airflow_tx.operators.committing import Commit, Completion
from airflow_tx.operators.spec import Payload, TransactionSpec, spec_of
from airflow_tx.operators.turn import Line, Wait, decide, look, watched
from airflow_tx.operators.updates import Update

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.store.zookeeper import ZooKeeperStore

# Another try may have what this one was refused: it outranks in turn, or finds the transaction committed.
_TRY_AGAIN = (StateUnavailable, FenceOutranked, Outranked)


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
        self.inputs = [update.input for update in self.updates]

    def render_template_fields(self, context: Any, jinja_env: Any = None) -> None:
        """Nothing: what is rendered before the turn may not be what was acked, and rows are no text for the UI."""

    def execute(self, context: Context) -> None:
        """Commit, or wait for it.

        :raises AirflowFailException: the ledger or a state refuses, and would again.
        """
        spec, ti = spec_of(context["dag"]), context["ti"]
        payload = Payload.of_run(ti, spec)
        try:
            with spec.store() as store:
                commit = Commit(spec, payload, self.updates, spec.ledger(store), ti, self.log)
                self._until_committed(context, commit, store)
        except _TRY_AGAIN:
            raise
        except (Refused, StateError, StagingError) as error:
            raise AirflowFailException(str(error)) from None
        for outlet in self.outlets:
            if isinstance(outlet, Asset):
                extra = context["outlet_events"][outlet].extra
                extra.update(topology=spec.topology, txid=payload.txid, attempt=payload.attempt)

    def execute_turn(self, context: Context, event: dict[str, Any] | None = None) -> None:
        """Called when the turn is near."""
        self.execute(context)

    def _until_committed(self, context: Context, commit: Commit, store: ZooKeeperStore) -> None:
        spec = commit.spec
        patience = time.monotonic() + Settings.load().warm_wait
        line: Line | None = None
        while (completion := commit.complete()) is not Completion.OVER:
            before, line = line, look(store, spec.paths, commit.payload.txid)
            if before is not None and line.op != before.op and line.op is not None:
                commit.forget()
                continue
            wait = decide(line)
            if completion is Completion.NOT_YET:
                wait = Wait.WARM
            if wait is Wait.DEFERRED or (wait is Wait.WARM and time.monotonic() >= patience):
                self._log_wait(context, spec, line)
                self._defer(spec, line)
            if completion is Completion.READY:
                commit.prepare()
                if wait is Wait.NOT and commit.commit():
                    return
            if wait is Wait.WARM:
                self._watch(store, spec, line, patience)

    def _watch(self, store: ZooKeeperStore, spec: TransactionSpec, line: Line, patience: float) -> None:
        paths = spec.paths
        with store.watch(*watched(paths, line), paths.acks(line.txid)) as watch:
            # What changed before the watches were set would never be told.
            if look(store, paths, line.txid) == line:
                self.log.info(
                    "Transaction %s of %s waits here: the turn is at %s", line.txid, spec.topology, line.current
                )
                watch.wait(max(patience - time.monotonic(), 0.0))

    def _defer(self, spec: TransactionSpec, line: Line) -> None:
        from airflow_tx.triggers.turn import TurnTrigger

        trigger = TurnTrigger(
            zookeeper_conn_id=spec.conn_id,
            root=spec.paths.root,
            topology=spec.topology,
            txid=line.txid,
            op=line.op,
            hold=Settings.load().min_deferral,
        )
        self.defer(trigger=trigger, method_name="execute_turn")

    def _log_wait(self, context: Context, spec: TransactionSpec, line: Line) -> None:
        first = line.earlier.get(line.current)
        if first is None:
            return
        state = compat.run_state(context["ti"], spec.dag_id, first.run_id)
        self.log.info(
            "Transaction %s of %s waits for transaction %s (run %s, which %s; %s). %s",
            line.txid,
            spec.topology,
            first.txid,
            first.run_id,
            f"is {state}" if state else "was deleted",
            first.phase.value,
            _advice(spec, first.txid, state),
        )


def _advice(spec: TransactionSpec, txid: int, state: str | None) -> str:
    if state in ("queued", "running"):
        return "Nothing is to be done." if state == "running" else "It needs a run slot: max_active_runs."
    remedy = "Clear that run" if state else "Start a run with that run id"
    return f"{remedy}, or: airflow tx skip {spec.topology} {txid}"
