"""Where a source stands after a batch, in all and by partition."""

from __future__ import annotations

import pytest

from airflow_tx.ledger.reading import position_after, unmoved


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (None, {"A": 1}, {"A": 1}),
        ({"A": 1, "B": 5}, {"A": 2}, {"A": 2, "B": 5}),
        ({"A": 1}, None, {"A": 1}),
        (None, None, None),
        (None, {}, None),
    ],
    ids=["the first", "one takes no part", "none takes part", "no batch ever", "an empty one"],
)
def test_a_partition_without_rows_in_the_batch_keeps_its_position(
    before: object, after: object, expected: object
) -> None:
    assert position_after(before, after, partitioned=True) == expected


def test_without_partitions_the_position_after_a_batch_is_its_end() -> None:
    assert position_after(5, 9, partitioned=False) == 9


def test_readmitted_rows_do_not_change_any_position() -> None:
    assert unmoved(7, [0, 3], partitioned=False) == 7
    assert unmoved({"A": 4, "B": 5}, {"A": [0, 3]}, partitioned=True) == {"A": 4}
    assert unmoved({"A": 4}, None, partitioned=True) == {}
    assert unmoved(None, {"A": [0, 3]}, partitioned=True) == {"A": None}
