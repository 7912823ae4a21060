"""One transaction with many mapped tasks: their acks, the commit, and whoever watches meanwhile."""

from __future__ import annotations

from typing import Any

from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.ledger.steps import processing
from airflow_tx.ledger.views.view import topology_view, transaction_details
from airflow_tx.transaction.commit.turn import read_line
from benchmarks.scale.filled import Repeatable
from benchmarks.scale.server import COLUMNS, MeteredStore, ScaleZooKeeper, cost, metered, number, row, size, table

SIZES = (100, 1_000, 10_000)
ROOT = "/tasks"
MAPPED = "count"


def main(*sizes: str) -> None:
    """Measure and print, for so many mapped instances."""
    table("mapped instances", "what", COLUMNS)
    largest = []
    with ScaleZooKeeper() as server:
        for count in [int(each) for each in sizes] or SIZES:
            with metered(server.hosts) as store:
                largest.append((count, _measured(server, store, count)))
    table("mapped instances", "largest record")
    for count, most in largest:
        row(number(count), size(most))


def _measured(server: ScaleZooKeeper, store: MeteredStore, count: int) -> int:
    pipeline = Repeatable(store, ROOT, f"t{count}", tasks=0)
    paths = pipeline.paths
    begun = pipeline.begin("first")
    attempt, tries = begun.attempt, iter(TaskTry(MAPPED, index, f"{index:036}") for index in range(count))

    def work() -> None:
        ledger, task = pipeline.ledger, next(tries)
        ledger.start(attempt, task)
        output = [{"name": "return_value", "digest": "0" * 32}]
        ledger.run(processing.ack, attempt, task, rows=1, outputs=output, code="0" * 16)

    def show(what: str, action: Any, times: int = 1) -> None:
        row(number(count), what, cost(store, server, action, times))

    show("a task: start and ack", work, count - 1)
    waiting = pipeline.begin("second").attempt.txid
    show("the one behind it looks", lambda: read_line(ReadOnlyLedger(store, paths), waiting, [MAPPED]), 3)
    show("`airflow tx list T`", lambda: topology_view(store, paths))
    show("`airflow tx show T N`", lambda: transaction_details(store, paths, 1))
    work()
    done: list[Any] = []
    show("the batch is complete", lambda: done.append(pipeline.complete(begun)))
    show("its commit", lambda: pipeline.mark(pipeline.acquire(begun, done[0])))
    show("the next one, without them", lambda: _next(pipeline, paths))
    return store.largest


def _next(pipeline: Repeatable, paths: Paths) -> None:
    begun = pipeline.begin("second")
    assert Reader(pipeline.store).peek_if_any(TransactionRecord, paths.transaction(begun.attempt.txid)) is not None
    pipeline.mark(pipeline.acquire(begun, pipeline.process(begun)))
