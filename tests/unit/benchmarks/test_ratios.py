"""What `script/bench --check` compares, and what it says."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.peers import ratios
from benchmarks.peers.jobs import JOBS, SMALL, Data, Span, limit, sum_up
from benchmarks.peers.ratios import Figure, compare
from benchmarks.peers.stopwatch import Took


def figure(job: str, peer: str, seconds: float, *, transactions: int = 100, rows: int = 1000) -> Figure:
    return Figure(job, peer, peer.capitalize(), transactions, rows, Took(seconds, 2 * seconds, 1.5, 0.25))


def test_a_ratio_says_how_many_times_as_fast_ours_is_at_the_same_job() -> None:
    figures = [
        figure("small", "trident", 10),
        figure("small", "plain", 40, transactions=10),
        figure("small", "lane", 20),
        figure("big", "trident", 1, rows=100),
        figure("big", "runs", 10, rows=500),
    ]
    expected = {"small: lane/trident": 0.5, "small: lane/plain": 20.0, "big: runs/trident": 0.5}
    assert ratios.ratios(figures) == expected


def test_of_runs_the_processor_time_is_compared() -> None:
    waited = Figure("small", "runs", "Runs", 10, 100, Took(100, 4, 1.5, 0.25))
    plain = Figure("small", "plain", "Plain", 10, 100, Took(10, 2, 1.5, 0.25))
    assert ratios.ratios([plain, waited]) == {"small: runs/plain": 0.5}


def test_a_ratio_that_is_more_than_a_fifth_worse_fails_and_says_what_was_expected_and_found() -> None:
    held, better, worse = compare({"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 0.8, "b": 7.0, "c": 1.59, "new": 0.1})
    assert [each.is_worse for each in (held, better, worse)] == [False, False, True]
    assert str(held) == "a: expected 1, found 0.8: ok"
    assert str(worse) == "c: expected 2, found 1.59: FAILED, more than 20% worse"


def test_a_ratio_that_was_not_measured_fails() -> None:
    (missing,) = compare({"small: lane/trident": 0.9}, {})
    assert missing.is_worse
    assert str(missing) == "small: lane/trident: expected 0.9, not measured: FAILED"


def test_the_committed_ratios_are_of_known_jobs_and_ours() -> None:
    for name, ratio in ratios.committed().items():
        job, _, pair = name.partition(": ")
        assert job in JOBS
        assert pair.split("/")[0] in ratios.OURS
        assert ratio > 0


def test_the_table_is_written_into_its_page_and_nothing_else_changes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, committed = tmp_path / "figures.md", tmp_path / "ratios.json"
    page.write_text(f"before\n\n{ratios.BEGIN}\nold\n{ratios.END}\n\nafter\n")
    monkeypatch.setattr(ratios, "PAGE", page)
    monkeypatch.setattr(ratios, "COMMITTED", committed)
    figures = [figure("small", "trident", 10), figure("small", "lane", 20)]
    for _ in range(2):
        ratios.write(figures)
    head, *_, plain, ours = ratios.table(figures)
    assert head.count("|") == plain.count("|") == ours.count("|")
    assert "| 10 transactions/s | 100 ms, 200 ms | 0.5, – | 1.5; 0.2 |" in plain
    lines = "\n".join(ratios.table(figures))
    assert page.read_text() == f"before\n\n{ratios.BEGIN}\n\n{lines}\n\n{ratios.END}\n\nafter\n"
    assert ratios.committed() == {"small: lane/trident": 0.5}


def test_numbers_appear_by_their_limit_and_have_the_totals_that_python_finds(tmp_path: Path) -> None:
    data = Data(tmp_path)
    assert data.totals(SMALL, 2) == {str(key): (2, 2 * key + 10) for key in range(10)}
    assert data.rows(SMALL, Span(1, 3)) == 30
    data.appear(SMALL, tmp_path / "watched", 0, 2)
    assert limit(tmp_path / "watched") == 20


def test_flights_are_summed_up_by_carrier_and_airport_and_a_cancelled_one_has_no_delay() -> None:
    flight = "2013,1,1,517,515,{},830,819,11,{},1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
    lines = [flight.format(delay, carrier) for delay, carrier in (("2", "UA"), ("-5", "UA"), ("NA", "UA"), ("7", "AA"))]
    assert sum_up(lines) == {"UA-EWR": (3, -3), "AA-EWR": (1, 7)}
