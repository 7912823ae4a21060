"""How commands end on an error."""

from __future__ import annotations

import sqlite3
from argparse import Namespace

import pytest
from sqlalchemy.exc import OperationalError

from airflow_tx.base.errors import ConfigError
from airflow_tx.operations.actions.action import EffectLine, PreviewAnswer
from airflow_tx.operations.actions.request import dates_between
from airflow_tx.operations.cli.context import command, is_shown


@pytest.mark.parametrize(
    ("error", "advised"),
    [(sqlite3.OperationalError("database is locked"), True), (Exception("it is away\x1b[0m"), False)],
)
def test_a_command_recommends_another_metadata_database_only_for_an_error_of_sqlite(
    error: Exception, advised: bool
) -> None:
    @command
    def fails(args: Namespace) -> None:
        raise OperationalError("SELECT 1", {}, error)

    with pytest.raises(SystemExit) as ended:
        fails(Namespace(verbose=False))
    text = str(ended.value)
    assert text.startswith("Airflow's metadata database failed: ")
    assert ("Use PostgreSQL" in text) is advised
    assert "\x1b" not in text


def test_dates_in_a_command_are_whole_days_in_the_time_zone_of_the_schedule() -> None:
    first, last = dates_between("2026-03-28", "2026-03-29", "Europe/Berlin")
    assert (first.isoformat(), last.isoformat()) == ("2026-03-27T23:00:00+00:00", "2026-03-29T21:59:59.999999+00:00")


def test_times_with_a_time_zone_in_a_command_are_used_unchanged() -> None:
    time = "2026-03-28T01:00:00+00:00"
    assert [each.isoformat() for each in dates_between(time, time, "Europe/Berlin")] == [time] * 2


def test_the_error_for_an_invalid_date_names_its_option() -> None:
    with pytest.raises(ConfigError, match=r"--to = 'tomorrow' cannot be used.*2026-01-31"):
        dates_between("2026-03-28", "tomorrow", "")


@pytest.mark.parametrize(
    ("sentence", "effects", "refused", "printed"),
    [
        ("Accept what state Nothing was changed holds.", ["accepts it"], [], "Dry run: {} Nothing was changed."),
        ("No state lacks a transaction.", [], [], "{} Nothing was changed."),
        ("Topology t is not changed: it is new.", [], ["Topology t is not changed: it is new."], "{}"),
    ],
)
def test_a_dry_run_reports_once_that_nothing_was_changed(
    sentence: str, effects: list[str], refused: list[str], printed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [tuple(EffectLine(None, None, each) for each in told) for told in (effects, refused)]
    preview = PreviewAnswer("", sentence, lines[0], lines[1], needs_reason=False, is_refusal=bool(refused))
    assert is_shown(Namespace(dry_run=True, output="table"), preview, refusable=False)
    assert capsys.readouterr().out.splitlines()[0] == printed.format(sentence)
