"""A batch without rows has the columns that its source knows, so that a query which names one goes on."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import duckdb
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

import airflow_tx
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Source
from airflow_tx.sources.trial import TrialSource
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import Stage, StageRun
from tests.unit.bench import Numbers

asked: Any = duckdb.sql
Write = Callable[[Path, str], Any]


def without_rows(source: Source) -> CurrentBatch:
    """Begin a batch that a replay has found empty, after one that had rows."""
    run = StageRun(Stage(source=source, inside=("count",)).spec, "r1")
    run.begin()
    run.begun = replace(run.begun, metadata=None)
    return CurrentBatch(run.start())


def replayed_without(source: Source, later: Path) -> CurrentBatch:
    """Begin two transactions, and replay the second one once its file is gone."""
    stage = Stage(source=source, inside=("count",))
    stage.begun("r1")
    run = StageRun(stage.spec, "r2")
    run.begin()
    later.unlink()
    run.begin()
    assert run.begun.metadata is None
    return CurrentBatch(run.start())


def csv(folder: Path, name: str) -> Path:
    path = folder / f"{name}.csv"
    path.write_text("k,n\na,1\n")
    return path


def parquet(folder: Path, name: str) -> Path:
    path = folder / f"{name}.parquet"
    pq.write_table(pa.table({"k": ["a"], "n": [1]}), path)
    return path


FORMATS: dict[str, tuple[Write, str, list[str]]] = {
    "csv": (csv, "csv", ["string", "string"]),
    "parquet": (parquet, "parquet", ["string", "int64"]),
}


@pytest.mark.parametrize(("write", "form", "types"), FORMATS.values(), ids=FORMATS.keys())
def test_the_replay_of_a_batch_whose_files_are_gone_has_the_columns_of_the_former_files(
    tmp_path: Path, write: Write, form: str, types: list[str]
) -> None:
    write(tmp_path, "a")
    later = write(tmp_path, "b")
    source = airflow_tx.FileSource(f"{tmp_path}/*.{form}", format=form, kind="opaque")
    batch = replayed_without(source, later)
    assert batch.arrow().schema == pa.schema(zip("kn", map(pa.type_for_alias, types), strict=True))
    found = batch.arrow()  # noqa: F841 - the query names it
    assert asked("SELECT k, count(*) AS c FROM found GROUP BY k").fetchall() == []
    assert pl.DataFrame(batch.arrow()).group_by("k").len().rows() == []
    assert list(batch.read_output(batch.stage(batch.arrow()))) == []


@pytest.mark.parametrize(("write", "form", "types"), FORMATS.values(), ids=FORMATS.keys())
def test_the_replay_of_a_batch_whose_files_are_gone_has_the_partition_columns_of_its_folders(
    tmp_path: Path, write: Write, form: str, types: list[str]
) -> None:
    folder = tmp_path / "region=eu"
    folder.mkdir()
    write(folder, "a")
    later = write(folder, "b")
    source = airflow_tx.PartitionedFileSource(f"{tmp_path}/*/*.{form}", format=form, kind="opaque")
    schema = replayed_without(source, later).arrow().schema
    assert (schema.names, list(map(str, schema.types))) == (["k", "n", "region"], [*types, "string"])


def test_the_replay_of_an_empty_parquet_batch_has_columns_only_if_an_earlier_file_is_readable(tmp_path: Path) -> None:
    earlier, later = parquet(tmp_path, "a"), parquet(tmp_path, "b")
    source = airflow_tx.FileSource(f"{tmp_path}/*.parquet", format="parquet", kind="opaque")
    batch = replayed_without(source, later)
    earlier.write_bytes(b"torn")
    assert batch.arrow().schema.names == []
    earlier.unlink()
    assert batch.arrow().schema.names == []


def shop(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "shop.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT)")
        made.execute("INSERT INTO orders VALUES (1, 'a')")
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(path)}))


def below(folder: Path) -> str:
    (folder / "eu").mkdir()
    csv(folder / "eu", "a")
    return f"{folder}/*/*.csv"


MADE: dict[str, tuple[Callable[[Path], Source], list[str]]] = {
    "FileSource": (lambda folder: airflow_tx.FileSource(f"{csv(folder, 'a')}", schema="k STRING, n INT"), ["k", "n"]),
    "PartitionedFileSource": (lambda folder: airflow_tx.PartitionedFileSource(below(folder)), ["k", "n"]),
    "SqlSource": (lambda folder: airflow_tx.SqlSource("shop", "orders"), ["id", "name"]),
    "PartitionedSqlSource": (lambda folder: airflow_tx.PartitionedSqlSource("shop", ["orders"]), ["id", "name"]),
    "MemorySource": (lambda folder: airflow_tx.MemorySource({"0": [{"n": 1}], "1": [{"m": "x"}]}), ["n", "m"]),
}
MESSAGES: dict[str, tuple[Source, list[str]]] = {
    "KafkaSource": (airflow_tx.KafkaSource(topic="orders", value_schema="n INT"), ["key", "value", "topic"]),
    "RabbitQueueSource": (airflow_tx.RabbitQueueSource("shop", "orders", schema="n INT"), ["message_id", "message"]),
    "RedisListSource": (
        airflow_tx.RedisListSource("shop", "orders", schema="n INT"),
        ["partition", "number", "message"],
    ),
    "RedisNumberedSource": (
        airflow_tx.RedisNumberedSource("shop", prefix="orders"),
        ["partition", "number", "message"],
    ),
    "RedisStreamSource": (airflow_tx.RedisStreamSource("shop", ["orders"]), ["partition", "id", "message"]),
}
OF_EACH_RUN = {"DataIntervalSource", "RunPartitionSource"}
"""Their batch is the interval or the partition of a run: there is one, and a reader gives its columns."""
ELSEWHERE = {"UpstreamSource"}
"""tests/integration/test_upstream_source.py gives it a range without rows: it needs the ledger of another topology."""
BASES = {
    "Source", "TransactionalSource", "PartitionedTransactionalSource", "OpaquePartitionedTransactionalSource",
}  # fmt: skip


def test_each_public_source_is_tested_without_rows() -> None:
    public = {name for name in dir(airflow_tx) if name.endswith("Source")}
    assert public - BASES == {*MADE, *MESSAGES, *OF_EACH_RUN, *ELSEWHERE}


@pytest.mark.parametrize("name", MADE)
def test_each_source_with_known_columns_returns_them_for_a_batch_without_rows(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop(tmp_path, monkeypatch)
    make, columns = MADE[name]
    source = make(tmp_path)
    assert without_rows(source).arrow().schema.names == columns
    assert without_rows(TrialSource(source, most=1)).arrow().schema.names == columns


@pytest.mark.parametrize("name", MESSAGES)
def test_an_empty_batch_of_messages_has_the_declared_columns_without_a_broker_connection(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "redis", "host": "127.0.0.1"}))
    source, columns = MESSAGES[name]
    found = source.named("shop").types_without_rows(TransactionAttempt(1, 1), None)
    assert found is not None
    assert set(columns) <= found.keys()


def test_an_empty_batch_from_a_source_without_known_columns_has_no_columns(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n')
    for source in (Numbers(), airflow_tx.FileSource(f"{tmp_path}/*.json", format="json")):
        reader = without_rows(source).arrow()
        assert (reader.schema.names, reader.read_all().num_rows) == ([], 0)
