"""Transactions whose txids follow the days, for a backfill at once, and one by one."""

from __future__ import annotations

import os

from airflow.sdk import DAG, CronDataIntervalTimetable

from airflow_tx import CommitOperator, DataIntervalSource, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum
from benchmarks.backfilled.names import ALONE, DEFERRED, IN_FLIGHT, OURS, SLEPT, name_of
from benchmarks.backfilled.work import work
from benchmarks.peers.jobs import FIRST, LAST

days = CronDataIntervalTimetable("0 0 * * *", timezone="UTC")
for way in (DEFERRED, SLEPT):
    for flight in (IN_FLIGHT, ALONE):
        name = name_of(OURS, way, flight)
        with DAG(name, schedule=days, start_date=FIRST, end_date=LAST, catchup=False, max_active_runs=16):
            source = DataIntervalSource("benchmarks.backfilled.day_number.day_number", in_order=True)
            with Transaction(source=source, max_pending=int(os.environ["IN_FLIGHT"])):
                state = SqlState("tx_state", table=name, keys=[], values={"n": Count(), "total": Sum()})
                CommitOperator(task_id="commit", updates=[persistent_aggregate(work(way), state=state)])
