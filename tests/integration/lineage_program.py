"""Tells, as JSON, which facets OpenLineage's provider gives to our operators: run where that provider is installed."""

from __future__ import annotations

import json
import sys
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

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
from openlineage.client.transport.file import (  # type: ignore[import-not-found]
    FileConfig,
    FileTransport,
)

from airflow_tx.ledger.answers import Begun
from airflow_tx.operators.commit import BeginTransactionOperator
from tests.stage import begin_run
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers


def written(where: Path) -> Any:
    """The facet of a task that has begun a transaction, as the file transport writes it."""
    spec = MemorySpec("numbers", "numbers", Numbers(), max_pending=2, memory=CountingStore(), tasks=("first",))
    begun = begin_run(spec, "r1")
    assert isinstance(begun, Begun)
    operator = BeginTransactionOperator(task_id="begin", transaction=spec)
    operator._begun({}, begun)
    found = DefaultExtractor(operator).extract_on_complete(FakeTi("begin", "r1"))
    run = Run(runId="0190a1d2-0000-7000-8000-000000000000", facets=found.run_facets)
    now = datetime.now(timezone.utc).isoformat()
    job = Job(namespace="default", name="begin")
    event = RunEvent(eventType=RunState.COMPLETE, eventTime=now, run=run, job=job)
    log = FileTransport(FileConfig(log_file_path=str(where), append=True))
    OpenLineageClient(transport=log).emit(event)
    return json.loads(where.read_text())["run"]["facets"]["airflow_tx"]


def without_transaction() -> Any:
    """The facets of a task that has begun none."""
    operator = BeginTransactionOperator(task_id="begin", transaction=MemorySpec("numbers", "numbers", Numbers()))
    return operator.get_openlineage_facets_on_complete(FakeTi("begin", "r1")).run_facets


if __name__ == "__main__":
    print(json.dumps({"begun": written(Path(sys.argv[1])), "without": without_transaction()}))
