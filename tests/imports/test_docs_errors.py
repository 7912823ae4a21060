"""The page of errors has each class, with a cause and a remedy; other pages name classes that exist."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from tests.imports.doc_pages import PAGES, ROOT, hook

ERRORS: Any = hook("error_pages")
FOUND = ERRORS.found()


def test_the_errors_page_lists_every_error_class() -> None:
    assert len(FOUND) > 100
    assert set(ERRORS.REMEDIES) | ERRORS.ABSTRACT <= set(FOUND)


@pytest.mark.parametrize("name", sorted(set(FOUND) - ERRORS.ABSTRACT))
def test_each_error_has_a_cause_and_a_remedy(name: str) -> None:
    error = FOUND[name]
    assert error.cause.strip(), f"{name} has no docstring"
    assert error.message.strip(), f"{name} has no template"
    assert error.remedies, (
        f"{name} names no remedy: add one to its template, or to REMEDIES in docs/site/error_pages.py"
    )


def test_the_errors_page_shows_the_causes_and_remedies_that_the_code_defines() -> None:
    page = ERRORS.errors()
    assert "| Connection …, login | Give both login and password, or neither. |" in page
    assert "## KafkaUnreachable" in page
    assert "**Remedy:** Clear the run: it is processed again." in page


# --- names on other pages


def identifiers() -> set[str]:
    """Give each word of the code that is written LikeThis."""
    folders = ("airflow_tx", "dags", "examples", "tests")
    files = [
        file for folder in folders for file in (ROOT / folder).rglob("*.py") if file.parent != Path(__file__).parent
    ]
    return {word for file in files for word in re.findall(r"\b[A-Z][a-z]\w+\b", file.read_text())}


KNOWN = identifiers() | {"BashOperator"}
OF_OTHERS = re.compile(r"docs/howto/move-from-storm")
"""Pages with names of Storm."""


def classes(page: str) -> set[str]:
    """Give the classes that a page names in its text."""
    text = re.sub(r"^```.*?^```", "", page, flags=re.MULTILINE | re.DOTALL)
    return set(re.findall(r"`([A-Z][a-z]+(?:[A-Z][a-z]*)+)\b[^`]*`", text))


@pytest.mark.parametrize("page", [page for page in PAGES if not OF_OTHERS.match(page)])
def test_every_class_that_a_page_names_exists(page: str) -> None:
    assert classes((ROOT / page).read_text()) - KNOWN == set()


def test_a_page_that_names_a_missing_class_is_found() -> None:
    assert classes("It raises `RowsDiffer`, or `RowsDifferElse(txid=7)`.") - KNOWN == {"RowsDifferElse"}
