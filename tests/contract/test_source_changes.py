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


def test_another_kind_of_source_is_refused_while_transactions_are_open(topology: Topology) -> None:
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


def test_a_begin_with_another_kind_of_source_is_refused(topology: Topology) -> None:
    topology.begin("r1")
    topology.request = replace(topology.request, source_kind="opaque")
    with pytest.raises(SourceKindChanged):
        topology.begin("r2")
    assert topology_view(topology.store, topology.paths).allocated == 1


def test_a_source_of_another_shape_is_refused_even_without_open_transactions(topology: Topology) -> None:
    other = replace(topology.request, partitioned=not topology.request.partitioned)
    topology.finish(topology.begin("r1"))
    before = record(topology)
    with pytest.raises(SourceShapeChanged) as refused:
        topology.ledger.open(other)
    assert (refused.value.found, refused.value.expected) == ("no partitions", "them")
    assert record(topology) == before


def test_a_topology_that_has_had_no_transaction_takes_a_source_of_any_shape(topology: Topology) -> None:
    topology.ledger.open(topology.request)
    other = replace(topology.request, partitioned=not topology.request.partitioned, source_kind="opaque")
    topology.ledger.open(other)
    assert (record(topology).partitioned, record(topology).source_kind) == (other.partitioned, "opaque")
