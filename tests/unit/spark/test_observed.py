"""What the number of counted rows proves, in all executions of small batches: stages repeated, partitions cut off."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product

import pytest

from airflow_tx.ledger import COUNT, RowsDigest, RowsRead
from airflow_tx.spark.observed import _Place

NAME = "airflow_tx_read_1"
BATCHES = [(1,), (2,), (1, 1), (2, 1), (1, 2), (2, 2), (1, 1, 1)]
# How often each row of a partition was read, in all runs of its tasks that have ended.
Times = Sequence[int]


def whole(size: int) -> list[Times]:
    """A partition that is read to its end, once or several times."""
    return [(times,) * size for times in (1, 2, 3)]


def cut(size: int) -> list[Times]:
    """A partition that two runs, or fewer, read up to any row."""
    return [
        tuple((row < first) + (row < second) for row in range(size))
        for first, second in product(range(size + 1), repeat=2)
    ]


def executions(batch: Sequence[int], *, limited: bool) -> Iterator[Times]:
    for parts in product(*[cut(size) if limited else whole(size) for size in batch]):
        yield [times for part in parts for times in part]


def judged(times: Times, plan: str, *, hidden: bool = True) -> RowsRead | str:
    return _Place(NAME, (), COUNT, len(times), hidden).judge({"rows": sum(times)}, plan)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
@pytest.mark.parametrize("plan", ["", "limit {", "sql { query: limit\\n5 }"])
def test_an_equal_row_count_proves_a_complete_read_and_a_lower_count_proves_unread_rows(
    batch: Sequence[int], plan: str
) -> None:
    for times in executions(batch, limited=bool(plan)):
        found = judged(times, plan)
        if isinstance(found, RowsRead) and found.found.rows >= len(times):
            assert set(times) <= {1}, (times, found)
        if isinstance(found, RowsRead) and found.more:
            assert 0 in times, (times, found)


@pytest.mark.parametrize("batch", BATCHES, ids=str)
def test_a_read_is_proven_if_its_spark_plan_cannot_repeat_or_omit_rows(batch: Sequence[int]) -> None:
    found = judged([1] * sum(batch), "project { }")
    assert isinstance(found, RowsRead)
    assert (found.found.rows, found.at_least, found.stopped) == (sum(batch), False, False)


def test_an_equal_count_with_a_limit_in_the_plan_is_proof_only_if_spark_has_repeated_no_task() -> None:
    assert isinstance(judged([1, 1], "limit {", hidden=False), RowsRead)
    assert isinstance(judged([1, 1], "limit {"), str)


def test_a_higher_count_is_a_difference_only_if_spark_has_repeated_no_task() -> None:
    assert judged([2, 1], "", hidden=False) == RowsRead(RowsDigest(3))
    assert isinstance(judged([2, 1], ""), str)


def plan(*above: str, limit: int) -> str:
    """A client's plan with these above the place, from its root."""
    lines = [f"{'  ' * depth}{word} {{" for depth, word in enumerate([*above, "collect_metrics"])]
    return "\n".join([*lines, f'{"  " * len(lines)}name: "{NAME}"', f"  limit: {limit}\n"])


@pytest.mark.parametrize(
    ("given", "proven"),
    [
        (plan("limit", "sort", "aggregate", "project", limit=3), True),
        (plan("limit", "aggregate", limit=1), False),  # Spark may put it below
        (plan("aggregate", "limit", limit=3), False),
        (plan("limit", "aggregate", "limit", limit=3), False),
        (plan("limit", "project", limit=3), False),
        (plan("limit", "aggregate", "with_relations", limit=3), False),
        ("limit {\n  aggregate {\n  }\n" + plan("project", limit=3), False),
    ],
)
def test_a_limit_after_an_aggregation_does_not_hide_unread_rows(given: str, proven: bool) -> None:
    assert isinstance(judged([1, 1], given), RowsRead) == proven


def test_a_batch_without_rows_is_proven_although_the_plan_has_a_limit() -> None:
    found = judged([], "limit {")
    assert isinstance(found, RowsRead)
    assert not found.stopped


def test_a_lower_count_means_that_the_batch_has_more_rows() -> None:
    assert judged([1, 0], "project {") == RowsRead(RowsDigest(1), stopped=True, more=True)


def test_a_lower_count_is_only_a_lower_bound_if_the_plan_has_a_join() -> None:
    assert judged([1, 0], "join {") == RowsRead(RowsDigest(1), at_least=True)
    assert judged([1, 0], "join { limit {") == RowsRead(RowsDigest(1), at_least=True, stopped=True, more=True)
    assert judged([0, 0], "join { limit {") == RowsRead(RowsDigest(0), at_least=True)
