"""The site: its order, its titles, and the pages that are made of the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.imports.doc_pages import ROOT


def navigation() -> dict[str, list[tuple[str, str]]]:
    """Give title and page of each entry of the site, by its part; "": the page has the title."""
    found: dict[str, list[tuple[str, str]]] = {}
    for line in (ROOT / "mkdocs.yml").read_text().partition("\nnav:\n")[2].splitlines():
        title, _, page = line.strip(" -").rpartition(": ")
        if line.startswith("  - "):
            part = line.strip(" -:")
            found[part] = []
        else:
            found[part].append((title, page))
    return found


NAV = navigation()


def titles(part: str) -> list[str]:
    """Give the titles of a part, as the site shows them."""
    return [title or _heading(ROOT / "docs" / page) for title, page in NAV[part]]


def _heading(page: Path) -> str:
    return page.read_text().partition("\n")[0].removeprefix("# ")


def test_a_newcomer_reads_in_this_order() -> None:
    assert list(NAV) == ["Get started", "Concepts", "How-to", "Reference", "Explanation", "Contributing"]


VERBS = set(
    """Add Alert Backfill Change Choose Commit Compare Count Find Fix Get Install Kill Lint Move Read Replay Run Send
    Test Try Use Wait Watch Write""".split()
)


def test_the_title_of_each_how_to_page_begins_with_a_verb() -> None:
    assert [title for title in titles("How-to") if title.split()[0].rstrip(",") not in VERBS] == []


CONCEPTS = sorted((ROOT / "docs/concepts").glob("*.md"))


@pytest.mark.parametrize("page", CONCEPTS, ids=[page.stem for page in CONCEPTS])
def test_a_concept_has_a_picture_and_at_most_two_screens(page: Path) -> None:
    text = page.read_text()
    assert len(text.splitlines()) <= 80
    assert re.search(r"^```\n|!\[", text, re.MULTILINE)


def test_the_readme_is_one_screen() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.split()) <= 400
    assert len(text.splitlines()) <= 60


def test_each_figure_names_its_command() -> None:
    page = (ROOT / "docs/figures.md").read_text()
    rows = page.partition("| command |\n")[2].partition("\n\n")[0].splitlines()[1:]
    named = [row.rstrip(" |").rpartition("| ")[2] for row in rows]
    assert len(named) > 50
    by_hand = [each for each in named if not re.search(r"`(script|tests)/|`pytest|`python|the same", each)]
    assert len(by_hand) <= 3
    assert {each[:7] for each in by_hand} == {"by hand"}


@pytest.mark.parametrize("page", ["figures", "scale", "journal", "lane", "spark", "questions", "start"])
def test_each_page_with_figures_names_how_they_were_measured(page: str) -> None:
    assert re.search(r"`(script/bench|pytest|tests/)", (ROOT / f"docs/{page}.md").read_text())
