"""Which topologies the overview shows, and in which order."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.reading import LedgerReading
from airflow_tx.ledger.records import History, Outcome, Phase, TopologyRecord, TransactionRecord
from airflow_tx.ledger.status import TransactionView, view_final, view_open
from airflow_tx.ledger.view import HealthCode, TopologyView
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.operations.actions.replay import with_run_ends
from airflow_tx.plugin.api.final_views import FinalViews
from airflow_tx.plugin.api.routes import MOST_LINES
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.plugin.api.topologies import OverviewPart


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


_NOW = datetime(2013, 1, 1, 12, 30, tzinfo=timezone.utc)


def committed(txid: int, ended: datetime) -> TransactionView:
    times: dict[str, Any] = dict.fromkeys(("began", "processed", "granted_at", "ended"), ended.isoformat())
    run: dict[str, Any] = {"run_id": f"r{txid}", "rows": 1, "ack_val": "0" * 16, "op": "op"}
    return view_final(History(txid=txid, attempts=1, outcome=Outcome.COMMITTED, **times, **run), None)


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


class CountedFinals(FinalViews):
    """Counts how often it is asked when a transaction ended."""

    asked = 0

    def ended(self, txid: int) -> datetime | None:
        self.asked += 1
        return super().ended(txid)


def test_viewers_share_the_commits_of_each_hour_while_a_topology_does_not_change() -> None:
    finals = CountedFinals([committed(txid, _NOW - timedelta(hours=5 - txid)) for txid in range(1, 6)])
    shown = replace(snapshot("orders"), final=(1, 2, 3, 4, 5), finals=finals)
    first = shown.commits_per_hour(_NOW)
    asked = finals.asked
    assert shown.commits_per_hour(_NOW + timedelta(minutes=1)) == first
    assert finals.asked == asked
    assert shown.commits_per_hour(_NOW + timedelta(hours=1)) == [*first[1:], 0]


def test_a_topology_of_which_no_run_has_ended_keeps_what_was_derived_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "run_ends", lambda runs: {("dag_of_killed", "r1"): "failed"})
    fine, killed = (_with_first(snapshot(name), phase=Phase.PROCESSING) for name in ("fine", "killed"))
    assert fine.view is not None
    assert killed.view is not None
    same, other = with_run_ends([fine.view, killed.view])
    assert fine.with_view(same) is fine
    assert killed.with_view(other).health.code is HealthCode.FAILED
