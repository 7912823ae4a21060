"""What a person calls a batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_tx.ledger.batch_words import LONGEST, batch_in_words, batch_texts
from tests.examples import examples

_NAMES = st.sampled_from(["files", "name", "from", "to", "quantity", "after", "upto", "partition", "at", "x"])


@pytest.mark.parametrize(
    ("metadata", "words"),
    [
        ({"folder": "/data", "files": [{"name": "a.csv", "size": 7}]}, "a.csv"),
        ({"folder": "/data", "files": [{"name": f"{name}.csv"} for name in "abc"]}, "a.csv and 2 more"),
        ({"from": 5, "to": 9}, "5 to 8"),
        ({"from": 5, "to": 6}, "5"),
        ({"from": 5, "quantity": 3, "last": "x"}, "5 to 7"),
        ({"from": "2013-01-01T00:00:00+00:00", "to": "2013-01-02T00:00:00+00:00"}, "2013-01-01 to 2013-01-02"),
        ({"from": "2013-01-01T06:00:00+00:00", "to": "2013-01-01T07:00:00+00:00"},
         "2013-01-01T06:00:00+00:00 to 2013-01-01T07:00:00+00:00"),
        ({"partition": "2013-01-01T00:00:00+00:00"}, "partition 2013-01-01"),
        ({"after": None, "to": "17-0", "quantity": 3}, "up to 17-0"),
        ({"after": None, "upto": [[40, 20], [95, 55]]}, "up to 95"),
        ({"after": [{"at": "2013-01-01T00:00:00+00:00"}, 7], "upto": [[{"at": "2013-01-05"}, 9, 100]]},
         "after (2013-01-01, 7), up to (2013-01-05, 9)"),
        ({"first": 3, "last": 5, "counts": {"3": 40}, "birth": "b"}, "3 to 5"),
        ({"first": 3, "last": 3, "birth": "b"}, "3"),
        ({"orders-0": {"from": 0, "to": 4}}, "orders-0: 0 to 3"),
        ({f"orders-{part}": {"from": 0, "to": 4} for part in range(9)},
         "orders-0: 0 to 3, orders-1: 0 to 3 and 7 more"),
    ],
)  # fmt: skip
def test_a_batch_is_named_in_words_that_a_person_understands(metadata: Any, words: str) -> None:
    assert batch_in_words(metadata) == words


@pytest.mark.parametrize(
    "metadata",
    [None, 7, "text", [], {}, {"files": []}, {"files": "abc"}, {"files": [7]}, {"upto": []}, {"upto": [7]}, {"from": 5},
     {"from": True, "to": "x"}, {"tx_digest": "d", "tx_length": 9}, {"staged": "file:///x", "number": 7}],
)  # fmt: skip
def test_metadata_with_an_unknown_structure_has_no_name(metadata: Any) -> None:
    assert batch_in_words(metadata) == ""


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
)


@settings(max_examples=examples(200, 5000))
@given(_JSON)
def test_metadata_of_a_custom_source_has_a_short_name_or_no_name(metadata: Any) -> None:
    assert len(batch_in_words(metadata)) <= LONGEST


def test_the_name_of_a_batch_is_short() -> None:
    assert len(batch_in_words({"files": [{"name": "x" * 4000}]})) == LONGEST


# --- what a search finds it by


def found(metadata: Any, wanted: str) -> list[str]:
    """The texts of a batch that have the wanted one."""
    wanted = wanted.casefold()
    return [each for each, _ in batch_texts(metadata, wanted) if wanted in each.casefold()]


_FILES = {"folder": "s3://bucket/day=0/", "files": [{"name": "a.csv", "size": 7}, {"name": "b:c.csv"}]}


@pytest.mark.parametrize(
    ("metadata", "what", "texts"),
    [
        ({"orders-0": {"topic_id": "x", "from": 5, "to": 9}}, "Orders-0:8", ["orders-0:8 (5 to 8)"]),
        ({"orders-0": {"from": 5, "to": 6}}, "orders-0:5", ["orders-0:5 (5)"]),
        ({"redis:list": {"from": 5, "quantity": 3}, "redis": 1}, "redis:list:7", ["redis:list:7 (5 to 7)"]),
        ({"a": {"from": -5, "to": 0}}, "a:-3", ["a:-3 (-5 to -1)"]),
        ({"a": {"from": 0, "to": 10**80}}, f"a:{10**79}", [f"a:{10**79} (0 to {10**80 - 1})"]),
        ({"s": {"after": "17-0", "to": "19-5"}}, "s:18-700", ["s:18-700 (up to 19-5)"]),
        ({"s": {"after": None, "to": "19-5"}}, "s:19-5", ["s:19-5 (up to 19-5)"]),
        ({"db.t": {"after": [40], "upto": [[95, 20], [99, 4]]}}, "db.t:99", ["db.t:99 (after 40, up to 99)"]),
        ({"a": 7, "a:b": "X"}, "a:7", ["a:7"]),
        ({"a": 7, "a:b": "X"}, "a:b:x", ["a:b:X"]),
        ({"day=0": _FILES}, "day=0/a.csv", ["s3://bucket/day=0/a.csv"]),
        ({"day=0": _FILES}, "day=0:b:c", ["day=0:b:c.csv"]),
        (_FILES, "bucket/day=0/b", ["s3://bucket/day=0/b:c.csv"]),
    ],
)  # fmt: skip
def test_a_search_finds_a_value_in_the_metadata_of_a_batch(metadata: Any, what: str, texts: list[str]) -> None:
    assert found(metadata, what) == texts


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({"a": {"from": 5, "to": 9}}, "a:9"),
        ({"a": {"from": 5, "to": 9}}, "a:4"),
        ({"a": {"from": 5, "to": 9}}, "6"),
        ({"a": {"from": 5, "to": 9}}, "A"),
        ({"a": {"from": 5, "to": 9}}, "a:"),
        ({"a": {"from": 5, "to": 9}}, "a:6-0"),
        ({"a": {"from": 5, "to": 9}}, "a:+6"),
        ({"a": {"from": 5, "to": 9}}, "a:6_0"),
        ({"a": {"from": 0, "to": 10**80}}, f"a:{'1' * 5000}"),
        ({"a": {"from": 9, "to": 5}}, "a:7"),
        ({"a": {"from": 5, "to": 5}}, "a:5"),
        ({"from": 5, "to": 9}, "from:5"),
        ({"number": 7}, "7"),
        ({"tx_digest": "d", "tx_length": 9}, "tx_length:9"),
        ({"s": {"after": "17-0", "to": "19-5"}}, "s:17-0"),
        ({"s": {"after": "17-0", "to": "19-5"}}, "s:18"),
        ({"s": {"after": "x", "to": "19-5"}}, "s:18-0"),
        ({"s": {"to": "19-5"}}, "s:18-0"),
        ({"t": {"after": [40], "upto": [[95, 20]]}}, "t:40"),
        ({"t": {"after": [40, 1], "upto": [[95, 7, 20]]}}, "t:41"),
        ({"t": {"after": None, "upto": [["95", 20]]}}, "t:41"),
        ({"t": {"after": None, "upto": []}}, "t:41"),
        ({"a": [1], "b": None}, "a:[1]"),
    ],
)
def test_a_search_finds_no_value_outside_the_rows_of_a_batch_or_without_its_partition(metadata: Any, what: str) -> None:
    assert found(metadata, what) == []


@settings(max_examples=examples(200, 5000))
@given(_JSON, st.text(max_size=5) | st.sampled_from(["from:0", "files:x", "x:1-1", "at:-1"]))
def test_metadata_of_a_custom_source_can_be_searched(metadata: Any, wanted: str) -> None:
    assert all(isinstance(each, str) for found in batch_texts(metadata, wanted.casefold()) for each in found)


@settings(max_examples=examples(200, 5000))
@given(st.text(max_size=5), st.integers(), st.integers(), st.integers(), st.sampled_from(["to", "quantity"]))
def test_a_search_for_a_row_number_finds_the_range_that_contains_it(
    name: str, first: int, size: int, number: int, field: str
) -> None:
    metadata = {name: {"from": first, field: size + (first if field == "to" else 0)}}
    is_known = name not in ("from", "partition", "files", "after", "upto", "to", "quantity")
    has = found(metadata, f"{name}:{number}") != []
    assert has == (first <= number < first + size) or not is_known
