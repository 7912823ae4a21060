"""What stays flat and what grows: with transactions, topologies, tasks, partitions and readers, and at the limits.

A real ZooKeeper that does not force its log to the disk, and the steps of the protocol without Airflow; the readers
have an api-server.
Usage: script/bench scale [transactions | topologies | tasks | partitions | readers | limits] [sizes]
"""

from __future__ import annotations

import sys
from importlib import import_module

from benchmarks.figures import machine, quiet

PARTS = ("transactions", "topologies", "tasks", "partitions", "readers", "limits")


def main(*arguments: str) -> None:
    """Measure all of it, or one part."""
    quiet()
    parts, sizes = (arguments[:1], arguments[1:]) if arguments else (PARTS, ())
    for part in parts:
        print(f"\n## {part.capitalize()}; {machine()}", flush=True)
        import_module(f"benchmarks.scale.{part}").main(*sizes)
        print(f"\nAfter it: {machine()}", flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
