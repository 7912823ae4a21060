"""Malformed rows of a source that rejects them: Python and Spark find the same ones, and give the same other rows."""

from __future__ import annotations

import json
import uuid
from base64 import b64encode
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from airflow_tx.base.errors import RowsDiffer, SourceError, StagingError
from airflow_tx.ledger import MALFORMED
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.outputs.staging.area import read_manifest
from airflow_tx.outputs.staging.files import open_files
from airflow_tx.sources import BatchStaging, MalformedRow
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.sources.kafka.source import KafkaSource
from airflow_tx.sources.redis.list import RedisListSource
from airflow_tx.sources.redis.stream import RedisStreamSource
from airflow_tx.spark import Batch, batch_app
from airflow_tx.spark.connect import session
from airflow_tx.state import DeltaTable
from airflow_tx.transaction.commit.update import rejected_update
from airflow_tx.transaction.processing.application import describe_batch
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.integration.rejecting_app import applied, committed
from tests.servers.kafka import LocalKafka
from tests.servers.redis import REDIS_PASSWORD, LocalRedis
from tests.stage import Stage, StageRun

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark

ATTEMPT = TransactionAttempt(1, 1)
SCHEMA = "word STRING, n INT, amount DECIMAL(5,2), day DATE"
CSV = [
    "word,n,amount,day",
    "cat,1,1.50,2026-01-02",
    "few,2",
    "many,3,1.00,2026-01-02,more",
    "text,x,1.00,2026-01-02",
    "digits,4,1.005,2026-01-02",
    "late,5,1.00,2026-02-30",
    "large,99999999999,1.00,2026-01-02",
    "two,y,z,",
    "null,,,",
    "",
    '"comma, and ""quotes""",q,,',
    "käse ☃,w,,2026-01-02",
    "  spaces  , 6 ,,",
    "control\x01,\x1f,,",
    "only",
    ",,,",
    ",,,,",
    "dog,7,,2026-01-03",
    "last,8",
]
JSON = [
    '{"word": "cat", "n": 1, "amount": 1.5, "day": "2026-01-02"}',
    '{"word": "cut", "n": 1',
    '{"word": "text", "n": "x"}',
    '{"word": "digits", "amount": 1.005}',
    "[1, 2]",
    "null",
    "no json",
    "",
    '{"word": "twice", "n": 1, "n": 2}',
    '{"n": 1.0}',
    '{"word": {"a": 1}, "n": 2}',
    '{"word": "käse ☃", "day": "2026-02-30"}',
    '{"other": 1}',
    '{"word": "dog", "n": 7} {}',
    '{"word": "dog", "n": 8}',
]


def files_of(folder: Path, lines: list[str], ending: str, **options: Any) -> FileSource:
    kind = "json" if lines[0] == JSON[0] else "csv"
    folder.mkdir(exist_ok=True)
    (folder / f"a.{kind}").write_text(ending.join(lines), newline="")
    (folder / f"b.{kind}").write_text(lines[0] + ending + lines[1], newline="")
    given = {"format": kind, "schema": SCHEMA, "malformed": "reject", "files_per_batch": 2, **options}
    return FileSource(f"{folder}/*.{kind}", **given)


def by_python(source: Any) -> tuple[list[str], list[MalformedRow]]:
    rows: Any = source.emit_batch(ATTEMPT, metadata_of(source))
    found = list(rows)
    bad = [row for row in found if isinstance(row, MalformedRow)]
    return sorted(_shown(row) for row in found if not isinstance(row, MalformedRow)), bad


def by_arrow(source: Any) -> tuple[list[str], list[MalformedRow]]:
    rows = source.emit_arrow(ATTEMPT, metadata_of(source)).read_all().to_pylist()
    return sorted(map(_shown, rows)), source.malformed_rows


def by_spark(source: Any, spark: SparkSession, folder: Path) -> tuple[list[str], list[MalformedRow]]:
    staging = BatchStaging(open_files(str(folder / "staged")), "")
    with staging.as_current():
        frame: Any = source.emit_batch(ATTEMPT, metadata_of(source), spark)
    rows = [row.asDict(recursive=True) for row in frame.collect()]
    return sorted(map(_shown, rows)), staging.malformed


def metadata_of(source: Any) -> Any:
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    return batch.metadata


def _shown(row: Any) -> str:
    return json.dumps(row, default=str, sort_keys=True)


@pytest.mark.parametrize("ending", ["\n", "\r\n"], ids=["unix", "windows"])
@pytest.mark.parametrize(
    ("lines", "options", "count"),
    [(CSV, {}, 13), (CSV, {"schema": None}, 5), (CSV, {"options": {"nullValue": "x", "multiLine": True}}, 12),
     (CSV[1:], {"options": {"header": False}}, 14), (CSV, {"missing_columns": "null"}, 13), (JSON, {}, 11)],
    ids=["csv", "csv without schema", "csv of several lines", "csv without header", "csv by name", "json"],
)  # fmt: skip
def test_spark_and_python_find_the_same_malformed_rows(
    tmp_path: Path, spark: SparkSession, lines: list[str], options: Any, count: int, ending: str
) -> None:
    source = files_of(tmp_path / "in", lines, ending, **options)
    good, bad = by_python(source)
    assert by_spark(source, spark, tmp_path) == (good, bad)
    assert by_arrow(source) == (good, bad)
    assert len(bad) == count
    assert all(row.where.partition(":")[0].endswith((".csv", ".json")) for row in bad)


@pytest.mark.parametrize(
    "fault",
    [b'cat,"1,,\ndog,2,,\n', b"c\xe4t,1,,\n", b'"cat" ,1,,\n', b'"c"at,1,,\n', b"word,m,amount,day\ncat,1,,\n"],
    ids=["quote not closed", "encoding", "space behind a quote", "quote within quotes", "header"],
)
def test_a_broken_file_stops_the_batch_in_spark_and_in_python(
    tmp_path: Path, spark: SparkSession, fault: bytes
) -> None:
    folder = tmp_path / "in"
    source = files_of(folder, CSV[:2], "\n")
    header = b"" if fault.startswith(b"word") else b"word,n,amount,day\n"
    (folder / "b.csv").write_bytes(header + fault)
    with pytest.raises(SourceError):
        by_python(source)
    with pytest.raises(SourceError):
        by_spark(source, spark, tmp_path)


def test_json_that_is_not_utf_8_stops_the_batch_in_spark_and_in_python(tmp_path: Path, spark: SparkSession) -> None:
    source = files_of(tmp_path / "in", JSON[:2], "\n")
    (tmp_path / "in" / "b.json").write_bytes(b'{"word": "c\xe4t"}\n')
    with pytest.raises(SourceError):
        by_python(source)
    with pytest.raises(SourceError):
        by_spark(source, spark, tmp_path)


def test_spark_and_python_find_the_same_malformed_rows_in_partitioned_folders(
    tmp_path: Path, spark: SparkSession
) -> None:
    files_of(tmp_path / "part=1", CSV, "\n")
    source = PartitionedFileSource(f"{tmp_path}/*/*.csv", schema=SCHEMA, malformed="reject", files_per_batch=2)
    good, bad = by_python(source)
    assert by_spark(source, spark, tmp_path) == (good, bad)
    assert '"part": "1"' in good[0]


# --- a transaction


@pytest.fixture
def aside(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "lake" / "rejected")


def begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, lines: list[str]) -> StageRun:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    source = files_of(tmp_path / "in", lines, "\n")
    tasks = ("count", "look")
    run = StageRun(Stage(source=source, tasks=tasks, inside=tasks, rejected=aside).spec, "r1")
    run.begin()
    return run


def looked(run: StageRun, *, drop: int = 0, index: int = -1) -> None:
    """Let a Python task read the batch."""
    processing = run.start("look", index)
    rows = list(CurrentBatch(processing).read())
    (reading,) = processing.read
    del reading.malformed[:drop]  # type: ignore[union-attr]
    run.end(processing, [{"n": len(rows)}])


def count_words(spark: SparkSession, batch: Batch) -> None:
    batch.emit("counts", batch.read("word").groupBy("word").count())


@pytest.mark.parametrize("lines", [CSV, JSON], ids=["csv", "json"])
def test_malformed_rows_found_by_two_readers_are_stored_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, spark: SparkSession, lines: list[str]
) -> None:
    run = begun(tmp_path, monkeypatch, aside, lines)
    good, bad = by_python(run.spec.source)
    looked(run)
    applied(run, spark, count_words)
    found = committed(run, aside)
    assert sorted(row["tx_content"] for row in found) == sorted(row.content for row in bad)
    assert {row["tx_where"] for row in found} == {row.where for row in bad}
    assert {row["tx_task"] for row in found} == {""}
    receipt = run.spec.ledger(run.spec.memory).outcome(1).receipt
    assert receipt.rows == len(good) + len(bad)
    assert receipt.tasks["count"].outputs[MALFORMED] == len(bad)


def test_a_commit_is_refused_if_two_tasks_find_different_malformed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, spark: SparkSession
) -> None:
    run = begun(tmp_path, monkeypatch, aside, CSV)
    looked(run, drop=1)
    applied(run, spark, count_words)
    with pytest.raises(RowsDiffer, match=r"different malformed rows .* \(task count 13 rows, .* and task look 12"):
        committed(run, aside)
    assert aside.read() == []


def test_a_commit_is_refused_if_one_task_finds_malformed_rows_and_another_task_finds_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, spark: SparkSession
) -> None:
    run = begun(tmp_path, monkeypatch, aside, CSV)
    looked(run, drop=99)
    applied(run, spark, count_words)
    with pytest.raises(RowsDiffer, match="task look 0 rows"):
        committed(run, aside)


def test_instances_of_a_mapped_task_must_find_the_same_malformed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable
) -> None:
    run = begun(tmp_path, monkeypatch, aside, CSV)
    run.spec = type(run.spec)(**{**vars(run.spec), "tasks": ("look",), "mapped": frozenset({"look"})})
    for index in (0, 1):
        looked(run, drop=index, index=index)
    with pytest.raises(RowsDiffer, match=r"task look\[0\] 13 rows, .* and task look\[1\] 12 rows"):
        committed(run, aside)


def test_the_spark_job_that_finds_malformed_rows_is_not_counted_as_a_read_by_the_application(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, spark: SparkSession
) -> None:
    run = begun(tmp_path, monkeypatch, aside, CSV)
    looked(run)
    applied(run, spark, lambda spark, batch: batch.emit("some", batch.read("word").limit(1)))
    commit = run.commit_of([rejected_update(aside)])
    with pytest.raises(RowsDiffer, match=r"task (count|look) read .* of the batch, but task (count|look)"):
        commit.complete()


def test_an_output_has_no_manifest_if_a_file_is_replaced_while_malformed_rows_are_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, spark: SparkSession
) -> None:
    run = begun(tmp_path, monkeypatch, aside, CSV)

    def late(spark: SparkSession, batch: Batch) -> None:
        count_words(spark, batch)
        (file,) = (tmp_path / "in").glob("a.csv")
        file.write_text(file.read_text().replace("x", "0"))

    processing = run.start()
    with pytest.raises(SourceError, match=r"a\.csv changed while it was read: it still has \d+ bytes"):
        batch_app(late).run(spark, Batch(describe_batch(processing, {}), spark))
    with pytest.raises(StagingError):
        read_manifest(processing.where)


def test_a_python_task_that_reads_only_a_part_of_the_batch_still_stores_all_malformed_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable
) -> None:
    run = begun(tmp_path, monkeypatch, aside, CSV)
    for task in ("count", "look"):
        processing = run.start(task)
        rows = CurrentBatch(processing, reliable=False).read()
        _ = next(rows) if task == "look" else list(rows)
        run.end(processing, [{"n": 1}])
    assert len(committed(run, aside, proven=False)) == 13


def test_a_batch_without_malformed_rows_adds_no_rejected_row(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, spark: SparkSession
) -> None:
    run = begun(tmp_path, monkeypatch, aside, CSV[:2])
    looked(run)
    applied(run, spark, count_words)
    assert committed(run, aside) == []


# --- messages


MESSAGES = [
    b'{"user": "ann", "n": 1}',
    b"no json",
    b'{"user": "ann", "n": 1.5}',
    b"\xff\xfe" * 40,
    b'{"user": "k\xc3\xa4se"',
    b"",
    b'{"user": "bob", "n": 2}',
]
BAD = sorted(
    ["no json", '{"user": "ann", "n": 1.5}', "", '{"user": "käse"', "base64:" + b64encode(MESSAGES[3]).decode()]
)


def both(source: Any, spark: SparkSession, monkeypatch: pytest.MonkeyPatch, run: StageRun, aside: DeltaTable) -> Any:
    """Let Python and Spark read a batch; the malformed rows of Python, and the table after the commit."""
    processing = run.start("look")
    assert len(list(CurrentBatch(processing).read())) == 2
    (reading,) = processing.read
    run.end(processing, [{"n": 2}])
    applied(run, spark, lambda spark, batch: batch.emit("rows", batch.read().select("partition")))
    return reading.malformed, committed(run, aside)  # type: ignore[union-attr]


def of_source(source: Any, tmp_path: Path, aside: DeltaTable) -> StageRun:
    tasks = ("count", "look")
    run = StageRun(Stage(source=source, tasks=tasks, inside=tasks, rejected=aside).spec, "r1")
    run.begin()
    return run


def test_spark_and_python_store_malformed_kafka_messages_as_rejected_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, kafka: LocalKafka, spark_connect: Any
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    extra = json.dumps(kafka.client_config())
    monkeypatch.setenv("AIRFLOW_CONN_KAFKA_DEFAULT", json.dumps({"conn_type": "kafka", "extra": extra}))
    topic = f"test-{uuid.uuid4().hex[:12]}"
    kafka.create_topic(topic, 1)
    producer = Producer({**kafka.client_config(), "log_level": 0})
    for message in MESSAGES:
        producer.produce(topic, message, b"key", 0)
    assert producer.flush(30) == 0
    source = KafkaSource(topic=topic, value_schema="user STRING, n BIGINT", malformed="reject")
    run = of_source(source, tmp_path, aside)
    with session(spark_connect.url, tag="test", server="the test's") as spark:
        bad, kept = both(source, spark, monkeypatch, run, aside)
    assert sorted(row["tx_content"] for row in kept) == BAD
    assert {row["tx_where"] for row in kept} == {f"topic {topic}, partition 0, offset {n}" for n in (1, 2, 3, 4, 5)}
    assert bad[0].where == f"topic {topic}, partition 0, offset 1"
    assert {row.reason for row in bad} == {
        "it is no JSON", "column n BIGINT: it is no whole number in digits", "it is not UTF-8",
    }  # fmt: skip
    assert run.spec.ledger(run.spec.memory).outcome(1).receipt.rows == len(MESSAGES)


def test_spark_and_python_store_malformed_redis_messages_as_rejected_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable, spark: SparkSession
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    with LocalRedis() as redis:
        extra = {"host": "127.0.0.1", "port": redis.port, "password": REDIS_PASSWORD}
        monkeypatch.setenv("AIRFLOW_CONN_REDIS_LOGS", json.dumps({"conn_type": "redis", **extra}))
        redis.client(0).rpush("web", *MESSAGES)
        source = RedisListSource("redis_logs", lists=["web"], schema="user STRING, n BIGINT", malformed="reject")
        run = of_source(source, tmp_path, aside)
        bad, kept = both(source, spark, monkeypatch, run, aside)
    assert sorted(row["tx_content"] for row in kept) == BAD
    assert {row["tx_where"] for row in kept} == {row.where for row in bad}
    assert len(bad) == 5
    assert run.spec.ledger(run.spec.memory).outcome(1).receipt.rows == len(MESSAGES)


def test_redis_stream_entries_that_are_not_text_are_stored_as_rejected_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, aside: DeltaTable
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    with LocalRedis() as redis:
        extra = {"host": "127.0.0.1", "port": redis.port, "password": REDIS_PASSWORD}
        monkeypatch.setenv("AIRFLOW_CONN_REDIS_LOGS", json.dumps({"conn_type": "redis", **extra}))
        redis.client(0).xadd("web", {b"a": b"1"})
        redis.client(0).xadd("web", {b"a": b"\xff"})
        source = RedisStreamSource("redis_logs", "web", malformed="reject")
        good, bad = by_python(source)
    assert len(good) == 1
    assert [row.content for row in bad] == ['{"a": "base64:/w=="}']
