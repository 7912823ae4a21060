"""Where a partition begins is decided once: a replay of the transaction that took it up does not choose anew."""

from __future__ import annotations

from typing import Any

from airflow_tx.ledger.api import Store
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.batch import Batch
from tests.contract.losses import Log, Topology


class Tail(Log):
    """A source that begins with what comes after it was first asked; every batch has all that there is."""

    def decide(self, attempt: TransactionAttempt, position: Any) -> Batch | None:
        self.asked.append(position)
        places = position or {}
        begins: Any = {name: rows.stop for name, rows in self.there.items() if name not in places}
        starts = {**begins, **places}
        ends: Any = {name: rows.stop for name, rows in self.there.items() if starts[name] < rows.stop or name in begins}
        return Batch({name: [starts[name], end] for name, end in ends.items()}, ends, start=begins) if ends else None


def test_a_replay_of_the_first_transaction_begins_at_the_first_position(each_store: Store, zookeeper_root: str) -> None:
    log = Tail(a=range(3))
    topology = Topology(each_store, zookeeper_root, log, "opaque")
    assert topology.begin("r1").position == {"a": 3}
    log.there["a"] = range(7)
    second = topology.begin("r2")
    assert second.metadata == {"a": [3, 7]}
    again = topology.begin("r1")
    assert (again.metadata, again.position) == ({"a": [3, 7]}, {"a": 7})
    assert log.asked == [None, {"a": 3}, {"a": 3}]


def test_a_replay_without_rows_keeps_the_first_position(each_store: Store, zookeeper_root: str) -> None:
    log = Tail(a=range(3))
    topology = Topology(each_store, zookeeper_root, log, "opaque")
    topology.begin("r1")
    for _ in range(2):
        again = topology.begin("r1")
        assert (again.metadata, again.position) == (None, {"a": 3})
    log.there["a"] = range(7)
    assert topology.begin("r2").metadata == {"a": [3, 7]}


def test_the_first_position_of_an_added_partition_is_decided_once(each_store: Store, zookeeper_root: str) -> None:
    log = Tail(a=range(3))
    topology = Topology(each_store, zookeeper_root, log, "opaque")
    topology.finish(topology.begin("r1"))
    log.there.update(a=range(4), b=range(5))
    assert topology.begin("r2").position == {"a": 4, "b": 5}
    log.there.update(b=range(9))
    assert topology.begin("r2").metadata == {"a": [3, 4], "b": [5, 9]}


def test_a_replay_of_a_transactional_source_keeps_its_rows_and_position(each_store: Store, zookeeper_root: str) -> None:
    log = Tail(a=range(3))
    topology = Topology(each_store, zookeeper_root, log, "transactional")
    first = topology.begin("r1")
    log.there["a"] = range(7)
    again = topology.begin("r1")
    assert (again.metadata, again.position) == (first.metadata, first.position)
