"""What Kafka has: topics, partitions and offsets, in two round trips for all of them."""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_tx.connections.kafka import KafkaAddress
from airflow_tx.errors import ConfigError, TxError
from airflow_tx.sources.kafka.positions import Extent, OffsetsSnapshot, partition_name

if TYPE_CHECKING:
    from concurrent.futures import Future

    from confluent_kafka import KafkaError

_Extents: TypeAlias = "tuple[dict[str, Extent], dict[str, KafkaError]]"
_NO_ID = "AAAAAAAAAAAAAAAAAAAAAA"


class KafkaUnreachable(TxError):
    """No broker answers."""

    template = "Kafka of connection {conn_id} cannot be reached: {reason}."


class KafkaRefused(TxError):
    """Kafka does not let this connection in, or not to these topics."""

    template = "Kafka of connection {conn_id} refuses: {reason}."


class KafkaOffsets:
    """A connection to a cluster; it waits `timeout` seconds for an answer."""

    def __init__(self, address: KafkaAddress, timeout: float) -> None:
        admin = needed("confluent_kafka.admin")
        self._address = address
        self._timeout = timeout
        self._said: list[KafkaError] = []
        # Without a handler, it writes of every refused connection.
        self._admin = admin.AdminClient(
            {**address.client, "log_level": 0, "error_cb": self._said.append}
        )

    def snapshot(self, topics: Sequence[str]) -> OffsetsSnapshot:
        """Find what there is of these topics."""
        kafka = needed("confluent_kafka")
        described = self._admin.describe_topics(
            kafka.TopicCollection(list(topics)), request_timeout=self._timeout
        )
        self._wait(described.values())
        ids: dict[str, str | None] = {}
        partitions = []
        missing = []
        for topic in topics:
            error = self._error(described[topic])
            if error is None:
                found = described[topic].result()
                ids[topic] = (
                    None if str(found.topic_id).rstrip("=") == _NO_ID else str(found.topic_id)
                )
                partitions += [kafka.TopicPartition(topic, each.id) for each in found.partitions]
            elif error.code() == kafka.KafkaError.UNKNOWN_TOPIC_OR_PART:
                missing.append(topic)
            else:
                raise self._unreachable(error)
        extents, away = self._extents(partitions, ids)
        return OffsetsSnapshot(
            extents, {name: self._words(error) for name, error in away.items()}, missing, ids
        )

    def _extents(self, partitions: Sequence[Any], ids: Mapping[str, str | None]) -> _Extents:
        give_up = time.monotonic() + self._timeout
        while True:
            extents, away = self._request(partitions, ids)
            # A broker that has just started, or taken over, gives this error for a moment.
            if not any(_passes(error) for error in away.values()) or time.monotonic() > give_up:
                return extents, away
            self._admin.poll(0.1)

    def _request(self, partitions: Sequence[Any], ids: Mapping[str, str | None]) -> _Extents:
        if not partitions:
            return {}, {}
        spec = needed("confluent_kafka.admin").OffsetSpec
        level = needed("confluent_kafka").IsolationLevel
        asked = (
            (spec.earliest(), level.READ_COMMITTED),
            (spec.latest(), level.READ_COMMITTED),
            (spec.latest(), level.READ_UNCOMMITTED),
        )
        requests = [
            self._admin.list_offsets(
                dict.fromkeys(partitions, each),
                isolation_level=isolation,
                request_timeout=self._timeout,
            )
            for each, isolation in asked
        ]
        self._wait(future for answers in requests for future in answers.values())
        firsts, ends, writtens = (
            {(each.topic, each.partition): answers[each] for each in answers}
            for answers in requests
        )
        extents = {}
        away = {}
        for each, first in firsts.items():
            name = partition_name(*each)
            answers = (first, ends[each], writtens[each])
            error = next(filter(None, map(self._error, answers)), None)
            if error is None:
                start, end, written = (answer.result().offset for answer in answers)
                extents[name] = Extent(ids[each[0]], start, end, max(written - end, 0))
            else:
                away[name] = error
        return extents, away

    def _wait(self, futures: Iterable[Future[Any]]) -> None:
        waiting = list(futures)
        give_up = time.monotonic() + self._timeout + 5
        while not all(future.done() for future in waiting) and time.monotonic() < give_up:
            self._admin.poll(0.01)
            self._check_login()
        self._check_login()

    def _check_login(self) -> None:
        # A login that is refused is known at once; the request itself would only time out.
        kafka = needed("confluent_kafka").KafkaError
        for error in self._said:
            if error.code() in (kafka._AUTHENTICATION, kafka._SSL):
                raise self._refused(error)

    def _error(self, future: Future[Any]) -> KafkaError | None:
        kafka = needed("confluent_kafka")
        try:
            future.result(0)
        except kafka.KafkaException as failure:
            error: KafkaError = failure.args[0]
            codes = kafka.KafkaError
            if error.code() in (
                codes.TOPIC_AUTHORIZATION_FAILED,
                codes.CLUSTER_AUTHORIZATION_FAILED,
            ):
                raise self._refused(error) from None
            return error
        except TimeoutError:
            return kafka.KafkaError(kafka.KafkaError._TIMED_OUT)  # type: ignore[no-any-return]
        return None

    def _refused(self, error: KafkaError) -> KafkaRefused:
        return KafkaRefused(conn_id=self._address.conn_id, reason=self._words(error))

    def _unreachable(self, error: KafkaError) -> KafkaUnreachable:
        kafka = needed("confluent_kafka").KafkaError
        # A timeout says less than the reason why no connection was made.
        causes = [said for said in self._said if said.code() in (kafka._TRANSPORT, kafka._RESOLVE)]
        return KafkaUnreachable(
            conn_id=self._address.conn_id, reason=self._words(causes[-1] if causes else error)
        )

    def _words(self, error: KafkaError) -> str:
        text = re.sub(r" \(after \d+ms.*", "", " ".join(error.str().split()))
        return self._address.hide(text)


def _passes(error: KafkaError) -> bool:
    kafka = needed("confluent_kafka").KafkaError
    return error.code() in (
        kafka.NOT_LEADER_FOR_PARTITION,
        kafka.FENCED_LEADER_EPOCH,
        kafka.UNKNOWN_LEADER_EPOCH,
        kafka.OFFSET_NOT_AVAILABLE,
    )


def needed(module: str) -> Any:
    """Import a module of the client library; ConfigError says how to install it."""
    from importlib import import_module

    try:
        return import_module(module)
    except ImportError:
        remedy = "Install the client where a Kafka topic is read: pip install 'airflow-provider-tx[kafka]'"
        raise ConfigError(
            option="KafkaSource", value="confluent-kafka", remedy=f"Not installed. {remedy}"
        ) from None
