"""The site: its order, its titles, and the pages that are made of the code."""

from __future__ import annotations

import re
import shutil
import subprocess
from pathlib import Path

import pytest
import yaml  # type: ignore[import-untyped]

from tests.imports.doc_pages import PAGES, ROOT


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


def test_the_navigation_has_the_reading_order_for_newcomers() -> None:
    assert list(NAV) == ["Get started", "Concepts", "How-to", "Reference", "Explanation", "Contributing"]


VERBS = set(
    """Add Alert Append Backfill Build Change Check Choose Commit Compare Count Find Fix Get Install Keep Kill Lint Move
    Read Replay Restore Run Send Stop Test Try Use Wait Watch Write""".split()
)


def test_the_title_of_each_how_to_page_begins_with_a_verb() -> None:
    assert [title for title in titles("How-to") if title.split()[0].rstrip(",") not in VERBS] == []


CONCEPTS = sorted((ROOT / "docs/concepts").glob("*.md"))


@pytest.mark.parametrize("page", CONCEPTS, ids=[page.stem for page in CONCEPTS])
def test_a_concept_page_has_a_picture_and_fits_on_two_screens(page: Path) -> None:
    text = page.read_text()
    assert len(text.splitlines()) <= 80
    assert re.search(r"^```\n|!\[", text, re.MULTILINE)


def test_the_readme_fits_on_one_screen() -> None:
    text = re.sub(r"<[^>]+>", "", (ROOT / "README.md").read_text())
    assert len(text.split()) <= 400
    assert len(text.splitlines()) <= 60


def test_each_row_of_the_figures_page_names_its_command() -> None:
    page = (ROOT / "benchmarks/FIGURES.md").read_text()
    rows = page.partition("| command |\n")[2].partition("\n\n")[0].splitlines()[1:]
    named = [row.rstrip(" |").rpartition("| ")[2] for row in rows]
    assert len(named) > 50
    by_hand = [each for each in named if not re.search(r"`(script|tests)/|`pytest|`python|the same", each)]
    assert len(by_hand) <= 3
    assert {each[:7] for each in by_hand} == {"by hand"}


FIGURES = ("benchmarks/FIGURES.md", "benchmarks/scale/README.md", "docs/explanation/performance.md", "docs/lane.md")


@pytest.mark.parametrize("page", [*FIGURES, "docs/journal.md", "docs/spark.md", "docs/questions.md"])
def test_each_page_with_figures_names_the_command_that_measured_them(page: str) -> None:
    assert re.search(r"`(script/bench|pytest|tests/)", (ROOT / page).read_text())


# --- script/docs fails at a mistake ------------------------------------------------------------------------------


def test_every_link_check_of_the_site_is_set_to_warn() -> None:
    validation = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["validation"]
    assert validation == {
        "nav": dict.fromkeys(("omitted_files", "not_found", "absolute_links"), "warn"),
        "links": dict.fromkeys(("not_found", "anchors", "absolute_links", "unrecognized_links"), "warn"),
    }


def test_the_site_is_built_with_strict_and_without_quiet() -> None:
    """The option --quiet drops the warnings before --strict counts them."""
    builds = re.findall(r"^[^#\n]*mkdocs build(.*)$", (ROOT / "script/docs").read_text(), re.MULTILINE)
    assert len(builds) == 1
    assert "--strict" in builds[0]
    assert not re.search(r"(?<!\S)(--quiet|-\w*q)", builds[0])


def test_no_page_contains_an_html_link() -> None:
    """The generator checks only the links of Markdown. The README, which it does not read, has a picture."""
    pages = [page for page in PAGES if re.search(r"<(a|img)\s[^>]*(href|src)=", (ROOT / page).read_text())]
    assert pages == ["README.md"]


def test_the_readme_has_a_picture_for_light_and_one_for_dark_mode() -> None:
    shown = re.findall(r"(?:src|srcset)=\"([^\"]+)\"", (ROOT / "README.md").read_text())
    assert shown == ["docs/pictures/timeline_dark.png", "docs/pictures/timeline.png"]
    assert all((ROOT / each).is_file() for each in shown)


PLANTED = """
[file](planted.md), [file above](../planted.md), [picture](pictures/planted.svg),
[folder](planted/), [absolute](/planted.md), [anchor](#planted), [anchor of a page](index.md#planted),
[name][planted.missing]

::: planted.function
"""
WARNINGS = """
contains a link 'planted.md', but the target is not found
contains a link '../planted.md', but the repository has no such file
contains a link 'pictures/planted.svg', but the target is not found
contains an unrecognized relative link 'planted/'
contains an absolute link '/planted.md'
contains a link '#planted', but there is no such anchor
contains a link 'index.md#planted', but the doc 'index.md' does not contain an anchor
Could not find cross-reference target 'planted.missing'
Parameter 'missing' does not appear in the function signature
No matching parameter for 'missing'
Failed to parse exception directive from ':raises ValueError, TypeError: never.'
exist in the docs directory, but are not included in the "nav" configuration
"""
MODULE = '''
def function(there: int) -> None:
    """Return nothing.

    :param missing: not in the signature.
    :raises ValueError, TypeError: never.
    """
'''


@pytest.mark.long
def test_the_site_build_fails_at_each_kind_of_mistake(tmp_path: Path) -> None:
    # Packages are installed now: script/env of the copy would install the copy into our .venv.
    subprocess.run([str(ROOT / "script/env"), "docs"], check=True)
    for path in ROOT.iterdir():
        if path.name in ("docs", "script"):
            shutil.copytree(path, tmp_path / path.name)
        elif path.is_dir() and path.name not in (".git", "build"):
            (tmp_path / path.name).symlink_to(path)
        elif path.is_file():
            shutil.copy(path, tmp_path)
    with (tmp_path / "docs/rows.md").open("a") as page:
        page.write(PLANTED)
    (tmp_path / "docs/omitted.md").write_text("# A page that the navigation lacks\n")
    (tmp_path / "planted.py").write_text(MODULE)
    command = [str(tmp_path / "script/docs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600, check=False)
    expected = WARNINGS.strip().splitlines()
    warnings = [line for line in done.stderr.splitlines() if line.startswith("WARNING")]
    assert [each for each in expected if not any(each in line for line in warnings)] == [], done.stderr
    assert [line for line in warnings if not any(each in line for each in expected)] == [], done.stderr
    assert done.returncode == 1
    assert f"Aborted with {len(expected)} warnings in strict mode" in done.stderr
