"""Which accepted losses lie before a batch, and how long they are remembered."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.api import Put
from airflow_tx.ledger.batch_words import SHOWN, shortened
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Loss, Metadata, encode
from airflow_tx.ledger.steps import loss
from airflow_tx.ledger.steps.loss import StartPosition, start_after, without_passed
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.memory import MemoryStore
from tests.model.driver import Run, Topology

ADA = Audit("ada", "the log was cut")


def of(partition: str, position: Any, resume_at: Any) -> Loss:
    return Loss(partition, position, resume_at, f"{partition} {position} to {resume_at}")


def accepted(topology: Topology, *losses: Loss) -> Any:
    return topology.ledger().accept_loss(losses, ADA)


def started(topology: Topology, position: Any) -> StartPosition:
    return start_after(Reader(topology.store()), topology.paths, topology.topology, position)


def dropped(topology: Topology, txid: int) -> Any:
    return without_passed(Reader(topology.store()), topology.paths, topology.topology, txid)


@pytest.fixture
def by_partition() -> Topology:
    store = MemoryStore()
    topology = Topology(lambda: store, "/tx", [], partitioned=True)
    topology.ledger().open(topology.request)
    return topology


def test_long_lists_of_words_are_shortened() -> None:
    words = [f"w{number}" for number in range(SHOWN + 2)]
    assert shortened(words[:SHOWN]) == words[:SHOWN]
    assert shortened(words) == [*words[:SHOWN], "and 2 more"]


def test_a_batch_without_a_loss_or_in_a_new_ledger_starts_at_its_position(topology: Topology) -> None:
    topology.ledger().open(topology.request)
    assert started(topology, 3) == StartPosition(3)
    accepted(topology, of("", 3, 9))
    found = started(topology, None)
    assert (found.position, found.lost) == (None, {})


def test_losses_that_adjoin_each_other_are_passed_in_one_batch(topology: Topology) -> None:
    topology.ledger().open(topology.request)
    accepted(topology, of("", 3, 9), of("", 9, 12), of("", 20, 30))
    found = started(topology, 3)
    assert (found.position, found.lost) == (12, {"": [" 3 to 9", " 9 to 12"]})
    assert found.passed(13) == [" 3 to 9", " 9 to 12"]
    found = started(topology, 5)
    assert (found.position, found.passed(6)) == (5, [])


def test_the_last_accepted_loss_at_a_position_counts(topology: Topology) -> None:
    topology.ledger().open(topology.request)
    for resume_at in (9, 12):
        accepted(topology, of("", 3, resume_at))
    assert started(topology, 3).position == 12


def test_each_partition_starts_after_its_own_losses(by_partition: Topology) -> None:
    accepted(by_partition, of("A", 3, 9), of("B", 5, 6))
    found = started(by_partition, {"A": 3, "B": 4, "C": 3})
    assert (found.position, found.lost) == ({"A": 9, "B": 4, "C": 3}, {"A": ["A 3 to 9"], "B": [], "C": []})
    assert (found.passed({"A": 10}), found.passed({"B": 5})) == (["A 3 to 9"], [])


def test_a_loss_is_removed_when_no_later_transaction_can_start_before_it(topology: Topology) -> None:
    Run(topology, "r1").begin(3)
    accepted(topology, of("", 3, 9), of("", 30, 40))
    accepted(topology, of("", 31, 41))
    assert dropped(topology, 1).losses == [1]
    Run(topology, "r2").begin(1)
    assert dropped(topology, 1).losses == [1]
    assert dropped(topology, 2).losses == []


def test_a_loss_is_kept_while_an_open_transaction_has_begun_its_partition_before_the_loss(
    by_partition: Topology,
) -> None:
    Run(by_partition, "r1").begin({"A": 3})
    accepted(by_partition, of("B", 7, 8))
    accepted(by_partition, of("B", 3, 4))
    begun = Metadata(1, {"A": [0, 3]}, {"A": 3}, begin={"B": 7})
    by_partition.store().multi([], [Put(by_partition.paths.meta(1), encode(begun))])
    assert dropped(by_partition, 1).losses == [1]
    empty = Metadata(1, None, None)
    by_partition.store().multi([], [Put(by_partition.paths.meta(1), encode(empty))])
    assert dropped(by_partition, 1).losses == []


def test_many_losses_are_recorded_in_several_repair_records(
    topology: Topology, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loss, "LOSSES_A_RECORD", 2)
    topology.ledger().open(topology.request)
    before = topology.topology
    done = accepted(topology, *(of("", number, number + 1) for number in range(5)))
    assert topology.topology.losses == [1, 2, 3]
    assert done.summary == "lost, and in no batch:  4 to 5"
    assert topology.topology.generation == before.generation
    assert started(topology, 0).position == 5


def test_the_start_of_an_order_is_recorded_and_can_be_moved_before_the_first_transaction(topology: Topology) -> None:
    ledger = topology.ledger()
    ledger.open(topology.request)
    before = topology.topology
    assert ledger.run(loss.note_origin, 5) == 5
    assert (topology.topology.origin, topology.topology.op != before.op) == (5, True)
    assert ledger.run(loss.note_origin, 6) == 6
    assert topology.topology.origin == 6
    noted = topology.topology
    assert ledger.run(loss.note_origin, 6) == 6
    assert topology.topology == noted


def test_the_start_of_an_order_cannot_be_changed_after_the_first_transaction_has_begun(topology: Topology) -> None:
    Run(topology, "r1").begin(3)
    assert topology.allocated == 1
    ledger = topology.ledger()
    assert ledger.run(loss.note_origin, 5) == loss.next_position(Reader(topology.store()), topology.paths)
    assert topology.topology.origin is None
