"""What the ackers of a topology have to do, from one look after another."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import AckersUnavailable
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.messages.messages import Collector
from airflow_tx.outputs.messages.stores import AckerLoad, AckerWatch, ZnodeAckers
from airflow_tx.outputs.messages.tree import Origin
from tests.suites.acker_case import opened


def record(attempt: int = 1, phase: Phase = Phase.PROCESSING) -> Any:
    return SimpleNamespace(attempt=attempt, phase=phase)


@pytest.fixture
def store() -> ZnodeAckers:
    return ZnodeAckers(MemoryStore(), "/tx")


def test_the_load_contains_all_open_trees_and_the_acks_since_the_last_reading(store: ZnodeAckers) -> None:
    now = [100.0]
    watch = AckerWatch("words", clock=lambda: now[0])
    first, second = (opened(store, Origin("words", txid, 1)) for txid in (1, 2))
    references = [*first.emit(4), *second.emit(2)]
    assert watch.look(store, {1: record(), 2: record()}, "") == AckerLoad(6, None)
    with Collector(store, topology="words") as collector:
        for reference in references[:5]:
            collector.process(reference).ack()
        collector.flush()
        now[0] += 10
        assert watch.look(store, {1: record(), 2: record()}, "") == AckerLoad(1, 0.5)
        now[0] += 10
        assert watch.look(store, {1: record(), 2: record()}, "") == AckerLoad(1, 0.0)
        collector.process(references[5]).ack()
        collector.flush()
    now[0] += 10
    store.forget(Origin("words", 1, 1))
    found = watch.look(store, {2: record(), 3: record()}, "")  # 1 has ended, and 3 has no ackers yet
    assert found == AckerLoad(0, 0.1)


def test_the_load_of_a_processed_transaction_has_no_open_tree_and_needs_no_query_to_its_ackers(
    store: ZnodeAckers,
) -> None:
    watch = AckerWatch("words")
    assert watch.look(store, {7: record(phase=Phase.COMMITTING)}, "") == AckerLoad(0, None)
    opened(store, Origin("words", 8, 2)).emit(3)
    assert watch.look(store, {8: record(1)}, "").trees == 0  # a newer attempt has begun since the ledger was read
    assert watch.look(store, {8: record(2)}, "").trees == 3


def test_ackers_that_hang_delay_no_caller_and_are_queried_only_once(store: ZnodeAckers) -> None:
    answer, asked = threading.Event(), list[int]()

    @contextmanager
    def hanging() -> Iterator[ZnodeAckers]:
        asked.append(1)
        answer.wait(60)
        yield store

    watch = AckerWatch("words")
    opened(store, Origin("words", 7, 1)).emit(3)
    for _ in range(2):
        watch.ask_ackers(hanging, {7: record()}, "")
        assert not watch.wait(0.0)
    answer.set()
    assert watch.wait(60)
    assert watch.answer == AckerLoad(3, None)
    watch.ask_ackers(hanging, {}, "")
    assert watch.wait(60)
    assert watch.answer.trees == 0
    assert len(asked) == 2


def test_a_query_to_unreachable_ackers_returns_the_error(store: ZnodeAckers) -> None:
    @contextmanager
    def away() -> Iterator[ZnodeAckers]:
        raise AckersUnavailable(where="redis", reason="refused")
        yield store

    watch = AckerWatch("words")
    watch.ask_ackers(away, {}, "")
    assert watch.wait(60)
    assert isinstance(watch.error, AckersUnavailable)
