"""Which differences between the code of a receipt and today's DAG make a transaction stale."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from airflow_tx.ledger.life import ACCEPT_CODE, accepted_code
from airflow_tx.ledger.receipt import Code, Receipt, TaskRows
from airflow_tx.ledger.records import RepairRecord
from airflow_tx.operations.actions.stale import CodeNow
from tests.finals import plain_receipt


def made(code: Mapping[str, str], txid: int = 3) -> Receipt:
    """A receipt whose tasks ran code; "": it does not say which."""
    tasks = {task: TaskRows(1, 1, {}) for task in code}
    known = {task: each for task, each in code.items() if each}
    return plain_receipt(txid=txid, tasks=tasks, code=Code("v1", known))


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({"count": "a"}, {"count": "a"}, {}),
        ({"count": "a"}, {"count": "b"}, {"count": "task count has other code"}),
        ({"count": "a b"}, {"count": "b"}, {"count": "task count has other code"}),
        ({"count": "a"}, {"count": "a", "join": "b"}, {"join": "task join is new"}),
        ({"count": "a", "join": "b"}, {"count": "a"}, {"join": "task join is gone"}),
        ({"count": "a"}, {"add_up": "a"}, {}),  # renamed
        ({"count": "a"}, {"add_up": "b"}, {"add_up": "task add_up is new", "count": "task count is gone"}),
        ({"count": ""}, {"count": "a"}, {}),
        ({"count": "a"}, {"count": ""}, {}),
        ({}, {"count": "a"}, {}),
    ],
)
def test_a_changed_task_or_a_new_task_or_a_missing_task_makes_a_transaction_stale(
    then: dict[str, str], now: dict[str, str], told: dict[str, str]
) -> None:
    assert CodeNow(now).changes(made(then)) == told


def test_a_mapped_task_without_instances_does_not_count_as_a_new_task() -> None:
    assert CodeNow({"count": "a", "each": "b"}, {"each"}).changes(made({"count": "a"})) == {}


@pytest.mark.parametrize(
    ("then", "now", "told"),
    [
        ({}, {"count": "a"}, "their receipts do not say which tasks processed them"),
        ({"count": ""}, {"count": "a"}, "their receipts do not have the code of task count"),
        ({"count": "a"}, {"count": ""}, "the code of task count cannot be read here"),
    ],
)
def test_the_report_names_a_task_whose_code_cannot_be_compared(
    then: dict[str, str], now: dict[str, str], told: str
) -> None:
    assert list(CodeNow(now).unknown(made(then))) == [told]


def repair(number: int, what: str, **change: Any) -> RepairRecord:
    return RepairRecord(number, what, "ada", "2026-01-01T00:00:00", "faster", "", 1, "op", change=change)


ACCEPTED = repair(1, ACCEPT_CODE, code={"count": "b", "join": ""}, txid=3)


@pytest.mark.parametrize(
    ("txid", "now", "told"),
    [
        (3, {"count": "b"}, []),
        (4, {"count": "b"}, ["count", "join"]),
        (3, {"count": "c"}, ["count"]),
        (3, {"count": "b", "join": "x"}, ["join"]),
    ],
)
def test_an_acceptance_of_changed_code_is_valid_only_for_this_code_and_earlier_transactions(
    txid: int, now: dict[str, str], told: list[str]
) -> None:
    code = CodeNow(now, accepted=accepted_code([ACCEPTED]))
    assert list(code.changes(made({"count": "a", "join": "a"}, txid))) == told
