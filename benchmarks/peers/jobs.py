"""What every engine has to do: three jobs, their data, and the totals that must come of it.

The batches before the measurement are there at first; the others appear when those are committed.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from examples.flights import write_days, write_months

Totals = dict[str, tuple[int, int]]
"""By key, how many rows there are, and the sum of their values."""

NUMBERS = 10
COPIES = 5
"""Of a month in each of the two files of a batch."""
_DELAY, _CARRIER, _ORIGIN = 5, 9, 12


@dataclass(frozen=True)
class Job:
    """One of the jobs.

    :param files: how many csv files of flights a batch has; 0: ten numbers, made where they are read.
    :param unit: what its speed counts.
    """

    name: str
    title: str
    files: int
    unit: str = "transactions"


SMALL = Job("small", "ten numbers a transaction", 0)
DAYS = Job("days", "a day of flights (920 rows) a transaction", 1)
BIG = Job("big", "flights ×10, a month (280,000 rows) a transaction", 2, "rows")
JOBS = {job.name: job for job in (SMALL, DAYS, BIG)}


@dataclass(frozen=True)
class Span:
    """How many batches come before the measurement, and how many are measured."""

    warm: int
    timed: int

    @property
    def all(self) -> int:
        return self.warm + self.timed


@dataclass
class Data:
    """The batches of all jobs below a folder."""

    folder: Path
    _sums: dict[str, list[Totals]] = field(default_factory=dict)

    def prepare(self) -> None:
        """Write the files of all batches, and sum them up in Python."""
        header = b""
        for job, files, copies in (
            (DAYS, write_days(self.folder / "all_days"), 1),
            (BIG, _warm_first(write_months(self.folder / "months")), COPIES),
        ):
            self._folder(job).mkdir()
            sums = self._sums[job.name] = []
            for batch, file in enumerate(files):
                header, rows = file.read_bytes().split(b"\n", 1)
                for number in range(job.files):
                    path = self._folder(job) / name_of(batch, number)
                    path.write_bytes(header + b"\n" + rows * copies)
                    # Structured Streaming takes files in the order of their times.
                    os.utime(path, (1e9 + batch, 1e9 + batch))
                sums.append(_times(sum_up(rows.decode().splitlines()), job.files * copies))

    def appear(self, job: Job, folder: Path, first: int, end: int) -> None:
        """Let the batches from `first` up to `end` be in a folder that an engine watches."""
        folder.mkdir(exist_ok=True)
        if job.files == 0:
            Path(folder, "new").write_text(str(end * NUMBERS))
            Path(folder, "new").replace(folder / "limit")
        for batch in range(first, end if job.files else first):
            for number in range(job.files):
                os.link(self._folder(job) / name_of(batch, number), folder / name_of(batch, number))

    def totals(self, job: Job, batches: int) -> Totals:
        """Give what must be in the table when so many batches are committed."""
        if job.files == 0:
            numbers = range(batches * NUMBERS)
            return {str(key): (batches, sum(numbers[key::NUMBERS])) for key in range(NUMBERS)}
        return _added(self._sums[job.name][:batches])

    def rows(self, job: Job, span: Span) -> int:
        """Give how many rows are measured."""
        both = (sum(n for n, _ in self.totals(job, batches).values()) for batches in (span.all, span.warm))
        return next(both) - next(both)

    def _folder(self, job: Job) -> Path:
        return self.folder / f"data_{job.name}"


def name_of(batch: int, number: int) -> str:
    """Name a file of a batch."""
    return f"{batch:05}-{number}.csv"


def limit(folder: Path) -> int:
    """Read how many numbers there are."""
    return int(Path(folder, "limit").read_text())


def _warm_first(months: list[Path]) -> list[Path]:
    return [*months[-2:], *months]


def sum_up(lines: Iterable[str]) -> Totals:
    """Sum up flights in Python: what the engines find has to be the same."""
    count: Counter[str] = Counter()
    total: Counter[str] = Counter()
    for line in lines:
        fields = line.split(",", _ORIGIN + 1)
        key = f"{fields[_CARRIER]}-{fields[_ORIGIN]}"
        count[key] += 1
        total[key] += 0 if fields[_DELAY] == "NA" else int(fields[_DELAY])
    return {key: (count[key], total[key]) for key in count}


def _times(totals: Totals, factor: int) -> Totals:
    return {key: (n * factor, total * factor) for key, (n, total) in totals.items()}


def _added(parts: Iterable[Totals]) -> Totals:
    found: Totals = {}
    for part in parts:
        for key, (n, total) in part.items():
            before = found.get(key, (0, 0))
            found[key] = before[0] + n, before[1] + total
    return found
