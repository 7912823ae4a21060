"""A worker of the tests, in a process of its own: it takes messages, makes further ones of them, acks, and may hold.

Usage: python -m tests.integration.message_worker ACKERS CHILDREN ACTION < references

It processes each reference and writes those of its children, one a line, then does ACTION: `flush`, or `hold` all that
it has to tell until it is killed.
"""

from __future__ import annotations

import sys
import time

from airflow_tx.acks import Collector


def main() -> None:
    """Work."""
    ackers, children, action = sys.argv[1:]
    collector = Collector(ackers, interval=3600)
    for line in sys.stdin:
        with collector.process(line.strip()) as message:
            for _ in range(int(children)):
                print(message.emit())
    if action == "flush":
        collector.close()
    print("done", flush=True)
    if action == "hold":
        time.sleep(3600)


if __name__ == "__main__":
    main()
