"""A new row of a table of types fails here until each room has said what it does with the type."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from pyspark.sql.types import StructType
from sqlalchemy.dialects import sqlite

from airflow_tx.base.rows.blocks import _PROOFS
from airflow_tx.base.rows.types import COLUMN_TYPES, ColumnType, PlainType, columns_of
from airflow_tx.ledger.row_digest import form_of_columns
from airflow_tx.outputs.staging.row_hash import digest_of_batch
from airflow_tx.spark.observed import _hashed, _is_hashed
from airflow_tx.state.arrow import from_arrow, to_arrow
from airflow_tx.state.column_types import KEY_TYPES, STATE_TYPES, from_plain, to_plain, type_of
from airflow_tx.state.lake.files import arrow_type
from airflow_tx.state.lake.schema import nullable, of_arrow
from airflow_tx.state.sql import mysql, postgres
from airflow_tx.state.sql.mysql import MySql
from airflow_tx.state.sql.postgres import Postgres
from airflow_tx.state.sql.schema import _ARRAY_ITEM, array_literal, pg_type, sqlite_type
from airflow_tx.state.sql.sqlite import Sqlite
from airflow_tx.testing.suites.aggregator_cases import EXAMPLES
from tests.edges.state_values import CLASSES
from tests.edges.values import TYPES

every_type = pytest.mark.parametrize("kind", COLUMN_TYPES.values(), ids=COLUMN_TYPES)
every_state_type = pytest.mark.parametrize("kind", STATE_TYPES)
DECLARED = [each for each in COLUMN_TYPES.values() if each.ddl != "BINARY"]


def _in_spark(kind: PlainType) -> Any:
    """Make Spark's type of the name in its JSON."""
    field = {"name": "c", "type": kind.delta, "nullable": True, "metadata": {}}
    return StructType.fromJson({"type": "struct", "fields": [field]})["c"].dataType


@every_type
def test_each_spelling_of_a_type_means_the_same_type(kind: PlainType) -> None:
    assert str(kind.arrow_type()) == kind.arrow
    assert ColumnType.of_arrow(kind.arrow_type()) == kind
    assert _in_spark(kind).simpleString() == kind.ddl.lower()
    if kind in DECLARED:
        assert columns_of(f"c {kind.ddl}") == columns_of(f"c {kind.delta}") == {"c": kind}
        assert ColumnType.named(kind.delta) == kind


@every_type
def test_a_column_of_a_delta_table_can_have_the_type(kind: PlainType) -> None:
    (field,) = of_arrow(pa.schema([("c", kind.arrow_type())]))["fields"]
    assert nullable(field["type"]) == kind.delta
    assert arrow_type(kind.delta) == kind.arrow_type()


@every_type
def test_rows_of_the_type_are_hashed_in_the_same_form_by_python_and_by_spark(kind: PlainType) -> None:
    batch = pa.record_batch({"c": pa.nulls(2, kind.arrow_type())})
    assert digest_of_batch(batch).form == form_of_columns(["c"])
    assert _is_hashed(_in_spark(kind))
    assert _hashed(_in_spark(kind)) == kind.hashed


def test_each_declared_type_has_a_block_reader_and_is_tested_with_edge_values() -> None:
    assert set(_PROOFS) == set(map(type, DECLARED))
    tried = {kind.ddl.partition("(")[0] for name in TYPES for kind in columns_of(f"c {name}").values()}
    assert tried == {each.ddl.partition("(")[0] for each in DECLARED}


@every_type
def test_a_type_accepts_arrow_types_whose_values_it_can_store(kind: PlainType) -> None:
    taken = [each.removeprefix("large_").removesuffix("_view") for each in kind.takes]
    narrower = {each.arrow: each for each in COLUMN_TYPES.values()}
    for name in taken:
        same = name.replace("[ms", "[us") == kind.arrow
        assert same or type(narrower[name]) is type(kind)


# --- types of states ----------------------------------------------------------------------------------------------


@every_state_type
def test_arrow_and_json_can_store_each_value_of_a_type_that_states_support(kind: str) -> None:
    rows = [{"c": value} for value in [*EXAMPLES[kind], None]]
    table = to_arrow(rows, {"c": kind})
    assert table.schema.field("c").type == COLUMN_TYPES[STATE_TYPES[kind].column].arrow_type()
    assert from_arrow(table) == rows
    assert [{"c": from_plain(kind, to_plain(kind, row["c"]))} for row in rows] == rows
    assert kind not in KEY_TYPES or {type_of(value) for value in EXAMPLES[kind]} == {kind}


def test_the_test_suites_cover_each_type_that_states_support() -> None:
    assert list(EXAMPLES) == list(STATE_TYPES)
    assert list(CLASSES) == list(KEY_TYPES)


@pytest.mark.parametrize("dialect", [Sqlite, Postgres, MySql])
def test_each_database_supports_each_type_that_states_support(dialect: Any) -> None:
    assert list(dialect.types) == list(STATE_TYPES)


@every_state_type
def test_a_column_that_was_created_for_a_type_is_recognized_as_this_type(kind: str) -> None:
    declared = Sqlite().spelled(sqlite.dialect())[kind]
    assert sqlite_type(declared) == kind
    assert pg_type(Postgres.types[kind]) == kind
    assert kind in {*mysql._KINDS.values(), *mysql._COMMENTED}


NUMBERS_AND_TRUTHS = ("bigint", "double", "boolean")
TIMES = ("date", "timestamp", "timestamptz")


@pytest.mark.parametrize(
    ("said", "as_it_is"),
    [
        pytest.param(_ARRAY_ITEM, (), id="an item of an array of PostgreSQL"),
        pytest.param(postgres._COPIED, ("bigint", "numeric", "boolean", *TIMES), id="a field of a line of COPY"),
        pytest.param(mysql._WRITE, (*NUMBERS_AND_TRUTHS, "text"), id="a value in a document for MySQL"),
        pytest.param(
            {**mysql._READ_AS, **mysql._AFTERWARDS}, ("text", "json"), id="what MySQL reads of such a document"
        ),
    ],
)
def test_a_value_of_each_type_can_be_written_as_sql_for_a_database(
    said: Collection[str], as_it_is: Collection[str]
) -> None:
    """A type that a room leaves out of its map is sent as its text, or as JSON has it: these are listed here."""
    assert {*said, *as_it_is} == set(STATE_TYPES)
    assert not {*said} & {*as_it_is}


@every_state_type
def test_each_value_can_be_an_element_of_an_array(kind: str) -> None:
    assert array_literal(kind, [*EXAMPLES[kind], None]).endswith("NULL}")
