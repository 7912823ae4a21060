"""Which open transactions start elsewhere than their predecessor ends."""

from __future__ import annotations

import pytest

from airflow_tx.ledger.reading import stale_successors
from airflow_tx.ledger.records import Phase, TransactionRecord


def record(base: str, ended: str) -> TransactionRecord:
    return TransactionRecord(
        txid=1,
        key="k",
        run_id="r",
        request="",
        attempt=1,
        epoch=1,
        op="",
        phase=Phase.PROCESSING,
        base=base,
        ended=ended,
        rows_digest="",
        tasks={},
        created="",
        began="",
    )


@pytest.mark.parametrize(
    ("links", "expected"),
    [
        ([], []),
        ([("0", "1"), ("1", "2")], []),
        ([("x", "1"), ("1", "2")], [4]),
        ([("0", "1"), ("x", "2"), ("2", "3")], [5]),
        ([("0", "1"), ("x", "2"), ("y", "3")], [5, 6]),
        ([("0", "0"), ("0", "0")], []),
    ],
    ids=["nothing is open", "whole", "the first", "one behind", "two", "without rows"],
)
def test_a_transaction_is_stale_if_its_base_is_not_the_end_of_its_predecessor(
    links: list[tuple[str, str]], expected: list[int]
) -> None:
    opened = {4 + place: record(*link) for place, link in enumerate(links)}
    assert stale_successors(opened, current=4, position="0") == expected


def test_a_final_transaction_is_never_stale() -> None:
    assert stale_successors({3: record("x", "y"), 4: record("0", "1")}, current=4, position="0") == []
