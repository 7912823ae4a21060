"""What a sensor waits for: it is reported once it is committed, and not before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any

import pytest
from airflow.sdk.exceptions import AirflowFailException, AirflowSkipException, TaskDeferred

from airflow_tx import TransactionCommittedSensor
from airflow_tx.base.errors import ConfigError
from airflow_tx.ledger.api import Create, Paths, Put
from airflow_tx.ledger.receipt import Deed
from airflow_tx.ledger.records import Counter, Skipped, encode
from airflow_tx.sources.api import Source
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.sources.files.storage import FilesPosition
from airflow_tx.sources.kafka.source import KafkaSource
from airflow_tx.sources.memory import MemorySource
from airflow_tx.sources.redis.list import RedisListSource
from airflow_tx.sources.redis.stream import RedisStreamSource
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.sources.sql.source import PartitionedSqlSource, SqlSource
from airflow_tx.sources.sql.table import TablePosition
from airflow_tx.triggers.sensor import CommittedTrigger, commit_of
from tests.stage import Stage
from tests.unit.bench import CountingStore, Numbers, run_of

PATHS = Paths("/airflow_tx", "numbers")
TAKEN = FilesPosition("b.csv", frozenset({"b.csv"}), 2).to_json()
DAYS = {"intervals": [["2013-05-01T00:00:00+00:00", "2013-05-04T00:00:00+00:00"]]}
NOON = datetime(2013, 5, 4, 12, tzinfo=timezone.utc)
ID_20 = TablePosition((20,)).to_json()
BY_ID, BY_TIME = SqlSource("db", table="orders"), SqlSource("db", table="orders", order_by=["updated_at", "id"])


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> CountingStore:
    made = CountingStore()
    monkeypatch.setattr("airflow_tx.hooks.zookeeper.shared_store", lambda conn_id: made)
    monkeypatch.setattr("airflow_tx.hooks.zookeeper.ZooKeeperHook.store", lambda self: _Open(made))
    return made


class _Open:
    def __init__(self, store: CountingStore) -> None:
        self.made = store

    def __enter__(self) -> CountingStore:
        return self.made

    def __exit__(self, *_: object) -> None: ...


SKIPPED = "Transaction 1 of numbers was skipped. To read who did it: airflow tx show numbers 1"


def begin(store: CountingStore, *run_ids: str) -> None:
    Stage(store).begun(*run_ids)


def turn(store: CountingStore, txid: int) -> None:
    """Everything before this transaction is final."""
    store.multi((), (Put(PATHS.current, encode(Counter(txid))),))


def skip(store: CountingStore, txid: int, **more: Any) -> None:
    who = Deed("ann", "2013-01-01T00:00:00+00:00", "bad rows")
    record = Skipped(f"r{txid}", f"r{txid}", None, who, "op", **more)
    write = Put if store.get(PATHS.skipped(txid)) else Create
    store.multi((), (write(PATHS.skipped(txid), encode(record)),))


def test_a_transaction_is_reported_as_committed_after_the_turn_has_passed_it(store: CountingStore) -> None:
    assert commit_of(store, PATHS, {"txid": 1}) is None  # there is no topology yet
    begin(store, "r1", "r2")
    assert commit_of(store, PATHS, {"txid": 1}) is None
    turn(store, 2)
    assert commit_of(store, PATHS, {"txid": 1}) == {"txid": 1}
    assert commit_of(store, PATHS, {"txid": 2}) is None
    assert commit_of(store, PATHS, {"key": "r1"}) == {"txid": 1}
    assert commit_of(store, PATHS, {"key": "r2"}) is None
    assert commit_of(store, PATHS, {"key": "r3"}) is None


def test_a_skipped_and_readmitted_transaction_is_reported_with_the_commit_of_its_new_txid(store: CountingStore) -> None:
    begin(store, "r1", "r2")
    turn(store, 2)
    skip(store, 1)
    found = commit_of(store, PATHS, {"txid": 1})
    assert found is not None
    assert found["skipped"]["why"] == "bad rows"
    skip(store, 1, readmit=Deed("ann", "2013-01-01T00:00:00+00:00", "mended"))
    assert commit_of(store, PATHS, {"txid": 1}) is None
    skip(store, 1, readmitted_as=2)
    assert commit_of(store, PATHS, {"txid": 1}) is None
    turn(store, 3)
    assert commit_of(store, PATHS, {"txid": 1}) == {"txid": 2}


@pytest.mark.parametrize(
    ("source", "position", "what", "expected"),
    [
        (FileSource("/data/*.csv"), TAKEN, "b.csv", True),
        (FileSource("/data/*.csv"), TAKEN, "a.csv", True),
        (FileSource("/data/*.csv"), TAKEN, "c.csv", False),
        (FileSource("/data/*.csv", kind="opaque"), TAKEN, "a.csv", False),
        (FileSource("/data/*.csv"), None, "a.csv", False),
        (PartitionedFileSource("/data/*/*.csv"), {"x": TAKEN}, "x:b.csv", True),
        (PartitionedFileSource("/data/*/*.csv"), {"x": TAKEN}, "y:b.csv", False),
        (KafkaSource("kafka", topic="orders"), {"orders-0": {"topic_id": "t", "offset": 20}}, "orders-0:19", True),
        (KafkaSource("kafka", topic="orders"), {"orders-0": {"topic_id": "t", "offset": 20}}, "orders-0:20", False),
        (MemorySource({"a": []}), {"a": 3}, "a:2", True),
        (MemorySource({"a": []}), {"a": 3}, "a:3", False),
        (RedisListSource("redis", lists=["web"]), {"web": {"next": 3}}, "web:2", True),
        (DataIntervalSource("tests.contract.interval_reader.read"), DAYS, "2013-05-03", True),
        (DataIntervalSource("tests.contract.interval_reader.read"), DAYS, "2013-05-04", False),
        (DataIntervalSource("tests.contract.interval_reader.read"), DAYS, "2013-05-04T00:00:00", True),
        (DataIntervalSource("tests.contract.interval_reader.read"), DAYS, "2013-05-04T01:00:00", False),
        (DataIntervalSource("tests.contract.interval_reader.read"), None, "2013-05-04", False),
        (DataIntervalSource("tests.contract.interval_reader.read"), DAYS, "yesterday", None),
        (MemorySource({"a": []}), {"a": 3}, "a:two", None),
        (MemorySource({"a": []}), {"a": 3}, "2", None),
        (RedisStreamSource("redis", streams=["web"]), {"web": {"after": "200-5"}}, "web:200-5", True),
        (RedisStreamSource("redis", streams=["web"]), {"web": {"after": "200-5"}}, "web:99-9", True),
        (RedisStreamSource("redis", streams=["web"]), {"web": {"after": "200-5"}}, "web:200-10", False),
        (RedisStreamSource("redis", streams=["web"]), {"web": {"after": "200-5"}}, "web:now", None),
        (BY_ID, None, "1", False),
        (BY_ID, TablePosition((20,)).to_json(), "20", True),
        (BY_ID, TablePosition((20,)).to_json(), "21", False),
        (BY_ID, TablePosition((20,)).to_json(), "twenty", None),
        (BY_ID, TablePosition(("m",)).to_json(), "m", True),
        (BY_ID, TablePosition(("m",)).to_json(), "a", None),
        (BY_TIME, TablePosition((NOON, 20)).to_json(), "2013-05-03", True),
        (BY_TIME, TablePosition((NOON, 20)).to_json(), "2013-05-04", False),
        (BY_TIME, TablePosition((NOON, 20)).to_json(), "2013-05-04T13:59:59+02:00", True),
        (BY_TIME, TablePosition((NOON, 20)).to_json(), "2013-05-04T12:00:00", False),
        (BY_TIME, TablePosition((NOON.replace(tzinfo=None), 20)).to_json(), "2013-05-04T11:00:00", True),
        (BY_TIME, TablePosition((NOON.replace(tzinfo=None), 20)).to_json(), "2013-05-04T11:00:00+00:00", None),
        (PartitionedSqlSource(["db"], tables=["orders"]), {"db.orders": ID_20}, "db.orders:20", True),
        (PartitionedSqlSource(["db"], tables=["orders"]), {"db.orders": ID_20}, "db.orders:21", False),
        (PartitionedSqlSource(["db"], tables=["orders"]), {"db.orders": ID_20}, "db.refunds:20", False),
        (Numbers(), 10, "5", None),
    ],
)
def test_a_source_can_decide_whether_a_position_has_reached_a_value(
    source: Source, position: Any, what: str, expected: Any
) -> None:
    assert source.reaches(position, what) is expected


def test_data_up_to_a_value_is_committed_when_the_position_has_passed_the_value(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(store, "r1")
    source = list(MemorySource({"a": []}).serialize())
    position: Mapping[str, int] = {"a": 3}
    monkeypatch.setattr("airflow_tx.ledger.steps.loss.position_now", lambda read, paths: position)
    assert commit_of(store, PATHS, {"up_to": "a:3", "source": source}) is None
    turn(store, 2)
    position = {"a": 4}
    assert commit_of(store, PATHS, {"up_to": "a:3", "source": source}) == {"txid": 1}
    assert commit_of(store, PATHS, {"up_to": "a:3", "source": list(Numbers().serialize())}) == {"unknown": True}


def test_a_day_in_the_option_up_to_is_a_day_in_the_time_zone_of_the_schedule(
    store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    Stage(store, zone="Europe/Berlin").begun("r1")
    wanted = {"up_to": "2013-05-03", "source": list(DataIntervalSource().serialize())}
    position = {"intervals": [["2013-05-01T22:00:00+00:00", "2013-05-02T22:00:00+00:00"]]}
    monkeypatch.setattr("airflow_tx.ledger.steps.loss.position_now", lambda read, paths: position)
    turn(store, 2)
    assert commit_of(store, PATHS, wanted) is None
    position = {"intervals": [["2013-05-01T22:00:00+00:00", "2013-05-03T22:00:00+00:00"]]}
    assert commit_of(store, PATHS, wanted) == {"txid": 1}


def test_the_sensor_is_deferred_until_the_commit_and_returns_the_txid(store: CountingStore) -> None:
    sensor = TransactionCommittedSensor(task_id="wait", topology="numbers", run_id="r1")
    with pytest.raises(TaskDeferred) as deferred:
        sensor.execute({})
    trigger = deferred.value.trigger
    assert isinstance(trigger, CommittedTrigger)
    assert (trigger.hold, trigger.poll, trigger.wanted) == (10.0, 1, {"key": "r1"})
    begin(store, "r1")
    turn(store, 2)
    trigger.hold = 0.0

    async def first() -> Any:
        return [event.payload async for event in trigger.run()]

    assert asyncio.run(asyncio.wait_for(first(), 60)) == [{"txid": 1}]
    assert sensor.execute_again({}, {"txid": 1}) == 1


def test_a_sensor_for_a_topology_without_a_ledger_warns_with_similar_names(
    store: CountingStore, capsys: pytest.CaptureFixture[str]
) -> None:
    def warnings(topology: str) -> list[str]:
        with pytest.raises(TaskDeferred):
            TransactionCommittedSensor(task_id="wait", topology=topology, txid=7).execute({})
        return [line for line in capsys.readouterr().out.splitlines() if "Topology" in line]

    (empty,) = warnings("nubmers")
    assert "Topology 'nubmers' is not in the ledger at /airflow_tx" in empty
    assert "It is empty. The sensor waits until it begins." in empty
    begin(store, "r1")
    (near,) = warnings("nubmers")
    assert "Topologies there: numbers. The sensor waits until it begins." in near
    assert warnings("numbers") == []


def test_the_sensor_fails_for_a_skipped_transaction_or_a_source_that_cannot_answer(store: CountingStore) -> None:
    begin(store, "r1")
    turn(store, 2)
    skip(store, 1)
    with pytest.raises(AirflowFailException, match=SKIPPED):
        TransactionCommittedSensor(task_id="wait", topology="numbers", txid="1").execute({})
    with pytest.raises(AirflowFailException, match="cannot tell whether it has reached '5'"):
        TransactionCommittedSensor(task_id="wait", topology="numbers", up_to="5", source=Numbers()).execute({})


@pytest.mark.parametrize("option", ["soft_fail", "never_fail"])
def test_a_sensor_with_soft_fail_is_skipped_whether_it_was_deferred_or_not(store: CountingStore, option: str) -> None:
    begin(store, "r1")
    turn(store, 2)
    skip(store, 1)
    options: dict[str, Any] = {option: True}
    sensor = TransactionCommittedSensor(task_id="wait", topology="numbers", txid=1, **options)
    with pytest.raises(AirflowSkipException, match=SKIPPED):
        sensor.execute({})
    with pytest.raises(AirflowSkipException):
        sensor.resume_execution("execute_again", {"event": {"txid": 1}}, {})


def test_the_data_interval_of_a_sensor_is_converted_to_the_key_of_its_run() -> None:
    start, end = datetime(2013, 5, 1, tzinfo=timezone.utc), datetime(2013, 5, 2, tzinfo=timezone.utc)
    key = DataIntervalSource("tests.contract.interval_reader.read")
    from dataclasses import replace

    run = replace(run_of("r"), interval_start=start, interval_end=end)
    for interval in ((start, end), ("2013-05-01", "2013-05-02"), ("2013-05-01T02:00:00+02:00", str(end))):
        sensor = TransactionCommittedSensor(task_id="wait", topology="numbers", data_interval=interval)
        assert sensor._wanted() == {"key": key.key(run)}


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "Give exactly one of these arguments: txid="),
        ({"txid": 1, "run_id": "r"}, "Give exactly one of these arguments"),
        ({"up_to": "a"}, "Pass source= together with up_to="),
        ({"txid": 1, "source": Numbers()}, "Pass source= together with up_to="),
    ],
)
def test_a_condition_that_a_sensor_cannot_wait_for_is_refused_while_the_dag_is_parsed(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        TransactionCommittedSensor(task_id="wait", topology="numbers", **options)


def test_a_sensor_value_from_a_template_is_checked_after_it_is_rendered() -> None:
    with pytest.raises(ConfigError, match="Give a whole number"):
        TransactionCommittedSensor(task_id="wait", topology="numbers", txid="x")._wanted()
    with pytest.raises(ConfigError, match="Give two dates"):
        TransactionCommittedSensor(task_id="wait", topology="numbers", data_interval=("x", "y"))._wanted()
