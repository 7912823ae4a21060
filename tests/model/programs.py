"""What the tasks of a run do, on the real ledger, fence and values; thin as the operators are."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from airflow_tx.errors import SkipRefused
from airflow_tx.protocol.asking import BeginRequest
from airflow_tx.protocol.attempt import Token, TransactionAttempt
from airflow_tx.protocol.audit import Audit
from airflow_tx.protocol.committing import AcquireRequest
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.opening import TopologyRequest
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.processing import TaskTry
from airflow_tx.protocol.recovering import ReplayRequest
from airflow_tx.protocol.step import (
    AlreadyCommitted,
    Begun,
    Done,
    Granted,
    NotYet,
    ReplayNoted,
    Restarted,
    SkipGranted,
    ToBeSkipped,
)
from airflow_tx.protocol.yielding import Waiter
from airflow_tx.state.api import Grant

PATHS = Paths("/tx", "model")
TASK = "p"
KEYS = ("even", "odd")


@dataclass(frozen=True)
class Shape:
    """What is explored.

    :param states: 1: both keys in one state; 2: one key in each.
    :param people: what else may happen: people "skip" (and re-admit at will) and "withdraw" skips, waiters
        "yield", a coordinator allocates "ahead" of the runs. Each skip, withdrawal and yield is one of the budget.
    """

    source: str
    states: int
    runs: int
    budget: int
    clears_only: bool = False
    people: tuple[str, ...] = ()

    @property
    def staggered(self) -> bool:
        """Whether the runs begin one after another; where few things happen, they begin all at once."""
        return self.runs > 2 or self.budget > 1

    def __str__(self) -> str:
        what = "clears" if self.clears_only else "disruptions"
        what += f" with {' and '.join(self.people)}" if self.people else ""
        return f"{self.source}, {self.states} state(s), {self.runs} transactions x {self.budget} {what}"


@dataclass(frozen=True)
class Handed:
    """What `begin` hands to the other tasks."""

    txid: int
    attempt: int
    rows: tuple[int, int] | None
    position: int
    rows_digest: str

    @property
    def of(self) -> TransactionAttempt:
        return TransactionAttempt(self.txid, self.attempt)


def begin(env: Any, shape: Shape, run: int, task_try: str, retry: bool, size: int) -> Any:
    """The first task: `size` rows from where the last transaction ended."""
    ledger = Ledger(env, PATHS, clock=env, ids=env)
    name = f"tx-{run + 1}" if "ahead" in shape.people else f"r{run}"
    request = BeginRequest(
        TopologyRequest("model", shape.source, shape.runs + 1),
        name,
        name,
        task_try,
        retry,
        {TASK: f"{run:016x}"},
    )

    def decide(attempt: Any, position: int | None) -> tuple[list[int], int]:
        start = position or 0
        return [start, start + size], start + size

    result = ledger.begin(
        request, decide=decide, run_state=lambda run_id: None, is_current=lambda: bool(env.ask("current"))
    )
    if isinstance(result, Begun):
        rows = None if result.rows is None else (result.rows[0], result.rows[1])
        return Handed(result.attempt.txid, result.attempt.attempt, rows, result.position, result.rows_digest)
    return result


def allocate(env: Any, shape: Shape) -> Any:
    """The coordinator: the next transaction, ahead of the run that is to have it; as many as there are runs."""
    ledger = Ledger(env, PATHS, clock=env, ids=env)
    topology = TopologyRequest("model", shape.source, shape.runs + 1)

    def decide(attempt: Any, position: int | None) -> tuple[list[int], int] | None:
        start = position or 0
        return ([start, start + 2], start + 2) if attempt.txid <= shape.runs else None

    request = BeginRequest(topology, None, "", "", False, {TASK: "1".zfill(16)})
    result = ledger.begin(request, decide=decide, run_state=lambda run_id: None)
    return result.attempt.txid if isinstance(result, Begun) else None


def recover(env: Any, txid: int, attempt: int) -> Any:
    """The coordinator finds a transaction whose run does not exist, perhaps since one died that was to start it."""
    ledger = Ledger(env, PATHS, clock=env, ids=env)
    noted = ledger.note_replay(ReplayRequest(TransactionAttempt(txid, attempt), "no run", False, 3, overdue="9"))
    assert not isinstance(noted, ReplayNoted) or noted.first
    return "to begin"


def process(env: Any, handed: Handed, task_try: str, fails: bool) -> Any:
    """The processing task: counts even and odd rows; its output travels in the ack."""
    ledger = Ledger(env, PATHS, clock=env, ids=env)
    task = TaskTry(TASK, -1, task_try)
    if isinstance(ledger.start(handed.of, task, is_current=lambda: bool(env.ask("current"))), AlreadyCommitted):
        return "skipped"
    if fails:
        ledger.fail(handed.of, task, "on purpose")
        return "failed"
    low, high = handed.rows or (0, 0)
    counts = [sum(1 for row in range(low, high) if row % 2 == parity) for parity in (0, 1)]
    ledger.ack(handed.of, task, rows=high - low, outputs=[*counts, task_try])
    return "acked"


def commit(env: Any, shape: Shape, handed: Handed) -> Any:
    """The committer: gate, every fence, every key in a store transaction of its own, mark; or the skip of its batch."""
    ledger = Ledger(env, PATHS, clock=env, ids=env)
    names = tuple(f"s{index}" for index in range(shape.states))
    while True:
        done = ledger.processed(handed.of, rows_digest=handed.rows_digest)
        if isinstance(done, AlreadyCommitted):
            return "committed"
        granted = ledger.acquire(AcquireRequest(handed.of, done.epoch, handed.rows_digest, {}, names))
        if isinstance(granted, AlreadyCommitted):
            return "committed"
        if isinstance(granted, NotYet):
            env.ask("turn", handed.txid)
        elif isinstance(granted, Granted):
            break
        elif isinstance(granted, ToBeSkipped):
            return take_skip(env, shape, ledger, handed.txid)
        else:
            assert isinstance(granted, Restarted)
    token = Token(granted.generation, handed.txid, handed.attempt, granted.epoch, granted.nonce)
    grant = Grant("model", granted.incarnation, token, HashableDict(granted.last))
    counts = (done.acks[(TASK, -1)].outputs or [0, 0])[:2]
    _write(env, shape, grant, counts)
    ledger.commit(token, states=names, rows=sum(counts))
    return "committed"


def skip(env: Any, shape: Shape, txid: int) -> Any:
    """A person skips a transaction: notes it, and does it when it is its turn."""
    ledger = Ledger(env, PATHS, clock=env, ids=env)
    ledger.note_skip(txid, Audit("ada", "why"))
    return take_skip(env, shape, ledger, txid)


def take_skip(env: Any, shape: Shape, ledger: Ledger, txid: int) -> Any:
    """As `operators.skipping.take_skip`; where it is refused for good, the wish is taken back."""
    kind = shape.source == "opaque"
    try:
        answer = ledger.grant_skip(txid, {f"s{index}": kind for index in range(shape.states)})
    except SkipRefused:
        ledger.withdraw_skip(txid)
        return "withdrawn"
    if isinstance(answer, NotYet):
        env.ask("turn", txid)
        return take_skip(env, shape, ledger, txid)
    if isinstance(answer, SkipGranted):
        given = answer.grant
        token = Token(given.generation, txid, answer.attempt.attempt, given.epoch, given.nonce)
        grant = Grant("model", given.incarnation, token, HashableDict(given.last))
        _write_nothing(env, shape, grant)
        ledger.commit_skip(token, states=[f"s{index}" for index in range(shape.states)])
    return "skipped"


def _write_nothing(env: Any, shape: Shape, grant: Grant) -> None:
    for state in range(shape.states):
        env.ask("raise", state, grant)
    for state in range(shape.states):
        env.ask("write", state, grant, "", 0)


def withdraw(env: Any, txid: int) -> Any:
    """A person does not want it skipped any more."""
    return Ledger(env, PATHS, clock=env, ids=env).withdraw_skip(txid)


def readmit(env: Any, txid: int) -> Any:
    """A person wants a skipped batch back."""
    return Ledger(env, PATHS, clock=env, ids=env).readmit(txid, Audit("ada", "why"))


def give_way(env: Any, run: int, txid: int, blocking: int, task_try: str) -> Any:
    """A waiter gives up its run slot, and is started again when the turn has moved on."""
    ledger = Ledger(env, PATHS, clock=env, ids=env)
    waiter = Waiter(f"r{run}", txid, task_try, blocking)
    ledger.bid(waiter)
    if isinstance(ledger.give_way(waiter), Done):
        env.ask("turn", blocking + 1)
        ledger.came_back(waiter.run_id)
    return "back"


def _write(env: Any, shape: Shape, grant: Grant, counts: list[int]) -> None:
    for state in range(shape.states):
        env.ask("raise", state, grant)
    for parity, key in enumerate(KEYS):
        if counts[parity]:
            env.ask("write", parity if shape.states == 2 else 0, grant, key, counts[parity])


class HashableDict(dict[str, int]):
    """The ledger's last txids, usable in a key."""

    def __hash__(self) -> int:  # type: ignore[override]
        return hash(frozenset(self.items()))


PROGRAMS: dict[str, Callable[..., Any]] = {
    "begin": begin,
    "allocate": allocate,
    "recover": recover,
    "process": process,
    "commit": commit,
    "skip": skip,
    "withdraw": withdraw,
    "readmit": readmit,
    "yield": give_way,
}
