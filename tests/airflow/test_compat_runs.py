"""What a task, a trigger and a command can do with runs in a real Airflow."""

from __future__ import annotations

import json
import os
import signal
import sys
import uuid
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.testing.deadline import run_command
from airflow_tx.testing.eventually import eventually
from tests.airflow.client import TriedAirflow
from tests.airflow.stack import Signal, Stack, parent

TARGET = "runs_target"
COMMAND = """
import json, sys
from airflow_tx.base import compat
print(json.dumps([getattr(compat, name)(**arguments) for name, arguments in json.loads(sys.argv[1])]))
"""

Calls = list[tuple[str, dict[str, Any]]]


@pytest.mark.lead
@pytest.mark.worth("decides whether a scheduler imports Spark's client ahead")
def test_a_scheduler_can_check_whether_the_database_has_a_connection_of_a_given_type(stack: Stack) -> None:
    stack.connect("found_by_type", conn_type="spark_connect", host="127.0.0.1")
    asked: Calls = [("connection_exists", {"conn_type": name}) for name in ("spark_connect", "no_such_type")]
    assert from_command(stack.airflow, asked) == [True, False]


@pytest.fixture
def until(stack: Stack) -> Iterator[Signal]:
    """What the runs of a test wait for, given at its end at the latest."""
    signal = stack.signal()
    for dag_id in (TARGET, "runs_asked", "runs_triggered"):
        stack.airflow.wait_dag(dag_id)
    yield signal
    signal.give()


def from_task(airflow: TriedAirflow, calls: Calls) -> list[Any]:
    """What functions of `compat` answer in a task."""
    run_id = uuid.uuid4().hex
    airflow.trigger("runs_asked", run_id, {"calls": calls})
    airflow.wait_run("runs_asked", run_id)
    answers: list[Any] = airflow.xcom("runs_asked", run_id, "ask")
    return answers


def from_command(airflow: TriedAirflow, calls: Calls) -> list[Any]:
    """What functions of `compat` answer in a process of its own that has the database."""
    command = [sys.executable, "-c", COMMAND, json.dumps(calls)]
    done = run_command(command, env=airflow.environment, capture_output=True, timeout=300)
    assert done.returncode == 0, done.stderr
    answers: list[Any] = json.loads(done.stdout.splitlines()[-1])
    return answers


def run(run_id: str, **more: Any) -> dict[str, Any]:
    return {"dag_id": TARGET, "run_id": run_id, **more}


@pytest.mark.long
def test_a_task_can_start_and_reset_runs_and_start_a_deleted_run_again_under_its_run_id(
    stack: Stack, until: Signal
) -> None:
    airflow = stack.airflow
    airflow.wait_dag("runs_asked")
    airflow.wait_dag(TARGET)
    start: tuple[str, dict[str, Any]] = ("start_run", run("new", conf={"color": "red"}))
    unknown = {"dag_id": "nowhere", "run_id": "r"}
    airflow.trigger(TARGET, "dated", logical_date=datetime(2013, 1, 1, tzinfo=timezone.utc))

    assert from_task(airflow, [start, start, ("start_run", unknown), ("restart_dead", unknown)]) == [
        True,
        False,
        "Run 'r' of DAG 'nowhere' was not started: Dag with dag_id: 'nowhere' not found",
        False,
    ]
    airflow.wait_run(TARGET, "new")
    told = airflow.xcom(TARGET, "new", "told")
    assert datetime.fromisoformat(told.pop("started")) <= datetime.now(timezone.utc)
    assert told == {
        "run_id": "new",
        "run_type": compat.operator_run_type().value,
        "interval_start": None,
        "interval_end": None,
        "logical_date": None,
        "partition_key": None,
        "partition_date": None,
        "conf": {"color": "red"},
    }

    again: tuple[str, dict[str, Any]] = ("start_run", run("new", conf={"color": "blue"}, reset=True))
    assert from_task(airflow, [again]) == [True]
    airflow.wait_run(TARGET, "new")
    assert airflow.task(TARGET, "new", "told")["try_number"] == 2
    assert airflow.run(TARGET, "new")["conf"] == {"color": "red"}

    airflow.delete_run(TARGET, "new")
    assert from_task(airflow, [again]) == [True]
    # Whatever it ends as: Airflow's scheduler may take the end of a task of the deleted run for one of the new run.
    airflow.wait_run(TARGET, "new", state=None)
    assert airflow.task(TARGET, "new", "told")["try_number"] == 1
    assert airflow.run(TARGET, "new")["conf"] == {"color": "blue"}

    airflow.wait_run(TARGET, "dated")
    dated = airflow.xcom(TARGET, "dated", "told")
    assert [dated[name] for name in ("logical_date", "interval_end")] == ["2013-01-01 00:00:00+00:00"] * 2


@pytest.mark.long
def test_a_trigger_and_a_task_can_read_the_states_of_runs(stack: Stack, until: Signal) -> None:
    airflow = stack.airflow
    for run_id in ("held", "ended", "deleted"):
        airflow.trigger(TARGET, run_id, {"until": str(until.path)} if run_id == "held" else {})
    for run_id in ("ended", "deleted"):
        airflow.wait_run(TARGET, run_id)
    airflow.delete_run(TARGET, "deleted")
    airflow.wait_task(TARGET, "held", "hold", "running")

    airflow.trigger("runs_triggered", "r", {"dag_id": TARGET, "run_ids": ["held", "ended", "deleted"]})
    airflow.pause("runs_triggered")
    paused: Calls = [("is_paused", {"dag_id": each}) for each in (TARGET, "runs_triggered", "nowhere")]
    assert from_task(airflow, [*paused, ("running_runs", {"dag_id": TARGET})]) == [False, True, None, 1]
    airflow.pause("runs_triggered", False)

    airflow.wait_run("runs_triggered", "r")
    answer = airflow.xcom("runs_triggered", "r", "ask")
    assert answer["run_states"] == {"held": "running", "ended": "success", "deleted": None}
    assert answer["running_runs"] == 1
    assert answer["is_paused"] is None
    # A question that stops the loop until it is answered leaves it not one round.
    asks = ("run_states", "running_runs")
    assert all(answer["rounds"][name] > 0 for name in asks), answer["rounds"]


@pytest.mark.long
def test_a_task_that_was_cleared_while_it_runs_learns_that_another_try_has_replaced_it(
    stack: Stack, tmp_path: Path
) -> None:
    airflow, told = stack.airflow, {}
    airflow.wait_dag("runs_replaced")

    def tells(name: str) -> bool:
        told[name] = (tmp_path / name).read_text() if (tmp_path / name).exists() else None
        return told[name] is not None

    airflow.trigger("runs_replaced", "r", {"folder": str(tmp_path)})
    eventually(lambda: tells("1"), 240, "the first try runs")
    airflow.set_task_state("runs_replaced", "r", "replaced", "failed")
    airflow.clear("runs_replaced", "r", ["replaced"])
    (tmp_path / "replaced").touch()
    eventually(lambda: tells("1, replaced"), 240, "it lives on beside its clear")

    def tells_again() -> bool:
        # A scheduler that saw the failed task while it was cleared has failed the run all the same.
        if airflow.run("runs_replaced", "r")["state"] == "failed":
            airflow.clear("runs_replaced", "r", ["replaced"])
        return tells("2")

    eventually(tells_again, 240, "the second try runs", interval=1)
    airflow.wait_run("runs_replaced", "r")
    assert told == {"1": "True", "1, replaced": "False", "2": "True"}


@pytest.mark.long
def test_a_command_clears_a_run_although_the_dag_has_reached_its_limit_of_running_runs(
    stack: Stack, until: Signal
) -> None:
    airflow = stack.airflow
    airflow.trigger(TARGET, "limited")
    airflow.wait_run(TARGET, "limited")
    for run_id in ("first", "second"):
        airflow.trigger(TARGET, run_id, {"until": str(until.path)})
    for run_id in ("first", "second"):
        airflow.wait_task(TARGET, run_id, "hold", "running")

    answers = from_command(
        airflow,
        [
            ("clear_run", run("limited", past_limit=False)),
            ("create_run", run("created", conf={"color": "red"})),
            ("create_run", run("created", conf={})),
            ("create_run", run("scheduled__2013-01-01T00:00:00+00:00")),
            ("clear_run", run("never", past_limit=True)),
            ("runs_of", {"dag_id": TARGET, "run_ids": ["first", "limited", "created", "never"]}),
        ],
    )
    assert answers == [True, True, False, True, False, {"first": "running", "limited": "queued", "created": "queued"}]
    # It waits, and is let past the limit; having run, it is cleared and let past at once.
    for tries in (2, 3):
        assert from_command(airflow, [("clear_run", run("limited", past_limit=True))]) == [True]
        airflow.wait_run(TARGET, "limited")
        assert airflow.task(TARGET, "limited", "told")["try_number"] == tries
    assert airflow.run(TARGET, "created")["state"] == "queued"
    until.give()
    airflow.wait_run(TARGET, "created")
    assert airflow.xcom(TARGET, "created", "told")["run_type"] == "manual"


@pytest.mark.long
def test_a_run_whose_task_and_supervisor_were_killed_restarts_without_waiting_for_a_timeout(
    stack: Stack, until: Signal
) -> None:
    airflow = stack.airflow
    airflow.trigger(TARGET, "dead", {"until": str(until.path)})
    pid = airflow.wait_task(TARGET, "dead", "hold", "running")["pid"]
    supervisor = parent(pid)
    assert "airflow worker -- LocalExecutor" in Path(f"/proc/{supervisor}/cmdline").read_text()
    os.kill(supervisor, signal.SIGKILL)
    os.kill(pid, signal.SIGKILL)
    eventually(lambda: pid not in airflow.processes(), 240, f"the task (pid {pid}) is gone")
    assert airflow.task(TARGET, "dead", "hold")["state"] == "running"

    until.give()
    assert from_task(airflow, [("restart_dead", run("dead"))]) == [True]
    # Airflow by itself would notice after 300 s.
    airflow.wait_run(TARGET, "dead", timeout=200)
    assert airflow.task(TARGET, "dead", "hold")["try_number"] == 2
