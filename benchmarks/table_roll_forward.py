"""What a table of staged rows costs in the journal, and to roll forward. Usage: script/bench table_roll_forward [rows]

The rows are one staged Parquet file; the table is in SQLite, the journal on the same disk.
"""

from __future__ import annotations

import logging
import os
import sys
import tempfile
import time
from pathlib import Path

from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.actions.roll_forward import RollForwardRepair
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.outputs.staging.area import write_manifest, write_rows
from airflow_tx.state import SqlTable
from airflow_tx.transaction.processing.batch import CurrentBatch
from benchmarks.figures import machine, quiet
from tests.stage import Stage, StageRun, update

ROWS = 1_000_000


def staged_run(stage: Stage, count: int) -> StageRun:
    """A run whose task has staged rows."""
    run = StageRun(stage.spec, "r1")
    run.begin()
    processing = run.start()
    list(CurrentBatch(processing).read())
    area = run.spec.staging().of_topology(run.begun.incarnation)
    where = area.try_dir("numbers", run.begun.attempt, processing.task)
    given = [{"carrier": f"C{n % 16}", "day": n // 16, "delay": n * 0.5, "miles": n * 31} for n in range(count)]
    ref = write_manifest(where, {"counts": write_rows(where, "counts", given)})["counts"].to_json()
    processing.ack([ref])
    run.committer.xcoms["count", "counts", -1] = ref
    run.committer.states["count"] = "success"
    return run


def main(count: int = ROWS) -> None:
    """Commit the rows, lose the database, and write all of it again."""
    quiet()
    logging.getLogger("task").setLevel(logging.WARNING)
    with tempfile.TemporaryDirectory() as folder:
        os.environ["AIRFLOW__TX__STAGING"] = f"{folder}/staging"
        file = Path(folder, "state.db")

        def table() -> SqlTable:
            return SqlTable.from_url(f"sqlite:///{file}", table="flights")

        stage = Stage()
        commit = staged_run(stage, count).commit_of([update(table(), name="counts")])
        commit.complete()
        began = time.perf_counter()
        commit.prepare()
        kept = time.perf_counter() - began
        began = time.perf_counter()
        assert commit.try_to_commit()
        appended = time.perf_counter() - began
        ledger = stage.spec.ledger(stage.store)
        journal = JournalArea(stage.spec.staging(), ledger.incarnation())
        (entry,) = map(journal.read, journal.names())
        files = entry.contributions["url.flights"].files
        size = len(entry.content) + sum(each.size for each in files)
        before = table().rows_by_txid()
        file.unlink()
        lost = table()
        began, busy = time.perf_counter(), time.process_time()
        RollForwardRepair(ledger, {lost.name: lost}, journal, stage.spec.staging()).execute(Audit("ada", "lost"))
        again, busy = time.perf_counter() - began, time.process_time() - busy
        assert lost.rows_by_txid() == before == {1: count}, "the table differs"
    print(
        f"{count:,} staged rows: {size / 1e6:.1f} MB in the journal ({len(files)} links), prepared and kept in "
        f"{kept * 1000:.0f} ms; "
        f"appended in {appended:.1f} s ({count / appended:,.0f} rows/s), rolled forward in {again:.1f} s "
        f"({count / again:,.0f} rows/s, {appended / again:.2f} times the append, {busy:.1f} s of a processor). "
        f"{machine()}"
    )


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
