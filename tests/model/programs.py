"""The processes of the explorer: the real operators, the real commands and the real coordinator, one call at a time."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from types import SimpleNamespace
from typing import Any

from airflow.sdk.exceptions import AirflowException, AirflowSkipException

from airflow_tx.base.compat import TaskFunction
from airflow_tx.base.errors import FailedBatch, FenceOutranked, Outranked, PreviewOutdated, Refused, TxError
from airflow_tx.coordinator.lane_plan import LanePlan, LaneTask
from airflow_tx.coordinator.lane_tasks import LaneCommit, LaneOutputs, LaneTransaction, LaneTurn
from airflow_tx.coordinator.plan import CoordinatorMemory, Rules
from airflow_tx.coordinator.worker import Coordination, Pace
from airflow_tx.ledger.answers import AlreadyCommitted, Begun, WindowFull
from airflow_tx.ledger.attempt import LANE_TRY, TaskTry
from airflow_tx.ledger.ledger import Ledger
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import TopologyRecord, TransactionRecord, Waiter
from airflow_tx.ledger.steps.end import note_readmission
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.run_slots import bid
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.actions.replay import NamedReplay
from airflow_tx.operations.actions.skip import NotInEffect, TransactionSkip
from airflow_tx.operators.commit import final_errors
from airflow_tx.transaction.commit import run_slots
from airflow_tx.transaction.commit.committer import Commit, PhaseCommit
from airflow_tx.transaction.commit.handoff import pass_on, take_skip
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.processing import begin as beginning
from airflow_tx.transaction.processing.outputs import RETURN_KEY, returned
from airflow_tx.transaction.processing.task import Processing
from tests.model.machine import Env
from tests.model.product import LOG, ModelSpec, ModelTi, run_id, run_info, spec_of, states_of, updates_of
from tests.model.shapes import TASK, Shape

Size = tuple[tuple[str, int], ...]
AUDIT = Audit("ada", "why")


def begin(env: Env, shape: Shape, run: int, task_try: str, retry: bool, size: Size) -> Any:
    """As `BeginTransactionOperator.execute`; what it gives as text, or in a word how it ended."""
    spec, ti = spec_of(env, shape, size), ModelTi(env, shape, run, "begin", task_try)
    while True:
        with final_errors():
            answer = beginning.ask(spec, ti, run_info(shape, run), retry=retry, log=LOG)
        if isinstance(answer, WindowFull):
            _wait(env, spec, ti, answer.current, None, "room", answer.max_pending)
            continue
        if isinstance(answer, Begun) and answer.skip is not None:
            with final_errors():
                ledger, states = spec.ledger(env), states_of(env, shape)
                ended = take_skip(ledger, answer.attempt.txid, states, log=LOG)
                pass_on(ledger, states, run_slots.TaskRuns(spec.dag_id, ti), ended, log=LOG)
            return "skipped"
        if isinstance(answer, Begun):
            return json.dumps(answer.to_json())
        return "skipped" if isinstance(answer, AlreadyCommitted) else "no data"


def process(env: Env, shape: Shape, run: int, handed: str, task_try: str, how: str) -> Any:
    """A plain task of processing: start, its own code, ack; what it returns becomes XComs.

    :param how: "fails"; or "late": it is marked success after its ack, and fails then.
    """
    spec, begun = spec_of(env, shape), Begun.from_json(json.loads(handed))
    task = Processing(spec, begun, TaskTry(TASK, -1, task_try), anchored=True)
    task._ti = ModelTi(env, shape, run, TASK, task_try)
    try:
        task.start()
    except AirflowSkipException:
        return "skipped"
    if how == "fails":
        task.fail("on purpose")
        raise FailedBatch(reason="on purpose")
    value = output(shape, begun, task_try)
    rows = sum(high - low for _, low, high in spans(begun.metadata))
    task.ack(returned(value, multiple=True), consumed_rows=rows)
    if how == "late":
        env.ask("marked")
        try:
            task.fail("killed after its ack")
        except Refused:
            pass
        return "late"
    return xcoms_of(shape, handed, task_try)


def xcoms_of(shape: Shape, handed: str, task_try: str) -> tuple[tuple[str, str], ...]:
    """What a try of processing returns becomes, as text."""
    value = output(shape, _begun(handed), task_try)
    return tuple((name, json.dumps(item)) for name, item in {RETURN_KEY: value, **value}.items())


def output(shape: Shape, begun: Begun, task_try: str) -> dict[str, list[dict[str, Any]]]:
    """Even and odd rows counted, per partition; where it varies, also which try did it.

    The job of a restatement counts them otherwise.
    """
    weight = 1 if begun.replaces is None else begun.txid
    found: dict[str, list[dict[str, Any]]] = {f"s{index}": [] for index in range(shape.states)}
    for partition, low, high in spans(begun.metadata):
        for parity, word in enumerate(("even", "odd")):
            count = sum(row % 2 == parity for row in range(low, high))
            if count:
                found[f"s{parity % shape.states}"].append({"key": partition + word, "n": count * weight})
        if shape.states == 3:
            found["s2"].append({"key": partition + "rows", "n": (high - low) * weight})
    if shape.varies:
        found["s0"].append({"key": f"{begun.txid} by {task_try}", "n": 0})
    return found


def spans(rows: Any) -> tuple[tuple[str, int, int], ...]:
    """The rows of a batch: partition, first, first that is not in it any more."""
    if rows is None:
        return ()
    parts = rows if isinstance(rows, dict) else {"": rows}
    return tuple((name, low, high) for name, (low, high) in sorted(parts.items()))


def commit(env: Env, shape: Shape, run: int, handed: str, task_try: str) -> Any:
    """As `CommitOperator.execute` and `execute_turn`."""
    _in_turn(env, shape, run, handed, task_try, "commit")
    return ()


def acquire(env: Env, shape: Shape, run: int, handed: str, task_try: str) -> Any:
    """As `AcquireTurnOperator`."""
    own = _in_turn(env, shape, run, handed, task_try, "acquire")
    assert isinstance(own, PhaseCommit)
    return ((RETURN_KEY, json.dumps(own.shared)),)


def write(env: Env, shape: Shape, run: int, handed: str, task_try: str, task: str) -> Any:
    """As a `CommitOperator` in a commit phase."""
    spec, ti = spec_of(env, shape), ModelTi(env, shape, run, task, task_try)
    with final_errors():
        own = PhaseCommit(spec, _begun(handed), updates_of(env, shape, task), spec.ledger(env), ti, LOG)
        return ((RETURN_KEY, json.dumps(own.write_in_phase())),)


def mark(env: Env, shape: Shape, run: int, handed: str, task_try: str) -> Any:
    """As `MarkCommittedOperator`."""
    spec, ti = spec_of(env, shape), ModelTi(env, shape, run, "mark", task_try)
    updates = (*updates_of(env, shape, "w0"), *updates_of(env, shape, "w1"))
    with final_errors():
        PhaseCommit(spec, _begun(handed), updates, spec.ledger(env), ti, LOG).mark_in_phase()
    return ()


def _in_turn(env: Env, shape: Shape, run: int, handed: str, task_try: str, task: str) -> Commit:
    spec, begun = spec_of(env, shape), _begun(handed)
    ti = ModelTi(env, shape, run, task, task_try)
    kind = PhaseCommit if task == "acquire" else Commit
    while True:
        with final_errors():
            own = kind(spec, begun, updates_of(env, shape, task), spec.ledger(env), ti, LOG)
            line = commit_in_turn(own, env, patience=math.inf, clock=_no_time)
        if line is None:
            return own
        del own
        _wait(env, spec, ti, line.current, begun.txid, "turn", line.txid, line.op, json.dumps(line.waited_for))


def _wait(env: Env, spec: ModelSpec, ti: ModelTi, blocking: int, txid: int | None, *call: Any) -> None:
    """Deferred: the trigger waits, or it finds out that this run is to yield."""
    if env.ask("defer", *call) == "yield":
        spec.ledger(env).run(bid, Waiter(ti.run_id, txid, ti.id, blocking))
        run_slots.yield_slot(spec, {"ti": ti, "task": SimpleNamespace()}, blocking=blocking, txid=txid, log=LOG)


def _begun(handed: str) -> Begun:
    return Begun.from_json(json.loads(handed))


def _no_time() -> float:
    return 0.0


# --- people ------------------------------------------------------------------------------------------------------


def skip(env: Env, shape: Shape, txid: int) -> Any:
    """As `airflow tx skip`; where it is refused, it is replayed instead, as the error says."""
    target = _target(env, shape)
    wish = TransactionSkip(target, txid)
    try:
        record = Reader(env).peek_if_any(TransactionRecord, target.ledger.paths.transaction(txid))
        if record is not None:
            wish.check(record)
        for _ in wish.note(AUDIT):
            pass
    except NotInEffect as error:
        if isinstance(error.__cause__, (Outranked, FenceOutranked)):
            return  # somebody else is at it; he asks again if he has to
        withdraw(env, shape, txid)


def withdraw(env: Env, shape: Shape, txid: int) -> Any:
    """As `airflow tx replay --force`: a person does not want it skipped any more."""
    for _ in NamedReplay(_target(env, shape), [txid], force=True, changed_rows=False).execute(AUDIT):
        pass


def _target(env: Env, shape: Shape) -> ActionTarget:
    """The topology, without a read of its record: an action of the model needs the DAG of it alone."""
    spec = spec_of(env, shape)
    return ActionTarget(
        spec.ledger(env), TopologyRecord("", "model", "opaque", 1), lambda: (spec, states_of(env, shape))
    )


def readmit(env: Env, shape: Shape, txid: int, run: int) -> Any:
    """As `airflow tx readmit`."""
    spec_of(env, shape).ledger(env).run(note_readmission, txid, AUDIT)
    env.ask("start_run", run, True)


def restate(env: Env, shape: Shape, txid: int, run: int) -> Any:
    """As `airflow tx restate`: a wish, and then the run is cleared."""
    key = run_id(shape, run)
    spec_of(env, shape).ledger(env).run(want, WishRequest(txid, key, key, tuple(states_of(env, shape))), AUDIT)
    env.ask("start_run", run, True)


class _WatchedTarget(ActionTarget):
    """Says who acts on what was previewed."""

    def take(self, txids: Sequence[int], version: str | None) -> None:
        super().take(txids, version)
        self.ledger.store.ask("acted", tuple(txids), version)  # type: ignore[attr-defined]


def press(env: Env, shape: Shape, txid: int, action: str, who: str) -> Any:
    """As the board: a person is shown what an action would do, and confirms it at any time after that."""
    spec = spec_of(env, shape)
    ledger = spec.ledger(env)
    target = _WatchedTarget(ledger, ledger.topology(), lambda: (spec, states_of(env, shape)))
    skips = action == "skip"
    chosen = TransactionSkip(target, txid) if skips else NamedReplay(target, [txid], force=True, changed_rows=False)
    version = chosen.preview().version
    env.ask("confirmed")
    try:
        chosen.effects(Audit(who, "why"), version)
    except PreviewOutdated:
        return  # somebody else was first


# --- the coordinator ---------------------------------------------------------------------------------------------


class _Clock:
    """Time passes while somebody sleeps, and then so much that all is due."""

    def __init__(self) -> None:
        self.time = 0.0

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.time += 1e6


def coordinate(env: Env, shape: Shape) -> Any:
    """The coordinator in its worker, from its start until there is nothing to do."""
    spec = spec_of(env, shape, (("", 2),))
    rules = Rules(spec.window, shape.replays, backoff=0.0, message_timeout=1e12)
    clock = _Clock()
    own = Coordination(
        spec,
        Pace(rules, poll=1.0, linger=1.0, hold=1.0),
        env,
        ModelTi(env, shape, 0, "coordinator", ""),
        LOG,
        memory=CoordinatorMemory(),
        clock=clock.now,
        sleep=clock.sleep,
    )
    own._looker._now = env.now
    own.work_until_idle()


def lane(env: Env, shape: Shape) -> Any:
    """A lane: it begins and processes all transactions that may be open, then commits them, all in one process."""
    ti, own = ModelTi(env, shape, 0, "lane", ""), f"{LANE_TRY}{env.nonce()}"
    spec, first, turn = spec_of(env, shape, (("", 2),)), TaskTry(TASK, -1, own), LaneTurn()
    ledger, commits = spec.ledger(env), list[LaneCommit]()
    # As one that has committed the transaction before.
    turn.txid = ledger.turn().current
    try:
        for _ in range(shape.runs):
            begun: Any = beginning.allocate(spec, ledger, own, first=first)
            if not isinstance(begun, Begun):
                break
            commits.append(_processed_in_lane(env, shape, begun, ledger, turn, ti, first))
            turn.waiting[begun.txid] = commits[-1]
        for commit in commits:
            turn.waiting.pop(commit.begun.txid)
            if not commit.commit_granted():
                commit_in_turn(commit, env, patience=0.0, clock=_no_time)
    except (TxError, AirflowException):
        return  # it has left the lane; that it is noted only makes the coordinator find it sooner


def _processed_in_lane(
    env: Env, shape: Shape, begun: Begun, ledger: Ledger, turn: LaneTurn, ti: ModelTi, first: TaskTry
) -> LaneCommit:
    call = TaskFunction(
        lambda: output(shape, begun, first.task_try), ((), {}), multiple=True, pushes=True, timeout=None
    )
    updates = updates_of(env, shape, "commit")
    plan = LanePlan(spec_of(env, shape, (("", 2),)), (LaneTask(TASK, call, ""),), "commit", updates, "")
    outputs = LaneOutputs()
    commit = LaneCommit(plan, begun, ledger, ti, LOG, outputs=outputs, turn=turn)
    LaneTransaction(plan, begun, ledger, first.task_try, outputs, commit=commit, started=first).process()
    return commit


PROGRAMS: dict[str, Callable[..., Any]] = {
    "begin": begin,
    "p": process,
    "commit": commit,
    "acquire": acquire,
    "write": write,
    "mark": mark,
    "skip": skip,
    "withdraw": withdraw,
    "readmit": readmit,
    "restate": restate,
    "press": press,
    "coordinate": coordinate,
    "lane": lane,
}
