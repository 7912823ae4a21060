"""The process behind Skip, Accept a loss and changed rows, with all that it imports."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.plugin.api.dag_process import DagProcess, FailedThere, RefusedThere
from airflow_tx.testing.eventually import eventually
from tests.integration.board.server import ROOT, Board
from tests.integration.pipeline import Pipeline


def fresh(board: Board, **more: str) -> DagProcess:
    """A process that has imported nothing, as the api-server of the board starts it, with more in its environment."""
    return DagProcess(environ={**board.commands.environment, "AIRFLOW__TX__ROOT": ROOT, **more})


@pytest.mark.long
def test_simultaneous_requests_to_a_new_dag_process_are_all_answered(board: Board, pipeline: Pipeline) -> None:
    pipeline.begin("r1")
    conn_id = "zookeeper_default"
    request = {
        "topology": "flights", "conn_id": conn_id, "root": ROOT, "coordinator": "flights_coordinator", "name": "replay",
        "txids": [1], "force": True, "changed_rows": True,
    }  # fmt: skip
    preview = {"what": "preview", "action": request}
    lag = {"lags": [["flights", "the_dag", conn_id, ROOT, "flights"]]}
    process = fresh(board)

    def asked(question: dict[str, Any]) -> str:
        try:
            process.ask(question, seconds=600)
        except RefusedThere:
            pass  # a refusal is an answer, too
        return "answered"

    questions = [preview, lag] * 4
    try:
        with ThreadPoolExecutor(len(questions)) as pool:
            assert list(pool.map(asked, questions)) == ["answered"] * len(questions)
    finally:
        process.end()


_KEEP = """
from airflow.models import Connection, Variable
from airflow.utils.session import create_session

with create_session() as session:
    session.add(Connection(conn_id="conn_in_database", conn_type="http", host="host-in-database"))
    Variable.set("variable_in_database", "in_database", session=session)
"""


@pytest.mark.worth("secrets that the code of a DAG file must not see")
def test_a_dag_file_can_read_its_own_settings_but_no_secret_of_the_api_server(
    board: Board, store: ZooKeeperStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline = Pipeline(store, ROOT, topology="reads")
    pipeline.request = TopologyRequest("reads", "opaque", 3)
    pipeline.run("r1")
    board.commands.python(_KEEP)
    files = {
        "variables_file_path": {"variable_in_backend": "in_backend"},
        "connections_file_path": {"conn_in_backend": {"conn_type": "http", "host": "host-in-backend"}},
    }
    for name, content in files.items():
        (board.home / f"{name}.json").write_text(json.dumps(content))
    database = f"sqlite:///{board.home}/airflow.db"
    monkeypatch.setenv("AIRFLOW__TX__DAG_ENVIRONMENT", "NAMED_*")
    process = fresh(
        board,
        AIRFLOW_CONN_CONN_IN_ENVIRONMENT=json.dumps({"conn_type": "http", "host": "host-in-environment"}),
        AIRFLOW_VAR_VARIABLE_IN_ENVIRONMENT="in_environment",
        AIRFLOW__SECRETS__BACKEND="airflow.secrets.local_filesystem.LocalFilesystemBackend",
        AIRFLOW__SECRETS__BACKEND_KWARGS=json.dumps({name: str(board.home / f"{name}.json") for name in files}),
        AIRFLOW__DATABASE__SQL_ALCHEMY_CONN=database,
        AIRFLOW__CELERY__BROKER_URL="redis://secret",
        NAMED_BY_OPTION="named",
        PASSWORD_OF_SOMETHING="secret",
    )
    place = ["reads", "reads", "zookeeper_default", ROOT, "reads"]
    try:
        (answer,) = process.ask({"lags": [place]}, seconds=600).values()
    finally:
        process.end()
    assert answer["count"] == 7, answer
    for seen in json.loads(answer["description"]):
        assert seen["hosts"] == ["host-in-environment", "host-in-database", "host-in-backend"]
        assert seen["variables"] == ["in_environment", "in_database", "in_backend"]
        assert (seen["option"], seen["environment"]["NAMED_BY_OPTION"]) == (ROOT, "named")
        assert seen["database"] == seen["environment"]["AIRFLOW__DATABASE__SQL_ALCHEMY_CONN"]
        assert seen["database"] == "airflow-db-not-allowed:///"
        hidden = {name for name in board.commands.environment if name.startswith("AIRFLOW__API")}
        hidden |= {"AIRFLOW__CELERY__BROKER_URL", "PASSWORD_OF_SOMETHING"}
        hidden |= {"AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE"}
        assert "AIRFLOW__API_AUTH__JWT_SECRET" in hidden
        assert hidden & seen["environment"].keys() == set()


def children(of: int) -> set[int]:
    """The processes that a process has started, and that have not ended."""
    found = set()
    for stat in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):
            fields = stat.read_text().rpartition(")")[2].split()
            if int(fields[1]) == of and fields[0] != "Z":
                found.add(int(stat.parent.name))
    return found


def search(process: DagProcess, dag_id: str, topology: str) -> Any:
    place = (dag_id, "zookeeper_default", ROOT, topology)
    return process.ask({"find": place, "what": "1"}, seconds=600)


def test_a_dag_file_that_hangs_during_import_does_not_delay_requests_about_other_topologies(
    board: Board, pipeline: Pipeline, store: ZooKeeperStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pipeline.run("r1")
    stuck = Pipeline(store, ROOT, topology="stuck")
    stuck.request = TopologyRequest("stuck", "opaque", 3)
    stuck.run("r1")
    hang = tmp_path / "hang"
    hang.touch()
    before = children(os.getpid())
    monkeypatch.setenv("AIRFLOW__TX__DAG_ENVIRONMENT", "HANG_*")
    process = fresh(board, HANG_AT_IMPORT=str(hang), AIRFLOW__CORE__DAGBAG_IMPORT_TIMEOUT="600")
    try:
        with ThreadPoolExecutor(1) as pool:
            first = pool.submit(search, process, "stuck", "stuck")
            eventually(lambda: hang.read_text() != "", 240, "the file is imported")
            assert search(process, "the_dag", "flights")["looked"] == 1
            assert not first.done()
            # The file that hangs is not imported a second time.
            with pytest.raises(FailedThere, match=r"The file of DAG stuck \(.*stuck\.py\) takes long to read"):
                search(process, "stuck", "stuck")
            assert hang.read_text() == "1"
            assert len(children(os.getpid()) - before) == 2
            hang.unlink()
            assert first.result()["looked"] == 1
        assert search(process, "stuck", "stuck")["looked"] == 1
        eventually(lambda: len(children(os.getpid()) - before) == 1, 240, "the process that hung has ended")
    finally:
        hang.unlink(missing_ok=True)
        process.end()
    assert children(os.getpid()) <= before
