"""The same as plain DAGs of three tasks, without an order, and with one between the last tasks."""

from __future__ import annotations

from airflow.sdk import DAG, BaseHook, CronDataIntervalTimetable, get_current_context, task

from benchmarks.backfilled.day_number import day_number
from benchmarks.backfilled.names import ALONE, DEFERRED, IN_FLIGHT, ORDERED, PLAIN, SLEPT, name_of
from benchmarks.backfilled.work import Rows, work
from benchmarks.peers.jobs import FIRST, LAST


@task
def choose() -> Rows:
    """Read the day of the run."""
    run = get_current_context()["dag_run"]
    assert run.data_interval_start is not None
    return day_number(run.data_interval_start, run.data_interval_start)


@task
def commit(table: str, rows: Rows) -> None:
    """Add the sums of a day to the table; a second try counts it twice."""
    import psycopg2  # type: ignore[import-untyped]

    found = BaseHook.get_connection("tx_state")
    place = {"host": found.host, "port": found.port, "dbname": found.schema}
    connection = psycopg2.connect(user=found.login, password=found.password, **place)
    with connection, connection.cursor() as cursor:
        for row in rows:
            cursor.execute(f"UPDATE {table} SET n = n + %s, total = total + %s", (row["n"], row["total"]))
    connection.close()


days = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
for way in (DEFERRED, SLEPT):
    for flight in (IN_FLIGHT, ALONE):
        for peer in (PLAIN, ORDERED):
            name = name_of(peer, way, flight)
            with DAG(name, schedule=days, start_date=FIRST, end_date=LAST, catchup=False, max_active_runs=16):
                commit.override(depends_on_past=peer == ORDERED)(name, work(way, choose()))
