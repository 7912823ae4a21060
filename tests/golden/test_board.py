"""What the board's API answers and what commands print for programs, after the story of `test_ledger`."""

from __future__ import annotations

import json
import os
import re
import uuid
from argparse import ArgumentParser
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import sqlalchemy
from airflow import settings
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.models import import_all_models
from airflow.models.base import Base
from airflow.sdk import DAG, task
from fastapi.testclient import TestClient
from sqlalchemy.orm import scoped_session, sessionmaker
from sqlalchemy.pool import StaticPool

from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.base.config import Settings
from airflow_tx.hooks import zookeeper
from airflow_tx.ledger.answers import Loss
from airflow_tx.ledger.audit.rebuild import state_lost
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.operations.actions import dag_server, dags, ledger_places
from airflow_tx.operations.cli import context
from airflow_tx.operations.cli.definition import get_tx_cli_commands
from airflow_tx.plugin.api import access, app, dag_process, redaction, snapshots
from airflow_tx.sources.files.source import FileSource
from airflow_tx.state.aggregators import Sum
from airflow_tx.state.sql.state import SqlState
from tests.golden.story import story
from tests.golden.written import check_golden
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

    def ask(self, question: dict[str, Any], *, seconds: float, about: str = "") -> Any:
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
                bundle_name="dags", timetable_type="", timetable_partitioned=False, timetable_periodic=False,
                partition_mapper_info=[], max_active_tasks=16, max_consecutive_failed_dag_runs=0,
                has_task_concurrency_limits=False, fail_fast=False,
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
        with Transaction(source=Numbers("/nowhere/*.csv"), topology="trace", ackers=2) as tx:

            @task
            def count(batch: Any) -> list[Any]:
                return []

            CommitOperator(task_id="commit", updates=[persistent_aggregate(count(tx.batch), state=topology.states[0])])
    return dag


@pytest.fixture
def client(here: None, monkeypatch: pytest.MonkeyPatch) -> TestClient:
    manager = SimpleAuthManager()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    made = app.make_app()
    ada = access.Access(SimpleAuthManagerUser(username="ada", role="admin"))
    made.dependency_overrides[access.access_of] = lambda: ada
    return TestClient(made, raise_server_exceptions=False)


def known(answer: Any) -> Any:
    """Leave out of an answer which moment it is now, and the ids of this run."""
    text = answer if isinstance(answer, str) else json.dumps(answer)
    text = re.sub(r"20(?!13)\d\d-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|\+00:00)", "NOW", text)
    return text if isinstance(answer, str) else json.loads(text)


def test_every_route_that_reads_answers_as_ever(client: TestClient) -> None:
    def get(path: str, **params: Any) -> Any:
        answer = client.get(f"/api/v1/{path}", params=params)
        assert answer.status_code < 500, answer.text
        return {"status": answer.status_code, "body": known(answer.json())}

    get("topologies")
    asking = dag_process.lag_board()._thread
    assert asking is not None
    asking.join()
    span = {"since": "2013-01-01T00:00:00Z", "until": "2013-01-01T01:00:00Z"}
    paths = [
        "topologies", "topologies/trace", "topologies/nothing", "topologies/trace/transactions",
        *(f"topologies/trace/transactions/{txid}" for txid in range(9)), "dags/trace", "dags/nothing",
        *(f"dags/trace/runs/{run_id}" for run_id in ("r1", "r8", "r9", "r10", "r11")),
    ]  # fmt: skip
    found = {path: get(path) for path in paths}
    found["none of the overview"] = get("topologies", state="fine", text="trace")
    found["a page of the timeline"] = get("topologies/trace/transactions", limit=2, before=5, **span)
    found["rows of a filter"] = get("topologies/trace/transactions", status="FAILED", limit=1, earlier=True)
    found["figures"] = get("topologies/trace/figures", **span)
    found["search"] = get("topologies/trace/search", what="2")
    found["no zone"] = get("topologies/trace/figures", since="2013-01-01T00:00:00")
    check_golden("board_reads", found)


def test_every_action_is_previewed_and_done_as_ever(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    from airflow_tx.base import compat

    monkeypatch.setattr(compat, "clear_run", lambda *args, noting=bool, **kwargs: noting() or True)
    logged: list[Any] = []
    monkeypatch.setattr(compat, "log_action", lambda event, **entry: logged.append([event, entry]))

    def post(path: str, **body: Any) -> Any:
        answer = client.post(f"/api/v1/topologies/trace/actions/{path}", json=body, headers=SAME_ORIGIN)
        assert answer.status_code < 500, answer.text
        return {"status": answer.status_code, "body": known(answer.json())}

    wanted: Mapping[str, dict[str, Any]] = {
        "pause": {}, "unpause": {}, "accept-loss": {}, "readmit": {"txids": [3]}, "skip": {"txids": [6]},
        "replay": {"txids": [7, 99], "force": True}, "replay-failed": {}, "nothing": {},
    }  # fmt: skip
    found: dict[str, Any] = {name: post(f"{name}/preview", **body) for name, body in wanted.items()}
    found["changed rows"] = post("replay/preview", txids=[7], changed_rows=True)
    found["two skips"] = post("skip/preview", txids=[6, 7])
    found["no reason"] = post("skip", txids=[6], version="")
    for name in ("replay-failed", "skip", "replay"):
        version = post(f"{name}/preview", **wanted[name])["body"]["version"]
        found[f"{name} done"] = post(name, version=version, why="a bad file", **wanted[name])
        found[f"{name} done again"] = post(name, version=version, why="a bad file", **wanted[name])
    found["audit log"] = json.loads(
        json.dumps([[event, {**entry, "entries": [*entry["entries"]]}] for event, entry in logged])
    )
    check_golden("board_actions", found)


READS = (
    "list", "list trace", "list trace --status failed", "list --no-lag", "show trace", "show nothing",
    *(f"show trace {txid}" for txid in range(9)),
    "find trace 2", "receipts trace", "verify trace", "verify trace --values", "state get trace url.totals",
)  # fmt: skip
DEEDS = (
    "skip trace 6", "readmit trace 3", "replay trace 7", "replay trace 7 99", "replay trace --failed",
    "replay trace 7 --changed-rows", "accept-loss trace", "accept-change trace --state url.totals",
    "repair trace --reset", "repair trace --ledger-lost", "repair trace --state-lost url.totals", "delete trace",
    "state forget trace url.totals", "rename trace",
)  # fmt: skip
DONE = ("accept-loss trace", "skip trace 6", "skip trace 1", "replay trace --failed", "readmit trace 3")


@pytest.mark.parametrize("output", ["json", "table"])
def test_every_command_prints_as_ever(
    here: None, output: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow.utils import db

    from airflow_tx.base import compat

    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(db, "check_and_run_migrations", lambda: None)
    monkeypatch.setattr(compat, "clear_run", lambda *args, noting=bool, **kwargs: noting() or True)
    monkeypatch.setattr(context, "getuser", lambda: "ada")
    parser = ArgumentParser()
    _add(parser, get_tx_cli_commands()[0])
    done = [f"{line} --why text --yes" if "replay" not in line else line for line in DONE]
    found = {}
    for line in (*READS, *(f"{line} --dry-run" for line in DEEDS), *done):
        args, _ = parser.parse_known_args([*line.split(), "--output", output])
        code: Any = 0
        try:
            args.func(args)
        except SystemExit as end:
            code = end.code
        printed = capsys.readouterr()
        is_read = output == "json" and printed.out.startswith("[")
        out = json.loads(printed.out) if is_read else printed.out.splitlines()
        found[line] = {"out": known(out), "err": known(printed.err).splitlines(), "code": known(code)}
    check_golden(f"commands_{output}", found)


def _add(parser: ArgumentParser, command: Any) -> None:
    """Add a command, or a group of these, as Airflow's own parser does."""
    if hasattr(command, "subcommands"):
        below = parser.add_subparsers()
        for each in command.subcommands:
            _add(below.add_parser(each.name), each)
        return
    for arg in command.args:
        arg.add_to_parser(parser)
    parser.set_defaults(func=command.func)
