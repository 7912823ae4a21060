"""From the question whether all has acked to the mark: what is asked again, noted, and how a refusal is explained."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import LedgerBehind
from airflow_tx.ledger.attempt import Grant, Token
from airflow_tx.ledger.receipt import Code, Receipt, TaskRows
from airflow_tx.ledger.records import TopologyRecord, TransactionRecord, decode
from airflow_tx.state import Count, MemoryState
from airflow_tx.transaction.commit.turn import commit_in_turn
from tests.stage import update
from tests.unit.commit.run import Run, counts, open_run


def words(name: str) -> MemoryState:
    return MemoryState(name, keys=["word"], values={"count": Count()})


def receipt(run: Run, txid: int = 1) -> Receipt:
    node = run.spec.memory.get(run.spec.paths.history(txid))
    assert node is not None
    return Receipt.from_json(decode(TransactionRecord, "", node.data).receipt)


def test_a_receipt_names_the_batch_and_the_tasks_and_the_code_and_the_written_keys(make: Any) -> None:
    first, second = open_run(make, "r1"), open_run(make, "r2")
    for run in (first, second):
        assert run.commit_now() is None
    found = receipt(second, 2)
    assert (found.metadata, found.before, found.after) == ([10, 20], 10, 20)
    assert found.tasks == {"count": TaskRows(1, None, {"return_value": None})}
    assert found.code == Code("v1")
    assert found.written["words"].keys == 1
    assert found.previous == receipt(first).hash


def test_an_output_that_is_replaced_between_its_reading_and_the_grant_is_read_again(
    make: Any, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = open_run(make, "r1")
    commit = run.commit()
    prepare = commit.prepare

    def prepare_and_be_overtaken() -> Any:
        prepared = prepare()
        monkeypatch.setattr(commit, "prepare", prepare)
        run.work(count=7)
        return prepared

    monkeypatch.setattr(commit, "prepare", prepare_and_be_overtaken)
    assert commit_in_turn(commit, run.spec.memory, patience=0) is None
    assert counts(state) == {"count": 7}


def test_a_task_that_fails_after_the_commit_changes_no_total(make: Any, state: MemoryState) -> None:
    run = open_run(make, "r1")
    run.commit_now()
    run.committer.states["count"] = "failed"
    assert run.commit_now() is None
    assert counts(state) == {"count": 10}


def test_the_error_names_the_state_whose_fence_has_a_higher_token_than_the_ledger(make: Any) -> None:
    states = [words(name) for name in ("one", "two", "three")]
    first = make("r1", [update(each) for each in states])
    first.begin()
    first.work()
    first.commit_now()
    run = make("r2", [update(each) for each in states])
    begun = run.begin()
    run.work()
    topology = decode(TopologyRecord, "", run.spec.memory.get(run.spec.paths.record).data)
    later = Token(1, 2, 9, 9, "n", begun.attempt.birth)
    states[1].raise_fence(Grant("numbers", topology.incarnation, later, {"two": 1}))
    with pytest.raises(LedgerBehind, match=r"'two' refused: .*, the ledger is at 2 and committed 1 to it"):
        run.commit_now()
