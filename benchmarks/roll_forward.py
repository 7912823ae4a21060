"""What a roll forward costs: a database that came back empty. Usage: script/bench roll_forward [days]

Each day has 35 keys. The ledger is in a real ZooKeeper, the state in SQLite, the journal on a disk.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.actions.roll_forward import RollForwardRepair
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.state import SqlState, Sum
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.transaction.processing.batch import CurrentBatch
from benchmarks.figures import machine, quiet
from examples.ledger import opened
from tests.stage import Stage, StageRun, update

DAYS = 300
KEYS = 35


def commit(stage: Stage, state: SqlState, number: int) -> None:
    """Commit one day."""
    run = StageRun(stage.spec, f"r{number}")
    run.begin()
    processing = run.start()
    list(CurrentBatch(processing).read())
    run.end(processing, [{"carrier": f"C{key}", "n": key + number} for key in range(KEYS)])
    commit = run.commit_of([update(state)])
    commit.complete()
    commit.try_to_commit()


def main(days: int = DAYS) -> None:
    """Commit days, lose the database, and write all of it again."""
    quiet()
    logging.getLogger("task").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper(Path(folder, "zookeeper")) as zookeeper:
        os.environ["AIRFLOW__TX__STAGING"] = f"{folder}/staging"
        file = Path(folder, "state.db")

        def state() -> SqlState:
            return SqlState.from_url(f"sqlite:///{file}", table="days", keys=["carrier"], values={"n": Sum()})

        with opened(zookeeper.hosts) as store:
            stage = Stage(store)
            began = time.perf_counter()
            for number in range(days):
                commit(stage, state(), number)
            took = time.perf_counter() - began
            before = state().read()
            file.unlink()
            spec: Any = stage.spec
            ledger = spec.ledger(store)
            journal = JournalArea(spec.staging(), ledger.incarnation())
            lost = state()
            began, busy = time.perf_counter(), time.process_time()
            RollForwardRepair(ledger, {lost.name: lost}, journal, spec.staging()).execute(Audit("ada", "lost"))
            again, busy = time.perf_counter() - began, time.process_time() - busy
            assert lost.read() == before, "the table differs"
    print(
        f"{days} transactions of {KEYS} keys: committed in {took / days * 1000:.1f} ms each, written again in "
        f"{again / days * 1000:.1f} ms each ({busy / days * 1000:.1f} ms of a processor). {machine()}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
