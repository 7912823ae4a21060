"""An application that is run as the task of a stage, and the commit of what it rejects."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from airflow_tx.outputs.staging.area import read_manifest
from airflow_tx.spark import Batch, batch_app
from airflow_tx.state import DeltaTable
from airflow_tx.transaction.commit.update import rejected_update
from airflow_tx.transaction.processing.application import ack_application, describe_batch, emitted_refs
from airflow_tx.transaction.processing.task import Processing
from tests.stage import StageRun
from tests.unit.bench import FakeTi

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def applied(run: StageRun, spark: SparkSession, main: Callable[[Any, Any], None]) -> Processing:
    """Run an application as the task `count`, and ack what it gave."""
    processing = run.processing(FakeTi("count", run.run_id))
    processing.start()
    batch_app(main).run(spark, Batch(describe_batch(processing, {}), spark))
    manifest = read_manifest(processing.where)
    ack_application(processing, manifest, reliable=True)
    run.committer.states["count"] = "success"
    found = emitted_refs(manifest).items()
    run.committer.xcoms.update({("count", name, -1): ref for name, ref in found})
    return processing


def committed(run: StageRun, aside: DeltaTable, *, proven: bool = True) -> list[dict[str, Any]]:
    """Commit what the tasks have rejected; the rows of the table."""
    commit = run.commit_of([rejected_update(aside)])
    commit.complete()
    commit.prepare()
    assert commit.try_to_commit()
    assert commit.processed is not None
    assert (commit.processed.unproven == ()) is proven
    return sorted(aside.read(), key=lambda row: (row["tx_reason"], row["tx_content"]))
