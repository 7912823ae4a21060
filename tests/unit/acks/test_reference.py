"""References: texts that name topology, transaction, attempt, ackers, roots and id."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import NotAReference
from airflow_tx.outputs.messages.tree import Lineage, Origin, Reference

IDS = st.integers(1, 2**64 - 1)


@given(
    st.text(min_size=1),
    st.integers(1),
    st.integers(1),
    st.lists(st.tuples(st.integers(0, 64), IDS), max_size=3).map(tuple),
    IDS,
)
def test_a_message_reference_is_unchanged_after_it_is_written_as_text_and_parsed(
    topology: str, txid: int, attempt: int, trees: tuple[tuple[int, int], ...], number: int
) -> None:
    reference = Reference(Lineage(Origin(topology, txid, attempt), trees), number)
    text = str(reference)
    assert Reference.parse(text) == reference
    assert text.isascii()
    assert text.isprintable()
    assert " " not in text


def test_a_reference_has_at_most_eighty_characters() -> None:
    reference = Reference(Lineage(Origin("words", 7, 2), ((1, 0xC0FFEE),)), 0xDECAF)
    assert str(reference) == "tx1:words:7.2:1.0000000000c0ffee:00000000000decaf"


@pytest.mark.parametrize(
    "text",
    [
        "",
        "the cow jumped over the moon",
        "tx1:words:7.2:1.0000000000c0ffee:00000000000decaf0",
        "tx1:words:7.2:1.0000000000c0ffee:",
        "tx1:words:7.2:1.c0ffee:00000000000decaf",
        "tx1:words:seven:1.0000000000c0ffee:00000000000decaf",
        "tx1:words:7.2:00000000000decaf",
        "tx2:words:7.2:1.0000000000c0ffee:00000000000decaf",
        None,
        12,
        b"tx1:words:7.2:1.0000000000c0ffee:00000000000decaf",
    ],
)
def test_the_error_for_an_invalid_reference_shows_the_text(text: Any) -> None:
    with pytest.raises(NotAReference) as refusal:
        Reference.parse(text)
    assert repr(str(text)[:120]) in str(refusal.value) or repr(str(text).rpartition(":")[0]) in str(refusal.value)
