"""How long the turn to commit takes from one transaction to the next, between committers that wait in their workers.

A real ZooKeeper that forces its log to the disk, a state on SQLite, and the code of CommitOperator in processes of its
own: one commits, two wait, each on a connection of its own. Usage: script/bench handoff [transactions]
"""

from __future__ import annotations

import itertools
import multiprocessing
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from airflow_tx.ledger.answers import Begun
from benchmarks import topology
from benchmarks.figures import machine, quiet, spread

TRANSACTIONS = 200
PLACES = 3  # the one that commits, and the two that wait
# The shortest commit. It is there so that whoever waits has had the time to connect and to set its watches.
COMMIT = 0.15
TASK = "count"


@dataclass(frozen=True)
class Passed:
    """When things happened to one transaction, in seconds of one clock.

    :param waited: its committer had set its watches, for the last time.
    :param woken: it began to act after that.
    :param asked: it began to ask for the turn.
    :param granted: it had the answer.
    :param marking: everything was written, and it began to mark.
    :param marked: it had the answer that its transaction is committed.
    """

    txid: int
    waited: float
    woken: float
    asked: float
    granted: float
    marking: float
    marked: float


class Log:
    """Notes when the committer waits."""

    def __init__(self) -> None:
        self.waited = 0.0

    def info(self, text: str, *arguments: Any) -> None:
        """A line of the committer's log."""
        if "waits: the turn is at" in text:
            self.waited = time.time()

    def warning(self, text: str, *arguments: Any) -> None:
        """Nothing may go wrong here."""
        raise AssertionError(text % arguments)


def commit_all(hosts: str, url: str, folder: str, all_begun: list[Begun], ready: Any) -> list[Passed]:
    """What one worker slot does: commit its transactions, each on a connection of its own."""
    from airflow_tx.transaction.commit import turn

    spec = topology.DirectSpec("handoff", "benchmark", topology.Numbers(), hosts=hosts, folder=folder, tasks=(TASK,))
    state = topology.state(url)
    state.read()  # imports the drivers
    with spec.store():
        pass
    ready.wait()
    return [_commit(spec, state, begun, turn) for begun in all_begun]


def _commit(spec: topology.DirectSpec, state: Any, begun: Begun, turn: Any) -> Passed:
    from airflow_tx.transaction.commit.committer import Commit

    at: dict[str, float] = {}
    log = Log()
    look = turn.read_line

    def noted_read(*arguments: Any) -> Any:
        at["woken"] = time.time()
        return look(*arguments)

    class Timed(Commit):
        def try_to_commit(self) -> bool:
            at["asked"] = time.time()
            return super().try_to_commit()

        def use(self) -> None:
            at["granted"] = time.time()
            super().use()

        def mark(self, step: Any) -> Any:
            time.sleep(max(0.0, at["granted"] + COMMIT - time.time()))
            at["marking"] = time.time()
            return super().mark(step)

        def clean_up(self) -> None:
            at["marked"] = time.time()
            super().clean_up()

    ti = topology.TaskInstance("commit", f"run{begun.txid}", xcom=topology.output(begun))
    turn.read_line = noted_read
    try:
        with spec.store() as store:
            commit = Timed(spec, begun, [topology.update(TASK, state)], spec.ledger(store), ti, log)
            line = turn.commit_in_turn(commit, store, patience=60)
    finally:
        turn.read_line = look
    assert line is None, f"transaction {begun.txid} would have been deferred: {line}"
    return Passed(begun.txid, log.waited, **at)


def begin_all(hosts: str, folder: str, transactions: int) -> list[Begun]:
    """Transactions whose tasks have all acked."""
    with topology.connected(hosts) as store:
        spec = topology.DirectSpec(
            "handoff",
            "benchmark",
            topology.Numbers(),
            max_pending=transactions,
            tasks=(TASK,),
            folder=folder,
            kept=store,
        )
        all_begun = [topology.begin(spec, f"run{number}") for number in range(1, transactions + 1)]
        for begun in all_begun:
            topology.process(spec, begun, TASK)
    return all_begun


def ledger_says(hosts: str) -> Iterator[float]:
    """granted_at(n + 1) − ended(n), as the ledger's history has them."""
    from airflow_tx.ledger.api import Paths
    from airflow_tx.ledger.reading import Reader
    from airflow_tx.ledger.records import TransactionRecord

    paths = Paths("/benchmark", "handoff")
    with topology.connected(hosts) as store:
        found = store.children(paths.histories)
        txids = sorted(int(name) for name in (found.names if found else ()))
        entries = [Reader(store).get(TransactionRecord, paths.history(txid)) for txid in txids]
    for before, after in itertools.pairwise(entries):
        yield _seconds(after.granted_at) - _seconds(before.final.when)


def _seconds(stamp: str | None) -> float:
    assert stamp is not None
    return datetime.fromisoformat(stamp).timestamp()


def measure(transactions: int) -> tuple[list[Passed], list[float]]:
    """All transactions in order, and the hand-offs according to the ledger."""
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

    # Not forked: this process has threads. A worker has only what it imports itself.
    context = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper() as zookeeper, context.Manager() as manager:
        url = f"sqlite:///{Path(folder) / 'state.db'}"
        all_begun = begin_all(zookeeper.hosts, folder, transactions)
        ready = manager.Barrier(PLACES)
        with context.Pool(PLACES) as pool:
            places = [(zookeeper.hosts, url, folder, all_begun[place::PLACES], ready) for place in range(PLACES)]
            found = pool.starmap(commit_all, places, chunksize=1)
        total = sum(row["n"] for row in topology.state(url).read())
        assert total == transactions * topology.KEYS, total
        passed = sorted((each for place in found for each in place), key=lambda each: each.txid)
        return passed, list(ledger_says(zookeeper.hosts))


def report(passed: list[Passed], ledger: list[float]) -> Mapping[str, list[float]]:
    """Per figure its values; only hand-offs to a committer that waited before the commit ahead of it ended."""
    figures: dict[str, list[float]] = {}
    for index, (before, after) in enumerate(itertools.pairwise(passed)):
        if not 0 < after.waited < before.marking:
            continue
        for name, seconds in (
            ("ledger: granted_at - ended", ledger[index]),
            ("clock: marked to granted", after.granted - before.marked),
            ("  of which woken after", after.woken - before.marked),
            ("  of which looked for", after.asked - after.woken),
            ("  of which acquired for", after.granted - after.asked),
            ("mark of the commit ahead", before.marked - before.marking),
            ("clock: marking to granted", after.granted - before.marking),
        ):
            figures.setdefault(name, []).append(seconds)
    return figures


def main() -> None:
    """Measure and print."""
    quiet()
    transactions = int(sys.argv[1]) if len(sys.argv) > 1 else TRANSACTIONS
    passed, ledger = measure(transactions)
    figures = report(passed, ledger)
    warm = len(next(iter(figures.values())))
    print(f"Hand-off of the turn, {warm} of {transactions - 1} to a committer that waited already; {machine()}")
    for name, values in figures.items():
        print(f"  {name:28} {spread(values)}")


if __name__ == "__main__":
    main()
