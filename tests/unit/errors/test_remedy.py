"""A remedy is data: words, and commands with their arguments, which are written as a shell takes them."""

from __future__ import annotations

import ast
import json
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import airflow_tx
from airflow_tx.base.errors import SourceError, StateBehind, StateRenamed, TopologyClaimed, TxError
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.state import Sum
from airflow_tx.state.memory import MemoryState
from tests.remedies import remedy_of

SKIP = "Or: <airflow tx skip {topology} {txid} --why TEXT>. Then go on."
NAMES = st.text(st.characters(exclude_categories=["Cs", "Cc"]), min_size=1, max_size=8)


@pytest.mark.parametrize(
    ("name", "template", "expected"),
    [
        ("flights", "<airflow tx list {topology}> shows it", "airflow tx list flights shows it"),
        ("a b", SKIP, "Or: airflow tx skip 'a b' 3 --why TEXT. Then go on."),
        ("it's", "<airflow tx state forget {topology} OLD>", "airflow tx state forget 'it'\"'\"'s' OLD"),
        ("-v", SKIP, "Or: airflow tx skip --why TEXT -- -v 3. Then go on."),
        ("-v", "<airflow tx rename OLD {topology} --why TEXT>.", "airflow tx rename --why TEXT -- OLD -v."),
        ("-v", "<airflow tx repair {topology} --state-lost db.t>", "airflow tx repair --state-lost db.t -- -v"),
        ("-v", "<airflow tx restate {topology} TXID ... --why TEXT>", "airflow tx restate --why TEXT -- -v TXID ..."),
        ("x", "Look at `<airflow tx list>`.", "Look at `airflow tx list`."),
    ],
)
def test_a_remedy_quotes_its_command_for_a_shell(name: str, template: str, expected: str) -> None:
    assert str(remedy_of(template, topology=name, txid=3)) == expected


@given(topology=NAMES, state=NAMES)
def test_a_shell_passes_the_names_in_a_command_unchanged(topology: str, state: str) -> None:
    found = remedy_of("<airflow tx state forget {topology} {state}>", topology=topology, state=state)
    assert [each for each in shlex.split(str(found)) if each != "--" or each in (topology, state)][-2:] == [
        topology,
        state,
    ]


def test_a_command_keeps_arguments_that_contain_spaces_and_dots() -> None:
    error = StateRenamed(txid=3, topology="my dag", old="a. b", new="c", last=2)
    assert error.advice is not None
    assert error.advice.commands == (
        Command("state rename", "my dag", ("a. b", "c")),
        Command("state forget", "my dag", ("a. b",)),
    )


def test_the_values_of_a_command_option_end_at_the_next_option() -> None:
    states = ["a", "b c"]
    (found,) = remedy_of("<airflow tx repair t --roll-forward {states} --restate>", states=states).commands
    assert found.values("--roll-forward") == ("a", "b c")
    assert found.values("--restate") == ()
    assert found.values("--back") == ()


def test_a_remedy_that_is_inserted_into_another_remedy_keeps_its_commands() -> None:
    inner = remedy_of("Or <airflow tx replay {topology} 3>", topology="t")
    found = remedy_of("Restore it. {remedy}: {n}", remedy=inner, n=4)
    assert str(found) == "Restore it. Or airflow tx replay t 3: 4"
    assert found.commands == inner.commands


@given(topology=NAMES, value=NAMES)
def test_a_remedy_is_unchanged_after_it_is_stored_and_read(topology: str, value: str) -> None:
    told = remedy_of("{value} <airflow tx skip {topology} 3 --why TEXT> {value}", topology=topology, value=value)
    assert Remedy.from_stored(json.loads(json.dumps(told.as_stored()))) == told


def test_a_remedy_that_is_built_from_text_and_a_command_equals_the_remedy_of_its_template() -> None:
    command = Command("skip", "t", ("3",), ("--why", "TEXT"))
    told = Remedy(("Bring them back, or: ", command)) + "."
    assert told == remedy_of("Bring them back, or: <airflow tx skip {of} 3 --why TEXT>.", of="t")


@pytest.mark.parametrize("kind", [SourceError, StateBehind])
def test_an_error_that_another_process_has_stored_keeps_its_commands(kind: type[TxError]) -> None:
    fields = {"source": "s", "problem": "p", "state": "a b", "expected": 2, "found": 1}
    error = kind(**fields, remedy=remedy_of("Or: <airflow tx repair t --state-lost {state}>", state="a b"))
    again = kind.from_stored(json.loads(json.dumps(error.stored_fields)))
    assert str(again) == str(error)
    assert [each.values("--state-lost") for each in (again.advice or Remedy()).commands] == [("a b",)]


def test_the_commands_of_a_remedy_can_name_the_topology_as_the_reader_sees_it() -> None:
    (command,) = remedy_of(SKIP, topology="old", txid=3).named("old", "conn:old").commands
    assert str(command) == "airflow tx skip conn:old 3 --why TEXT"


def test_a_value_that_contains_the_text_of_a_command_is_not_read_as_a_command() -> None:
    refusal = TopologyClaimed(topology="t", owner="<airflow tx delete t>", dag_id="d")
    assert [each.verb for each in (refusal.advice or Remedy()).commands] == ["rename"]


@pytest.mark.parametrize("said", ["remedy_behind", "remedy_without_rows", "remedy_lost"])
def test_remedies_of_a_state_quote_the_names_of_topology_and_state_for_a_shell(said: str) -> None:
    state = MemoryState("the totals", values={"n": Sum()})
    commands = getattr(state, said)("my flights").commands
    assert commands
    for command in commands:
        assert {"my flights", state.name} < set(shlex.split(str(command)))


# --- where commands are written -----------------------------------------------------------------------------------

PACKAGE = Path(airflow_tx.__file__).parent
NOT_YET = ("operations/cli/context.py", "operations/cli/receipts.py")
"""Files whose advice is not made of commands yet: lines of wrong usage, which no button is made of."""
NO_ADVICE = {"base/remedy.py", "lint/report.py", "operations/cli/definition.py"}
"""Files that name the commands themselves, and advise nothing."""
COMMAND = re.compile(r"airflow tx(?= ?[a-z{%]| ?$)")


def texts(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Give each text of code with its line, and `{}` for the values within it; docstrings are none."""
    nodes = list(ast.walk(tree))
    left_out = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    left_out |= {id(part) for node in nodes if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in nodes:
        if isinstance(node, (ast.Constant, ast.JoinedStr)) and id(node) not in left_out:
            parts = node.values if isinstance(node, ast.JoinedStr) else [node]
            yield node.lineno, "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in parts)


def test_no_text_of_the_package_contains_a_command_as_literal_text() -> None:
    found = [
        f"{name}:{line}"
        for file in sorted(PACKAGE.rglob("*.py"))
        if not (name := file.relative_to(PACKAGE).as_posix()).startswith(NOT_YET) and name not in NO_ADVICE
        for line, text in texts(ast.parse(file.read_text()))
        if COMMAND.search(text)
    ]
    assert not found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('to_do = f"To go on: airflow tx replay {txid}"', ["airflow tx"]),
        ('log("Or: "\n"airflow tx %s", verb)', ["airflow tx"]),
        ('to_do = " ".join(["airflow tx", verb])', ["airflow tx"]),
        ('to_do = Remedy.of("To go on: ", Command.of("replay", topology))', []),
        ('def f():\n    """See `airflow tx replay`."""', []),
    ],
)
def test_the_search_for_literal_commands_finds_a_command_that_a_test_has_inserted(code: str, found: list[str]) -> None:
    hits = [hit for _, text in texts(ast.parse(code)) for hit in COMMAND.findall(text)]
    assert hits == found
