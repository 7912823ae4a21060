"""Rows of Kafka as a DataFrame, read by Spark's own connector; and what its errors mean."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from airflow_tx.connections.kafka import KafkaAddress
from airflow_tx.sources.kafka.positions import OffsetRange, split_name

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

CONNECTOR = "org.apache.spark:spark-sql-kafka-0-10_2.13:<Spark's version>"
COLUMNS = ("key", "value", "topic", "partition", "offset", "timestamp", "headers")
SCHEMA = (
    "key BINARY, value BINARY, topic STRING, partition INT, offset BIGINT, timestamp TIMESTAMP, "
    "headers ARRAY<STRUCT<key: STRING, value: BINARY>>"
)
_CORRUPT = "_tx_corrupt"
_MARK = "airflow_tx: no such value: "
_WHERE = re.compile(re.escape(_MARK) + r"(topic \S+, partition \d+, offset \d+)")


def read_frame(
    spark: SparkSession,
    address: KafkaAddress,
    offsets: Mapping[str, OffsetRange],
    options: Mapping[str, str],
    value_schema: str | None,
) -> DataFrame:
    """The rows at exactly these offsets, of all partitions in one DataFrame.

    :param options: further ones of the connector.
    :param value_schema: Spark DDL; values are JSON, and one that does not fit is an error.
    """
    wanted = {name: each for name, each in offsets.items() if each.count}
    if wanted:
        reader = spark.read.format("kafka").options(**address.spark_options(), **options, **_exactly(wanted))
        rows = reader.load().select(*COLUMNS)
    else:
        rows = spark.createDataFrame([], SCHEMA)
    return rows if value_schema is None else _parsed(rows, value_schema)


def _exactly(offsets: Mapping[str, OffsetRange]) -> dict[str, str]:
    assigned: dict[str, list[int]] = {}
    starts: dict[str, dict[str, int]] = {}
    ends: dict[str, dict[str, int]] = {}
    for name, each in sorted(offsets.items()):
        topic, number = split_name(name)
        assigned.setdefault(topic, []).append(number)
        starts.setdefault(topic, {})[str(number)] = each.start
        ends.setdefault(topic, {})[str(number)] = each.end
    return {
        "assign": json.dumps(assigned),
        "startingOffsets": json.dumps(starts),
        "endingOffsets": json.dumps(ends),
        "failOnDataLoss": "true",
        "includeHeaders": "true",
        "kafka.isolation.level": "read_committed",
    }


def _parsed(rows: DataFrame, schema: str) -> DataFrame:
    from pyspark.sql import functions as F

    how = {"mode": "PERMISSIVE", "columnNameOfCorruptRecord": _CORRUPT}
    parsed = F.from_json(F.col("value").cast("string"), f"{schema}, {_CORRUPT} STRING", how)
    # Exploded, it is read once for each message, and also where nobody looks at the value: Spark moves no filter below.
    read = rows.select("*", F.explode(F.array(parsed)).alias("_tx_value"))
    misfit = F.col("value").isNotNull() & (F.col("_tx_value").isNull() | F.col(f"_tx_value.{_CORRUPT}").isNotNull())
    where = F.format_string(f"{_MARK}topic %s, partition %s, offset %s", "topic", "partition", "offset")
    checked = read.where(F.when(misfit, F.raise_error(where).cast("boolean")).otherwise(F.lit(True)))
    value = F.when(F.col("value").isNotNull(), F.col("_tx_value").dropFields(_CORRUPT)).alias("value")
    return checked.select(*(value if name == "value" else name for name in COLUMNS))


def misfit_in(error: Exception) -> str | None:
    """Which message does not fit, if that is what the error of a query says."""
    found = _WHERE.search(str(error))
    return found[1] if found else None


def lacks_connector(error: Exception) -> bool:
    text = str(error)
    return "Failed to find" in text and "kafka" in text


def lost_rows(error: Exception) -> bool:
    return any(said in str(error) for said in ("data may have been lost", "Cannot fetch offset"))
