"""Which topologies the overview shows, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from airflow_tx.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api.ledger_snapshots import TopologySnapshot
from airflow_tx.plugin.api.topology_lines import OverviewPart
from airflow_tx.plugin.api.topology_routes import MOST_LINES
from airflow_tx.protocol.health import HealthCode
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reading import LedgerReading
from airflow_tx.protocol.records import Phase, TopologyRecord, TransactionRecord
from airflow_tx.protocol.status import view_open
from airflow_tx.protocol.view import TopologyView


def snapshot(name: str, **topology: Any) -> TopologySnapshot:
    """A topology without open transactions."""
    record = TopologyRecord("life", f"dag_of_{name}", "opaque", 3, **topology)
    return TopologySnapshot(record, LedgerPlace(name, "zookeeper", Paths("/tx", name)), None, _view(name, record))


def unreadable(name: str) -> TopologySnapshot:
    return replace(snapshot(name), view=None, problem="its record is broken")


def failed(name: str) -> TopologySnapshot:
    """A topology whose first transaction has failed."""
    return _with_first(snapshot(name), phase=Phase.FAILED, error="it broke")


def blocked(name: str) -> TopologySnapshot:
    mark = {"txid": 1, "attempt": 1, "reason": "it broke", "when": "2013-01-01"}
    return _with_first(snapshot(name, blocked=mark), phase=Phase.FAILED, error="it broke")


def late(name: str) -> TopologySnapshot:
    return replace(snapshot(name), alarms={"late": {"when": "2013-01-01"}})


def _view(name: str, record: TopologyRecord) -> TopologyView:
    return TopologyView(name, record, 1, 0, (), "/meta")


def _with_first(found: TopologySnapshot, **changes: Any) -> TopologySnapshot:
    first = TransactionRecord(
        key="key", run_id="r1", request="try", attempt=1, epoch=1, op="op", base="", ended="", rows_digest="",
        tasks={}, created="", began="2013-01-01", **changes,
    )  # fmt: skip
    assert found.view is not None
    ledger = LedgerReading(topology=found.record, allocated=1, opened={1: first}, base="")
    shown = view_open(found.name, 1, ledger, {})
    return replace(found, view=replace(found.view, allocated=1, transactions=(shown,)))


def test_a_failed_topology_is_first_however_many_others_there_are() -> None:
    fine = [snapshot(f"a{number:03}") for number in range(3 * MOST_LINES)]
    selection = OverviewPart(limit=MOST_LINES).select([*fine, failed("z")])
    assert selection.total == len(fine) + 1
    assert [each.name for each in selection.some[:2]] == ["z", "a000"]
    assert len(selection.some) == MOST_LINES


def test_topologies_are_in_the_order_in_which_they_need_a_person() -> None:
    some = [snapshot("a"), late("b"), failed("c"), unreadable("d"), blocked("e"), failed("b2")]
    found = OverviewPart().select(some).some
    assert [each.name for each in found] == ["e", "d", "b2", "c", "b", "a"]


def test_every_topology_is_on_exactly_one_page() -> None:
    some = [snapshot(f"t{number}") for number in range(7)] + [failed("f")]
    pages = [OverviewPart(limit=3, offset=offset).select(some).some for offset in (0, 3, 6, 9)]
    names = [each.name for page in pages for each in page]
    assert sorted(names) == sorted(each.name for each in some)
    assert [len(page) for page in pages] == [3, 3, 2, 0]


@pytest.mark.parametrize(
    ("text", "names"),
    [("ord", ["orders"]), ("ORD", ["orders"]), ("dag_of_fl", ["flights"]), (" broke", ["flights"]), ("nothing", [])],
)
def test_a_text_is_found_in_the_name_the_dag_and_the_sentence(text: str, names: list[str]) -> None:
    found = OverviewPart(text=text).select([snapshot("orders"), failed("flights")])
    assert [each.name for each in found.some] == names


def test_the_counts_say_how_many_of_each_state_have_the_text_whatever_state_is_asked_for() -> None:
    some = [failed("f1"), failed("f2"), snapshot("f3"), blocked("other")]
    part = OverviewPart(states=frozenset({HealthCode.FAILED}), text="f", limit=1)
    found = part.select([each for each in some if each.name != "other"])
    assert (found.total, [each.name for each in found.some]) == (2, ["f1"])
    assert dict(found.counts) == {HealthCode.FAILED: 2, HealthCode.FINE: 1}
