"""Digests of rows add up, whatever their order; no two equal rows cancel out."""

from __future__ import annotations

from random import Random

from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.ledger.row_digest import COUNT, RowsDigest, form_of_columns

HASHES = st.lists(st.integers(0, 2**64 - 1), max_size=20)


def total(hashes: list[int], form: str = "f") -> RowsDigest:
    return sum((RowsDigest(1, each, form) for each in hashes), RowsDigest(0))


@given(hashes=HASHES, seed=st.integers(0, 100), cut=st.integers(0, 20))
def test_the_digests_of_parts_in_any_order_add_up_to_the_digest_of_all_rows(
    hashes: list[int], seed: int, cut: int
) -> None:
    shuffled = Random(seed).sample(hashes, len(hashes))
    assert total(shuffled[:cut]) + total(shuffled[cut:]) == total(hashes)


@given(hashes=HASHES.filter(bool), extra=st.integers(1, 2**64 - 1))
def test_repeated_rows_and_replaced_rows_change_the_digest(hashes: list[int], extra: int) -> None:
    assert not total([*hashes, hashes[0], hashes[0]]).agrees(total(hashes))
    assert not total([(hashes[0] + extra) % 2**64, *hashes[1:]]).agrees(total(hashes))


@given(hashes=HASHES)
def test_a_digest_is_unchanged_after_it_is_stored_as_text_or_as_json(hashes: list[int]) -> None:
    found = total(hashes)
    assert RowsDigest.of(found.rows, found.text) == found
    assert RowsDigest.from_json(found.to_json()) == found


def test_digests_are_compared_only_in_the_same_form_and_row_counts_are_always_compared() -> None:
    spark, python = RowsDigest(3, 7, "xxh64-1"), RowsDigest(3, 9, "python")
    assert spark.agrees(python)
    assert not spark.agrees(RowsDigest(2, 7, "python"))
    assert RowsDigest(3).agrees(spark)
    assert spark + python == RowsDigest(6, 0, COUNT)
    assert RowsDigest.of(4, "") == RowsDigest(4)


def test_the_form_of_a_digest_does_not_depend_on_the_order_of_columns() -> None:
    assert form_of_columns(["b", "a"]) == form_of_columns(["a", "b"])
    assert form_of_columns(["a"]) != form_of_columns(["a", "b"])
