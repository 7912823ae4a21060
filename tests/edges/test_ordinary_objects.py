"""Objects that Spark's own reader may read: a task takes the same values from each of them, or refuses it, too."""

from __future__ import annotations

import itertools
import json
import re
from typing import TYPE_CHECKING, Any

import pytest

from airflow_tx.base.rows.nested import with_objects
from airflow_tx.base.rows.types import found_columns_of, nested_columns_of, object_values, parsed_object
from tests.edges.messages import OBJECTS
from tests.edges.values import EDGES, TYPES

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = [kind for kind in TYPES if kind != "FLOAT"]
COLUMNS = {kind: f"c{number}" for number, kind in enumerate(KINDS)}
SCHEMA = ", ".join(f"{name} {kind}" for kind, name in COLUMNS.items())
ORDINARY = [
    '{"c0":1,"c1":-2,"c2":3,"c3":-999999999999999999,"c4":0.1,"c5":-19.99,"c8":true,"c9":"é \U0001f600","c10":"abc"}',
    '{"c0": 1, "c11": "2012-02-29", "c12": "2013-01-31T23:59:59.5Z", "c13": "2013-01-31 00:00:00.000001"}',
    '{"c4":-0.0001,"c6":99999999999999999999.999999999999999999,"c7":-0.9999,"c12":"1899-01-01 00:00:00"} \r',
    '{"c4":123456789012345678,"c5":-0,"c7":0,"c8":false,"c9":"","c13":"2013-01-31T23:59:59"}',
    '{"c0":null,"c4":null,"c5":null,"c8":null,"c9":null,"c11":null,"c12":null}',
    "{}",
]


def in_python(line: str, *, found: bool = False) -> str:
    columns = found_columns_of(SCHEMA) if found else nested_columns_of(SCHEMA)
    try:
        values = object_values(parsed_object(line, exact=True), columns)
    except ValueError:
        return "refused"
    return spelled(values)


def spelled(values: dict[str, Any]) -> str:
    return re.sub(r"tzinfo=(<UTC>|zoneinfo\.\w+\(key='UTC'\))", "tzinfo=datetime.timezone.utc", repr(values))


def in_spark(
    lines: list[str], spark: SparkSession, *, keys: tuple[str, ...] = (), found: bool = False
) -> list[tuple[str, bool]]:
    """Return what Spark takes from each line, and whether that was its own reader."""
    from pyspark.sql import functions as F

    rows = spark.createDataFrame(list(enumerate(lines)), "number INT, line STRING").coalesce(1)
    columns = found_columns_of(SCHEMA) if found else nested_columns_of(SCHEMA)
    read, value, problem = with_objects(rows, "line", columns, keys=keys)
    own = F.col("_tx_ordinary").isNotNull() & F.col("_tx_ordinary._tx_corrupt").isNull()
    fitting = F.when(problem.isNull(), value).alias("value")
    taken = read.orderBy("number").select(fitting, own.alias("own")).toArrow().to_pylist()
    return [("refused" if row["value"] is None else spelled(row["value"]), row["own"]) for row in taken]


@pytest.mark.spark
def test_ordinary_objects_are_read_by_sparks_own_reader(spark: SparkSession) -> None:
    assert in_spark(ORDINARY, spark) == [(in_python(line), True) for line in ORDINARY]
    assert "refused" not in map(in_python, ORDINARY)


@pytest.mark.spark
def test_the_order_of_the_keys_is_that_of_the_first_object(spark: SparkSession) -> None:
    line = '{"more": 1.50, "c9": "x", "c3": 7, "and": "more"}'
    keys = tuple(json.loads(line))
    assert in_spark([line], spark) == [(in_python(line), False)]
    assert in_spark([line], spark, keys=keys) == [(in_python(line), True)]
    refused = [
        '{"c9": "x", "c3": 7, "c3": 8}',
        '{"more": 1, "more": 2}',
        '{"more": 01}',
        '{"more": "\\ud800"}',
        '{"c3": 7,}',
        '{"c3": 7 "and": 1}',
        '{"more": NaN}',
        '{"c9": "x"} {}',
    ]
    assert in_spark(refused, spark, keys=keys) == [("refused", False)] * len(refused)
    assert set(map(in_python, refused)) == {"refused"}


@pytest.mark.spark
@pytest.mark.parametrize("found", [False, True], ids=["declared", "found"])
def test_any_object_has_the_same_values_in_a_task_and_in_spark(found: bool, spark: SparkSession) -> None:
    texts = [text for text in EDGES if len(text) < 100]
    values = [f'"{text}"' for text in texts] + [json.dumps(text) for text in texts] + texts
    lines = [
        f'{{"{name}":{value}}}' for name, value in itertools.product(COLUMNS.values(), dict.fromkeys(values)) if value
    ]
    lines += [each.content.decode() for each in OBJECTS if _is_utf8(each.content) and len(each.content) < 1000]
    taken = in_spark(lines, spark, found=found)
    differ = [
        (line, in_python(line, found=found), other)
        for line, other in zip(lines, taken, strict=True)
        if other[0] != in_python(line, found=found)
    ]
    assert not differ, differ[:10]
    assert sum(own for _, own in taken) > 150


def _is_utf8(content: bytes) -> bool:
    try:
        content.decode()
    except UnicodeDecodeError:
        return False
    return True
