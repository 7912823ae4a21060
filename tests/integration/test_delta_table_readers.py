"""Every type of Spark in a Delta table that executors write: Spark, duckdb and polars read what was given."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping, Sequence
from datetime import date, datetime, timezone
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.outputs.staging.descriptor import AppendTo
from airflow_tx.spark.batch import write_appended
from airflow_tx.spark.observed import RowsObserver
from airflow_tx.state import DeltaTable
from airflow_tx.state.api import Misfit, staged_folder
from airflow_tx.state.lake.delta import Folder
from airflow_tx.state.lake.files import staged_files, write_python_rows
from airflow_tx.testing.suites.state_tools import Grants
from examples.readers import READERS, are_installed
from tests.servers.jars import delta_jars
from tests.servers.spark_session import skip_without

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]
UTC = timezone.utc
EARLY = datetime(1900, 1, 1, 0, 0, 0, 1, UTC)
LATE = datetime(9999, 12, 30, 23, 59, 59, 999999, UTC)
# The least and the greatest value of each type that Spark and Delta have, or what is hard to write.
VALUES: dict[str, tuple[Any, Any]] = {
    "TINYINT": (-128, 127),
    "SMALLINT": (-(2**15), 2**15 - 1),
    "INT": (-(2**31), 2**31 - 1),
    "BIGINT": (-(2**63), 2**63 - 1),
    "FLOAT": (-1.5, math.inf),
    "DOUBLE": (math.nan, 5e-324),
    "DECIMAL(9,2)": (Decimal("-9999999.99"), Decimal("0.01")),
    "DECIMAL(18,4)": (Decimal("-99999999999999.9999"), Decimal("0.0000")),
    "DECIMAL(38,10)": (Decimal("-9999999999999999999999999999.9999999999"), Decimal("1E-7")),
    "BOOLEAN": (False, True),
    "STRING": ("", "ü/%=:\n'" + 40 * "\U0001f600"),
    "STRING COLLATE UTF8_LCASE": ("A", "a"),
    "BINARY": (bytearray(b""), bytearray(b"\x00\xff")),
    "DATE": (date(1, 1, 1), date(9999, 12, 31)),
    "TIMESTAMP": (EARLY, LATE),
    "TIMESTAMP_NTZ": (datetime(1, 1, 1, 0, 0, 0, 1), datetime(9999, 12, 31, 23, 59, 59, 999999)),
    "ARRAY<INT>": ([], [1, None]),
    "MAP<STRING, BIGINT>": ({}, {"a": 1, "b": None}),
    "STRUCT<x: INT, y: ARRAY<DATE>>": ({"x": 1, "y": [date(2026, 1, 1)]}, {"x": None, "y": None}),
    "ARRAY<STRUCT<a: DECIMAL(9,2), b: MAP<STRING, DOUBLE>>>": ([{"a": Decimal("0.10"), "b": {"k": 0.5}}], []),
}
NAMES = {kind: f"c{number}" for number, kind in enumerate(VALUES)}


@pytest.fixture
def read(spark: SparkSession) -> Any:
    """Read a table by each reader, as rows in the order of `id`; Spark is the one of this process."""
    skip_without(delta_jars)
    if not are_installed():
        pytest.skip("needs the packages of requirements-readers.lock: script/env servers")

    def by(name: str, table: DeltaTable, columns: Sequence[str], where: str = "id >= 0") -> list[tuple[Any, ...]]:
        query = f"SELECT {', '.join(columns)} FROM t WHERE {where} ORDER BY id"
        if name != "Spark":
            return READERS[name](table.uri, table.options(), query)
        spark.read.format("delta").load(table.uri).createOrReplaceTempView("t")
        return [tuple(row) for row in spark.sql(query).collect()]

    return by


def write(table: DeltaTable, attempt: TransactionAttempt, rows: DataFrame) -> list[dict[str, Any]]:
    """Let executors write rows, as `batch.emit` does, and list their files as the task does."""
    folder = staged_folder(attempt, uuid.uuid4().hex)
    to = AppendTo(table.uri, table.partition_by)
    output = write_appended(RowsObserver(), rows, to, folder, attempt.txid)
    assert output.appended is not None
    found = staged_files(Folder(table.uri, {}), folder, output.appended.partition)
    return [each.to_row() for each in found]


def plain(value: Any, *, zone: bool = False) -> Any:
    """Spell a value in one way, whichever reader gives it."""
    if hasattr(value, "asDict"):
        value = value.asDict()
    if isinstance(value, bytes | bytearray):
        return bytes(value)
    if isinstance(value, datetime) and (zone or value.tzinfo is not None):
        return value.astimezone(UTC).isoformat()  # Spark gives the local time of this process, without its zone
    if isinstance(value, float):
        return repr(value)
    if isinstance(value, Mapping):
        return sorted((key, plain(each)) for key, each in value.items())
    if isinstance(value, list):
        return [plain(each) for each in value]
    return value


def as_map(value: Any) -> Any:
    """Make a map of what polars gives for one: a list of keys and values."""
    return {each["key"]: each["value"] for each in value} if isinstance(value, list) else value


def spelled(kind: str, value: Any) -> Any:
    if kind.startswith("MAP"):
        return plain(as_map(value))
    if kind.startswith("ARRAY<STRUCT") and value is not None:
        parts = [each.asDict() if hasattr(each, "asDict") else each for each in value]
        return plain([{**each, "b": as_map(each["b"])} for each in parts])
    return plain(value, zone=kind == "TIMESTAMP")


@pytest.mark.worth("Spark, duckdb and polars read every type")
@pytest.mark.parametrize("reader", READERS)
def test_each_reader_returns_the_given_value_of_every_type(
    spark: SparkSession, read: Any, tmp_path: Path, reader: str
) -> None:
    rows = [(number, *(both[number] for both in VALUES.values())) for number in (0, 1)]
    rows.append((2, *[None] * len(VALUES)))
    columns = ", ".join(["id INT", *(f"{NAMES[kind]} {kind}" for kind in VALUES)])
    table = DeltaTable(tmp_path / "values")
    grants = Grants()
    grant = grants(1)
    files = write(table, grant.attempt, spark.createDataFrame(rows, columns))
    table.raise_and_write(grant, files)
    found = read(reader, table, ["id", *NAMES.values()])
    for row, wanted in zip(found, rows, strict=True):
        for number, kind in enumerate(VALUES, start=1):
            assert spelled(kind, row[number]) == spelled(kind, wanted[number]), (kind, row[0])


@pytest.mark.parametrize("reader", READERS)
def test_a_filter_that_uses_file_statistics_loses_no_row(
    spark: SparkSession, read: Any, tmp_path: Path, reader: str
) -> None:
    table = DeltaTable(tmp_path / "values")
    grants = Grants()
    text = 40 * "z"
    moment = datetime(2026, 1, 1, 0, 0, 0, 1, UTC)
    for txid in (1, 2):
        rows = [(txid, f"{text}{txid}", moment, date(2026, 1, txid), 2**62 + txid)]
        frame = spark.createDataFrame(rows, "id INT, t STRING, moment TIMESTAMP, day DATE, n BIGINT")
        grant = grants(txid)
        table.raise_and_write(grant, write(table, grant.attempt, frame))
        grants.final(grant, table)
    filters = [f"t = '{text}2'", "day = DATE '2026-01-02'", f"n > {2**62 + 1}", "tx_txid = 2", f"t > '{text}'"]
    if reader != "polars":  # it has no literals of timestamps
        filters += ["moment = TIMESTAMP '2026-01-01 00:00:00.000001+00:00'"]
    for each in filters:
        found = read(reader, table, ["id"], f"{each} AND id = 2")
        assert found == [(2,)], each


REFUSED = {
    "interval": "INTERVAL '1' DAY",
    "interval year": "INTERVAL '1' YEAR",
    "void": "NULL",
    "variant": "parse_json('1')",
    "time": "TIME'10:00:00'",
}


@pytest.mark.parametrize("kind", REFUSED)
def test_a_type_that_delta_does_not_support_is_refused_before_a_file_is_written(
    spark: SparkSession, tmp_path: Path, kind: str
) -> None:
    table = DeltaTable(tmp_path / "values")
    rows = spark.sql(f"SELECT 1 AS id, array({REFUSED[kind]}) AS wrong")
    with pytest.raises(Misfit, match="column wrong has the type") as refused:
        write(table, TransactionAttempt(1, 1, "b"), rows)
    assert kind.split()[0] in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not Path(table.uri).exists()


PARTITIONS: dict[str, list[Any]] = {
    "TINYINT": [-128, 127, None],
    "BIGINT": [-(2**63), 0, None],
    "BOOLEAN": [True, False, None],
    "DATE": [date(1, 1, 1), date(2026, 1, 1), None],
    "STRING": ["a b/:=%#?*'\"\\{}[]^|<>`~!@$&()+,;", "__HIVE", None],
    "DECIMAL(38,18)": [Decimal("1E-7"), Decimal("-2.5"), None],
}


@pytest.mark.parametrize("writer", ["Spark", "Python"])
@pytest.mark.parametrize("kind", PARTITIONS)
def test_every_reader_returns_the_written_partition_values_of_each_type(
    spark: SparkSession, read: Any, tmp_path: Path, kind: str, writer: str
) -> None:
    table = DeltaTable(tmp_path / "values", partition_by=["k"])
    grants = Grants()
    given = PARTITIONS[kind]
    for txid in (1, 2):
        grant = grants(txid)
        rows = [{"id": 10 * txid + number, "k": value} for number, value in enumerate(given)]
        if writer == "Spark" or (kind == "TINYINT" and txid == 1):
            files = write(table, grant.attempt, spark.createDataFrame(rows, f"id INT, k {kind}"))
        else:
            files = write_python_rows(table, rows, grant.attempt)
        table.raise_and_write(grant, files)
        grants.final(grant, table)
    spark.sql(f"OPTIMIZE delta.`{table.uri}`")
    grant = grants(2, 2)
    table.raise_and_write(grant, write_python_rows(table, [{"id": 30, "k": given[0]}], grant.attempt))
    for name in READERS:
        found = read(name, table, ["k", "tx_txid"])
        assert found == [*((value, 1) for value in given), (given[0], 2)], name
