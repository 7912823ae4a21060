"""SparkBatchOperator up to the process boundary: spark-submit is a script of a few lines, the ledger a stand-in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from importlib.metadata import version
from pathlib import Path
from threading import Thread
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from packaging.version import Version

from airflow_tx.base import compat
from airflow_tx.base.errors import ConfigError, StagingError
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.operators.spark import SparkBatchOperator
from airflow_tx.outputs.staging.area import (
    OutputRef,
    StagingArea,
    read_descriptor,
    read_manifest,
    read_output,
    write_manifest,
    write_rows,
)
from airflow_tx.outputs.staging.descriptor import Ackers
from airflow_tx.sources.files.source import FileSource
from airflow_tx.spark.submit import ApplicationFailed
from airflow_tx.transaction.processing.task import TaskMessages

SUBMIT = f"""#!{sys.executable}
import json, sys
from airflow_tx.outputs import *
from airflow_tx.outputs.staging.area import dir_of
arguments = sys.argv
uri = next(argument for argument in arguments if argument.endswith("_descriptor.json"))
descriptor = read_descriptor(uri)
print("driver-20130101-0001" if "cluster" in arguments else "")
where = dir_of(StagingArea(descriptor.root), descriptor)
after = arguments[arguments.index(uri) + 1:]
if "fail" in after:
    from airflow_tx.spark.app import Failure, write_failure
    write_failure(where, Failure.of(ValueError("told to")))
    sys.exit(1)
if "nothing" not in after:
    rows = [{{"name": arguments[arguments.index("--name") + 1], "master": arguments[arguments.index("--master") + 1]}}]
    write_manifest(where, {{"counts": write_rows(where, "counts", rows)}}, consumed_rows=7, code="c0de")
"""


class Store(dict[str, Any]):
    """What Airflow keeps for a task over its tries."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


class Processing:
    """Stands in for the ledger."""

    def __init__(self, staging: StagingArea) -> None:
        self.attempt = TransactionAttempt(3, 2)
        begun: Any = SimpleNamespace(txid=3, attempt=self.attempt, position=None, replaces=None, incarnation="")
        self.begun = begun
        paths = SimpleNamespace(root="/tx")
        self.spec = SimpleNamespace(staging=lambda: staging, ackers=None, acker_store=None, paths=paths, tables={})
        self.anchored = True
        self.keeps_rejected = False
        spec: Any = self.spec
        self.messages = TaskMessages(spec, begun, TaskTry("partial_counts", -1, "try-1"), anchored=True)
        self.metadata: dict[str, Any] = {"folder": "/data", "files": ["x" * 1000] * 1000}
        self.task = TaskTry("partial_counts", -1, "try-1")
        self.staging = staging
        self.source = FileSource("/data/*.csv")
        self.topology = "flights"
        self.acked: list[Any] = []
        self.read: list[Any] = []
        self.unproven: list[str] = []
        self.code = ""

    def ack(self, outputs: list[Any], consumed_rows: int | None) -> None:
        self.acked.append((outputs, consumed_rows))


class Bench:
    """An operator with all it needs around it."""

    def __init__(self, folder: Path, ledger: Processing) -> None:
        self.folder = folder
        self.ledger = ledger
        self.xcoms: dict[str, Any] = {}
        self.store: Store | None = None

    def run(self, **arguments: Any) -> None:
        operator = SparkBatchOperator(
            task_id="partial_counts",
            application="app.py",
            **{"spark_binary": str(self.folder / "spark-submit"), **arguments},
        )
        context: Any = {
            "ti": SimpleNamespace(xcom_push=lambda key, value: self.xcoms.update({key: value}), stats_tags={}),
            "dag": SimpleNamespace(fileloc=str(self.folder / "dag.py")),
        }
        if self.store is not None:
            context["task_state_store"] = self.store
        operator.execute(context)


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    ledger = Processing(StagingArea(str(tmp_path / "staging")))

    @contextmanager
    def running(context: Any) -> Iterator[Processing]:
        yield ledger

    lifecycle: Any = ModuleType("airflow_tx.transaction.processing.task")
    lifecycle.Processing = SimpleNamespace(running=running)
    monkeypatch.setitem(sys.modules, "airflow_tx.transaction.processing.task", lifecycle)
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", '{"conn_type": "spark", "host": "local[2]"}')
    for name in ("PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        # The operator adds to the environment of its own process, which here is that of the tests.
        monkeypatch.setenv(name, os.environ.get(name, ""))
    (tmp_path / "app.py").touch()
    (tmp_path / "spark-submit").write_text(SUBMIT)
    (tmp_path / "spark-submit").chmod(0o755)
    return Bench(tmp_path, ledger)


def test_each_output_is_pushed_as_its_own_xcom_and_acked(bench: Bench) -> None:
    bench.run()
    [(outputs, consumed)] = bench.ledger.acked
    assert outputs == [bench.xcoms["counts"]]
    assert consumed == 7
    assert bench.ledger.code == "c0de"
    ref = OutputRef.from_json(bench.xcoms["counts"])
    rows = list(read_output(bench.ledger.staging, ref, attempt=TransactionAttempt(3, 2)))
    assert rows == [{"name": "flights 3.2 partial_counts", "master": "local[2]"}]


def test_a_driver_finds_the_ackers_of_its_transaction(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    bench.ledger.spec.ackers, bench.ledger.spec.acker_store = 2, "queues"
    monkeypatch.setenv("AIRFLOW_CONN_QUEUES", '{"conn_type": "redis", "host": "there"}')
    monkeypatch.setenv("AIRFLOW_TX_CONN_queues", "")
    bench.run()
    assert json.loads(os.environ["AIRFLOW_TX_CONN_queues"])["host"] == "there"
    staging = bench.ledger.staging
    where = staging.try_dir("flights", bench.ledger.attempt, bench.ledger.task)
    descriptor = read_descriptor(where.files.uri(where.child("_descriptor.json")))
    assert descriptor.ackers == Ackers(2, "queues", "/tx", anchored=True)


def test_a_failed_spark_application_is_reported_and_not_acked(bench: Bench) -> None:
    with pytest.raises(
        ApplicationFailed, match=r"app.py of task partial_counts in transaction 3.2 failed: ValueError: told"
    ):
        bench.run(application_args=["fail"])
    assert not bench.ledger.acked


def test_a_spark_application_without_output_is_not_acked(bench: Bench) -> None:
    with pytest.raises(StagingError, match="it is incomplete"):
        bench.run(application_args=["nothing"])
    assert not bench.ledger.acked


def test_a_missing_connection_is_refused_and_yarn_is_not_used_instead(bench: Bench) -> None:
    with pytest.raises(ConfigError, match=r"conn_id .* 'nowhere' .* No such connection. Make it"):
        bench.run(conn_id="nowhere")


YARN = {"deploy-mode": "cluster", "yarn_resourcemanager_webapp_address": "http://rm:8088"}


@pytest.mark.parametrize(
    ("extra", "options", "match"),
    [
        (YARN, {}, r"^yarn_track_via_rm_api of task 'partial_counts' = False .*http://HOST:8088.*durable=False"),
        (
            {"deploy-mode": "cluster"},
            {"yarn_track_via_rm_api": True},
            r"^yarn_resourcemanager_webapp_address in the extra of connection 'spark_default' = None .*durable=False",
        ),
        ({}, {"deploy_mode": "cluster"}, r"^yarn_track_via_rm_api of task 'partial_counts' = False "),
        (
            YARN,
            {"yarn_track_via_rm_api": True, "conf": {"spark.yarn.submit.waitAppCompletion": "true"}},
            r"^spark.yarn.submit.waitAppCompletion of task 'partial_counts' = 'true' .*Leave this setting out",
        ),
    ],
)
def test_an_option_that_yarn_cluster_mode_does_not_support_is_refused_before_the_submit(
    bench: Bench, monkeypatch: pytest.MonkeyPatch, extra: Any, options: Any, match: str
) -> None:
    _check_provider()
    connection = {"conn_type": "spark", "host": "yarn", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    with pytest.raises(ConfigError, match=match):
        bench.run(**options)


def test_yarn_cluster_mode_accepts_a_spark_application_that_is_not_durable(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    _check_provider()
    connection = {"conn_type": "spark", "host": "yarn", "extra": {"deploy-mode": "cluster"}}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    bench.run(durable=False)
    assert bench.ledger.acked


def _check_provider() -> None:
    if Version(version("apache-airflow-providers-apache-spark")) < Version("6.3.4"):
        pytest.skip("this Spark provider asks YARN nothing; the lock has no newer one for Python 3.10")
    if compat.is_airflow_3_2():
        pytest.skip("no retry takes up a driver in Airflow 3.2")


def test_a_missing_spark_application_or_binary_is_refused(bench: Bench) -> None:
    with pytest.raises(ConfigError, match="No such command"):
        bench.run(spark_binary="/nowhere/spark-submit")
    (bench.folder / "app.py").unlink()
    with pytest.raises(ConfigError, match=r"No such file: .*app.py or "):
        bench.run()


class Master(BaseHTTPRequestHandler):
    """A Spark master as far as it is asked: every driver has finished, but those that `failed` names."""

    failed: frozenset[str] = frozenset()

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        # Line by line: Airflow reads the answer of curl by lines.
        driver = self.path.rpartition("/")[2]
        state = "FAILED" if driver in self.failed else "FINISHED"
        answer = {"submissionId": driver, "success": True, "driverState": state}
        self.wfile.write(json.dumps(answer, indent=1, separators=(",", " : ")).encode() + b"\n")

    def log_message(self, *arguments: Any) -> None:
        """Say nothing."""


@pytest.fixture
def cluster(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    if Version(version("apache-airflow-providers-apache-spark")) < Version("6.3.4"):
        pytest.skip("this Spark provider asks the master of a fixed port; the lock has no newer one for Python 3.10")
    server = ThreadingHTTPServer(("127.0.0.1", 0), Master)
    Thread(target=server.serve_forever, daemon=True).start()
    extra = {"deploy-mode": "cluster", "rest-port": server.server_port}
    connection = {"conn_type": "spark", "host": "spark://127.0.0.1:7077", "extra": extra}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps(connection))
    bench.store = Store()
    yield bench
    server.shutdown()
    server.server_close()


def run_of(bench: Bench, attempt: int, task_try: str, **arguments: Any) -> str:
    """Run a try; which try's output it took."""
    bench.ledger.attempt = TransactionAttempt(3, attempt)
    bench.ledger.task = TaskTry("partial_counts", -1, task_try)
    bench.run(status_poll_interval=0, **arguments)
    return str(bench.xcoms["counts"]["task_try"])


@pytest.mark.skipif(compat.is_airflow_3_2(), reason="no retry takes up a driver in Airflow 3.2")
def test_a_retry_resumes_the_driver_of_the_previous_try_and_uses_its_output(cluster: Bench) -> None:
    # The first try dies after its driver has written: nothing is acknowledged, nothing forgotten.
    acknowledge = cluster.ledger.ack
    cluster.ledger.ack = die  # type: ignore[method-assign, assignment]
    with pytest.raises(SystemExit):
        run_of(cluster, 2, "try-1")
    cluster.ledger.ack = acknowledge  # type: ignore[method-assign]
    (cluster.folder / "spark-submit").write_text("#!/bin/sh\nexit 1\n")
    assert run_of(cluster, 2, "try-2") == "try-1"
    assert len(cluster.ledger.acked) == 1


@pytest.mark.long
def test_a_retry_never_resumes_a_driver_that_was_started_with_other_inputs(cluster: Bench) -> None:
    def counted(task_try: str) -> dict[str, Any]:
        where = cluster.ledger.staging.try_dir("flights", TransactionAttempt(3, 2), TaskTry("read", -1, task_try))
        output = write_rows(where, "rows", [{"number": 1}])
        write_manifest(where, {"rows": output})
        found: dict[str, Any] = read_manifest(where).refs()["rows"].to_json()
        return found

    cluster.ledger.ack, acknowledge = die, cluster.ledger.ack  # type: ignore[method-assign, assignment]
    first = counted("a")
    with pytest.raises(SystemExit):
        run_of(cluster, 2, "try-1", inputs={"rows": first})
    cluster.ledger.ack = acknowledge  # type: ignore[method-assign]
    # Its own retry has the same input; that of a task before it that was cleared has another one.
    assert run_of(cluster, 2, "try-2", inputs={"rows": counted("b")}) == "try-2"


@pytest.mark.lead
def test_the_next_attempt_never_resumes_a_driver_of_the_previous_attempt(cluster: Bench) -> None:
    cluster.ledger.ack, acknowledge = die, cluster.ledger.ack  # type: ignore[method-assign, assignment]
    with pytest.raises(SystemExit):
        run_of(cluster, 2, "try-1")
    cluster.ledger.ack = acknowledge  # type: ignore[method-assign]
    assert run_of(cluster, 3, "try-2") == "try-2"


@pytest.mark.long
def test_a_changed_batch_with_the_same_txid_never_resumes_an_earlier_driver(cluster: Bench) -> None:
    cluster.ledger.ack, acknowledge = die, cluster.ledger.ack  # type: ignore[method-assign, assignment]
    with pytest.raises(SystemExit):
        run_of(cluster, 2, "try-1")
    cluster.ledger.ack = acknowledge  # type: ignore[method-assign]
    cluster.ledger.metadata = {"folder": "/data", "files": ["y"]}
    assert run_of(cluster, 2, "try-2") == "try-2"


def test_a_retry_after_a_failed_driver_uses_the_output_of_its_own_driver(
    cluster: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    submit = cluster.folder / "spark-submit"
    # In a cluster spark-submit itself ends well: it is the driver that fails. Each driver has a name of its own.
    text = SUBMIT.replace("sys.exit(1)", "sys.exit(0)").replace('1"', '" + descriptor.task.task_try[-1]')
    submit.write_text(text)
    monkeypatch.setattr(Master, "failed", frozenset({"driver-20130101-0001"}))
    with pytest.raises(ApplicationFailed, match="ValueError: told to"):
        run_of(cluster, 2, "try-1", application_args=["fail"])
    assert run_of(cluster, 2, "try-2") == "try-2"


@pytest.mark.long
def test_a_task_that_is_cleared_after_its_output_was_acked_submits_a_new_driver(cluster: Bench) -> None:
    assert run_of(cluster, 2, "try-1") == "try-1"
    assert run_of(cluster, 2, "try-2") == "try-2"


def test_a_driver_that_succeeded_without_output_is_not_resumed(cluster: Bench) -> None:
    with pytest.raises(StagingError, match="it is incomplete"):
        run_of(cluster, 2, "try-1", application_args=["nothing"])
    assert run_of(cluster, 2, "try-2") == "try-2"


def die(*arguments: Any) -> None:
    raise SystemExit


def test_a_dag_can_be_parsed_without_pyspark() -> None:
    heavy = "[name for name in ('pyspark', 'pandas', 'pyarrow') if name in sys.modules]"
    code = f"import sys, airflow_tx.operators.spark, airflow_tx.operators.spark_connect; print({heavy})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().endswith("[]")
