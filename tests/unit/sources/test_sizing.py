"""How many rows a batch may have: fixed limits, shares of partitions, and what fits into a time."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import ConfigError
from airflow_tx.ledger.json_text import Size
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.ledger.steps.end import pace_after
from airflow_tx.sources.api import FIRST_ROWS, GROWTH, LEAST_ROWS, ROWS_SHARE, BatchSize, Limit
from tests.finals import final_record

AVAILABLE = st.dictionaries(st.text(min_size=1, max_size=3), st.integers(0, 10**9), max_size=12)
MEASURED = st.lists(st.tuples(st.integers(1, 10**9), st.floats(0, 10**5)), max_size=8)
TARGETS = st.floats(0.1, 10**5)


# --- shares ------------------------------------------------------------------------------------------------------


@given(st.one_of(st.none(), st.integers(1, 10**9)), AVAILABLE)
def test_shares_use_the_complete_limit_and_give_no_partition_more_rows_than_it_has(
    rows: int | None, available: dict[str, int]
) -> None:
    shares = Limit(rows).shares(available)
    assert shares.keys() == available.keys()
    assert all(0 <= shares[name] <= available[name] for name in available)
    there = sum(available.values())
    assert sum(shares.values()) == (there if rows is None else min(rows, there))


@given(st.integers(1, 10**6), AVAILABLE)
def test_a_partition_gets_a_smaller_share_than_another_one_only_if_it_has_no_more_rows(
    rows: int, available: dict[str, int]
) -> None:
    shares = Limit(rows).shares(available)
    largest = max(shares.values(), default=0)
    cut = [name for name in shares if shares[name] < available[name]]
    # Those that are cut have the largest share, up to the one row that cannot be divided.
    assert all(largest - shares[name] <= 1 for name in cut)


def test_the_unused_share_of_a_small_partition_is_given_to_the_others() -> None:
    assert Limit(100).shares({"a": 10, "b": 1000, "c": 1000}) == {"a": 10, "b": 45, "c": 45}
    assert Limit(2).shares({"a": 5, "b": 5, "c": 5}) == {"a": 1, "b": 1, "c": 0}


# --- fixed limits ------------------------------------------------------------------------------------------------


def test_a_limit_in_bytes_is_converted_to_a_number_of_rows_by_a_sample() -> None:
    limit = BatchSize(max_bytes=1000).limit()
    assert limit.rows is None
    assert limit.of_rows_of([90, 110]) == Limit(10, 1000, "max_bytes_per_batch=1000, 100 bytes a row")
    assert limit.of_rows_of([]) is limit


def test_a_limit_in_bytes_allows_at_least_one_row() -> None:
    assert Limit(bytes=10).of_rows_of([10**6]).rows == 1


def test_the_smaller_of_the_limits_in_rows_and_bytes_applies() -> None:
    limit = BatchSize(max_rows=5, max_bytes=1000).limit()
    assert limit.of_rows_of([100]) is limit
    assert limit.of_rows_of([500]).rows == 2


def test_a_batch_contains_the_reason_for_its_number_of_rows() -> None:
    limit = BatchSize(max_rows=5).limit()
    assert limit.reason_for(5, 9) == "5 of 9 rows: max_rows_per_batch=5"
    assert limit.reason_for(5, None) == "5 of many rows: max_rows_per_batch=5"
    assert limit.reason_for(4, 4) == "all 4 rows that there were"
    assert limit.reason_for(1, 1) == "the only row that there was"


@pytest.mark.parametrize("name", ["max_rows", "max_bytes", "target_seconds"])
@pytest.mark.parametrize("value", [0, -1, "7", True, float("nan"), 1.5])
def test_a_limit_that_is_not_a_positive_number_is_refused(name: str, value: Any) -> None:
    given_: dict[str, Any] = {"max_rows": None, "max_bytes": None, "target_seconds": None, name: value}
    if name == "target_seconds" and value == 1.5:
        assert BatchSize.checked("KafkaSource", **given_).target_seconds == 1.5
        return
    with pytest.raises(ConfigError, match="of KafkaSource = "):
        BatchSize.checked("KafkaSource", **given_)


def test_only_limits_that_are_set_become_arguments_of_a_source() -> None:
    assert BatchSize(max_rows=3, target_seconds=60).arguments() == {"max_rows_per_batch": 3, "target_seconds": 60}


# --- adaptive ----------------------------------------------------------------------------------------------------


@given(TARGETS, MEASURED, st.one_of(st.none(), st.integers(1, 10**9)))
def test_an_adaptive_limit_stays_within_its_bounds(
    target: float, measured: list[tuple[int, float]], most: int | None
) -> None:
    limit = BatchSize(max_rows=most, target_seconds=target).limit(measured)
    assert limit.rows is not None
    assert limit.rows >= min(LEAST_ROWS, most or LEAST_ROWS)
    assert most is None or limit.rows <= most
    if measured:
        assert limit.rows <= max(GROWTH * max(rows for rows, _ in measured), LEAST_ROWS)
    assert limit.reason


def test_the_limit_without_measurements_is_a_fixed_first_value() -> None:
    limit = BatchSize(target_seconds=60).limit()
    assert (limit.rows, limit.reason) == (FIRST_ROWS, "nothing is measured yet, target_seconds=60")
    assert BatchSize(max_rows=10, target_seconds=60).limit().reason == "max_rows_per_batch=10"


def test_a_batch_has_at_most_ten_times_as_many_rows_as_the_largest_batch_before_it() -> None:
    limit = BatchSize(target_seconds=600).limit([(1000, 5.0), (2000, 5.001)])
    assert limit.rows == GROWTH * 2000
    assert limit.reason.endswith("at most 10 times the largest of them")


def test_the_batch_after_one_that_took_too_long_is_small_enough_for_the_target() -> None:
    limit = BatchSize(target_seconds=60).limit([(100_000, 600.0)])
    assert limit.rows == 10_000


def test_the_limit_separates_the_overhead_from_the_time_per_row() -> None:
    measured = [(rows, 30 + rows * 0.0001) for rows in (1_000, 50_000, 200_000)]
    limit = BatchSize(target_seconds=60).limit(measured)
    assert limit.rows == pytest.approx(300_000, rel=0.01)
    assert "took 30.0 s and 100.0 s for a million rows" in limit.reason


def test_rows_get_a_share_of_the_target_even_if_the_overhead_alone_exceeds_the_target() -> None:
    measured = [(rows, 90 + rows * 0.0001) for rows in (1_000, 50_000, 200_000)]
    limit = BatchSize(target_seconds=60).limit(measured)
    assert limit.rows == pytest.approx(ROWS_SHARE * 60 / 0.0001, rel=0.01)


class Pipeline:
    """A source with an adaptive limit, whose transactions take `overhead` + rows × `per_row` seconds, one by one.

    :param noise: times what a transaction takes, by its number.
    """

    def __init__(self, target: float, overhead: float, per_row: float, noise: Callable[[int], float] = lambda n: 1.0):
        self.size = BatchSize(target_seconds=target)
        self.overhead, self.per_row, self.noise = overhead, per_row, noise
        self.pace: list[list[float]] = []
        self.batches: list[tuple[int, float]] = []

    def batch(self, backlog: int) -> int:
        """One transaction; how many rows are left."""
        limit = self.size.limit(self.pace)
        assert limit.rows is not None
        rows = min(backlog, limit.rows)
        seconds = (self.overhead + rows * self.per_row) * self.noise(len(self.batches))
        self.batches.append((rows, seconds))
        self.pace = pace_after(self.pace, history(rows, seconds))
        return backlog - rows

    def backlog(self, rows: int) -> list[tuple[int, float]]:
        """Work a backlog off; its batches."""
        first = len(self.batches)
        while rows:
            rows = self.batch(rows)
            assert len(self.batches) < first + 1000, "it makes no headway"
        return self.batches[first:]

    def trickle(self, count: int) -> list[tuple[int, float]]:
        """So many transactions of a few hundred rows."""
        first = len(self.batches)
        for number in range(count):
            assert self.batch(100 + 37 * number % 400) == 0
        return self.batches[first:]


def history(rows: int, seconds: float) -> TransactionRecord:
    """What is left of a transaction that committed `rows` rows."""
    began = datetime(2026, 1, 1, tzinfo=timezone.utc)
    processed = (began + timedelta(seconds=seconds)).isoformat()
    size: Size = {"rows": rows, "why": ""}
    return final_record(
        began=began.isoformat(),
        processed=processed,
        size=size,
    )


SPEEDS = pytest.mark.parametrize(
    ("overhead", "per_row"),
    [(30.0, 2e-5), (5.0, 1e-6), (0.5, 1e-4), (0.0, 5e-5)],
    ids=["submit", "fast", "slow rows", "no overhead"],
)


@SPEEDS
def test_a_backlog_of_ten_million_rows_is_processed_in_a_few_large_batches_within_the_target(
    overhead: float, per_row: float
) -> None:
    pipeline = Pipeline(120, overhead, per_row)
    batches = pipeline.backlog(10_000_000)
    ideal = 10_000_000 * per_row / (120 - overhead)
    assert len(batches) <= ideal + 4
    assert max(seconds for _, seconds in batches) <= 120 * 1.01


@SPEEDS
def test_a_slow_stream_is_read_in_small_batches_and_a_later_backlog_in_large_batches(
    overhead: float, per_row: float
) -> None:
    pipeline = Pipeline(120, overhead, per_row)
    pipeline.backlog(10_000_000)
    assert all(seconds <= overhead + 500 * per_row for _, seconds in pipeline.trickle(50))
    again = pipeline.backlog(10_000_000)
    assert len(again) <= 10_000_000 * per_row / (120 - overhead) + 2
    assert max(seconds for _, seconds in again) <= 120 * 1.05
    pipeline.trickle(5)


def test_a_backlog_after_a_slow_stream_grows_tenfold_with_each_batch() -> None:
    pipeline = Pipeline(120, 30, 2e-5)
    pipeline.trickle(20)
    batches = pipeline.backlog(10_000_000)
    assert len(batches) <= 3 + 10_000_000 * 2e-5 / 90 + 2
    assert max(seconds for _, seconds in batches) <= 120 * 1.05


@given(st.lists(st.floats(0.8, 1.25), min_size=50, max_size=50))
def test_variable_processing_times_do_not_disturb_an_adaptive_limit(noise: list[float]) -> None:
    pipeline = Pipeline(120, 30, 2e-5, lambda number: noise[number % len(noise)])
    pipeline.trickle(10)
    batches = pipeline.backlog(20_000_000)
    assert len(batches) <= 25
    assert max(seconds for _, seconds in batches) <= 120 * 3


def test_slow_processing_makes_batches_smaller_until_the_slow_measurements_are_forgotten() -> None:
    pipeline = Pipeline(120, 5, 1e-5)
    pipeline.backlog(30_000_000)
    pipeline.per_row = 1e-3
    slow = pipeline.backlog(20_000_000)
    assert all(seconds < 3 * 120 for _, seconds in slow[1:])
    pipeline.per_row = 1e-5
    fast = pipeline.backlog(300_000_000)
    assert [seconds for _, seconds in fast[20:-1]] == pytest.approx([120] * len(fast[20:-1]), rel=0.1)
    assert fast[20:-1]
    assert max(seconds for _, seconds in fast) < 3 * 120


def test_older_measurements_that_contradict_newer_ones_are_ignored() -> None:
    line = [(1_000, 31.0), (100_000, 130.0)]
    limits = [BatchSize(target_seconds=60).limit(measured) for measured in (line, [(1_000_000, 5.0), *line])]
    assert [limit.rows for limit in limits] == [30_000, 30_000]
    assert "the last 2 took 30.0 s" in limits[1].reason
