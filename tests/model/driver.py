"""A run of the product by hand: each method is one thing a task does, so that a test can stop between any two."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from airflow_tx.protocol.asking import BeginRequest
from airflow_tx.protocol.attempt import Token, TransactionAttempt
from airflow_tx.protocol.committing import AcquireRequest
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.opening import TopologyRequest
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.processing import TaskTry
from airflow_tx.protocol.records import Phase, TransactionRecord, decode, digest
from airflow_tx.protocol.step import AlreadyCommitted, Begun, Granted, Processed
from airflow_tx.state.api import FencedState, Grant

Deltas = Mapping[str, int]


class CountedIds:
    """Ids that count up; all processes of a test share one."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def nonce(self) -> str:
        return f"{next(self._numbers):032x}"

    def message_id(self) -> int:
        return next(self._numbers)

    def task_try(self) -> str:
        return f"{next(self._numbers):08d}"


class StoppedClock:
    """Always the same moment."""

    def now(self) -> datetime:
        return datetime(2013, 1, 1, tzinfo=timezone.utc)


class Topology:
    """A ledger with its states and a source whose batches a test dictates.

    :param store: gives a process its store.
    """

    def __init__(
        self, store: Callable[[], Any], root: str, states: Sequence[FencedState], *, source: str = "opaque"
    ) -> None:
        self.store = store
        self.paths = Paths(root, "trace")
        self.states = states
        self.ids = CountedIds()
        self.request = TopologyRequest("trace", source, 8)

    def ledger(self) -> Ledger:
        """The ledger as a new process has it."""
        return Ledger(self.store(), self.paths, clock=StoppedClock(), ids=self.ids)

    def record(self, txid: int) -> TransactionRecord | None:
        node = self.store().get(self.paths.transaction(txid))
        return None if node is None else decode(TransactionRecord, self.paths.transaction(txid), node.data)

    def phase(self, txid: int) -> Phase | None:
        record = self.record(txid)
        return None if record is None else record.phase

    def totals(self) -> dict[str, int]:
        """What the states hold, all keys together."""
        found: dict[str, int] = {}
        for state in self.states:
            for row in state.read():  # type: ignore[attr-defined]
                found[row["key"]] = found.get(row["key"], 0) + row["n"]
        return found


class Run:
    """One DAG run with the tasks `begin`, `p` and `commit`."""

    def __init__(self, topology: Topology, run_id: str) -> None:
        self.topology = topology
        self.run_id = run_id
        self.begun: Begun | None = None

    @property
    def attempt(self) -> TransactionAttempt:
        assert self.begun is not None
        return self.begun.attempt

    def begin(self, rows: int, *, retry: bool = False, task_try: str | None = None) -> Any:
        """`begin` in a new process; the source has `rows` rows from where the last transaction ended."""
        ids = self.topology.ids
        request = BeginRequest(
            self.topology.request,
            self.run_id,
            self.run_id,
            task_try or ids.task_try(),
            retry,
            {"p": f"{ids.message_id():016x}"},
        )

        def decide(attempt: Any, position: Any) -> tuple[Any, Any] | None:
            start = position or 0
            return ([start, start + rows], start + rows) if rows else None

        result = self.topology.ledger().begin(request, decide=decide, run_state=lambda run_id: None)
        if isinstance(result, Begun):
            self.begun = result
        return result

    def start(self) -> Processing:
        """`p` starts in a new process."""
        return Processing(self, self.topology.ledger(), TaskTry("p", -1, self.topology.ids.task_try()))

    def process(self, output: Deltas) -> None:
        """`p` from start to ack."""
        self.start().ack(output)

    def committer(self) -> Committer:
        """`commit` starts in a new process."""
        return Committer(self, self.topology.ledger())

    def written(self) -> Committer:
        """A `commit` that has written and not yet marked, perhaps never will."""
        committer = self.committer()
        if committer.acquire() is not None:
            committer.raise_fences()
            committer.write()
        return committer

    def commit(self) -> None:
        """`commit` from gate to mark."""
        committer = self.written()
        if committer.grant is not None:
            committer.mark()


class Processing:
    """One try of `p`."""

    def __init__(self, run: Run, ledger: Ledger, task: TaskTry) -> None:
        self.ledger = ledger
        self.attempt = run.attempt
        self.task = task
        self.started = ledger.start(self.attempt, task)

    def ack(self, output: Deltas) -> None:
        self.ledger.ack(self.attempt, self.task, rows=sum(output.values()), outputs=[dict(output)])

    def fail(self, reason: str) -> None:
        self.ledger.fail(self.attempt, self.task, reason)


class Committer:
    """One try of `commit`."""

    def __init__(self, run: Run, ledger: Ledger) -> None:
        assert run.begun is not None
        self.ledger = ledger
        self.begun = run.begun
        self.states = run.topology.states
        self.done: Processed | AlreadyCommitted | None = None
        self.grant: Grant | None = None

    def processed(self) -> Processed | AlreadyCommitted:
        self.done = self.ledger.processed(self.begun.attempt, rows_digest=self.begun.rows_digest)
        return self.done

    @property
    def output(self) -> dict[str, int]:
        """What `p` handed over, as this committer read it."""
        assert isinstance(self.done, Processed)
        deltas: dict[str, int] = self.done.acks[("p", -1)].outputs[0]
        return deltas

    def ask(self) -> Any:
        """Only the question for the turn."""
        assert isinstance(self.done, Processed)
        outputs = {state.name: digest(self.output) for state in self.states if state.kind.value == "transactional"}
        return self.ledger.acquire(
            AcquireRequest(
                self.begun.attempt, self.done.epoch, self.begun.rows_digest, outputs, tuple(s.name for s in self.states)
            )
        )

    def acquire(self) -> Grant | None:
        """The turn, or None if the transaction is committed."""
        if isinstance(self.processed(), AlreadyCommitted):
            return None
        granted = self.ask()
        if isinstance(granted, AlreadyCommitted):
            return None
        assert isinstance(granted, Granted), granted
        attempt = self.begun.attempt
        token = Token(granted.generation, attempt.txid, attempt.attempt, granted.epoch, granted.nonce)
        self.grant = Grant("trace", granted.incarnation, token, granted.last)
        return self.grant

    def raise_fences(self) -> None:
        assert self.grant is not None
        for state in self.states:
            state.raise_fence(self.grant)

    def write(self, state: int | None = None) -> None:
        """Each key goes to the state at its place in the alphabet; the last state takes the rest."""
        assert self.grant is not None
        for index, target in enumerate(self.states):
            if state in (None, index):
                target.write(
                    self.grant, [{"key": k, "n": n} for k, n in self.output.items() if self._index(k) == index]
                )

    def mark(self) -> Any:
        assert self.grant is not None
        return self.ledger.commit(
            self.grant.token, states=[state.name for state in self.states], rows=sum(self.output.values())
        )

    def _index(self, key: str) -> int:
        return min("abcdefgh".index(key), len(self.states) - 1)
