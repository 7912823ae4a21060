"""The schemas of files and tables, compared."""

from __future__ import annotations

import json
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.state.api import Misfit
from airflow_tx.state.lake.schema import check_partition, deepest, new_fields, nullable, of_arrow, struct

_PLAIN = ["long", "integer", "string", "date", "timestamp", "timestamp_ntz", "decimal(9,2)", "double", "binary"]


def _wrapped(inner: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    flags = st.booleans()
    array = st.builds(lambda t, n: {"type": "array", "elementType": t, "containsNull": n}, inner, flags)
    mapping = st.builds(
        lambda k, v, n: {"type": "map", "keyType": k, "valueType": v, "valueContainsNull": n}, inner, inner, flags
    )
    nested = st.lists(st.tuples(inner, flags), min_size=1, max_size=3).map(
        lambda fields: {
            "type": "struct",
            "fields": [
                {"name": f"f{number}", "type": kind, "nullable": flag, "metadata": {"comment": "x"}}
                for number, (kind, flag) in enumerate(fields)
            ],
        }
    )
    return st.one_of(array, mapping, nested)


types = st.recursive(st.sampled_from(_PLAIN), _wrapped, max_leaves=6)


def _field(name: str, kind: Any) -> dict[str, Any]:
    return {"name": name, "type": kind, "nullable": True, "metadata": {}}


@given(types)
def test_every_field_is_nullable_at_any_depth(kind: Any) -> None:
    text = json.dumps(nullable(kind))
    assert '"nullable": false' not in text
    assert '"containsNull": false' not in text
    assert '"valueContainsNull": false' not in text
    assert nullable(nullable(kind)) == nullable(kind)


@given(types)
def test_a_file_with_the_columns_of_its_table_adds_no_column(kind: Any) -> None:
    table = struct([_field("a", nullable(kind))])
    assert new_fields(table, struct([_field("a", kind)])) == []
    assert new_fields(struct([]), struct([_field("a", kind)])) == table["fields"]


@given(types, types)
def test_a_column_of_another_type_is_always_refused(one: Any, other: Any) -> None:
    if nullable(one) == nullable(other):
        return
    with pytest.raises(Misfit, match="column a has the type"):
        new_fields(struct([_field("a", one)]), struct([_field("a", other)]))


@pytest.mark.parametrize("kind", ["void", "variant", "interval day to second", "time(6)", {"type": "udt"}])
def test_the_error_for_a_type_that_delta_does_not_support_names_it(kind: Any) -> None:
    inner = {"type": "array", "elementType": kind, "containsNull": True}
    with pytest.raises(Misfit, match="column a"):
        nullable(struct([_field("a", inner)]))


def test_column_names_that_differ_only_by_case_are_refused() -> None:
    with pytest.raises(Misfit, match="column A differs from column a"):
        new_fields(struct([_field("a", "long")]), struct([_field("A", "long")]))


def test_a_file_must_contain_a_value_for_each_partition_column() -> None:
    found = struct([_field("a", "long"), _field("day", "date")])
    check_partition(found, {"day": None}, ["day"])
    with pytest.raises(Misfit, match="lack partition column day"):
        check_partition(found, {}, ["day"])
    with pytest.raises(Misfit, match="partitioned by day"):
        check_partition(found, {"day": "x"}, [])


def test_arrow_types_are_converted_to_the_types_that_spark_uses() -> None:
    schema = pa.schema(
        [
            ("a", pa.int8()),
            ("b", pa.timestamp("us", "UTC")),
            ("c", pa.timestamp("us")),
            ("d", pa.decimal128(9, 2)),
            ("e", pa.map_(pa.string(), pa.list_(pa.int64()))),
            ("f", pa.struct([("g", pa.date32())])),
            ("h", pa.list_(pa.string_view())),
            ("i", pa.binary_view()),
        ]
    )
    found = {each["name"]: each["type"] for each in of_arrow(schema)["fields"]}
    assert [found[name] for name in "abcd"] == ["byte", "timestamp", "timestamp_ntz", "decimal(9,2)"]
    assert found["e"]["valueType"]["elementType"] == "long"
    assert found["f"]["fields"][0]["type"] == "date"
    assert (found["h"]["elementType"], found["i"]) == ("string", "binary")


@pytest.mark.parametrize("kind", [pa.uint8(), pa.timestamp("ns"), pa.time64("us"), pa.null(), pa.float16()])
def test_an_arrow_type_that_delta_does_not_support_is_refused(kind: pa.DataType) -> None:
    with pytest.raises(Misfit, match="column a has the type"):
        of_arrow(pa.schema([("a", kind)]))


@given(types)
def test_a_search_in_a_nested_type_finds_each_plain_type(kind: Any) -> None:
    for plain in _PLAIN:
        assert deepest(kind, plain.__eq__) == (json.dumps(plain) in json.dumps(kind))
