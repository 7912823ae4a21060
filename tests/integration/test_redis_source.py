"""Redis as a source, on a server that is stopped, killed, set back and emptied, and that holds the wrong things."""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, PartitionUnavailable, RowsRefused, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch
from airflow_tx.sources.redis.list import RedisListSource
from airflow_tx.sources.redis.numbered import RedisNumberedSource
from airflow_tx.sources.redis.source import RedisSource
from airflow_tx.sources.redis.stream import RedisStreamSource
from airflow_tx.testing.suites.source_case import plain
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

ATTEMPT = TransactionAttempt(1, 1)


@pytest.fixture(scope="module")
def server() -> Iterator[LocalRedis]:
    """A server that keeps what was saved, and forgets the rest when it is killed."""
    with LocalRedis(persistence="rdb") as running:
        yield running


@pytest.fixture(autouse=True)
def connections(server: LocalRedis, monkeypatch: pytest.MonkeyPatch) -> None:
    where = {"conn_type": "redis", "host": "127.0.0.1", "port": server.port}
    monkeypatch.setenv("AIRFLOW_CONN_TWEETS", json.dumps({**where, "password": REDIS_PASSWORD}))
    monkeypatch.setenv("AIRFLOW_CONN_GUESSED", json.dumps({**where, "password": "g0ssip"}))


def rows_of(source: RedisSource, metadata: Any) -> list[Any]:
    """The rows of a batch; the connections that it took are given back."""
    try:
        rows: Any = source.emit_batch(ATTEMPT, plain(metadata))
        return list(rows)
    finally:
        source.close()


class Numbered:
    """The book's messages, and the source that reads them."""

    partition_format = "tweets:{}"

    def __init__(self, server: LocalRedis) -> None:
        self.server, self.key = server, f"k{uuid.uuid4().hex[:8]}:"
        self.partition = self.partition_format.format(self.key)
        self.begin()

    def begin(self) -> None:
        self.server.client().set(f"{self.key}NEXT_WRITE", 1)

    def write(self, *messages: str) -> None:
        client = self.server.client()
        for message in messages:
            number = int(client.get(f"{self.key}NEXT_WRITE"))
            client.mset({f"{self.key}{number}": message, f"{self.key}NEXT_WRITE": number + 1})

    def source(self, **arguments: Any) -> RedisSource:
        return RedisNumberedSource("tweets", prefix=self.key, **arguments)

    def decide(self, position: Any = None, **arguments: Any) -> Batch | None:
        source = self.source(**arguments)
        try:
            return source.decide(ATTEMPT, plain(position))
        finally:
            source.close()

    def batch(self, position: Any = None, **arguments: Any) -> Batch:
        batch = self.decide(position, **arguments)
        assert batch is not None
        return batch

    def texts(self, batch: Batch) -> list[str]:
        return [self.text(row["message"]) for row in rows_of(self.source(), batch.metadata)]

    def text(self, message: Any) -> str:
        return str(message)

    def accepted(self, position: Any) -> Any:
        """The position behind what is lost, as the ledger goes on once a person has accepted it."""
        source = self.source()
        (loss,) = source.losses(plain(position))
        source.close()
        assert (loss.partition, loss.position) == (self.partition, plain(position)[self.partition])
        with pytest.raises(SourceError) as refusal:
            self.decide(position)
        assert loss.description in str(refusal.value)
        assert "\n" not in str(refusal.value)
        return {self.partition: loss.resume_at}


class Listed(Numbered):
    def begin(self) -> None:
        pass

    def write(self, *messages: str) -> None:
        self.server.client().rpush(self.key, *messages)

    def source(self, **arguments: Any) -> RedisSource:
        return RedisListSource("tweets", lists=self.key, **arguments)


class Streamed(Listed):
    def write(self, *messages: str) -> None:
        for message in messages:
            self.server.client().xadd(self.key, {"text": message})

    def source(self, **arguments: Any) -> RedisSource:
        return RedisStreamSource("tweets", self.key, **arguments)

    def text(self, message: Any) -> str:
        return str(message["text"])


@pytest.fixture(params=[Numbered, Listed, Streamed])
def log(request: pytest.FixtureRequest, server: LocalRedis) -> Numbered:
    """Messages of each form in turn."""
    made: Numbered = request.param(server)
    return made


# --- servers that stop, start and forget


def test_an_unreachable_server_is_reported_and_no_message_is_lost_when_it_returns(log: Numbered) -> None:
    log.write("a", "b")
    log.server.save()
    first = log.batch()
    log.server.kill()
    for kind in ("transactional", "opaque"):
        with pytest.raises(PartitionUnavailable, match=r"connection tweets: .*refused"):
            rows_of(log.source(kind=kind), first.metadata)
    with pytest.raises(SourceError, match=f"partition {log.partition} cannot be reached"):
        log.decide(first.position)
    assert log.decide(first.position, kind="opaque") is None
    assert log.source().backlog(first.position) is None
    assert not log.source().losses(first.position)
    log.server.start()
    log.write("c")
    assert log.texts(first) == ["a", "b"]
    assert log.texts(log.batch(first.position)) == ["c"]


def test_a_server_that_lost_taken_messages_is_refused_until_a_person_accepts_the_loss(log: Numbered) -> None:
    log.write("a", "b")
    log.server.save()
    log.write("c", "d")
    batch = log.batch()
    assert log.texts(batch) == ["a", "b", "c", "d"]
    log.server.restart()
    with pytest.raises(SourceError, match="gone"):
        log.texts(batch)
    assert "went back" in str(log.source().lacks(batch.position))
    place = log.accepted(batch.position)
    assert log.source().lacks(place) is None
    log.write("e", "f")
    after = log.batch(place)
    assert log.texts(after) == ["e", "f"]
    # The same place again would lead back to what was accepted, and messages would be taken twice.
    assert after.position != batch.position
    assert log.decide(after.position) is None


def test_the_source_notices_that_a_server_lost_messages_and_received_other_ones(log: Numbered) -> None:
    log.write("a", "b")
    log.server.save()
    log.write("c", "d")
    batch = log.batch()
    log.server.restart()
    log.write("e", "f", "g")
    with pytest.raises(SourceError, match="gone"):
        log.texts(batch)
    place = log.accepted(batch.position)
    if isinstance(log, Streamed):  # ids are times: none is given again
        assert log.texts(log.batch(place)) == ["e", "f", "g"]
    else:
        assert log.texts(log.batch(place)) == ["g"]


def test_an_opaque_source_with_only_one_partition_refuses_lost_messages(log: Numbered) -> None:
    log.write("a")
    log.server.save()
    log.write("b", "c")
    batch = log.batch(kind="opaque")
    log.server.restart()
    with pytest.raises(SourceError, match=r"messages that come next are gone: .*accept-loss"):
        log.decide(batch.position, kind="opaque")


def test_an_opaque_source_continues_with_partitions_that_lost_no_message(
    server: LocalRedis, caplog: pytest.LogCaptureFixture
) -> None:
    first, other = Numbered(server), Numbered(server)
    source = RedisNumberedSource("tweets", prefix=[first.key, other.key], kind="opaque")
    for each in (first, other):
        each.write("a", "b")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    server.client().set(f"{first.key}NEXT_WRITE", 2)
    other.write("c")
    after = source.decide(ATTEMPT, plain(batch.position))
    assert after is not None
    assert set(plain(after.metadata)) == {other.partition}
    assert "would give 2 again" in caplog.text
    (loss,) = source.losses(plain(batch.position))
    assert loss.partition == first.partition
    source.close()


# --- messages that come next and are not there


def test_messages_before_a_missing_message_are_taken_and_then_the_missing_message_is_reported(
    server: LocalRedis,
) -> None:
    log = Numbered(server)
    log.write(*"abcdefg")
    server.client().delete(f"{log.key}3", f"{log.key}4", f"{log.key}6")
    first = log.batch()
    assert (log.texts(first), first.count) == (["a", "b"], 2)
    with pytest.raises(SourceError, match="messages 3 to 4 .* are not in database 0"):
        log.decide(first.position)
    second = log.batch(log.accepted(first.position))
    assert log.texts(second) == ["e"]
    assert log.texts(log.batch(log.accepted(second.position))) == ["g"]


def test_lost_messages_of_a_batch_that_was_already_decided_are_reported(server: LocalRedis) -> None:
    log = Numbered(server)
    log.write(*"abcdefg")
    batch = log.batch()
    server.client().delete(f"{log.key}2", f"{log.key}4", f"{log.key}5")
    with pytest.raises(SourceError, match=r"messages 2, 4 to 5 of 1 to 7 are gone .*airflow tx skip"):
        log.texts(batch)


def test_the_cursor_key_of_a_source_can_set_its_first_message(server: LocalRedis) -> None:
    log = Numbered(server)
    log.write("a", "b", "c")
    server.client().delete(f"{log.key}1")
    with pytest.raises(SourceError, match="set NEXT_READ to the number of the first existing message"):
        log.decide()
    server.client().set(f"{log.key}NEXT_READ", 2)
    first = log.batch(move_cursor=True)
    assert log.texts(first) == ["b", "c"]
    log.write("d")
    log.batch(first.position, move_cursor=True)
    assert server.client().get(f"{log.key}NEXT_READ") == b"4"
    log.source(move_cursor=True).losses({log.partition: {"next": 2}})
    assert server.client().get(f"{log.key}NEXT_READ") == b"4"


@pytest.mark.parametrize(("trimmed", "gone"), [(2, 0), (4, 2), (6, 4)])
def test_the_source_notices_that_a_stream_was_trimmed_before_it_was_read(
    server: LocalRedis, trimmed: int, gone: int
) -> None:
    log = Streamed(server)
    log.write("a", "b")
    batch = log.batch()
    log.write(*"cdef")
    server.client().xtrim(log.key, maxlen=6 - trimmed, approximate=False)
    position = batch.position
    if gone:
        with pytest.raises(SourceError, match=f"{gone} entries after .* are gone: trimmed or deleted"):
            log.decide(position)
        position = log.accepted(position)
    rest = log.decide(position)
    assert (log.texts(rest) if rest else []) == list("cdef")[gone:]


@pytest.mark.parametrize("which", [2, 3, 5])
def test_the_source_notices_that_an_entry_was_deleted_before_it_was_read(server: LocalRedis, which: int) -> None:
    log = Streamed(server)
    log.write("a", "b")
    batch = log.batch()
    log.write(*"cdef")
    ids = [id_ for id_, _ in server.client().xrange(log.key)]
    server.client().xdel(log.key, ids[which])
    with pytest.raises(SourceError, match="1 entries after .* are gone"):
        log.decide(batch.position, max_rows_per_batch=1)
    rest = log.batch(log.accepted(batch.position))
    assert log.texts(rest) == [text for number, text in enumerate("abcdef") if number >= 2 and number != which]
    assert log.decide(rest.position) is None


def test_an_entry_deleted_after_it_was_read_is_not_a_loss(server: LocalRedis) -> None:
    log = Streamed(server)
    log.write("a", "b", "c")
    batch = log.batch(max_rows_per_batch=2)
    server.client().xdel(log.key, server.client().xrange(log.key)[1][0])
    rest = log.batch(batch.position)
    assert log.texts(rest) == ["c"]
    log.write("d")
    assert log.texts(log.batch(rest.position)) == ["d"]


def test_entries_that_were_deleted_before_the_first_batch_are_not_a_loss(
    server: LocalRedis,
) -> None:
    log = Streamed(server)
    log.write(*"abcdef")
    ids = [id_ for id_, _ in server.client().xrange(log.key)]
    server.client().xdel(log.key, ids[0], ids[3])
    first = log.batch(max_rows_per_batch=2)
    rest = log.batch(first.position)
    assert (log.texts(first), log.texts(rest)) == (["b", "c"], ["e", "f"])
    assert log.decide(rest.position) is None


def test_a_stream_without_a_stored_count_is_checked_for_losses_after_a_batch_reaches_its_end(
    server: LocalRedis,
) -> None:
    log = Streamed(server)
    log.write("a", "b", "c")
    place: Any = plain(log.batch(max_rows_per_batch=1).position)[log.partition]
    uncounted = {log.partition: {name: each for name, each in place.items() if name != "read"}}
    second = log.batch(uncounted, max_rows_per_batch=1)
    assert "read" not in plain(second.position)[log.partition]
    third = log.batch(second.position, max_rows_per_batch=1)
    assert (log.texts(second), log.texts(third)) == (["b"], ["c"])
    log.write("d", "e")
    server.client().xtrim(log.key, maxlen=1, approximate=False)
    assert log.texts(log.batch(log.accepted(third.position))) == ["e"]


def test_a_deleted_stream_is_a_loss_and_the_source_resumes_at_the_start_of_the_new_stream(server: LocalRedis) -> None:
    log = Streamed(server)
    log.write("a", "b")
    batch = log.batch()
    server.client().delete(log.key)
    place = log.accepted(batch.position)
    with pytest.raises(SourceError, match="there is no stream"):
        log.decide(place)
    log.write("c")
    assert log.texts(log.batch(place)) == ["c"]


# --- how much at once


def test_a_batch_over_all_partitions_stays_within_its_limit_and_its_reason_names_the_limit(server: LocalRedis) -> None:
    logs = [Numbered(server) for _ in range(3)]
    logs[0].write(*"ab")
    logs[1].write(*("c" * 20))
    logs[2].write(*("d" * 20))
    source = RedisNumberedSource("tweets", prefix=[each.key for each in logs], max_rows_per_batch=12)
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    assert (batch.count, batch.reason) == (12, "12 of 42 rows: max_rows_per_batch=12")
    assert sorted(rows["quantity"] for rows in plain(batch.metadata).values()) == [2, 5, 5]
    assert (source.backlog(None), source.backlog(plain(batch.position))) == (42, 30)
    small = RedisNumberedSource("tweets", prefix=logs[1].key, max_bytes_per_batch=4).decide(ATTEMPT, None)
    assert small is not None
    assert (small.count, small.reason) == (4, "4 of 20 rows: max_bytes_per_batch=4, 1 bytes a row")
    source.close()


def test_a_large_stream_is_split_into_batches_without_reading_entries_twice(server: LocalRedis) -> None:
    log = Streamed(server)
    pipeline: Any = server.client().pipeline(transaction=False)
    for number in range(25_000):
        pipeline.xadd(log.key, {"text": str(number)})
    pipeline.execute()
    first = log.batch(max_rows_per_batch=22_000)
    rest = log.batch(first.position)
    assert (first.count, rest.count) == (22_000, 3_000)
    assert log.texts(first) + log.texts(rest) == list(map(str, range(25_000)))
    source = log.source(max_bytes_per_batch=4_500)
    small = source.decide(ATTEMPT, None)
    assert small is not None
    assert small.count == 762  # of 5.9 bytes, by the first 100
    source.close()


# --- what cannot be used


def test_a_redis_key_of_another_type_is_refused_and_the_error_names_the_key(log: Numbered) -> None:
    log.write("a")
    batch = log.batch()
    key = f"{log.key}NEXT_WRITE" if type(log) is Numbered else log.key
    log.server.client().delete(key)
    log.server.client().hset(key, "a", 1)
    told = rf"key '{key}' in database 0 of connection tweets has another type: WRONGTYPE"
    for position, kind in ((None, "transactional"), (batch.position, "opaque")):
        with pytest.raises(SourceError, match=told):
            log.decide(position, kind=kind)


def test_a_message_of_another_type_is_refused_and_the_error_names_the_message(server: LocalRedis) -> None:
    log = Numbered(server)
    log.write("a", "b", "c")
    batch = log.batch()
    server.client().delete(f"{log.key}2")
    server.client().hset(f"{log.key}2", "a", 1)
    with pytest.raises(SourceError, match=rf"message 2 \(key {log.key}2\) in database 0 .* is a hash, not a text"):
        log.texts(batch)


def test_the_error_about_a_missing_key_names_the_key(server: LocalRedis) -> None:
    for source, told in (
        (RedisNumberedSource("tweets", prefix="nobody:"), "there is no key nobody:NEXT_WRITE in database 0"),
        (RedisListSource("tweets", lists="nobody"), "there is no list nobody in database 0"),
        (RedisStreamSource("tweets", "nobody"), "there is no stream nobody in database 0"),
    ):
        with pytest.raises(SourceError, match=told):
            source.decide(ATTEMPT, None)
        assert source.backlog(None) is None


def test_a_cursor_that_is_not_a_number_is_refused_and_the_error_names_the_cursor(server: LocalRedis) -> None:
    log = Numbered(server)
    server.client().set(f"{log.key}NEXT_WRITE", "soon")
    with pytest.raises(SourceError, match=rf"key {log.key}NEXT_WRITE .* holds b'soon', which is not a number"):
        log.decide()


def test_a_wrong_password_is_reported_and_never_shown() -> None:
    for kind in ("transactional", "opaque"):
        with pytest.raises(
            ConfigError, match="Redis connection = 'guessed' cannot be used. The server says"
        ) as refusal:
            RedisNumberedSource("guessed", kind=kind).decide(ATTEMPT, None)
        shown = f"{refusal.value!r} {refusal.value.fields} {refusal.getrepr(showlocals=False)}"
        assert "g0ssip" not in shown


def test_an_unreadable_message_fails_the_batch_and_the_error_names_the_message(server: LocalRedis) -> None:
    log = Numbered(server)
    log.write('{"n": 1}', "{", '"x"')
    server.client().set(f"{log.key}4", b"\xff")
    server.client().set(f"{log.key}NEXT_WRITE", 5)
    told = {2: "it is no JSON", 3: "it is a JSON str, not an object", 4: "it is not UTF-8"}
    for number, why in told.items():
        batch = log.batch({log.partition: {"next": number}})
        named = (
            rf"message {number} \(key {log.key}{number}\) in database 0 of connection tweets, .* cannot be read: {why}"
        )
        with pytest.raises(RowsRefused, match=named):
            rows_of(RedisNumberedSource("tweets", prefix=log.key, schema="n INT"), batch.metadata)


def test_a_position_of_another_source_is_refused(log: Numbered) -> None:
    log.write("a")
    for place in ("a.csv", 7, {"file": "a.csv"}, {"next": None, "after": 3}):
        with pytest.raises(SourceError, match="The topology had another source before"):
            log.decide({log.partition: place})
    with pytest.raises(SourceError, match="has no partitions"):
        log.decide([1])


def test_closing_a_source_in_one_thread_does_not_affect_another_thread(server: LocalRedis) -> None:
    """A lane commits one transaction in a thread while it reads the rows of the next one in another."""
    key, client = f"k{uuid.uuid4().hex[:8]}", server.client()
    client.xadd(key, {"n": 1})
    source = RedisStreamSource("tweets", [key])
    reading, committing = source.named("flights"), source.named("flights")
    others = {each["id"] for each in client.client_list()}
    batch = reading.decide(ATTEMPT, None)
    own = {each["id"] for each in client.client_list()} - others
    committing.close()
    assert own
    assert own <= {each["id"] for each in client.client_list()}
    assert batch is not None
    assert len(rows_of(reading, batch.metadata)) == 1


def test_the_source_stops_if_a_partition_was_removed_from_its_arguments(log: Numbered) -> None:
    log.write("a")
    batch = log.batch()
    other: Any = {"tweets:other": plain(batch.metadata)[log.partition]}
    with pytest.raises(SourceError, match="the batch contains partition tweets:other, but the source has only"):
        rows_of(log.source(), other)
    with pytest.raises(SourceError, match="partition tweets:other was in earlier batches and is gone"):
        log.decide({"tweets:other": plain(batch.position)[log.partition]})
