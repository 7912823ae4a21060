"""Ackers in znodes: a store that is away, and one that takes no larger record."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from airflow_tx.base.errors import AckersRefused, AckersUnavailable, RequirementFailed, StoreUnavailable
from airflow_tx.ledger.api import Node, Requirement, Write
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.messages.stores import ZnodeAckers
from airflow_tx.outputs.messages.tree import Origin
from tests.suites.acker_case import opened

ORIGIN = Origin("words", 1, 1)


class Away(MemoryStore):
    def get(self, path: str) -> Node | None:
        raise StoreUnavailable(hosts="zk1:2181", connection="zookeeper_default", reason="no answer")


def test_ackers_that_are_stored_in_the_ledger_are_unavailable_while_the_ledger_is_unreachable() -> None:
    with pytest.raises(AckersUnavailable, match="ledger's ZooKeeper cannot be reached: ZooKeeper zk1:2181"):
        ZnodeAckers(Away(), "/airflow_tx").report(ORIGIN)


def test_more_trees_than_a_znode_can_hold_are_refused_with_an_error_that_names_a_remedy() -> None:
    ackers = ZnodeAckers(MemoryStore(limit=20_000), "/airflow_tx")
    roots = opened(ackers, ORIGIN)
    with pytest.raises(
        AckersRefused, match=r"needs \d+ bytes, but a znode can store 20000\. Increase Transaction\(ackers="
    ):
        roots.emit(1000)
    assert ackers.report(ORIGIN).emitted == {}


class Overtaken(MemoryStore):
    """Somebody else is always faster."""

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        raise RequirementFailed(path="p", expected="version 1", found="version 2")


def test_a_write_to_the_ackers_gives_up_if_other_writers_overtake_it_repeatedly(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("airflow_tx.outputs.messages.stores._PASSES", 5)
    with pytest.raises(AckersUnavailable, match="overtaken 5 times in a row"):
        ZnodeAckers(Overtaken(), "/airflow_tx").open(ORIGIN, "", 1)
