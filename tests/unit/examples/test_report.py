"""The demo's report tells a wrong total, and a wrong order, from right ones."""

from __future__ import annotations

import sqlite3
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from examples.report import (
    Totals,
    Transaction,
    computed,
    differences,
    most_at_once,
    order_violations,
    stored,
    table,
)

START = datetime(2013, 1, 1, tzinfo=timezone.utc)
RIGHT = Totals({("AA", "JFK"): (2, 7), ("UA", "EWR"): (1, -3)}, 3)


def transaction(txid: int, began: int, processed: int, granted: int, ended: int) -> Transaction:
    times = [START + timedelta(seconds=second) for second in (began, processed, granted, ended)]
    return Transaction(txid, f"r{txid}", f"{txid:02}.csv", 1, {"count": 1, "commit": 2}, *times)


def test_the_direct_calculation_counts_flights_without_a_delay(tmp_path: Path) -> None:
    (tmp_path / "01.csv").write_text("carrier,origin,dep_delay\nAA,JFK,7\nAA,JFK,NA\n")
    (tmp_path / "02.csv").write_text("carrier,origin,dep_delay\nUA,EWR,-3\n")
    assert computed(tmp_path) == RIGHT


@pytest.mark.parametrize(
    ("found", "line"),
    [
        (Totals({("AA", "JFK"): (4, 14), ("UA", "EWR"): (1, -3)}, 3), "AA from JFK: expected"),
        (Totals({("AA", "JFK"): (2, 8), ("UA", "EWR"): (1, -3)}, 3), "AA from JFK: expected"),
        (Totals({("AA", "JFK"): (2, 7)}, 3), "UA from EWR: expected"),
        (Totals({("AA", "JFK"): (2, 7), ("UA", "EWR"): (1, -3)}, 4), "flights_overall: expected 3, found 4"),
        (Totals({}, 0), "flights_overall: expected 3, found 0"),
    ],
)
def test_a_wrong_total_is_reported(found: Totals, line: str) -> None:
    assert differences(RIGHT, RIGHT) == []
    assert any(line in difference for difference in differences(RIGHT, found))


def test_a_missing_or_empty_database_has_empty_totals(tmp_path: Path) -> None:
    path = tmp_path / "state.db"
    assert stored(path) == Totals({}, 0)
    sqlite3.connect(path).close()
    assert stored(path) == Totals({}, 0)


def test_the_report_reads_the_stored_totals_from_the_tables(tmp_path: Path) -> None:
    connection = sqlite3.connect(tmp_path / "state.db")
    with connection:
        connection.execute("CREATE TABLE flight_totals (carrier, origin, flights, dep_delay, txid)")
        connection.execute("CREATE TABLE flights_overall (flights, txid)")
        connection.execute("INSERT INTO flight_totals VALUES ('AA', 'JFK', 2, 7, 1), ('UA', 'EWR', 1, -3, 2)")
        connection.execute("INSERT INTO flights_overall VALUES (3, 2)")
    connection.close()
    assert stored(tmp_path / "state.db") == RIGHT


def test_overlapping_and_missing_commits_are_reported() -> None:
    fine = [transaction(1, 0, 4, 4, 5), transaction(2, 0, 3, 5, 6)]
    assert order_violations(fine) == []
    assert "took the turn" in order_violations([fine[0], transaction(2, 0, 3, 4, 6)])[0]
    assert order_violations([fine[0], transaction(3, 0, 3, 5, 6)]) == ["transaction 3 follows transaction 1"]


def test_transactions_that_are_processed_at_the_same_time_are_counted() -> None:
    assert most_at_once([transaction(1, 0, 4, 4, 5), transaction(2, 4, 6, 6, 7)]) == 1
    assert most_at_once([transaction(1, 0, 4, 4, 5), transaction(2, 1, 3, 5, 6), transaction(3, 2, 6, 6, 7)]) == 3


def test_the_table_of_the_report_has_one_line_per_transaction() -> None:
    lines = table([transaction(1, 0, 4, 4, 5), transaction(2, 0, 3, 5, 9)])
    assert len(lines) == 3
    assert lines[1].split()[:6] == ["1", "r1", "01.csv", "1", "1", "2"]
    assert "===" in lines[1]
    assert lines[2].rstrip().endswith("#")
