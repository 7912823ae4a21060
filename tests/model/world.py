"""One moment of everything there is: the ledger, the states, the runs of Airflow, and the processes."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Binding, Counter, Skipped, TopologyRecord, TransactionRecord, decode
from airflow_tx.ledger.store.memory import MemoryStore
from tests.model.machine import Place
from tests.model.product import number_of, run_id
from tests.model.shapes import PATHS, Shape


class Violation(AssertionError):
    """The protocol broke a promise; `trail` is how."""

    def __init__(self, what: str) -> None:
        super().__init__(what)
        self.trail: list[str] = []


@dataclass(frozen=True)
class Task:
    """One task of a run, as Airflow sees it.

    :param state: of Airflow; None: it is to run, or not yet.
    :param live: its process, if it is running.
    :param xcoms: what it gave, by name, as text.
    """

    state: str | None = None
    live: int | None = None
    xcoms: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True)
class Run:
    """One DAG run, as Airflow sees it.

    :param stage: "absent", "running", "failed", "refused", "yielded" or "green".
    :param tries: how many processes it has had.
    """

    number: int
    tasks: tuple[tuple[str, Task], ...]
    stage: str = "absent"
    tries: int = 0

    def task(self, name: str) -> Task:
        return dict(self.tasks)[name]

    def with_task(self, name: str, **changes: Any) -> Run:
        tasks = tuple((each, replace(task, **changes) if each == name else task) for each, task in self.tasks)
        return replace(self, tasks=tasks)

    @property
    def handed(self) -> str | None:
        """What its `begin` has told the other tasks."""
        return dict(self.task("begin").xcoms).get("return_value")

    @property
    def begun(self) -> bool:
        return self.handed is not None and self.task("begin").state == "success"


@dataclass(frozen=True)
class Actor:
    """A process: the live one of a task, a zombie, or one of a person.

    :param run: −1: a coordinator.
    :param view: the ledger as its follower has it, which lags; None: it does not.
    """

    ident: int
    run: int
    task: str
    place: Place
    view: dict[str, Any] | None = None


@dataclass(frozen=True)
class Final:
    """A transaction as it was when it became final; the ledger itself forgets its rows.

    :param tries: the tries of processing whose output was acked.
    :param replaces: the transaction that it restated.
    """

    txid: int
    skipped: bool
    spans: tuple[tuple[str, int, int], ...]
    tries: tuple[str, ...] = ()
    replaces: int | None = None

    @property
    def weight(self) -> int:
        """How often its job counts each row: a corrected one counts otherwise than any before it."""
        return 1 if self.replaces is None else self.txid


class Offer(NamedTuple):
    """What a grant has for the states.

    :param attempt: and `epoch`: of the grant.
    :param rows: of the first two states, whether each gets some.
    """

    attempt: int
    epoch: int
    rows: tuple[bool, bool]


class ModelStore(MemoryStore):
    """The in-memory store, swapped in and out of worlds. Its dictionary is replaced, never changed."""

    @property
    def nodes(self) -> dict[str, Any]:
        return self._nodes

    @nodes.setter
    def nodes(self, nodes: dict[str, Any]) -> None:
        self._nodes = nodes


@dataclass(frozen=True)
class World:
    """Everything there is at one moment.

    :param raised: per state, the highest token that its fence has seen.
    :param backup: the ledger that may be restored; `restored`: it was.
    :param missing: per state, the transactions whose part a lost state has lost for good.
    :param lost: the row that the source has lost.
    :param acted: the versions of transactions that a person has acted on.
    :param wished: how many restatements people have wanted.
    :param offers: what each grant of the transaction whose turn it is has for the states.
    :param behind: the ledger as a follower has it that lags by one write; `lagging`: the next process reads from that.
    """

    nodes: dict[str, Any]
    store_key: int
    states: tuple[Any, ...]
    raised: tuple[Any, ...]
    runs: tuple[Run, ...]
    actors: tuple[Actor, ...]
    budget: int
    spawned: int
    book: tuple[Final, ...] = ()
    backup: Any = None
    backup_key: Any = None
    missing: frozenset[tuple[int, int]] = frozenset()
    lost: int | None = None
    restored: bool = False
    acted: frozenset[str] = frozenset()
    wished: int = 0
    offers: tuple[Offer, ...] = ()
    behind: Any = None
    lagging: bool = False

    @cached_property
    def key(self) -> int:
        live = {task.live for run in self.runs for _, task in run.tasks}
        places = tuple(
            (a.run, a.task, a.place.ident, a.ident in live, None if a.view is None else store_key(a.view))
            for a in self.actors
        )
        runs = tuple((r.stage, r.tries, tuple((n, t.state, t.xcoms) for n, t in r.tasks)) for r in self.runs)
        rest: tuple[Any, ...] = (self.budget, self.book, self.backup_key, self.missing, self.lost, self.restored)
        rest = (*rest, self.acted, self.wished, self.offers)
        rest = (*rest, None if self.behind is None else store_key(self.behind))
        return hash((self.store_key, self.states, self.raised, frozenset(places), len(places), runs, rest))

    @cached_property
    def current(self) -> int:
        return decode(Counter, PATHS.current, self.nodes[PATHS.current].data).txid

    @cached_property
    def allocated(self) -> int:
        return decode(Counter, PATHS.allocated, self.nodes[PATHS.allocated].data).txid

    @cached_property
    def topology(self) -> TopologyRecord:
        return decode(TopologyRecord, PATHS.record, self.nodes[PATHS.record].data)

    def bound(self, shape: Shape, run: int) -> int | None:
        """The txid that a run stands for: the open one that restates its transaction, if there is one."""
        node = self.nodes.get(PATHS.run(run_id(shape, run)))
        if node is None:
            return None
        binding = decode(Binding, "", node.data)
        again = binding.restating
        record = self.record(again.txid) if again else None
        return binding.txid if again is None or record is None or record.birth != again.birth else again.txid

    def record(self, txid: int | None) -> TransactionRecord | None:
        node = None if txid is None else self.nodes.get(PATHS.transaction(txid))
        return None if node is None else decode(TransactionRecord, "", node.data)

    def acks(self, txid: int) -> str:
        """Where the acks of an open transaction lie; somewhere else, if it is none."""
        record = self.record(txid)
        return PATHS.acks("none" if record is None else record.acks)

    def skipped(self, txid: int | None) -> Skipped | None:
        node = None if txid is None else self.nodes.get(PATHS.skipped(txid))
        return None if node is None else decode(Skipped, "", node.data)

    def counted(self) -> list[Final]:
        """What is final and counts: without what came back under another txid, or was replaced."""
        found = []
        replaced = {final.replaces for final in self.book if not final.skipped}
        for final in self.book:
            if final.txid in replaced or (final.skipped and final.replaces is not None):
                continue
            skipped = self.skipped(final.txid)
            if skipped is None or skipped.readmitted_as is None:
                found.append(final)
        return found

    # --- with something changed

    def with_run(self, run: Run) -> World:
        return replace(self, runs=put(self.runs, run.number, run))

    def with_actor(self, actor: Actor) -> World:
        """Another process, or the same one further on."""
        if any(each.ident == actor.ident for each in self.actors):
            return replace(self, actors=tuple(actor if a.ident == actor.ident else a for a in self.actors))
        return replace(self, actors=(*self.actors, actor), spawned=self.spawned + 1)

    def without(self, ident: int | None) -> World:
        return replace(self, actors=tuple(actor for actor in self.actors if actor.ident != ident))

    def with_nodes(self, nodes: dict[str, Any]) -> World:
        return replace(self, nodes=nodes, store_key=store_key(nodes))

    def live(self, run: int, task: str) -> Actor | None:
        """The process of a task, if it is running and has not died unnoticed."""
        ident = self.runs[run].task(task).live
        return next((actor for actor in self.actors if actor.ident == ident), None) if ident is not None else None

    def number(self, run_id: str) -> int:
        return number_of(run_id)


def put(items: tuple[Any, ...], index: int, item: Any) -> tuple[Any, ...]:
    return (*items[:index], item, *items[index + 1 :])


def store_key(nodes: dict[str, Any]) -> int:
    return hash(frozenset(nodes.items()))
