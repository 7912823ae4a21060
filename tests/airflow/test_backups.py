"""Databases of states that come back from backups: a roll forward makes them exact again (docs/howto/back-up.md)."""

from __future__ import annotations

import shutil
import sqlite3
from pathlib import Path

import pytest

from examples import flights
from examples.stored import rows
from tests.airflow.corrections import Corrected
from tests.airflow.stack import Stack

_DAG = """from datetime import timedelta

from airflow.sdk import DAG  # Airflow's
from corrected import add_up

from airflow_tx import CommitOperator, FileSource, Transaction, persistent_aggregate
from airflow_tx.state import Count, SqlState, Sum

with DAG("backed_up", schedule=None, max_active_runs=8, default_args={"retry_delay": timedelta(seconds=2)}):
    with Transaction(source=FileSource("backed_up/*.csv", files_per_batch=1), max_pending=4):
        updates = []
        for conn_id in ("tx_near", "tx_far"):
            values = {"flights": Count(), "distance": Sum()}
            state = SqlState(conn_id, table="backed_up", keys=["carrier"], values=values)
            given = add_up.override(task_id=f"add_up_{conn_id}")(["distance"])
            updates.append(persistent_aggregate(given["carriers"], state=state))
        CommitOperator(task_id="commit", updates=updates)
"""


def copied(path: Path, to: Path) -> None:
    """Make a copy of a database as its own tool does."""
    with sqlite3.connect(path) as source, sqlite3.connect(to) as target:
        source.backup(target)


def totals(path: Path) -> dict[str, tuple[int, int]]:
    found = rows(path, "SELECT carrier, flights, distance FROM backed_up")
    return {carrier: (count, distance) for carrier, count, distance in found if count}


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_totals_are_exact_after_two_databases_from_different_backups_are_rolled_forward(
    stack: Stack,
) -> None:
    dag = "backed_up"
    near, far = (stack.folder / f"{name}.db" for name in ("near", "far"))
    for conn_id, path in (("tx_near", near), ("tx_far", far)):
        stack.connect(conn_id, conn_type="sqlite", host=str(path))
    (stack.airflow_dags / f"{dag}.py").write_text(_DAG)
    corrected = Corrected(stack, dag, {dag: ["distance"]})
    days = flights.write_days(stack.folder / f"{dag}_days")

    def truth() -> dict[str, tuple[int, int]]:
        return {key: (one, two) for (key,), (one, two) in corrected.computed(keys="carrier").items()}

    corrected.add(days[:5])
    copied(near, far.with_suffix(".near"))
    corrected.add(days[5:8])
    late = days[12].read_text().splitlines(keepends=True)[1:30]
    with (corrected.folder / days[1].name).open("a") as file:
        file.writelines(late)
    corrected.restate(2, changed_rows=True)
    copied(far, far.with_suffix(".far"))
    corrected.add(days[8:10])
    whole = truth()
    assert totals(near) == totals(far) == whole

    shutil.copy(far.with_suffix(".near"), near)
    shutil.copy(far.with_suffix(".far"), far)
    assert totals(near) != whole
    assert totals(far) != whole
    shutil.copy(days[10], corrected.folder / days[10].name)
    stack.start(dag, "next")
    stack.airflow.wait_run(dag, "next", state="failed")

    tried = stack.tx("repair", dag, "--roll-forward", "--dry-run")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "fence 5, ledger 11; missing: 6 to 11 (6 committed)" in " ".join(tried.stdout.split())
    killed = [
        stack.failpoints.arm("roll_forward.wrote", "kill", txid=txid, state="tx_near.backed_up") for txid in (7, 9)
    ]
    for _ in killed:
        assert stack.tx("repair", dag, "--roll-forward", "--yes").returncode < 0
        refused = stack.tx("repair", dag, "--reset", "--why", "by mistake", "--yes")
        assert "repeat it: airflow tx repair backed_up --roll-forward" in refused.stderr + refused.stdout
    done = stack.tx("repair", dag, "--roll-forward", "--yes", "--why", "both disks were restored")
    assert done.returncode == 0, done.stdout + done.stderr
    assert all(each.reached for each in killed)
    assert totals(near) == totals(far) == whole

    stack.airflow.clear_run(dag, "next")
    stack.airflow.wait_run(dag, "next")
    assert totals(near) == totals(far) == truth()
    verified = stack.tx("verify", dag, "--values")
    assert verified.returncode == 0, verified.stdout + verified.stderr
    assert "roll-forward" in verified.stdout


_TABLE = """from datetime import timedelta

from airflow.sdk import DAG, task  # Airflow's

from airflow_tx import CommitOperator, FileSource, Transaction, append, current_batch
from airflow_tx.state import SqlTable

orders = SqlTable("tx_orders", table="orders", journal_rows=False)


@task
def read():
    return [{"id": int(row["id"])} for row in current_batch().read()]


with DAG("orders", schedule=None, max_active_runs=8, default_args={"retry_delay": timedelta(seconds=2)}):
    with Transaction(source=FileSource("orders/*.csv", format="csv", files_per_batch=1), max_pending=4):
        CommitOperator(task_id="commit", updates=[append(read(), state=orders)])
"""


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_a_repair_that_is_killed_and_repeated_restores_each_row_once_without_journal_entries(
    stack: Stack,
) -> None:
    dag = "orders"
    path = stack.folder / "orders.db"
    stack.connect("tx_orders", conn_type="sqlite", host=str(path))
    (stack.airflow_dags / f"{dag}.py").write_text(_TABLE)
    orders = Corrected(stack, dag)
    files = []
    for number in range(4):
        files.append(stack.folder / f"orders_{number}.csv")
        files[-1].write_text(f"id\n{2 * number}\n{2 * number + 1}\n")
    orders.add(files[:2])
    copied(path, path.with_suffix(".kept"))
    orders.add(files[2:])
    shutil.copy(path.with_suffix(".kept"), path)

    asked = ("repair", dag, "--roll-forward", "tx_orders.orders", "--restate")
    assert "--restate" in stack.tx("repair", dag, "--roll-forward", "--yes").stderr
    tried = stack.tx(*asked, "--dry-run")
    assert tried.returncode == 0, tried.stdout + tried.stderr
    assert "so transactions 3, 4 will be processed again" in " ".join(tried.stdout.split())
    killed = stack.failpoints.arm("roll_forward.begun", "kill")
    assert stack.tx(*asked, "--yes", "--why", "the disk was restored").returncode < 0
    assert killed.reached
    done = stack.tx(*asked, "--yes", "--why", "the disk was restored")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "airflow tx restate orders --why TEXT" in done.stdout
    found = stack.tx("verify", dag, "--values")
    assert found.returncode == 1
    assert "transaction 3 has no rows: its restatement is requested" in " ".join(found.stdout.split())

    orders.restate()
    assert rows(path, "SELECT id, tx_txid FROM orders ORDER BY id") == [
        (number, [1, 1, 2, 2, 5, 5, 6, 6][number]) for number in range(8)
    ]
    verified = stack.tx("verify", dag, "--values")
    assert verified.returncode == 0, verified.stdout + verified.stderr
