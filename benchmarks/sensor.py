"""How soon what waits for a commit is woken: from the mark of the commit to the event of the trigger, in one process.

What Airflow needs to run the sensor then is that of any deferred task: one to several seconds.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import random
import sys
import tempfile
import time

from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.triggers.sensor import CommittedTrigger
from benchmarks.figures import machine, quiet, spread
from benchmarks.topology import DirectSpec, Numbers, TaskInstance, begin, connected, output, process, state, update

TASK = "count"
POLL = 1.0


async def woken(trigger: CommittedTrigger) -> float:
    """When the trigger fires."""
    async for _ in trigger.run():
        return time.monotonic()
    raise AssertionError("it ended without an event")


async def reaction(spec: DirectSpec, target: object, run_id: str) -> float:
    """Seconds from the commit of one more transaction to the event."""
    begun = begin(spec, run_id)
    process(spec, begun, TASK)
    trigger = CommittedTrigger(
        zookeeper_conn_id="bench",
        root="/benchmark",
        topology=spec.topology,
        hold=0.0,
        poll=POLL,
        wanted={"txid": begun.txid},
    )
    waiting = asyncio.create_task(woken(trigger))
    await asyncio.sleep(1 + random.random())
    with spec.store() as store:
        committer = TaskInstance("commit", run_id, output(begun))
        log = logging.getLogger("airflow_tx.benchmark")
        commit = Commit(spec, begun, [update(TASK, target)], spec.ledger(store), committer, log)  # type: ignore[arg-type]
        await asyncio.to_thread(commit_in_turn, commit, store, patience=0.0)
    committed = time.monotonic()
    return await waiting - committed


async def measure(count: int, hosts: str, folder: str) -> list[float]:
    with connected(hosts) as store:
        fields = {"max_pending": 4, "tasks": (TASK,), "inside": (TASK, "commit"), "hosts": hosts, "folder": folder}
        spec = DirectSpec("benchmark", "benchmark", Numbers(), kept=store, **fields)  # type: ignore[arg-type]
        target = state(f"sqlite:///{folder}/states.db")
        return [await reaction(spec, target, f"r{number}") for number in range(count)]


def main() -> None:
    quiet()
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    with LocalZooKeeper(fsync=False) as zookeeper, tempfile.TemporaryDirectory() as folder:
        os.environ["AIRFLOW_CONN_BENCH"] = json.dumps({"conn_type": "zookeeper", "host": zookeeper.hosts})
        found = asyncio.run(measure(count, zookeeper.hosts, folder))
    print(f"from the commit to the event of a sensor, looking every {POLL:g} s, {count} times ({machine()}):")
    print(f"  {spread(found)}")


if __name__ == "__main__":
    main()
