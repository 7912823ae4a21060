"""Committed transactions are corrected: the totals are as if the corrected output had been there from the start.

Each story is compared with a computation over the files.
"""

from __future__ import annotations

import shutil
import signal
import sqlite3
import subprocess
import sys
from collections import Counter
from datetime import timedelta
from pathlib import Path

import pytest

from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.processes import signal_process
from examples import flights
from examples.stored import rows
from tests.airflow.corrections import Corrected
from tests.airflow.dags.daily import FIRST as DAY_1
from tests.airflow.stack import Stack

Totals = dict[tuple[str, ...], tuple[int, ...]]
APP = Path(__file__).resolve().parents[2] / "spark_apps" / "flight_counts.py"
RIGHT = 'batch.read("carrier", "origin", "dep_delay")'
WRONG = """batch.read("carrier", "origin", "dep_delay", "month").withColumn(
        "carrier", F.expr("IF(month = 3, lower(carrier), carrier)")
    )"""

_FLIGHTS = """from airflow.sdk import DAG  # Airflow's

from airflow_tx import CommitOperator, FileSource, SparkBatchOperator, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

values = {"flights": Count(), "dep_delay": Sum()}
totals = SqlState("tx_state", table="corrected_flights", keys=["carrier", "origin"], values=values)

with DAG("corrected_flights", schedule=None, max_active_runs=8):
    with Transaction(source=FileSource("corrected_flights/*.csv", files_per_batch=1), max_pending=4):
        counts = SparkBatchOperator(task_id="count", application="corrected_app.py")
        CommitOperator(task_id="commit", updates=[persistent_aggregate(counts.output["counts"], state=totals)])
"""
_SCHEDULED = """from corrected import corrected_dag
from daily import DAY, FIRST

from airflow_tx import DataIntervalSource

dag = corrected_dag(  # airflow DAG
    "thirty_days",
    DataIntervalSource("corrected.of_interval", {"folder": "thirty_days"}),
    {"thirty_days": ["distance"]},
    schedule="@daily",
    start_date=FIRST,
    catchup=False,
    end_date=FIRST + 40 * DAY,
)
"""


@pytest.mark.long
@pytest.mark.spark
def test_a_month_that_a_buggy_application_counted_is_exact_after_the_fix_and_a_restatement(stack: Stack) -> None:
    app, keys = stack.airflow_dags / "corrected_app.py", "carrier, origin"
    app.write_text(APP.read_text().replace(RIGHT, WRONG))
    (stack.airflow_dags / "corrected_flights.py").write_text(_FLIGHTS)
    corrected = Corrected(stack, "corrected_flights")
    corrected.add(flights.write_months(stack.folder / "months")[:3])
    before = corrected.stored(keys=keys)
    assert ("ua", "EWR") in before

    app.write_text(APP.read_text())
    run_id = stack.ledger(corrected.dag_id).history()[2].run_id
    stack.airflow.clear_run(corrected.dag_id, run_id)
    stack.airflow.wait_run(corrected.dag_id, run_id)
    assert corrected.stored(keys=keys) == before, "A clear alone restates nothing."

    corrected.restate(3)
    assert corrected.stored(keys=keys) == corrected.computed(keys=keys)
    stored = rows(stack.folder / "state.db", "SELECT flights FROM corrected_flights WHERE carrier = 'ua'")
    assert set(stored) == {(0,)}
    last = stack.ledger(corrected.dag_id).history()[-1]
    assert (last.txid, last.run_id, last.outcome) == (4, run_id, "COMMITTED")
    assert stack.receipts(corrected.dag_id)[-1]["replaces"]["txid"] == 3
    corrected.restate(4)
    assert corrected.stored(keys=keys) == corrected.computed(keys=keys)


@pytest.mark.long
def test_late_rows_of_three_days_are_counted_after_these_days_are_restated(stack: Stack) -> None:
    corrected = Corrected(stack, "late_days", {"late_days": ["distance"]})
    corrected.write()
    days = flights.write_days(stack.folder / f"{corrected.dag_id}_days")
    corrected.add(days[:5])
    assert corrected.stored() == corrected.computed()
    for day, later in zip(days[1:4], days[10:13], strict=True):
        late = later.read_text().splitlines(keepends=True)[1:40]
        with (corrected.folder / day.name).open("a") as file:
            file.writelines(late)
    assert corrected.stored() != corrected.computed()
    corrected.restate(2, 3, 4, changed_rows=True)
    assert corrected.stored() == corrected.computed()
    corrected.add(days[5:6])
    assert corrected.stored() == corrected.computed()
    assert [each.outcome for each in stack.ledger(corrected.dag_id).history()] == ["COMMITTED"] * 9


@pytest.mark.long
def test_restating_each_day_fills_a_new_column_and_a_new_table(stack: Stack) -> None:
    corrected = Corrected(stack, "widened", {"widened": ["distance"]})
    corrected.write()
    days = flights.write_days(stack.folder / f"{corrected.dag_id}_days")
    corrected.add(days[:3])
    assert corrected.stored() == corrected.computed()

    corrected.tables = {"widened": ["distance", "air_time"], "beside": ["hour"]}
    with sqlite3.connect(stack.folder / "state.db", timeout=60) as database:
        for column in ("air_time", "tx_prev_air_time"):
            database.execute(f"ALTER TABLE widened ADD COLUMN {column} BIGINT")
    database.close()
    corrected.write()
    corrected.add(days[3:4])
    whole = {table: corrected.computed(table) for table in corrected.tables}
    for txid in (1, 2, 3):
        assert corrected.stored("beside") != whole["beside"]
        corrected.restate(txid)
    assert {table: corrected.stored(table) for table in corrected.tables} == whole


@pytest.mark.long
def test_diff_reports_that_two_versions_of_a_dag_differ_until_a_restatement_makes_them_equal(stack: Stack) -> None:
    old, new = (Corrected(stack, dag_id, {dag_id: ["distance"]}, "versions") for dag_id in ("version_1", "version_2"))
    bugs = stack.folder / "bugs" / new.dag_id
    bugs.parent.mkdir(exist_ok=True)
    bugs.write_text("2013-01-02")
    days = flights.write_days(stack.folder / "version_days")[:3]
    for version in (old, new):
        version.write()
        version.add(days)
    bugs.unlink()

    differs = stack.tx("diff", old.dag_id, new.dag_id)
    assert differs.returncode == 1, differs.stdout + differs.stderr
    new.restate(2)
    equal = stack.tx("diff", old.dag_id, new.dag_id)
    assert equal.returncode == 0, equal.stdout + equal.stderr
    assert new.stored() == new.computed() == old.stored()


@pytest.mark.long
@pytest.mark.alone
@pytest.mark.timeout(1800)
def test_restating_thirty_days_is_exact_while_new_days_commit_and_processes_are_killed(stack: Stack) -> None:
    corrected = Corrected(stack, "thirty_days", {"thirty_days": ["distance"]})
    dag, airflow, ledger = corrected.dag_id, stack.airflow, stack.ledger(corrected.dag_id)
    (stack.airflow_dags / f"{dag}.py").write_text(_SCHEDULED)
    files = flights.write_days(stack.folder / f"{dag}_days")
    corrected.folder.mkdir()
    bugs = stack.folder / "bugs" / dag
    bugs.parent.mkdir(exist_ok=True)
    bugs.write_text(" ".join(f"{file.stem.removeprefix('flights-')} renamed" for file in files[2:30]))

    def backfilled(first: int, last: int) -> None:
        for file in files[first - 1 : last]:
            shutil.copy(file, corrected.folder / file.name)
        airflow.end_backfills(dag)
        airflow.backfill(dag, DAY_1 + timedelta(days=first - 1), DAY_1 + timedelta(days=last - 1))

    def whole(count: int) -> bool:
        return [run["state"] for run in airflow.runs(dag)] == ["success"] * count

    airflow.wait_dag(dag)
    backfilled(1, 30)
    eventually(lambda: whole(30), 900, "thirty days are committed", interval=1)
    assert corrected.stored() != corrected.computed()
    bugs.unlink()

    killed = [
        stack.failpoints.arm(point, "kill", topology=dag, txid=txid)
        for point, txid in (("commit.before_mark", 33), ("commit.after_acquire", 37), ("commit.after_mark", 41))
    ]
    command = ["tx", "restate", dag, "--from", "2013-01-01", "--to", "2013-01-30", "--why", "the job had a bug"]
    first = subprocess.Popen([sys.executable, "-m", "airflow", *command], env=airflow.environment)
    eventually(lambda: len(ledger.history()) > 33, 600, "some days are restated", interval=0.5)
    first.kill()
    first.wait()
    backfilled(31, 34)
    signal_process(airflow._components["scheduler"].pid, signal.SIGKILL)
    airflow.start_component("scheduler")
    for _ in range(2):
        airflow.command(*command, timeout=900)
        eventually(lambda: whole(34), 900, "all days are committed", interval=1)
        assert corrected.stored() == corrected.computed()
        committed = Counter(each.run_id for each in ledger.history() if each.outcome == "COMMITTED")
        assert sorted(committed.values()) == [1] * 4 + [2] * 30
    assert all(each.reached for each in killed)
    assert len(stack.receipts(dag)) == 64
