"""A real Kafka on this machine, from jars that are fetched once and kept."""

from __future__ import annotations

import base64
import json
import socket
import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_tx.base.errors import TxError
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.server import JavaServer, find_java, free_port, pyspark_jars
from tests.servers.jars import fetch_jars

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError, Message
    from confluent_kafka.admin import AdminClient

KAFKA_VERSION = "4.1.0"
KAFKA_USER = "transactions"

Bytes: TypeAlias = "str | bytes | None"
KafkaRow: TypeAlias = "Bytes | tuple[Bytes, Bytes]"
"""A value, or a key and a value."""

_ANSWER = 120.0  # seconds for what a client asks, which a busy machine answers late
_AT_ONCE = 10_000  # rows handed to a producer before they are waited for
_PRODUCER: dict[str, Any] = {
    "log_level": 0,
    "enable.idempotence": True,
    "linger.ms": 5,
    # A topic that is not there stays away: nobody makes it.
    "topic.metadata.propagation.max.ms": 1000,
}
_JAVA = ("-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")
# Kafka's jars hold no binding for its log; pyspark's do.
_LOGGING = ("slf4j-api-*.jar", "log4j-slf4j2-impl-*.jar", "log4j-api-*.jar", "log4j-core-*.jar")
_LOG4J = {
    "rootLogger.level": "warn",
    "rootLogger.appenderRef.out.ref": "out",
    "appender.out.type": "Console",
    "appender.out.name": "out",
    "appender.out.layout.type": "PatternLayout",
    "appender.out.layout.pattern": "%d %p %c{1}: %m%n",
}
# One node for minutes and small topics.
_SETTINGS = {
    "process.roles": "broker,controller",
    "node.id": "1",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "CLIENT",
    # A broker that was killed is let in again only once the controller has missed it for so long.
    "broker.session.timeout.ms": "6000",
    "broker.heartbeat.interval.ms": "500",
    "auto.create.topics.enable": "false",
    "offsets.topic.num.partitions": "1",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.num.partitions": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "log.initial.task.delay.ms": "500",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "500",
    "log.cleaner.dedupe.buffer.size": "8388608",
    "num.io.threads": "2",
    "num.network.threads": "2",
}


class LocalKafka(JavaServer):
    """One Kafka node on 127.0.0.1, broker and controller in one process, with free ports; a context manager.

    Data survive :meth:`stop` and :meth:`kill` followed by :meth:`start`. It ends with this process, even if that is
    killed. It is one node: no replication, no change of a leader.

    :param sasl_password: clients have to log in by SASL/PLAIN, as KAFKA_USER with it; default: they need not.
    :param settings: of the server (server.properties), on top of those for a small one.
    :param start_timeout: seconds that a start may take, the fetching of the jars aside.
    """

    title = "Kafka"
    slug = "kafka"

    def __init__(
        self,
        *,
        sasl_password: str | None = None,
        settings: Mapping[str, str] | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__(start_timeout=start_timeout)
        self._controller_port = free_port()
        self._sasl_password = sasl_password
        self._settings = {**_SETTINGS, **(settings or {})}

    @property
    def bootstrap(self) -> str:
        """The connection string for clients, ``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self.port}"

    def client_config(self) -> dict[str, str]:
        config = {"bootstrap.servers": self.bootstrap}
        if self._sasl_password is not None:
            config |= {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "PLAIN"}
            config |= {"sasl.username": KAFKA_USER, "sasl.password": self._sasl_password}
        return config

    def create_topic(
        self,
        name: str,
        partitions: int = 1,
        config: Mapping[str, str] | None = None,
        *,
        brokers: Sequence[Sequence[int]] = (),
    ) -> None:
        """Make a topic that clients can use when this returns.

        :param config: of the topic, such as {"retention.ms": "1000"}.
        :param brokers: for each partition, the ids of the nodes that keep it; the first one leads. It takes the place
            of `partitions`.
        :raises KafkaException: Kafka refuses, such as when it is there already.
        """
        from confluent_kafka.admin import NewTopic  # type: ignore[attr-defined]

        where: dict[str, Any] = {"num_partitions": partitions, "replication_factor": 1}
        if brokers:
            where = {"num_partitions": len(brokers), "replica_assignment": [list(each) for each in brokers]}
        topic = NewTopic(name, **where, config=dict(config or {}))
        self._ask(lambda admin: admin.create_topics([topic]))
        self._wait_for(name, len(brokers) or partitions)

    def add_partitions(self, name: str, total: int) -> None:
        """Let a topic grow to `total` partitions.

        :raises KafkaException: Kafka refuses, such as when it has as many.
        """
        from confluent_kafka.admin import NewPartitions  # type: ignore[attr-defined]

        self._ask(lambda admin: admin.create_partitions([NewPartitions(name, total)]))
        self._wait_for(name, total)

    def delete_topic(self, name: str) -> None:
        """Delete a topic with all it holds; it is gone when this returns.

        :raises KafkaException: Kafka refuses, such as when it is not there.
        """
        self._ask(lambda admin: admin.delete_topics([name]))
        self._wait_for(name, 0)

    def delete_records(self, name: str, partition: int, before_offset: int) -> int:
        """Delete the first records of a partition, as retention does; returns its first offset that is left.

        :param before_offset: the first one to keep; -1: none.
        :raises KafkaException: Kafka refuses, such as for an offset behind the end.
        """
        from confluent_kafka import TopicPartition

        bound = TopicPartition(name, partition, before_offset)
        return int(self._ask(lambda admin: admin.delete_records([bound])).low_watermark)

    def produce(
        self, topic: str, rows: Iterable[KafkaRow], partition: int | None = None, *, timestamp: int = 0
    ) -> list[tuple[int, int]]:
        """Write rows, in this order within a partition; returns the partition and the offset of each.

        :param partition: for all of them; default: by key, those without a key anywhere.
        :param timestamp: of all of them, ms since 1970; 0: now.
        :raises TxError: Kafka did not take one of them.
        """
        from confluent_kafka import Producer

        producer = Producer({**self.client_config(), **_PRODUCER})
        written: dict[int, tuple[int, int]] = {}
        target = -1 if partition is None else partition
        count = 0
        for count, row in enumerate(rows, start=1):
            key, value = row if isinstance(row, tuple) else (None, row)
            producer.produce(topic, value, key, target, on_delivery=partial(_note, written, count), timestamp=timestamp)
            if count % _AT_ONCE == 0:
                producer.flush(_ANSWER)
        left = producer.flush(_ANSWER)
        if left:
            raise TxError(message=f"Kafka on {self.bootstrap} did not take {left} of {count} rows in {_ANSWER:g} s")
        return [written[number] for number in range(1, count + 1)]

    def _admin(self) -> AdminClient:
        from confluent_kafka.admin import AdminClient

        # It would write of each connection that a stopped server refuses.
        return AdminClient({**self.client_config(), "log_level": 0})

    def _ask(self, question: Callable[[AdminClient], Mapping[Any, Future[Any]]]) -> Any:
        admin = self._admin()
        (answer,) = question(admin).values()
        return answer.result(_ANSWER)

    def _wait_for(self, topic: str, partitions: int) -> None:
        admin = self._admin()

        def there() -> bool:
            found = admin.list_topics(timeout=_ANSWER).topics.get(topic)
            leaders = [each.leader for each in found.partitions.values()] if found else []
            return len(leaders) == partitions and all(leader >= 0 for leader in leaders)

        eventually(there, _ANSWER, f"topic {topic} has {partitions} partitions", interval=0.02)

    def _serves(self) -> bool:
        # A client that is refused a connection tries again only after a while.
        with socket.create_connection(("127.0.0.1", self.port), timeout=2):
            pass
        metadata = self._admin().list_topics(timeout=2)
        partitions = [each for topic in metadata.topics.values() for each in topic.partitions.values()]
        return bool(metadata.brokers) and all(each.leader >= 0 for each in partitions)

    def _command(self) -> list[str]:
        log4j = f"-Dlog4j2.configurationFile={self._file('log4j2.properties')}"
        return [*self._java(), log4j, "kafka.Kafka", str(self._file("server.properties"))]

    def _java(self) -> list[str]:
        java = find_java()
        jars = fetch_jars("org.apache.kafka", "kafka_2.13", KAFKA_VERSION, all_of_it=True)
        logging = [str(jar) for pattern in _LOGGING for jar in pyspark_jars(pattern)]
        return [java, *_JAVA, "-cp", ":".join([*logging, f"{jars[0].parent}/*"])]

    def _prepare(self) -> None:
        _write_properties(self._file("log4j2.properties"), _LOG4J)
        settings = self._file("server.properties")
        _write_properties(settings, {**self._settings, **self._addresses(), **self._login()})
        if not (self._file("data") / "meta.properties").exists():
            self._run_program(*self._java(), "kafka.tools.StorageTool", "format", *self._format(), "-c", str(settings))

    def _format(self) -> list[str]:
        """Say which cluster its data belong to."""
        return ["--standalone", f"--cluster-id={new_cluster_id()}"]

    def _addresses(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._controller_port}"
        listeners = f"CLIENT://{self.bootstrap},CONTROLLER://{controller}"
        client = "PLAINTEXT" if self._sasl_password is None else "SASL_PLAINTEXT"
        return {
            "listeners": listeners,
            "advertised.listeners": listeners,
            "listener.security.protocol.map": f"CLIENT:{client},CONTROLLER:PLAINTEXT",
            "controller.quorum.bootstrap.servers": controller,
            "log.dirs": str(self._file("data")),
        }

    def _login(self) -> dict[str, str]:
        if self._sasl_password is None:
            return {}
        password = json.dumps(self._sasl_password, ensure_ascii=False)
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        return {
            "sasl.enabled.mechanisms": "PLAIN",
            "sasl.mechanism.inter.broker.protocol": "PLAIN",
            "listener.name.client.plain.sasl.jaas.config": (
                f'{module} required username="{KAFKA_USER}" password={password} user_{KAFKA_USER}={password};'
            ),
        }

    def _file(self, name: str) -> Path:
        return self.data_dir / name


def new_cluster_id() -> str:
    """Make up the id of a cluster."""
    return base64.urlsafe_b64encode(uuid.uuid4().bytes).decode().rstrip("=")


def _note(written: dict[int, tuple[int, int]], number: int, error: KafkaError | None, message: Message) -> None:
    """Note where a row was written."""
    if error is not None:
        raise TxError(message=f"Kafka did not take row {number} for {message.topic()}: {error.str()}")
    partition, offset = message.partition(), message.offset()
    assert partition is not None
    assert offset is not None
    written[number] = (partition, offset)


def _write_properties(path: Path, properties: Mapping[str, str]) -> None:
    path.touch(mode=0o600)  # a password may be among them
    # What JSON writes with a backslash, Java reads as the same.
    lines = [f"{name}={json.dumps(value)[1:-1]}\n" for name, value in properties.items()]
    path.write_text("".join(lines), encoding="ascii")
