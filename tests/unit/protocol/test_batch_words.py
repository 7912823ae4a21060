"""What a person calls a batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_tx.ledger.attempt import LONGEST, batch_in_words
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
        ({"orders-0": {"from": 0, "to": 4}}, "orders-0: 0 to 3"),
        ({f"orders-{part}": {"from": 0, "to": 4} for part in range(9)},
         "orders-0: 0 to 3, orders-1: 0 to 3 and 7 more"),
    ],
)  # fmt: skip
def test_a_batch_is_named_as_a_person_knows_it(metadata: Any, words: str) -> None:
    assert batch_in_words(metadata) == words


@pytest.mark.parametrize(
    "metadata",
    [None, 7, "text", [], {}, {"files": []}, {"files": "abc"}, {"files": [7]}, {"upto": []}, {"upto": [7]}, {"from": 5},
     {"from": True, "to": "x"}, {"tx_digest": "d", "tx_length": 9}, {"staged": "file:///x", "number": 7}],
)  # fmt: skip
def test_metadata_of_another_shape_has_no_name(metadata: Any) -> None:
    assert batch_in_words(metadata) == ""


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_NAMES, inner, max_size=4),
)


@settings(max_examples=examples(200, 5000))
@given(_JSON)
def test_whatever_a_source_of_its_own_writes_down_has_a_short_name_or_none(metadata: Any) -> None:
    assert len(batch_in_words(metadata)) <= LONGEST


def test_the_name_of_a_batch_is_short() -> None:
    assert len(batch_in_words({"files": [{"name": "x" * 4000}]})) == LONGEST
