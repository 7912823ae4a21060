"""One state machine drives a ledger on the in-memory store and one on ZooKeeper, with the same clock and ids.

They must agree on every answer, refusal and record: what the model explorer proves on the one holds on both.
"""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from airflow_tx.base.errors import TxError
from airflow_tx.ledger.answers import Begun, Granted, Processed
from airflow_tx.ledger.api import Paths, Store
from airflow_tx.ledger.attempt import TaskTry, Token
from airflow_tx.ledger.audit.rebuild import state_lost
from airflow_tx.ledger.batch import Batch, BeginRequest, TopologyRequest
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps import commit, end, processing, recovery, run_slots
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.examples import examples

RUNS = st.sampled_from(["r1", "r2", "r3", "r4", "r5", "r6"])
PICK = st.integers(0, 3)  # one of the runs that have begun
TASKS = st.sampled_from([("a", -1), ("b", -1), ("mapped", 0), ("mapped", 1)])
AGE = st.sampled_from([0, 0, 0, 1, 2])  # how many tries ago: mostly the newest


class Same:
    """The same times and ids for both sides, as long as both ask equally often."""

    def __init__(self) -> None:
        self._count = itertools.count(1)

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=next(self._count))

    def nonce(self) -> str:
        return f"{next(self._count):032x}"

    def message_id(self) -> int:
        return next(self._count)


class Side:
    """A store and, per process of the machine, a ledger that remembers what it wrote."""

    def __init__(self, store: Store, paths: Paths) -> None:
        self.store = store
        self.paths = paths
        self._same = Same()
        self._ledgers: dict[str, Ledger] = {}

    def ledger(self, process: str) -> Ledger:
        if process not in self._ledgers:
            self._ledgers[process] = Ledger(self.store, self.paths, clock=self._same, ids=self._same, history=2)
        return self._ledgers[process]

    def records(self) -> dict[str, tuple[bytes, int]]:
        found: dict[str, tuple[bytes, int]] = {}

        def visit(path: str) -> None:
            node, children = self.store.get(path), self.store.children(path)
            if node is None or children is None:
                return
            found[path] = (node.data, node.version)
            for name in children.names:
                visit(f"{path}/{name}")

        visit(self.paths.root)
        return found


class StoresAgree(RuleBasedStateMachine):
    """Runs begin, work, commit, fail, are skipped, replayed and zombified in any order; the source is opaque."""

    zookeeper: ClassVar[Store]

    def __init__(self) -> None:
        super().__init__()
        root = f"/agree-{uuid.uuid4().hex[:12]}"
        self.sides = [Side(store, Paths(root, "t/o.p")) for store in (MemoryStore(), self.zookeeper)]
        self.tries = itertools.count(1)
        self.begun: dict[str, list[Begun]] = {}
        self.started: dict[tuple[str, str, int], list[str]] = {}
        self.processed: dict[str, Processed] = {}
        self.tokens: dict[str, list[Token]] = {}
        self.committed: set[str] = set()
        self.partitioned = False
        self.skips: dict[int, list[Token]] = {}

    def both(self, process: str, step: Callable[[Ledger], Any]) -> Any:
        """The answer of both; None for a refusal of both."""
        answers = [_outcome(step, side.ledger(process)) for side in self.sides]
        assert answers[0] == answers[1]
        return None if isinstance(answers[0], tuple) else answers[0]

    @initialize(partitioned=st.booleans())
    def has_partitions(self, partitioned: bool) -> None:
        self.partitioned = partitioned

    def asks(self, run: str | None, own: str, retry: bool) -> BeginRequest:
        """What a run's `begin` asks for; None: the coordinator, for a run that it then starts."""
        topology = TopologyRequest("dag", "opaque", 3, self.partitioned)
        key = f"key {run}" if run is not None and not run.startswith("tx-") else run
        return BeginRequest(topology, key, run or "", own, retry, {"a": "a1", "b": "b2"})

    def source(self, rows: int, state: str | None = None) -> dict[str, Any]:
        """So many rows; of several partitions, the first has them, and others have some when it has one or three."""

        def decide(attempt: Any, position: Any) -> Batch | None:
            if not rows:
                return None
            if not self.partitioned:
                return Batch([position, rows], (position or 0) + rows)
            parts = {"A": rows, **({"B/": 1} if rows % 2 else {}), **({"C": 2} if rows == 3 else {})}
            after: Any = {name: ((position or {}).get(name) or 0) + count for name, count in parts.items()}
            return Batch({name: [after[name], count] for name, count in parts.items()}, after)

        return {"decide": decide, "run_state": lambda _: state}

    @rule(
        run=RUNS,
        retry=st.booleans(),
        stale=st.sampled_from([False, False, False, True]),
        rows=st.sampled_from([2, 1, 3, 0]),
        state=st.sampled_from(["failed", None, "running"]),
        process=st.sampled_from(["own", "fresh"]),
    )
    def begin(self, run: str, retry: bool, stale: bool, rows: int, state: str | None, process: str) -> None:
        own = f"{0 if stale else next(self.tries):06}"
        request = self.asks(run, own, retry)
        name = run if process == "own" else f"{run}{own}"
        asked = {**self.source(rows, state), "is_current": lambda: not stale}
        answer = self.both(name, lambda ledger: ledger.begin(request, **asked))
        if isinstance(answer, Begun):
            self.begun.setdefault(run, []).append(answer)

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, task=TASKS, age=AGE)
    def start(self, pick: int, task: tuple[str, int], age: int) -> None:
        run = self.run(pick)
        if begun := _aged(self.begun.get(run), age):
            own = f"{next(self.tries):06}"
            self.started.setdefault((run, *task), []).append(own)
            self.both(f"{run}{own}", lambda ledger: ledger.start(begun.attempt, TaskTry(*task, own)))

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, task=TASKS, age=AGE, old=AGE)
    def ack(self, pick: int, task: tuple[str, int], age: int, old: int) -> None:
        run = self.run(pick)
        begun, own = _aged(self.begun.get(run), age), _aged(self.started.get((run, *task)), old)
        if begun and own:
            self.both(
                f"{run}{own}",
                lambda ledger: ledger.run(
                    processing.ack, begun.attempt, TaskTry(*task, own), rows=3, outputs=[{"of": own}]
                ),
            )

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, task=TASKS, age=AGE, old=AGE)
    def fail(self, pick: int, task: tuple[str, int], age: int, old: int) -> None:
        run = self.run(pick)
        begun, own = _aged(self.begun.get(run), age), _aged(self.started.get((run, *task)), old)
        if begun and own:
            self.both(
                f"{run}{own}",
                lambda ledger: ledger.run(processing.fail, begun.attempt, TaskTry(*task, own), reason="it broke"),
            )

    @precondition(lambda self: self.begun)
    @rule(pick=PICK)
    def work(self, pick: int) -> None:
        """Both tasks of the newest attempt start and ack: random steps alone seldom get there."""
        for task in (("a", -1), ("b", -1)):
            self.start(pick, task, 0)
            self.ack(pick, task, 0, 0)

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, age=AGE, expected=st.sampled_from([None, [("a", -1)], [("a", -1), ("mapped", 0)]]))
    def complete(self, pick: int, age: int, expected: list[tuple[str, int]] | None) -> None:
        run = self.run(pick)
        if begun := _aged(self.begun.get(run), age):
            answer = self.both(
                f"{run}commit",
                lambda ledger: ledger.run(
                    processing.processed, begun.attempt, rows_digest=begun.rows_digest, expected=expected
                ),
            )
            if isinstance(answer, Processed):
                self.processed[run] = answer

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, age=AGE, output=st.sampled_from(["d1", "d1", "d2"]))
    def acquire(self, pick: int, age: int, output: str) -> None:
        run = self.run(pick)
        begun, processed = _aged(self.begun.get(run), age), self.processed.get(run)
        if begun and processed:
            request = AcquireRequest(begun.attempt, processed.epoch, begun.rows_digest, {"s": output})
            answer = self.both(f"{run}commit", lambda ledger: ledger.run(commit.acquire, request))
            if isinstance(answer, Granted):
                self.tokens.setdefault(run, []).append(answer.grant.token)

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, age=AGE, process=st.sampled_from(["commit", "fresh"]))
    def commit(self, pick: int, age: int, process: str) -> None:
        run = self.run(pick)
        if token := _aged(self.tokens.get(run), age):
            answer = self.both(f"{run}{process}", lambda ledger: ledger.run(commit.commit, token, states=["s"]))
            if answer is not None:
                self.committed.add(run)
            assert len({side.ledger("look").holds(token) for side in self.sides}) == 1

    @precondition(lambda self: set(self.begun) - self.committed)
    @rule()
    def commit_the_first(self) -> None:
        """The way through, so that histories and rotation come to pass."""
        first = min(self.begun, key=lambda run: (run in self.committed, self.begun[run][-1].attempt.txid))
        pick = sorted(self.begun).index(first)
        self.work(pick)
        self.complete(pick, 0, None)
        self.acquire(pick, 0, "d1")
        self.commit(pick, 0, "commit")

    @rule(rows=st.sampled_from([2, 1, 0]))
    def allocate(self, rows: int) -> None:
        """The coordinator, ahead of the run that it then starts."""
        answer = self.both("coordinator", lambda ledger: ledger.begin(self.asks(None, "", False), **self.source(rows)))
        if isinstance(answer, Begun):
            self.begun.setdefault(answer.run_id, []).append(answer)

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, what=st.sampled_from(["note", "note", "withdraw", "readmit"]))
    def ask_to_skip(self, pick: int, what: str) -> None:
        txid, audit = self.begun[self.run(pick)][-1].attempt.txid, Audit("me", "test")
        if what == "note":
            self.both("person", lambda ledger: ledger.run(end.note_skip, txid, audit))
        elif what == "withdraw":
            self.both("person", lambda ledger: ledger.run(end.withdraw_skip, txid))
        else:
            self.both("person", lambda ledger: ledger.run(end.note_readmission, txid, audit))

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, undoable=st.sampled_from([True, True, False]))
    def grant_skip(self, pick: int, undoable: bool) -> None:
        txid = self.begun[self.run(pick)][-1].attempt.txid
        answer = self.both("person", lambda ledger: ledger.run(end.grant_skip, txid, {"s": undoable}))
        if isinstance(answer, Granted):
            self.skips.setdefault(txid, []).append(answer.grant.token)

    @precondition(lambda self: self.skips)
    @rule(pick=PICK, age=AGE, process=st.sampled_from(["person", "fresh"]))
    def commit_skip(self, pick: int, age: int, process: str) -> None:
        txids = sorted(self.skips)
        if token := _aged(self.skips[txids[pick % len(txids)]], age):
            self.both(process, lambda ledger: ledger.run(end.commit_skip, token, states=["s"]))

    @precondition(lambda self: set(self.begun) - self.committed)
    @rule(back=st.booleans())
    def skip_the_first(self, back: bool) -> None:
        """The way through, and perhaps back: random steps alone seldom get there."""
        first = min(set(self.begun) - self.committed, key=lambda run: self.begun[run][-1].attempt.txid)
        pick = sorted(self.begun).index(first)
        self.ask_to_skip(pick, "note")
        self.grant_skip(pick, True)
        if token := _aged(self.skips.get(self.begun[first][-1].attempt.txid), 0):
            self.both("person", lambda ledger: ledger.run(end.commit_skip, token, states=["s"]))
        if back:
            self.ask_to_skip(pick, "readmit")
            request = self.asks(first, f"{next(self.tries):06}", False)
            again = self.both(first, lambda ledger: ledger.begin(request, **self.source(1)))
            if isinstance(again, Begun):
                self.begun[first].append(again)

    @rule(
        run=RUNS,
        txid=st.sampled_from([None, 1, 2, 3]),
        blocking=st.sampled_from([1, 1, 2, 3]),
        what=st.sampled_from(["bid", "give way", "came back"]),
        lapsed=st.booleans(),
    )
    def make_way(self, run: str, txid: int | None, blocking: int, what: str, lapsed: bool) -> None:
        if not self.begun:
            return  # no ledger yet
        waiter = Waiter(run, txid, f"{run}-try", blocking)
        if what == "bid":
            self.both(run, lambda ledger: ledger.run(run_slots.bid, waiter, overdue="3000" if lapsed else ""))
        elif what == "give way":
            self.both(run, lambda ledger: ledger.run(run_slots.note_yield, waiter))
        else:
            self.both("coordinator", lambda ledger: ledger.run(run_slots.came_back, run))

    @precondition(lambda self: self.begun)
    @rule(pick=PICK, age=AGE, counts=st.booleans(), lapsed=st.booleans(), unblock=st.booleans())
    def recover(self, pick: int, age: int, counts: bool, lapsed: bool, unblock: bool) -> None:
        if begun := _aged(self.begun[self.run(pick)], age):
            request = ReplayRequest(begun.attempt, "it broke", counts, 2, "3000" if lapsed else "")
            self.both("coordinator", lambda ledger: ledger.run(recovery.note_replay, request))
        if unblock:
            self.both("coordinator", lambda ledger: ledger.run(recovery.unblock))

    def run(self, pick: int) -> str:
        runs = sorted(self.begun)
        return runs[pick % len(runs)]

    @precondition(lambda self: self.committed)
    @rule()
    def lose_the_state(self) -> None:
        self.both("admin", lambda ledger: ledger.run(state_lost, "s", Audit("me", "test")))

    @invariant()
    def the_records_are_the_same(self) -> None:
        memory, zookeeper = (side.records() for side in self.sides)
        assert memory == zookeeper


def _aged(items: list[Any] | None, age: int) -> Any:
    return items[-1 - age] if items and len(items) > age else None


def _outcome(step: Callable[[Ledger], Any], ledger: Ledger) -> Any:
    try:
        return step(ledger)
    except TxError as error:
        return type(error), str(error)


@pytest.mark.lead
def test_the_ledger_gives_the_same_answers_with_the_memory_store_and_with_zookeeper(zookeeper: LocalZooKeeper) -> None:
    client = connect(ClientConfig(zookeeper.hosts))
    StoresAgree.zookeeper = ZooKeeperStore(client)
    try:
        run_state_machine_as_test(
            StoresAgree,
            settings=settings(
                max_examples=examples(12, 40),
                stateful_step_count=40,
                deadline=None,
                suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
            ),
        )
    finally:
        disconnect(client)
