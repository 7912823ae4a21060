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


def test_the_test_runs_every_command_that_only_reads() -> None:
    assert set(QUESTIONS) == set(commands_that_read())


@pytest.mark.worth("makes a topology of every kind, for all tests of what people type and see")
@of_every_kind
def test_every_reading_command_prints_an_answer_or_fails_with_one_line(ledger: Ledger, kind: Kind) -> None:
    check_told(ledger.told(kind))


@pytest.mark.parametrize(
    "kind",
    [FIRST, *(pytest.param(each, marks=pytest.mark.lead) for each in KINDS if each is not FIRST)],
    ids=lambda kind: kind.name,
)
def test_a_command_prints_the_same_content_in_every_output_format(ledger: Ledger, kind: Kind) -> None:
    others = ledger.told_otherwise(kind)
    check_told(others)
    check_same([*ledger.told(kind), *others])


@of_every_kind
def test_json_output_contains_numbers_instead_of_numeric_texts(ledger: Ledger, kind: Kind) -> None:
    found = [rows_of(told) for told in ledger.told(kind)]
    assert any(found)
    check_data(found)


def test_a_column_that_is_filled_for_one_kind_of_topology_is_filled_for_every_kind(ledger: Ledger) -> None:
    check_filled_by_commands(ledger, KINDS)


def test_every_printed_as_of_query_runs_and_returns_only_final_values(ledger: Ledger) -> None:
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
def test_a_state_with_the_fence_of_another_ledger_is_not_read(ledger: Ledger, change: str) -> None:
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


def test_the_test_ledger_contains_every_status_that_list_can_filter(ledger: Ledger) -> None:
    for status in TOPOLOGY_STATUSES:
        tried = ledger.type("list", ("--no-lag", "--status", status), ("--output", "json"))
        assert {row["state"] for row in json.loads(tried.output)} == {status}
    rows = [row for kind in KINDS for told in ledger.told(kind) if told.command == "list" for row in rows_of(told)]
    assert {*TRANSACTION_STATUSES} - {"open"} <= {row["status"].lower() for row in rows}
