"""In a real Airflow: batches on a warm Spark server, and updates that executors write into PostgreSQL."""

from __future__ import annotations

import hashlib

import pytest
import sqlalchemy as sa

from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.airflow.stack import DAGS, FILES, NUMBERS_A_FILE, Stack, expected
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres

DAG = "big_counts"
NUMBERS = FILES * NUMBERS_A_FILE


@pytest.mark.long
def test_updates_written_by_spark_executors_count_once_and_no_log_contains_the_password(
    stack: Stack, postgres: LocalPostgres, spark_connect: LocalSparkConnect
) -> None:
    airflow, database = stack.airflow, postgres.new_database()
    found = {
        "host": "127.0.0.1",
        "port": postgres.port,
        "login": POSTGRES_USER,
        "password": POSTGRES_PASSWORD,
        "schema": database,
    }
    stack.connect("tx_postgres", conn_type="postgres", **found)
    stack.connect("spark_connect_default", conn_type="spark_connect", host="127.0.0.1", port=spark_connect.port)
    airflow.wait_dag(DAG)
    runs = [f"r{number}" for number in range(FILES)]
    for run_id in runs:
        airflow.trigger(DAG, run_id)
    for run_id in runs:
        airflow.wait_run(DAG, run_id, timeout=600)
    engine = sa.create_engine(postgres.url(database), poolclass=sa.pool.NullPool)
    with engine.connect() as connected:
        each = connected.execute(sa.text("SELECT number, times FROM each_number ORDER BY number")).all()
        parity = connected.execute(sa.text("SELECT parity, numbers, total FROM parity")).all()
    assert [tuple(row) for row in each] == [(number, 1) for number in range(NUMBERS)]
    assert {row[0]: (row[1], int(row[2])) for row in parity} == expected(NUMBERS)
    application = hashlib.sha256((DAGS / "big_app.py").read_bytes()).hexdigest()[:16]
    receipts = stack.receipts(DAG)
    assert [each["code"]["tasks"] for each in receipts] == [{"count": application}] * FILES
    assert [each["rows"] for each in receipts] == [NUMBERS_A_FILE] * FILES
    logs = "".join(airflow.whole_log(DAG, run_id, "commit") for run_id in runs)
    assert "100 rows are written by Spark (spark_connect_default)" in logs
    assert "2 rows are written by Spark (local[1])" in logs
    assert POSTGRES_PASSWORD not in logs
    for path in airflow.home.rglob("*.log"):
        assert POSTGRES_PASSWORD not in path.read_text(errors="replace"), path
