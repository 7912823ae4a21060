"""Queues of RabbitMQ without a broker: arguments, what tells messages apart, what is staged and removed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from airflow_tx import RabbitQueueSource
from airflow_tx.base.errors import ConfigError
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.sources.api import SourceKind, rebuild
from airflow_tx.sources.rabbit import QueueMessage, TakenMessages, is_staged, read_ids, read_taken


def message(id_: str, **parts: Any) -> QueueMessage:
    return QueueMessage(**{"message_id": id_, "routing_key": "orders", "headers": "{}", "body": b"a", **parts})


def test_a_rabbit_source_can_be_created_again_from_its_arguments() -> None:
    source = RabbitQueueSource("shop", "orders", schema="n INT", set_aside="bad", max_rows_per_batch=5, remember=7)
    shown = (
        "RabbitQueueSource('shop', queue='orders', schema='n INT', remember=7, set_aside='bad', max_rows_per_batch=5)"
    )
    again = rebuild(*json.loads(json.dumps(source.serialize())))
    assert (repr(source), repr(again), again.serialize()) == (shown, shown, source.serialize())
    assert (source.kind, source.stages, source.rows_can_change) == (SourceKind.TRANSACTIONAL, True, False)


@pytest.mark.parametrize(
    ("arguments", "named"),
    [
        ({"queue": ""}, r"queue of RabbitQueueSource = ''"),
        ({"identity": "body"}, r"identity of RabbitQueueSource = 'body' .*message_id, content"),
        ({"remember": 0}, r"remember of RabbitQueueSource = 0"),
        ({"max_deliveries": True}, r"max_deliveries of RabbitQueueSource = True"),
        ({"set_aside": "orders"}, r"set_aside of RabbitQueueSource = 'orders' .*another queue"),
        ({"max_rows_per_batch": 0}, r"max_rows_per_batch of RabbitQueueSource = 0"),
    ],
)
def test_the_error_for_an_invalid_argument_of_a_rabbit_source_names_it(arguments: dict[str, Any], named: str) -> None:
    with pytest.raises(ConfigError, match=named):
        RabbitQueueSource(**{"queue": "orders", **arguments})


def test_messages_are_identified_by_their_id_or_by_their_complete_content() -> None:
    one = message("1")
    assert one.identity("message_id") == message("1", body=b"b").identity("message_id")
    assert one.identity("message_id") != message("2").identity("message_id")
    delivered = message("2", headers='{"x-delivery-count": 3}')
    assert one.identity("content") == delivered.identity("content")
    for other in (message("1", body=b"b"), message("1", routing_key="b"), message("1", headers='{"shop": 1}')):
        assert one.identity("content") != other.identity("content")
    # No part is taken for the end of another one.
    assert message("", routing_key="ab", body=b"c").identity("content") != message(
        "", routing_key="a", body=b"bc"
    ).identity("content")


def test_staged_messages_are_unchanged_when_they_are_read(tmp_path: Path) -> None:
    taken = TakenMessages(str(tmp_path), "rabbit/..")
    messages = [message("1", body=b"\xff\x00"), message("", headers='{"n": 1}')]
    staged, ids = taken.stage(0, messages), taken.stage_ids(2, [bytes([n]) * 16 for n in range(3)])
    assert read_taken(staged) == messages
    assert list(read_ids(ids)) == [bytes([n]) * 16 for n in range(3)]
    assert (is_staged(ids), is_staged(f"{ids}x")) == (True, False)


def test_messages_that_were_taken_without_a_transaction_are_kept_until_a_commit(tmp_path: Path) -> None:
    taken = TakenMessages(str(tmp_path), "rabbit/q")
    for number in (0, 2, 10):
        taken.stage(number, [message(str(number))])
    assert [each.message_id for each in taken.left(2)] == ["2", "10"]
    taken.note_committed(7, 2)
    assert [each.message_id for each in taken.left(0)] == ["0", "10"]


def test_messages_from_before_a_lost_ledger_are_in_the_next_transaction_of_the_rebuilt_one(
    tmp_path: Path,
) -> None:
    area = StagingArea(str(tmp_path))
    lost, made_anew = (TakenMessages(area.of_topology(life).root, "rabbit/q") for life in ("lost", "anew"))
    lost.stage(0, [message("1"), message("2")])
    lost.stage_ids(2, [bytes(16), bytes(16)])
    lost.note_committed(1, 0)
    for number in (0, 10, 2):
        made_anew.stage(number, [message(f"n{number}")])
    for _ in range(2):
        area.adopt_taken("anew", "lost")
    assert [each.message_id for each in lost.left(2)] == ["n0", "n2", "n10"]


def test_message_ids_are_kept_from_the_position_before_the_last_committed_transaction(tmp_path: Path) -> None:
    """A ledger that is rebuilt may begin it anew, from the position before it."""
    taken = TakenMessages(str(tmp_path), "rabbit/q")
    ids = [taken.stage_ids(number, [bytes(16)]) for number in (3, 5, 9)]
    batches = [taken.stage(number, [message(str(number))]) for number in (3, 5)]
    taken.note_committed(2, 5)
    taken.remove_before(2)
    assert all(map(is_staged, [*ids, *batches]))
    taken.remove_before(3)
    assert list(map(is_staged, ids)) == [False, True, True]
    assert list(map(is_staged, batches)) == [True, False]
