"""The pages of docs/ name files that exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(path.relative_to(ROOT).as_posix() for path in [ROOT / "README.md", *ROOT.glob("docs/*.md")])

DAGS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("dags/*.py"))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_that_a_page_refers_to_exists(page: str) -> None:
    links = re.findall(r"\]\((?!http)([\w/.-]+?)(?:#[\w-]+)?\)", (ROOT / page).read_text())
    assert [link for link in links if not ((ROOT / page).parent / link).exists()] == []


def test_every_file_and_room_of_the_architecture_exists() -> None:
    named = re.findall(r"`([\w/]+(?:/|\.py|\.md))`", (ROOT / "docs/architecture.md").read_text())
    assert len(named) > 40
    assert [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "airflow_tx"))] == []


PUBLIC = r"from (airflow_tx(?:\.(?!(?:acks|sources|spark|state|testing) import)[\w.]+)) import"


@pytest.mark.parametrize(
    "file", [*PAGES, *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("dags/*.py"))]
)
def test_an_example_imports_public_names_by_their_one_path(file: str) -> None:
    assert re.findall(PUBLIC, (ROOT / file).read_text()) == []
