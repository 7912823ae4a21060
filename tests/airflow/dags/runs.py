"""Airflow DAGs whose runs are started, watched, cleared and killed through `compat`; no transactions."""

from __future__ import annotations

import asyncio
import dataclasses
import signal
import time
from collections.abc import AsyncIterator
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, BaseOperator, get_current_context, task
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_tx.base import compat


# Beside a worker that is killed, Airflow's LocalExecutor once failed the next task before it began.
@task(retries=1, retry_delay=timedelta(seconds=1))
def told() -> dict[str, Any]:
    """What the run knows of itself."""
    info = dataclasses.asdict(compat.run_info(get_current_context()))
    return {name: value if isinstance(value, dict) else value and str(value) for name, value in info.items()}


@task
def hold() -> None:
    """Runs until the file in the run's conf exists."""
    path = (get_current_context()["dag_run"].conf or {}).get("until")
    while path and not Path(path).exists():
        time.sleep(0.2)


with DAG("runs_target", schedule=None, max_active_runs=2):
    told() >> hold()


@task
def replaced() -> None:
    """Tells whether it is its task's current try; the first one does not let itself be stopped, and tells it again."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    context = get_current_context()
    folder, ti = Path(context["dag_run"].conf["folder"]), context["ti"]
    tell(folder / f"{ti.try_number}", compat.is_current_try(str(ti.id)))
    while ti.try_number == 1 and not (folder / "replaced").exists():
        time.sleep(0.05)
    tell(folder / f"{ti.try_number}, replaced", compat.is_current_try(str(ti.id)))


def tell(path: Path, answer: bool) -> None:
    path.with_suffix(".new").write_text(str(answer))
    path.with_suffix(".new").rename(path)


with DAG("runs_replaced", schedule=None, max_active_runs=16):
    replaced()


@task
def ask() -> list[Any]:
    """What the functions of `compat` in the run's conf answer: pairs of name and arguments."""
    answers: list[Any] = []
    for name, arguments in (get_current_context()["dag_run"].conf or {})["calls"]:
        try:
            answers.append(getattr(compat, name)(**arguments))
        except compat.RunNotStarted as error:
            answers.append(str(error))
    return answers


with DAG("runs_asked", schedule=None, max_active_runs=16):
    ask()


class Asking(BaseTrigger):
    """Asks what the triggerer can be asked, and counts how often the loop of all triggers goes round during each."""

    def __init__(self, dag_id: str, run_ids: list[str]) -> None:
        super().__init__()
        self.dag_id = dag_id
        self.run_ids = run_ids

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.airflow.dags.runs.Asking", {"dag_id": self.dag_id, "run_ids": self.run_ids}

    async def run(self) -> AsyncIterator[TriggerEvent]:
        # A trigger that fires before the scheduler has seen its task defer would have it failed.
        await asyncio.sleep(2)
        rounds = [0]
        beats = asyncio.create_task(count(rounds))
        await asyncio.sleep(0)
        answer: dict[str, Any] = {"rounds": {}}
        for name, question in (
            ("run_states", partial(compat.run_states, self.dag_id, self.run_ids)),
            ("is_paused", partial(compat.is_paused_async, self.dag_id)),
            ("running_runs", partial(compat.running_runs_async, self.dag_id)),
        ):
            before = rounds[0]
            answer[name] = await question()
            answer["rounds"][name] = rounds[0] - before
        beats.cancel()
        yield TriggerEvent(answer)


async def count(rounds: list[int]) -> None:
    """Count how often the loop goes round."""
    while True:
        rounds[0] += 1
        await asyncio.sleep(0)


class AskInTrigger(BaseOperator):
    """Returns what `Asking` was told of the runs in the run's conf."""

    def execute(self, context: Any) -> None:
        conf = context["dag_run"].conf
        self.defer(trigger=Asking(conf["dag_id"], conf["run_ids"]), method_name="answered")

    def answered(self, context: Any, event: dict[str, Any]) -> dict[str, Any]:
        return event


with DAG("runs_triggered", schedule=None, max_active_runs=16):
    AskInTrigger(task_id="ask", retries=3, retry_delay=1)
