"""Errors with half a surrogate pair, which is no character of UTF-8, in a real Airflow: log, ledger, page, command."""

from __future__ import annotations

import json
import sys

import httpx
import pytest

from airflow_tx.testing.deadline import run_command
from tests.airflow.ahead import once
from tests.airflow.stack import Stack
from tests.integration.board.routes import address, routes

DAG = "unfit"
SHOWN = "gr\\udcf6sse"
FAILING = ("row", "count", "writes", "spark")
"""What fails, of each transaction in its order: a row of a task, or a task."""


@once
def failed(stack: Stack) -> None:
    """Let one task of each run fail."""
    for what in FAILING:
        stack.start(DAG, f"r-{what}", fails=what)
        stack.begun(DAG, f"r-{what}")
    for what in FAILING:
        stack.airflow.wait_run(DAG, f"r-{what}", state="failed")


@pytest.mark.long
@pytest.mark.parametrize("what", FAILING)
def test_the_ledger_and_the_log_keep_an_error_that_contains_half_of_a_surrogate_pair(stack: Stack, what: str) -> None:
    failed(stack)
    record = stack.ledger(DAG).read(f"coordinator/transactions/{FAILING.index(what) + 1}")
    log = stack.airflow.task_log(DAG, f"r-{what}", "count" if what == "row" else what)
    assert (SHOWN in record["error"], SHOWN in log) == (True, True), f"{record['error']} {log}"


@pytest.mark.long
def test_every_get_route_of_the_api_answers_if_an_error_contains_half_of_a_surrogate_pair(stack: Stack) -> None:
    failed(stack)
    stack.airflow.call("GET", "dags")  # it is logged in then
    http: httpx.Client = stack.airflow._http
    asked = [
        address(path, DAG, txid).replace("the_dag", DAG).replace("runs/r1", "runs/r-count")
        for method, path in routes()
        if method == "GET"
        for txid in range(1, len(FAILING) + 1)
    ]
    answers = {each: http.get(f"/tx{each}") for each in dict.fromkeys(asked)}
    assert {each: found.text for each, found in answers.items() if found.status_code != 200} == {}


@pytest.mark.long
@pytest.mark.parametrize("output", ["table", "json"])
def test_a_terminal_that_cannot_print_a_character_shows_its_escape_sequence(stack: Stack, output: str) -> None:
    failed(stack)
    command = [sys.executable, "-m", "airflow", "tx", "show", DAG, "2", "--output", output]
    env = {**stack.airflow.environment, "PYTHONIOENCODING": "latin-1"}
    done = run_command(command, env=env, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    shown = done.stdout.replace("\n", "") if output == "table" else json.dumps(json.loads(done.stdout), indent=1)
    assert "sse.csv" in shown
