"""A person reads plain English: no hard words, short sentences.

Run `python -m tests.imports.words` for the figures.
Run `python -m tests.imports.words pages docs/lane.md` for the findings of a page.
"""

from __future__ import annotations

from functools import cache

import pytest

from tests.imports.words import (
    HARD,
    KINDS,
    OPENINGS,
    Figures,
    Finding,
    Text,
    figures,
    hard_words,
    sentences,
    without_blocks,
)

BOUNDS = {"pages": 0, "docstrings": 0, "messages": 0, "comments": 0}
"""Hard words at most. Lower a bound when you have mended words; no bound ever rises."""

LONG = {"pages": 1.4, "docstrings": 2.1, "messages": 0.1, "comments": 1.2}
"""Sentences of more than 25 words at most, of a hundred. No bound ever rises."""


@cache
def measured(kind: str) -> Figures:
    """Measure the texts of a kind once."""
    return figures(kind)


def lines(findings: list[Finding]) -> str:
    """Write one finding a line."""
    return "\n".join(["", *map(str, findings)])


@pytest.mark.worth("reads every text once, for both bounds")
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_hard_words_in_each_kind_of_text_is_within_its_bound(kind: str) -> None:
    hard = measured(kind).hard
    assert len(hard) <= BOUNDS[kind], f"{len(hard)} hard words in {kind}, mend yours of these: {lines(hard)}"


@pytest.mark.worth("reads every text once, for both bounds")
@pytest.mark.parametrize("kind", KINDS)
def test_the_number_of_long_sentences_in_each_kind_of_text_is_within_its_bound(kind: str) -> None:
    share = measured(kind).share_long
    long = measured(kind).long
    assert round(share, 1) <= LONG[kind], f"{share:.2f} % of {kind} are long, divide yours of these: {lines(long)}"


# --- the finder --------------------------------------------------------------------------------------------------


def found(text: str) -> list[str]:
    """Give the hard words of a text."""
    return [finding.words for finding in hard_words(Text("page.md", 1, text))]


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("The lane is told the reason.", "is told"),
        ("Whoever begins first has the interval.", "Whoever"),
        ("The run goes on where it stood.", "goes on"),
        ("The run goes\non where it stood.", "goes on"),
        ("Nobody but you can know.", "Nobody"),
        ("An opaque source decides anew.", "anew"),
        ("Everything of it is there.", "of it is there"),
        ("No step comes between them.", "comes between"),
        ("A report of what was done to it.", "was done to"),
        ("It takes the file as it is.", "as it is"),
        ("Its rows lay in files.", "lay"),
        ("The attempt fails. What is left stays.", "What is"),
        ("# What was found\n", "What was"),
        ("- Of those, none may come.", "Of those"),
        ("| What a lane does |", "What a"),
    ],
)
def test_a_hard_word_is_found(text: str, words: str) -> None:
    assert words in found(text)


@pytest.mark.parametrize(
    "text",
    [
        "The log says the reason, and the run continues.",
        "What is a transaction? It is one batch.",
        "Look at what is new.",
        "Run `airflow tx whatever` and [read](https://whoever.example/told).",
        "The layer replays three-fold, as Kubernetes does.",
        "A retold tale is no whomever.",
    ],
)
def test_no_hard_word_is_found_in_a_plain_sentence(text: str) -> None:
    assert found(text) == []


def test_the_search_for_hard_words_ignores_code_blocks() -> None:
    assert found(without_blocks("A task:\n\n```python\nwhoever = told\n```\n\nThe task ends.")) == []


def test_a_finding_names_the_file_the_line_the_hard_word_and_a_replacement() -> None:
    text = Text("docs/lane.md", 10, "The lane runs.\nThe step\ndecides anew.")
    assert [str(finding) for finding in hard_words(text)] == [
        f"docs/lane.md:12: 'anew': {HARD['anew']}",
    ]


def test_a_sentence_with_a_hard_opening_is_found_in_each_paragraph_and_table_cell() -> None:
    remedies = {finding.remedy for finding in hard_words(Text("page.md", 1, "x\n\nWhat is lost is named.\n| Nobody |"))}
    assert remedies >= set(OPENINGS.values())


def test_a_sentence_ends_at_a_full_stop_or_at_the_end_of_a_list_item() -> None:
    text = Text(
        "page.md", 1, "# A heading\n\nOne is `a. B` here. Two is\nlonger.\n\n* three is\n  this\n* four is that\n"
    )
    assert list(sentences(text)) == [
        (3, "One is Code here."),
        (3, "Two is longer."),
        (6, "three is this"),
        (8, "four is that"),
    ]


def test_tables_and_headings_do_not_count_as_sentences() -> None:
    assert list(sentences(Text("page.md", 1, "## A long heading\n\n| a cell of words | another cell |\n"))) == []
