"""The argument `malformed` of sources, and what reads rows that do not fit as malformed ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, cast

import pytest

from airflow_tx import FileSource, KafkaSource, RedisListSource
from airflow_tx.base.errors import ConfigError, SourceError, TransactionDefinitionError
from airflow_tx.base.rows import UnfitText, nested_columns_of
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources import MalformedRow
from airflow_tx.sources.api import rebuild
from airflow_tx.sources.message import malformed_message, parsed_message
from airflow_tx.sources.trial import TrialSource
from airflow_tx.state import DeltaTable
from airflow_tx.transaction.processing.consumed_rows import RowsReading
from tests.unit.topology.blocks import block, commit, count, dag

ATTEMPT = TransactionAttempt(1, 1)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: FileSource("a.csv", malformed="drop"), "'drop' cannot be used. Use 'refuse' or 'reject'."),
        (lambda: FileSource("a.csv", malformed=cast("Any", True)), "True cannot be used. Use 'refuse' or 'reject'."),
        (lambda: FileSource("a", format="parquet", malformed="reject"), "'reject' .* it is for csv and json files"),
        (lambda: FileSource("a", format="json", malformed="reject"), "'reject' .* Declare the columns, such as"),
        (
            lambda: FileSource("a", options={"mode": "DROPMALFORMED"}, malformed="reject"),
            "Leave it out: only Spark supports the option mode='DROPMALFORMED'",
        ),
        (lambda: FileSource("a", schema="day INTERVAL", malformed="reject"), "Leave it out: column 'day INTERVAL'"),
        (lambda: FileSource("a", schema="day ARRAY<INT>", malformed="reject"), "Leave it out: column 'day ARRAY<INT>'"),
        (lambda: KafkaSource(topic="a", malformed="reject"), "'reject' cannot be used. Set value_schema"),
        (lambda: RedisListSource("a", lists="b", malformed="no"), "'no' cannot be used. Use 'refuse' or 'reject'"),
    ],
)
def test_rejecting_malformed_rows_is_refused_if_readers_cannot_detect_them(make: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as refusal:
        make()
    assert "\n" not in str(refusal.value)


@pytest.mark.parametrize(
    "source",
    [
        FileSource("a.csv", malformed="reject"),
        KafkaSource(topic="a", value_schema="n INT", malformed="reject"),
        RedisListSource("a", lists="b", malformed="reject"),
    ],
    ids=["files", "kafka", "redis"],
)
def test_a_source_keeps_its_option_for_malformed_rows_in_json_and_in_trials(source: Any) -> None:
    again = rebuild(*json.loads(json.dumps(source.serialize())))
    assert again.malformed == "reject"
    assert TrialSource(source, most=3).malformed == "reject"
    assert again.serialize() == source.serialize()


def test_a_transaction_that_rejects_malformed_rows_needs_a_table_for_rejected_rows(tmp_path: Path) -> None:
    source = FileSource("a.csv", malformed="reject")
    with pytest.raises(TransactionDefinitionError, match=r"rejects malformed rows, but there is no table .* rejected="):
        with dag(), block(source=source) as tx:
            commit(count(tx.batch))
    with dag(), block(source=source, rejected=DeltaTable(tmp_path / "aside")) as tx:
        commit(count(tx.batch))


def test_a_malformed_row_is_refused_by_default_with_its_place(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("word,n\ncat,1\ndog,x\n")
    source = FileSource(f"{tmp_path}/*.csv", schema="word STRING, n INT")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    with pytest.raises(SourceError, match=r"line 3: n = 'x' does not fit the schema \(n INT\): it is no whole number"):
        list(cast("Any", source.emit_batch(ATTEMPT, batch.metadata)))


def test_rejected_malformed_rows_are_counted_with_the_batch_and_not_passed_to_the_task() -> None:
    def read(*rows: Any) -> tuple[RowsReading, list[Any]]:
        reading = RowsReading()
        return reading, list(reading.passing(rows))

    bad = MalformedRow("x", "odd", "a:1")
    reading, given = read({"n": 1}, bad, {"n": 2})
    assert given == [{"n": 1}, {"n": 2}]
    assert reading.malformed == [bad]
    assert reading.found.rows == 3
    other, _ = read({"n": 1}, MalformedRow("y", "odd", "a:1"), {"n": 2})
    assert other.found.text != reading.found.text
    same, _ = read({"n": 2}, {"n": 1}, MalformedRow("x", "else", "b:2"))
    assert same.found == reading.found


@pytest.mark.parametrize(
    ("raw", "reason"),
    [
        (b"no json", "it is no JSON"),
        (b"[1]", "it is a JSON list, not an object"),
        (b'{"n": 1.5}', "column n INT: it is no whole number in digits"),
        (b'{"n": "a: b = c"}', "column n INT: a JSON text is no INT"),
        (b'{"a = b": []}', "column a = b INT: a JSON array is no INT"),
        (b'{"n": 1, "n = (1)": 1, "n = (1)": 2}', "an object contains the key 'n = (1)' twice"),
        (b"\xff", "it is not UTF-8"),
    ],
)
def test_the_reason_for_a_malformed_row_contains_no_value(raw: bytes, reason: str) -> None:
    with pytest.raises(ValueError) as found:  # noqa: PT011
        parsed_message(raw, nested_columns_of("n INT, `a = b` INT"))
    assert malformed_message(raw, found.value, "here").reason == reason


@pytest.mark.parametrize(
    ("raw", "place"),
    [
        (b"no json", ""),
        (b"\xff", ""),
        (b'{"n": "a: b = c"}', "offset 3: column n INT"),
        (b'{"n": 1, "n": 2}', "offset 3: a key"),
    ],
)
def test_the_error_for_a_text_that_does_not_fit_marks_the_place_of_the_quoted_value(raw: bytes, place: str) -> None:
    with pytest.raises(UnfitText) as found:
        parsed_message(raw, nested_columns_of("n INT"))
    assert UnfitText.place_of(found.value, within="offset 3") == place
