"""Storm Trident, Structured Streaming and plain Airflow beside transactions, on the same machine and data in one go.

Each engine does its jobs alone, into tables of one PostgreSQL that forces its log to the disk; a wrong total is an
error. All of them: the figures are written down. Usage: script/bench peers [trident | streaming | airflow]
`script/bench --check` measures all, writes nothing, and fails if a ratio is worse than the committed one.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

from benchmarks.figures import machine, quiet
from benchmarks.peers import streaming, through_airflow, trident
from benchmarks.peers.jobs import JOBS, Data, Job
from benchmarks.peers.place import MissingPart, Peer, Place
from benchmarks.peers.ratios import Figure, committed, compare, ratios, table, write
from benchmarks.peers.stopwatch import adopt_orphans, measured
from tests.servers.postgres import LocalPostgres

ENGINES: dict[str, Callable[[Place], AbstractContextManager[list[Peer]]]] = {
    "trident": trident.started,
    "streaming": streaming.started,
    "airflow": through_airflow.started,
}


def measure(place: Place, peer: Peer, job: Job) -> Figure:
    """Let an engine do a job, and check its totals."""
    span, name = peer.spans[job.name], f"{peer.key}_{job.name}"
    with peer.opened(job, name) as finish:
        took = measured(finish)
        place.check(job, span, name)
    return Figure(job.name, peer.key, peer.title, span.timed, place.data.rows(job, span), took)


def measure_all(engines: list[str]) -> tuple[list[Figure], list[str]]:
    """Measure and print; gives the figures, and why some are missing."""
    figures, missing = [], []
    with tempfile.TemporaryDirectory() as temporary, LocalPostgres(fsync=True) as postgres:
        data = Data(Path(temporary))
        data.prepare()
        place = Place(Path(temporary), data, postgres, postgres.new_database())
        for engine in engines:
            try:
                with ENGINES[engine](place) as peers:
                    for each in peers:
                        for name in each.spans:
                            figures.append(measure(place, each, JOBS[name]))
                            print(f"  {figures[-1]}", flush=True)
            except MissingPart as error:
                missing.append(str(error))
                print(f"  {error}", flush=True)
    return sorted(figures, key=lambda figure: [*JOBS].index(figure.job)), missing


def main(*arguments: str) -> int:
    """Measure; write the figures, or compare them with those that are committed."""
    quiet()
    adopt_orphans()
    print(f"The peers; {machine()}", flush=True)
    if arguments == ("--check",):
        if not committed():
            print("No ratios are committed: script/bench peers writes them.")
            return 1
        compared = compare(committed(), ratios(measure_all(list(ENGINES))[0]))
        print(*compared, sep="\n")
        return int(any(each.is_worse for each in compared))
    figures, missing = measure_all(list(arguments or ENGINES))
    print(*table(figures), sep="\n")
    if arguments or missing:
        print("Not all engines were measured: nothing is written.")
    else:
        write(figures)
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
