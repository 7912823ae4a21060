"""What a correction costs beside counting everything again: one of twelve months, and thirty of 365 days.

The flights of 2013, a ZooKeeper, a state on SQLite, and the code of the operators without Airflow's servers. The job
counts in Python. Usage: script/bench restate
"""

from __future__ import annotations

import logging
import os
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.sources.files.source import FileSource
from airflow_tx.state import Count, SqlState, Sum
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine, quiet
from examples.flights import write_days, write_months
from examples.ledger import opened
from tests.stage import Stage, StageRun, update

Key = tuple[str, str]
Totals = dict[Key, tuple[int, int]]


def counted(rows: Any, factor: int) -> list[dict[str, Any]]:
    """Count flights and add up delays, per carrier and origin.

    :param factor: what a bug multiplies delays by; 1: there is none.
    """
    flights: Counter[Key] = Counter()
    delays: Counter[Key] = Counter()
    for row in rows:
        key = (row["carrier"], row["origin"])
        flights[key] += 1
        delay = row["dep_delay"]
        delays[key] += 0 if delay in (None, "", "NA") else factor * round(float(delay))
    return [
        {"carrier": key[0], "origin": key[1], "flights": count, "dep_delay": delays[key]}
        for key, count in flights.items()
    ]


class Flights:
    """The transactions of one folder of files, one file each."""

    def __init__(self, name: str, store: Any, folder: Path, home: Path) -> None:
        source = FileSource(f"{folder}/*.csv", files_per_batch=1)
        self.stage = Stage(store, source, name=name)
        self.state = SqlState.from_url(
            f"sqlite:///{home / name}.db",
            table="totals",
            keys=["carrier", "origin"],
            values={"flights": Count(), "dep_delay": Sum()},
            kind="opaque",
        )

    def commit(self, runs: Sequence[str], wrong: Sequence[str] = ()) -> None:
        """Begin, process and commit runs, one after the other; the job has a bug for some of them."""
        for run_id in runs:
            run = StageRun(self.stage.spec, run_id)
            run.begin()
            processing = run.start()
            rows = processing.emitter().emit_batch(processing.attempt, processing.metadata)
            run.end(processing, counted(rows, 60 if run_id in wrong else 1))
            commit = run.commit_of([update(self.state)])
            commit.complete()
            assert commit.try_to_commit()

    def restate(self, runs: Sequence[str]) -> None:
        """Do runs over, whose job is mended."""
        ledger = self.stage.spec.ledger(self.stage.store)
        for run_id in runs:
            txid = int(run_id.removeprefix("r"))
            ledger.run(want, WishRequest(txid, run_id, run_id), Audit("ada", "the delays were in seconds"))
        self.commit(runs)

    def totals(self) -> Totals:
        """Read what is in the state."""
        return {(row["carrier"], row["origin"]): (row["flights"], int(row["dep_delay"])) for row in self.state.read()}


def seconds(work: Callable[[], None]) -> float:
    """Give the processor seconds of this process that some work takes."""
    began = time.process_time()
    work()
    return time.process_time() - began


def compare(what: str, store: Any, files: Sequence[Path], some: int, home: Path) -> None:
    """Restate some of the files, and beside that count all of them again."""
    runs = [f"r{number}" for number in range(1, len(files) + 1)]
    wrong = runs[len(runs) // 3 :][:some]
    corrected = Flights(f"{what}_corrected", store, files[0].parent, home)
    corrected.commit(runs, wrong)
    restated = seconds(lambda: corrected.restate(wrong))
    again = Flights(f"{what}_again", store, files[0].parent, home)
    recomputed = seconds(lambda: again.commit(runs))
    assert corrected.totals() == again.totals(), "the corrected totals differ"
    print(
        f"{some:3} of {len(files):3} {what}: restated in {restated:6.2f} s, all counted again in {recomputed:6.2f} s",
        flush=True,
    )


def main() -> None:
    """Measure months, then days."""
    quiet()
    logging.getLogger("task").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper(Path(folder, "zookeeper")) as zookeeper:
        home = Path(folder)
        os.environ["AIRFLOW__TX__STAGING"] = str(home / "staging")
        with opened(zookeeper.hosts) as store:
            compare("months", store, write_months(home / "by_month"), 1, home)
            compare("days", store, write_days(home / "by_day"), 30, home)
    print(f"Processor seconds of the worker. {machine()}")


if __name__ == "__main__":
    main()
