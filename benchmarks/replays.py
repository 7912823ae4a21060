"""How many replays a failing batch causes, against Storm's rule that all later ones are replayed. Real ledger code on
the in-memory store. Usage: script/bench replays [transactions]

Storm fails every later transaction that is open when one fails. Here those are replayed whose batch starts where a
replay no longer ends: with a transactional source none, with an opaque one only if the replay has other rows.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from airflow_tx.ledger.answers import Begun, Committed, Granted, Processed
from airflow_tx.ledger.api import Paths, SystemClock, SystemIds
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.json_text import digest
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState, stale_successors
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.ledger.steps import commit, processing
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.store.memory import MemoryStore

PENDING = 8
FAILING = 0.05
ROWS = 100


class Pipeline:
    """A topology whose window is always full; every batch has `ROWS` rows, a replay that is moved has fewer.

    :param moved: the part of the replays that have other rows.
    """

    def __init__(self, source: str, moved: float, seed: int) -> None:
        self.random = random.Random(seed)
        self.ledger = Ledger(MemoryStore(), Paths("/bench", "replays"), clock=SystemClock(), ids=SystemIds())
        self.request = TopologyRequest("replays", source, PENDING)
        self.moved = moved
        self.open: dict[int, Begun] = {}
        self.tries = 0
        self.failures = self.replays = self.storm = 0

    def run(self, transactions: int) -> None:
        """Commit so many transactions."""
        for current in range(1, transactions + 1):
            while len(self.open) < PENDING:
                begun = self._begin(max(self.open, default=current - 1) + 1)
                self._process(begun)
            while self.random.random() < FAILING:
                self._fail(current)
            self._commit(current)

    def _begin(self, txid: int) -> Begun:
        self.tries += 1
        run, task_try = f"r{txid}", f"{self.tries:09}"
        rows = ROWS - 1 if txid in self.open and self.random.random() < self.moved else ROWS
        answer = self.ledger.begin(
            BeginRequest(self.request, run, run, task_try, retry=False, tasks={"p": f"{self.tries:016x}"}),
            Outside(
                decide=lambda _, position: Batch([position, rows], (position or 0) + rows),
                run_state=lambda run_id: None,
            ),
        )
        assert isinstance(answer, Begun), answer
        self.open[txid] = answer
        return answer

    def _process(self, begun: Begun) -> None:
        task = TaskTry("p", -1, f"{self.tries:09}")
        self.ledger.start(begun.attempt, task)
        self.ledger.run(processing.ack, begun.attempt, task)

    def _fail(self, txid: int) -> None:
        self.failures += 1
        self.storm += len(self.open) - 1
        self._process(self._begin(txid))
        while found := stale_successors(self._records(), current=txid, position=self._before(txid)):
            self.replays += 1
            self._process(self._begin(found[0]))

    def _records(self) -> dict[int, TransactionRecord]:
        read = Reader(self.ledger.store)
        return {txid: read.peek(TransactionRecord, self.ledger.paths.transaction(txid)) for txid in self.open}

    def _before(self, txid: int) -> str:
        return digest(RotatingTransactionalState(Reader(self.ledger.store), self.ledger.paths).position_before(txid))

    def _commit(self, txid: int) -> None:
        begun = self.open.pop(txid)
        done: Any = self.ledger.run(processing.processed, begun.attempt, rows_digest=begun.rows_digest)
        assert isinstance(done, Processed), done
        granted = self.ledger.run(commit.acquire, AcquireRequest(begun.attempt, done.epoch, begun.rows_digest))
        assert isinstance(granted, Granted), granted
        assert self.ledger.run(commit.commit, granted.grant.token, states=()) == Committed(txid, by_this_call=True)


def main() -> None:
    """Print the replays of three sources."""
    transactions = int(sys.argv[1]) if len(sys.argv) > 1 else 2000
    print(f"\nReplays of {transactions} transactions, {FAILING:.0%} of the attempts fail, max_pending {PENDING}")
    for name, source, moved in (
        ("transactional source", "transactional", 0.0),
        ("opaque, no replay has other rows", "opaque", 0.0),
        ("opaque, 1 replay in 5 has other rows", "opaque", 0.2),
        ("opaque, every replay has other rows", "opaque", 1.0),
    ):
        pipeline = Pipeline(source, moved, seed=1)
        pipeline.run(transactions)
        saved = 1 - pipeline.replays / pipeline.storm if pipeline.storm else 0.0
        print(
            f"  {name:38} {pipeline.failures:5} failed   {pipeline.replays:5} others replayed, "
            f"by Storm's rule {pipeline.storm:5}   saved {saved:.0%}"
        )


if __name__ == "__main__":
    main()
