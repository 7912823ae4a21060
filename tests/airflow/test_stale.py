"""Code changes, and what it has made is found, restated and right, in a real Airflow."""

from __future__ import annotations

import csv
import json
from typing import Any

from examples.stored import rows
from tests.airflow.stack import Stack

DAG_ID = "stale_tasks"
TEXT = """from airflow.sdk import DAG, task  # Airflow's

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, persistent_aggregate
from airflow_tx.state import SqlState, Sum

RATE = 1
totals = SqlState("tx_state", table="stale_tasks", keys=["key"], values={"n": Sum(), "fee": Sum()})


def fee(n):
    return n * RATE


with DAG("stale_tasks", schedule=None, max_active_runs=4):
    with Transaction(source=FileSource("stale_tasks/*.csv", schema="key STRING, n INT", files_per_batch=1)) as tx:

        @task
        def take(batch):
            return [{"key": row["key"], "n": row["n"]} for row in current_batch().read()]

        @task
        def price(taken):
            return [{**row, "fee": fee(row["n"])} for row in taken]

        @task
        def check(taken):
            return [row for row in taken if row["n"] < 0]

        taken = take(tx.batch)
        priced = price(taken)
        commit = CommitOperator(task_id="commit", updates=[persistent_aggregate(priced, state=totals)])
        check(taken) >> commit
"""


def add(stack: Stack, *numbers: int) -> None:
    """Let the source have a file more for each number, and commit it."""
    folder = stack.folder / DAG_ID
    folder.mkdir(exist_ok=True)
    for number in numbers:
        with (folder / f"{number}.csv").open("w", newline="") as file:
            csv.writer(file).writerows([["key", "n"], ["all", number]])
    stack.commit_runs(DAG_ID, *(f"run-{number}" for number in numbers))


def write(stack: Stack, text: str) -> None:
    """Let Airflow have this DAG file."""
    (stack.airflow_dags / f"{DAG_ID}.py").write_text(text)


def stale(stack: Stack, *more: str) -> list[Any]:
    """What is stale, each transaction with the reason."""
    told = stack.airflow.command("tx", "stale", DAG_ID, *more, "--output", "json")
    return [(each["txid"], each["what"]) for each in json.loads(told.splitlines()[0])]


def test_transactions_of_changed_task_code_are_listed_as_stale_and_a_restatement_corrects_them(stack: Stack) -> None:
    write(stack, TEXT)
    add(stack, 1, 2, 3)
    assert stale(stack) == []

    write(stack, TEXT.replace("def fee(n):", 'def fee(n):  # of a row\n    """Price a row."""'))
    assert stale(stack) == [], "a comment and a docstring change nothing"

    write(stack, TEXT.replace("RATE = 1", "RATE = 2"))
    add(stack, 4)
    assert stale(stack) == [(txid, "task price has other code") for txid in (1, 2, 3)]
    assert stored(stack) == {"n": 10, "fee": 1 + 2 + 3 + 2 * 4}

    stack.airflow.command("tx", "restate", DAG_ID, "--stale", "--code", "price", timeout=600)
    assert stored(stack) == {"n": 10, "fee": 20}
    assert stale(stack) == []
    stack.airflow.command("tx", "verify", DAG_ID, "--values")


def stored(stack: Stack) -> dict[str, int]:
    """The totals in the table."""
    ((n, fee),) = rows(stack.folder / "state.db", "SELECT n, fee FROM stale_tasks")
    return {"n": n, "fee": fee}
