"""In a real Airflow: batches on a warm Spark server, and updates that executors write into PostgreSQL."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import sqlalchemy as sa

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.servers.postgres import PASSWORD, USER, LocalPostgres
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.airflow.stack import DAGS, FILES, NUMBERS_A_FILE, environment, expected, write_numbers

DAG = "big_counts"
NUMBERS = FILES * NUMBERS_A_FILE


@pytest.fixture(scope="module")
def postgres() -> Iterator[LocalPostgres]:
    with LocalPostgres() as server:
        yield server


@pytest.fixture(scope="module")
def airflow(tmp_path_factory: pytest.TempPathFactory, postgres: LocalPostgres) -> Iterator[LocalAirflow]:
    """An Airflow that knows this one DAG, beside its servers."""
    folder = tmp_path_factory.mktemp("writers")
    write_numbers(folder / "numbers")
    (folder / "dags").mkdir()
    for name in ("big_counts.py", "big_app.py", "spark_app.py"):
        (folder / "dags" / name).write_text((DAGS / name).read_text())
    with LocalZooKeeper(folder / "zookeeper", fsync=False) as zookeeper, LocalSparkConnect(master="local[1]") as spark:
        found = {"host": "127.0.0.1", "port": postgres.port, "login": USER, "password": PASSWORD, "schema": "postgres"}
        env = {
            **environment(folder, zookeeper.hosts),
            "AIRFLOW_CONN_TX_POSTGRES": connection("postgres", **found),
            "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": connection("spark_connect", host="127.0.0.1", port=spark.port),
        }
        with LocalAirflow(folder / "home", folder / "dags", env) as server:
            yield server


def test_updates_that_spark_writes_are_counted_once_and_no_log_has_the_password(
    airflow: LocalAirflow, postgres: LocalPostgres
) -> None:
    airflow.wait_dag(DAG)
    runs = [f"r{number}" for number in range(FILES)]
    for run_id in runs:
        airflow.trigger(DAG, run_id)
    for run_id in runs:
        airflow.wait_run(DAG, run_id, timeout=280)
    engine = sa.create_engine(postgres.url(), poolclass=sa.pool.NullPool)
    with engine.connect() as connected:
        each = connected.execute(sa.text("SELECT number, times FROM each_number ORDER BY number")).all()
        parity = connected.execute(sa.text("SELECT parity, numbers, total FROM parity")).all()
    assert [tuple(row) for row in each] == [(number, 1) for number in range(NUMBERS)]
    assert {row[0]: (row[1], int(row[2])) for row in parity} == expected(NUMBERS)
    logs = "".join(airflow.whole_log(DAG, run_id, "commit") for run_id in runs)
    assert "100 rows are written by Spark (spark_connect_default)" in logs
    assert "2 rows are written by Spark (local[1])" in logs
    assert PASSWORD not in logs
    for path in airflow.home.rglob("*.log"):
        assert PASSWORD not in path.read_text(errors="replace"), path
