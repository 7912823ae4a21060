"""A ledger with the story of `test_ledger`, an Airflow and a DAG file in this process, for the board's API."""

from __future__ import annotations

import json
import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from airflow import settings
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.sdk import DAG, task
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.base import compat
from airflow_tx.base.config import Settings
from airflow_tx.hooks import zookeeper
from airflow_tx.ledger.audit.rebuild import state_lost
from airflow_tx.ledger.records import Loss
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.operations.actions import dag_server, dags, ledger_places
from airflow_tx.plugin.api import dag_process, redaction, snapshots
from airflow_tx.sources.files.source import FileSource
from airflow_tx.state.aggregators import Sum
from airflow_tx.state.sql.state import SqlState
from tests.golden.story import story
from tests.model.driver import Topology

ROOT = "/golden"
DAG_ID = "trace"
RUNS = {
    "r1": "success",
    "r2": "success",
    "r5": "failed",
    "r7": "failed",
    "r8": "queued",
    "r10": "queued",
    "r3": "running",
}
BEGAN = datetime(2013, 1, 1, tzinfo=timezone.utc)
SAME_ORIGIN = {"X-Requested-With": "airflow_tx"}


class KeptStore(MemoryStore):
    """The ledger, with what the board asks of its client, too."""

    lost_for = 0.0
    ended = False

    def check(self) -> None: ...

    def mark(self, path: str) -> None:
        """Every look is a new one."""


class HereProcess:
    """Answers as the process that runs DAG files, in this one."""

    def __init__(self) -> None:
        self._server = dag_server.DagServer()

    def ask(self, question: dict[str, Any], *, seconds: float = 0.0, about: str = "") -> Any:
        asked = json.loads(json.dumps({"id": 1, **question}))
        answer = json.loads(json.dumps(dag_server._answered(asked, self._server.answer)))
        if "refused" in answer:
            raise dag_process.RefusedThere(text=answer["refused"])
        if "failed" in answer:
            raise dag_process.FailedThere(text=answer["failed"])
        return answer["found"]


@pytest.fixture
def store() -> KeptStore:
    return KeptStore()


@pytest.fixture
def topology(store: KeptStore, tmp_path: Path) -> Topology:
    url = f"sqlite:///{tmp_path / 'state.db'}"
    state = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()}, types={"key": "text"})
    topology = Topology(lambda: store, ROOT, [state])
    story(topology)
    topology.ledger().run(state_lost, state.name, Audit("ada", "restored from a backup"))
    return topology


@pytest.fixture
def airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Airflow's database, in memory, with the runs of the DAG."""
    import_all_models()  # type: ignore[no-untyped-call]
    engine = sqlalchemy.create_engine("sqlite://", poolclass=StaticPool, connect_args={"check_same_thread": False})
    Base.metadata.create_all(engine)
    monkeypatch.setattr(settings, "Session", scoped_session(sessionmaker(engine, expire_on_commit=False)))
    with engine.begin() as connection:

        def insert(table: str, **values: Any) -> None:
            connection.execute(Base.metadata.tables[table].insert().values(**values))

        for dag_id in (DAG_ID, f"{DAG_ID}_coordinator"):
            insert(
                "dag", dag_id=dag_id, is_paused=False, is_stale=False, exceeds_max_non_backfill=False,
                bundle_name="dags", timetable_type="", timetable_partitioned=False, max_active_tasks=16,
                max_consecutive_failed_dag_runs=0, has_task_concurrency_limits=False, fail_fast=False,
                **({} if compat.is_airflow_3_2() else {"timetable_periodic": False, "partition_mapper_info": []}),
            )  # fmt: skip
        for number, (run_id, state) in enumerate(RUNS.items(), 1):
            begins = BEGAN + timedelta(minutes=number)
            insert(
                "dag_run", id=number, dag_id=DAG_ID, run_id=run_id, state=state, run_type="manual", run_after=begins,
                clear_number=0, span_status="not_started", conf={},
            )  # fmt: skip
            for name, operator in (("begin", "BeginTransactionOperator"), ("commit", "CommitOperator")):
                insert(
                    "task_instance", id=uuid.uuid4(), task_id=name, dag_id=DAG_ID, run_id=run_id,
                    map_index=-1, try_number=1, max_tries=0, pool="default_pool", pool_slots=1,
                    span_status="not_started", operator=operator, state=state, start_date=BEGAN, end_date=BEGAN,
                )  # fmt: skip
            said = {"name": "new_totals", "rows": number}
            insert(
                "xcom", dag_run_id=number, task_id="commit", map_index=-1, key="new_totals", dag_id=DAG_ID,
                run_id=run_id, timestamp=begins, value=json.dumps(said),
            )  # fmt: skip


@pytest.fixture
def here(topology: Topology, store: KeptStore, airflow: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A ledger, an Airflow and a DAG file in this process."""
    monkeypatch.setenv("AIRFLOW__TX__ROOT", ROOT)
    conn_id = Settings.load().zookeeper_conn_id
    client = SimpleNamespace(store=lambda: store, store_of_steps=lambda: store, failed=lambda: None)
    monkeypatch.setattr(snapshots, "_clients", {(os.getpid(), conn_id): client})
    monkeypatch.setattr(ledger_places, "_places", ledger_places.LedgerPlaces())
    monkeypatch.setattr(snapshots, "_snapshots", snapshots.LedgerSnapshots())
    monkeypatch.setattr(redaction, "_connections", list)
    monkeypatch.setattr(zookeeper, "shared_store", lambda conn_id: store)
    monkeypatch.setattr(dag_process, "_dag_process", HereProcess())
    monkeypatch.setattr(dag_process, "EVERY", float("inf"))  # a source that is asked once more has one more lag
    monkeypatch.setattr(dag_process, "_lag_board", dag_process.LagBoard(HereProcess()))  # type: ignore[arg-type]

    @contextmanager
    def connected(hook: zookeeper.ZooKeeperHook) -> Iterator[KeptStore]:
        yield store

    monkeypatch.setattr(zookeeper.ZooKeeperHook, "store", connected)
    parsed = SimpleNamespace(dags={DAG_ID: _dag(topology)}, import_errors={})
    monkeypatch.setattr(dags, "_bags", lambda dag_id, anywhere: [parsed])


class Numbers(FileSource):
    """The source of the story: numbers; some were lost."""

    def backlog(self, position: Any) -> int:
        return 100 - int(position)

    def contains(self, metadata: Any, what: str) -> bool:
        return int(what) in range(*metadata)

    def losses(self, position: Any) -> list[Loss]:
        return [Loss("", position, 20, f"rows {position} to 19")]


def _dag(topology: Topology) -> DAG:
    with DAG(DAG_ID, schedule=None, max_active_runs=16) as dag:
        rejected = getattr(topology, "rejected", None)
        with Transaction(source=Numbers("/nowhere/*.csv"), topology="trace", ackers=2, rejected=rejected) as tx:

            @task
            def count(batch: Any) -> list[Any]:
                return []

            CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state=topology.states[0])])
    return dag
