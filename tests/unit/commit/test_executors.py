"""An update that executors write: by which driver, what they are told, what is made of their answers.

What starts Spark is replaced: that is another process, and tests/integration has the real one.
"""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
from msgspec import to_builtins

from airflow_tx.base.errors import FenceOutranked, RowsDiffer, StateError
from airflow_tx.ledger.receipt import Written
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.outputs.staging.area import Output, StagedFile, StagingArea
from airflow_tx.spark import connect, writers
from airflow_tx.spark.new_values import NewValuesOutput
from airflow_tx.spark.writers import WriteJob, WritersFailed
from airflow_tx.state import Count, MemoryState
from airflow_tx.state.arrow import RowTally
from airflow_tx.testing.suites.aggregator_cases import Balance
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit import write as spark_writers
from airflow_tx.transaction.commit.write import StagedRows, spark_label, write_by_spark
from tests.unit.commit.staged import ATTEMPT, counted, ref

ROWS = counted(5)
PART = {"files": [{"name": "part", "size": 1, "rows": 5}], "columns": ["word", "n"]}


class Parallel(MemoryState):
    """Notes with what a grant is completed."""

    def __init__(self, **values: Any) -> None:
        super().__init__("words", keys=["word"], values=values or {"n": Count()})
        self.completed: list[tuple[Written, bool]] = []

    def for_executors(self) -> Any:
        return "a copy of it"

    def write(self, grant: Any, rows: Any, *, chunk: int = 0, complete: bool = True) -> int:
        assert list(rows) == []
        self.completed.append((grant.written, complete))
        return 0


def answer(rows: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    """What an executor says of its chunk."""
    tally = RowTally(rows)
    keys = len(list(tally))
    return {"keys": keys, "rows": keys, "written": to_builtins(tally.written(keys)), **more}


class Server:
    """A Spark Connect server that answers as a test says.

    :ivar job: what it was given, with the grant of `seal`.
    """

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answers: list[Any] = [answer(ROWS[:2]), answer(ROWS[2:])]
        self.job: WriteJob | None = None
        self.sessions: list[tuple[str, Any, Any]] = []
        monkeypatch.setattr(connect, "session", self.session)
        monkeypatch.setattr(writers, "run_writers", self.run)
        monkeypatch.setattr(writers, "seal", self.seal)

    def session(self, url: str, *, tag: str, server: str) -> AbstractContextManager[str]:
        self.sessions.append((url, tag, server))
        return nullcontext("a session")

    def seal(self, state: Any, grant: Any, schema: Any, place: Any = None) -> bytes:
        self.sealed = (state, grant, schema.names, place)
        return pickle.dumps("sealed")

    def run(self, session: Any, job: WriteJob, sealed: bytes) -> list[Any]:
        assert (session, sealed) == ("a session", pickle.dumps("sealed"))
        self.job = job
        return self.answers


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    return Server(monkeypatch)


@pytest.fixture
def written(area: StagingArea, server: Server) -> Callable[..., Written]:
    def write(
        state: Any, *, spark: str = "sc://spark:15002/;token=abc", output: Any = None, digest: str = "", **how: Any
    ) -> Any:
        emitted = ref(area, [{**row, "step": 1} for row in ROWS], row_digest=digest, **how)
        rows = StagedRows(area, emitted, state, ATTEMPT)
        return write_by_spark(state, Grants()(1), rows, spark, partitions=3, dag_file="/dags/d.py", output=output)

    return write


def test_the_grant_is_completed_with_the_number_of_rows_that_all_executors_wrote(server: Server, written: Any) -> None:
    state, tally = Parallel(), RowTally(ROWS)
    list(tally)
    assert written(state) == tally.written(5)
    assert state.completed == [(tally.written(5), True)]


@pytest.mark.parametrize(
    ("values", "columns", "ordered"),
    [({}, ["word", "n"], False), ({"n": Count(), "balance": Balance()}, ["word", "n", "step"], True)],
)
def test_executors_receive_the_files_to_read_and_the_number_of_chunks(
    server: Server, written: Any, values: Any, columns: list[str], ordered: bool
) -> None:
    written(Parallel(**values))
    job = server.job
    assert job is not None
    assert (job.name, job.columns, job.keys, job.partitions) == ("suite 1.1 words", columns, ["word"], 3)
    assert (job.ordered, [Path(file).name for file in job.files]) == (ordered, ["part-0.parquet"])
    assert server.sessions == [("sc://spark:15002/;token=abc", job.name, "sc://spark:15002/")]
    assert server.sealed[0] == "a copy of it"
    assert server.sealed[2:] == (columns, None)


def test_a_commit_fails_if_the_executors_wrote_fewer_rows_than_the_output_has(server: Server, written: Any) -> None:
    state = Parallel()
    server.answers = server.answers[:1]
    with pytest.raises(StateError, match="the executors of Spark wrote only 2 of 5 rows. Clear the whole run"):
        written(state)
    assert state.completed == []


def test_a_commit_is_refused_if_the_fence_refuses_one_executor(server: Server, written: Any) -> None:
    outranked = {"error": "FenceOutranked", "fields": {"state": "s", "token": "1", "found": "2"}}
    server.answers = [*server.answers, outranked]
    with pytest.raises(FenceOutranked):
        written(Parallel())


def test_a_commit_fails_if_spark_reads_other_rows_than_the_task_emitted(server: Server, written: Any) -> None:
    emitted = RowsDigest(5, 7, "xxh64-1")
    for digest, fits in ((7, True), (8, False)):
        read = {"keys": 0, "rows": 0, "read": RowsDigest(5, digest, "xxh64-1").to_json()}
        server.answers = [*server.answers[:2], read]
        if fits:
            assert written(Parallel(), digest=emitted.text).keys == 5
        else:
            with pytest.raises(RowsDiffer, match="were read from output 'counts'"):
                written(Parallel(), digest=emitted.text)
            assert written(Parallel(), digest=emitted.text, reliable=False).keys == 5


def test_the_files_of_new_values_that_executors_have_staged_become_one_output(server: Server, written: Any) -> None:
    place: Any = "where they go"
    output = NewValuesOutput(place)
    server.answers[1]["part"] = PART
    written(Parallel(), output=output)
    assert output.parts == [Output((StagedFile("part", 1, 5),), ("word", "n"))]
    assert server.sealed[3] == "where they go"


def test_the_parameters_of_a_spark_address_are_not_shown() -> None:
    assert spark_label("sc://spark:15002/;token=abc") == "sc://spark:15002/"
    assert spark_label("local[2]") == "local[2]"


@pytest.mark.parametrize(
    ("which", "kind", "address"),
    [
        ("sc://spark:15002", None, "sc://spark:15002"),
        ("local", None, None),
        ("local[2]", None, None),
        ("yarn", None, None),
        ("yarn-client", None, None),
        ("spark://host:7077", None, None),
        ("k8s://host", None, None),
        ("own", "spark", None),
        ("own", "spark_connect", "sc://own:15002/"),
        ("localhost", "spark", None),
    ],
    ids=range(10),
)
def test_a_connection_id_or_an_address_selects_the_spark_driver(
    monkeypatch: pytest.MonkeyPatch, which: str, kind: str | None, address: str | None
) -> None:
    if kind:
        made = {"conn_type": kind, "host": "sc://own" if kind == "spark_connect" else "local", "port": 15002}
        monkeypatch.setenv(f"AIRFLOW_CONN_{which.upper()}", json.dumps(made))
    assert spark_writers._connect_url(which) == address


# --- a driver on this machine


class Hook:
    """A spark-submit that does what a test says."""

    acts: Callable[[Path], None]
    made: dict[str, Any]
    ended = 0

    def __init__(self, **options: Any) -> None:
        type(self).made = options
        (self.folder,) = options["application_args"]

    def submit(self, application: str) -> None:
        assert Path(application).name == "writers.py"
        assert (Path(self.folder) / "pipe").is_fifo()
        type(self).acts(Path(self.folder))

    def on_kill(self) -> None:
        type(self).ended += 1
        raise RuntimeError("it has ended already")


@pytest.fixture
def hook(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> type[Hook]:
    from airflow.providers.apache.spark.hooks import spark_submit

    class Made(Hook):
        @staticmethod
        def acts(folder: Path) -> None:
            (folder / "told").write_text(json.dumps([answer(ROWS)]))

    for name in (
        "PYTHONPATH",
        "PYSPARK_PYTHON",
        "PYSPARK_DRIVER_PYTHON",
        "SPARK_LOCAL_IP",
        "AIRFLOW_CONN_AIRFLOW_TX_WRITERS",
    ):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "environ", dict(os.environ))
    binary = tmp_path / "spark-submit"
    binary.write_text("")
    binary.chmod(0o755)
    os.environ["PATH"] = str(tmp_path)
    monkeypatch.setattr(spark_submit, "SparkSubmitHook", Made)
    return Made


def test_a_submitted_driver_reads_its_job_from_a_folder_and_writes_its_answers_there(
    hook: Any, server: Server, written: Any
) -> None:
    jobs = list[Any]()
    answers = hook.acts

    def acts(folder: Path) -> None:
        jobs.append(json.loads((folder / "job").read_text()))
        answers(folder)

    hook.acts = staticmethod(acts)
    assert written(Parallel(), spark="local[2]").keys == 5
    assert {name: each for name, each in hook.made.items() if name != "application_args"} == {
        "conn_id": "airflow_tx_writers",
        "name": "suite 1.1 words",
        "deploy_mode": "client",
    }
    assert jobs[0]["name"] == "suite 1.1 words"
    assert json.loads(os.environ["AIRFLOW_CONN_AIRFLOW_TX_WRITERS"]) == {"conn_type": "spark", "host": "local[2]"}
    assert os.environ["PYTHONPATH"] == "/dags"
    assert os.environ["SPARK_LOCAL_IP"] == "127.0.0.1"
    assert hook.ended == 1


@pytest.mark.parametrize(("host", "local"), [("local[4]", True), ("yarn", False), (None, False)])
def test_a_spark_connection_sets_the_driver_and_its_command(
    hook: Any, server: Server, written: Any, tmp_path: Path, host: str | None, local: bool
) -> None:
    (tmp_path / "spark-submit").rename(tmp_path / "spark3-submit")
    made = {"conn_type": "spark", "host": host, "extra": {"spark-binary": "spark3-submit"}}
    os.environ["AIRFLOW_CONN_OWN"] = json.dumps(made)
    written(Parallel(), spark="own")
    assert hook.made["conn_id"] == "own"
    assert ("SPARK_LOCAL_IP" in os.environ) is local
    assert os.environ["PATH"] == str(tmp_path), "the command was found there"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (
            RuntimeError("exit code 1\nand a trace"),
            WritersFailed,
            "in transaction 1 failed: exit code 1. After a retry",
        ),
        (RuntimeError(""), WritersFailed, "failed: RuntimeError. After a retry"),
        (StateError(state="words", problem="no disk", remedy="Get one."), StateError, "no disk"),
        (subprocess.TimeoutExpired("spark-submit", 5), WritersFailed, "timed out"),
    ],
)
def test_the_error_for_a_driver_that_ends_without_an_answer_gives_the_reason(
    hook: Any, server: Server, written: Any, error: Exception, kind: type[Exception], text: str
) -> None:
    def acts(folder: Path) -> None:
        raise error

    hook.acts = staticmethod(acts)
    with pytest.raises(kind, match=text):
        written(Parallel(), spark="local[2]")
    assert hook.ended == 1
