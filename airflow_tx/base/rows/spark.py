"""Spark reads whose rows do not depend on settings.

All Spark reads use this module, so that session, cluster and Hadoop settings cannot change the rows of a batch. Reader
options override settings. A setting without a reader option is refused if it would change rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_tx.base.errors import ConfigError
from airflow_tx.base.rows.types import column_name

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, DataFrameReader, SparkSession
    from pyspark.sql.types import StructType


_OF_FILES = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "ignoreInvalidPartitionPaths": "false",
    # Hadoop skips longer lines, and reads files with this suffix without decompressing them.
    "mapreduce.input.linerecordreader.line.maxlength": "2147483647",
    "io.compress.passthrough.extension": ".passthrough",
}
_OF_TEXTS = {
    **_OF_FILES,
    "mode": "FAILFAST",
    "columnNameOfCorruptRecord": "_corrupt_record",
    "timeZone": "UTC",
}
_SAID: Mapping[str, Mapping[str, str]] = {
    "csv": _OF_TEXTS,
    "json": _OF_TEXTS,
    "xml": _OF_TEXTS,
    "parquet": {
        **_OF_FILES,
        "mergeSchema": "false",
        "datetimeRebaseMode": "CORRECTED",
        "int96RebaseMode": "CORRECTED",
    },
    "orc": {
        **_OF_FILES,
        "mergeSchema": "false",
        "orc.skip.corrupt.data": "false",
        "orc.force.positional.evolution": "false",
    },
    "avro": {
        **_OF_FILES,
        "mode": "FAILFAST",
        "ignoreExtension": "true",
        "datetimeRebaseMode": "CORRECTED",
    },
    "jdbc": {"preferTimestampNTZ": "false"},
    "kafka": {},
}
"""The reader options that override session settings, by format."""
_TYPED = "typed rows"
_UNTYPED = "untyped rows"
_WRITES = "write"
_ANY = {
    "spark.sql.legacy.charVarcharAsString": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
# Hadoop's filter also applies to explicitly named files.
_LISTED = {
    **_ANY,
    **{f"{each}mapreduce.input.pathFilter.class": "" for each in ("", "spark.hadoop.")},
}
_TIMES = {"spark.sql.legacy.timeParserPolicy": "CORRECTED EXCEPTION"}
_PARSED = {**_LISTED, **_TIMES}
_OBJECTS = {
    **_TIMES,
    "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    "spark.sql.legacy.json.enableDateTimeParsingFallback": "",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.variant.allowDuplicateKeys": "false",
    "spark.sql.variant.validateUnicodeInJsonParsing": "true",
}
_HELD: Mapping[str, Mapping[str, str]] = {
    "csv": {**_PARSED, "spark.sql.legacy.csv.enableDateTimeParsingFallback": ""},
    "json": {**_PARSED, **_OBJECTS},
    "xml": _PARSED,
    "parquet": {
        **_LISTED,
        "spark.sql.legacy.parquet.nanosAsLong": "false",
        "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
        "spark.sql.parquet.binaryAsString": "false",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
        "spark.sql.parquet.int96AsTimestamp": "true",
        "spark.sql.parquet.int96TimestampConversion": "false",
    },
    "jdbc": {
        **_ANY,
        "spark.sql.legacy.mysql.bitArrayMapping.enabled": "false",
        "spark.sql.legacy.mysql.timestampNTZMapping.enabled": "false",
        "spark.sql.legacy.postgres.datetimeMapping.enabled": "false",
        "spark.sql.parser.escapedStringLiterals": "false",
        "spark.sql.parser.quotedRegexColumnNames": "false",
    },
    "kafka": {**_ANY, **_OBJECTS},
    _TYPED: _ANY,
    _UNTYPED: {
        **_ANY,
        "spark.sql.pyspark.inferNestedDictAsStruct.enabled": "false",
        "spark.sql.pyspark.legacy.inferArrayTypeFromFirstElement.enabled": "false",
        "spark.sql.pyspark.legacy.inferMapTypeFromFirstPair.enabled": "false",
    },
    _WRITES: {
        "spark.sql.legacy.parquet.datetimeRebaseModeInWrite": "CORRECTED EXCEPTION",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED EXCEPTION",
    },
}
"""The required values of settings that reader options cannot override, by format.

"" means that a setting must be unset.
"""


def held_settings(file_format: str) -> dict[str, str]:
    """Return the Spark SQL settings for reading a format, for a session that this package creates."""
    held = _HELD[file_format].items()
    return {name: each.split()[0] for name, each in held if each and name.startswith("spark.sql.")}


def check_settings(spark: SparkSession, file_format: str = _WRITES) -> None:
    """Raise an error if a session setting changes the values that Spark reads or writes.

    :param file_format: format of the files to read. The default checks the settings for writing.
    :raises ConfigError: a setting changes rows, and no option overrides it.
    """
    of_server = type(spark).__module__.startswith("pyspark.sql.connect.")
    # A server returns all settings in one request. A local JVM reads one setting a hundred times
    # faster than all of them.
    given: Any = spark.conf.getAll.get if of_server else spark.conf.get
    for name, allowed in _HELD.get(file_format, _LISTED).items():
        value = (given(name, None) or "").strip()
        if value and value.lower() not in allowed.lower().split():
            instead = f"Set it to {allowed.split()[0]}" if allowed else "Leave it out"
            remedy = (
                f"This setting would change the rows in Spark. {instead} where you set it: "
                "SparkBatchOperator(conf=), the "
                "application, spark-defaults.conf or the Spark Connect server."
            )
            raise ConfigError(option=name, value=value, remedy=remedy)


def python_frame(
    spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: StructType | str | None = None
) -> DataFrame:
    """Create a DataFrame from Python rows. Its values do not depend on session settings.

    :param schema: schema of the rows, or None to infer the types from the values.
    :raises ConfigError: a setting of the session would change rows.
    """
    check_settings(spark, _TYPED if schema else _UNTYPED)
    return spark.createDataFrame(list[Any](rows), schema)


def spark_reader(
    spark: SparkSession, file_format: str, options: Mapping[str, Any] | None = None
) -> DataFrameReader:
    """Create a Spark reader whose rows do not depend on session settings.

    :param options: reader options, which override the options of every reader.
    :raises ConfigError: a setting of the session changes rows, and no option overrides it.
    """
    check_settings(spark, file_format)
    said = _SAID.get(file_format, _OF_FILES)
    return spark.read.format(file_format).options(**said).options(**(options or {}))


def empty_frame(spark: SparkSession, types: Mapping[str, pa.DataType]) -> DataFrame:
    """Create a DataFrame without rows.

    :param types: types of the columns.
    """
    import pyarrow as pa
    from pyspark.sql.pandas.types import from_arrow_schema

    return python_frame(spark, [], from_arrow_schema(pa.schema(types), prefer_timestamp_ntz=True))


_FILE = "tx_file"
_LOCAL = "^file:/+"
_OF_GLOBS = re.compile(r"([\[\]{}*?\\])")
"""The path characters that Spark interprets as a pattern."""


def parquet_frame(
    spark: SparkSession,
    schema: Mapping[str, Any],
    files: Mapping[str, Mapping[str, str | None]],
) -> DataFrame:
    """Read Parquet files of a table whose log gives the partition columns of each file.

    :param schema: schema of the table as Spark JSON. A column that a file lacks is NULL.
    :param files: texts of the partition columns, by path. There must be at least one file.
    :raises ConfigError: a setting of the session would change rows.
    """
    from pyspark.sql import functions as F
    from pyspark.sql.types import StringType, StructField, StructType

    whole = StructType.fromJson(dict(schema))
    partition = list(next(iter(files.values())))
    own = StructType([each for each in whole if each.name not in partition])
    paths = [_OF_GLOBS.sub(r"\\\1", path) for path in files]
    read = spark_reader(spark, "parquet").schema(own).load(paths)
    if not partition:
        return read
    # Match files by path, as Spark spells it. A file's folder need not name the partition.
    texts = [
        {_FILE: re.sub(_LOCAL, "file:/", path), **files[re.sub(_LOCAL, "/", unquote(path))]}
        for path in read.inputFiles()
    ]
    known = StructType([StructField(name, StringType()) for name in (_FILE, *partition)])
    log = F.broadcast(python_frame(spark, texts, known))
    of_file = F.regexp_replace("_metadata.file_path", _LOCAL, "file:/")
    joined = read.withColumn("tx_path", of_file).join(log, F.col("tx_path") == log[_FILE], "left")
    # Every row must be in the partition of its file.
    lost = F.raise_error(F.concat(F.lit("airflow_tx: an unknown file: "), "tx_path"))
    joined = joined.filter(
        F.when(F.col(_FILE).isNull(), lost.cast("boolean")).otherwise(F.lit(True))
    )
    quoted = {each.name: F.col(column_name(each.name)) for each in whole}
    return joined.select(*(quoted[each.name].cast(each.dataType) for each in whole))
