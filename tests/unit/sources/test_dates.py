"""What a date means that a person types: a moment, or a whole day in the time zone of a schedule."""

from __future__ import annotations

from datetime import datetime, timedelta, timezone
from itertools import pairwise
from typing import Any

import pytest

from airflow_tx.sources.dates import span_of
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.sources.run.partition import RunPartitionSource
from airflow_tx.sources.sql.source import SqlSource
from airflow_tx.sources.sql.table import Rows, TablePosition

DAYS = DataIntervalSource()
BY_TIME = SqlSource("db", table="orders", order_by=["updated_at", "id"])
BERLIN = timezone(timedelta(hours=2))
NEW_YORK = timezone(timedelta(hours=-4))


def spelled(moment: datetime) -> str:
    return moment.astimezone(timezone.utc).isoformat()


def until(day: int, zone: timezone) -> Any:
    """The position after the days of May from the first one to this one."""
    return {
        "intervals": [[spelled(datetime(2026, 5, 1, tzinfo=zone)), spelled(datetime(2026, 5, day + 1, tzinfo=zone))]]
    }


def day_of(day: int, zone: timezone) -> Any:
    """The metadata of the batch of this day of May."""
    return {
        "from": spelled(datetime(2026, 5, day, tzinfo=zone)),
        "to": spelled(datetime(2026, 5, day + 1, tzinfo=zone)),
    }


@pytest.mark.parametrize(
    ("what", "zone", "start", "end"),
    [
        ("2026-05-04", "", "2026-05-04T00:00:00+00:00", "2026-05-05T00:00:00+00:00"),
        ("2026-05-04", "Europe/Berlin", "2026-05-03T22:00:00+00:00", "2026-05-04T22:00:00+00:00"),
        ("2026-05-04", "-04:00", "2026-05-04T04:00:00+00:00", "2026-05-05T04:00:00+00:00"),
        ("2026-03-29", "Europe/Berlin", "2026-03-28T23:00:00+00:00", "2026-03-29T22:00:00+00:00"),
        ("2026-04-24", "Africa/Cairo", "2026-04-23T22:00:00+00:00", "2026-04-24T21:00:00+00:00"),
        ("2025-11-02", "America/Havana", "2025-11-02T05:00:00+00:00", "2025-11-03T05:00:00+00:00"),
        ("2026-05-04T06:00:00", "Europe/Berlin", "2026-05-04T04:00:00+00:00", "2026-05-04T04:00:00+00:00"),
        ("2026-05-04T06:00:00Z", "Europe/Berlin", "2026-05-04T06:00:00+00:00", "2026-05-04T06:00:00+00:00"),
        ("2026-05-04", None, "2026-05-04T00:00:00", "2026-05-05T00:00:00"),
    ],
)
def test_a_date_without_a_time_means_the_whole_day_in_its_time_zone(
    what: str, zone: str | None, start: str, end: str
) -> None:
    assert tuple(each.isoformat() for each in span_of(what, zone)) == (start, end)


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_a_day_is_complete_when_its_last_interval_in_the_time_zone_of_the_schedule_is_taken(zone: str) -> None:
    offset = BERLIN if zone == "Europe/Berlin" else NEW_YORK
    found = [DAYS.in_zone(zone).reaches(until(day, offset), "2026-05-04") for day in (2, 3, 4, 5)]
    assert found == [False, False, True, True]


@pytest.mark.parametrize("zone", ["Europe/Berlin", "America/New_York"])
def test_a_day_in_the_time_zone_of_the_schedule_is_contained_only_in_its_own_interval(zone: str) -> None:
    offset = BERLIN if zone == "Europe/Berlin" else NEW_YORK
    found = [DAYS.in_zone(zone).contains(day_of(day, offset), "2026-05-04") for day in (3, 4, 5)]
    assert found == [False, True, False]


def test_a_day_without_a_schedule_is_a_day_in_utc() -> None:
    assert [DAYS.reaches(until(day, timezone.utc), "2026-05-04") for day in (3, 4)] == [False, True]


def test_a_day_is_complete_when_a_row_of_a_later_day_is_taken() -> None:
    source = BY_TIME.in_zone("Europe/Berlin")
    times = [datetime(2026, 5, 4, 21, 59, tzinfo=timezone.utc), datetime(2026, 5, 4, 22, tzinfo=timezone.utc)]
    assert [source.reaches(TablePosition((at, 7)).to_json(), "2026-05-04") for at in times] == [False, True]


def test_a_search_for_a_day_finds_every_batch_that_may_contain_rows_of_this_day() -> None:
    source = BY_TIME.in_zone("Europe/Berlin")
    times = [datetime(2026, 5, 3, 22, tzinfo=timezone.utc) + timedelta(hours=hours) for hours in (-1, 0, 24, 30)]
    batches = [Rows((after, 1), ((upto, 9),), (5,)).to_json() for after, upto in pairwise(times)]
    assert [source.contains(each, "2026-05-04") for each in batches] == [True, True, False]


def test_a_time_without_a_time_zone_belongs_to_the_day_that_its_own_clock_shows() -> None:
    source = BY_TIME.in_zone("Europe/Berlin")
    times = [datetime(2026, 5, 4, 23), datetime(2026, 5, 5)]
    assert [source.reaches(TablePosition((at, 7)).to_json(), "2026-05-04") for at in times] == [False, True]


def test_a_partition_is_found_by_its_day_in_the_time_zone_of_the_schedule() -> None:
    source = RunPartitionSource("json.loads").in_zone("Europe/Berlin")
    partitions = [{"partition": spelled(datetime(2026, 5, day, tzinfo=BERLIN))} for day in (3, 4, 5)]
    assert [source.contains(each, "2026-05-04") for each in partitions] == [False, True, False]
