"""The page of one transaction: its checks, its rejected rows, and what people did."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.records import Ack, Phase
from airflow_tx.ledger.view import TransactionDetails
from airflow_tx.plugin.api.transaction_page import CheckLine, audit_lines, check_lines, task_work
from tests.unit.protocol.first_transaction import with_first

WHEN = "2013-01-01T12:00:00+00:00"
ACCEPTED = {"who": "ada", "when": WHEN, "why": "the shop was closed"}
CHECKS = {
    "some": {"passed": True},
    "few": {"passed": False, "found": "3", "severity": "warn"},
    "positive": {"passed": False, "found": "1 of 2 rows", "digest": "d", "accepted": ACCEPTED},
    "many": {"passed": False, "found": "1 row", "digest": "d"},
}


def details(acks: Any = None, **changes: Any) -> TransactionDetails:
    (view,) = with_first(phase=Phase.PROCESSED, **changes).transactions
    return TransactionDetails(view, None, acks or {})


def test_each_check_has_its_result_and_what_it_found() -> None:
    assert check_lines(details(checks=CHECKS).transaction) == [
        CheckLine(name="some", result="passed", found=None),
        CheckLine(name="few", result="warning", found="3"),
        CheckLine(name="positive", result="accepted", found="1 of 2 rows"),
        CheckLine(name="many", result="failed", found="1 row"),
    ]


def test_an_accepted_check_is_an_action_of_a_person() -> None:
    (line,) = audit_lines(details(checks=CHECKS).transaction)
    assert (line.what, line.who, line.why) == ("accept check positive", "ada", "the shop was closed")
    assert line.when.isoformat() == WHEN


@pytest.mark.parametrize("name", ["count", "count[1]"])
def test_a_task_says_how_many_rows_it_rejected(name: str) -> None:
    outputs = [{"name": "good", "rows": 6}, {"name": "tx_rejected", "rows": 2}, {"name": "tx_malformed", "rows": 1}]
    acks = {name: Ack("try", "op", done=True, rows=9, outputs=outputs), "read": Ack("try", "op", done=True, rows=9)}
    found = task_work(details(acks))
    assert [(each.task_id, each.rows, each.rejected) for each in found] == [("count", 9, 3), ("read", 9, 0)]
