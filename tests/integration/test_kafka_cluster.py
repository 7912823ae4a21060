"""KafkaSource on a cluster of three nodes, one of which is lost: what an opaque source is for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import SourceError
from airflow_tx.sources.kafka.source import KafkaSource
from airflow_tx.state import Count, SqlState
from airflow_tx.testing.eventually import eventually
from tests.integration.spark_runs import Topology, update
from tests.servers.kafka_cluster import LocalKafkaCluster
from tests.servers.spark_session import skipped_without_jars

pytestmark = pytest.mark.long

LOST = 3
SOON = 120.0
"""Seconds within which a node that is there answers, however busy the machine is."""
ALONE = [[1], [2], [LOST]]  # the nodes that keep each partition
MIRRORED = [[1, 2, LOST], [2, LOST, 1], [LOST, 1, 2]]


@pytest.fixture(scope="module")
def cluster() -> Iterator[LocalKafkaCluster]:
    with skipped_without_jars(), LocalKafkaCluster() as nodes:
        yield nodes


class Counted:
    """A topology that counts every value of its topics.

    :param topics: of the source, with commas between them.
    """

    def __init__(self, folder: Path, name: str, topics: str, kind: str) -> None:
        self._source = KafkaSource(topic=topics, kind=kind, timeout=SOON)
        self._topology = Topology(self._source, folder, str(folder / "dag.py"))
        self._state = SqlState.from_url(
            f"sqlite:///{folder / name}.db", table=name, keys=["value"], values={"times": Count()}, kind="opaque"
        )
        self._runs = 0

    def take(self) -> dict[str, tuple[int, int]]:
        """Commit the next transaction; its offsets, by partition."""
        self._runs += 1
        run = self._topology.begin(f"r{self._runs}")
        metadata: Any = run.begun.metadata
        rows: Any = self._topology.spec.source.emit_batch(run.begun.attempt, metadata)
        times = Counter(row["value"].decode() for row in rows)
        run.emit(pa.table({"value": list(times), "times": list(times.values())}))
        run.commit(update(self._state))
        return {name: (each["from"], each["to"]) for name, each in metadata.items()}

    def counts(self) -> dict[str, int]:
        return {row["value"]: int(row["times"]) for row in self._state.read()}


class Written:
    """What is in the topics.

    :param values: all of it.
    """

    def __init__(self, cluster: LocalKafkaCluster) -> None:
        self._node = cluster.nodes[1]
        self.values: list[str] = []

    def add(self, topic: str, partition: int, count: int) -> None:
        first = len(self.values)
        added = [f"{topic}-{partition}: {number}" for number in range(first, first + count)]
        self._node.produce(topic, added, partition)
        self.values += added


@pytest.fixture
def connected(cluster: LocalKafkaCluster, monkeypatch: pytest.MonkeyPatch) -> None:
    """The connection of Airflow."""
    extra = json.dumps({"bootstrap.servers": cluster.bootstrap})
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))


def test_every_row_counts_once_although_one_of_three_brokers_is_lost(
    cluster: LocalKafkaCluster, connected: None, tmp_path: Path
) -> None:
    cluster.nodes[1].create_topic("alone", brokers=ALONE)
    cluster.nodes[1].create_topic("mirrored", brokers=MIRRORED)
    written = Written(cluster)
    for topic in ("alone", "mirrored"):
        for partition in range(3):
            written.add(topic, partition, 10)
    loose = Counted(tmp_path, "loose", "alone,mirrored", "opaque")
    strict = Counted(tmp_path, "strict", "alone,mirrored", "transactional")
    mirrored = Counted(tmp_path, "mirrored", "mirrored", "transactional")
    first = {f"{topic}-{number}": (0, 10) for topic in ("alone", "mirrored") for number in range(3)}
    assert loose.take() == strict.take() == first
    assert mirrored.take() == {f"mirrored-{number}": (0, 10) for number in range(3)}

    cluster.nodes[LOST].kill()
    eventually(
        lambda: "mirrored-2" not in away(),
        120,
        "another node leads the mirrored partition",
        explain=lambda: str(away()),
    )
    for number in range(2):
        written.add("alone", number, 5)
    for number in range(3):
        written.add("mirrored", number, 5)
    mirrored_rest = {f"mirrored-{number}": (10, 15) for number in range(3)}
    assert loose.take() == {"alone-0": (10, 15), "alone-1": (10, 15), **mirrored_rest}
    assert mirrored.take() == mirrored_rest
    with pytest.raises(SourceError, match="alone-2 .*cannot be reached: .* Nothing was allocated"):
        strict.take()

    cluster.nodes[LOST].start()
    written.add("alone", 2, 5)
    assert loose.take() == {"alone-2": (10, 15)}
    assert strict.take() == {**{f"alone-{number}": (10, 15) for number in range(3)}, **mirrored_rest}
    assert loose.counts() == strict.counts() == dict.fromkeys(written.values, 1)
    assert mirrored.counts() == {value: 1 for value in written.values if value.startswith("mirrored")}


def test_sources_connected_to_a_lost_broker_reconnect_to_another_broker(
    cluster: LocalKafkaCluster, connected: None
) -> None:
    cluster.nodes[1].create_topic("kept", brokers=[[1, 2, LOST]])
    sources = [KafkaSource(topic="kept", timeout=SOON) for _ in range(9)]
    assert [source.backlog(None) for source in sources] == [0] * 9
    cluster.nodes[LOST].kill()
    try:
        assert [source.backlog(None) for source in sources] == [0] * 9
    finally:
        cluster.nodes[LOST].start()


def away() -> dict[str, str]:
    """The partitions that cannot be read now, and why."""
    source = KafkaSource(topic="alone,mirrored", timeout=2)
    try:
        return dict(source._snapshot().away)
    finally:
        source.close()
