"""Rows of a DataFrame with what a state says about them, asked for by the executors. Source: Trident's stateQuery."""

from __future__ import annotations

import pickle
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.spark.secrets import hidden_in, pickled, revealed
from airflow_tx.state.api import QueryableState
from airflow_tx.state.arrow import from_arrow, to_arrow
from airflow_tx.state.query import (
    MapGet,
    QueryFunction,
    for_readers,
    resolved_state,
    results_of,
    state_of,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.types import StructType

_OPTION = "batch.look_up"
# As Spark names what Arrow's types become; a numeric or json column is a text.
_IN_SPARK = {
    "bigint": "bigint",
    "double": "double",
    "boolean": "boolean",
    "date": "date",
    "timestamp": "timestamp_ntz",
    "timestamptz": "timestamp",
    "bytes": "binary",
}


def look_up(
    spark: SparkSession,
    state: Any,
    frame: DataFrame,
    query: QueryFunction[Any, Any] | None = None,
    fields: str | None = None,
) -> DataFrame:
    """Add to rows what a state says about them; see `Batch.look_up`."""
    state = state_of(state)
    function = MapGet() if query is None else query
    types = _types(state, function) if fields is None else None
    added = _struct(spark, fields if fields is not None else _ddl(types or {}))
    if twice := sorted(set(frame.columns) & set(added.names)):
        remedy = "Drop or rename the column before; MapGet(values=[...]) adds only some."
        raise ConfigError(
            option=f"{_OPTION}(frame)",
            value=twice,
            remedy=f"It has a column of that name. {remedy}",
        )
    asked = _asked(state, function, frame)
    told = (
        _for_executors(spark, state),
        function,
        asked,
        types,
        None if types is not None else _plain_types(added),
    )
    salt, hidden = hidden_in(spark, pickled(told))

    def answer(batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        from airflow_tx.spark.lookup import answered

        yield from answered(salt, hidden, batches)

    from pyspark.sql.types import StructType

    return frame.mapInArrow(answer, StructType([*frame.schema.fields, *added.fields]))


# --- in the driver ------------------------------------------------------------------------------------------------


def _for_executors(spark: SparkSession, state: Any) -> Any:
    """The state as an executor can use it: with its address and password, and nothing that is open."""
    local = str(spark.conf.get("spark.master", "")).startswith("local")
    copied = for_readers(state, local=local)
    if copied is None:
        remedy = f"Executors cannot read {state.name!r}: look up in a @task (state_query), or use a database server."
        raise ConfigError(option=f"{_OPTION}(state)", value=type(state).__name__, remedy=remedy)
    return copied


def _asked(state: Any, function: Any, frame: DataFrame) -> list[str]:
    """The columns that a query needs: all, or the key columns of a MapGet."""
    if not isinstance(function, MapGet):
        return list(frame.columns)
    names, _ = function.names(state)
    if missing := [name for name in names if name not in frame.columns]:
        remedy = f"It has {', '.join(frame.columns)}. Name the columns of the key: query=MapGet(keys=[...])."
        raise ConfigError(option=f"{_OPTION}(frame)", value=missing, remedy=remedy)
    return list(names)


def _types(state: Any, function: Any) -> dict[str, str]:
    """The columns that a state with columns adds, by our types.

    :raises ConfigError: it does not say.
    """
    if not isinstance(state, QueryableState) or not isinstance(function, MapGet):
        what = type(function if isinstance(state, QueryableState) else state).__name__
        remedy = f'{what} does not say what it adds: fields="name string, hub string".'
        raise ConfigError(option=f"{_OPTION}(fields=)", value=None, remedy=remedy)
    columns = state.columns
    results = {
        name: str(getattr(each, "result_type", "text")) for name, each in columns.composites.items()
    }
    known = {name: aggregator.type for name, aggregator in columns.values.items()} | results
    _, names = function.names(state)
    return {name: known[name] for name in names}


def _ddl(types: Mapping[str, str]) -> str:
    quoted = {name.replace("`", "``"): kind for name, kind in types.items()}
    return ", ".join(f"`{name}` {_IN_SPARK.get(kind, 'string')}" for name, kind in quoted.items())


def _struct(spark: SparkSession, fields: str) -> StructType:
    try:
        return spark.createDataFrame([], fields).schema
    except Exception as error:
        remedy = 'Give columns as in DDL: fields="name string, hub string".'
        raise ConfigError(option=f"{_OPTION}(fields=)", value=fields, remedy=remedy) from error


def _plain_types(added: StructType) -> bytes:
    """The added columns as an Arrow schema, for values as a query gives them."""
    from pyspark.sql.pandas.types import to_arrow_schema

    data: bytes = to_arrow_schema(added).serialize().to_pybytes()
    return data


# --- in an executor -----------------------------------------------------------------------------------------------


def answered(
    salt: bytes, hidden: bytes, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Answer the rows of one partition, with the added fields: one look-up per batch."""
    import pyarrow as pa

    given, function, asked, types, schema = pickle.loads(revealed(salt, hidden))
    state = resolved_state(given)
    plain = () if schema is None else pa.ipc.read_schema(pa.py_buffer(schema))
    names = list(types) if types is not None else [field.name for field in plain]
    for batch in batches:
        rows = from_arrow(batch.select(asked), {})
        indices = list[int]()
        added = list[Mapping[str, Any]]()
        for number, fields in results_of(state, rows, function):
            indices.append(number)
            added.append(fields)
        _check_fields(function, names, added)
        kept = (
            batch
            if indices == list(range(batch.num_rows))
            else batch.take(pa.array(indices, pa.int64()))
        )
        if types is not None:
            columns = [each.combine_chunks() for each in to_arrow(added, types).columns]
        else:
            columns = [
                pa.array([fields.get(each.name) for fields in added], each.type) for each in plain
            ]
        yield pa.RecordBatch.from_arrays(
            [*kept.columns, *columns], names=[*batch.schema.names, *names]
        )


def _check_fields(function: Any, names: list[str], added: list[Mapping[str, Any]]) -> None:
    for fields in added:
        if unknown := [name for name in fields if name not in names]:
            raise StateError(
                state=type(function).__name__,
                problem=f"its execute gives {', '.join(unknown)}, which is not among the fields {', '.join(names)}",
                remedy="Name every field in batch.look_up(fields=...).",
            )
