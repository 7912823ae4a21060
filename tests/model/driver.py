"""A run of the product by hand: each method is one thing a task does, so that a test can stop between any two."""

from __future__ import annotations

import itertools
import json
import logging
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

from airflow_tx.ledger.answers import AlreadyCommitted, Begun, Committed, Granted, Processed
from airflow_tx.ledger.api import Create, Paths, Put
from airflow_tx.ledger.attempt import Grant, TaskTry, TransactionAttempt
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, RestatedBatch, TopologyRequest
from airflow_tx.ledger.json_text import digest
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.reading import Reader, RotatingTransactionalState, stale_successors
from airflow_tx.ledger.receipt import Replaced
from airflow_tx.ledger.records import Binding, Counter, Phase, TopologyRecord, TransactionRecord, decode
from airflow_tx.ledger.steps import commit, end, processing, recovery
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.steps.replay import WishRequest, held_at, want
from airflow_tx.ledger.steps.step import Audit, Decision, Stamp
from airflow_tx.state.api import FencedState
from airflow_tx.transaction.commit.handoff import take_skip, undoable
from airflow_tx.transaction.commit.write import take_other_output

Deltas = Mapping[str, int]
Rows = int | Mapping[str, int]
"""How many rows the source has; of a source with partitions, how many each has that takes part."""


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


class HandClock:
    """Stands still until a test moves it."""

    def __init__(self) -> None:
        self.time = datetime(2013, 1, 1, tzinfo=timezone.utc)

    def now(self) -> datetime:
        return self.time

    def advance(self, seconds: float) -> str:
        """Move on; the moment before is given as the ledger writes it."""
        before = self.time.isoformat(timespec="milliseconds")
        self.time += timedelta(seconds=seconds)
        return before


def decides(rows: Rows) -> Callable[[TransactionAttempt, Any], Batch | None]:
    """A source that has so many rows from where the last transaction ended; in all, or per partition."""

    def decide(attempt: Any, position: Any) -> Batch | None:
        if not rows:
            return None
        if isinstance(rows, int):
            return Batch([position or 0, (position or 0) + rows], (position or 0) + rows)
        starts = {name: (position or {}).get(name) or 0 for name in rows}
        return Batch(
            {name: [start, start + rows[name]] for name, start in starts.items()},
            {name: start + rows[name] for name, start in starts.items()},
        )

    return decide


class ProvenLedger(Ledger):
    """Checks that a step leaves its nonce in every record that it changes, and one of them proves it.

    A lost reply is resolved by the one; who waits for a change of any other sees it by the nonce.
    """

    def _send(self, read: Reader, decision: Decision[object], stamp: Stamp, *, again: bool) -> bool:
        records = {
            write.path: write.data for write in decision.writes if isinstance(write, Create | Put) and write.data
        }
        holding = {path: json.loads(data).get("op") for path, data in records.items()}
        assert holding[decision.proof] == stamp.op, f"{decision.proof} does not prove its step"
        for path, op in holding.items():
            assert op in (None, stamp.op) or path.startswith(self.paths.histories), (
                f"{path} has the nonce of another step"
            )
        return super()._send(read, decision, stamp, again=again)


class Topology:
    """A ledger with its states and a source whose batches a test dictates.

    :param store: gives a process its store.
    :param journals: whether committers keep what they contribute.
    """

    def __init__(
        self,
        store: Callable[[], Any],
        root: str,
        states: Sequence[FencedState],
        *,
        source: str = "opaque",
        partitioned: bool = False,
        max_pending: int = 8,
        history: int = 1000,
        journals: bool = False,
        appends: bool = False,
    ) -> None:
        self.store = store
        self.journals = journals
        self.journal: dict[str, tuple[Any, dict[str, int]]] = {}
        self.paths = Paths(root, "trace")
        self.states = states
        self.ids = CountedIds()
        self.clock = HandClock()
        self.kept = history
        self.request = TopologyRequest("trace", source, max_pending, partitioned, appends=appends)

    def ledger(self) -> Ledger:
        """The ledger as a new process has it."""
        return ProvenLedger(self.store(), self.paths, clock=self.clock, ids=self.ids, history=self.kept)

    def allocate(self, rows: Rows) -> Any:
        """The coordinator asks for the next transaction, ahead of the run that is to have it."""
        request = BeginRequest(self.request, None, "", "", False, {"p": f"{self.ids.message_id():016x}"})
        return self.ledger().begin(request, Outside(decide=decides(rows), run_state=lambda run_id: None))

    def note_skip(self, txid: int) -> Any:
        """A person wants `txid` skipped; nobody has come to do it yet."""
        return self.ledger().run(end.note_skip, txid, Audit("ada", "rows that break the job"))

    def take_skip(self, txid: int) -> Any:
        """Whoever finds a noted skip does it, from grant to mark."""
        return take_skip(self.ledger(), txid, {state.name: state for state in self.states}, log=logging.getLogger())

    def skip(self, txid: int) -> None:
        """A person skips `txid`, whose turn it is."""
        self.note_skip(txid)
        assert self.take_skip(txid) == Committed(txid, by_this_call=True)

    def skipper(self, txid: int) -> Skipper:
        """A process that is about to skip `txid`, and may stop between any two steps."""
        return Skipper(self, txid)

    def readmit(self, txid: int) -> Any:
        """A person wants `txid` back."""
        return self.ledger().run(end.note_readmission, txid, Audit("ada", "the job is mended"))

    def want(self, txid: int, *, key: str = "", changed_rows: bool = False) -> Any:
        """A person wants `txid` restated."""
        names = tuple(state.name for state in self.states)
        request = WishRequest(txid, key or f"r{txid}", key or f"r{txid}", names, changed_rows)
        return self.ledger().run(want, request, Audit("ada", "a bug in the job"))

    def entry(self, txid: int, metadata: Any, output: Mapping[str, int]) -> str:
        """Keep what a transaction contributes; the name of its entry."""
        if not self.journals:
            return ""
        name = f"2013-01-01/{txid}-{digest([metadata, dict(output)])}"
        self.journal[name] = (metadata, dict(output))
        return name

    def read_entry(self, replaces: Replaced, changed_rows: bool) -> RestatedBatch:
        """What the journal has of the transaction that is to be restated."""
        metadata, _ = self.journal[replaces.entry]
        return RestatedBatch(metadata, tuple(state.name for state in self.states))

    def difference(self, begun: Begun, output: Mapping[str, int]) -> dict[str, int]:
        """What the states are given: of a restatement, what has changed."""
        if begun.replaces is None:
            return dict(output)
        _, old = self.journal[begun.replaces.entry]
        if dict(output) == old:
            return {}
        return {key: output.get(key, 0) - old.get(key, 0) for key in sorted({*output, *old})}

    def binding(self, key: str) -> Binding | None:
        """Which transaction counts of a run."""
        node = self.store().get(self.paths.run(key))
        return None if node is None else decode(Binding, self.paths.run(key), node.data)

    def forgets(self, txid: int) -> Callable[[], None]:
        """Give what sets the ledger back to this moment, as far as `txid` is concerned."""
        path, store = self.paths.transaction(txid), self.store()
        before = store.get(path).data
        return lambda: store.multi((), (Put(path, before),))

    def note_replay(self, txid: int, attempt: int, *, counts: bool = True, limit: int = 3, overdue: str = "") -> Any:
        """Somebody has found an attempt that ended without a commit."""
        request = ReplayRequest(TransactionAttempt(txid, attempt), "its run failed", counts, limit, overdue)
        return self.ledger().run(recovery.note_replay, request)

    @property
    def topology(self) -> TopologyRecord:
        node = self.store().get(self.paths.record)
        return decode(TopologyRecord, self.paths.record, node.data)

    @property
    def current(self) -> int:
        return self.counter(self.paths.current)

    @property
    def allocated(self) -> int:
        return self.counter(self.paths.allocated)

    def counter(self, path: str) -> int:
        return decode(Counter, path, self.store().get(path).data).txid

    def position(self, txid: int) -> Any:
        """Where the source stands after `txid`, as the ledger has it."""
        return RotatingTransactionalState(Reader(self.store()), self.paths).position_before(txid + 1)

    def broken(self) -> list[int]:
        """The open transactions that have to be replayed, as whoever recovers finds them."""
        current = self.current
        records = {txid: self.record(txid) for txid in range(current, self.allocated + 1)}
        opened = {txid: record for txid, record in records.items() if record is not None}
        return stale_successors(opened, current=current, position=digest(self.position(current - 1)))

    def history(self, txid: int) -> TransactionRecord | None:
        node = self.store().get(self.paths.history(txid))
        return None if node is None else decode(TransactionRecord, self.paths.history(txid), node.data)

    def tree(self) -> list[str]:
        """The path of every record."""
        store, found, folders = self.store(), [], [self.paths.base]
        while folders:
            folder = folders.pop()
            found.append(folder)
            folders += [f"{folder}/{name}" for name in store.children(folder).names]
        return sorted(found)

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
            for row in state.read():
                found[row["key"]] = found.get(row["key"], 0) + row["n"]
        return found


def acked(output: Mapping[str, int]) -> dict[str, Any]:
    """Return the entry of an ack for an output: its deltas by key."""
    return {"name": "deltas", "deltas": dict(output)}


class Run:
    """One DAG run with the tasks `begin`, `p` and `commit`."""

    def __init__(self, topology: Topology, run_id: str, *, key: str | None = None) -> None:
        self.topology = topology
        self.run_id = run_id
        self.key = key or run_id
        self.begun: Begun | None = None

    @property
    def attempt(self) -> TransactionAttempt:
        assert self.begun is not None
        return self.begun.attempt

    def begin(
        self,
        rows: Rows,
        *,
        retry: bool = False,
        task_try: str | None = None,
        current: bool = True,
        meanwhile: Callable[[], object] = lambda: None,
        again: Callable[[Any], Any] = lambda metadata: metadata,
        report: Callable[[TransactionAttempt, Any, str], None] = lambda attempt, metadata, reason: None,
        holder: str | None = None,
    ) -> Any:
        """`begin` in a new process; the source has `rows` rows from where the last transaction ended.

        :param current: whether Airflow still knows this try.
        :param meanwhile: what others do while the source decides.
        :param again: what the source says that rows are now; `report`: is told which attempt has failed.
        :param holder: the state of another run that has the transaction; None: it was deleted.
        """
        ids = self.topology.ids
        request = BeginRequest(
            self.topology.request,
            self.key,
            self.run_id,
            task_try or ids.task_try(),
            retry,
            {"p": f"{ids.message_id():016x}"},
        )

        def decide(attempt: TransactionAttempt, position: Any) -> Batch | None:
            meanwhile()
            return decides(rows)(attempt, position)

        result = self.topology.ledger().begin(
            request,
            Outside(
                decide=decide,
                run_state=lambda run_id: holder,
                is_current=lambda: current,
                decide_again=lambda attempt, metadata: again(metadata),
                read_entry=self.topology.read_entry,
                report=report,
            ),
        )
        if isinstance(result, Begun):
            self.begun = result
        return result

    def start(self, *, task_try: str | None = None, current: bool = True) -> Processing:
        """`p` starts in a new process."""
        task = TaskTry("p", -1, task_try or self.topology.ids.task_try())
        return Processing(self, self.topology.ledger(), task, current=current)

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

    def whole(self, rows: Rows, output: Deltas | None = None) -> Begun:
        """The run from `begin` to the mark."""
        begun = self.processed(rows, output or {})
        self.commit()
        return begun

    def processed(self, rows: Rows, output: Deltas) -> Begun:
        """The run from `begin` to the ack of `p`."""
        begun: Begun = self.begin(rows)
        self.process(output)
        return begun

    def commit(self) -> None:
        """`commit` from gate to mark."""
        committer = self.written()
        if committer.grant is not None:
            committer.mark()


class Skipper:
    """A process that skips a transaction step by step, as `take_skip` does in one go."""

    def __init__(self, topology: Topology, txid: int) -> None:
        self.topology = topology
        self.txid = txid
        self.ledger = topology.ledger()
        self.grant: Grant | None = None

    def ask(self) -> Any:
        """Only the question for the turn."""
        found = undoable(self.ledger, {state.name: state for state in self.topology.states}, self.txid)
        return self.ledger.run(end.grant_skip, self.txid, found)

    def acquire(self) -> Skipper:
        granted = self.ask()
        assert isinstance(granted, Granted), granted
        self.grant = granted.grant
        return self

    def raise_fences(self) -> Skipper:
        assert self.grant is not None
        for state in self.topology.states:
            state.raise_fence(self.grant)
        return self

    def write(self) -> Skipper:
        assert self.grant is not None
        for state in self.topology.states:
            state.write(self.grant, ())
        return self

    def mark(self) -> Any:
        assert self.grant is not None
        return self.ledger.run(end.commit_skip, self.grant.token, states=[state.name for state in self.topology.states])


class Processing:
    """One try of `p`."""

    def __init__(self, run: Run, ledger: Ledger, task: TaskTry, *, current: bool = True) -> None:
        self.ledger = ledger
        self.attempt = run.attempt
        self.task = task
        self.started = ledger.start(self.attempt, task, is_current=lambda: current)

    def ack(self, output: Deltas) -> None:
        self.ledger.run(processing.ack, self.attempt, self.task, rows=sum(output.values()), outputs=[acked(output)])

    def fail(self, reason: str) -> None:
        self.ledger.run(processing.fail, self.attempt, self.task, reason=reason)


class Committer:
    """One try of `commit`."""

    def __init__(self, run: Run, ledger: Ledger) -> None:
        assert run.begun is not None
        self.ledger = ledger
        self.begun = run.begun
        self.states = run.topology.states
        self.topology = run.topology
        self.taken_back = {state.name: state.name for state in self.states} if self.begun.replaces else {}
        self.held = ""
        self.sole: tuple[str, ...] = ()
        self.done: Processed | AlreadyCommitted | None = None
        self.grant: Grant | None = None

    def processed(self) -> Processed | AlreadyCommitted:
        self.done = self.ledger.run(processing.processed, self.begun.attempt, rows_digest=self.begun.rows_digest)
        read = Reader(self.ledger.store)
        self.held = held_at(read, self.topology.paths, self.ledger.topology(), self.taken_back, self.sole)
        return self.done

    @property
    def output(self) -> dict[str, int]:
        """What `p` handed over, as this committer read it."""
        assert isinstance(self.done, Processed)
        deltas: dict[str, int] = self.done.acks[("p", -1)].outputs[0]["deltas"]
        return deltas

    def ask(self) -> Any:
        """Only the question for the turn."""
        assert isinstance(self.done, Processed)
        outputs = {state.name: digest(self.output) for state in self.states if state.kind.value == "transactional"}
        return self.ledger.run(
            commit.acquire,
            AcquireRequest(
                self.begun.attempt,
                self.done.epoch,
                self.begun.rows_digest,
                outputs,
                tuple(state.name for state in self.states),
                metadata=self.begun.metadata,
                position=self.begun.position,
                rows=sum(self.output.values()),
                journal=self.topology.entry(self.begun.txid, self.begun.metadata, self.output),
                taken_back=self.taken_back,
                held=self.held,
                sole=self.sole,
            ),
        )

    def acquire(self) -> Grant | None:
        """The turn, or None if the transaction is committed."""
        if isinstance(self.processed(), AlreadyCommitted):
            return None
        granted = self.ask()
        if isinstance(granted, AlreadyCommitted):
            return None
        assert isinstance(granted, Granted), granted
        self.grant = granted.grant
        if granted.changed:
            self.raise_fences()
        outputs = {state.name: digest(self.output) for state in self.states}
        take_other_output(self.ledger, self.states, granted, outputs)
        return self.grant

    def raise_fences(self) -> None:
        assert self.grant is not None
        for state in self.states:
            state.raise_fence(self.grant)

    def write(self, state: int | None = None) -> None:
        """Each key goes to the state at its place in the alphabet; the last state takes the rest."""
        assert self.grant is not None
        given = self.topology.difference(self.begun, self.output)
        for index, target in enumerate(self.states):
            if state in (None, index):
                target.write(self.grant, [{"key": k, "n": n} for k, n in given.items() if self._index(k) == index])

    def mark(self, columns: Sequence[str] = ("n",)) -> Any:
        assert self.grant is not None
        return self.ledger.run(
            commit.commit,
            self.grant.token,
            states=[state.name for state in self.states],
            columns={state.name: columns for state in self.states},
        )

    def _index(self, key: str) -> int:
        return min("abcdefgh".index(key), len(self.states) - 1)
