"""A DAG run on the ledger in memory: begin, tasks that return rows, the committer."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any, TypeVar

import pytest
from airflow.sdk import DAG

from airflow_tx.base import compat
from airflow_tx.base.errors import StateUnavailable
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.records import TransactionRecord, decode
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operators.commit import BeginTransactionOperator, note_commit_failure, push_new_values
from airflow_tx.state import MemoryState
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.batch import rows_of_output
from airflow_tx.transaction.spec import COMMIT_KEY
from tests.stage import StageRun
from tests.unit.bench import CountingStore, MemorySpec, Numbers

T = TypeVar("T")
AWAY = StateUnavailable(state="words", where="somewhere", reason="refused")


class Run(StageRun):
    """A run with updates, whose tasks count words."""

    def __init__(self, spec: MemorySpec, run_id: str, updates: list[Update], log: Any) -> None:
        super().__init__(spec, run_id, log)
        self.updates = updates

    def work(self, task: str = "count", index: int = -1, *, count: int = 10) -> None:
        self.end(self.start(task, index), [{"word": task, "count": count}])

    def commit(self) -> Commit:
        return self.commit_of(self.updates)

    def commit_now(self, patience: float = 0.0) -> Any:
        return commit_in_turn(self.commit(), self.spec.memory, patience=patience)


def counts(state: MemoryState) -> dict[str, int]:
    return {key[0]: stored.value[0] for key, stored in state.database.rows.items() if stored.value is not None}


def record(store: CountingStore, txid: int) -> TransactionRecord | None:
    path = f"/airflow_tx/numbers/coordinator/transactions/{txid}"
    node = store.get(path)
    return None if node is None else decode(TransactionRecord, path, node.data)


def dies(run: Run, monkeypatch: pytest.MonkeyPatch, where: Any, method: str) -> None:
    """A committer that is granted the turn and dies in a method."""
    commit = run.commit()
    commit.complete()
    commit.prepare()
    with monkeypatch.context() as patched:
        patched.setattr(where, method, _away)
        with pytest.raises(StateUnavailable):
            commit.try_to_commit()


def _away(*arguments: Any, **options: Any) -> int:
    raise AWAY


def context_of(run: Run) -> Any:
    """The context of its commit task."""
    assert run.begun is not None
    with DAG("numbers", schedule=None) as dag:
        BeginTransactionOperator(task_id="begin", transaction=run.spec)
    run.committer.xcoms["begin", "return_value", -1] = run.begun.to_json()
    return {"dag": dag, "ti": run.committer}


def failed(run: Run, commit: Commit | None, error: Exception) -> None:
    """What Airflow does when the commit task has failed and is not tried again."""
    context = context_of(run)
    context.update({"exception": error, COMMIT_KEY: commit})
    note_commit_failure(context)


def found(store: CountingStore) -> TransactionRecord:
    open_one = record(store, 1)
    assert open_one is not None
    return open_one


class Broker(Numbers):
    """Writes down what it learns, and may fail.

    :ivar learned: txid and rows of what is committed; of what has failed the reason, too.
    """

    def __init__(self) -> None:
        self.learned: list[tuple[Any, ...]] = []
        self.away = False

    def committed(self, txid: int, metadata: Any) -> None:
        if self.away:
            raise ConnectionError("the broker is away")
        self.learned.append((txid, metadata))

    def failed(self, txid: int, metadata: Any, reason: str) -> None:
        if self.away:
            raise ConnectionError("the broker is away")
        self.learned.append((txid, metadata, reason))

    def named(self, topology: str) -> Any:
        return self


WHY = Audit("ada", "bad batch")


def open_run(make: Any, run_id: str, *, work: bool = True) -> Run:
    run: Run = make(run_id)
    assert isinstance(run.begin(), Begun)
    if work:
        run.work()
    return run


def killed_before_the_mark(commit: Commit) -> None:
    def killed(*_: Any, **__: Any) -> None:
        raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Commit, "mark_step", killed)
        commit.complete()
        commit.prepare()
        with pytest.raises(OSError, match="killed"):
            commit.try_to_commit()


def killed_until_it_ends(owner: Any, work: Callable[[], T]) -> tuple[int, T]:
    """Kill work at its first failpoint, then at its second one, until it ends; how often it died, and its answer."""
    left = 0

    def dies(name: str, **context: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OSError("killed")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(owner, "failpoint", dies)
        for died in range(20):
            left = died + 1
            with suppress(OSError):
                return died, work()
    pytest.fail("it never ends")


class Noted:
    """A state of one's own: which transactions it was given, with how many rows."""

    kind = "opaque"

    def __init__(self) -> None:
        self.seen: list[tuple[int | None, int]] = []
        self.txid: int | None = None

    def begin_commit(self, txid: int | None) -> None:
        self.txid = txid

    def commit(self, txid: int | None) -> None:
        pass

    def update_state(self, state: Noted, rows: Any) -> None:
        state.seen.append((state.txid, len(rows)))


class Airflow:
    """What Airflow says of runs, and which of them it was asked to start again."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.paused = False
        self.started: list[str] = []
        self.confs: list[Any] = []
        self.resets: list[bool] = []
        monkeypatch.setattr(compat, "is_paused", lambda dag_id: self.paused)
        monkeypatch.setattr(compat, "start_run", self.start)

    def start(self, dag_id: str, run_id: str, *, conf: Any = None, reset: bool = False, interval: Any = None) -> bool:
        self.started.append(run_id)
        self.confs.append(conf)
        self.resets.append(reset)
        return True


def committed(run: Run, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """A whole run; the references that its committer tells of."""

    run.begin()
    run.end(run.start(), rows)
    return told(run)


def told(run: Run) -> dict[str, Any]:
    commit = run.commit()
    assert commit_in_turn(commit, run.spec.memory, patience=0) is None
    pushed: dict[str, Any] = {}
    ti = SimpleNamespace(xcom_push=lambda key, value: pushed.update({key: value}))
    push_new_values(ti, commit.left)
    return pushed


def read(run: Run, ref: Any) -> list[dict[str, Any]]:
    assert run.begun is not None
    return list(rows_of_output(run.spec, ref, run.begun))
