"""Many messages at once become the column that they become one by one, or are left to be read one by one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from confluent_kafka import TIMESTAMP_CREATE_TIME, TIMESTAMP_NOT_AVAILABLE, Message

from airflow_tx.base.rows import NotProven, arrow_types_of, nested_columns_of
from airflow_tx.sources.kafka import offsets as kafka_offsets
from airflow_tx.sources.message import message_batches, message_column, parsed_message
from tests.edges import messages
from tests.edges.messages import COLUMNS, MESSAGES, REFUSED, TAKEN

WITHOUT_MAP = nested_columns_of(", ".join(f"{name} {kind}" for kind, name in COLUMNS.items() if "MAP" not in kind))
TYPE = pa.struct(list(arrow_types_of(WITHOUT_MAP).items()))
ONE = b'{"c3":1}'


def column(raws: Sequence[bytes | None]) -> Any:
    try:
        return message_column(raws, WITHOUT_MAP, TYPE)
    except NotProven:
        return REFUSED


def one_by_one(raws: Sequence[bytes | None]) -> Any:
    try:
        return pa.array([None if raw is None else parsed_message(raw, WITHOUT_MAP) for raw in raws], TYPE)
    except ValueError:
        return REFUSED


@pytest.mark.parametrize("message", MESSAGES, ids=str)
@pytest.mark.parametrize("others", [[], [ONE, None, ONE]], ids=["alone", "among others"])
def test_a_page_of_messages_has_the_same_rows_as_its_messages_read_one_by_one(
    message: messages.Message, others: list[bytes | None]
) -> None:
    raws = [*others, message.content, *others]
    found = column(raws)
    if found != REFUSED:
        found.validate(full=True)
        assert found.equals(one_by_one(raws))


@pytest.mark.parametrize(
    "raws", [[ONE] * 3, [None, ONE, None, None, ONE], [None], [], [b'{"c3":1}\r', ONE], [b"{}", None]]
)
def test_ordinary_messages_are_read_as_one_page(raws: Sequence[bytes | None]) -> None:
    found = column(raws)
    assert found != REFUSED
    assert found.equals(one_by_one(raws))


@pytest.mark.parametrize("raw", [b"", b"\n", b'{"c3":1}\n', b'\n{"c3":1}', b'{"c3":1}\n{"c3":1}', b"{\n}", b" "])
def test_messages_with_line_breaks_are_read_one_by_one(raw: bytes) -> None:
    for raws in ([raw], [ONE, raw], [raw, ONE], [raw, None, raw]):
        assert column(raws) == REFUSED


def test_most_kinds_of_messages_are_read_as_one_page() -> None:
    read = [each for each in TAKEN if column([each.content]) != REFUSED]
    assert len(read) > len(TAKEN) / 2


def test_texts_are_read_as_one_page_if_they_are_valid_utf8() -> None:
    assert message_column([b"a", None, b"\xc3\xa9"], None, pa.string()).to_pylist() == ["a", None, "é"]
    assert message_column([b"\xff", None], None, pa.binary()).to_pylist() == [b"\xff", None]
    with pytest.raises(NotProven):
        message_column([b"\xff"], None, pa.string())


def test_messages_are_read_one_by_one_only_if_their_page_cannot_be_read_at_once() -> None:
    types = {"n": pa.int64()}
    proven = pa.RecordBatch.from_pydict({"n": [1]})

    def left() -> pa.RecordBatch:
        raise NotProven("a cause")

    assert list(message_batches(lambda: proven, iter([{"n": 2}]), types, [])) == [proven]
    (found,) = message_batches(left, iter([{"n": 2}]), types, [])
    assert found.to_pylist() == [{"n": 2}]


def kafka_batch(*times: tuple[int, int]) -> pa.RecordBatch:
    page = [Message(topic="t", partition=1, offset=n, value=ONE, timestamp=at) for n, at in enumerate(times)]
    return kafka_offsets._batch(page, WITHOUT_MAP, kafka_offsets.row_types(WITHOUT_MAP))


def test_the_timestamp_of_a_kafka_message_without_one_is_null() -> None:
    batch = kafka_batch((TIMESTAMP_NOT_AVAILABLE, 0), (TIMESTAMP_CREATE_TIME, -1), (TIMESTAMP_CREATE_TIME, 1500))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [None, None, 1_500_000]
    assert batch.column("headers").to_pylist() == [None] * 3


def test_a_page_with_a_time_after_the_year_9999_is_read_one_by_one() -> None:
    last = 253_402_300_799_999
    assert kafka_batch((TIMESTAMP_CREATE_TIME, last)).num_rows == 1
    with pytest.raises(NotProven, match="a time that Python cannot represent"):
        kafka_batch((TIMESTAMP_CREATE_TIME, last + 1))
