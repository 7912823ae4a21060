"""What the figures come to: how many times as fast as its peers ours is, the table of them, and what has become worse.

Absolute figures belong to a machine and an hour. What was measured in one go can be compared: that is a round. Each
figure of the table is the median of its rounds, each ratio the median of the ratios of the rounds.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median
from typing import Any

from benchmarks.peers.jobs import COLD, JOBS
from benchmarks.peers.stopwatch import Took

Ratios = dict[str, float]
"""By `job: ours/peer what`, how many times as fast the lane is, and how many times as far a processor's second goes.

The wall time of twelve runs is that of Airflow's scheduler: twice measured, the same code has differed by 40 %.
"""

WHAT = {"lane": ("cold", "warm", "processor"), "runs": ("processor",)}
WORSE_BY = 0.20
MEASURED = Path(__file__).with_name("measured.json")
PAGE = Path(__file__).parents[1] / "FIGURES.md"
BEGIN, END = "<!-- written by script/bench peers -->", "<!-- up to here -->"
_COLUMNS = (
    "job", "engine", f"cold: first batch; first {COLD}", "warm: speed; a transaction",
    "processor a transaction: cold, warm", "lane as a multiple: cold, warm, processor; runs: processor", "load; others",
)  # fmt: skip


@dataclass(frozen=True)
class Part:
    """Some batches of a job: how many, their rows, and what they took."""

    batches: int
    rows: int
    took: Took


@dataclass(frozen=True)
class Figure:
    """What a peer took for a job.

    :param first: the first batch, from its begin in a fresh process to its commit.
    :param cold: the first batches, from the same moment.
    :param warm: all behind the first batch, up to the last commit.
    """

    job: str
    peer: str
    title: str
    first: Part
    cold: Part
    warm: Part

    def done(self, part: Part) -> int:
        """Give the transactions, or the rows, of a part."""
        return part.rows if JOBS[self.job].unit == "rows" else part.batches

    @property
    def values(self) -> Ratios:
        """What is compared: transactions, or rows, a second; and a second of a processor, warm."""
        return {
            "cold": self.done(self.cold) / self.cold.took.seconds,
            "warm": self.done(self.warm) / self.warm.took.seconds,
            "processor": self.done(self.warm) / self.warm.took.processor,
        }

    def __str__(self) -> str:
        return " | ".join([*_cells([self]), _load([self])])


Round = Sequence[Figure]
"""What was measured in one go, of one job."""


def ratios(rounds: Sequence[Round]) -> Ratios:
    """Compare ours with each peer that has done the same job in the same round."""
    found: dict[str, list[float]] = defaultdict(list)
    for figures in rounds:
        for ours in figures:
            for peer in figures:
                for what in WHAT.get(ours.peer, ()) if peer.peer not in WHAT and peer.job == ours.job else ():
                    name = f"{ours.job}: {ours.peer}/{peer.peer} {what}"
                    found[name].append(ours.values[what] / peer.values[what])
    return {name: round(median(each), 4) for name, each in found.items()}


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


def measured() -> list[Round]:
    """Read the rounds that are committed."""
    return [[_figure(each) for each in figures] for figures in json.loads(MEASURED.read_text())]


def _figure(fields: dict[str, Any]) -> Figure:
    for name in ("first", "cold", "warm"):
        fields[name] = Part(**{**fields[name], "took": Took(**fields[name]["took"])})
    return Figure(**fields)


def table(rounds: Sequence[Round]) -> list[str]:
    """The table of `benchmarks/FIGURES.md`."""
    by_peer: dict[tuple[str, str], list[Figure]] = defaultdict(list)
    for each in sorted((each for figures in rounds for each in figures), key=lambda each: [*JOBS].index(each.job)):
        by_peer[each.job, each.peer].append(each)
    found = ratios(rounds)
    lines = [f"| {' | '.join(_COLUMNS)} |", "|" + "---|" * len(_COLUMNS)]
    for (job, peer), figures in by_peer.items():
        names = [[f"{job}: {ours}/{peer} {what}" for what in WHAT[ours]] for ours in WHAT]
        multiples = "; ".join(", ".join(f"{found[name]:.3g}" for name in each if name in found) for each in names)
        lines.append(f"| {' | '.join([*_cells(figures), multiples.strip('; '), _load(figures)])} |")
    return lines


def _cells(figures: Sequence[Figure]) -> list[str]:
    """What an engine took, the medians of some rounds."""
    job = JOBS[figures[0].job]
    first = _time(median(each.first.took.seconds for each in figures))
    cold, warm = (_rounded(median(each.values[what] for each in figures)) for what in ("cold", "warm"))
    wall = _time(median(each.warm.took.seconds / each.warm.batches for each in figures))
    work = [
        _time(median(part.took.processor / part.batches for part in parts))
        for parts in ([each.cold for each in figures], [each.warm for each in figures])
    ]
    speeds = [f"{first}; {cold} {job.unit}/s", f"{warm} {job.unit}/s; {wall}"]
    return [job.title, figures[0].title, *speeds, ", ".join(work)]


def _load(figures: Sequence[Figure]) -> str:
    took = [each.warm.took for each in figures]
    return f"{median(each.load for each in took):.1f}; {median(each.others for each in took):.1f}"


def write(rounds: Sequence[Round]) -> None:
    """Write the table, and what is compared later."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    _, _, after = rest.partition(END)
    PAGE.write_text("\n".join([before + BEGIN, "", *table(rounds), "", END + after]))
    MEASURED.write_text(json.dumps([[asdict(each) for each in figures] for figures in rounds], indent=1) + "\n")


def _rounded(number: float) -> str:
    """Three digits: more would say more than was measured."""
    return f"{float(f'{number:.3g}'):,.10g}"


def _time(seconds: float) -> str:
    return f"{_rounded(seconds)} s" if seconds >= 1 else f"{_rounded(seconds * 1000)} ms"
