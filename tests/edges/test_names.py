"""Each public source and state is held to the edges of values, or has a reason why not."""

from __future__ import annotations

import inspect
from pathlib import Path

import pytest

import airflow_tx
from airflow_tx import state
from airflow_tx.sources.api import Source

ROOT = Path(__file__).parents[2]
HELD = {
    "FileSource": "tests/edges/test_files.py",
    "KafkaSource": "tests/edges/test_messages.py",
    "RedisListSource": "tests/edges/test_messages.py",
    "SqlSource": "tests/integration/test_sql_source_values.py",
    "MemoryState": "tests/unit/commit/test_edge_values.py",
    "RedisState": "tests/edges/test_states.py",
    "SqlState": "tests/edges/test_states.py",
    "SqlTable": "tests/edges/test_table_values.py",
    "DeltaTable": "tests/edges/test_delta_values.py",
}
"""The tests that give a source or a state values at the edges of its types."""
READ_AGAIN = {
    "SqlTable": "tests/edges/test_committed_values.py",
    "DeltaTable": "tests/edges/test_committed_values.py",
}
"""The tests that append values at the edges to a table, and read them as the rows of its transactions."""
ALIKE = {
    "PartitionedFileSource": "reads its files as FileSource",
    "PartitionedSqlSource": "reads its tables as SqlSource",
    "UpstreamSource": "its tables are read again below",
    "RabbitQueueSource": "tests/edges/test_messages.py gives its rows messages, without a server",
    "RedisNumberedSource": "reads a message as RedisListSource",
    "RedisStreamSource": "its values are texts",
    "DataIntervalSource": "the user's reader makes its rows",
    "RunPartitionSource": "the user's reader makes its rows",
    "MemorySource": "its rows are Python's",
    "MapState": "the user's map keeps its values",
    "MemcachedState": "keeps values as JSON",
    "QueryableState": "a base class",
    "FencedState": "a base class",
    "State": "a base class",
    "CommittedTable": "a base class",
    "StaticState": "nothing is written to it",
    "RedisGuard": "the user's script writes",
    "SqlGuard": "the user's statements write",
}
"""Why another one needs no test of its own."""


def test_each_public_source_and_state_has_edge_tests_or_an_equivalent_that_has_them() -> None:
    bases = {"Source", "TransactionalSource", "PartitionedTransactionalSource", "OpaquePartitionedTransactionalSource"}
    found = {name: getattr(airflow_tx, name) for name in airflow_tx.__all__}
    sources = {name for name, each in found.items() if inspect.isclass(each) and issubclass(each, Source)}
    states = {name for name in state.__all__ if name.endswith(("State", "Guard", "Table"))}
    assert (sources - bases | states) - HELD.keys() - ALIKE.keys() == set()


def test_each_committed_table_has_edge_tests() -> None:
    found = {name for name in state.__all__ if inspect.isclass(getattr(state, name))}
    tables = {name for name in found if issubclass(getattr(state, name), state.CommittedTable)}
    assert tables - ALIKE.keys() == READ_AGAIN.keys()


@pytest.mark.parametrize(("name", "file"), [*HELD.items(), *READ_AGAIN.items()])
def test_the_file_of_edge_tests_listed_for_a_class_mentions_the_class(name: str, file: str) -> None:
    assert name in (ROOT / file).read_text()
