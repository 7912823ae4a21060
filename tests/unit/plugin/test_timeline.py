"""Which transactions a timeline is about."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone

import pytest

from airflow_tx.plugin.api.timeline import TimelineWindow

NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)


def test_viewers_who_ask_within_ten_seconds_share_an_answer() -> None:
    moments = [NOON + timedelta(milliseconds=each) for each in range(1, 10_000, 7)]
    assert {TimelineWindow(each, each).rounded() for each in moments} == {
        TimelineWindow(NOON, NOON + timedelta(seconds=10))
    }


@pytest.mark.parametrize("zone", [timezone.utc, timezone(timedelta(hours=5.5)), timezone(-timedelta(hours=9))])
def test_a_rounded_window_has_all_of_the_one_that_was_asked_for(zone: timezone) -> None:
    since, until = NOON.astimezone(zone) + timedelta(seconds=3), NOON.astimezone(zone) + timedelta(seconds=47)
    found = TimelineWindow(since, until).rounded()
    assert (found.since, found.until) == (NOON, NOON + timedelta(seconds=50))
    assert TimelineWindow(NOON, NOON).rounded() == TimelineWindow(NOON, NOON)


@pytest.mark.parametrize("offset", [timezone.utc, timezone(timedelta(hours=14)), timezone(-timedelta(hours=12))])
@pytest.mark.parametrize("moment", [datetime.min, datetime.max])
def test_the_first_and_the_last_moment_of_the_calendar_can_be_asked_for(moment: datetime, offset: timezone) -> None:
    found = TimelineWindow(moment.replace(tzinfo=offset), moment.replace(tzinfo=offset)).rounded()
    assert found.since is not None
    assert found.until is not None
    assert found.since <= found.until
