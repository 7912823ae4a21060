"""What the figures come to: how many times as fast as its peers ours is, the table of them, and what has become worse.

Absolute figures belong to a machine and an hour; ratios of what was measured in one go can be compared.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.peers.jobs import JOBS
from benchmarks.peers.stopwatch import Took

Ratios = dict[str, float]
"""By `job: ours/peer`, how many times as fast the lane is, and how many times as far a processor's second takes runs.

The wall time of twelve runs is that of Airflow's scheduler: twice measured, the same code has differed by 40 %.
"""

OURS = ("lane", "runs")
WORSE_BY = 0.20
COMMITTED = Path(__file__).with_name("ratios.json")
PAGE = Path(__file__).parents[2] / "docs" / "figures.md"
BEGIN, END = "<!-- written by script/bench peers -->", "<!-- up to here -->"


@dataclass(frozen=True)
class Figure:
    """What a peer took for a job.

    :param rows: of the transactions that were measured.
    """

    job: str
    peer: str
    title: str
    transactions: int
    rows: int
    took: Took

    @property
    def speed(self) -> float:
        """Transactions, or rows, a second."""
        return self._done / self.took.seconds

    @property
    def efficiency(self) -> float:
        """Transactions, or rows, a second of a processor."""
        return self._done / self.took.processor

    @property
    def _done(self) -> int:
        return self.rows if JOBS[self.job].unit == "rows" else self.transactions

    def __str__(self) -> str:
        wall, processor = (1000 * each / self.transactions for each in (self.took.seconds, self.took.processor))
        return (
            f"{self.job:6}{self.peer:10}{self.speed:11,.4g} {JOBS[self.job].unit}/s, {wall:,.4g} ms a transaction, "
            f"{processor:,.4g} ms of a processor; load {self.took.load:.1f}, of others {self.took.others:.1f}"
        )


def ratios(figures: Sequence[Figure]) -> Ratios:
    """Compare ours with each peer that has done the same job."""
    return {
        f"{ours.job}: {ours.peer}/{peer.peer}": round(
            ours.speed / peer.speed if ours.peer == "lane" else ours.efficiency / peer.efficiency, 4
        )
        for ours in figures
        if ours.peer in OURS
        for peer in figures
        if peer.job == ours.job and peer.peer not in OURS
    }


@dataclass(frozen=True)
class Comparison:
    """A ratio, as it was committed and as it was found now; None: it was not measured."""

    name: str
    expected: float
    found: float | None

    @property
    def is_worse(self) -> bool:
        return self.found is None or self.found < self.expected * (1 - WORSE_BY)

    def __str__(self) -> str:
        found = "not measured" if self.found is None else f"found {self.found:.4g}"
        verdict = f"FAILED, more than {WORSE_BY:.0%} worse" if self.is_worse else "ok"
        return f"{self.name}: expected {self.expected:.4g}, {found}: {'FAILED' if self.found is None else verdict}"


def compare(expected: Mapping[str, float], found: Mapping[str, float]) -> list[Comparison]:
    """Compare the committed ratios with those of now; what is not committed is not compared."""
    return [Comparison(name, ratio, found.get(name)) for name, ratio in expected.items()]


def committed() -> Ratios:
    """Read the committed ratios."""
    found: Ratios = json.loads(COMMITTED.read_text())
    return found


def table(figures: Sequence[Figure]) -> list[str]:
    """The table of `docs/figures.md`."""
    found = ratios(figures)
    lines = ["| job | engine | speed | a transaction: wall, processor | lane, runs as a multiple | load; others |"]
    lines.append("|" + "---|" * 6)
    for each in figures:
        times = [found.get(f"{each.job}: {ours}/{each.peer}") for ours in OURS]
        multiples = ", ".join("–" if ratio is None else f"{ratio:.3g}" for ratio in times) if any(times) else ""
        took, job = each.took, JOBS[each.job]
        wall, processor = (_time(seconds / each.transactions) for seconds in (took.seconds, took.processor))
        lines.append(
            f"| {job.title} | {each.title} | {_rounded(each.speed)} {job.unit}/s | {wall}, {processor} | {multiples} "
            f"| {took.load:.1f}; {took.others:.1f} |"
        )
    return lines


def write(figures: Sequence[Figure]) -> None:
    """Write the table, and the ratios that are compared later."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *table(figures), "", END + after]))
    COMMITTED.write_text(json.dumps(ratios(figures), indent=2) + "\n")


def _rounded(number: float) -> str:
    """Three digits: more would say more than was measured."""
    return f"{float(f'{number:.3g}'):,.10g}"


def _time(seconds: float) -> str:
    return f"{_rounded(seconds)} s" if seconds >= 1 else f"{_rounded(seconds * 1000)} ms"
