"""The help of each command ends with two examples, which its parser takes."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser
from collections.abc import Iterator
from typing import Any

import pytest
from airflow.cli import cli_parser

from airflow_tx.operations.cli.definition import get_tx_cli_commands


def commands(found: Any, before: str = "") -> Iterator[tuple[str, Any]]:
    """Give each command and each group of commands with its name."""
    for each in found:
        yield f"{before}{each.name}", each
        yield from commands(getattr(each, "subcommands", ()), f"{before}{each.name} ")


ALL = dict(commands(get_tx_cli_commands()))


@pytest.mark.parametrize("name", ALL)
def test_the_help_of_a_command_ends_with_two_different_examples_that_its_parser_accepts(
    name: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    parser: ArgumentParser = cli_parser.get_parser()
    with pytest.raises(SystemExit) as ended:
        parser.parse_args([*name.split(), "--help"])
    assert ended.value.code == 0
    *_, title, first, second = map(str.strip, capsys.readouterr().out.strip().splitlines())
    assert title == "Examples:"
    assert first != second
    for line in (first, second):
        airflow, *words = shlex.split(line)
        assert airflow == "airflow"
        assert words[: len(name.split())] == name.split()
        args = parser.parse_args(words)
        assert getattr(ALL[name], "func", args.func) == args.func
