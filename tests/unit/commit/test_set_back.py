"""A counter of the ledger that was set back: no txid is given twice, and no committer asks without a pause."""

from __future__ import annotations

import re
import time
from typing import Any

import pytest

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.api import Node
from airflow_tx.transaction.commit.turn import commit_in_turn
from tests.unit.bench import CountingStore
from tests.unit.commit.run import counts, open_run, record

ALLOCATED = "/airflow_tx/numbers/coordinator/allocated"
CURRENT = "/airflow_tx/numbers/coordinator/current"


def put(store: CountingStore, path: str, data: bytes) -> None:
    """What an operator does with zkCli."""
    node = store.get(path)
    assert node is not None
    store._nodes[path] = Node(data, node.version + 1)


def typed(store: CountingStore, refusal: UnreadableRecord) -> None:
    """Do what the refusal says."""
    found = re.search(r"zkCli.sh must set (\S+) '([^']*)'", str(refusal))
    assert found, refusal
    put(store, found[1], found[2].encode())


@pytest.mark.parametrize("older", [0, 1, 2, 3])
def test_a_txid_counter_that_was_set_back_never_gives_a_txid_twice(
    make: Any, store: CountingStore, state: Any, older: int
) -> None:
    for run_id in ("r1", "r2"):
        open_run(make, run_id).commit_now()
    for run_id in ("r3", "r4"):
        open_run(make, run_id)
    node = store.get(ALLOCATED)
    assert node is not None
    put(store, ALLOCATED, node.data.replace(b'"txid":4', b'"txid":%d' % older))
    late = make("r5")
    with pytest.raises(UnreadableRecord, match=f"its last txid is {older}, and transaction 4 has begun") as refused:
        late.begin()
    assert "\n" not in str(refused.value)
    typed(store, refused.value)
    for run_id in ("r3", "r4"):
        run = make(run_id)
        run.begin()
        run.work()
        run.commit_now()
    late.begin()
    late.work()
    late.commit_now()
    assert late.begun.txid == 5
    assert sum(counts(state).values()) == 50


def test_a_committer_is_refused_if_the_ledger_has_passed_its_turn(make: Any, store: CountingStore) -> None:
    run = open_run(make, "r1")
    node = store.get(CURRENT)
    assert node is not None
    put(store, CURRENT, node.data.replace(b'"txid":1', b'"txid":3'))
    with pytest.raises(UnreadableRecord, match="it is at 3, and transaction 1 is open"):
        run.commit_now()
    put(store, CURRENT, node.data)
    run.commit_now()
    assert record(store, 1) is None


def test_a_committer_that_does_not_get_the_grant_pauses_before_it_tries_again(
    make: Any, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = open_run(make, "r1").commit()
    asked: list[float] = []
    monkeypatch.setattr(time, "sleep", asked.append)
    granted = commit.try_to_commit
    monkeypatch.setattr(commit, "try_to_commit", lambda: len(asked) >= 3 and granted())
    commit_in_turn(commit, store, patience=0.0)
    assert len(asked) == 3
