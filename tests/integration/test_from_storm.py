"""The pages of Storm name what there is, and the code of docs/howto/move-from-storm.md takes values over."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from airflow_tx import Transaction
from airflow_tx.state import OpaqueMap, RedisMap
from tests.imports.doc_pages import ROOT, hook
from tests.servers.redis import LocalRedis

PAGE = (ROOT / "docs/howto/move-from-storm.md").read_text()
NAMES = hook("storm_page").storm()
TEXT = NAMES + PAGE
ROWS = [[cell.strip() for cell in line.split("|")[1:-1]] for line in NAMES.splitlines() if line.startswith("| `")]
OURS = "\n".join(row[1] for row in ROWS)


STORM = """
    ICommitter ICommitterTransactionalSpout ITransactionalSpout TransactionAttempt TransactionalSpoutBatchExecutor
    TransactionalSpoutCoordinator TransactionalTopologyBuilder IOpaquePartitionedTransactionalSpout
    IPartitionedTransactionalSpout OpaquePartitionedTransactionalSpoutExecutor PartitionedTransactionalSpoutExecutor
    RotatingTransactionalState TransactionalState BatchBoltExecutor BatchOutputCollector BatchOutputCollectorImpl
    BatchSubtopologyBuilder CoordinatedBolt IBatchBolt BaseBasicBolt BaseBatchBolt BaseRichBolt BaseTransactionalBolt
    BaseOpaquePartitionedTransactionalSpout BasePartitionedTransactionalSpout BaseRichSpout BaseTransactionalSpout
    MemoryTransactionalSpout OpaqueMemoryTransactionalSpout MemoryTransactionalSpoutMeta
    BaseQueryFunction BaseStateUpdater CombinerValueUpdater ITupleCollection JSONNonTransactionalSerializer
    JSONOpaqueSerializer JSONTransactionalSerializer OpaqueValue QueryFunction ReadOnlyState ReducerValueUpdater
    Serializer State StateFactory StateSpec StateType StateUpdater TransactionalValue ValueUpdater CachedBatchReadsMap
    CachedMap IBackingMap MapCombinerAggStateUpdater MapReducerAggStateUpdater MapState MicroBatchIBackingMap
    NonTransactionalMap OpaqueMap ReadOnlyMapState RemovableMapState SnapshottableMap TransactionalMap
    ReadOnlySnapshottable Snapshottable BatchSpoutExecutor IBatchID IBatchSpout ICommitterTridentSpout
    IOpaquePartitionedTridentSpout IPartitionedTridentSpout ISpoutPartition ITridentDataSource ITridentSpout
    OpaquePartitionedTridentSpoutExecutor PartitionedTridentSpoutExecutor RichSpoutBatchExecutor RichSpoutBatchId
    RichSpoutBatchIdSerializer RichSpoutBatchTriggerer TridentSpoutCoordinator TridentSpoutExecutor BatchInfo
    ITridentBatchBolt MasterBatchCoordinator TridentBoltExecutor TridentTopologyBuilder
    topology.max.spout.pending topology.message.timeout.secs topology.ackers topology.acker.executors
    topology.enable.message.timeouts topology.trident.batch.emit.interval.millis topology.spout.wait.strategy
    topology.sleep.spout.wait.strategy.time.ms transactional.zookeeper.servers transactional.zookeeper.port
    transactional.zookeeper.root storm.zookeeper.session.timeout storm.zookeeper.connection.timeout
    ISpout IRichSpout SpoutOutputCollector ISpoutOutputCollector IBolt IRichBolt OutputCollector IOutputCollector
    IBasicBolt BasicOutputCollector IBasicOutputCollector BasicBoltExecutor MessageId Acker FailedException
    ReportedFailedException MapGet SnapshotGet TupleCollectionGet CombinerAggregator ReducerAggregator
    CombinerAggStateUpdater ReducerAggStateUpdater MemoryMapState LRUMemoryMapState MemoryBackingMap
    RedisMapState RedisState RedisStateUpdater RedisStateQuerier RedisClusterMapState RedisClusterState
    JdbcState JdbcStateFactory JdbcUpdater JdbcQuery HBaseState HBaseMapState MongoState MongoMapState CassandraState
    HdfsState MemcachedState KafkaTridentSpoutTransactional KafkaTridentSpoutOpaque
""".split()
"""The classes of Storm's packages transactional, coordination, trident.state, trident.spout and trident.topology, those
of spouts, bolts and acks, and the states and spouts of its modules for stores."""


@pytest.mark.parametrize("name", STORM)
def test_each_public_name_of_storm_is_on_the_migration_page(name: str) -> None:
    theirs = "\n".join(row[0] for row in ROWS)
    assert re.search(rf"`(?:\w+\.)?{re.escape(name)}(?:\.\w+)?`", theirs)


def resolved(path: str) -> Any:
    """Find what a path names: its longest importable part, then attributes."""
    parts = path.split(".")
    found: Any = None
    for number in range(1, len(parts) + 1):
        try:
            found = importlib.import_module(".".join(parts[:number]))
        except ImportError:
            break
    for part in parts[len(found.__name__.split(".")) :]:
        found = getattr(found, part)
    return found


@pytest.mark.parametrize("path", sorted(set(re.findall(r"`(airflow_tx\.[\w.]+)`", TEXT))))
def test_each_name_of_the_package_on_the_migration_page_exists(path: str) -> None:
    assert resolved(path) is not None


def test_each_method_of_the_package_on_the_migration_page_exists_in_its_class() -> None:
    named = [(names, row[1]) for row in ROWS for names in re.findall(r"`(airflow_tx\.[\w.]+)`: ([^;]*)", row[1])]
    methods = [(path, method) for (path, methods), _ in named for method in re.findall(r"`(\w+)`", methods)]
    assert len(methods) > 12
    made = {"current_batch": "airflow_tx.transaction.processing.batch.CurrentBatch"}
    for path, method in methods:
        assert hasattr(resolved(made.get(path.split(".")[-1], path)), method), f"{path}.{method}"


def test_each_argument_of_transaction_on_the_migration_page_exists() -> None:
    named = set(re.findall(r"`Transaction\((\w+)=", OURS))
    assert len(named) >= 3
    assert named <= set(Transaction.__init__.__annotations__)


def test_each_method_of_a_source_on_the_migration_page_exists() -> None:
    named = re.findall(r"`((?:TransactionalSource|PartitionedTransactionalSource)\.\w+)`", OURS)
    assert len(named) > 4
    assert all(resolved(f"airflow_tx.{name}") for name in named)


def test_each_name_of_storm_on_the_migration_page_has_a_counterpart_or_an_explanation() -> None:
    assert len(ROWS) > 60
    assert [row for row in ROWS if len(row) == 3 and not row[1]] == []


def test_the_code_on_the_migration_page_migrates_the_values_of_trident(
    redis: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_REDIS_DEFAULT", redis.url(11))
    (code,) = re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL)
    exec(code, {})
    counts: OpaqueMap[int] = OpaqueMap(RedisMap("redis_default", prefix="counts"))
    counts.begin_commit(1)
    assert counts.multi_get([("man",), ("dog",)]) == [5, 1]
