"""KafkaSource on a real Kafka: brokers that stop, topics that grow, rows that are gone, transactions, bad input."""

from __future__ import annotations

import json
import re
import shutil
import uuid
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest
from confluent_kafka import Producer

from airflow_tx.base.errors import ConfigError, RowsRefused, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.records import Loss
from airflow_tx.sources.api import Batch
from airflow_tx.sources.kafka.source import KafkaSource
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.server import free_ports
from tests.servers.kafka import LocalKafka


@pytest.fixture(autouse=True)
def connection(kafka: LocalKafka, monkeypatch: pytest.MonkeyPatch) -> None:
    connect(monkeypatch, **kafka.client_config())


@pytest.fixture
def topic(kafka: LocalKafka) -> str:
    name = f"test-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(name, 2)
    return name


def connect(monkeypatch: pytest.MonkeyPatch, **extra: str) -> None:
    told = {"conn_type": "kafka", "extra": json.dumps({name.replace("_", "."): text for name, text in extra.items()})}
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps(told))


SOON = 120.0
"""Seconds within which a broker that is there answers, however busy the machine is."""


@dataclass
class Ledger:
    """Where a topic stands, transaction after transaction."""

    topic: str
    arguments: dict[str, Any] = field(default_factory=dict)
    places: dict[str, Any] | None = None
    txid: int = 1

    @property
    def source(self) -> KafkaSource:
        return KafkaSource(**{"topic": self.topic, "timeout": SOON, **self.arguments})

    def decide(self) -> Batch | None:
        return self.source.decide(TransactionAttempt(self.txid, 1), self.places)

    def take(self) -> dict[str, Any]:
        """The offsets of the next batch, by partition number."""
        batch = self.decide()
        if batch is None:
            return {}
        self.places = {**(self.places or {}), **cast("dict[str, Any]", batch.position)}
        self.txid += 1
        return by_number(batch)

    def accept(self, losses: Iterable[Loss]) -> None:
        """As `airflow tx accept-loss` does."""
        assert self.places is not None
        for loss in losses:
            assert self.places[loss.partition] == loss.position
            self.places[loss.partition] = loss.resume_at

    def values(self, batch: Batch) -> list[Any]:
        rows = cast("Iterable[Any]", self.source.emit_batch(TransactionAttempt(1, 1), batch.metadata))
        return sorted(row["value"] for row in rows)


def refusal(ledger: Ledger) -> str:
    with pytest.raises(SourceError) as refused:
        ledger.decide()
    return str(refused.value)


def once_noticed(ledger: Ledger, what: str) -> str:
    """The refusal with these words: that nobody listens, a client notices in a thread of its own."""

    def told() -> str:
        said = refusal(ledger)
        return said if what in said else ""

    return eventually(told, 240, f"it says {what}")


def by_number(batch: Batch) -> dict[str, tuple[int, int]]:
    rows = cast("dict[str, Any]", batch.metadata)
    return {name.rpartition("-")[2]: (each["from"], each["to"]) for name, each in rows.items()}


@pytest.mark.lead
@pytest.mark.worth("a killed broker")
def test_no_row_is_lost_if_a_broker_is_killed_and_restarted(kafka: LocalKafka, topic: str) -> None:
    kafka.produce(topic, ["a", "b"], 0)
    strict, loose = Ledger(topic), Ledger(topic, {"kind": "opaque"})
    assert strict.take() == loose.take() == {"0": (0, 2), "1": (0, 0)}
    kafka.kill()
    strict.arguments, loose.arguments = {"timeout": 1}, {"timeout": 1, "kind": "opaque"}
    try:
        said = once_noticed(strict, "Connection refused")
        assert re.search("cannot be reached: .*Connection refused.* the task tries again", said)
        assert loose.decide() is None
        assert strict.source.backlog(strict.places) is None
        with pytest.raises(SourceError, match="cannot be reached"):
            Ledger(topic, {"timeout": 1, "kind": "opaque"}).decide()
    finally:
        kafka.start()
    kafka.produce(topic, ["c"], 1)
    strict.arguments = loose.arguments = {}
    assert strict.take() == {"1": (0, 1)}
    loose.arguments = {"kind": "opaque"}
    assert loose.take() == {"1": (0, 1)}


def test_a_client_that_reaches_no_broker_is_replaced_by_a_new_client(
    kafka: LocalKafka, topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    kafka.produce(topic, ["a"], 0)
    ledger = Ledger(topic, {"timeout": 1})
    source = ledger.source
    (nobody,) = free_ports(1)
    connect(monkeypatch, bootstrap_servers=f"127.0.0.1:{nobody}")
    with pytest.raises(SourceError, match="cannot be reached"):
        source.backlog(None) or source.decide(TransactionAttempt(1, 1), None)
    connect(monkeypatch, **kafka.client_config())
    source.timeout = SOON
    assert source.backlog(None) == 1


def test_all_messages_are_read_after_partitions_are_added_to_a_topic(kafka: LocalKafka, topic: str) -> None:
    kafka.produce(topic, ["a"], 0)
    ledger = Ledger(topic, {"starting": "latest"})
    assert ledger.take() == {"0": (1, 1), "1": (0, 0)}
    kafka.add_partitions(topic, 4)
    kafka.produce(topic, ["b", "c"], 3)
    assert ledger.take() == {"3": (0, 2)}
    kafka.produce(topic, ["d"], 2)
    assert ledger.take() == {"2": (0, 1)}
    assert ledger.take() == {}


def test_rows_deleted_by_retention_stop_the_source_until_a_person_accepts_the_loss(
    kafka: LocalKafka, topic: str
) -> None:
    kafka.produce(topic, [f"row {n}" for n in range(10)], 0)
    ledger = Ledger(
        topic, places={f"{topic}-{number}": {"topic_id": None, "offset": n} for number, n in ((0, 4), (1, 0))}
    )
    assert ledger.source.losses(ledger.places) == []
    before = Ledger(topic, {"max_rows_per_batch": 4})
    first = before.decide()
    assert first is not None
    kafka.delete_records(topic, 0, 7)

    for kind in ("transactional", "opaque"):
        ledger.arguments = {"kind": kind}
        with pytest.raises(SourceError, match=rf"{topic}-0: offsets 4 to 6, the first one left is 7.* accept-loss"):
            ledger.decide()
    (loss,) = ledger.source.losses(ledger.places)
    ledger.accept([loss])
    assert ledger.source.losses(ledger.places) == []
    assert ledger.take() == {"0": (7, 10)}
    with pytest.raises(
        SourceError,
        match="rows of transaction 1 are gone: .*offsets 0 to 3, but the partition has only 7 to 9.*tx skip",
    ):
        before.values(first)


def test_a_recreated_topic_stops_the_source_until_a_person_accepts_the_loss(kafka: LocalKafka, topic: str) -> None:
    kafka.produce(topic, ["a", "b", "c"], 0)
    kafka.produce(topic, ["x"], 1)
    ledger = Ledger(topic)
    first = ledger.decide()
    assert first is not None
    ledger.take()
    kafka.delete_topic(topic)
    with pytest.raises(SourceError, match=f"topic {topic} does not exist"):
        ledger.decide()
    kafka.create_topic(topic, 1)
    # As many rows: by the offsets alone nobody could tell.
    kafka.produce(topic, ["d", "e", "f"], 0)

    with pytest.raises(SourceError, match="all from offset 3 on of topic .*, which was deleted.* accept-loss"):
        ledger.decide()
    with pytest.raises(SourceError, match="rows of transaction 1 are gone"):
        ledger.values(first)
    losses = ledger.source.losses(ledger.places)
    assert [loss.partition for loss in losses] == [f"{topic}-0", f"{topic}-1"]
    ledger.accept(losses)
    again = ledger.decide()
    assert again is not None
    assert ledger.values(again) == [b"d", b"e", b"f"]
    ledger.take()
    assert ledger.take() == {}


@pytest.mark.lead
def test_the_source_notices_a_broker_that_lost_its_newest_rows_and_received_other_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with LocalKafka() as server:
        connect(monkeypatch, **server.client_config())
        server.create_topic("cut")
        server.produce("cut", ["old"] * 5)
        server.stop()
        copy = shutil.copytree(server.data_dir / "data", tmp_path / "copy")
        server.start()
        server.produce("cut", ["lost"] * 5)
        ledger = Ledger("cut")
        taken = ledger.decide()
        assert taken is not None
        assert ledger.take() == {"0": (0, 10)}
        server.stop()
        shutil.rmtree(server.data_dir / "data")
        copy.rename(server.data_dir / "data")
        server.start()
        server.produce("cut", ["new"] * 7)

        with pytest.raises(SourceError, match="cut-0: it was cut and written again: offset 9 has another message"):
            ledger.decide()
        with pytest.raises(SourceError, match="cut-0: offset 9 has another message than was taken"):
            ledger.values(taken)
        ledger.accept(ledger.source.losses(ledger.places))
        assert ledger.take() == {"0": (10, 12)}
        assert ledger.decide() is None


def test_rows_that_a_new_partition_lost_before_its_first_batch_are_reported(kafka: LocalKafka, topic: str) -> None:
    kafka.produce(topic, ["a"], 0)
    ledger = Ledger(topic)
    ledger.take()
    kafka.add_partitions(topic, 3)
    kafka.produce(topic, ["b", "c", "d"], 2)
    kafka.delete_records(topic, 2, 2)
    assert ledger.take() == {"2": (0, 0)}
    with pytest.raises(SourceError, match="offsets 0 to 1, the first one left is 2"):
        ledger.decide()
    ledger.accept(ledger.source.losses(ledger.places))
    assert ledger.take() == {"2": (2, 3)}


def test_only_messages_of_committed_kafka_transactions_are_read(kafka: LocalKafka, topic: str) -> None:
    # Kafka ends a transaction that is open for a minute, unless its producer says otherwise.
    patient = {"transactional.id": topic, "transaction.timeout.ms": 900_000}
    producer = Producer({**kafka.client_config(), "log_level": 0, **patient})
    producer.init_transactions(SOON)

    def write(*values: str) -> None:
        producer.begin_transaction()
        for value in values:
            producer.produce(topic, value, partition=0)
        producer.flush(SOON)

    ledger = Ledger(topic)
    write("a", "b")
    assert ledger.decide() is None  # the transaction is open
    producer.commit_transaction(SOON)
    write("lost", "gone")
    producer.abort_transaction(SOON)
    write("c")
    producer.commit_transaction(SOON)
    write("open")
    # The markers are written after the answer to a commit.

    def whole() -> Batch | None:
        decided = ledger.decide()
        return decided if decided is not None and decided.count == 8 else None

    batch = eventually(whole, 120, "the transactions are over")
    assert batch is not None
    assert ledger.values(batch) == [b"a", b"b", b"c"]
    assert batch.count == 8  # three of them markers
    ledger.take()
    assert ledger.source.backlog(ledger.places) == 1
    assert ledger.decide() is None  # a lag that only the end of the transaction ends
    producer.abort_transaction(SOON)
    nothing = eventually(ledger.decide, 120, "the last one is over")
    assert nothing is not None
    assert ledger.values(nothing) == []
    ledger.take()
    assert ledger.take() == {}
    assert ledger.source.losses(ledger.places) == []
    # A batch may end between the rows of a transaction, or at its marker.
    few = Ledger(topic, {"max_rows_per_batch": 1})
    found = []
    while (batch := few.decide()) is not None:
        found += few.values(batch)
        few.take()
    assert found == [b"a", b"b", b"c"]


def test_a_batch_stays_within_its_limits_and_its_reason_names_the_limit(kafka: LocalKafka, topic: str) -> None:
    kafka.produce(topic, ["x" * 100] * 50, 0)
    kafka.produce(topic, ["x" * 100] * 4, 1)
    assert Ledger(topic, {"max_rows_per_batch": 20}).take() == {"0": (0, 16), "1": (0, 4)}
    limited = Ledger(topic, {"max_bytes_per_batch": 1000}).decide()
    assert limited is not None
    assert (limited.count, limited.reason) == (10, "10 of 54 rows: max_bytes_per_batch=1000, 100 bytes a row")
    whole = Ledger(topic, {"target_seconds": 5})
    batch = whole.decide()
    assert batch is not None
    assert (batch.count, batch.reason) == (54, "all 54 rows that there were")
    assert whole.source.backlog(None) == 54
    whole.take()
    assert whole.source.backlog(whole.places) == 0


def test_one_source_reads_two_topics(kafka: LocalKafka, topic: str) -> None:
    other = f"{topic}-1"  # as the partition of the first one is called
    kafka.create_topic(other)
    kafka.produce(topic, ["a"], 1)
    kafka.produce(other, ["b"])
    ledger = Ledger(f"{topic},{other}")
    batch = ledger.decide()
    assert batch is not None
    assert set(cast("dict[str, Any]", batch.metadata)) == {f"{topic}-0", f"{topic}-1", f"{other}-0"}
    assert ledger.values(batch) == [b"a", b"b"]


def test_json_values_become_columns_and_a_value_that_does_not_fit_fails_its_batch(
    kafka: LocalKafka, topic: str
) -> None:
    kafka.produce(topic, ['{"user": "ann", "amount": 1.5, "more": 1}', '{"user": 7}', ("key", None)], 0)
    ledger = Ledger(topic, {"value_schema": "user STRING, amount DOUBLE"})
    batch = ledger.decide()
    assert batch is not None
    rows = cast("Iterable[Any]", ledger.source.emit_batch(TransactionAttempt(1, 1), batch.metadata))
    assert [row["value"] for row in rows] == [{"user": "ann", "amount": 1.5}, {"user": "7", "amount": None}, None]
    ledger.take()
    kafka.produce(topic, ['{"user": "bob", "amount": "much"}'], 0)
    wrong = ledger.decide()
    assert wrong is not None
    with pytest.raises(RowsRefused, match=f"topic {topic}, partition 0, offset 3.*airflow tx skip TOPOLOGY 2 "):
        list(cast("Iterable[Any]", ledger.source.emit_batch(TransactionAttempt(2, 1), wrong.metadata)))


def test_a_json_column_named_timestamp_is_not_confused_with_the_message_time(kafka: LocalKafka, topic: str) -> None:
    kafka.produce(topic, ['{"timestamp": "soon"}'], 0)
    ledger = Ledger(topic, {"value_schema": "timestamp BIGINT"})
    batch = ledger.decide()
    assert batch is not None
    with pytest.raises(RowsRefused, match="column timestamp BIGINT = .* Correct value_schema") as refused:
        list(cast("Iterable[Any]", ledger.source.emit_batch(TransactionAttempt(1, 1), batch.metadata)))
    assert refused.value.place == f"topic {topic}, partition 0, offset 0: column timestamp BIGINT"


def test_a_wrong_password_fails_at_once_and_is_never_printed(
    kafka: LocalKafka, topic: str, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    connect(monkeypatch, **{**kafka.client_config(), "sasl.password": "open-sesame"})
    source = KafkaSource(topic=topic, kind="opaque", timeout=SOON)
    with pytest.raises(
        SourceError, match="refused the request: .*Authentication failed.*of connection kafka_default"
    ) as refused:
        source.decide(TransactionAttempt(1, 1), None)
    assert "open-sesame" not in str(refused.value) + "".join(capfd.readouterr()) + repr(source.__dict__)


def test_invalid_input_and_an_unreachable_broker_are_each_reported_in_one_line(
    topic: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    begun = {f"{topic}-0": {"topic_id": None, "offset": 9}}
    with pytest.raises(SourceError, match=r"offset 9 was reached, and the partition now ends at 0"):
        Ledger(topic, places=begun).decide()
    with pytest.raises(SourceError, match="topic no-such-topic does not exist"):
        Ledger("no-such-topic").decide()
    with pytest.raises(SourceError, match="has no offsets of Kafka"):
        Ledger(topic, places={"0": 5}).decide()
    (nobody,) = free_ports(1)
    connect(monkeypatch, bootstrap_servers=f"127.0.0.1:{nobody}")
    unreachable = Ledger(topic, {"timeout": 0.5})
    told = once_noticed(unreachable, "refused")
    assert "Kafka of connection kafka_default cannot be reached: " in told
    assert "\n" not in told
    connect(monkeypatch)
    with pytest.raises(ConfigError, match="Give the brokers"):
        Ledger(topic).decide()
