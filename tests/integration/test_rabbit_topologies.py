"""A topology over a real queue is renamed, reset or deleted: each message is counted once, or is still the broker's."""

from __future__ import annotations

import json
import logging
import threading
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
from pika import BasicProperties  # type: ignore[import-untyped]

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.answers import Begun, NoData
from airflow_tx.ledger.api import Paths, Requirement, Write
from airflow_tx.ledger.audit.move import Mover
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.sources.rabbit import RabbitQueueSource
from airflow_tx.testing.eventually import eventually
from airflow_tx.transaction.commit.handoff import note_committed
from tests.servers.rabbit import LocalRabbit
from tests.stage import begin_run
from tests.unit.bench import MemorySpec

AUDIT = Audit("ann", "why")
_SOON = 300.0  # far more than a step takes, however busy the machine is


class HeldStore(MemoryStore):
    """Holds up whoever makes the n-th write of one record, once."""

    def __init__(self, path: str, number: int) -> None:
        super().__init__()
        self.path, self.left = path, number
        self.reached, self.released = threading.Event(), threading.Event()

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        if any(write.path == self.path for write in writes):
            self.left -= 1
            if self.left == 0:
                self.reached.set()
                assert self.released.wait(_SOON)
        super().multi(requirements, writes)


class Queue(RabbitQueueSource):
    """A queue, and what else happens while its source decides."""

    meanwhile: Callable[[], None] = staticmethod(lambda: None)

    def decide(self, attempt: Any, position: Any) -> Any:
        batch = super().decide(attempt, position)
        self.meanwhile()
        return batch


class Shop:
    """Orders in a queue, and the topologies that count them."""

    def __init__(self, rabbit: LocalRabbit, store: MemoryStore, area: StagingArea) -> None:
        self.store, self.area, self.queue = store, area, f"q{uuid.uuid4().hex[:8]}"
        self.connection = rabbit.connect()
        self.channel = self.connection.channel()
        self.channel.confirm_delivery()
        self.channel.queue_declare(self.queue, durable=True)

    def publish(self, *messages: str) -> None:
        for each in messages:
            self.channel.basic_publish("", self.queue, b"", BasicProperties(delivery_mode=2, message_id=each))

    def has(self, count: int) -> None:
        """Wait until so many messages are the broker's again; it may need a moment to take them back."""

        def is_so() -> bool:
            return bool(self.channel.queue_declare(self.queue, passive=True).method.message_count == count)

        eventually(is_so, 120, f"{count} messages wait in the queue")

    def spec(self, topology: str, meanwhile: Callable[[], None] = lambda: None, most: int = 2) -> MemorySpec:
        source = Queue("rabbit", self.queue, max_rows_per_batch=most)
        source.meanwhile = meanwhile
        return MemorySpec(topology, topology, source, max_pending=9, memory=self.store, area=self.area)

    def begin(self, spec: MemorySpec, run_id: str) -> Any:
        return begin_run(spec, run_id)

    def taken(self, spec: MemorySpec, *runs: str) -> list[str]:
        """Begin these runs; the messages that they have, as a task reads them."""
        found: list[str] = []
        for run_id in runs:
            begun = self.begin(spec, run_id)
            assert isinstance(begun, Begun), begun
            rows: Any = spec.named_source.emit_batch(begun.attempt, begun.metadata)
            found += [row["message_id"] for row in rows]
        return found

    def mover(self, spec: MemorySpec) -> Mover:
        return Mover(spec.ledger(self.store))


@pytest.fixture
def make_shop(rabbit: LocalRabbit, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Shop]]:
    monkeypatch.setenv("AIRFLOW_CONN_RABBIT", json.dumps(rabbit.airflow_connection()))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    made: list[Shop] = []

    def make(store: MemoryStore | None = None) -> Shop:
        made.append(Shop(rabbit, store or MemoryStore(), StagingArea(str(tmp_path / "staged"), "ledger")))
        return made[-1]

    yield make
    for shop in made:
        shop.connection.close()


@pytest.mark.parametrize("number", [1, 2])  # the mark, and the record once all is copied
def test_a_begin_during_a_rename_acks_only_messages_that_the_ledger_has_bound(
    make_shop: Callable[..., Shop], number: int
) -> None:
    store = HeldStore(Paths("/airflow_tx", "new").record, number)
    shop = make_shop(store)
    old, new = shop.spec("old"), shop.spec("new")
    shop.publish("m1", "m2", "m3", "m4")
    assert shop.taken(old, "r1") == ["m1", "m2"]
    renaming = threading.Thread(target=lambda: shop.mover(old).rename(new.paths, "new", AUDIT))

    def meanwhile() -> None:
        renaming.start()
        assert store.reached.wait(_SOON)

    if number == 1:
        assert shop.begin(shop.spec("old", meanwhile), "r2").txid == 2
    else:
        with pytest.raises(UnreadableRecord, match="being renamed to new: airflow tx rename old new --why TEXT"):
            shop.begin(shop.spec("old", meanwhile), "r2")
    shop.has(2 * (number - 1))
    store.released.set()
    renaming.join()
    assert sorted(shop.taken(new, "r1", "r2")) == ["m1", "m2", "m3", "m4"]
    assert list(ReadOnlyLedger(store, new.paths).open_records()) == [1, 2]
    assert shop.begin(new, "r3") == NoData(3)
    shop.has(0)


@pytest.mark.parametrize("ended_by", ["reset", "delete"])
def test_a_reset_or_recreated_topology_takes_no_messages_staged_before(
    make_shop: Callable[..., Shop], ended_by: str
) -> None:
    shop = make_shop()
    before = shop.spec("orders", most=6)
    shop.publish(*(f"a{number}" for number in range(14)))
    assert len(shop.taken(before, "r1", "r2", "r3")) == 14
    for run_id in ("r1", "r2"):
        note_committed(before, shop.begin(before, run_id), log=logging.getLogger("task"))

    life = before.ledger(shop.store).incarnation()

    def clear() -> None:
        shop.area.forget(life)

    if ended_by == "reset":
        ledger = before.ledger(shop.store)
        Repairs(ledger).reset(TopologyRequest("orders", "transactional", 9), AUDIT, clear=clear)
    else:
        shop.mover(before).close_for_deletion()
        clear()
        shop.mover(before).delete()

    after = shop.spec("orders")
    shop.publish("a1", "b2", "b3", "b4", "b5", "b6")
    assert shop.taken(after, "s1", "s2") == ["a1", "b2", "b3", "b4"]
    for run_id in ("s1", "s2"):
        note_committed(after, shop.begin(after, run_id), log=logging.getLogger("task"))
    after.source_of(after.ledger(shop.store).incarnation()).cleanup_before(3)
    shop.publish("b4")
    assert shop.taken(after, "s3") == ["b5", "b6"]
    shop.has(1)
    assert shop.begin(after, "s4") == NoData(4)
    shop.has(0)


def test_messages_that_another_ledger_has_taken_are_not_taken_again_and_not_removed(
    make_shop: Callable[..., Shop],
) -> None:
    own, other = make_shop(), make_shop()
    other.queue = own.queue  # as of a broker of its own, to which its connection leads
    own.publish("m1", "m2")
    assert own.taken(own.spec("orders"), "r1") == ["m1", "m2"]
    other.publish("n1", "n2", "n3")
    here, there = own.spec("orders"), other.spec("orders")
    assert other.taken(there, "r1", "r2") == ["n1", "n2", "n3"]
    for run_id in ("r1", "r2"):
        note_committed(there, other.begin(there, run_id), log=logging.getLogger("task"))
    there.source_of(there.ledger(other.store).incarnation()).cleanup_before(3)
    assert own.taken(here, "r1") == ["m1", "m2"]
