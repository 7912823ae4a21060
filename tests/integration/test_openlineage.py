"""The facet of a transaction in what OpenLineage's file transport writes, where its provider is installed."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.operators.begin import BeginTransactionOperator
from airflow_tx.protocol.answers import Begun
from tests.stage import begin_run
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers


def test_a_run_of_our_operators_has_its_transaction_as_a_facet(tmp_path: Path) -> None:
    base: Any = pytest.importorskip("airflow.providers.openlineage.extractors.base")
    client: Any = pytest.importorskip("openlineage.client")
    events: Any = pytest.importorskip("openlineage.client.event_v2")
    transport: Any = pytest.importorskip("openlineage.client.transport.file")

    spec = MemorySpec("numbers", "numbers", Numbers(), max_pending=2, memory=CountingStore(), tasks=("first",))
    begun = begin_run(spec, "r1")
    assert isinstance(begun, Begun)
    operator = BeginTransactionOperator(task_id="begin", transaction=spec)
    operator._begun({}, begun)

    found = base.DefaultExtractor(operator).extract_on_complete(FakeTi("begin", "r1"))
    where = tmp_path / "events"
    log = transport.FileTransport(transport.FileConfig(log_file_path=str(where), append=True))
    run = events.Run(runId="0190a1d2-0000-7000-8000-000000000000", facets=found.run_facets)
    now = datetime.now(timezone.utc).isoformat()
    event = events.RunEvent(
        eventType=events.RunState.COMPLETE, eventTime=now, run=run, job=events.Job(namespace="default", name="begin")
    )
    client.OpenLineageClient(transport=log).emit(event)
    facet = json.loads(where.read_text())["run"]["facets"]["airflow_tx"]
    facts = {name: facet.get(name) for name in ("topology", "txid", "attempt", "position", "rows", "restates")}
    assert facts == {"topology": "numbers", "txid": 1, "attempt": 1, "position": 10, "rows": None, "restates": None}


def test_a_task_without_a_transaction_has_no_facet() -> None:
    pytest.importorskip("airflow.providers.openlineage.extractors.base")
    operator = BeginTransactionOperator(task_id="begin", transaction=MemorySpec("numbers", "numbers", Numbers()))
    assert operator.get_openlineage_facets_on_complete(FakeTi("begin", "r1")).run_facets == {}
