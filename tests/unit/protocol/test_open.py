"""What the ledger of a topology takes over of its DAG, and what it refuses."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import SourceKindChanged, SourceShapeChanged, TopologyClaimed
from airflow_tx.ledger.json_text import replace
from tests.model.driver import Run, Topology


def opened(topology: Topology, **fields: Any) -> Any:
    topology.ledger().open(replace(topology.request, **fields))
    return topology.topology


def test_the_ledger_records_the_current_options_of_the_dag(topology: Topology) -> None:
    before = opened(topology)
    after = opened(topology, max_pending=2, source_kind="transactional", partitioned=True)
    assert after == replace(before, op=after.op, max_pending=2, source_kind="transactional", partitioned=True)
    made = opened(topology, partitioned=True)
    assert (made.source_kind, made.max_pending, made.partitioned) == ("opaque", 8, True)


def test_a_change_of_the_source_kind_changes_the_record_and_refuses_a_concurrent_begin(
    topology: Topology,
) -> None:
    opened(topology)
    store = topology.store()
    before = store.get(topology.paths.record)
    opened(topology, source_kind="transactional")
    after = store.get(topology.paths.record)
    # Every begin requires that this record is unchanged.
    assert before is not None
    assert after is not None
    assert after.version == before.version + 1


def test_a_topology_that_belongs_to_another_dag_is_refused(topology: Topology) -> None:
    opened(topology)
    with pytest.raises(TopologyClaimed, match="another"):
        opened(topology, dag_id="another")


def test_the_source_kind_cannot_change_while_transactions_are_open(topology: Topology) -> None:
    for number in (1, 2):
        Run(topology, f"r{number}").begin(1)
    with pytest.raises(SourceKindChanged, match="transactional"):
        opened(topology, source_kind="transactional")
    for number in (1, 2):
        topology.skip(number)
    assert opened(topology, source_kind="transactional").source_kind == "transactional"


@pytest.mark.parametrize("partitioned", [True, False])
def test_a_source_cannot_gain_or_lose_its_partitions_after_its_first_batch(
    topology: Topology, partitioned: bool
) -> None:
    topology.request = replace(topology.request, partitioned=partitioned)
    Run(topology, "r1").begin({"A": 1} if partitioned else 1)
    topology.skip(1)
    with pytest.raises(SourceShapeChanged, match="no partitions|partitions"):
        opened(topology, partitioned=not partitioned)
