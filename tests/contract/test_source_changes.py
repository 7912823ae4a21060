"""What a DAG may change about the source of its topology: its kind while nothing is open, its shape never."""

from __future__ import annotations

import pytest

from airflow_tx.base.errors import SourceKindChanged, SourceShapeChanged
from airflow_tx.ledger.api import Store
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import TopologyRecord
from airflow_tx.ledger.views.view import topology_view
from tests.contract.losses import Log, Topology


@pytest.fixture
def topology(each_store: Store, zookeeper_root: str) -> Topology:
    return Topology(each_store, zookeeper_root, Log(), "transactional")


def record(topology: Topology) -> TopologyRecord:
    return topology_view(topology.store, topology.paths).record


def test_a_change_of_the_source_kind_is_refused_while_transactions_are_open(topology: Topology) -> None:
    begun = topology.begin("r1")
    before = record(topology)
    with pytest.raises(SourceKindChanged) as refused:
        topology.ledger.open(replace(topology.request, source_kind="opaque"))
    told = refused.value
    assert (told.found, told.expected, told.first, told.last) == ("transactional", "opaque", 1, 1)
    assert record(topology) == before
    topology.finish(begun)
    topology.ledger.open(replace(topology.request, source_kind="opaque"))
    assert record(topology).source_kind == "opaque"


def test_begin_is_refused_if_the_dag_has_changed_the_kind_of_its_source(topology: Topology) -> None:
    topology.begin("r1")
    topology.request = replace(topology.request, source_kind="opaque")
    with pytest.raises(SourceKindChanged):
        topology.begin("r2")
    assert topology_view(topology.store, topology.paths).allocated == 1


def test_a_change_between_a_partitioned_and_an_unpartitioned_source_is_always_refused(topology: Topology) -> None:
    other = replace(topology.request, partitioned=not topology.request.partitioned)
    topology.finish(topology.begin("r1"))
    before = record(topology)
    with pytest.raises(SourceShapeChanged) as refused:
        topology.ledger.open(other)
    assert (refused.value.found, refused.value.expected) == ("no partitions", "them")
    assert record(topology) == before


def test_a_topology_without_transactions_accepts_a_partitioned_or_an_unpartitioned_source(topology: Topology) -> None:
    topology.ledger.open(topology.request)
    other = replace(topology.request, partitioned=not topology.request.partitioned, source_kind="opaque")
    topology.ledger.open(other)
    assert (record(topology).partitioned, record(topology).source_kind) == (other.partitioned, "opaque")
