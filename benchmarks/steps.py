"""Processor time of begin, a task and a commit without Airflow, each in a fork of a process that has imported all.

That is what a LocalExecutor with `[tx] preload` does. ZooKeeper and SQLite are real. Usage: script/bench steps [runs]
"""

from __future__ import annotations

import os
import pickle
import statistics
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks import topology
from benchmarks.figures import machine, quiet
from benchmarks.requests import Counted

RUNS = 20


def forked(work: Callable[[], Any]) -> tuple[float, Any]:
    """Do it in a fork: processor time of all of its threads, and what it returns."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            began = time.process_time()
            result = work()
            found = pickle.dumps((time.process_time() - began, result))
            with os.fdopen(writing, "wb") as stream:
                stream.write(found)
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as stream:
        told = stream.read()
    os.waitpid(pid, 0)
    took, result = pickle.loads(told)
    return took, result


def main(runs: int = RUNS) -> None:
    """Measure and print."""
    from airflow_tx.plugin.preload import import_ahead

    quiet()
    import_ahead("benchmark", client_used=lambda: False)
    took: dict[str, list[float]] = defaultdict(list)
    with tempfile.TemporaryDirectory() as folder, LocalZooKeeper(fsync=False) as zookeeper:
        both = {book: Counted(zookeeper, Path(folder), 1, book=bool(book)) for book in ("", " with a book")}
        for number in range(runs + 1):
            run_id = f"run{number}"
            for book, counted in both.items():
                seconds, begun = forked(partial(topology.begin, counted.spec, run_id))
                took[f"begin{book}"].append(seconds)
                processed = forked(partial(topology.process, counted.spec, begun, counted.names[0]))
                took[f"a task{book}"].append(processed[0])
                took[f"commit{book}"].append(forked(partial(counted.commit, begun, run_id))[0])
    print(f"Steps in forks, medians of {runs}; {machine()}")
    for step, each in took.items():
        print(f"  {step:20}{1000 * statistics.median(each[1:]):7.1f} ms of a processor")


if __name__ == "__main__":
    main(*map(int, sys.argv[1:2]))
