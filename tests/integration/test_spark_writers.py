"""Large updates, written by Spark's executors into a real PostgreSQL: by a driver of spark-submit, and by a server."""

from __future__ import annotations

import datetime as dt
import json
import os
import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import ConfigError, OutputChanged, RowsDiffer, StateError
from airflow_tx.base.failpoints import VARIABLE
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.spark.writers import WritersFailed
from airflow_tx.state import CombinerAggregator, Count, SqlState, Sum
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.transaction.commit import write
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.write import StagedRows
from tests.integration.spark_runs import SparkRun, Topology, update
from tests.integration.watch import Watch
from tests.servers.postgres import LocalPostgres
from tests.unit.bench import Numbers

pytestmark = pytest.mark.spark

KEYS = 6000
# Of these tests alone: other servers on this machine may have another one in common.
SECRET = uuid.uuid4().hex
MOMENT = dt.datetime(2013, 1, 1, 5, 30)


class Longest(CombinerAggregator):
    """An aggregator that only this file knows, as one of a DAG file."""

    name, type = "longest", "text"

    def init(self, row: Any) -> Any:
        return row

    def zero(self) -> Any:
        return None

    def combine(self, a: Any, b: Any) -> Any:
        return max(a, b, key=len)


def table(keys: int = KEYS, *, times: int = 1) -> pa.Table:
    """Rows with keys of many types."""
    return pa.table(
        {
            "id": pa.array([i // times for i in range(keys * times)], pa.int64()),
            "day": pa.array([MOMENT + dt.timedelta(seconds=i // times) for i in range(keys * times)]),
            "code": [f"{'ÄΩ'[i % 2]}{i // times}" for i in range(keys * times)],
            "n": pa.array(list(range(keys * times)), pa.int64()),
            "amount": [Decimal(i) / 4 for i in range(keys * times)],
            "word": ["x" * (i % 7 + 1) for i in range(keys * times)],
        }
    )


def state_of(url: str, kind: str = "opaque") -> SqlState:
    values: dict[str, Any] = {"n": Count(), "amount": Sum("numeric"), "word": Longest()}
    return SqlState.from_url(url, table="totals", keys=["id", "day", "code"], values=values, kind=kind)


@pytest.fixture(scope="module", autouse=True)
def writer(postgres: LocalPostgres) -> None:
    postgres.add_superuser("writer", SECRET)


def secret_url(postgres: LocalPostgres) -> str:
    """The URL of a new database, with the password that nobody may see."""
    url = sa.engine.make_url(postgres.url(postgres.new_database())).set(username="writer", password=SECRET)
    return url.render_as_string(hide_password=False)


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A chunk is 1,000 rows."""
    monkeypatch.setattr(write, "ROWS_A_WRITE", 1000)
    monkeypatch.setattr(write, "ROWS_A_WRITER", 1000)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    for name in ("PATH", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, os.environ.get(name, ""))
    for name in ("PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON"):
        monkeypatch.setenv(name, sys.executable)


@pytest.fixture
def numbers(tmp_path: Path) -> Topology:
    return Topology(Numbers(), tmp_path, str(tmp_path / "dag.py"))


def content(url: str) -> list[Any]:
    with sa.create_engine(url, poolclass=sa.pool.NullPool).connect() as connection:
        return list(connection.execute(sa.text("SELECT id, day, code, n, amount, word FROM totals ORDER BY id")).all())


def chunks(url: str) -> set[int]:
    with sa.create_engine(url, poolclass=sa.pool.NullPool).connect() as connection:
        return set(connection.execute(sa.text("SELECT DISTINCT tx_chunk FROM totals")).scalars())


def committed(topology: Topology, run_id: str, rows: pa.Table, state: SqlState, **how: Any) -> SparkRun:
    """One whole run."""
    run = topology.begin(run_id)
    run.emit(rows)
    assert run.commit(update(state, **how)) is None
    return run


@pytest.fixture
def expected(postgres: LocalPostgres, tmp_path: Path) -> list[Any]:
    """What this process writes of two equal updates."""
    numbers = Topology(Numbers(), tmp_path, "")
    url = postgres.url(postgres.new_database())
    for run_id in ("w1", "w2"):
        committed(numbers, run_id, table(), state_of(url), writers="worker")
    found = content(url)
    assert chunks(url) == set(range(6))
    assert (len(found), found[5][3], found[5][4]) == (KEYS, 10, Decimal("2.5"))
    return found


@pytest.mark.long
def test_executors_of_spark_submit_write_the_same_values_as_the_worker_and_hide_the_password(
    postgres: LocalPostgres,
    numbers: Topology,
    expected: list[Any],
    tmp_path: Path,
    failpoints: Failpoints,
    pool: ThreadPoolExecutor,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "events").mkdir()
    conf = tmp_path / "conf"
    conf.mkdir()
    conf.joinpath("spark-defaults.conf").write_text(
        f"spark.eventLog.enabled true\nspark.eventLog.dir {(tmp_path / 'events').as_uri()}\n"
        f"spark.local.dir {tmp_path / 'local'}\nspark.driver.memory 700m\n"
        "spark.driver.extraJavaOptions -XX:TieredStopAtLevel=1 -XX:+UseSerialGC\n"
    )
    monkeypatch.setenv("SPARK_CONF_DIR", str(conf))
    url = secret_url(postgres)
    state = state_of(url)
    committed(numbers, "r1", table(), state, writers="worker")
    for name, value in failpoints.environment.items():
        monkeypatch.setenv(name, value)
    stop = failpoints.arm("spark.before_chunk", "pause")
    with Watch(SECRET, tmp_path) as watch:
        writing = pool.submit(committed, numbers, "r2", table(), state, writers="spark", spark="local[2]")
        eventually(lambda: stop.reached or writing.done(), 300, "an executor stands before its chunk")
        watch.look()
        stop.release()
        writing.result()
    assert stop.reached, "it was looked while driver and executors were there"
    assert content(url) == expected
    assert len(chunks(url)) == 6
    fence = state.fence()
    assert fence is not None
    assert fence.applied
    assert list((tmp_path / "events").iterdir())
    assert watch.files() == []
    told = capfd.readouterr()
    assert SECRET not in told.out + told.err


@pytest.mark.lead
@pytest.mark.worth("executors of Spark Connect write, and one dies")
def test_executors_of_a_connect_server_write_the_same_values_although_a_writer_is_killed(
    postgres: LocalPostgres,
    numbers: Topology,
    expected: list[Any],
    spark_connect: LocalSparkConnect,
    failpoints: Failpoints,
) -> None:
    url = secret_url(postgres)
    state = state_of(url)
    committed(numbers, "r1", table(), state, spark_from_rows=KEYS, spark=spark_connect.url)
    dies = failpoints.arm("spark.after_chunk", "kill", chunk=3)
    committed(numbers, "r2", table(), state, spark_from_rows=KEYS, spark=spark_connect.url)
    assert dies.reached
    assert content(url) == expected
    assert Watch(SECRET, spark_connect.folder).files() == []


@pytest.mark.worth("corrections that executors write")
@pytest.mark.parametrize(
    ("by", "keys"),
    [
        pytest.param("submit", KEYS, marks=pytest.mark.long),
        pytest.param("server", KEYS, marks=pytest.mark.long),
        pytest.param("server", 1_000_000, marks=pytest.mark.long),
    ],
)
def test_executors_write_the_difference_of_a_restatement(
    by: str, keys: int, postgres: LocalPostgres, numbers: Topology, spark_connect: LocalSparkConnect
) -> None:
    values: dict[str, Any] = {"n": Count(), "amount": Sum("numeric")}
    url = secret_url(postgres)
    state = SqlState.from_url(url, table="totals", keys=["id", "day", "code"], values=values)
    rows = table(keys + 1000).drop_columns(["word"])
    committed(numbers, "r1", rows.slice(0, keys), state, writers="worker")
    numbers.spec.ledger(numbers.store).run(want, WishRequest(1, "r1", "r1"), Audit("ada", "a bug in the job"))
    new = rows.slice(1000).set_column(3, "n", pa.array(range(keys)))
    spark = spark_connect.url if by == "server" else "local[2]"
    run = committed(numbers, "r1", new, state, writers="spark", spark=spark)
    assert (run.begun.txid, run.begun.replaces.txid) == (2, 1)
    found = {row["id"]: (row["n"], row["amount"]) for row in state.read()}
    gone = dict.fromkeys(range(1000), (0, 0))
    assert found == gone | {number + 1000: (number, Decimal(number + 1000) / 4) for number in range(keys)}
    assert len(chunks(url)) > 1


@pytest.mark.long
def test_a_duplicate_key_is_refused_with_the_message_of_the_state(
    postgres: LocalPostgres, numbers: Topology, spark_connect: LocalSparkConnect
) -> None:
    url = postgres.url(postgres.new_database())
    state = state_of(url)
    run = numbers.begin("r1")
    twice = table(KEYS, times=2)
    # Both rows of a key are one key, whatever else is in them.
    twice = twice.set_column(2, "code", pa.array([f"c{i // 2}" for i in range(KEYS * 2)]))
    run.emit(twice)
    with pytest.raises(StateError, match=r"'url.totals' refused: row \d+ .*: its key occurs twice. Aggregate by key"):
        run.commit(update(state, writers="spark", spark=spark_connect.url))
    assert not (fence := state.fence()) or not fence.applied
    again = numbers.begin("r1")
    again.emit(table())
    assert again.commit(update(state, writers="spark", spark=spark_connect.url)) is None
    assert [row[3] for row in content(url)] == list(range(KEYS))


@pytest.mark.long
def test_a_commit_is_refused_if_executors_read_other_rows_than_the_task_emitted(
    postgres: LocalPostgres, numbers: Topology, spark_connect: LocalSparkConnect
) -> None:
    url = postgres.url(postgres.new_database())
    state, by_spark = state_of(url), {"writers": "spark", "spark": spark_connect.url}
    run, rows = numbers.begin("r1"), table()
    run.emit(rows, noted=rows.set_column(3, "n", pa.array(range(1, KEYS + 1), pa.int64())))
    with pytest.raises(
        RowsDiffer, match=f"{KEYS} rows, digest .* were read from output 'counts' of task count, but .* were emitted"
    ):
        run.commit(update(state, **by_spark))
    fence = state.fence()
    assert fence is not None
    assert not fence.applied
    again = numbers.begin("r1")
    again.emit(rows, noted=rows)
    assert again.commit(update(state, **by_spark)) is None
    assert [row[3] for row in content(url)] == list(range(KEYS))


@pytest.mark.long
def test_the_worker_and_spark_writers_compute_the_same_digest_for_a_transactional_state(
    postgres: LocalPostgres, numbers: Topology, spark_connect: LocalSparkConnect, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(postgres.new_database())
    state = state_of(url, "transactional")
    committed(numbers, "r0", table(), state, writers="worker")
    nothing_written = numbers.begin("r1")
    nothing_written.emit(table(KEYS - 2))
    with pytest.raises(WritersFailed, match="Nothing|failed: "):
        nothing_written.commit(update(state, writers="spark", spark="local[0]"))

    def killed(*_: Any, **__: Any) -> None:
        raise OSError("killed")

    run = numbers.begin("r1")
    run.emit(table())
    with monkeypatch.context() as patch:
        patch.setattr(Commit, "mark_step", killed)
        with pytest.raises(OSError, match="killed"):
            run.commit(update(state, writers="worker"))
    other = numbers.begin("r1")
    other.emit(table(KEYS - 1))
    with pytest.raises(OutputChanged, match='kind="opaque"'):
        other.commit(update(state, writers="worker"))
    same = numbers.begin("r1")
    same.emit(table().take(list(reversed(range(KEYS)))))
    assert same.commit(update(state, writers="spark", spark=spark_connect.url)) is None
    assert [row[3] for row in content(url)] == [2 * i for i in range(KEYS)]


COMMITTER = """
import sys, pickle
from airflow_tx.transaction.commit import write
write.ROWS_A_WRITER = 1000
update, grant, rows = pickle.load(sys.stdin.buffer)
import logging
print("writes", flush=True)
write.write_update(update, grant, rows, dag_file="", log=logging.getLogger())
"""


@pytest.mark.lead
def test_writers_of_a_killed_commit_are_refused_after_a_later_grant_has_written(
    postgres: LocalPostgres, numbers: Topology, spark_connect: LocalSparkConnect, failpoints: Failpoints
) -> None:
    import pickle

    from airflow_tx.ledger.attempt import TaskTry
    from airflow_tx.outputs.staging.area import write_manifest, write_rows
    from airflow_tx.testing.suites.state_tools import Grants

    url = postgres.url(postgres.new_database())
    values: dict[str, Any] = {"n": Count()}
    state = SqlState.from_url(url, table="totals", keys=["id"], values=values)
    area = numbers.spec.staging()
    grants = Grants()
    old, new = grants(1), grants(1, 2)

    def staged(attempt: int, keys: int) -> StagedRows:
        from airflow_tx.ledger.attempt import TransactionAttempt

        own = TransactionAttempt(1, attempt)
        where = area.try_dir("flights", own, TaskTry("count", -1, "try"))
        rows = table(keys).select(["id", "n"])
        ref = write_manifest(where, {"counts": write_rows(where, "counts", rows)})["counts"]
        return StagedRows(area, ref.to_json(), state, own)

    state.raise_fence(old)
    stops = [failpoints.arm("spark.before_chunk", "pause", attempt=1) for _ in range(2)]
    how: Any = update(state, writers="spark", spark=spark_connect.url)
    message = pickle.dumps((how, old, staged(1, KEYS)))
    command = [sys.executable, "-c", COMMITTER]
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    with subprocess.Popen(command, stdin=subprocess.PIPE, env=environment) as committer:
        assert committer.stdin is not None
        committer.stdin.write(message)
        committer.stdin.close()
        eventually(lambda: stops[0].reached, 240, "a writer stands before its chunk")
        committer.kill()
    state.raise_fence(new)
    rows = staged(2, 100)
    assert write.write_update(update(state, writers="worker"), new, rows, dag_file="", log=None).keys == 100
    before = len(_refusals(spark_connect))
    for stop in stops:
        stop.release()
    eventually(lambda: len(_refusals(spark_connect)) > before, 240, "a writer is refused")
    found = {row["id"]: row["n"] for row in state.read()}
    assert found == {i: i for i in range(100)}


def _refusals(spark_connect: LocalSparkConnect) -> list[str]:
    return [line for line in spark_connect.log.read_text().splitlines() if "refused: FenceOutranked" in line]


@pytest.mark.long
def test_a_driver_ends_when_the_task_that_submitted_it_ends(tmp_path: Path) -> None:
    script = (
        "import sys\nfrom airflow_tx.spark.writers import sealed_pipe\n"
        f"with sealed_pipe({str(tmp_path / 'pipe')!r}, b'x' * 60000):\n    print('ready', flush=True)\n"
        "    sys.stdin.read()\n"
    )
    driver = (
        "import os, time\nfrom airflow_tx.spark.writers import taken_over\n"
        f"print(len(taken_over({str(tmp_path / 'pipe')!r}, lambda: os._exit(3))), flush=True)\ntime.sleep(600)\n"
    )
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen([sys.executable, "-c", script], **pipes) as task:  # type: ignore[call-overload]
        assert task.stdout.readline() == b"ready\n"
        with subprocess.Popen([sys.executable, "-c", driver], **pipes) as run:  # type: ignore[call-overload]
            assert run.stdout.readline() == b"60000\n"
            task.kill()
            assert run.wait(300) == 3


@pytest.mark.long
def test_spark_writers_are_refused_for_a_sqlite_database(numbers: Topology, tmp_path: Path) -> None:
    state = state_of(f"sqlite:///{tmp_path / 'state.db'}")
    run = numbers.begin("r1")
    run.emit(table())
    with pytest.raises(ConfigError, match=r"'url.totals' allows one writer at a time, like SQLite"):
        run.commit(update(state, writers="spark", spark="local[1]"))
    again = numbers.begin("r1")
    again.emit(table())
    assert again.commit(update(state, spark_from_rows=1, spark="local[1]")) is None
    assert sum(row["n"] for row in state.read()) == sum(range(KEYS))


FLAT = """
import json, sys, logging
from types import SimpleNamespace
from airflow_tx.transaction.commit import write
from airflow_tx.transaction.commit.write import StagedRows
from airflow_tx.transaction.commit.update import Update
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.outputs import StagingArea
from airflow_tx.state import Count, SqlState, Sum
from airflow_tx.testing.suites.state_tools import Grants
told = json.loads(sys.argv[1])
url, how, staging, ref = told["url"], told["how"], told["staging"], told["ref"]
values = {"flights": Count(), "delay": Sum()}
state = SqlState.from_url(url, table="big", keys=["carrier", "id"], values=values, kind=told["kind"])
rows = StagedRows(StagingArea(staging), ref, state, TransactionAttempt(1, 1))
update = Update(SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="counts"), state, **how)
grant = Grants()(1)
write.output_digest(rows, update.state) if told["kind"] == "transactional" else None
state.raise_fence(grant)
assert write.write_update(update, grant, rows, dag_file="", log=logging.getLogger()).keys == len(rows)
# Not ru_maxrss, which begins with what the process had that started this one.
peak = int(open("/proc/self/status").read().partition("VmHWM:")[2].split()[0]) // 1024
print(peak)
"""


@pytest.mark.long
@pytest.mark.parametrize("path", ["worker, SQLite", "worker, PostgreSQL", "spark-submit", "Spark Connect"])
def test_the_memory_of_a_writer_stays_constant_while_it_writes_a_million_keys(
    path: str, postgres: LocalPostgres, tmp_path: Path, spark_connect: LocalSparkConnect
) -> None:
    from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
    from airflow_tx.outputs.staging.area import StagingArea, write_manifest, write_rows

    million = 1_000_000
    area = StagingArea(str(tmp_path / "staging"))
    where = area.try_dir("big", TransactionAttempt(1, 1), TaskTry("count", -1, "try"))
    rows = pa.table(
        {
            "carrier": pa.array([f"C{i % 97}" for i in range(million)]),
            "id": pa.array([f"key {i:08}" for i in range(million)]),
            "flights": pa.array([1] * million, pa.int64()),
            "delay": pa.array(list(range(million)), pa.int64()),
        }
    )
    ref = write_manifest(where, {"counts": write_rows(where, "counts", rows)})["counts"].to_json()
    del rows
    url = f"sqlite:///{tmp_path / 'big.db'}" if "SQLite" in path else postgres.url(postgres.new_database())
    spark = spark_connect.url if path == "Spark Connect" else "local[2]"
    how = {"writers": "worker"} if "worker" in path else {"writers": "spark", "spark": spark}
    told = {"url": url, "how": how, "staging": area.root, "ref": ref, "kind": "transactional"}
    command = [sys.executable, "-c", FLAT, json.dumps(told)]
    done = run_command(command, capture_output=True, timeout=280)
    assert done.returncode == 0, done.stdout + done.stderr
    peak = int(done.stdout.splitlines()[-1])
    assert peak < 300
