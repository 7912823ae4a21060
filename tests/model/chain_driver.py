"""The steps of `chains.py` on the real ledgers: begin, ack, turn, mark, skip, wish, the book of ends, `UpstreamSource`.

Tables are in memory. A test lets both take one path and compares what they hold.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from airflow_tx import hooks
from airflow_tx.base.errors import FailedBatch, SourceNotSettled
from airflow_tx.ledger import Audit, Batch, Ledger, Paths, RowsRead, TakenRange, TransactionAttempt
from airflow_tx.ledger.answers import AlreadyCommitted, Begun, Committed, Granted, Processed
from airflow_tx.ledger.attempt import Grant, TaskTry
from airflow_tx.ledger.batch import BeginRequest, Outside, RestatedBatch, TopologyRequest
from airflow_tx.ledger.receipt import Outcome, Replaced, Written
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.ledger.steps import end, processing
from airflow_tx.ledger.steps.commit import AcquireRequest, acquire, commit
from airflow_tx.ledger.steps.replay import WishRequest
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.sources import UpstreamSource
from airflow_tx.state import CommittedTable, TableCounts
from airflow_tx.transaction import follow
from tests.model.chains import (
    FINAL,
    HALF,
    NAMES,
    NO_ROWS,
    OPEN,
    READMITTED,
    SKIPPED,
    WANTED,
    Rows,
    Shape,
    Stage,
    Step,
    World,
    number_of,
    plus,
)

ROOT = "/tx"
ADA = Audit("ada", "why")
LOG = SimpleNamespace(info=lambda *words: None)

StageView = tuple[object, ...]
"""Of each transaction its phase and its ends; the rows in the table of each final one; what is requested."""


def view(world: World) -> tuple[StageView, ...]:
    """Give what model and driver are compared by."""
    return tuple(_view(stage) for stage in world.stages)


def _view(stage: Stage) -> StageView:
    phases = [_phase(each.phase) for each in stage.transactions]
    ends = [tuple((first, end) for first, end, _ in each.ends if first != end) for each in stage.transactions]
    table = {txid: each.rows for txid, each in stage.numbered() if each.phase == FINAL and txid in stage.table}
    return phases, ends, table, stage.wanted


def _phase(phase: str) -> str:
    known = {FINAL: "final", SKIPPED: "skipped", WANTED: "skipped", READMITTED: "re-admitted"}
    return known.get(phase, "open")


class MemoryTable(CommittedTable):
    """A table in memory: what a reader finds of it just now.

    :ivar incarnation_of: the life of the ledger that writes it.
    """

    columns = None

    def __init__(self, name: str = "t", incarnation_of: Callable[[], str] | None = None) -> None:
        self.name = name
        self.rows: dict[int, Rows] = {}
        self._incarnation_of = incarnation_of

    def described(self) -> tuple[str, dict[str, Any]]:
        return "tests.model.chain_driver.MemoryTable", {}

    def incarnation(self) -> str | None:
        return None if self._incarnation_of is None else self._incarnation_of()

    def connections(self) -> dict[str, str]:
        return {}

    def counts(self, txids: Collection[int]) -> TableCounts:
        return TableCounts({txid: number_of(self.rows.get(txid, NO_ROWS)) for txid in txids})

    def arrow(self, counted: TableCounts, *, upstream_txid: bool = False) -> Any:
        return plus(self.rows.get(txid, NO_ROWS) for txid in counted.rows)

    def _unused(self, *arguments: Any, **options: Any) -> Any:
        raise NotImplementedError

    dataset = row_types = select_rejected = frame = fence = key_types = multi_get = sole_values = _unused


class Clock:
    """Stands still but for a second at each look."""

    def __init__(self) -> None:
        self._seconds = itertools.count()

    def now(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=timezone.utc) + timedelta(milliseconds=next(self._seconds))


class Ids:
    """Ids that count up."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)

    def nonce(self) -> str:
        return f"{next(self._numbers):032x}"

    def message_id(self) -> int:
        return next(self._numbers)

    def task_try(self) -> str:
        return f"{next(self._numbers):08d}"


class RealStage:
    """One topology: its ledger, its table, and the source that reads the table of the stage before.

    :param up: the stage before; None: this is U.
    """

    def __init__(
        self, store: MemoryStore, name: str, up: RealStage | None, shape: Shape, ids: Ids, clock: Clock
    ) -> None:
        self.paths = Paths(ROOT, name)
        self._store, self._up, self._shape, self._ids, self._clock = store, up, shape, ids, clock
        self.table = MemoryTable(f"table_{name}", lambda: self.ledger.topology().incarnation)
        self.request = TopologyRequest(
            "dag", "opaque", 9, appends=True, upstream="" if up is None else up.paths.topology
        )
        self.begun: dict[int, Begun] = {}
        self.keys: dict[int, str] = {}
        self._grants: dict[int, Grant] = {}
        self._sources: dict[int, UpstreamSource] = {}
        self.half: dict[int, int] = {}
        self.rows: dict[int, Rows] = {}
        self.decided: tuple[str, Batch] | None = None

    @property
    def ledger(self) -> Ledger:
        """The ledger as a new process has it."""
        return Ledger(self._store, self.paths, clock=self._clock, ids=self._ids, history=1000)

    def source(self, most: int | None = None) -> UpstreamSource:
        """Make the source as a new process has it."""
        assert self._up is not None
        made = UpstreamSource(
            self._up.table, topology=self._up.paths.topology, root=ROOT, max_transactions=most or self._shape.most
        )
        return made.named(self.paths.topology)

    # --- begin

    def begin(self, key: str, batch: Batch) -> int:
        """Let a run begin; the txid of what it has begun; 0: its request was withdrawn."""
        request = BeginRequest(
            self.request, key, key, self._ids.task_try(), False, {"p": f"{self._ids.message_id():016x}"}
        )
        outside = Outside(
            decide=lambda attempt, position: batch,
            run_state=lambda run_id: "failed",
            read_entry=self._entry,
            decide_again=lambda attempt, metadata: batch,
        )
        begun = self.ledger.begin(request, outside)
        if isinstance(begun, AlreadyCommitted):
            return 0
        assert isinstance(begun, Begun), begun
        txid = begun.txid
        self.begun[txid], self.keys[txid] = begun, key
        self._sources.pop(txid, None)
        self.half.pop(txid, None)
        return txid

    def _entry(self, replaces: Replaced, changed_rows: bool) -> RestatedBatch:
        history = self.ledger.outcome(replaces.txid)
        assert history is not None
        assert history.receipt is not None
        return RestatedBatch(history.receipt.metadata)

    def again(self, txid: int) -> Batch:
        """Decide the ends of a transaction again."""
        history = self.ledger.outcome(txid)
        if history is not None and history.receipt is not None and history.receipt.metadata is not None:
            metadata = history.receipt.metadata
        else:
            metadata = self.begun[txid].metadata
        return self.source().decide_again(TransactionAttempt(txid, 1), metadata)

    def replay(self, txid: int) -> None:
        """Begin the next attempt."""
        batch = Batch({"n": txid}, txid) if self._up is None else self.again(txid)
        assert self.begin(self.keys[txid], batch) == txid

    def want(self, first: int) -> None:
        """Request a chain, as a person does."""
        self.ledger.want_restated(WishRequest(self.counts(first), self.keys[first], self.keys[first]), ADA)

    def counts(self, first: int) -> int:
        """Find the end of a chain by the binding of its run."""
        binding = self.ledger.binding(self.keys[first])
        assert binding is not None
        return binding.txid

    # --- reading

    def read(self, txid: int) -> None:
        """Read a half.

        :raises SourceNotSettled: and nothing is read.
        """
        begun = self.begun[txid]
        if txid not in self.half:
            source = self.source()
            self.half[txid] = self._both(source, begun)[0]
            self._sources[txid] = source
            return
        self._sources[txid].check_read(begun.attempt)
        table = self._table
        counted = table.counts([int(each) for each in self.taken(txid).counts])
        self.rows[txid] = self.half[txid], table.arrow(counted)[1]

    def _both(self, source: UpstreamSource, begun: Begun) -> Rows:
        found: Any = source.emit_arrow(begun.attempt, begun.metadata)
        rows: Rows = found
        return rows

    @property
    def _table(self) -> MemoryTable:
        assert self._up is not None
        return self._up.table

    def taken(self, txid: int) -> TakenRange:
        """Read the range of a transaction."""
        return TakenRange.of(self.begun[txid].metadata)

    def check_waits(self, txid: int, *, moved: bool) -> None:
        """Check that a reading is refused, and whether its ends have moved."""
        half = dict(self.half)
        try:
            self.read(txid)
        except SourceNotSettled as error:
            outcome = self.source().unsettled(self.begun[txid].metadata, error)
            assert isinstance(outcome, FailedBatch if moved else SourceNotSettled), outcome
        else:
            raise AssertionError(f"{txid} reads rows that are not settled")
        assert half == self.half

    # --- commit

    def write(self, txid: int, rows: Rows) -> None:
        """Ack what was read, take the turn, and write."""
        begun = self.begun[txid]
        task, ledger = TaskTry("p", -1, self._ids.task_try()), self.ledger
        ledger.start(begun.attempt, task)
        read = () if self._up is None else (RowsRead(RowsDigest(number_of(rows))),)
        ledger.run(processing.ack, begun.attempt, task, rows=number_of(rows), rows_read=read)
        processed = ledger.run(processing.processed, begun.attempt, rows_digest=begun.rows_digest)
        assert isinstance(processed, Processed), processed
        request = AcquireRequest(
            begun.attempt,
            processed.epoch,
            begun.rows_digest,
            states=(self.table.name,),
            journal=f"2026-01-01/{txid}-{'0' * 64}",
            metadata=begun.metadata,
            position=begun.position,
            rows=number_of(rows),
        )
        granted = ledger.run(acquire, request)
        assert isinstance(granted, Granted), granted
        self._grants[txid] = granted.grant
        if begun.replaces is not None:
            self.table.rows.pop(begun.replaces.txid, None)
        self.table.rows[txid] = rows

    def mark(self, txid: int) -> None:
        """Make a transaction final."""
        name = self.table.name
        keys = number_of(self.table.rows[txid])
        written = {name: Written(keys, f"{keys:016x}")}
        self.ledger.run(commit, self._grants[txid].token, states=[name], written=written)

    def skip(self, txid: int) -> None:
        """Skip a transaction, from note to mark."""
        ledger = self.ledger
        ledger.run(end.note_skip, txid, ADA)
        granted = ledger.run(end.grant_skip, txid, {self.table.name: True})
        assert isinstance(granted, Granted), granted
        self.table.rows.pop(txid, None)
        skipped = ledger.run(end.commit_skip, granted.grant.token, states=[self.table.name])
        assert isinstance(skipped, Committed), skipped

    # --- follow

    def follow(self, *, later: bool) -> None:
        """Compare and request, as a coordinator does."""
        source, ledger = self.source(), self.ledger
        found = source.corrections(ledger, self._clock.now() + timedelta(hours=int(later)))
        if found is not None:
            spec: Any = SimpleNamespace(topology=self.paths.topology, source=source, journal_time=timedelta(days=30))
            follow(spec, ledger, found, LOG)

    def view(self) -> StageView:
        """Give what is compared with the model."""
        if self.ledger.topology_if_any() is None:
            return [], [], {}, ()
        ledger = self.ledger
        phases = [self._phase(ledger, txid) for txid in sorted(self.begun)]
        ends = [self._ends(txid) for txid in sorted(self.begun)]
        final = [txid for txid, phase in zip(sorted(self.begun), phases, strict=True) if phase == "final"]
        table = {txid: self.table.rows[txid] for txid in final if txid in self.table.rows}
        firsts = {wish.txid: self._first(wish.txid) for wish in ledger.wishes()}
        return phases, ends, table, tuple(sorted(firsts.values()))

    def _first(self, txid: int) -> int:
        begun = self.begun[txid]
        return txid if begun.replaces is None else begun.replaces.begins

    def _phase(self, ledger: Ledger, txid: int) -> str:
        found = ledger.outcome(txid)
        if found is None:
            return "open"
        skipped = ledger.skipped(txid)
        if skipped is not None and skipped.readmitted_as:
            return "re-admitted"
        return "final" if found.final.outcome is Outcome.COMMITTED else "skipped"

    def _ends(self, txid: int) -> tuple[tuple[int, int], ...]:
        if self._up is None:
            return ()
        return tuple((int(first), end) for first, end in self.taken(txid).ends.items())


class Real:
    """All stages on one store."""

    def __init__(self, shape: Shape) -> None:
        store, ids, clock = MemoryStore(), Ids(), Clock()
        store.ensure(ROOT)
        self._store = store
        self.stages: list[RealStage] = []
        for name in NAMES[: shape.stages]:
            up = self.stages[-1] if self.stages else None
            self.stages.append(RealStage(store, name.lower(), up, shape, ids, clock))

    def view(self) -> tuple[StageView, ...]:
        """Give what is compared with the model."""
        return tuple(stage.view() for stage in self.stages)

    def do(self, step: Step, then: World) -> None:
        """Make a step of the model.

        :param then: the world after it, which names the rows that U writes.
        """
        with patch.object(hooks, "shared_store", lambda conn_id: self._store, create=True):
            self._do(self.stages[step.stage], step, then.stages[step.stage])

    def _do(self, stage: RealStage, step: Step, then: Stage) -> None:
        txid = step.txid
        simple: dict[str, Callable[[], object]] = {
            "begin": lambda: stage.begin(f"r{txid}", Batch({"n": txid}, txid)),
            "restate": lambda: self._restate(stage, txid),
            "write": lambda: stage.write(txid, then.of(txid).rows if not step.stage else stage.rows[txid]),
            "mark": lambda: stage.mark(txid),
            "skip": lambda: stage.skip(txid),
            "refuse for good": lambda: stage.skip(txid),
            "re-admit": lambda: self._readmit(stage, txid, at_once=not step.stage),
            "read": lambda: stage.read(txid),
            "replay": lambda: stage.replay(txid),
            "ask again": lambda: self._ask_again(stage, txid),
            "follow": lambda: stage.follow(later=False),
            "follow after 10 minutes": lambda: stage.follow(later=True),
            "withdraw": lambda: stage.ledger.withdraw_wish(stage.counts(txid)),
            "allocate": lambda: self._allocate(stage),
        }
        if step.what in simple:
            simple[step.what]()
        else:
            self._decide(stage, step, then)

    def _restate(self, stage: RealStage, first: int) -> None:
        stage.want(first)
        stage.begin(stage.keys[first], Batch({"n": first}, None))

    def _readmit(self, stage: RealStage, txid: int, *, at_once: bool) -> None:
        stage.ledger.run(end.note_readmission, txid, ADA)
        if at_once:
            stage.begin(stage.keys[txid], Batch({"n": txid}, None))

    def _ask_again(self, stage: RealStage, txid: int) -> None:
        stage.check_waits(txid, moved=True)
        stage.replay(txid)

    def _decide(self, stage: RealStage, step: Step, then: Stage) -> None:
        decided = then.decided
        assert decided is not None
        if step.what == "decide up to":
            key = f"r{len(then.transactions) + 1}"
            last = stage.ledger.deciding_from()[-1] if stage.begun else None
            most = decided.range[1] - decided.range[0] + 1
            batch = stage.source(most).decide(TransactionAttempt(0, 1), last)
            assert batch is not None
        else:
            key = stage.keys[step.txid]
            batch = stage.again(step.txid if step.what == "decide to re-admit" else stage.counts(step.txid))
        stage.decided = key, batch

    def _allocate(self, stage: RealStage) -> None:
        assert stage.decided is not None
        key, batch = stage.decided
        stage.decided = None
        stage.begin(key, batch)

    def check(self, world: World, possible: Collection[Step]) -> None:
        """Let the source and the coordinator do what the model does not let them: it is refused, or changes nothing."""
        with patch.object(hooks, "shared_store", lambda conn_id: self._store, create=True):
            for at, stage in enumerate(self.stages[1:], 1):
                for txid, each in world.stages[at].numbered():
                    if each.phase in (OPEN, HALF) and Step(at, "read", txid) not in possible:
                        stage.check_waits(txid, moved=Step(at, "ask again", txid) in possible)
                if stage.begun and Step(at, "follow") not in possible:
                    stage.follow(later=False)
        assert self.view() == view(world)
