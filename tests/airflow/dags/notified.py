"""A task after the commit that sends a message: one line in the file that the run's conf names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task
from counting import Numbers, count, misbehave, state

from airflow_tx import CommitOperator, Transaction, commit_phase, current_batch, persistent_aggregate
from airflow_tx.sources import Batch, Json


class FewNumbers(Numbers):
    """Three transactions, then no more rows."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "notified.FewNumbers", {}

    def initialize_transaction(self, txid: int, position: Json) -> Batch | None:  # type: ignore[override]
        return super().initialize_transaction(txid, position) if txid <= 3 else None


@task
def notify(batch: dict[str, Any]) -> None:
    """Send which numbers were committed, unless the run's conf makes it fail."""
    conf = get_current_context()["dag_run"].conf
    if Path(conf["unreachable"]).exists():
        raise RuntimeError("nobody answers")
    own = current_batch()
    with Path(conf["messages"]).open("a") as file:
        file.write(f"{own.txid} {batch['txid']} {batch['rows']} {own.metadata}\n")


@task
def late(rows: list[dict[str, Any]]) -> None:
    misbehave()


with DAG("notified", schedule=None, max_active_runs=16):
    with Transaction(source=FewNumbers(), max_pending=4) as tx:
        updates = [persistent_aggregate(count(tx.batch), state=state("notified"))]
        commit = CommitOperator(task_id="commit", updates=updates)
    commit >> notify(tx.batch)

with DAG("notified_phase", schedule=None, max_active_runs=16):
    with Transaction(source=FewNumbers(), max_pending=4) as tx:
        counted = count(tx.batch)
        with commit_phase() as phase:
            update = persistent_aggregate(counted, state=state("notified_phase"))
            CommitOperator(task_id="commit", updates=[update]) >> late(counted)
    phase.mark >> notify(tx.batch)

with DAG("needy", schedule=None, max_active_runs=16):
    with Transaction(source=Numbers(), max_pending=4) as tx:
        counted = count(tx.batch)
        commit = CommitOperator(task_id="commit", updates=[persistent_aggregate(counted, state=state("needy"))])
    commit >> late(counted)
