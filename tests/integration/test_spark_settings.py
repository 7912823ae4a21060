"""What Spark gives must not depend on the settings of a session, a cluster or Hadoop: it is the same, or refused.

All 751 entries of `SQLConf` in Spark 4.2 were looked at, the internal ones too (`SET -v` lists the public ones). Left
out are those of planning, caches, adaptive execution, bucketing, Hive, streaming, statistics, views and SQL texts: they
move work or name things, and give no other row. The others are tried here, each with another value than its default,
with what Hadoop reads from the same session.
"""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import random
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import ConfigError, RowsRefused
from airflow_tx.base.rows import check_settings, spark_reader
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources import BatchStaging
from airflow_tx.sources.files.source import FileSource
from airflow_tx.sources.memory import MemorySource
from airflow_tx.spark.connect import session
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ATTEMPT = TransactionAttempt(1, 1)
FAILS = "the query fails"
PASSTHROUGH = "org.apache.hadoop.io.compress.PassthroughCodec"
"""It gives the bytes of files with one suffix as they are."""

# Of any file; then of one format.
OF_FILES: Mapping[str, str] = {
    "io.compress.passthrough.extension": ".gz",
    "mapreduce.input.fileinputformat.input.dir.recursive": "true",
    "mapreduce.input.linerecordreader.line.maxlength": "100",
    "mapreduce.input.pathFilter.class": "org.apache.hadoop.mapred.OutputLogFilter",
    "spark.hadoop.mapreduce.input.pathFilter.class": "org.apache.hadoop.mapred.OutputLogFilter",
    "spark.sql.ansi.enabled": "false",
    "spark.sql.caseSensitive": "true",
    "spark.sql.columnNameOfCorruptRecord": "t",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.files.ignoreCorruptFiles": "true",
    "spark.sql.files.ignoreInvalidPartitionPaths": "true",
    "spark.sql.files.ignoreMissingFiles": "true",
    "spark.sql.files.maxPartitionBytes": "64",
    "spark.sql.legacy.timeParserPolicy": "LEGACY",
    "spark.sql.session.timeZone": "America/New_York",
    "spark.sql.sources.partitionColumnTypeInference.enabled": "false",
    "spark.sql.sources.useV1SourceList": "",
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "textinputformat.record.delimiter": "a",
}
OF_TEXTS: Mapping[str, str] = {
    "spark.sql.csv.filterPushdown.enabled": "false",
    "spark.sql.csv.parser.columnPruning.enabled": "false",
    "spark.sql.decimalOperations.allowPrecisionLoss": "false",
    "spark.sql.execution.datasources.hadoopLineRecordReader.enabled": "false",
    "spark.sql.json.enableExactStringParsing": "false",
    "spark.sql.json.enablePartialResults": "false",
    "spark.sql.json.filterPushdown.enabled": "false",
    "spark.sql.json.useUnsafeRow": "true",
    "spark.sql.jsonGenerator.ignoreNullFields": "false",
    "spark.sql.legacy.allowNegativeScaleOfDecimal": "true",
    "spark.sql.legacy.castComplexTypesToString.enabled": "true",
    "spark.sql.legacy.charVarcharAsString": "true",
    "spark.sql.legacy.codingErrorAction": "true",
    "spark.sql.legacy.csv.enableDateTimeParsingFallback": "true",
    "spark.sql.legacy.disableMapKeyNormalization": "true",
    "spark.sql.legacy.javaCharsets": "true",
    "spark.sql.legacy.json.allowEmptyString.enabled": "true",
    "spark.sql.legacy.json.enableDateTimeParsingFallback": "true",
    "spark.sql.legacy.useLegacyXMLParser": "true",
    "spark.sql.mapKeyDedupPolicy": "LAST_WIN",
    "spark.sql.variant.allowDuplicateKeys": "true",
    "spark.sql.variant.validateUnicodeInJsonParsing": "false",
}
OF_PARQUET: Mapping[str, str] = {
    "spark.sql.legacy.parquet.nanosAsLong": "true",
    "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "true",
    "spark.sql.parquet.aggregatePushdown": "true",
    "spark.sql.parquet.binaryAsString": "true",
    "spark.sql.parquet.datetimeRebaseModeInRead": "LEGACY",
    "spark.sql.parquet.enableVectorizedReader": "false",
    "spark.sql.parquet.fieldId.read.enabled": "true",
    "spark.sql.parquet.filterPushdown": "false",
    "spark.sql.parquet.ignoreVariantAnnotation": "true",
    "spark.sql.parquet.inferTimestampNTZ.enabled": "false",
    "spark.sql.parquet.int96AsTimestamp": "false",
    "spark.sql.parquet.int96RebaseModeInRead": "LEGACY",
    "spark.sql.parquet.int96TimestampConversion": "true",
    "spark.sql.parquet.mergeSchema": "true",
    "spark.sql.parquet.reader.respectUnknownTypeAnnotation.enabled": "true",
    "spark.sql.parquet.recordLevelFilter.enabled": "true",
    "spark.sql.parquet.respectSummaryFiles": "true",
}
OF_ORC: Mapping[str, str] = {
    "orc.force.positional.evolution": "true",
    "orc.skip.corrupt.data": "true",
    "spark.sql.orc.aggregatePushdown": "true",
    "spark.sql.orc.enableVectorizedReader": "false",
    "spark.sql.orc.filterPushdown": "false",
    "spark.sql.orc.mergeSchema": "true",
}
SETTINGS = {
    **dict.fromkeys(OF_FILES.items(), ("csv", "json", "text", "xml", "parquet", "orc")),
    **dict.fromkeys(OF_TEXTS.items(), ("csv", "json", "text", "xml")),
    **dict.fromkeys(OF_PARQUET.items(), ("csv", "json", "parquet")),
    **dict.fromkeys(OF_ORC.items(), ("orc",)),
}
COLUMNS = "id INT, t STRING, d DATE, m TIMESTAMP, n DECIMAL(10,2)"
CSV = (
    "id,t,d,m,n\n1,abc,2024-01-02,2024-01-02 03:04:05,12.50\n2,,1500-03-01,0100-01-02 03:04:05.123456+02:00,\n"
    f'3,"a,""b",9999-12-31,2024-03-31T02:30:00,-0.01\n4,{"x" * 300},,,\n'
)
JSON = (
    '{"id": 1, "t": "a", "n": 1.10, "d": "2024-01-02", "m": "2024-01-02T03:04:05Z", "k": {"a": 1}}\n'
    '{"id": 2, "t": null, "n": 1000, "d": "1500-01-01", "m": "0100-01-02 03:04:05"}\n'
    f'{{"id": 3, "t": "{"y" * 300}"}}\n'
)
XML = "<r><row><id>1</id><t>x</t></row><row><id>2</id><t>y</t></row></r>"
SPARKS_OWN = {"timestampFormat": "yyyy-MM-dd[ ]['T']HH:mm:ss[.SSSSSS][XXX]"}


def _cut(header: str, row: str) -> bytes:
    """A file of many rows whose end is lost."""
    values = random.Random(1)
    text = header + "".join(row.format(i, f"{values.getrandbits(80):x}") for i in range(700))
    whole = gzip.compress(text.encode())
    return whole[: len(whole) * 2 // 3]


def _parquet() -> pa.Table:
    moments = [dt.datetime(1500, 1, 1), None, dt.datetime(2024, 3, 31, 2, 30)]
    return pa.table(
        {
            "id": pa.array([1, 2, 3], pa.int32()),
            "t": ["a", None, "z" * 300],
            "b": pa.array([b"x", b"\xff", None], pa.binary()),
            "d": pa.array([dt.date(1500, 1, 1), None, dt.date(2024, 1, 1)]),
            "m": pa.array(moments, pa.timestamp("us", "UTC")),
            "w": pa.array(moments, pa.timestamp("us")),
            "n": pa.array([Decimal("1.50"), None, Decimal("-0.01")], pa.decimal128(10, 2)),
            "s": pa.array([{"x": 1, "y": None}, None, {"x": None, "y": "q"}]),
        }
    )


def _sources(folder: Path, spark: SparkSession) -> dict[str, FileSource]:
    """A source of each kind of file; its name begins with the format."""
    from pyspark.sql import functions as F

    texts = {
        "csv/a.csv": CSV.encode(),
        "csv_gz/a.csv.gz": gzip.compress(CSV.encode()),
        "csv_bz2/a.csv.bz2": bz2.compress(CSV.encode()),
        "csv_cut/a.csv.gz": _cut("id,t\n", "{},{}\n"),
        "json/a.json": JSON.encode(),
        "json_gz/a.json.gz": gzip.compress(JSON.encode()),
        "json_cut/a.json.gz": _cut("", '{{"id": {}, "t": "{}"}}\n'),
        "json_twice/a.json": b'{"id": 1, "id": 2}\n',
        "json_day/a.json": b'{"d": "2024-02-30"}\n',
        "csv_day/a.csv": b"d,m\n2024-1-2,2024-02-30 00:00:00\n",
        "json_half/a.json": b'{"id": 1, "t": "\\ud800"}\n',
        "text/a.txt": "short\n\nüx\n".encode() + b"long " * 60,
        "text_gz/a.txt.gz": gzip.compress(b"long " * 60),
        "text_cut/a.txt.gz": _cut("", "{} {}\n"),
        "xml/a.xml": XML.encode(),
        "xml_bad/a.xml": XML.replace("2", "q").encode(),
    }
    for name, content in texts.items():
        (folder / name).parent.mkdir()
        (folder / name).write_bytes(content)
    for name, old in (("parquet", False), ("parquet_int96", True), ("parquet_cut", False)):
        (folder / name).mkdir()
        pq.write_table(_parquet(), folder / name / "a.parquet", use_deprecated_int96_timestamps=old)
    broken = folder / "parquet_cut" / "a.parquet"
    broken.write_bytes(broken.read_bytes()[:40] + bytes(60) + broken.read_bytes()[100:])
    for name, first, second in (("a", 1, 2), ("b", 2, 1)):
        numbered = [
            F.lit(value).alias(column, metadata={"parquet.field.id": number})
            for column, value, number in (("id", 5, first), ("k", 6, second))
        ]
        spark.range(1).select(*numbered).coalesce(1).write.parquet(str(folder / f"numbered_{name}"))
        (folder / "parquet_numbered").mkdir(exist_ok=True)
        (written,) = (folder / f"numbered_{name}").glob("*.parquet")
        written.rename(folder / "parquet_numbered" / f"{name}.parquet")
        shutil.rmtree(folder / f"numbered_{name}")
    made = spark.sql("SELECT 1 AS id, 'a' AS t, date'1500-01-01' AS d, timestamp'1500-01-01 00:00:00Z' AS m")
    made.coalesce(1).write.orc(str(folder / "orc"))
    declared = {"csv": COLUMNS, "json": f"{COLUMNS}, k MAP<STRING, INT>", "xml": "id INT, t STRING"}
    few = dict.fromkeys(("csv_cut", "json_cut"), "id INT, t STRING")
    few |= {"csv_day": "d DATE, m TIMESTAMP", "json_day": "d DATE"}
    options = {"xml": {"rowTag": "row"}, "csv_day": {**SPARKS_OWN, "dateFormat": "yyyy-MM-dd"}}
    found = {
        each.name: FileSource(
            f"{each}/*",
            format=(kind := each.name.partition("_")[0]),
            schema=few.get(each.name, declared.get(kind)),
            options=options.get(each.name, options.get(kind)),
            files_per_batch=2,
        )
        for each in sorted(folder.iterdir())
    }
    found["csv_texts"] = FileSource(f"{folder}/csv/*")
    found["csv_of_spark"] = FileSource(f"{folder}/csv/*", schema=COLUMNS, options=SPARKS_OWN)
    lengths = "id INT, t VARCHAR(3), d STRING, m STRING, n STRING"
    found["csv_length"] = FileSource(f"{folder}/csv/*", schema=lengths, options={"dateFormat": "yyyy"})
    found["json_found"] = FileSource(f"{folder}/json/*", format="json")
    found["json_of_spark"] = FileSource(
        f"{folder}/json/*", format="json", schema=COLUMNS, options={**SPARKS_OWN, "allowComments": True}
    )
    found["parquet_declared"] = FileSource(f"{folder}/parquet/*", format="parquet", schema=f"{COLUMNS}, x INT")
    return found


@contextmanager
def given(spark: SparkSession, name: str, value: str) -> Iterator[None]:
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def exact(rows: DataFrame) -> Any:
    """Types and values of rows; moments as numbers, which no time zone of the session changes."""
    from pyspark.sql import functions as F

    kinds = {field.name: field.dataType.simpleString() for field in rows.schema}
    form = {"timestamp": "unix_micros({0})", "timestamp_ntz": "string({0})"}
    columns = [F.expr(form.get(kind, "{0}").format(f"`{name}`")).alias(name) for name, kind in kinds.items()]
    return kinds, sorted(map(str, rows.select(*columns).collect()))


class Reads:
    """The rows of each kind of file, as a session of Spark's own settings reads them."""

    def __init__(self, folder: Path, spark: SparkSession) -> None:
        self._spark = spark
        self.sources = _sources(folder, spark)
        self.usual = cache(self.found)

    def found(self, kind: str) -> Any:
        source = self.sources[kind]
        batch: Any = source.initialize_transaction(1, None)
        rows: Any
        try:
            rows = source.emit_batch(ATTEMPT, batch.metadata, self._spark)
            return exact(rows)
        except ConfigError:
            raise
        except Exception:  # noqa: BLE001 - errors of Spark have no common class
            return FAILS


@pytest.fixture(scope="module")
def reads(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> Reads:
    return Reads(tmp_path_factory.mktemp("settings"), spark)


@pytest.mark.long
@pytest.mark.parametrize(("setting", "formats"), SETTINGS.items(), ids=lambda each: str(each[0]))
def test_a_spark_setting_changes_no_row_or_is_refused(
    spark: SparkSession, reads: Reads, setting: tuple[str, str], formats: tuple[str, ...]
) -> None:
    name, value = setting
    changed = {}
    kinds = [
        kind
        for kind in reads.sources
        if kind.startswith(formats) and not (name in OF_TEXTS and kind.endswith(("_gz", "_bz2", "_cut")))
    ]
    for kind in kinds:
        reads.usual(kind)
    with given(spark, name, value), given(spark, "io.compression.codecs", PASSTHROUGH):
        for kind in kinds:
            try:
                found = reads.found(kind)
            except ConfigError as error:
                assert f"{name} = {value!r} cannot be used" in str(error)  # noqa: PT017 - or the rows are the same
            else:
                if found != reads.usual(kind):
                    changed[kind] = found
    assert changed == {}


def test_truncated_files_are_refused_even_if_the_cluster_is_set_to_ignore_corrupt_files(
    spark: SparkSession, reads: Reads
) -> None:
    with given(spark, "spark.sql.files.ignoreCorruptFiles", "true"):
        assert {kind: reads.found(kind) for kind in reads.sources if kind.endswith("_cut")} == {
            "csv_cut": FAILS,
            "json_cut": FAILS,
            "parquet_cut": FAILS,
            "text_cut": FAILS,
        }


def test_a_setting_that_no_read_option_can_override_is_refused(spark: SparkSession, reads: Reads) -> None:
    name = "spark.sql.parquet.binaryAsString"
    with given(spark, name, "true"), pytest.raises(ConfigError, match=rf"{name} = 'true' .* Set it to false"):
        reads.found("parquet")
    with given(spark, name, "FALSE"):
        assert reads.found("parquet") == reads.usual("parquet")


def test_complete_files_are_read_and_truncated_files_are_refused(reads: Reads) -> None:
    refused = {kind for kind in reads.sources if reads.usual(kind) == FAILS}
    cut = {"csv_cut", "json_cut", "parquet_cut", "text_cut"}
    assert refused == {*cut, "csv_day", "csv_length", "json_day", "json_half", "json_twice", "xml_bad"}


@pytest.mark.parametrize("cut", [1, 4, 8, 12])
@pytest.mark.parametrize(("suffix", "compress"), [("gz", gzip.compress), ("bz2", bz2.compress)])
def test_a_compressed_file_whose_last_bytes_are_missing_is_refused(
    spark: SparkSession, tmp_path: Path, suffix: str, compress: Any, cut: int
) -> None:
    (tmp_path / f"a.txt.{suffix}").write_bytes(compress(b"one\ntwo\n" * 100)[:-cut])
    source = FileSource(f"{tmp_path}/*", format="text")
    batch: Any = source.initialize_transaction(1, None)
    with pytest.raises(Exception, match=r"ends too early|Unexpected end|FAILED_READ_FILE"):
        exact(source.emit_batch(ATTEMPT, batch.metadata, spark))  # type: ignore[arg-type]


def test_a_bz2_file_that_was_cut_between_two_blocks_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    first, second = bz2.compress(b"one\n" * 1000), bz2.compress(b"two\n" * 1000)
    (tmp_path / "a.txt.bz2").write_bytes(first[:-10] + second[:4])
    (tmp_path / "b.txt.bz2").write_bytes(first + second)
    source = FileSource(f"{tmp_path}/*", format="text", files_per_batch=1)
    batch: Any = source.initialize_transaction(1, None)
    with pytest.raises(RowsRefused, match=r"the \.bz2 file ends too early"):
        source.emit_batch(ATTEMPT, batch.metadata, spark)
    after: Any = source.initialize_transaction(2, batch.position)
    rows: Any = source.emit_batch(ATTEMPT, after.metadata, spark)
    assert rows.count() == 2000


@pytest.mark.parametrize("mode", ["datetimeRebaseModeInWrite"])
def test_a_setting_that_changes_the_values_that_spark_writes_is_refused(spark: SparkSession, mode: str) -> None:
    name = f"spark.sql.parquet.{mode}"
    with given(spark, name, "LEGACY"), pytest.raises(ConfigError, match=rf"{name} = 'LEGACY' .* Set it to CORRECTED"):
        check_settings(spark)


def test_a_setting_of_a_spark_connect_session_is_checked_and_refused(spark_connect: LocalSparkConnect) -> None:
    with session(spark_connect.url, tag="settings", server="here") as spark:
        spark.conf.set("spark.sql.parquet.binaryAsString", "true")
        with pytest.raises(ConfigError, match=r"spark\.sql\.parquet\.binaryAsString = 'true' .* Set it to false"):
            spark_reader(spark, "parquet")


# --- rows of Python -------------------------------------------------------------------------------------------------

GUESSED = {
    "spark.sql.timestampType": "TIMESTAMP_NTZ",
    "spark.sql.pyspark.inferNestedDictAsStruct.enabled": "true",
    "spark.sql.pyspark.legacy.inferArrayTypeFromFirstElement.enabled": "true",
    "spark.sql.pyspark.legacy.inferMapTypeFromFirstPair.enabled": "true",
}
OF_PYTHON = {
    "spark.sql.ansi.enabled": "false",
    "spark.sql.datetime.java8API.enabled": "true",
    "spark.sql.execution.arrow.maxRecordsPerBatch": "1",
    "spark.sql.execution.arrow.pyspark.enabled": "true",
    "spark.sql.execution.arrow.useLargeVarTypes": "true",
    "spark.sql.execution.pandas.inferPandasDictAsMap": "true",
    "spark.sql.execution.pandas.structHandlingMode": "dict",
    "spark.sql.session.timeZone": "America/New_York",
}
PLAIN: list[dict[str, Any]] = [{"a": 1, "m": {"x": 1, "y": 2}, "l": [1, 2]}, {"a": None, "m": {}, "l": [3]}]


def in_memory(spark: SparkSession, schema: str | None = None) -> Any:
    rows = MemorySource({"0": PLAIN}, schema=schema)
    found: Any = rows.emit_partition_batch(ATTEMPT, "0", {"from": 0, "to": 2}, spark)
    return exact(found)


@pytest.mark.parametrize("name", GUESSED)
def test_a_setting_that_changes_the_inferred_types_of_python_rows_is_refused(spark: SparkSession, name: str) -> None:
    with given(spark, name, GUESSED[name]), pytest.raises(ConfigError, match=rf"{name} = .* Set it to"):
        in_memory(spark)


@pytest.mark.parametrize("name", OF_PYTHON)
def test_no_other_setting_changes_the_rows_that_python_passes_to_spark(spark: SparkSession, name: str) -> None:
    before = in_memory(spark)
    with given(spark, name, OF_PYTHON[name]):
        assert in_memory(spark) == before


@pytest.mark.parametrize("name", list(GUESSED)[1:])
def test_settings_for_type_inference_do_not_affect_a_declared_schema(spark: SparkSession, name: str) -> None:
    schema = "a BIGINT, m STRUCT<x: BIGINT, y: BIGINT>, l ARRAY<BIGINT>"
    before = in_memory(spark, schema)
    with given(spark, name, GUESSED[name]):
        assert in_memory(spark, schema) == before


def test_a_setting_that_changes_the_type_of_message_times_is_refused(spark: SparkSession) -> None:
    with given(spark, "spark.sql.timestampType", "TIMESTAMP_NTZ"), pytest.raises(ConfigError, match="timestampType"):
        BatchStaging.current().stage(spark, pa.table({"n": [1]}).to_reader())
