"""Tells, as JSON, what OpenLineage's provider gets of our operators: run where that provider is installed."""

from __future__ import annotations

import json
import os
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from airflow.providers.common.compat.assets import Asset
from airflow.providers.openlineage.extractors.base import (  # type: ignore[import-not-found]
    DefaultExtractor,
)
from openlineage.client import OpenLineageClient  # type: ignore[import-not-found]
from openlineage.client.event_v2 import (  # type: ignore[import-not-found]
    Job,
    Run,
    RunEvent,
    RunState,
)
from openlineage.client.naming import dataset as naming  # type: ignore[import-not-found]
from openlineage.client.transport.file import (  # type: ignore[import-not-found]
    FileConfig,
    FileTransport,
)

from airflow_tx import FileSource, UpstreamSource
from airflow_tx.ledger.answers import Begun
from airflow_tx.operators.commit import BeginTransactionOperator, CommitOperator
from airflow_tx.sources.api import Source
from airflow_tx.state import Count, DeltaTable, SqlState, SqlTable
from airflow_tx.transaction.commit.update import rejected_update
from tests.stage import StageRun, begin_run, update
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers

LOGIN = {"login": "ulf", "password": "s3cr3t"}


def emit(where: Path, job: str, operator: Any) -> None:
    """Let the file transport write what the provider gets of a task that has ended."""
    found = DefaultExtractor(operator).extract_on_complete(FakeTi(job, "r1"))
    event = RunEvent(
        eventType=RunState.COMPLETE,
        eventTime=datetime.now(timezone.utc).isoformat(),
        run=Run(runId="0190a1d2-0000-7000-8000-000000000000", facets=found.run_facets),
        job=Job(namespace="default", name=job),
        inputs=found.inputs,
        outputs=found.outputs,
    )
    OpenLineageClient(transport=FileTransport(FileConfig(log_file_path=str(where), append=True))).emit(event)


def begun_once() -> Begun:
    """Begin a transaction of a source of numbers."""
    spec = MemorySpec("numbers", "numbers", Numbers(), max_pending=2, memory=CountingStore(), tasks=("first",))
    begun = begin_run(spec, "r1")
    assert isinstance(begun, Begun)
    return begun


def tell_stage(where: Path, name: str, source: Source, updates: list[Any], outlets: list[Any]) -> None:
    """Tell of one transaction: what `begin` and the committer keep of it when they have done their work."""
    spec = MemorySpec(name, name, source, memory=CountingStore(), tasks=("count",))
    run = StageRun(spec, "r1")
    run.begun = begun_once()
    begin = BeginTransactionOperator(task_id="begin", transaction=spec)
    begin._begun({}, run.begun)
    emit(where, f"{name}.begin", begin)
    committer = CommitOperator(task_id="commit", outlets=outlets)
    committer.note_commit_lineage(run.commit_of(updates))
    emit(where, f"{name}.commit", committer)


def tell_chain(folder: Path, where: Path) -> None:
    """Tell of a chain: files, a table, a table of a lake, totals."""
    database = {"conn_type": "sqlite", "host": str(folder / "shop.db"), **LOGIN}
    os.environ["AIRFLOW_TX_CONN_shop"] = json.dumps(database)
    orders = SqlTable("shop", table="orders")
    cleaned = DeltaTable(folder / "cleaned")
    totals = SqlState("shop", table="totals", keys=["day"], values={"orders": Count()})
    files = FileSource(str(folder / "in" / "*.csv"))
    refused = rejected_update(SqlTable("shop", table="refused"))
    tell_stage(where, "orders", files, [update(orders), refused], [Asset("file:///marts/orders")])
    tell_stage(where, "cleaned", UpstreamSource(orders, topology="orders"), [update(cleaned)], [])
    tell_stage(where, "totals", UpstreamSource(cleaned, topology="cleaned"), [update(totals)], [])


def without_transaction() -> Any:
    """What the provider gets of a task that has begun none."""
    operator = BeginTransactionOperator(task_id="begin", transaction=MemorySpec("numbers", "numbers", Numbers()))
    found = operator.get_openlineage_facets_on_complete(FakeTi("begin", "r1"))
    return [found.run_facets, found.inputs, found.outputs]


def without_datasets(where: Path) -> None:
    """Tell of a task whose source knows no place."""
    operator = BeginTransactionOperator(task_id="begin", transaction=MemorySpec("numbers", "numbers", Numbers()))
    operator._begun({}, begun_once())
    emit(where, "numbers.begin", operator)


def conventions() -> dict[str, list[str]]:
    """Spell places as OpenLineage's own client does."""
    of_client = {
        "postgres": naming.Postgres(host="db", port="5432", database="shop", schema="public", table="orders"),
        "mysql": naming.MySQL(host="db", port="3306", database="shop", table="orders"),
        "kafka": naming.Kafka(bootstrap_server_host="k1", port="9092", topic="orders"),
        "s3": naming.S3(bucket_name="lake", object_key="bronze/orders"),
        "gs": naming.GCS(bucket_name="lake", object_key="bronze/orders"),
        "file": naming.LocalFileSystem(path="/lake/orders"),
    }
    return {name: [each.get_namespace(), each.get_name()] for name, each in of_client.items()}


if __name__ == "__main__":
    folder = Path(sys.argv[1])
    events = folder / "events"
    without_datasets(events)
    tell_chain(folder, events)
    written = [json.loads(line) for line in events.read_text().splitlines()]
    told = {each["job"]["name"]: each for each in written}
    print(json.dumps({"events": told, "without": without_transaction(), "conventions": conventions()}))
