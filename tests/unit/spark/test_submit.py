"""Submitting: what is passed on, what is refused, and why an application failed."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, FailedBatch, RowsRefused, StagingError
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import StagingArea, TryDir, read_manifest
from airflow_tx.outputs.staging.descriptor import Descriptor, Input
from airflow_tx.spark.app import Failure, write_failure
from airflow_tx.spark.submit import (
    ApplicationFailed,
    AttemptStore,
    application_args,
    driver_environment,
    explain,
    find_application,
    request_digest,
)
from tests.remedies import remedy_of


class Store(dict[str, Any]):
    """What Airflow keeps for a task."""

    def set(self, key: str, value: Any) -> None:
        self[key] = value

    def delete(self, key: str) -> None:
        self.pop(key, None)


@pytest.fixture
def where(tmp_path: Path) -> TryDir:
    return StagingArea(str(tmp_path)).try_dir("flights", TransactionAttempt(3, 2), TaskTry("count", 4, "a"))


def test_the_id_of_a_driver_is_stored_per_transaction_and_attempt() -> None:
    store = Store()
    first, same, next_attempt, next_transaction = (
        AttemptStore(store, TransactionAttempt(*numbers), "a") for numbers in ((3, 1), (3, 1), (3, 2), (31, 1))
    )
    first.set("spark_job_id", {"driver": "driver-1"})
    assert same.get("spark_job_id") == {"driver": "driver-1"}
    assert next_attempt.get("spark_job_id") is None
    assert next_transaction.get("spark_job_id", "none") == "none"
    next_attempt.delete("spark_job_id")
    assert first.get("spark_job_id")
    first.delete("spark_job_id")
    assert not store


def test_a_driver_that_was_submitted_with_another_request_is_not_resumed() -> None:
    store = Store()
    AttemptStore(store, TransactionAttempt(3, 1), "a").set("spark_job_id", {"driver": "driver-1"})
    assert AttemptStore(store, TransactionAttempt(3, 1), "b").get("spark_job_id") is None


ASKED = Descriptor("flights", TransactionAttempt(3, 1), TaskTry("count", -1, "a"), [0, 10], ("Source", {}), "/staging")


def test_every_try_of_a_task_sends_the_same_request_for_a_driver() -> None:
    later = replace(ASKED, task=TaskTry("count", -1, "b"))
    assert request_digest(later, "app.py", None, "spark") == request_digest(ASKED, "app.py", [], "spark")


@pytest.mark.parametrize(
    "other",
    [
        (replace(ASKED, inputs={"rows": Input(("/staging/b.parquet",), ("n",), (), 1)}), "app.py", [], "spark"),
        (replace(ASKED, metadata=[0, 5]), "app.py", [], "spark"),
        (replace(ASKED, source=("Source", {"path": "/new"})), "app.py", [], "spark"),
        (replace(ASKED, task=TaskTry("count", 1, "a")), "app.py", [], "spark"),
        (ASKED, "other.py", [], "spark"),
        (ASKED, "app.py", ["--day"], "spark"),
        (ASKED, "app.py", [], "other"),
    ],
    ids=["inputs", "rows", "source", "instance", "application", "arguments", "connection"],
)
def test_everything_that_decides_the_output_of_a_driver_changes_its_request(other: Any) -> None:
    assert request_digest(*other) != request_digest(ASKED, "app.py", [], "spark")


def test_the_reference_to_the_batch_is_the_first_argument_of_the_driver() -> None:
    assert application_args("/staging/_descriptor.json", ["--day", 1]) == ["/staging/_descriptor.json", "--day", "1"]
    with pytest.raises(
        ConfigError, match=r"application_args = 'xxx.*It has 131072 bytes, but the system allows 131071"
    ):
        application_args("/staging/_descriptor.json", ["x" * 131_072])


def test_a_spark_application_is_found_next_to_the_dag_file_or_next_to_its_folder(tmp_path: Path) -> None:
    dag_file = tmp_path / "dags" / "flights.py"
    beside, above = tmp_path / "dags" / "near.py", tmp_path / "spark_apps" / "far.py"
    for path in (dag_file, beside, above):
        path.parent.mkdir(exist_ok=True)
        path.touch()
    assert find_application("near.py", str(dag_file)) == str(beside)
    assert find_application("spark_apps/far.py", str(dag_file)) == str(above)
    assert find_application(str(above), str(dag_file)) == str(above)
    assert find_application("s3a://apps/far.py", str(dag_file)) == "s3a://apps/far.py"
    with pytest.raises(ConfigError) as caught:
        find_application("gone.py", str(dag_file))
    assert f"No such file: {tmp_path}/dags/gone.py or {tmp_path}/gone.py. Give" in str(caught.value)
    with pytest.raises(ConfigError, match=r"No such file: /gone/app.py"):
        find_application("/gone/app.py", str(dag_file))


def test_a_driver_uses_this_python_unless_the_user_configures_another_one() -> None:
    ours = driver_environment({}, dag_file="/dags/a.py", binary="spark-submit", local=True)
    assert ours["PYTHONPATH"] == "/dags"
    assert ours["PATH"].endswith(os.pathsep + str(Path(sys.executable).parent))
    assert (ours["PYSPARK_PYTHON"], ours["PYSPARK_DRIVER_PYTHON"]) == (sys.executable, sys.executable)
    theirs = {"PYSPARK_PYTHON": "/opt/python", "SPARK_LOCAL_IP": "10.0.0.1", "PYTHONPATH": "/lib"}
    added = driver_environment(
        theirs, dag_file="/dags/a.py", binary=f"{Path(sys.executable).parent}/spark-submit", local=True
    )
    assert added == {"PYTHONPATH": "/lib:/dags", "_AIRFLOW__AS_LIBRARY": "1"}
    remote = driver_environment({}, dag_file="/dags/a.py", binary="spark-submit", local=False)
    assert "PYSPARK_PYTHON" not in remote


def test_a_missing_spark_submit_binary_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"spark_binary of SparkBatchOperator = 'spark9-submit' .* No such command"):
        driver_environment({}, dag_file="/dags/a.py", binary="spark9-submit", local=True)


def test_the_error_for_a_failed_spark_application_contains_the_error_of_the_application(where: TryDir) -> None:
    error = RuntimeError("Error code is: 1\nLast output")
    silent = explain(where, "/apps/count.py", error)
    assert str(silent) == (
        "Spark application count.py of task count[4] in transaction 3.2 failed: the driver printed no reason; "
        "its log is above (Error code is: 1)"
    )
    write_failure(where, Failure.of(ValueError("no such column\nat line 3")))
    told = explain(where, "/apps/count.py", error)
    assert isinstance(told, ApplicationFailed)
    assert str(told).endswith("failed: ValueError: no such column")
    write_failure(where, Failure.of(FailedBatch("May is not complete")))
    on_purpose = explain(where, "/apps/count.py", error)
    assert (type(on_purpose), str(on_purpose)) == (FailedBatch, "May is not complete")
    remedy = remedy_of("Correct the file, or: <airflow tx skip {topology} 3 --why TEXT>", topology="my flights")
    refused = RowsRefused(source="S()", problem="1.csv: line 2: n = 'x'", remedy=remedy)
    write_failure(where, Failure.of(refused))
    told = explain(where, "/apps/count.py", error)
    assert (type(told), str(told), told.advice) == (RowsRefused, str(refused), remedy)


def test_a_spark_application_that_succeeds_without_output_is_reported_as_incomplete(where: TryDir) -> None:
    with pytest.raises(StagingError) as caught:
        read_manifest(where)
    assert explain(where, "/apps/count.py", caught.value) is caught.value


_IN_THE_JVM = """An error occurred while calling o36.load.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 0.0 failed
\tat org.apache.spark.scheduler.DAGScheduler.failJobAndIndependentStages(DAGScheduler.scala:1)
Caused by: java.sql.SQLException: No suitable driver
\tat java.sql/java.sql.DriverManager.getDriver(DriverManager.java:298)
\t... 30 more
"""


def test_an_error_in_the_jvm_is_reported_by_its_root_cause() -> None:
    assert str(Failure.of(RuntimeError(_IN_THE_JVM))) == "java.sql.SQLException: No suitable driver"
    without_text = "An error occurred while calling o1.x.\n: java.lang.NullPointerException\n\tat a.b(c.java:1)\n"
    assert str(Failure.of(RuntimeError(without_text))) == "java.lang.NullPointerException"
    assert str(Failure.of(ValueError("bad\n: no.cause: of ours"))) == "ValueError: bad"


def test_an_error_that_only_quotes_a_failed_batch_does_not_count_as_failed_on_purpose() -> None:
    quoting = ValueError("it ended with\nairflow_tx.base.errors.FailedBatch: not today")
    assert Failure.of(quoting) == Failure("ValueError", "it ended with", on_purpose=False)
