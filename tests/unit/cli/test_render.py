"""What commands print of texts that anybody may have written: all of them, and nothing that a terminal obeys."""

from __future__ import annotations

import json
from contextlib import redirect_stdout
from datetime import date
from decimal import Decimal
from io import StringIO
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.remedy import Remedy
from airflow_tx.ledger.records import AlarmNote, Phase
from airflow_tx.ledger.views.status import pace_in_words
from airflow_tx.operations.cli import render
from airflow_tx.sources.lag import Lag, LagUnknown
from tests.remedies import remedy_of
from tests.unit.protocol.first_transaction import with_first

STYLED = "column [amount] of [/red] \x1b[31mtable\x1b[0m [bold]t[/bold] \x07\x9b1m"
CLEAN = "column [amount] of [/red] table [bold]t[/bold]"


@pytest.mark.parametrize("output", ["table", "plain"])
def test_printed_errors_keep_their_square_brackets_and_lose_control_characters(
    output: str, capsys: pytest.CaptureFixture[str]
) -> None:
    render.print_rows([{"name[x]": STYLED, "several": [STYLED], "none": None, "number": 3}], output)
    printed = capsys.readouterr().out
    assert CLEAN in printed
    assert printed.count("column [amount] of [/red]") == 2
    assert "name[x]" in printed
    assert not {"\x1b", "\x07", "\x9b"} & set(printed)


@pytest.mark.parametrize("output", ["json", "yaml"])
def test_json_and_yaml_output_contain_the_error_text_unchanged(output: str, capsys: pytest.CaptureFixture[str]) -> None:
    from airflow.utils import yaml

    render.print_rows([{"error": STYLED}], output)
    read: Any = json.loads if output == "json" else yaml.safe_load
    assert read(capsys.readouterr().out) == [{"error": STYLED}]


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=8,
)


@given(rows=st.lists(st.dictionaries(st.text(), JSON, max_size=3), max_size=3))
def test_json_output_keeps_the_type_of_each_value(rows: list[dict[str, Any]]) -> None:
    assert json.loads(render.as_json(rows)) == rows
    with redirect_stdout(StringIO()) as printed:
        render.print_rows(rows, "json")
    assert json.loads(printed.getvalue()) == rows
    assert printed.getvalue().strip().isprintable()
    assert printed.getvalue().isascii()


@pytest.mark.parametrize(
    ("value", "json_text", "shown"),
    [
        (Decimal("12345678901234567890.50"), "12345678901234567890.50", "12345678901234567890.50"),
        (Decimal("NaN"), '"NaN"', "NaN"),
        (float("nan"), '"nan"', "nan"),
        (render.Seconds(1.25), "1.25", "1.2 s"),
        (Lag(3, "files"), '{"count":3,"unit":"files"}', "3 files"),
        (LagUnknown(topology="t", reason="r"), "null", "?"),
        (b"ab", '"YWI="', "YWI="),
        (date(2026, 1, 31), '"2026-01-31"', "2026-01-31"),
        ({"a": [1, None, True]}, '{"a":[1,null,true]}', '{"a":[1,null,true]}'),
        ("half of \ud83d", r'"half of \\ud83d"', r"half of \ud83d"),
        (
            remedy_of("<airflow tx list {topology}>", topology="a b"),
            "\"airflow tx list 'a b'\"",
            "airflow tx list 'a b'",
        ),
    ],
)
def test_json_output_contains_the_raw_value_and_plain_output_contains_words(
    value: Any, json_text: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    render.print_rows([{"value": value}], "json")
    assert capsys.readouterr().out == f'[{{"value":{json_text}}}]\n'
    render.print_rows([{"value": value}], "plain")
    assert capsys.readouterr().out.splitlines()[1] == shown


def test_lists_are_at_most_80_columns_wide_and_remedies_are_not_wrapped(capsys: pytest.CaptureFixture[str]) -> None:
    remedy = remedy_of(
        "Restore the table, or accept what it holds: <airflow tx repair {t} --state-lost tx_state.flight_totals>",
        t="flights",
    )
    error = "task commit: AirflowFailException: State [t] refused: it went back."
    view = with_first(phase=Phase.COMMITTING, error=error, remedy=remedy, run_id="scheduled__2013-01-01T00:00:00+00:00")
    topologies = [render.topology(view)]
    render.print_in_short(topologies, render.TOPOLOGY_IN_SHORT, ("problem",), "table")
    table, told = parts(capsys.readouterr().out)
    assert max(map(len, table)) <= render.IN_SHORT
    assert told == [f"flights: problem transaction 1 has failed: {error} {remedy}"]

    transactions = [render.transaction(view.transactions[0])]
    render.print_in_short(transactions, render.TRANSACTION_IN_SHORT, ("waiting_for", "note"), "table")
    table, told = parts(capsys.readouterr().out)
    assert max(map(len, table)) <= render.IN_SHORT
    assert told == [f"1: waiting for a person: {remedy}. Then: airflow tx replay flights 1"]


def parts(printed: str) -> tuple[list[str], list[str]]:
    """The lines of the table, and those below it."""
    lines = printed.splitlines()
    end = next((number for number, line in enumerate(lines) if number > 2 and not line.strip()), None)
    below = [number for number, line in enumerate(lines) if line.startswith(("flights:", "1:"))]
    return lines[: min([*below, end or len(lines)])], [lines[number] for number in below]


def test_a_refused_commit_is_listed_under_the_statuses_open_and_failed_and_committing() -> None:
    (refused,) = with_first(phase=Phase.COMMITTING, error="it went back", remedy=Remedy(("Restore it",))).transactions
    shown = [status for status in render.TRANSACTION_STATUSES if render.has_status(refused, status)]
    assert shown == ["open", "failed", "committing"]
    assert render.has_status(refused, None)


@pytest.mark.parametrize("option", ["--status", "--state"])
def test_list_accepts_the_earlier_name_of_its_option_for_the_status(option: str) -> None:
    from airflow.cli import cli_parser

    parser = cli_parser.get_parser()
    assert parser.parse_args(["tx", "list", option, "failed"]).status == "failed"
    assert parser.parse_args(["tx", "list"]).status is None


def test_the_help_of_list_shows_the_option_status_and_hides_the_option_state(
    capsys: pytest.CaptureFixture[str],
) -> None:
    from airflow.cli import cli_parser

    with pytest.raises(SystemExit):
        cli_parser.get_parser().parse_args(["tx", "list", "--help"])
    printed = capsys.readouterr().out
    assert "--status" in printed
    assert "--state" not in printed


def test_json_output_has_every_column(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [render.topology(with_first(phase=Phase.PROCESSED))]
    render.print_in_short(rows, render.TOPOLOGY_IN_SHORT, ("problem",), "json")
    assert '"max_pending"' in capsys.readouterr().out


def test_the_printed_pace_names_its_unit() -> None:
    assert pace_in_words([[200, 1.5], [3, 2.0, "files"]]) == "200 rows in 1.5 s, 3 files in 2.0 s"


def test_a_topology_with_an_active_late_alert_is_listed_as_late() -> None:
    alarms = {"late": AlarmNote("", "2026-01-01T00:00:00+00:00")}
    assert render.topology(with_first(phase=Phase.PROCESSED), alarms=alarms)["state"] == "late"
