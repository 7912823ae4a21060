"""A topology without Airflow: each transaction adds one row of a numbered source to its states."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_tx.ledger.answers import Begun, Granted, Processed
from airflow_tx.ledger.api import Paths, Store
from airflow_tx.ledger.attempt import Grant, TaskTry, TransactionAttempt
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, RestatedBatch, TopologyRequest
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.receipt import Code, Replaced, TaskRows, Written
from airflow_tx.ledger.steps import end, processing
from airflow_tx.ledger.steps.commit import AcquireRequest, acquire, commit
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.state.api import FencedState
from airflow_tx.state.arrow import RowTally
from airflow_tx.transaction.commit.handoff import take_skip


class Clock:
    """A second later at every look."""

    def __init__(self) -> None:
        self._seconds = itertools.count()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=next(self._seconds))

    def advance(self, seconds: int) -> None:
        """Let time pass in which nothing happens."""
        self._seconds = itertools.count(next(self._seconds) + seconds)


class Ids:
    """Random ids."""

    def nonce(self) -> str:
        return os.urandom(16).hex()

    def message_id(self) -> int:
        return int.from_bytes(os.urandom(8), "big") or 1


class Pipeline:
    """Runs transactions step by step, each step as another process would: with a ledger object of its own.

    :param tasks: how many processing tasks a run has.
    :param by_interval: the rows of a run are its own, as of a data interval: those of run "r7" are 7.
    :param added: columns that receipts add up.
    :param sized: whether the source counts its rows.
    :param journals: whether commits name a journal entry, so that they can be restated.
    :param book: whether the topology keeps a book of ends; `upstream`: the topology whose table its source reads.
    :ivar current: gives the current metadata of a batch.
    :ivar position: where the source stands after a row.
    :ivar amount: what a run adds to its states for a batch.
    :ivar code: by task the digest of the code that it runs, which the receipt names.
    :ivar metadata: what the source writes down of a row; the row itself, unless a test of names says otherwise.
    """

    def __init__(
        self,
        store: Store,
        root: str,
        states: Sequence[FencedState] = (),
        *,
        topology: str = "flights",
        kind: str = "opaque",
        tasks: int = 1,
        history: int = 1000,
        by_interval: bool = False,
        added: Sequence[str] = (),
        sized: bool = False,
        journals: bool = False,
        book: bool = False,
        upstream: str = "",
    ) -> None:
        self.store = store
        self.paths = Paths(root, topology)
        self.states = states
        self.request = TopologyRequest("dag", kind, 8, appends=book, upstream=upstream)
        self.tasks = [f"task{number}" for number in range(tasks)]
        self.history = history
        self.by_interval = by_interval
        self.added = added
        self.sized = sized
        self.journals = journals
        self.written: dict[str, Written] = {}
        self.code: Mapping[str, str] = {}
        self.begins_as = ""
        self.metadata: Callable[[int], Any] = lambda row: row
        self.position: Callable[[int], Any] = lambda row: row
        self.current: Callable[[TransactionAttempt, Any], Any] = lambda attempt, metadata: metadata
        self.amount: Callable[[Any], Any] = lambda metadata: metadata
        self._tries = itertools.count()
        self._clock = Clock()

    @property
    def ledger(self) -> Ledger:
        """A new one: nothing is remembered."""
        return Ledger(self.store, self.paths, clock=self._clock, ids=Ids(), history=self.history)

    def begin(self, run: str) -> Begun:
        """Allocate the run's transaction, or replay it. The source counts: row n is n."""

        def decide(_: TransactionAttempt, position: Any) -> Batch:
            last = position["txid"] if isinstance(position, dict) else position
            last = last if isinstance(last, int) else 0
            row = int(run[1:]) if self.by_interval else last + 1
            position = None if self.by_interval else self.position(row)
            return Batch(self.metadata(row), position, 1 if self.sized else None)

        messages = {task: f"{1 << number:016x}" for number, task in enumerate(self.tasks)}
        request = BeginRequest(self.request, run, run, f"{self.begins_as}{next(self._tries):06}", False, messages)
        outside = Outside(
            decide=decide,
            run_state=lambda run_id: "failed",
            read_entry=self._entry,
            decide_again=lambda attempt, metadata: self.current(attempt, metadata),
        )
        begun = self.ledger.begin(request, outside)
        assert isinstance(begun, Begun), begun
        return begun

    def pause(self, seconds: int) -> None:
        """Let time pass in which nothing happens."""
        self._clock.advance(seconds)

    def process(self, begun: Begun) -> Processed:
        """Every task starts and acks; the transaction is PROCESSED."""
        for task in self.tasks:
            self.work(begun, task)
        return self.complete(begun)

    def work(self, begun: Begun, task: str) -> None:
        """A task starts and acks."""
        own = TaskTry(task, -1, f"{next(self._tries):06}")
        ledger = self.ledger
        ledger.start(begun.attempt, own)
        ledger.run(processing.ack, begun.attempt, own, rows=1)

    def complete(self, begun: Begun, ledger: Ledger | None = None) -> Processed:
        """The committer finds that everything has acked."""
        processed = (ledger or self.ledger).run(processing.processed, begun.attempt, rows_digest=begun.rows_digest)
        assert isinstance(processed, Processed), processed
        return processed

    def acquire(self, begun: Begun, processed: Processed, ledger: Ledger | None = None) -> Grant:
        """Take the turn."""
        names = tuple(state.name for state in self.states)
        batch = {"metadata": begun.metadata, "position": begun.position, "rows": 1, **self.made_by}
        journal = f"2013-01-01/{begun.txid}-{'0' * 64}" if self.journals else ""
        request = AcquireRequest(
            begun.attempt, processed.epoch, begun.rows_digest, states=names, journal=journal, **batch
        )
        granted = (ledger or self.ledger).run(acquire, request)
        assert isinstance(granted, Granted), granted
        return granted.grant

    @property
    def made_by(self) -> dict[str, Any]:
        """What a receipt says of the tasks and their code."""
        if not self.code:
            return {}
        return {"tasks": {task: TaskRows(1, 1, {}) for task in self.code}, "code": Code("v1", dict(self.code))}

    def write(self, grant: Grant, rows: Any) -> None:
        """Add the row to every state, as a committer does."""
        update = [{"key": "total", "n": rows}]
        tally = RowTally(update, self.added)
        self.written = {state.name: tally.written(len(list(tally))) for state in self.states}
        if len(self.states) == 1:
            self.states[0].raise_and_write(grant, tally)
            return
        for state in self.states:
            state.raise_fence(grant)
        for state in self.states:
            state.write(grant, tally)

    def mark(self, grant: Grant, ledger: Ledger | None = None) -> None:
        """Make the transaction final."""
        names = [state.name for state in self.states]
        (ledger or self.ledger).run(commit, grant.token, states=names, written=self.written)

    def run(self, run: str) -> int:
        """A whole run; its txid."""
        begun = self.begin(run)
        grant = self.acquire(begun, self.process(begun))
        self.write(grant, self.amount(begun.metadata))
        self.mark(grant)
        return begun.attempt.txid

    def restate(self, txid: int, run: str, difference: int) -> int:
        """A person wants a transaction restated, and its run does it; the txid of the restatement."""
        self.ledger.run(want, WishRequest(txid, run, run), Audit("ada", "a bug"))
        begun = self.begin(run)
        grant = self.acquire(begun, self.process(begun))
        self.write(grant, difference)
        self.mark(grant)
        return begun.txid

    def _entry(self, replaces: Replaced, changed_rows: bool) -> RestatedBatch:
        history = self.ledger.outcome(replaces.txid)
        assert history is not None
        assert history.receipt is not None
        return RestatedBatch(history.receipt.metadata)

    def skip(self, txid: int) -> None:
        """A person skips an open transaction whose turn it is."""
        self.ledger.run(end.note_skip, txid, Audit("ada", "why"))
        states = {state.name: state for state in self.states}
        take_skip(self.ledger, txid, states, log=logging.getLogger(__name__))

    def totals(self) -> list[Any]:
        """Per state, the sum of the rows it holds."""
        return [sum(row["n"] for row in state.read()) for state in self.states]
