"""Rows that Spark's executors reduce, key by key in their order; and the new values that they stage, as a DataFrame."""

from __future__ import annotations

import json
import os
import uuid
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.operators.spark_connect import SparkConnectBatchOperator
from airflow_tx.outputs.staging.area import read_output
from airflow_tx.state import Count, RedisState, SqlState, Sum
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.suites.aggregator_cases import Balance, LastTwo
from airflow_tx.transaction.commit import write
from airflow_tx.transaction.processing.batch import rows_of_output
from tests.integration.spark_runs import Topology, update
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis
from tests.unit.bench import Numbers

pytestmark = pytest.mark.spark

ROWS, USERS = 6000, 700
VALUES: dict[str, Any] = {"n": Count(), "balance": Balance(), "last": LastTwo(), "exact": Sum("numeric")}
APP = """
from airflow_tx.spark import batch_app
from pyspark.sql import functions as F

@batch_app
def main(spark, batch):
    users = batch.read_input("users")
    exact = F.sum(F.col("exact").cast("decimal(38, 2)")).cast("string").alias("exact")
    batch.emit("sums", users.agg(F.count("*").alias("users"), F.sum("balance").alias("balance"), exact))
"""


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, spark_connect: LocalSparkConnect) -> None:
    """A chunk is about 1,000 rows."""
    monkeypatch.setattr(write, "ROWS_A_WRITE", 1000)
    monkeypatch.setattr(write, "ROWS_A_WRITER", 1000)
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    connect = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark_connect.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps(connect))
    for name in ("PYTHONPATH", "PYSPARK_PYTHON"):
        if name in os.environ:
            monkeypatch.setenv(name, os.environ[name])


def opened(store: str, request: pytest.FixtureRequest) -> Any:
    """A new state in a database of the kind."""
    if store == "postgres":
        postgres: LocalPostgres = request.getfixturevalue("postgres")
        return SqlState.from_url(postgres.url(postgres.new_database()), table="users", keys=["user"], values=VALUES)
    redis: LocalRedis = request.getfixturevalue("redis")
    return RedisState.from_url(redis.url(), prefix=uuid.uuid4().hex, keys=["user"], values=VALUES)


def steps(seed: int) -> list[dict[str, Any]]:
    """Rows in which the order within a user matters."""
    return [
        {"user": f"u{(i * 7919) % USERS}", "n": 1, "exact": "0.25", "step": (i * (37 + seed)) % 23 - 11, "note": "x"}
        for i in range(ROWS)
    ]


def as_table(rows: list[dict[str, Any]]) -> pa.Table:
    table = pa.Table.from_pylist(rows)
    exact = table.column("exact").cast(pa.decimal128(10, 2))
    return table.set_column(table.column_names.index("exact"), "exact", exact)


def expected(*batches: list[dict[str, Any]]) -> dict[str, tuple[int, list[int]]]:
    found: dict[str, tuple[int, list[int]]] = {}
    for row in (row for batch in batches for row in batch):
        balance, last = found.get(row["user"], (0, []))
        found[row["user"]] = (max(0, balance + row["step"]), [*last, row["step"]][-2:])
    return found


@pytest.mark.long
@pytest.mark.parametrize("store", ["postgres", "redis"])
def test_executors_reduce_the_rows_of_each_key_in_order_and_stage_the_new_values(
    store: str, request: pytest.FixtureRequest, spark_connect: LocalSparkConnect, tmp_path: Path
) -> None:
    topology = Topology(Numbers(), tmp_path, str(tmp_path / "dag.py"))
    (tmp_path / "app.py").write_text(APP)
    state = opened(store, request)
    asked = {"new_values": "users"}
    first, second = steps(0), steps(1)

    run = topology.begin("r1")
    run.emit(*(as_table(first[start : start + 2500]) for start in range(0, ROWS, 2500)))
    assert run.commit(update(state, writers="worker", **asked)) is None
    by_worker = list(rows_of_output(topology.spec, run.new_values["users"], run.begun))
    assert {row["user"]: (row["balance"], row["last"]) for row in by_worker} == expected(first)

    run = topology.begin("r2")
    run.emit(*(as_table(second[start : start + 2500]) for start in range(0, ROWS, 2500)))
    assert run.commit(update(state, writers="spark", spark=spark_connect.url, **asked)) is None
    assert {row["user"]: (row["balance"], row["last"]) for row in state.read()} == expected(first, second)
    ref = run.new_values["users"]
    by_spark = list(rows_of_output(topology.spec, ref, run.begun))
    assert sorted(by_spark, key=lambda row: row["user"]) == sorted(state.read(), key=lambda row: row["user"])
    folder = topology.area.kept.files.list(ref["path"])
    assert len([name for name in folder if name.endswith(".parquet")]) == 6  # each writer its own part

    later = topology.begin("r3")
    ti = later.execute(SparkConnectBatchOperator(task_id="count", application="app.py", inputs={"users": ref}))
    (sums,) = read_output(topology.area, ti.pushed["sums"])
    total = sum(balance for balance, _ in expected(first, second).values())
    assert sums == {"users": USERS, "balance": total, "exact": f"{2 * ROWS / 4:.2f}"}
