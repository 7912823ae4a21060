"""Which topologies the overview shows, and in which order."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import LedgerReading
from airflow_tx.ledger.records import AlarmNote, BlockMark, Phase, TopologyRecord, TransactionRecord
from airflow_tx.ledger.views.status import TransactionView, view_final, view_open
from airflow_tx.ledger.views.view import HealthCode, TopologyView
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.operations.actions.run_ends import with_run_ends
from airflow_tx.plugin.api.routes import MOST_LINES
from airflow_tx.plugin.api.snapshots import FinalViews, TopologySnapshot
from airflow_tx.plugin.api.topologies import OverviewPart, shared_causes
from tests.finals import final_record
from tests.remedies import remedy_of


def snapshot(name: str, **topology: Any) -> TopologySnapshot:
    """A topology without open transactions."""
    record = TopologyRecord("life", f"dag_of_{name}", "opaque", 3, **topology)
    return TopologySnapshot(record, LedgerPlace(name, "zookeeper", Paths("/tx", name)), None, _view(name, record))


def unreadable(name: str) -> TopologySnapshot:
    return replace(snapshot(name), view=None, problem="its record is broken")


def failed(name: str, error: str = "it broke", remedy: str | None = None, task: str = "") -> TopologySnapshot:
    """A topology whose first transaction has failed."""
    stored = None if remedy is None else remedy_of(remedy)
    return _with_first(snapshot(name), phase=Phase.FAILED, error=error, remedy=stored, failed_task=task)


def blocked(name: str) -> TopologySnapshot:
    mark = BlockMark(1, 1, "it broke", "2013-01-01T00:00:00+00:00")
    return _with_first(snapshot(name, blocked=mark), phase=Phase.FAILED, error="it broke")


def late(name: str) -> TopologySnapshot:
    return replace(snapshot(name), alarms={"late": AlarmNote("", "2013-01-01T00:00:00+00:00")})


_NOW = datetime(2013, 1, 1, 12, 30, tzinfo=timezone.utc)


def committed(txid: int, ended: datetime) -> TransactionView:
    times: dict[str, Any] = dict.fromkeys(("began", "processed", "granted_at", "ended"), ended.isoformat())
    run: dict[str, Any] = {"run_id": f"r{txid}", "rows": 1, "op": "op"}
    return view_final(final_record(txid=txid, **times, **run), None)


def _view(name: str, record: TopologyRecord) -> TopologyView:
    return TopologyView(name, record, 1, 0, (), "/meta")


def _with_first(found: TopologySnapshot, **changes: Any) -> TopologySnapshot:
    first = TransactionRecord(
        txid=1, key="key", run_id="r1", request="try", attempt=1, epoch=1, op="op", base="", ended="", rows_digest="",
        tasks={}, created="", began="2013-01-01", **changes,
    )  # fmt: skip
    assert found.view is not None
    ledger = LedgerReading(topology=found.record, allocated=1, opened={1: first}, base="")
    shown = view_open(found.name, 1, ledger, {})
    return replace(found, view=replace(found.view, allocated=1, transactions=(shown,)))


def test_a_failed_topology_is_listed_first_no_matter_how_many_others_there_are() -> None:
    fine = [snapshot(f"a{number:03}") for number in range(3 * MOST_LINES)]
    selection = OverviewPart(limit=MOST_LINES).select([*fine, failed("z")])
    assert selection.total == len(fine) + 1
    assert [each.name for each in selection.some[:2]] == ["z", "a000"]
    assert len(selection.some) == MOST_LINES


def test_topologies_are_sorted_by_how_urgently_they_need_a_person() -> None:
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
def test_the_filter_text_is_searched_in_the_name_and_the_dag_and_the_sentence_of_a_topology(
    text: str, names: list[str]
) -> None:
    found = OverviewPart(text=text).select([snapshot("orders"), failed("flights")])
    assert [each.name for each in found.some] == names


def test_the_counts_cover_all_topologies_that_match_the_text_and_not_only_the_selected_status() -> None:
    some = [failed("f1"), failed("f2"), snapshot("f3"), blocked("other")]
    part = OverviewPart(states=frozenset({HealthCode.FAILED}), text="f", limit=1)
    found = part.select([each for each in some if each.name != "other"])
    assert (found.total, [each.name for each in found.some]) == (2, ["f1"])
    assert dict(found.counts) == {HealthCode.FAILED: 2, HealthCode.FINE: 1}


# --- causes -------------------------------------------------------------------------------------------------------


def causes(*errors: str, remedy: str | None = None) -> list[tuple[int, str]]:
    """How many topologies fail by each cause, if each fails by one of these errors, and that in words."""
    some = [failed(f"t{number}", error, remedy, f"count{number}") for number, error in enumerate(errors)]
    return [(len(each.of), each.sentence) for each in shared_causes(some)]


def test_topologies_with_the_same_error_are_grouped_although_their_names_and_numbers_differ() -> None:
    found = causes(*(f"ValueError: row {n} of '{n}.csv' in /data/{n} has no price" for n in range(12)))
    assert found == [(12, "ValueError: row … of … in … has no price")]


def test_a_name_that_occurs_in_all_grouped_errors_is_shown() -> None:
    found = causes(*(f"KeyError: 'price' in row {number}" for number in range(3)))
    assert found == [(3, "KeyError: 'price' in row …")]


@pytest.mark.parametrize(
    "others",
    ["TypeError: no price", "ValueError: no amount", "shop.ValueError: no price"],
)
def test_errors_of_another_class_or_with_other_words_form_another_group(others: str) -> None:
    found = causes(*["ValueError: no price"] * 3, *[others] * 3)
    assert [count for count, _ in found] == [3, 3]


def test_refusals_that_name_another_state_or_connection_form_another_group() -> None:
    texts = [f"State 'shop_{number % 2}' (db{number % 2}:5432) cannot be reached." for number in range(6)]
    assert causes(*texts, remedy="Start it.") == [
        (3, "State 'shop_0' (db0:5432) cannot be reached."),
        (3, "State 'shop_1' (db1:5432) cannot be reached."),
    ]


def test_refusals_that_name_their_own_topology_are_grouped() -> None:
    some = [
        failed(name, f"The fence of {name} is gone since transaction 7.", "Repair it.") for name in ("a", "b b", "c.")
    ]
    assert [each.sentence for each in shared_causes(some)] == ["The fence of … is gone since transaction 7."]


def test_errors_that_quote_the_name_of_their_topology_are_grouped() -> None:
    some = [failed(name, f"no rows in '{name}.csv'") for name in ("a", "b b", "c")]
    assert [each.sentence for each in shared_causes(some)] == ["no rows in …"]


def test_topologies_are_not_grouped_if_they_are_fewer_than_three_or_only_wait() -> None:
    assert causes("it broke", "it broke") == []
    assert shared_causes([snapshot(f"t{number}") for number in range(5)]) == []


def test_refusals_that_begin_with_the_name_of_their_topology_are_grouped() -> None:
    some = [failed(name, f"{name}: its fence is gone.", "Repair it.") for name in ("trips", "flights", "c.d")]
    assert [each.sentence for each in shared_causes(some)] == ["…: its fence is gone."]


def test_blocked_topologies_are_grouped_separately_from_failed_ones() -> None:
    some = [*(failed(f"f{number}") for number in range(3)), *(blocked(f"b{number}") for number in range(4))]
    assert {each.code: len(each.of) for each in shared_causes(some)} == {HealthCode.FAILED: 3, HealthCode.BLOCKED: 4}


def test_topologies_that_cannot_be_read_for_the_same_reason_are_grouped() -> None:
    (found,) = shared_causes([unreadable(name) for name in ("a", "b", "c")])
    assert (found.code, found.sentence) == (HealthCode.UNREADABLE, "its record is broken")


def test_a_group_of_topologies_is_one_line_at_the_position_of_its_first_topology() -> None:
    some = [unreadable("a"), failed("b", "no disk"), *(failed(f"c{number}") for number in range(9)), snapshot("d")]
    found = OverviewPart(grouped=True, limit=3).select(some)
    lines = [each.name if isinstance(each, TopologySnapshot) else len(each.of) for each in found.lines]
    assert lines == ["a", "b", 9]
    assert (found.total, found.total_lines, found.counts[HealthCode.FAILED]) == (12, 4, 10)


def test_a_group_keeps_its_key_while_its_topologies_change() -> None:
    some = [failed(f"t{number}", f"row {number} of '{number}.csv'") for number in range(5)]
    (cause,) = shared_causes(some)
    (later,) = shared_causes([*some[2:], failed("t9", "row 9 of '9.csv'")])
    assert cause.key == later.key
    found = OverviewPart(cause=cause.key, limit=2, offset=2).select([*some, failed("z")])
    assert ([each.name for each in found.some], found.total) == (["t2", "t3"], 5)
    assert OverviewPart(cause="unknown").select(some).some == []


def test_errors_that_a_viewer_may_not_read_are_not_shown_and_do_not_separate_groups() -> None:
    hidden = [failed(f"t{number}", f"secret {'ab'[number % 2]}").without_errors() for number in range(6)]
    assert [(len(each.of), each.sentence) for each in shared_causes(hidden)] == [(6, "the log of its task says why")]


class CountedFinals(FinalViews):
    """Counts how often it is asked when a transaction ended."""

    asked = 0

    def ended(self, txid: int) -> datetime | None:
        self.asked += 1
        return super().ended(txid)


def test_viewers_share_the_hourly_commit_counts_while_a_topology_does_not_change() -> None:
    finals = CountedFinals([committed(txid, _NOW - timedelta(hours=5 - txid)) for txid in range(1, 6)])
    shown = replace(snapshot("orders"), final=(1, 2, 3, 4, 5), finals=finals)
    first = shown.commits_per_hour(_NOW)
    asked = finals.asked
    assert shown.commits_per_hour(_NOW + timedelta(minutes=1)) == first
    assert finals.asked == asked
    assert shown.commits_per_hour(_NOW + timedelta(hours=1)) == [*first[1:], 0]


def test_a_cached_snapshot_is_used_again_if_no_run_of_its_topology_has_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "run_ends", lambda runs: {("dag_of_killed", "r1"): "failed"})
    fine, killed = (_with_first(snapshot(name), phase=Phase.PROCESSING) for name in ("fine", "killed"))
    assert fine.view is not None
    assert killed.view is not None
    same, other = with_run_ends([fine.view, killed.view])
    assert fine.with_view(same) is fine
    assert killed.with_view(other).health.code is HealthCode.FAILED
