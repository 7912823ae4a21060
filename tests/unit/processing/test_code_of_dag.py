"""The code of a DAG has the digests that the acks of its tasks name, whatever operator runs it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator
from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, SparkBatchOperator, Transaction, append
from airflow_tx.ledger.code_digest import file_digest
from airflow_tx.state import DeltaTable
from airflow_tx.transaction.processing.code import code_of_dag, digest_of_callable
from airflow_tx.transaction.spec import spec_of

APP = """from airflow_tx.spark import batch_app


@batch_app
def main(spark, batch):
    batch.emit("counts", batch.read())
"""


def doubled(n: int = 1) -> list[dict[str, int]]:
    return [{"n": 2 * n}]


def code(folder: Path, make: Any) -> str:
    """The digest of the one processing task of a DAG whose file is in a folder."""
    with DAG("counted", schedule=None) as dag:
        dag.fileloc = str(folder / "dag.py")
        with Transaction(source=FileSource("in/*.csv")):
            output = make()
            CommitOperator(task_id="commit", updates=[append(output, state=DeltaTable(folder / "table"))])
    return code_of_dag(dag, spec_of(dag))["count"]


@pytest.mark.parametrize(
    "make",
    [
        lambda: task(task_id="count")(doubled)(),
        lambda: task(task_id="count")(doubled).expand(n=[1, 2]),
        lambda: PythonOperator(task_id="count", python_callable=doubled).output,
        lambda: PythonOperator.partial(task_id="count", python_callable=doubled).expand(op_args=[[1], [2]]).output,
    ],
    ids=["@task", "mapped @task", "PythonOperator", "mapped PythonOperator"],
)
def test_a_task_that_calls_a_function_has_the_digest_of_the_function(tmp_path: Path, make: Any) -> None:
    called = PythonOperator(task_id="called", python_callable=doubled)
    assert code(tmp_path, make) == digest_of_callable(called) != ""


def spark(application: str, **more: Any) -> Any:
    return SparkBatchOperator(task_id="count", application=application, **more).output["counts"]


def test_a_spark_task_has_the_digest_of_its_application_file_next_to_the_dag_file(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(APP)
    found = code(tmp_path, lambda: spark("app.py"))
    assert found == file_digest(APP.encode())
    (tmp_path / "app.py").write_text(APP.replace("batch.read()", "batch.read().distinct()"))
    assert code(tmp_path, lambda: spark("app.py")) != found


@pytest.mark.parametrize("application", ["s3a://code/app.py", "missing.py", "{{ params.app }}"])
def test_a_spark_application_whose_file_cannot_be_read_has_no_digest(tmp_path: Path, application: str) -> None:
    assert code(tmp_path, lambda: spark(application)) == ""
