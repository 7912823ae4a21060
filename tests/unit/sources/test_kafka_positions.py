"""Which offsets come next and which are gone, from what Kafka says; and what a KafkaSource is told."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, SourceError
from airflow_tx.ledger.api import Create, Paths
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import RepairRecord, TopologyRecord, encode
from airflow_tx.ledger.steps.loss import start_after
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.sources.kafka.offsets import Extent, LastMessage, OffsetRange, OffsetsSnapshot, position_json
from airflow_tx.sources.kafka.source import KafkaSource


def look(*, ids: dict[str, str | None] | None = None, **extents: tuple[int, int]) -> OffsetsSnapshot:
    """Of the topic `t`, unless said otherwise: t_0=(first, end)."""
    found = {name.replace("_", "-"): Extent("id", *each) for name, each in extents.items()}
    return OffsetsSnapshot(found, ids={"t": "id"} if ids is None else ids)


def places(**offsets: int) -> dict[str, Any]:
    return {name.replace("_", "-"): position_json("id", offset) for name, offset in offsets.items()}


def source_that_sees(
    seen: OffsetsSnapshot, marks: Mapping[str, LastMessage] = MappingProxyType({}), **arguments: Any
) -> KafkaSource:
    """Make a source whose Kafka says this.

    :param marks: the last message of each partition now.
    """
    source = KafkaSource(topic="t", **arguments)
    source._snapshot = lambda topics=None: seen  # type: ignore[method-assign]
    source._last_messages = lambda ranges: {name: marks[name] for name in ranges if name in marks}  # type: ignore[method-assign]
    return source


def batch(seen: OffsetsSnapshot, before: dict[str, Any], starting: str = "earliest", limit: int | None = None) -> Any:
    source = source_that_sees(seen, starting=starting, max_rows_per_batch=limit)
    decided: Any = source.decide(TransactionAttempt(1, 1), before or None)
    return {} if decided is None else {name: (own["from"], own["to"]) for name, own in decided.metadata.items()}


def losses(seen: OffsetsSnapshot, positions: dict[str, Any]) -> Any:
    return source_that_sees(seen).losses(positions)


def test_the_first_batch_of_a_topic_includes_all_its_partitions() -> None:
    assert batch(look(t_0=(5, 9), t_1=(3, 3)), {}) == {"t-0": (5, 9), "t-1": (3, 3)}
    assert batch(look(t_0=(5, 9), t_1=(3, 3)), {}, "latest") == {"t-0": (9, 9), "t-1": (3, 3)}
    assert batch(look(t_0=(5, 5), t_1=(3, 3)), {}) == {}


def test_later_batches_include_only_partitions_with_rows() -> None:
    assert batch(look(t_0=(0, 9), t_1=(0, 3)), places(t_0=4, t_1=3)) == {"t-0": (4, 9)}
    assert batch(look(t_0=(0, 4), t_1=(0, 3)), places(t_0=4, t_1=3), "latest") == {}


def test_a_partition_with_few_rows_leaves_the_rest_of_the_limit_to_the_others() -> None:
    assert batch(look(t_0=(0, 100), t_1=(0, 2)), places(t_0=0, t_1=0), limit=10) == {"t-0": (0, 8), "t-1": (0, 2)}


@pytest.mark.parametrize("starting", ["earliest", "latest"])
def test_an_added_partition_is_read_from_its_first_message(starting: str) -> None:
    assert batch(look(t_0=(0, 4), t_1=(0, 3)), places(t_0=4), starting) == {"t-1": (0, 3)}


def test_an_added_topic_is_read_from_the_configured_start() -> None:
    seen = look(ids={"t": "id", "u": "id"}, t_0=(0, 4), u_0=(7, 9))
    assert batch(seen, places(t_0=4)) == {"u-0": (7, 9)}
    assert batch(seen, places(t_0=4), "latest") == {"u-0": (9, 9)}


def test_the_report_of_a_loss_contains_the_offset_at_which_the_source_continues() -> None:
    seen = look(t_0=(7, 9), t_1=(0, 3), t_2=(0, 3))
    found = losses(seen, places(t_0=4, t_1=5, t_2=3))
    assert [(loss.partition, loss.position["offset"], loss.resume_at) for loss in found] == [
        ("t-0", 4, position_json("id", 7)),
        ("t-1", 5, position_json("id", 3, life=1)),
    ]
    anew = OffsetsSnapshot({"t-0": Extent("new", 2, 9)}, ids={"t": "new"})
    found = losses(anew, places(t_0=4, t_1=5))
    assert [(loss.partition, loss.resume_at) for loss in found] == [
        ("t-0", position_json("new", 2, life=1)),
        ("t-1", position_json("new", 0, life=1)),
    ]
    # Accepted, they are none any more.
    assert losses(anew, {loss.partition: loss.resume_at for loss in found}) == []


def test_only_a_partition_that_was_cut_is_reported_as_set_back() -> None:
    source = source_that_sees(look(t_0=(7, 9), t_1=(0, 3), t_2=(0, 3)))
    said = source.lacks(places(t_0=4, t_1=5, t_2=3))
    assert said is not None
    assert said.startswith("t-1: offset 5 was reached, and the partition now ends at 3: it was cut")
    assert source.lacks(places(t_0=4, t_2=3)) is None
    anew = OffsetsSnapshot({"t-0": Extent("new", 2, 9)}, ids={"t": "new"})
    assert source_that_sees(anew).lacks(places(t_0=4)) is None


def test_a_changed_last_message_is_a_loss_until_a_person_accepts_it() -> None:
    old, new = LastMessage(3, "old"), LastMessage(3, "new")
    seen = look(t_0=(0, 9))
    taken: Any = {"t-0": position_json("id", 4, last=old)}
    assert source_that_sees(seen, {"t-0": old}).losses(taken) == []
    # Retention and compaction remove the last message, and write no other one.
    assert source_that_sees(seen, {}).losses(taken) == []
    changed = source_that_sees(seen, {"t-0": new})
    (loss,) = changed.losses(taken)
    assert loss.went_back
    assert loss.resume_at == position_json("id", 4, life=1, last=new)
    assert changed.losses({"t-0": loss.resume_at}) == []
    with pytest.raises(SourceError, match="t-0: it was cut and written again: offset 3 has another message"):
        changed.decide(TransactionAttempt(2, 1), taken)


def test_the_last_message_of_a_batch_is_recorded_with_its_offsets() -> None:
    mark = LastMessage(8, "last")
    seen = look(t_0=(0, 9), t_1=(0, 5))
    # All rows of the second partition were aborted: there is no later message than the one before.
    earlier: Any = {"t-0": position_json("id", 4), "t-1": position_json("id", 2, last=LastMessage(1, "earlier"))}
    decided: Any = source_that_sees(seen, {"t-0": mark}).decide(TransactionAttempt(2, 1), earlier)
    for written in (decided.metadata, decided.position):
        assert [written[name]["last"]["digest"] for name in ("t-0", "t-1")] == ["last", "earlier"]


def test_a_batch_whose_last_message_has_changed_cannot_be_read_again() -> None:
    rows: Any = {"t-0": {"topic_id": "id", "from": 0, "to": 4, "last": {"offset": 3, "digest": "old"}}}
    changed = source_that_sees(look(t_0=(0, 9)), {"t-0": LastMessage(3, "new")})
    assert "it was cut and written again" in str(changed.refuses_again(rows))
    with pytest.raises(SourceError, match="t-0: offset 3 has another message than was taken"):
        changed.emit_batch(TransactionAttempt(1, 1), rows)


def test_the_backlog_includes_offsets_that_wait_for_an_open_transaction_of_kafka(
    caplog: pytest.LogCaptureFixture,
) -> None:
    seen = OffsetsSnapshot({"t-0": Extent("id", 0, 4, waiting=3), "t-1": Extent("id", 0, 4)}, ids={"t": "id"})
    source = source_that_sees(seen)
    assert source.backlog(places(t_0=4, t_1=4)) == 3
    assert source.backlog(places(t_0=3, t_1=2)) == 1 + 3 + 2
    assert source.decide(TransactionAttempt(2, 1), places(t_0=4, t_1=4)) is None
    (line,) = caplog.messages
    assert "nothing from partition t-0: its 3 offsets from 4 on wait for a Kafka transaction" in line
    assert "abort --topic t --partition 0 --start-offset 4" in line


def test_partitions_that_cannot_be_reached_report_no_loss() -> None:
    assert losses(OffsetsSnapshot(away={"t-0": "no leader"}, ids={"t": "new"}), places(t_0=4)) == []
    assert losses(OffsetsSnapshot(missing=["t"]), places(t_0=4)) == []


def test_losses_are_found_by_offsets_if_topics_have_no_ids() -> None:
    seen = OffsetsSnapshot({"t-0": Extent(None, 0, 3)}, ids={"t": None})
    assert losses(seen, places(t_0=3)) == []
    assert len(losses(seen, places(t_0=4))) == 1


@pytest.mark.parametrize("ids", [("A", "A", "A"), (None, None, None), ("A", "B", "A")])
def test_after_an_accepted_cut_offsets_that_are_written_again_are_counted_once(
    ids: tuple[str | None, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    source = source_that_sees(OffsetsSnapshot())
    topology = TopologyRecord("i", "d", "transactional", 1, partitioned=True)
    store, paths = MemoryStore(), Paths("/", "t")
    store.ensure(paths.repairs)
    read = Reader(store)
    position: Any = {"t-0": position_json(ids[0], 7)}
    batches = []
    # Cut to 5, written again up to 7, and cut and written once more.
    for topic_id in ids[1:]:
        for end in (5, 6, 7, 7):
            seen = OffsetsSnapshot({"t-0": Extent(topic_id, 5, end)}, ids={"t": topic_id})
            monkeypatch.setattr(source, "_snapshot", lambda seen=seen: seen)
            for loss in losses(seen, start_after(read, paths, topology, position).position):
                number = len(topology.losses) + 1
                repair = RepairRecord(number, "accept-loss", "ada", "2013-01-01T00:00:00+00:00", "cut", "lost", 1, "op")
                repair.losses.append(loss)
                store.multi([], [Create(paths.repair(number), encode(repair))])
                topology.losses.append(number)
            decided = source.decide(TransactionAttempt(1, 1), start_after(read, paths, topology, position).position)
            if decided is not None:
                batches.append((decided.metadata["t-0"]["from"], decided.metadata["t-0"]["to"]))  # type: ignore[index,call-overload]
                position = decided.position
    assert batches == [(5, 6), (6, 7)] * 2


def test_the_size_of_a_range_is_the_number_of_its_offsets() -> None:
    assert OffsetRange(3, 7).count == 4


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"topic": ""}, "topic of KafkaSource"),
        ({"topic": "a,a"}, "each once"),
        ({"topic": "a b"}, "topic of KafkaSource = 'a b'"),
        ({"kind": "exact"}, "kind of KafkaSource = 'exact'"),
        ({"starting": "now"}, "starting of KafkaSource = 'now'"),
        ({"max_rows_per_batch": 0}, "max_rows_per_batch of KafkaSource = 0"),
        ({"max_bytes_per_batch": "1 MB"}, "max_bytes_per_batch of KafkaSource"),
        ({"target_seconds": -1}, "target_seconds of KafkaSource"),
        ({"timeout": 0}, "timeout of KafkaSource"),
        ({"options": {"endingOffsets": "latest"}}, "options of KafkaSource = 'endingOffsets'"),
        ({"options": {"kafka.sasl.jaas.config": "hush"}}, "Put logins into the connection"),
    ],
)
def test_an_invalid_argument_is_refused_when_the_source_is_created(arguments: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refusal:
        KafkaSource(**{"topic": "orders", **arguments})
    assert "hush" not in str(refusal.value)


def test_a_kafka_source_names_the_connection_that_a_spark_driver_needs() -> None:
    assert KafkaSource("other", topic="orders").connections() == {"other": "kafka"}
