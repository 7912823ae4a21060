"""The documentation stays short: each page has a bound, and so has the site."""

from __future__ import annotations

import re

import pytest

from tests.imports.doc_pages import ROOT
from tests.imports.page_words import BOUNDS, MADE_SHORTER, SITE, SLACK, words
from tests.imports.words import pages, sentences

WORDS = words()
LONGEST_SENTENCE = 30


@pytest.mark.parametrize("page", WORDS)
def test_the_number_of_words_of_a_page_is_within_its_bound(page: str) -> None:
    assert page in BOUNDS, (
        f"a new page: give it a bound in {__package__}.page_words, and name the page it makes shorter"
    )
    assert BOUNDS[page] - SLACK <= WORDS[page] <= BOUNDS[page]


def test_the_number_of_words_of_all_pages_is_within_its_bound() -> None:
    assert sum(WORDS.values()) <= SITE
    assert sum(BOUNDS.values()) <= SITE


def test_each_new_page_is_listed_with_an_existing_page_that_it_shortens() -> None:
    assert MADE_SHORTER.keys() <= BOUNDS.keys()
    assert set(MADE_SHORTER.values()) <= BOUNDS.keys()


def test_every_bound_belongs_to_an_existing_page() -> None:
    assert BOUNDS.keys() == WORDS.keys()


def test_no_sentence_of_a_page_has_more_than_thirty_words() -> None:
    long = [
        f"{page.file}:{line}: {sentence}"
        for page in pages()
        for line, sentence in sentences(page)
        if len(re.findall(r"\S*\w\S*", sentence)) > LONGEST_SENTENCE
    ]
    assert long == []


CODE = sorted(
    [*(ROOT / "airflow_tx").rglob("*.py"), *(ROOT / "dags").rglob("*.py"), *(ROOT / "spark_apps").rglob("*.py")]
)
NAMED = re.compile(r"\b((?:docs/)?[a-z_/-]+\.md)((?: §§?[\d, ]+)|#[\w-]+)?")


@pytest.mark.parametrize("file", CODE, ids=lambda file: file.relative_to(ROOT).as_posix())
def test_every_page_and_section_that_code_refers_to_exists(file: str) -> None:
    for name, place in NAMED.findall((ROOT / file).read_text()):
        path = ROOT / "docs" / name.removeprefix("docs/")
        path = path if path.exists() else ROOT / name
        assert path.exists(), name
        headings = re.findall(r"^#+ (.*)$", path.read_text(), re.MULTILINE)
        for number in re.findall(r"\d+", place) if "§" in place else ():
            assert any(each.startswith(f"{number}. ") for each in headings), f"{name} has no §{number}"
        if place.startswith("#"):
            assert place[1:] in {_anchor(each) for each in headings}, f"{name}{place}"


def _anchor(heading: str) -> str:
    return re.sub(r"[^\w\s-]", "", heading.lower()).strip().replace(" ", "-")
