"""Each command line of the pages is one that Airflow's parser takes, and tests use each command with its options."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

import pytest
from airflow.cli import cli_parser

from tests.imports.doc_pages import PAGES, ROOT

PARTS = ("tests", "examples", "airflow_tx/testing")
BLOCK = re.compile(r"^```\w*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
LINE = re.compile(r"(?:\$ )?(airflow (?:tx|dags|connections|db|backfill|tasks|standalone|celery)\b.*)")
GROUPS = ("state",)
"""Commands that have commands below them."""


def lines(page: str) -> Iterator[str]:
    """Give the command lines of a page, without the explanation that some have beside them."""
    for block in BLOCK.findall(page):
        joined = re.sub(r"\n {4,}", " ", block)  # an argument over several lines
        for line in joined.splitlines():
            if found := LINE.match(line.strip()):
                yield re.split(r"\s{2,}#|\s{3,}", found[1])[0].replace("[", "").replace("]", "")


ALL = sorted({line for page in PAGES for line in lines((ROOT / page).read_text())})


def test_the_pages_have_command_lines() -> None:
    assert len(ALL) > 40


@pytest.mark.parametrize("line", ALL)
def test_airflow_parses_each_command_line_of_a_page(line: str) -> None:
    arguments = shlex.split(line, comments=True)[1:]
    try:
        cli_parser.get_parser().parse_args(arguments)
    except SystemExit as refusal:  # pragma: no cover
        pytest.fail(f"{line}: exit code {refusal.code}")


def typed() -> set[tuple[str, str]]:
    """Give each command of airflow tx that a page has, with each option; "": the command alone."""
    found = set()
    for page in PAGES:
        for name, rest in re.findall(r"airflow tx ([a-z][a-z-]+)([^`\n|#]*)", (ROOT / page).read_text()):
            words = rest.split()
            command = f"{name} {words[0]}" if name in GROUPS and words else name
            found |= {(command, flag) for flag in ["", *re.findall(r"(?<=\s)--[a-z-]+", rest)]}
    return found


SOURCES = [
    file.read_text()
    for part in PARTS
    for file in (ROOT / part).rglob("*.py")
    if "imports" not in file.relative_to(ROOT).parts
]


@pytest.mark.parametrize(("command", "flag"), sorted(typed()))
def test_tests_use_each_command_and_option_of_a_page(command: str, flag: str) -> None:
    words = [
        re.compile(rf"(?<![\w-]){re.escape(word)}(?![\w-])") for word in [*command.split(), *([flag] if flag else [])]
    ]
    assert any("tx" in source and all(word.search(source) for word in words) for source in SOURCES)
