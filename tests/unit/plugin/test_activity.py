"""When something happened in a topology: the stretches of time, and the counts over all time."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.records import TopologyRecord
from airflow_tx.ledger.views.status import view_final
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api.snapshots import FinalViews, TopologySnapshot
from airflow_tx.plugin.api.timeline import MOST_LOOKED, MOST_STRETCHES, Activity, activity, stretches
from tests.finals import final_record

NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)


def second(count: float) -> datetime:
    return NOON + timedelta(seconds=count)


def ledger(*times: tuple[float, float], waits: float = 0) -> TopologySnapshot:
    """A topology whose transactions began and ended at these seconds after noon.

    :param waits: for so long each of them waits for its turn; then it is committed in a second.
    """
    finals = FinalViews(most=len(times) + 1)
    for txid, (begun, ended) in enumerate(times, 1):
        at = second(begun).isoformat()
        granted = ended - min(1, ended - begun)
        history = final_record(
            txid=txid, run_id=f"r{txid}", created=at, began=at,
            processed=second(granted - waits).isoformat(), granted_at=second(granted).isoformat(),
            ended=second(ended).isoformat(), rows=1, op="op",
        )  # fmt: skip
        finals.note(view_final(history, None))
    place = LedgerPlace("flights", "zookeeper_default", Paths("/tx", "flights"))
    record = TopologyRecord("life", "dag", "opaque", 3)
    return TopologySnapshot(record, place, None, None, final=tuple(range(1, len(times) + 1)), finals=finals)


def found(*times: tuple[float, float], waits: float = 0) -> list[tuple[float, float]]:
    snapshot = ledger(*times, waits=waits)
    return [
        ((each.start - NOON).total_seconds(), ((each.end or NOON) - NOON).total_seconds())
        for each in stretches(snapshot, snapshot.final)
    ]


def test_transactions_that_overlap_are_drawn_as_one_stretch_of_activity() -> None:
    assert found((0, 5), (3, 9), (9, 10), (20, 30), (22, 31)) == [(0, 10), (20, 31)]
    assert found() == []


def test_a_period_in_which_transactions_only_wait_is_not_part_of_a_stretch_of_activity() -> None:
    assert found((0, 1000), waits=900) == [(0, 99), (999, 1000)]


def test_if_there_are_too_many_stretches_of_activity_those_with_the_smallest_gaps_are_joined() -> None:
    many = [(10.0 * each, 10.0 * each + 2 - each / 1000) for each in range(300)]
    joined = found(*many)
    assert len(joined) == MOST_STRETCHES
    assert (joined[0][0], joined[-1][1]) == (many[0][0], many[-1][1])
    # The gaps grow, so the earliest ones were joined.
    assert joined[1:] == many[-MOST_STRETCHES + 1 :]


def test_the_times_of_very_old_transactions_are_drawn_as_one_stretch_of_activity() -> None:
    times = [(100.0 * each, 100.0 * each + 1) for each in range(MOST_LOOKED + 50)]
    assert found(*times)[0] == (0, times[50][1])


def counted(*times: tuple[float, float], now: float) -> Activity:
    return activity(ledger(*times), second(now))


def test_the_counts_cover_the_time_from_the_first_transaction_until_now() -> None:
    one = counted((0, 5), (3, 9), (58, 61), now=90)
    assert (one.since, one.until, one.step) == (NOON, second(91), 1)
    assert {index: count for index, count in enumerate(one.counts) if count} == {5: 1, 9: 1, 61: 1}


@pytest.mark.parametrize("days", [0.001, 1, 30, 400, 4000])
def test_a_long_history_has_a_limited_number_of_counts_that_include_every_transaction(days: float) -> None:
    length = days * 86_400
    one = counted(*((length * each / 300, length * each / 300 + 1) for each in range(300)), now=length)
    assert sum(one.counts) == 300
    assert len(one.counts) <= 122
    assert one.since is not None
    assert one.since <= NOON
    assert one.since + len(one.counts) * timedelta(seconds=one.step) == one.until


def test_a_topology_without_a_transaction_has_no_counts() -> None:
    none = counted(now=0)
    assert (none.since, none.counts) == (None, [])


def test_a_transaction_whose_clock_was_ahead_is_counted() -> None:
    assert sum(counted((50, 60), now=0).counts) == 1
