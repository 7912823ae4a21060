"""Rows in memory, and Storm's example of an opaque replay, row for row."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import Any, cast

import pytest

from airflow_tx.base.errors import ConfigError, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, Json
from airflow_tx.sources.memory import MemorySource


def source(count: int, per_batch: int = 50, kind: str = "opaque", other: int | None = None) -> MemorySource:
    counts = {"0": count} if other is None else {"0": count, "1": other}
    rows = {name: [{"n": number} for number in range(1, many + 1)] for name, many in counts.items()}
    return MemorySource(rows, per_batch=per_batch, kind=kind)


def decide(source: MemorySource, txid: int, position: Any, attempt: int = 1) -> Batch:
    batch = source.decide(TransactionAttempt(txid, attempt), position)
    assert batch is not None
    return batch


def numbers(source: MemorySource, batch: Batch, attempt: int = 1) -> list[int]:
    rows = cast("Iterable[Any]", source.emit_batch(TransactionAttempt(1, attempt), batch.metadata))
    return [row["n"] for row in rows]


def span(first: int, last: int) -> list[int]:
    return list(range(first, last + 1))


def test_in_the_example_of_storm_an_opaque_replay_moves_later_batches_and_skips_no_row() -> None:
    whole, scarce = source(140), source(40)
    a = decide(whole, 1, None)
    b = decide(whole, 2, a.position)
    assert (numbers(whole, a), numbers(whole, b)) == (span(1, 50), span(51, 100))
    # A fails, and at its replay there are 40 rows.
    a = decide(scarce, 1, None, attempt=2)
    assert numbers(scarce, a, attempt=2) == span(1, 40)
    # B began at 50, where A no longer ends: it is decided again.
    b = decide(whole, 2, a.position, attempt=2)
    c = decide(whole, 3, b.position)
    assert (numbers(whole, b), numbers(whole, c)) == (span(41, 90), span(91, 140))
    assert whole.decide(TransactionAttempt(4, 1), c.position) is None


def test_in_the_example_of_storm_another_limit_moves_the_next_batch() -> None:
    a = decide(source(140, per_batch=50), 1, None)
    again = decide(source(140, per_batch=40), 1, None, attempt=2)
    assert (a.position, again.position) == ({"0": 50}, {"0": 40})
    b = decide(source(140, per_batch=50), 2, again.position, attempt=2)
    assert b.metadata == {"0": {"from": 40, "to": 90}}


def test_a_transactional_replay_of_the_storm_example_has_the_recorded_rows_or_fails() -> None:
    a = decide(source(140, kind="transactional"), 1, None)
    assert numbers(source(140, kind="transactional"), a, attempt=2) == span(1, 50)
    with pytest.raises(
        SourceError, match=r"rows 0 to 50 of partition 0 are gone: it has only 40 rows\. Restore the rows"
    ):
        numbers(source(40, kind="transactional"), a, attempt=2)


def test_every_partition_returns_its_own_next_rows() -> None:
    both = source(5, 3, other=2)
    first = decide(both, 1, None)
    assert first.metadata == {"0": {"from": 0, "to": 3}, "1": {"from": 0, "to": 2}}
    # Partition 1 has nothing now, so it takes no part, and the ledger keeps its place.
    second = decide(both, 2, first.position)
    assert (second.metadata, second.position) == ({"0": {"from": 3, "to": 5}}, {"0": 5})


def test_a_partition_that_shrank_counts_as_unreachable() -> None:
    position: Json = {"0": 2, "1": 5}
    with pytest.raises(
        SourceError, match=r"partition 1 cannot be reached: 5 of its rows were taken, but it has only 3"
    ):
        source(9, 3, "transactional", other=3).decide(TransactionAttempt(2, 1), position)
    assert decide(source(9, 3, "opaque", other=3), 2, position).metadata == {"0": {"from": 2, "to": 5}}


@pytest.mark.parametrize(
    ("partitions", "arguments", "problem"),
    [
        ({"0": []}, {"per_batch": 0}, "per_batch of MemorySource = 0"),
        ({"0": []}, {"kind": "exactly-once"}, "kind of MemorySource = 'exactly-once' cannot be used. Give \"trans"),
        ({0: []}, {}, "partitions of MemorySource = '{0: []}'"),
        ([], {}, "partitions of MemorySource"),
        ({"0": [1]}, {}, "a row of partition 0 of MemorySource = '1'"),
        ({"0": [{"at": date(2026, 1, 1)}]}, {}, "cannot be used. Give rows as mappings of plain JSON"),
    ],
)
def test_invalid_arguments_of_a_memory_source_are_refused(
    partitions: Any, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as refusal:
        MemorySource(partitions, **arguments)
    assert problem in str(refusal.value)


def test_the_position_of_another_source_is_refused() -> None:
    with pytest.raises(SourceError, match=r"position 'a' of partition 0 is not a number of rows\. The topology"):
        source(3).decide(TransactionAttempt(2, 1), {"0": "a"})
    with pytest.raises(SourceError, match=r"position '7' has no partitions\. The topology had another"):
        source(3).decide(TransactionAttempt(2, 1), 7)
