"""The pages of docs/ name files that exist."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator

import pytest
from airflow.cli.cli_config import ActionCommand, GroupCommand

from airflow_tx.operations.cli.definition import TX_COMMANDS
from airflow_tx.provider_info import OPTIONS
from airflow_tx.state.sql.schema import fence_table, portions_table, receipts_table
from tests.imports.doc_pages import PAGES, ROOT

MADE = re.findall(r'"((?:reference/)?\w+\.md)"', (ROOT / "docs/site/reference.py").read_text())
GENERATED = {(ROOT / "docs" / name).resolve() for name in MADE}
"""Pages that the site makes of the code."""
DAGS = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("dags/*.py"))


@pytest.mark.parametrize("page", PAGES)
def test_every_page_that_a_page_refers_to_exists(page: str) -> None:
    links = re.findall(r"\]\((?!http)([\w/.-]+?)(?:#[\w-]+)?\)", (ROOT / page).read_text())
    targets = [((ROOT / page).parent / link).resolve() for link in links]
    assert [target for target in targets if target not in GENERATED and not target.exists()] == []


def test_every_file_and_folder_named_on_the_architecture_page_exists() -> None:
    named = re.findall(r"`([\w/]+(?:/|\.py|\.md))`", (ROOT / "docs/architecture.md").read_text())
    assert len(named) > 40
    assert [name for name in named if not any((base / name).exists() for base in (ROOT, ROOT / "airflow_tx"))] == []


PUBLIC = r"from (airflow_tx(?:\.(?!(?:acks|sources|spark|state|testing) import)[\w.]+)) import"


@pytest.mark.parametrize(
    "file", [*PAGES, *sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("dags/*.py"))]
)
def test_the_examples_import_public_names_only_from_their_public_modules(file: str) -> None:
    assert re.findall(PUBLIC, (ROOT / file).read_text()) == []


# --- paragraphs --------------------------------------------------------------------------------------------------

LONGEST = 8
"""Lines of a paragraph or of an item of a list, at 120 characters a line."""


def paragraphs(text: str) -> Iterator[list[str]]:
    """Give the lines of each paragraph and of each item of a list; tables and code are neither."""
    found: list[str] = []
    in_code = False
    for line in [*text.splitlines(), ""]:
        if line.startswith("```"):
            in_code = not in_code
        is_text = bool(line.strip()) and not in_code and not line.startswith(("|", "#", "```"))
        if found and (not is_text or re.match(r"\s*([*-]|\d+\.)\s", line)):
            yield found
            found = []
        if is_text:
            found.append(line.strip())


@pytest.mark.parametrize("page", [*PAGES, "tests/README.md"])
def test_a_paragraph_has_at_most_eight_lines(page: str) -> None:
    texts = list(paragraphs((ROOT / page).read_text()))
    assert [text[0] for text in texts if max(len(text), len(textwrap.wrap(" ".join(text), 120))) > LONGEST] == []


@pytest.mark.parametrize("page", PAGES)
def test_every_test_that_a_page_names_exists(page: str) -> None:
    files = [file for folder in ("tests", "airflow_tx/testing") for file in (ROOT / folder).rglob("*.py")]
    found = {file.stem for file in files}
    for file in files:
        found |= set(re.findall(r"def (test_\w+)\(", file.read_text()))
    assert set(re.findall(r"`(test_\w+)(?:\[[^`]*\])?`", (ROOT / page).read_text())) - found == set()


def test_every_row_of_the_table_of_promises_names_a_test() -> None:
    rows = _table((ROOT / "docs/explanation/promises.md").read_text(), "what happens")
    assert len(rows) > 10
    assert [row for row in rows if "`test_" not in row] == []


def _table(page: str, first: str) -> list[str]:
    """Give the rows of the table whose heading begins so."""
    table = page.partition(f"| {first} ")[2].partition("\n\n")[0]
    return table.splitlines()[2:]


# --- names -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("page", PAGES)
def test_every_command_and_option_that_a_page_names_exists(page: str) -> None:
    text = (ROOT / page).read_text()
    commands = set(re.findall(r"airflow tx ([a-z][a-z-]+)", text))
    assert commands - {command.name for command in TX_COMMANDS} == set()
    assert set(re.findall(r"\[tx\] ([a-z]\w+)`", text)) - set(OPTIONS) == set()


@pytest.mark.parametrize("page", PAGES)
def test_every_option_in_a_command_line_of_a_page_exists(page: str) -> None:
    typed = re.findall(r"airflow tx ([a-z][a-z-]+)([^`\n|#]*)", (ROOT / page).read_text())
    unknown = {f"{name} {flag}" for name, rest in typed for flag in re.findall(r"(?<=\s)--[a-z-]+", rest)} - FLAGS
    assert unknown == set()


def _flags(command: ActionCommand | GroupCommand) -> set[str]:
    """Give the options of a command, and of those below it."""
    if isinstance(command, GroupCommand):
        return {flag for each in command.subcommands for flag in _flags(each)}
    return {flag for argument in command.args for flag in argument.flags}


FLAGS = {f"{command.name} {flag}" for command in TX_COMMANDS for flag in _flags(command)}


@pytest.mark.parametrize("page", PAGES)
def test_every_file_of_the_repository_that_a_page_names_exists(page: str) -> None:
    folders = r"\.ci|airflow_tx|benchmarks|docker|docs|examples|script|tests"
    text = (ROOT / page).read_text()
    named = set(re.findall(rf"`((?:{folders})/[\w./-]*\w)(?: [^`]*)?`", text)) | set(
        re.findall(r"(?m)^script/\w+", text)
    )
    assert sorted(name for name in named if not (ROOT / name).exists()) == []


@pytest.mark.parametrize("page", PAGES)
def test_every_anchor_that_a_page_links_to_is_a_heading(page: str) -> None:
    links = re.findall(r"\]\((?!http)([\w/.-]*?\.md)?#([\w-]+)\)", (ROOT / page).read_text())
    targets = [((ROOT / page).parent / link if link else ROOT / page, anchor) for link, anchor in links]
    assert [anchor for target, anchor in targets if anchor not in _anchors(target.read_text())] == []


def _anchors(page: str) -> set[str]:
    """Give the anchors of the headings, as GitHub and the site make them."""
    headings = re.findall(r"^#+ (.*)$", page, re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", text.lower()).strip()) for text in headings}


def test_the_options_page_lists_every_option_with_its_default() -> None:
    shown = dict(re.findall(r"^\| `(\w+)` \| (.*?) \|", (ROOT / "docs/options.md").read_text(), re.MULTILINE))
    assert {name: text.strip("`") for name, text in shown.items()} == {
        name: option["default"] or "below `AIRFLOW_HOME" for name, option in OPTIONS.items()
    }


def _first_screen(page: str) -> str:
    """Give what a page says before its first list of links, with links to pages as in docs."""
    text = (ROOT / page).read_text().partition("\n\n")[2]
    return re.split(r"\n\n(?:Both scripts|!\[)", text)[0].replace("docs/", "")


def test_the_first_screen_is_short_and_the_same_in_the_readme_and_in_the_docs() -> None:
    first = _first_screen("README.md")
    assert first == _first_screen("docs/index.md")
    assert 100 < len(re.findall(r"\w+", re.sub(r"```.*?```", "", first, flags=re.DOTALL))) <= 250


def test_the_operations_page_lists_every_table_for_which_a_state_needs_rights() -> None:
    page = (ROOT / "docs/howto/operate.md").read_text()
    rights = page.partition("## Rights of the database user\n")[2].partition("\n## ")[0]
    made = {table(None).name for table in (fence_table, portions_table, receipts_table)}
    assert set(re.findall(r"`(airflow_tx_\w+)`", rights)) == made


@pytest.mark.parametrize(
    ("page", "words"),
    [
        ("docs/concepts/how-it-works.md", "`RotatingTransactionalState` in ZooKeeper"),
        ("docs/index.md", "[Submit a Spark application per batch]("),
        ("docs/index.md", "[Backfill what failed]("),
        ("docs/howto/move-from-storm.md", "## Trident's operations on streams"),
    ],
)
def test_the_first_pages_contain_the_words_that_a_storm_user_searches_for(page: str, words: str) -> None:
    assert words in (ROOT / page).read_text()
