"""The flights as files: all of them, once."""

from __future__ import annotations

from pathlib import Path

from examples.flights import FLIGHTS, SCHEMA, write_days, write_months


def lines(paths: list[Path]) -> int:
    return sum(path.read_bytes().count(b"\n") - 1 for path in paths)


def test_the_twelve_monthly_files_contain_every_flight(tmp_path: Path) -> None:
    months = write_months(tmp_path)
    assert [path.name for path in months] == [f"flights-2013-{month:02}.csv" for month in range(1, 13)]
    assert lines(months) == FLIGHTS
    assert months[0].read_text().splitlines()[0] == ",".join(part.split()[0] for part in SCHEMA.split(", "))


def test_intact_files_are_not_changed_and_damaged_files_are_written_again(tmp_path: Path) -> None:
    months = write_months(tmp_path)
    before = [path.stat().st_mtime_ns for path in months]
    content = months[3].read_bytes()
    months[3].write_bytes(content[:-5])
    assert write_months(tmp_path) == months
    after = [path.stat().st_mtime_ns for path in months]
    assert [old == new for old, new in zip(before, after, strict=True)] == [True] * 3 + [False] + [True] * 8
    assert months[3].read_bytes() == content


def test_the_365_daily_files_contain_every_flight(tmp_path: Path) -> None:
    days = write_days(tmp_path)
    assert (len(days), days[0].name, lines(days)) == (365, "flights-2013-01-01.csv", FLIGHTS)
