"""The topologies under fire: numbers out of each kind of source, counted into each kind of store.

A row of a number says in which transaction it was counted, and a row of a remainder is touched by every transaction.
What they count is wrong at first, see `bug.py`: a person mends it, and has committed transactions restated.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from airflow.sdk import DAG, CronDataIntervalTimetable, task

from airflow_tx import (
    CommitOperator,
    DataIntervalSource,
    FileSource,
    KafkaSource,
    RedisStreamSource,
    SparkConnectBatchOperator,
    SqlSource,
    Transaction,
    UpstreamSource,
    append,
    coordinator_dag,
    current_batch,
    partition_persist,
    persistent_aggregate,
)
from airflow_tx.state import CombinerAggregator, Count, DeltaTable, RedisState, SqlGuard, SqlState, SqlTable, Sum
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.task import Processing
from tests.chaos.bug import CORRECTED, is_mended, mended_after, output_of
from tests.chaos.dates import FIRST, LAST, numbers_of_dates
from tests.chaos.stacks import tell_stacks
from tests.chaos.topology import COORDINATED, LANED, REAL, STORES, UPSTREAM, summed

FOLDER = os.environ.get("AIRFLOW_TX_DATA", "/nowhere")
if REAL in os.environ:
    tell_stacks(open(f"{FOLDER}/logs/stacks.log", "a"))
ROWS, REMAINDERS = 10, 7
VALUES: dict[str, CombinerAggregator] = {"n": Count(), "total": Sum(), "txid": Sum()}
COUNTED: dict[str, Any] = {"keys": ["key"], "values": VALUES}
LATE_ROWS = SqlTable("fire_postgres", table="late_rows")


def number_of(row: Any) -> int:
    """The number that a row of any of these sources is about."""
    return value_of(row) % CORRECTED


def value_of(row: Any) -> int:
    """What a row says its number is; an entry of a stream has it in its message."""
    if "value" in row:  # of a topic
        return int(row["value"])
    return int(row["number"] if "number" in row else row["message"]["number"])


_ADD = """
    INSERT INTO guarded_rows (key, n, total, txid) VALUES (:key, :n, :total, :in_txids)
    ON CONFLICT (key) DO UPDATE SET
        n = guarded_rows.n + excluded.n,
        total = guarded_rows.total + excluded.total,
        txid = guarded_rows.txid + excluded.txid
"""


def added(rows: list[dict[str, Any]]) -> list[tuple[str, Any]]:
    """The statement of a guard, which by itself would count twice what it is given twice."""
    return [(_ADD, [{**row, "in_txids": row["txid"]} for row in rows])]


@task(retries=3, retry_delay=timedelta(seconds=1))
def count() -> list[dict[str, Any]]:
    """One row for each number of the batch, and one for each of their remainders."""
    batch, name = current_batch(), Processing.current().topology
    mended = mended_after(name)
    parts: dict[str, list[int]] = {}
    for value in map(value_of, batch.read()):
        number = value % CORRECTED
        right = is_mended(name, mended, number, batch.txid)
        key, total = output_of(value, is_mended=right)
        for each in (key, f"k{number % REMAINDERS}"):
            parts.setdefault(each, []).append(total)
    return [
        {"key": key, "n": len(part), "total": sum(part), "txid": batch.txid * len(part)} for key, part in parts.items()
    ]


@task(task_id="count", retries=3, retry_delay=timedelta(seconds=1))
def added_up() -> list[dict[str, Any]]:
    """The rows of another topology's table, one for each key."""
    return summed(current_batch().read())


def counted_on_spark() -> Any:
    """The output of the same as `count`, by an application on a Spark Connect server."""
    application = SparkConnectBatchOperator(
        task_id="count", application="count_on_spark.py", conn_id="fire_spark", retry_delay=timedelta(seconds=1)
    )
    return application.output["counted"]


def update_of(counted: Any, state: Any) -> Update:
    """The output of `count`, as a state takes it."""
    if isinstance(state, SqlGuard):
        return partition_persist(counted, state=state)
    if isinstance(state, DeltaTable | SqlTable):
        return append(counted, state=state)
    return persistent_aggregate(counted, state=state)


def fired_at(name: str, source: Any, *states: Any, counted_by: Callable[[], Any] = count, **of_dag: Any) -> None:
    """Make the DAG of a topology, whose output goes to several states, unless it is left out."""
    if name not in STORES:
        return
    # One after the other on Spark: what waits there for its turn would wait for long, and at a price.
    pending, of_dag = 2 if counted_by is counted_on_spark else 3, {"schedule": None, **of_dag}
    with DAG(name, max_active_runs=6, **of_dag), Transaction(source=source, max_pending=pending):
        counted = counted_by()
        CommitOperator(task_id="commit", updates=[update_of(counted, state) for state in states])


fired_at(
    "files",
    FileSource(f"{FOLDER}/files/*.csv"),
    SqlState("fire_sqlite", table="files", kind="transactional", **COUNTED),
)
fired_at(
    "dates",
    DataIntervalSource(numbers_of_dates, in_order=True),
    SqlState("fire_sqlite", table="dates", **COUNTED),
    schedule=CronDataIntervalTimetable("0 0 * * *", timezone="UTC"),
    start_date=FIRST,
    end_date=LAST,
    catchup=False,
)
fired_at(
    "late_files",
    FileSource(f"{FOLDER}/late_files/*.csv", kind="opaque", files_per_batch=2),
    SqlState("fire_postgres", table="late_files", **COUNTED),
    RedisState("fire_redis", prefix="late_files", **COUNTED),
    LATE_ROWS,
)
fired_at(
    "sums",
    UpstreamSource(LATE_ROWS, topology=UPSTREAM["sums"], max_transactions=2),
    SqlState("fire_postgres", table="sums", **COUNTED),
    counted_by=added_up,
)
fired_at(
    "rows",
    SqlSource("fire_postgres", "numbers", max_rows_per_batch=ROWS),
    SqlState("fire_postgres", table="counted_rows", **COUNTED),
    SqlGuard("fire_postgres", name="rows", statements=added),
)
fired_at(
    "stream",
    RedisStreamSource("fire_redis", ["numbers"], kind="opaque", max_rows_per_batch=ROWS),
    RedisState("fire_redis", prefix="stream", **COUNTED),
)
fired_at(
    "events",
    KafkaSource("fire_kafka", topic="numbers", kind="opaque", max_rows_per_batch=ROWS),
    SqlState("fire_mariadb", table="events", **COUNTED),
)
fired_at(
    "sparked",
    FileSource(f"{FOLDER}/sparked/*.csv"),
    DeltaTable(f"{FOLDER}/table"),
    counted_by=counted_on_spark,
)
# The others have none: a person triggers their runs, or backfills them.
for coordinated in COORDINATED:
    coordinator_dag(coordinated, lane=coordinated in LANED, replay_backoff=1, linger=2)
