"""A remedy is data: words, and commands with their arguments, which are written as a shell takes them."""

from __future__ import annotations

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import StateRenamed, TopologyClaimed
from airflow_tx.base.remedy import Command, Remedy

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
def test_a_command_is_written_as_a_shell_takes_it(name: str, template: str, expected: str) -> None:
    assert str(Remedy.of(template, topology=name, txid=3)) == expected


@given(topology=NAMES, state=NAMES)
def test_a_shell_reads_the_names_of_a_command_as_they_are(topology: str, state: str) -> None:
    found = Remedy.of("<airflow tx state forget {topology} {state}>", topology=topology, state=state)
    assert [each for each in shlex.split(str(found)) if each != "--" or each in (topology, state)][-2:] == [
        topology,
        state,
    ]


def test_a_command_keeps_its_arguments_whatever_they_are() -> None:
    error = StateRenamed(txid=3, topology="my dag", old="a. b", new="c", last=2)
    assert error.advice is not None
    assert error.advice.commands == (
        Command("state rename", "my dag", ("a. b", "c")),
        Command("state forget", "my dag", ("a. b",)),
    )


def test_an_option_ends_at_the_next_one() -> None:
    states = ["a", "b c"]
    (found,) = Remedy.of("<airflow tx repair t --roll-forward {states} --restate>", states=states).commands
    assert found.values("--roll-forward") == ("a", "b c")
    assert found.values("--restate") == ()
    assert found.values("--back") == ()


def test_a_remedy_within_another_one_keeps_its_commands() -> None:
    inner = Remedy.of("Or <airflow tx replay {topology} 3>", topology="t")
    found = Remedy.of("Restore it. {remedy}: {n}", remedy=inner, n=4)
    assert str(found) == "Restore it. Or airflow tx replay t 3: 4"
    assert found.commands == inner.commands


@given(topology=NAMES, value=NAMES)
def test_a_stored_remedy_is_read_as_it_was_written(topology: str, value: str) -> None:
    told = Remedy.of("{value} <airflow tx skip {topology} 3 --why TEXT> {value}", topology=topology, value=value)
    assert Remedy.from_stored(json.loads(json.dumps(told.as_stored()))) == told


def test_a_reader_that_knows_a_topology_by_another_name_reads_its_commands_with_it() -> None:
    (command,) = Remedy.of(SKIP, topology="old", txid=3).named("old", "conn:old").commands
    assert str(command) == "airflow tx skip conn:old 3 --why TEXT"


def test_words_that_look_like_a_command_are_words() -> None:
    refusal = TopologyClaimed(topology="t", owner="<airflow tx delete t>", dag_id="d")
    assert [each.verb for each in (refusal.advice or Remedy()).commands] == ["rename"]
