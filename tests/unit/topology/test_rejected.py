"""The `rejected` table of a `Transaction` block: which committer keeps it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_tx import append, commit_phase
from airflow_tx.base.errors import ConfigError
from airflow_tx.sources.api import SourceKind
from airflow_tx.state import DeltaTable
from tests.unit.topology.blocks import Numbers, block, commit, count, dag, refused, state


@pytest.fixture
def aside(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "rejected")


def names(committer: Any) -> list[str]:
    return [each.state.name for each in committer.updates]


def test_the_committer_writes_the_rejected_rows_after_its_updates(aside: DeltaTable) -> None:
    with dag(), block(rejected=aside) as tx:
        committer = commit(count(tx.batch))
    assert names(committer) == ["totals0", aside.name]
    assert tx.begin.transaction.rejected is aside
    assert committer.updates[1].verb == "append"


def test_a_transaction_without_a_table_for_rejected_rows_has_no_additional_update() -> None:
    with dag(), block() as tx:
        committer = commit(count(tx.batch))
    assert names(committer) == ["totals0"]
    assert tx.begin.transaction.rejected is None


def test_the_first_committer_of_a_commit_phase_gets_the_update_for_the_rejected_rows(aside: DeltaTable) -> None:
    with dag(), block(rejected=aside) as tx:
        counted = count(tx.batch)
        with commit_phase():
            late = commit(task_id="a_late_one")
            early = commit(counted, task_id="early")
            early >> late
    assert names(early) == ["totals0", aside.name]
    assert names(late) == []


def test_a_keyed_state_is_refused_as_the_table_for_rejected_rows() -> None:
    match = r"Transaction\(rejected=\) = 'totals' cannot be used\. Give a table that takes rows: rejected=DeltaTable"
    with dag(), pytest.raises(ConfigError, match=match):
        block(rejected=state())
    with dag(), pytest.raises(ConfigError, match=r"Transaction\(rejected=\) = 'str' cannot be used"):
        block(rejected="rejected")


def test_the_table_of_an_update_cannot_also_be_the_table_for_rejected_rows(aside: DeltaTable) -> None:
    from airflow_tx import CommitOperator

    with refused("state 'delta.*rejected' is updated 2 times"):
        with dag(), block(rejected=aside) as tx:
            CommitOperator(task_id="commit", updates=[append(count(tx.batch), state=aside)])


def test_a_table_for_rejected_rows_is_refused_with_a_non_transactional_source(aside: DeltaTable) -> None:
    with refused("state 'delta.*rejected' is opaque, and this pair cannot count each row exactly once"):
        with dag(), block(source=Numbers(SourceKind.NON_TRANSACTIONAL), rejected=aside) as tx:
            commit(task_id="commit")
            count(tx.batch)


@pytest.mark.parametrize("most", [2.0, 1.0, 0, 0.0, -1, -0.5, True, False, "1%", float("nan")])
def test_an_invalid_limit_of_rejected_rows_is_refused(aside: DeltaTable, most: Any) -> None:
    with refused("max_rejected=.* refused|max_rejected=.*Give a share of the batch below 1, such as 0.01, or a whole"):
        with dag():
            block(rejected=aside, max_rejected=most)


@pytest.mark.parametrize("most", [0.01, 0.999, 1, 1000])
def test_a_valid_limit_of_rejected_rows_is_passed_to_the_tasks(aside: DeltaTable, most: float) -> None:
    with dag(), block(rejected=aside, max_rejected=most) as tx:
        commit(count(tx.batch))
    assert tx.begin.transaction.max_rejected == most


def test_a_limit_of_rejected_rows_without_a_table_is_refused() -> None:
    with refused("it has max_rejected=0.01, but no table for rejected rows. Add rejected=DeltaTable"):
        with dag():
            block(max_rejected=0.01)
