"""Columns of JSON objects, in Spark's DDL."""

from __future__ import annotations

import pytest

from airflow_tx.base.rows.types import nested_columns_of, object_values


def test_columns_can_be_arrays_and_maps_and_structs() -> None:
    schema = (
        "a array<decimal(10, 2)> NOT NULL, `b,``c` STRUCT<x: INT, y: MAP<string, array<date>>> COMMENT 'x, y', d: INT"
    )
    assert {name: kind.ddl for name, kind in nested_columns_of(schema).items()} == {
        "a": "ARRAY<DECIMAL(10,2)>",
        "b,`c": "STRUCT<`x` INT, `y` MAP<STRING, ARRAY<DATE>>>",
        "d": "INT",
    }


@pytest.mark.parametrize(
    "column", ["b BINARY", "b ARRAY<VARIANT>", "b MAP<INT, STRING>", "b ARRAY<INT, INT>", "b STRUCT<>", "b", "b INT)"]
)
def test_the_error_for_a_type_that_json_does_not_have_names_its_column(column: str) -> None:
    with pytest.raises(ValueError, match="has no type that"):
        nested_columns_of(f"a INT, {column}")


@pytest.mark.parametrize(
    "schema", ["a INT, A INT", "a INT, a STRING", "s STRUCT<x: INT, X: INT>", "l ARRAY<STRUCT<x: INT, x: INT>>"]
)
def test_column_names_that_spark_cannot_distinguish_are_refused(schema: str) -> None:
    with pytest.raises(ValueError, match=r"are the same column in Spark and in SQL|has no type"):
        nested_columns_of(schema)


@pytest.mark.parametrize("kind", ["STRING", "ARRAY<STRING>", "BIGINT"])
def test_a_value_that_is_nested_too_deeply_is_refused_with_an_explanation(kind: str) -> None:
    value: list[object] = []
    for _ in range(100_000):
        value = [value]
    with pytest.raises(ValueError, match="it is nested too deeply"):
        object_values({"a": value}, nested_columns_of(f"a {kind}"))
