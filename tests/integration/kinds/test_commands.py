"""What a person types, on a topology of every kind: an answer, or one line that says why there is none."""

from __future__ import annotations

import json
import re

import pytest

from airflow_tx.operations.cli.render import TOPOLOGY_STATUSES, TRANSACTION_STATUSES
from tests.integration.databases import query
from tests.integration.kinds.answers import check_data, check_filled_by_commands, check_same, check_told, rows_of
from tests.integration.kinds.ledger import Ledger
from tests.integration.kinds.questions import QUESTIONS, commands_that_read
from tests.integration.kinds.topologies import KINDS, Kind

FIRST = KINDS[0]
of_every_kind = pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.name)


def test_every_command_that_reads_is_asked() -> None:
    assert set(QUESTIONS) == set(commands_that_read())


@pytest.mark.worth("makes a topology of every kind, for all tests of what people type and see")
@of_every_kind
def test_every_command_that_reads_answers_or_says_in_one_line_why_not(ledger: Ledger, kind: Kind) -> None:
    check_told(ledger.told(kind))


@pytest.mark.parametrize(
    "kind",
    [FIRST, *(pytest.param(each, marks=pytest.mark.lead) for each in KINDS if each is not FIRST)],
    ids=lambda kind: kind.name,
)
def test_a_command_says_the_same_however_it_is_printed(ledger: Ledger, kind: Kind) -> None:
    others = ledger.told_otherwise(kind)
    check_told(others)
    check_same([*ledger.told(kind), *others])


@of_every_kind
def test_a_program_reads_numbers_as_numbers(ledger: Ledger, kind: Kind) -> None:
    found = [rows_of(told) for told in ledger.told(kind)]
    assert any(found)
    check_data(found)


def test_no_cell_is_empty_that_topologies_of_other_kinds_fill(ledger: Ledger) -> None:
    check_filled_by_commands(ledger, KINDS)


def test_every_query_as_of_a_transaction_runs_and_leaves_out_what_is_not_final(ledger: Ledger) -> None:
    asked = [row for kind in KINDS for told in ledger.told(kind) if told.command == "at" for row in rows_of(told)]
    queries = {row["state"]: row["line"] for row in asked if str(row["line"]).startswith("SELECT")}
    url = f"sqlite:///{ledger.commands.database}"
    found = {name: query(url, line) for name, line in queries.items() if not re.search(r"\.\.\.|delta\.`", line)}
    assert len(found) > 20
    half = found["tx_state.half_committed"]
    (now,) = query(url, 'SELECT "key", n FROM half_committed')
    assert half[0][0] == now[0]
    assert 0 < half[0][1] < now[1]


@pytest.mark.parametrize("change", ["txid = txid - 1", "incarnation = 'another'"])
def test_a_state_whose_fence_is_not_of_the_ledger_is_not_read(ledger: Ledger, change: str) -> None:
    url = f"sqlite:///{ledger.commands.database}"
    ((txid, incarnation),) = query(url, "SELECT txid, incarnation FROM airflow_tx_fence WHERE state = 'days'")
    try:
        query(url, f"UPDATE airflow_tx_fence SET {change} WHERE state = 'days'")
        tried = ledger.type("at", ("days",), ("--output", "json"))
    finally:
        back = f"UPDATE airflow_tx_fence SET txid = {txid}, incarnation = '{incarnation}' WHERE state = 'days'"
        query(url, back)
    (row,) = json.loads(tried.output)
    assert row["line"] is None
    assert "Compare them: airflow tx verify days" in row["why"]


def test_every_status_that_a_list_can_be_asked_for_is_in_the_ledger(ledger: Ledger) -> None:
    for status in TOPOLOGY_STATUSES:
        tried = ledger.type("list", ("--no-lag", "--status", status), ("--output", "json"))
        assert {row["state"] for row in json.loads(tried.output)} == {status}
    rows = [row for kind in KINDS for told in ledger.told(kind) if told.command == "list" for row in rows_of(told)]
    assert {*TRANSACTION_STATUSES} - {"open"} <= {row["status"].lower() for row in rows}
