"""A worker's process: runs of one topology by the operators' own code, on a real ensemble and a real database.

`python -m tests.cluster.runs` reads one command a line and answers each with a line of JSON; `Committer` speaks to it
from a test. A word in FIRE_WITHOUT takes a rule out of the product, to show that the test notices.
"""

from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
import uuid
from collections.abc import Callable
from datetime import datetime, timezone
from types import SimpleNamespace
from typing import Any

from airflow_tx.sources.api import Batch, Json, TransactionalSource

ROWS = 10


class Numbers(TransactionalSource):
    """1 to 10 are the first transaction, 11 to 20 the second, and so on."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "tests.cluster.runs.Numbers", {}

    def initialize_transaction(self, txid: int, position: Json) -> Batch:
        first = position if isinstance(position, int) else 1
        return Batch(metadata=[first, first + ROWS], position=first + ROWS)

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        if spark is not None:
            return spark.range(*metadata, 1, 4).withColumnRenamed("id", "number")
        return ({"number": number} for number in range(*metadata))


class Runs:
    """What the process is asked to do."""

    output = "return_value"

    def __init__(self, url: str, topology: str) -> None:
        from airflow_tx.state import SqlState, Sum
        from airflow_tx.transaction.spec import TransactionSpec

        fields: dict[str, Any] = {"max_pending": 4, "zookeeper_conn_id": "zk", "root": "/airflow_tx"}
        self.spec = TransactionSpec(
            topology, topology, Numbers(), tasks=("count",), inside=("count", "commit"), **fields
        )
        self.state = SqlState.from_url(url, table=topology, keys=["word"], values={"n": Sum()})
        self.begun: dict[str, Any] = {}
        self.rows: dict[str, Any] = {}

    def begin(self, run: str) -> str:
        from airflow_tx.transaction.processing.begin import ask

        answer: Any = ask(self.spec, _ti("begin", run), _run_of(run), retry=False)
        self.begun[run] = answer
        return str(getattr(answer, "attempt", type(answer).__name__))

    def work(self, run: str) -> None:
        from airflow_tx.ledger.attempt import TaskTry
        from airflow_tx.transaction.processing.outputs import returned
        from airflow_tx.transaction.processing.task import Processing

        begun = self.begun[run]
        processing = Processing(self.spec, begun, TaskTry("count", -1, str(uuid.uuid4())), anchored=True)
        processing.start()
        numbers = [row["number"] for row in Numbers().emit_batch(begun.attempt, begun.metadata)]
        # A key that only this attempt has: whatever is left of one that did not commit is seen.
        own = f"of {begun.attempt.txid}.{begun.attempt.attempt}"
        rows = [{"word": "all", "n": sum(numbers)}, {"word": "count", "n": len(numbers)}, {"word": own, "n": 1}]
        processing.ack(returned(rows, multiple=False))
        self.rows[run] = rows

    def commit(self, run: str) -> str:
        from airflow_tx.transaction.commit.committer import Commit
        from airflow_tx.transaction.commit.turn import commit_in_turn
        from airflow_tx.transaction.commit.update import Update

        made: Any = Update
        update = made(SimpleNamespace(operator=SimpleNamespace(task_id="count"), key=self.output), self.state)
        committer = _ti("commit", run)
        committer.xcoms["count", self.output, -1] = self.rows[run]
        committer.states["count"] = "success"
        with self.spec.store() as store:
            ledger = self.spec.ledger(store)
            commit = Commit(self.spec, self.begun[run], [update], ledger, committer, logging.getLogger("task"))
            line = commit_in_turn(commit, store, patience=60)
        return "committed" if line is None else "waits"

    def whole(self, run: str) -> list[str]:
        """A run as Airflow makes it: `begin` and `commit` are tried four times, the task once a replay."""
        errors = list[str]()
        for _ in range(10):
            try:
                if self._again(self.begin, run, errors) == "AlreadyCommitted":
                    return errors
                self.work(run)
                if self._again(self.commit, run, errors) == "committed":
                    return errors
            except Exception as error:  # noqa: BLE001 - a failed task, and a replay
                errors.append(f"FAILED {type(error).__name__}: {error}")
        raise AssertionError(f"run {run} never ends: {errors}")

    def many(self, runs: str) -> list[str]:
        """One run after the other; the errors that a person would see."""
        errors = list[str]()
        for run in runs.split(","):
            errors += self.whole(run)
        return errors

    def until(self, argument: str) -> dict[str, Any]:
        """Run after run until a file is there; how many, and the errors that a person would see."""
        name, file = argument.split()
        errors, number = list[str](), 0
        while number == 0 or not os.path.exists(file):
            number += 1
            errors += self.whole(f"{name}-{number}")
        return {"runs": number, "errors": errors}

    def give(self, run: str) -> dict[str, Any]:
        """What tasks of a run get from those before them, as Airflow keeps it."""
        return {"run": run, "begun": self.begun[run].to_json(), "rows": self.rows.get(run)}

    def take(self, given: str) -> None:
        """Go on with a run of which another process has executed the tasks so far."""
        from airflow_tx.ledger.answers import Begun

        value = json.loads(given)
        self.begun[value["run"]], self.rows[value["run"]] = Begun.from_json(value["begun"]), value["rows"]

    def totals(self, _: str = "") -> dict[str, int]:
        return {row["word"]: row["n"] for row in self.state.read()}

    def clock(self, _: str = "") -> str:
        return datetime.now(timezone.utc).isoformat()

    def _again(self, step: Any, run: str, errors: list[str]) -> Any:
        for last in (False, False, False, True):
            try:
                return step(run)
            except Exception as error:  # as Airflow does
                errors.append(f"{step.__name__} {type(error).__name__}: {error}")
                if last or type(error).__name__ in ("StaleAttempt", "Outranked"):
                    raise
                time.sleep(2)


def _ti(task: str, run: str) -> Any:
    from tests.unit.bench import FakeTi

    return FakeTi(task, run, id=uuid.uuid4())


def _run_of(run: str) -> Any:
    from tests.unit.bench import run_of

    return run_of(run)


def _without(rule: str) -> None:
    """Take a rule out of the product."""
    from airflow_tx.state import fence

    changed: Any = fence
    if rule == "fence":  # who is outranked by the fence writes all the same
        changed._check_rank = lambda stored, grant, *, state: None


def serve(kind: type[Runs], is_current_try: Callable[[str], bool] = lambda task_try: True) -> None:
    """Answer until the input ends.

    :param is_current_try: whether Airflow, which is not here, would say so of the id of a try.
    """
    if "FAKETIME" in os.environ:  # it breaks the system call of this one, and not that of an event
        sleep: Any = lambda seconds: threading.Event().wait(seconds)  # noqa: E731
        time.sleep = sleep
    from airflow_tx.base import compat

    compat.is_current_try = lambda task_try: is_current_try(task_try)
    _without(os.environ.get("FIRE_WITHOUT", ""))
    logging.basicConfig(level=logging.INFO, stream=sys.stderr)
    runs = kind(os.environ["FIRE_URL"], os.environ["FIRE_TOPOLOGY"])
    print(json.dumps({"ready": True}), flush=True)
    for line in sys.stdin:
        name, _, argument = line.strip().partition(" ")
        began = time.monotonic()
        try:
            answer = {"result": getattr(runs, name)(argument)}
        except Exception as error:  # noqa: BLE001 - the test judges it
            answer = {"error": type(error).__name__, "text": str(error)}
        print(json.dumps({**answer, "seconds": round(time.monotonic() - began, 1)}), flush=True)


if __name__ == "__main__":
    serve(Runs)
