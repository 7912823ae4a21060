"""In a real Airflow: what a commit writes into one database becomes visible together, to a reader who never stops.

The reader compares the rows of two tables with the totals that a third one keeps, and with a summary made by SQL.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager

import pytest
import sqlalchemy as sa

from airflow_tx.testing.crash_kit import _POINTS
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Armed
from examples.comparing_reader import ComparingReader
from tests.airflow.dags.counting import SIZE, counted
from tests.airflow.stack import Signal, Stack
from tests.integration.databases import query

FACTS = """
    SELECT 'facts', parity, count(*), sum(number) FROM {0}_orders GROUP BY parity
    UNION ALL SELECT 'facts', 'aside', count(*), sum(CAST(tx_content AS bigint)) FROM {0}_aside
    UNION ALL SELECT 'totals', parity, numbers, total FROM {0}_totals"""
ASIDE = 3
TRIES = 4
"""Of a commit task."""
SUMMARY = " UNION ALL SELECT 'summary', parity, numbers, total FROM moment_summary"


class Moments:
    """A DAG that writes into several tables at once, and a reader of them all."""

    def __init__(self, stack: Stack, dag_id: str, *, summary: bool = False) -> None:
        self.stack = stack
        self.dag_id = dag_id
        self._tables = ["facts", "totals", *(["summary"] if summary else [])]
        self._query = FACTS.format(dag_id) + (SUMMARY if summary else "")

    def reader(self) -> ComparingReader:
        return ComparingReader(self.stack.warehouse, self._query, self._tables)

    def bug(self, word: str) -> Signal:
        """Let the task be wrong from now on."""
        path = self.stack.folder / "bugs" / self.dag_id
        path.parent.mkdir(exist_ok=True)
        path.write_text(word)
        return Signal(path)

    def armed(self, point: str, action: str, *, ahead: int = 1) -> Armed:
        """Arm a point for a transaction that is to begin, the next one or a later one."""
        txid = self.stack.ledger(self.dag_id).allocated + ahead
        return self.stack.failpoints.arm(point, action, topology=self.dag_id, txid=txid)

    def killed_at_each_point(self) -> dict[str, Armed]:
        """Kill the committers of the next transactions, each at another point."""
        points = [point for point in _POINTS if point.startswith("commit.")]
        return {point: self.armed(point, "kill", ahead=ahead) for ahead, point in enumerate(points, 1)}

    def refused(self, run_id: str) -> None:
        """Start a run whose last number is none, which the table of orders refuses."""
        bug = self.bug("none")
        self.stack.start(self.dag_id, run_id)
        self.stack.airflow.wait_run(self.dag_id, run_id, state="failed")
        assert "none" in self.stack.airflow.task_log(self.dag_id, run_id, "commit")
        bug.take_back()

    def assert_agree(self, reader: ComparingReader, txids: int, *, without: int = 0) -> None:
        """Nobody has seen tables that differ, and they hold what so many transactions have counted, but for one."""
        taken = [n for n in range(txids * SIZE) if n // SIZE + 1 != without]
        kept, aside = ([n for n in taken if (n % 10 == ASIDE) is is_aside] for is_aside in (False, True))
        wanted = {each["parity"]: (each["numbers"], each["total"]) for each in counted(kept)}
        wanted["aside"] = (len(aside), sum(aside))
        assert reader.found == dict.fromkeys(self._tables, wanted)
        assert not reader.torn, f"{len(reader.torn)} of {reader.readings} readings differ: {reader.torn[0]}"


@contextmanager
def stopped_in_its_middle(stack: Stack) -> Iterator[None]:
    """Hold the lock that the last statement of a commit waits for."""
    engine = sa.create_engine(stack.warehouse, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        connection.exec_driver_sql("SELECT pg_advisory_lock(7)")
        yield


def assert_reached(killed: Mapping[str, Armed]) -> None:
    """A committer was killed at each point."""
    assert [point for point, each in killed.items() if not each.reached] == []


def is_stopped(stack: Stack) -> bool:
    here = "SELECT oid FROM pg_database WHERE datname = current_database()"
    waiting = f"SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND database = ({here})"
    return bool(query(stack.warehouse, waiting))


def test_a_reader_never_sees_part_of_a_commit_despite_kills_refusals_and_skips(stack: Stack) -> None:
    dag, airflow = "moment", stack.airflow
    moments = Moments(stack, dag, summary=True)
    query(stack.warehouse, "CREATE TABLE moment_summary (parity text, numbers bigint, total numeric)")
    stack.commit_runs(dag, "r1")
    with moments.reader() as reader:
        # Killed while its last statement runs.
        with stopped_in_its_middle(stack):
            stack.start(dag, "r2")
            airflow.wait_for(lambda: is_stopped(stack), 300, "the commit stands in its last statement", dag, "r2")
            reader.looks()
            killed = airflow.task(dag, "r2", "commit")
            os.kill(killed["pid"], signal.SIGKILL)
            eventually(lambda: killed["pid"] not in airflow.processes(), 240, "the committer is gone")
            reader.looks()
        airflow.wait_run(dag, "r2")
        # Refused, until a person acts.
        moments.refused("r3")
        reader.looks()
        stack.skip(dag, 3)
        stack.commit_runs(dag, "r4")
        reader.looks()
    assert [each.outcome for each in stack.ledger(dag).history()] == [*["COMMITTED"] * 2, "SKIPPED", "COMMITTED"]
    moments.assert_agree(reader, 4, without=3)
    names = ", ".join(f"warehouse.moment_{name}" for name in ("totals", "orders", "aside", "summary"))
    assert f"One transaction of the database writes {names}" in airflow.task_log(dag, "r4", "commit")


@pytest.mark.long
def test_a_reader_never_sees_part_of_a_commit_despite_replays_restatements_and_skips(
    stack: Stack,
) -> None:
    dag, airflow, ledger = "corrected_moment", stack.airflow, stack.ledger("corrected_moment")
    moments = Moments(stack, dag)
    stack.commit_runs(dag, "r1")
    with moments.reader() as reader:
        bug = moments.bug("twice")
        killed = moments.killed_at_each_point()
        wrong = [f"r{txid}" for txid in range(2, 2 + len(killed))]
        stack.commit_runs(dag, *wrong)
        assert_reached(killed)
        # All is written, and nothing is marked: a replay has other rows.
        paused = moments.armed("commit.before_mark", "pause")
        stack.start(dag, "replayed")
        airflow.wait_for(lambda: paused.reached, 300, "all is written", dag, "replayed")
        reader.looks()
        bug.take_back()
        airflow.clear_run(dag, "replayed")
        airflow.wait_run(dag, "replayed")
        # Refused, until a person has mended the task.
        moments.refused("mended")
        reader.looks()
        airflow.clear_run(dag, "mended")
        airflow.wait_run(dag, "mended")
        # Written, never marked, and skipped.
        for _ in range(TRIES):
            moments.armed("commit.before_mark", "raise")
        stack.start(dag, "skipped")
        airflow.wait_run(dag, "skipped", state="failed")
        reader.looks()
        skipped = ledger.allocated
        stack.skip(dag, skipped)
        stack.commit_runs(dag, "after")
        # Every number of these was counted twice.
        killed = moments.killed_at_each_point()
        txids = [str(2 + index) for index in range(len(wrong))]
        airflow.command("tx", "restate", dag, *txids, "--why", "counted twice", timeout=600)
        for run_id in wrong:
            airflow.wait_run(dag, run_id, timeout=600)
        assert_reached(killed)
        reader.looks()
    assert [each.txid for each in ledger.history() if each.outcome == "SKIPPED"] == [skipped]
    assert len(stack.receipts(dag)) == skipped + 1 + len(wrong)
    moments.assert_agree(reader, skipped + 1, without=skipped)
