"""What `script/bench --check` compares, and what it says."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.peers import ratios
from benchmarks.peers.jobs import SMALL, Data, limit, sum_up
from benchmarks.peers.ratios import Figure, Part, compare
from benchmarks.peers.stopwatch import Moment, Took


def figure(job: str, peer: str, cold: float, warm: float = 10.0, *, batches: int = 101, rows: int = 1000) -> Figure:
    """Make a figure: seconds of the first twelve batches, and of those behind the first."""

    def part(count: int, of: int, seconds: float) -> Part:
        return Part(count, of, Took(seconds, 2 * seconds, 1.5, 0.25))

    first, twelve = part(1, 10, cold / 2), part(12, 120, cold)
    return Figure(job, peer, peer.capitalize(), first, twelve, part(batches - 1, rows, warm))


def test_a_ratio_compares_the_speeds_of_the_lane_and_of_another_program_for_the_same_job() -> None:
    figures = [
        figure("small", "trident", 6, 10),
        figure("small", "plain", 12, 40, batches=11),
        figure("small", "lane", 12, 20),
        figure("big", "trident", 1, 1, rows=100),
        figure("big", "lane", 2, 10, rows=500),
    ]
    assert ratios.ratios([figures]) == {
        "small: lane/trident cold": 0.5,
        "small: lane/trident warm": 0.5,
        "small: lane/trident processor": 0.5,
        "small: lane/plain cold": 1.0,
        "small: lane/plain warm": 20.0,
        "small: lane/plain processor": 20.0,
        "big: lane/trident cold": 0.5,
        "big: lane/trident warm": 0.5,
        "big: lane/trident processor": 0.5,
    }


def test_ratios_of_runs_compare_the_processor_time_that_was_used() -> None:
    waited = replace(figure("small", "runs", 9), warm=Part(10, 100, Took(100, 4, 1.5, 0.25)))
    plain = replace(figure("small", "plain", 9), warm=Part(10, 100, Took(10, 2, 1.5, 0.25)))
    assert ratios.ratios([[plain, waited]]) == {"small: runs/plain processor": 0.5}


def test_a_ratio_is_the_median_over_the_rounds_in_which_both_programs_were_measured() -> None:
    def measured(lane: float, trident: float) -> list[Figure]:
        return [figure("big", "lane", 1, lane), figure("big", "trident", 1, trident)]

    alone = [figure("big", "lane", 1, 1000)]
    rounds = [measured(10, 10), measured(20, 40), measured(1, 4), alone]
    assert ratios.ratios(rounds)["big: lane/trident warm"] == 2.0


def test_the_table_of_figures_shows_the_medians_of_all_rounds() -> None:
    rounds = [[figure("big", "lane", cold, cold)] for cold in (20, 1, 10)]
    (line,) = ratios.table(rounds)[2:]
    assert "| 5 s; 12 rows/s | 100 rows/s; 100 ms | 1.67 s, 200 ms |  | 1.5; 0.2 |" in line


def test_the_measured_time_is_the_difference_between_two_readings_of_the_clock() -> None:
    took = Moment(12.0, 5.0, 100.0).since(Moment(10.0, 4.0, 98.0))
    assert (took.seconds, took.processor, took.others) == (2.0, 1.0, 0.5)


def test_a_ratio_that_is_more_than_a_fifth_worse_fails_with_the_expected_and_measured_values() -> None:
    held, better, worse = compare({"a": 1.0, "b": 1.0, "c": 2.0}, {"a": 0.8, "b": 7.0, "c": 1.59, "new": 0.1})
    assert [each.is_worse for each in (held, better, worse)] == [False, False, True]
    assert str(held) == "a: expected 1, found 0.8: ok"
    assert str(worse) == "c: expected 2, found 1.59: FAILED, more than 20% worse"


def test_a_ratio_that_was_not_measured_fails() -> None:
    (missing,) = compare({"small: lane/trident cold": 0.9}, {})
    assert missing.is_worse
    assert str(missing) == "small: lane/trident cold: expected 0.9, not measured: FAILED"


def test_the_table_of_ratios_replaces_only_its_own_part_of_the_page(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, committed = tmp_path / "FIGURES.md", tmp_path / "measured.json"
    page.write_text(f"before\n\n{ratios.BEGIN}\nold\n{ratios.END}\n\nafter\n")
    monkeypatch.setattr(ratios, "PAGE", page)
    monkeypatch.setattr(ratios, "MEASURED", committed)
    rounds = [[figure("small", "trident", 6), figure("small", "lane", 12)]]
    for _ in range(2):
        ratios.write(rounds)
    head, *_, plain, ours = ratios.table(rounds)
    assert head.count("|") == plain.count("|") == ours.count("|")
    assert "| 0.5, 1, 1 | 1.5; 0.2 |" in plain
    lines = "\n".join(ratios.table(rounds))
    assert page.read_text() == f"before\n\n{ratios.BEGIN}\n\n{lines}\n\n{ratios.END}\n\nafter\n"
    assert ratios.measured() == rounds


def test_generated_numbers_appear_before_their_limit_and_have_the_same_totals_as_in_python(tmp_path: Path) -> None:
    data = Data(tmp_path)
    assert data.totals(SMALL, 2) == {str(key): (2, 2 * key + 10) for key in range(10)}
    assert data.rows(SMALL, 3) == 30
    data.appear(SMALL, tmp_path / "watched", 2)
    assert limit(tmp_path / "watched") == 20


def test_flights_are_summed_by_carrier_and_airport_and_a_cancelled_flight_has_no_delay() -> None:
    flight = "2013,1,1,517,515,{},830,819,11,{},1545,N14228,EWR,IAH,227,1400,5,15,2013-01-01T10:00:00Z"
    lines = [flight.format(delay, carrier) for delay, carrier in (("2", "UA"), ("-5", "UA"), ("NA", "UA"), ("7", "AA"))]
    assert sum_up(lines) == {"UA-EWR": (3, -3), "AA-EWR": (1, 7)}
