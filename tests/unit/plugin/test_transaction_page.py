"""The page of one transaction: its checks, its rejected rows, what people did, and what fails with it."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.reading import LedgerReading
from airflow_tx.ledger.receipt import CheckNote, Deed
from airflow_tx.ledger.records import Ack, Phase, TopologyRecord
from airflow_tx.ledger.views.status import TransactionView, view_open
from airflow_tx.ledger.views.view import TopologyView, TransactionDetails
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.plugin.api.timeline import timeline_row
from airflow_tx.plugin.api.topologies import transaction_causes
from airflow_tx.plugin.api.transaction_page import CheckLine, audit_lines, check_lines, task_work
from tests.unit.protocol.first_transaction import first_record, with_first

WHEN = "2013-01-01T12:00:00+00:00"
ACCEPTED = Deed("ada", WHEN, "the shop was closed")
CHECKS = {
    "some": CheckNote(True),
    "few": CheckNote(False, "3", severity="warn"),
    "positive": CheckNote(False, "1 of 2 rows", "d", accepted=ACCEPTED),
    "many": CheckNote(False, "1 row", "d"),
}


def details(acks: Any = None, **changes: Any) -> TransactionDetails:
    (view,) = with_first(phase=Phase.PROCESSED, **changes).transactions
    return TransactionDetails(view, None, acks or {})


def test_each_check_is_shown_with_its_result_and_its_finding() -> None:
    assert check_lines(details(checks=CHECKS).transaction) == [
        CheckLine(name="some", result="passed", found=None),
        CheckLine(name="few", result="warning", found="3"),
        CheckLine(name="positive", result="accepted", found="1 of 2 rows"),
        CheckLine(name="many", result="failed", found="1 row"),
    ]


def test_an_accepted_check_is_listed_as_an_action_of_a_person() -> None:
    (line,) = audit_lines(details(checks=CHECKS).transaction)
    assert (line.what, line.who, line.why) == ("accept check positive", "ada", "the shop was closed")
    assert line.when.isoformat() == WHEN


@pytest.mark.parametrize("index", [-1, 1])
def test_a_task_shows_how_many_rows_it_has_rejected(index: int) -> None:
    outputs = [{"name": "good", "rows": 6}, {"name": "tx_rejected", "rows": 2}, {"name": "tx_malformed", "rows": 1}]
    read = Ack("try", "op", done=True, rows=9)
    acks = {("count", index): Ack("try", "op", done=True, rows=9, outputs=outputs), ("read", -1): read}
    found = task_work(details(acks))
    assert [(each.task_id, each.rows, each.rejected) for each in found] == [("count", 9, 3), ("read", 9, 0)]


def test_the_row_of_an_open_transaction_shows_its_rejected_rows_and_check_warnings() -> None:
    outputs = [{"name": "good", "rows": 6}, {"name": "tx_rejected_late", "rows": 2}, {"name": "tx_malformed"}]
    row = timeline_row(first(CHECKS, {("count", -1): Ack("try", "op", done=True, outputs=outputs)}), (), has_run=True)
    assert (row.rejected, row.warnings) == (2, ["few"])


def first(checks: Any, acks: dict[tuple[str, int], Ack]) -> TransactionView:
    """An open transaction whose tasks have acked like this."""
    record = first_record(phase=Phase.PROCESSED, checks=checks)
    ledger = LedgerReading(
        topology=TopologyRecord("life", "dag", "opaque", 3), allocated=1, opened={1: record}, base=""
    )
    return view_open("flights", 1, ledger, acks)


def failing(*errors: str) -> TopologySnapshot:
    """A topology whose open transactions have failed by these errors."""
    topology = TopologyRecord("life", "dag", "opaque", 99)
    opened = {
        txid: first_record(txid=txid, phase=Phase.FAILED, run_id=f"r{txid}", error=error, failed_task="count")
        for txid, error in enumerate(errors, start=1)
    }
    ledger = LedgerReading(topology=topology, allocated=len(errors), opened=opened, base="")
    shown = tuple(view_open("flights", txid, ledger, {}) for txid in opened)
    view = TopologyView("flights", topology, 1, len(errors), shown, "/meta")
    return TopologySnapshot(topology, LedgerPlace("flights", "zookeeper", Paths("/tx", "flights")), None, view)


def test_open_transactions_with_the_same_error_are_grouped() -> None:
    rows = [f"ValueError: row {txid} of r{txid} has no price" for txid in range(1, 6)]
    found = transaction_causes(failing(*rows, "the disk is full"))
    assert [(each.sentence, each.txids) for each in found] == [("ValueError: row … of … has no price", [1, 2, 3, 4, 5])]


def test_transactions_with_errors_that_a_viewer_may_not_read_are_in_one_group() -> None:
    (found,) = transaction_causes(failing("secret a", "secret b", "secret c").without_errors())
    assert (found.sentence, found.txids) == ("the log of its task says why", [1, 2, 3])
