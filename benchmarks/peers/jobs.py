"""What every engine has to do: three jobs, their data, and the totals that must come of it.

All batches of a job are there when an engine begins.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from pathlib import Path

Totals = dict[str, tuple[int, int]]
"""By key, how many rows there are, and the sum of their values."""

FIRST = datetime(2013, 1, 1, tzinfo=timezone.utc)
LAST = FIRST + timedelta(days=364)
"""The first and the last logical date; a schedule that ends there starts no run by itself."""
NUMBERS = 10
COPIES = 5
"""Of a month in each of the two files of a batch."""
YEARS = 3
"""So often the year of twelve batches is written, for an engine that takes more than one."""
COLD = 12
"""The batches from the first begin of a fresh process that count as cold; those behind the first count as warm."""
BEGUN = "begun"
"""A file that stands beside the batches as soon as the first of them has begun."""
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


@dataclass
class Data:
    """The batches of all jobs below a folder."""

    folder: Path
    _sums: dict[str, list[Totals]] = field(default_factory=dict)

    def prepare(self, job: Job) -> None:
        """Write the files of all batches of a job, and sum them up in Python."""
        # Every task of a measured DAG imports this module, and the examples import the clients of all stores.
        from examples.flights import write_days, write_months

        if job == DAYS:
            self._write(job, write_days(self.folder / "all_days"), 1)
        if job == BIG:
            self._write(job, write_months(self.folder / "months") * YEARS, COPIES)

    def _write(self, job: Job, files: list[Path], copies: int) -> None:
        self._folder(job).mkdir()
        sums = {file: sum_up(file.read_text().splitlines()[1:]) for file in files}
        self._sums[job.name] = [_times(sums[file], job.files * copies) for file in files]
        for batch, file in enumerate(files):
            header, rows = file.read_bytes().split(b"\n", 1)
            for number in range(job.files):
                path = self._folder(job) / name_of(batch, number)
                path.write_bytes(header + b"\n" + rows * copies)
                # Structured Streaming takes files in the order of their times.
                os.utime(path, (1e9 + batch, 1e9 + batch))

    def appear(self, job: Job, folder: Path, batches: int) -> None:
        """Let so many batches be in a folder that an engine watches."""
        folder.mkdir(exist_ok=True)
        if job.files == 0:
            (folder / "limit").write_text(str(batches * NUMBERS))
        for batch in range(batches if job.files else 0):
            for number in range(job.files):
                os.link(self._folder(job) / name_of(batch, number), folder / name_of(batch, number))

    def totals(self, job: Job, batches: int) -> Totals:
        """Give what must be in the table when so many batches are committed."""
        if job.files == 0:
            numbers = range(batches * NUMBERS)
            return {str(key): (batches, sum(numbers[key::NUMBERS])) for key in range(NUMBERS)}
        return _added(self._sums[job.name][:batches])

    def rows(self, job: Job, batches: int) -> int:
        """Give how many rows are in so many batches."""
        return sum(n for n, _ in self.totals(job, batches).values())

    def _folder(self, job: Job) -> Path:
        return self.folder / f"data_{job.name}"


def name_of(batch: int, number: int) -> str:
    """Name a file of a batch."""
    return f"{batch:05}-{number}.csv"


def limit(folder: Path) -> int:
    """Read how many numbers there are."""
    return int(Path(folder, "limit").read_text())


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
