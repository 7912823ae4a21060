"""Two installations with ledgers of their own have the same names, one staging place and one store of ackers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.messages.stores import ZnodeAckers
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import Count, MemoryState
from airflow_tx.transaction.commit.committer import Completion
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import update
from tests.unit.bench import CountingStore, MemorySpec, Numbers
from tests.unit.commit.message_run import MessageRun, MessageSpec
from tests.unit.commit.run import Run, committed, counts, read, told

ROWS = [{"word": "here", "count": 3}]
MakeRun = Callable[[str], Run]


def words() -> MemoryState:
    return MemoryState("words", keys=["word"], values={"count": Count()})


@pytest.fixture
def installation(log: Any, tmp_path: Path) -> Callable[[], MakeRun]:
    def made() -> MakeRun:
        store, state = CountingStore(), words()
        area = StagingArea(str(tmp_path), "ledger")
        fields: Any = {"tasks": ("count",), "inside": ("count", "commit"), "max_pending": 4}
        spec = MemorySpec("numbers", "numbers", Numbers(), memory=store, area=area, **fields)
        return lambda run_id: Run(spec, run_id, [update(state, new_values="words")], log)

    return made


def staged(run: Run) -> Any:
    """Begin a run, whose task stages its output, and return the reference."""
    run.begin()
    processing = run.start()
    ref: Any = CurrentBatch(processing).stage(ROWS)
    run.end(processing, ref)
    return ref


def test_a_commit_deletes_no_output_of_another_ledger_in_the_same_staging_area(
    installation: Callable[[], MakeRun],
) -> None:
    here, there = installation(), installation()
    own, other = here("r1"), there("r1")
    ref = staged(own)
    staged(other)
    told(other)
    for run_id in ("r2", "r3"):
        staged(run := there(run_id))
        run.committer.runs = {"r1": "success", "r2": "success"}
        told(run)
    assert read(own, ref) == ROWS
    told(own)
    state: Any = own.updates[0].state
    assert counts(state) == {"here": 3}


def test_new_values_of_another_ledger_in_the_same_folder_are_not_deleted_and_not_returned(
    installation: Callable[[], MakeRun], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__KEEP_NEW_VALUES", "1")
    here, there = installation(), installation()
    own = here("r1")
    left = committed(own, [{"word": "here", "count": 3}])
    for run_id in ("r1", "r2", "r3"):
        committed(there(run_id), [{"word": "there", "count": 9}])
    assert [row["word"] for row in read(own, left["words"])] == ["here"]


def test_a_commit_deletes_no_trees_of_another_ledger_in_the_same_acker_store(log: Any, tmp_path: Path) -> None:
    nodes = MemoryStore()

    def made() -> MessageRun:
        fields: Any = {"tasks": ("count",), "inside": ("count", "commit"), "ackers": 2}
        spec = MessageSpec(
            "numbers",
            "numbers",
            Numbers(),
            memory=CountingStore(),
            make_ackers=lambda: ZnodeAckers(nodes, "/airflow_tx"),
            broken=[],
            area=StagingArea(str(tmp_path)),
            **fields,
        )
        return MessageRun(spec, words(), log)

    own, other = made(), made()
    own.begin()
    (emitted,) = own.work()
    other.begin()
    other.ack(*other.work())
    assert other.commit_now() is None
    assert own.commit().complete() is Completion.MESSAGES
    own.ack(emitted)
    assert own.commit_now() is None
