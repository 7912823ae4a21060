"""Storm Trident, Structured Streaming and plain Airflow beside transactions, on the same machine and data in one go.

Each engine does its jobs alone, in a fresh process, into tables of one PostgreSQL that forces its log to the disk; a
wrong total is an error. Usage: script/bench peers [--more | --check] [small | days | big] [engines]
The jobs that are named, or all, are measured and written down; with --more as another round beside those that are there
already, of all engines or of those that are named; --check writes nothing, and fails if a ratio is worse.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from airflow_tx.testing.eventually import eventually
from benchmarks.figures import machine, quiet
from benchmarks.peers import streaming, through_airflow, trident
from benchmarks.peers.jobs import COLD, JOBS, Data, Job
from benchmarks.peers.place import MissingPart, Peer, Place
from benchmarks.peers.ratios import Figure, Part, compare, measured, ratios, table, write
from benchmarks.peers.stopwatch import Moment, adopt_orphans, now
from tests.servers.postgres import LocalPostgres

ENGINES: dict[str, Callable[[Place], AbstractContextManager[list[Peer]]]] = {
    "trident": trident.started,
    "streaming": streaming.started,
    "plain": through_airflow.started,
    "runs": through_airflow.started,
    "lane": through_airflow.started,
}
PATIENCE = 240.0


def measure(place: Place, peer: Peer, job: Job) -> Figure:
    """Let an engine do a job, and check its totals."""
    count, name = peer.counts[job.name], f"{peer.key}_{job.name}"
    with peer.opened(job, name) as has_begun:
        eventually(has_begun, PATIENCE, f"{name} has begun", interval=0.01)
        began = now()

        def reached(batches: int) -> Moment:
            rows, what = place.data.rows(job, batches), f"{batches} batches are in {name}"
            eventually(lambda: has_begun() and place.rows(name) >= rows, PATIENCE, what, interval=0.01)
            return now()

        moments = {batches: reached(batches) for batches in sorted({1, COLD, count})}
    place.check(job, count, name)

    def part(batches: int, since: Moment, before: int = 0) -> Part:
        rows = place.data.rows(job, batches) - place.data.rows(job, before)
        return Part(batches - before, rows, moments[batches].since(since))

    return Figure(job.name, peer.key, peer.title, part(1, began), part(COLD, began), part(count, moments[1], 1))


def measure_all(jobs: Sequence[str], engines: Sequence[str]) -> list[Figure]:
    """Measure and print."""
    figures = []
    with tempfile.TemporaryDirectory() as temporary, LocalPostgres(fsync=True) as postgres:
        data = Data(Path(temporary))
        for job in jobs:
            data.prepare(JOBS[job])
        place = Place(Path(temporary), data, postgres, postgres.new_database())
        for started in dict.fromkeys(ENGINES[engine] for engine in engines):
            try:
                with started(place) as peers:
                    for each in [peer for peer in peers if peer.key in engines]:
                        for job in jobs:
                            figures.append(measure(place, each, JOBS[job]))
                            print(f"  {figures[-1]}", flush=True)
            except MissingPart as error:
                print(f"  {error}", flush=True)
    return figures


def main(*arguments: str) -> int:
    """Measure; write the figures, or compare them with those that are committed."""
    unknown = {*arguments} - {*JOBS, *ENGINES, "--more", "--check"}
    if unknown:
        print(f"Unknown: {', '.join(sorted(unknown))}\n{__doc__}")
        return 2
    quiet()
    adopt_orphans()
    print(f"The peers; {machine()}", flush=True)
    jobs, engines = ([each for each in known if each in arguments] or [*known] for known in (JOBS, ENGINES))
    figures = measure_all(jobs, engines)
    rounds = [[each for each in figures if each.job == job] for job in jobs]
    if "--check" in arguments and not measured():
        print("No figures are committed: script/bench peers writes them.")
        return 1
    if "--check" in arguments:
        wanted = {name: ratio for name, ratio in ratios(measured()).items() if name.partition(":")[0] in jobs}
        compared = compare(wanted, ratios(rounds))
        print(*compared, sep="\n")
        return int(any(each.is_worse for each in compared))
    if len(figures) < len(jobs) * len(ENGINES) and "--more" not in arguments:
        print("Not all engines were measured: nothing is written.")
        return 0
    kept = [figures for figures in measured() if "--more" in arguments or figures[0].job not in jobs]
    write([*kept, *rounds])
    print(*table([*kept, *rounds]), sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
