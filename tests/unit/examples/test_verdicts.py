"""A verdict over nothing fails: where nothing was counted, nothing can differ."""

from __future__ import annotations

import re
import subprocess
import sys
from dataclasses import replace
from datetime import datetime, timezone
from pathlib import Path

import pytest

from airflow_tx.ledger.api import Store
from airflow_tx.testing.airflow import LocalAirflow
from airflow_tx.testing.failpoints import Failpoints
from examples.demo import print_report
from examples.example import Example, judge
from examples.report import Totals, Transaction
from examples.words import Words

ROOT = Path(__file__).parents[3]
NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
ONE = Transaction(1, "r1", "01.csv", 1, {}, NOW, NOW, NOW, NOW)
EXACT = Totals({("AA", "JFK"): (2, 7)}, 2)


class Told(Example):
    """Finds no difference, and says what it is told."""

    name = "told"
    text = ""

    def prepare(self) -> None:
        """Nothing."""

    def drive(self, airflow: LocalAirflow, store: Store) -> None:
        """Nothing."""

    def wrong(self) -> list[str]:
        return []

    def verdict(self) -> str:
        return self.text


def told(folder: Path, text: str) -> Told:
    found = Told(folder, print, Failpoints(folder / "failpoints"))
    found.text = text
    return found


@pytest.mark.parametrize(
    ("verdict", "status"),
    [
        ("3 of 3 words counted once", 0),
        ("10 of 10 users have their last seen location, 3 of 3 queries exact", 0),
        ("0 of 0 words counted once", 1),
        ("3 of 3 words counted once, 0 of 0 queries exact", 1),
        ("2 of 3 words counted once", 1),
        ("all words were counted once", 1),
    ],
)
def test_a_verdict_fails_if_no_rows_or_too_few_rows_were_counted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], verdict: str, status: int
) -> None:
    assert judge(told(tmp_path, verdict)) == status
    last = capsys.readouterr().out.splitlines()[-1]
    assert last == ("not exact: 1 differences" if status else verdict)


def test_an_example_without_a_file_is_not_reported_as_exact(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    example = Words(tmp_path, print, Failpoints(tmp_path / "failpoints"))
    assert example.wrong() == []
    assert judge(example) == 1
    assert "nothing was counted, so the example shows nothing: 0 of 0 words" in capsys.readouterr().out


@pytest.mark.parametrize("without", ["nothing", "flights", "groups", "transactions"])
def test_the_demo_is_exact_only_if_flights_were_counted_in_transactions(
    capsys: pytest.CaptureFixture[str], without: str
) -> None:
    changed = {"flights": replace(EXACT, flights=0), "groups": replace(EXACT, groups={})}
    done = [] if without == "transactions" else [ONE]
    status = print_report(changed.get(without, EXACT), done, [], ended=True)
    told = capsys.readouterr().out
    assert status == (without != "nothing")
    assert ("nothing was counted" in told) == (without != "nothing")


def test_an_example_starts_without_a_warning() -> None:
    (module,) = re.findall(r"python\" -m (\S+)", (ROOT / "script/example").read_text())
    command = [sys.executable, "-m", module, "--help"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("usage: script/example ")
    assert done.stderr == ""
