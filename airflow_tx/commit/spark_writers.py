"""How Spark's executors write an update: what they need, by which driver, and what they answer."""

from __future__ import annotations

import json
import os
import re
import tempfile
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_tx.commit.rows import StagedRows
from airflow_tx.errors import StateError, TxError
from airflow_tx.protocol.attempt import Grant
from airflow_tx.protocol.receipt import Written
from airflow_tx.protocol.rows_digest import RowsDigest
from airflow_tx.state.api import FencedState
from airflow_tx.state.combined_rows import has_reducers

if TYPE_CHECKING:
    from airflow_tx.commit.handoff import NewValuesOutput
    from airflow_tx.spark.writers import WriteJob

_MASTER = re.compile(r"local(\[.*\])?$|yarn(-client)?$|(spark|k8s|mesos)://")
_OWN_CONNECTION = "airflow_tx_writers"


def spark_label(spark: str) -> str:
    """Name a Spark for logs and messages: without its parameters, which may be secret."""
    return spark.partition(";")[0]


def write_by_spark(
    state: Any,
    grant: Grant,
    rows: StagedRows,
    spark: str,
    *,
    partitions: int,
    dag_file: str,
    output: NewValuesOutput | None = None,
) -> Written:
    """Let executors write, each its own keys, and complete the grant; what was written.

    :param partitions: into how many chunks.
    :param output: where new values go; each executor stages its own part.
    :raises StateError: what an executor was refused with.
    :raises WritersFailed: the job ended without an answer.
    """
    from airflow_tx.spark.writers import (
        WriteJob,
        portions_of,
        read_by,
        seal,
        staged_parts,
        total,
        written_by,
    )
    from airflow_tx.staging.manifest import check_emitted

    copied = state.for_executors()
    assert copied is not None
    name = f"{grant.topology} {grant.token.txid}.{grant.token.attempt} {state.name}"
    job = WriteJob(
        name, rows.files, rows.columns, list(state.columns.keys), partitions, has_reducers(state)
    )
    sealed = seal(copied, grant, rows.schema(), output.place if output is not None else None)
    url = _connect_url(spark)
    answers = (
        _on_server(url, spark, job, sealed)
        if url
        else _by_driver(spark, job, sealed, dag_file, state=state, grant=grant)
    )
    _, taken = total(answers)
    read = read_by(answers)
    if read is not None and rows.output.reliable:
        check_emitted(rows.where, rows.name, read, RowsDigest.of(len(rows), rows.output.row_digest))
    if taken != len(rows):
        problem = f"Spark's executors wrote {taken} of {len(rows)} rows"
        raise StateError(state=state.name, problem=problem, remedy="Clear the whole run.")
    if output is not None:
        output.staged(staged_parts(answers))
    written = written_by(answers)
    portions = grant.portions + portions_of(answers)
    whole = replace(grant, written=grant.written + written, portions=portions)
    state.write(whole, (), complete=True)
    return written


def _connect_url(spark: str) -> str | None:
    if spark.startswith("sc://"):
        return spark
    if _MASTER.match(spark):
        return None
    from airflow_tx.connections.spark import connect_url, spark_connection

    return connect_url(spark) if spark_connection(spark).conn_type == "spark_connect" else None


def _on_server(url: str, spark: str, job: WriteJob, sealed: bytes) -> list[dict[str, Any]]:
    from airflow_tx.spark.connect import session
    from airflow_tx.spark.writers import run

    with session(url, tag=job.name, server=spark_label(spark)) as connected:
        return run(connected, job, sealed)


def _by_driver(
    spark: str, job: WriteJob, sealed: bytes, dag_file: str, *, state: FencedState, grant: Grant
) -> list[dict[str, Any]]:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_tx.connections.spark import spark_connection
    from airflow_tx.spark import writers
    from airflow_tx.spark.submit import driver_environment

    conn_id = spark
    if _MASTER.match(spark):
        conn_id = _OWN_CONNECTION
        # This process belongs to the one task.
        os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps(
            {"conn_type": "spark", "host": spark}
        )
    connection = spark_connection(conn_id)
    binary = connection.extra_dejson.get("spark-binary") or "spark-submit"
    local = (connection.host or "").startswith("local")
    os.environ.update(driver_environment(os.environ, dag_file=dag_file, binary=binary, local=local))
    with tempfile.TemporaryDirectory(prefix="airflow-tx-writers-") as folder:
        writers.write_job(f"{folder}/job", job)
        # Where the driver is on another machine, the pipe would not reach it.
        hook = SparkSubmitHook(
            conn_id=conn_id, name=job.name, application_args=[folder], deploy_mode="client"
        )
        with writers.sealed_pipe(f"{folder}/pipe", sealed):
            try:
                hook.submit(str(Path(writers.__file__)))
                return list(json.loads(Path(folder, "told").read_text()))
            except TxError:
                raise
            except Exception as error:
                reason = str(error).strip().splitlines()
                first = reason[0] if reason else type(error).__name__
                raise writers.WritersFailed(
                    state=state.name, txid=grant.txid, reason=first
                ) from error
            finally:
                with suppress(Exception):
                    hook.on_kill()
