"""Messages a second that workers emit and ack, and what the ackers keep of them. Usage: script/bench acks [messages]

Four worker processes pass references on to each other as texts: every message is emitted by one and acked by another.
First one tree, so one acker has it all; then a tree for each of four ackers. On Redis, then on ZooKeeper.
"""

from __future__ import annotations

import multiprocessing
import resource
import sys
import time
import uuid
from multiprocessing.context import SpawnProcess
from typing import Any

from airflow_tx.acks import AckerStore, Collector, open_ackers
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.outputs.messages.messages import RootEmitter
from airflow_tx.outputs.messages.tree import Origin
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.figures import machine
from tests.servers.redis import LocalRedis

MESSAGES = 1_000_000
WORKERS = 4
AT_ONCE = 1000
SPLIT = TaskTry("split", -1, "t")


def work(ackers: str, messages: int, first: Any, own: Any, further: Any, ready: Any) -> None:
    """Make messages of the first, for the worker after this one; ack those of the worker before it."""
    with Collector(ackers) as collector:
        ready.wait()
        with collector.process(first.get()) as branch:
            for start in range(0, messages, AT_ONCE):
                further.put("\n".join([branch.emit() for _ in range(min(AT_ONCE, messages - start))]))
                _ack(collector, own.get())


def _ack(collector: Collector, lines: str) -> None:
    for line in lines.split("\n"):
        with collector.process(line):
            pass


def opened(store: AckerStore, ackers: int) -> tuple[Origin, RootEmitter]:
    """A new attempt."""
    origin = Origin(f"bench {uuid.uuid4().hex[:8]}", 1, 1)
    store.open(origin, "birth", ackers)
    return origin, RootEmitter(store, origin, ackers, SPLIT)


def rates(url: str, messages: int, ackers: int) -> str:
    """Messages a second, from the first until every tree is complete, and by processor time of the workers."""
    before = _processor_seconds()
    store = open_ackers(url)
    origin, roots = opened(store, ackers)
    context = multiprocessing.get_context("spawn")
    queues, firsts = ([context.Queue() for _ in range(WORKERS)] for _ in range(2))
    ready = context.Barrier(WORKERS + 1)
    workers: list[SpawnProcess] = []
    for number, own in enumerate(queues):
        further = queues[(number + 1) % WORKERS]
        arguments = (url, messages // WORKERS, firsts[number], own, further, ready)
        workers.append(context.Process(target=work, args=arguments))
        workers[-1].start()
    collector = Collector(store)
    if ackers == 1:
        with collector.process(*roots.emit(1)) as root:
            branches = [root.emit() for _ in range(WORKERS)]
    else:
        branches = roots.emit(WORKERS)
    collector.flush()
    ready.wait()
    start = time.perf_counter()
    for first, branch in zip(firsts, branches, strict=True):
        first.put(branch)
    eventually(lambda: store.report(origin).open == {}, 600, "every tree is complete", interval=0.02)
    seconds = time.perf_counter() - start
    for worker in workers:
        worker.join()
        assert worker.exitcode == 0
    store.close()
    used = _processor_seconds() - before
    return f"{messages / seconds:,.0f} messages/s ({messages / used:,.0f} a second of processor time)"


def _processor_seconds() -> float:
    found = resource.getrusage(resource.RUSAGE_CHILDREN)
    return found.ru_utime + found.ru_stime


def redis_size(server: LocalRedis, origin: Origin) -> int:
    """Bytes of the one acker, as Redis counts them."""
    (key,) = (key for key in server.client().scan_iter() if f":{origin.txid}:".encode() in key)
    return int(server.client().memory_usage(key, samples=0))


def sizes(server: LocalRedis) -> tuple[float, int, int]:
    """Bytes of a tree among a thousand; of an acker with one tree of one message, and of a million."""
    store = open_ackers(server.url())
    origin, roots = opened(store, 1)
    (root,) = roots.emit(1)
    one = redis_size(server, origin)
    with Collector(store, interval=0.01) as collector:
        message = collector.process(root)
        for _ in range(MESSAGES):
            message.emit()
        collector.flush()
        million = redis_size(server, origin)
        roots.emit(1000)
        each = (redis_size(server, origin) - million) / 1000
    return each, one, million


def main() -> None:
    """Measure and print."""
    messages = int(sys.argv[1]) if len(sys.argv) > 1 else MESSAGES
    print(f"{machine()}; {messages:,} messages, {WORKERS} worker processes")
    with LocalRedis() as redis, LocalZooKeeper() as zookeeper:
        for name, url in (("Redis", redis.url()), ("ZooKeeper", f"zookeeper://{zookeeper.hosts}/bench")):
            print(f"{name}, one tree in one acker: {rates(url, messages, 1)}", flush=True)
            print(f"{name}, a tree in each of {WORKERS} ackers: {rates(url, messages, WORKERS)}", flush=True)
        redis.client().flushall()
        each, small, large = sizes(redis)
        print(f"Redis: {each:.0f} bytes a tree. An acker with a tree of one message has {small} bytes; with one of")
        print(f"{MESSAGES:,} messages, and the number of the stream of their worker, {large}.")


if __name__ == "__main__":
    main()
