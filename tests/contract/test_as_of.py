"""Values as of a final transaction: what the line of each store reads, whatever the next transactions do meanwhile."""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from threading import Thread
from typing import Any

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa
from deltalake import QueryBuilder

from airflow_tx.base.errors import StateError
from airflow_tx.state import CollectSet, MemoryState, SqlGuard, SqlState, SqlTable, Sum, check_as_of
from airflow_tx.state.api import FencedState
from airflow_tx.testing.suites.state_tools import Grants, about_to_restate, about_to_skip, rows
from tests.integration.databases import query
from tests.lake import SummedTable

AS_OF_1, AS_OF_2 = 2, 6
"""What the values add up to as of transactions 1 and 2."""
DATABASES = ("sqlite", "postgres", "mariadb", "mysql")


@dataclass(frozen=True)
class Store:
    """A state, and what a person reads who pastes a line; None: no rows."""

    state: FencedState
    pasted: Callable[[str], int | None]


@pytest.fixture
def url(request: pytest.FixtureRequest, database: str, tmp_path: Path) -> str:
    if database == "sqlite":
        return f"sqlite:///{tmp_path}/values.db"
    return str(request.getfixturevalue(database).url())


def _typed(url: str, line: str) -> int | None:
    """Type a line without SQLAlchemy in between, which would take parameters out of it."""
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    handle = engine.raw_connection()
    try:
        cursor = handle.cursor()
        cursor.execute(line)
        names = [each[0] for each in cursor.description]
        found = [row[names.index("n")] for row in cursor.fetchall()]
    finally:
        handle.close()
    return sum(map(int, found)) if found else None


def opaque(url: str, tmp_path: Path) -> Store:
    return _keyed(url, "opaque")


def combined_in_python(url: str, tmp_path: Path) -> Store:
    return _keyed(url, "opaque", seen=CollectSet())


def transactional(url: str, tmp_path: Path) -> Store:
    return _keyed(url, "transactional")


def _keyed(url: str, kind: str, **more: Any) -> Store:
    name = f"t{uuid.uuid4().hex[:8]}"
    state = SqlState.from_url(url, table=name, keys=["key"], values={"n": Sum(), **more}, kind=kind)
    return Store(state, lambda line: _typed(url, line))


def table(url: str, tmp_path: Path) -> Store:
    state = SqlTable.from_url(url, table=f"t{uuid.uuid4().hex[:8]}")
    return Store(state, lambda line: _typed(url, line))


def guard(url: str, tmp_path: Path) -> Store:
    name = f"t{uuid.uuid4().hex[:8]}"
    query(url, f"CREATE TABLE {name} (n BIGINT)")
    state = SqlGuard.from_url(url, name=f"it's {name}", statements=[f"INSERT INTO {name} VALUES (:n)"])
    return Store(state, lambda line: _typed(url, line.replace("...", "n", 1).replace("...", name, 1)))


def lake(url: str, tmp_path: Path) -> Store:
    uri = str(tmp_path / f"t{uuid.uuid4().hex[:8]}")

    def pasted(line: str) -> int | None:
        found = re.fullmatch(r"SELECT \* FROM delta\.`(.+)` VERSION AS OF (\d+)", line)
        assert found is not None
        at = deltalake.DeltaTable(found[1], version=int(found[2]))
        summed = QueryBuilder().register("t", at).execute("SELECT sum(n) AS n FROM t").read_all()
        return int(pa.table(summed).to_pylist()[0]["n"])

    return Store(SummedTable(uri), pasted)


UNDONE = (opaque, combined_in_python, table, lake)
"""The kinds that undo what an attempt has written."""


def given(store: Store, updates: dict[str, int]) -> list[dict[str, Any]]:
    columns = store.state.columns
    found = rows(updates)
    return [{**row, "seen": [row["n"]]} for row in found] if columns and "seen" in columns.values else found


# --- what the next transactions do: each yields the newest final one, once in every world ------------------------

Story = Callable[[Store, Grants], Iterator[tuple[str, int]]]


def replayed(store: Store, grants: Grants) -> Iterator[tuple[str, int]]:
    state = store.state
    first = grants(3)
    state.raise_fence(first)
    yield "raised", 2
    state.write(first, given(store, {"a": 10, "c": 10}))
    yield "written", 2
    again = grants(3, 2)
    state.raise_fence(again)
    yield "raised again", 2
    changes = state.undoes
    state.write(again, given(store, {"a": 20, "d": 5} if changes else {"a": 10, "c": 10}))
    yield "written again", 2
    grants.final(again, state)
    yield "marked", 3
    fourth = grants(4)
    state.raise_fence(fourth)
    yield "the next one raised", 3
    state.write(fourth, given(store, {"b": 100}))
    yield "the next one written", 3


def skipped(store: Store, grants: Grants) -> Iterator[tuple[str, int]]:
    state = store.state
    first = grants(3)
    state.raise_fence(first)
    if state.undoes:
        state.write(first, given(store, {"a": 10, "c": 10}))
    yield "raised", 2
    skip = about_to_skip(grants(3, 2))
    state.raise_fence(skip)
    state.pass_over(skip)
    yield "passed over", 2
    grants.final(skip, state)
    yield "marked", 3


def restated(store: Store, grants: Grants) -> Iterator[tuple[str, int]]:
    state = store.state
    first = about_to_restate(grants(3), 1)
    state.raise_fence(first)
    yield "raised", 2
    state.write(first, given(store, {"a": 10, "c": 10}))
    yield "written", 2
    again = about_to_restate(grants(3, 2), 1)
    state.raise_fence(again)
    yield "raised again", 2
    state.write(again, given(store, {"a": 20}))
    yield "written again", 2
    grants.final(again, state)
    yield "marked", 3


def in_portions(store: Store, grants: Grants) -> Iterator[tuple[str, int]]:
    state = store.state
    first = grants(3)
    state.raise_fence(first)
    state.write(first, given(store, {"a": 10}), chunk=0, complete=False)
    yield "a portion", 2
    state.write(first, given(store, {"c": 10}), chunk=1, complete=False)
    yield "both portions", 2
    state.write(replace(first, portions=2), (), chunk=2)
    yield "completed", 2


ALWAYS = {"raised", "written", "raised again", "written again", "marked", "the next one raised", "the next one written"}
ONE_AFTER = ALWAYS - {"the next one raised", "the next one written"}
READABLE: dict[tuple[Any, Any], set[str]] = {
    **{(kind, replayed): ONE_AFTER for kind in (opaque, combined_in_python)},
    **{(kind, replayed): ALWAYS for kind in (table, lake)},
    **{(kind, replayed): set() for kind in (transactional, guard)},
    **{(kind, skipped): {"raised", "passed over", "marked"} for kind in UNDONE},
    **{(kind, skipped): set() for kind in (transactional, guard)},
    **{(kind, restated): ONE_AFTER for kind in (opaque, combined_in_python, lake)},
    (table, restated): {"raised"},
    **{(kind, in_portions): {"a portion", "both portions", "completed"} for kind in (opaque, combined_in_python)},
    (transactional, in_portions): set(),
}
"""In which worlds each kind is readable as of transaction 2, while transaction 3 and the one after it commit."""


def begun(kind: Callable[[str, Path], Store], url: str, tmp_path: Path, grants: Grants) -> Store:
    """A state with two final transactions."""
    store = kind(url, tmp_path)
    for txid, updates in ((1, {"a": 1, "b": 1}), (2, {"a": 2, "b": 2})):
        grants.commit_rows(txid, store.state, given(store, updates))
    return store


def read_at(store: Store, txid: int, newest: int) -> int | StateError | None:
    """What the line that is printed now reads, or why there is none."""
    try:
        return store.pasted(store.state.at(txid, newest))
    except StateError as refusal:
        return refusal


@pytest.fixture
def grants() -> Grants:
    return Grants()


Make = Callable[[str, Path], Store]


def _on_databases(*kinds: Make) -> list[Any]:
    """Each kind on each database; a table of a lake is in none."""
    return [
        pytest.param(kind, name, id=f"{kind.__name__}-{name}", marks=[pytest.mark.long] if name == "mysql" else [])
        for kind in kinds
        for name in (DATABASES if kind is not lake else DATABASES[:1])
    ]


def _cases() -> list[Any]:
    return [
        pytest.param(kind, name, story, id=f"{story.__name__}-{each.id}", marks=each.marks)
        for (kind, story) in READABLE
        for each in _on_databases(kind)
        for _, name in [each.values]
    ]


@pytest.mark.parametrize(("kind", "database", "story"), _cases())
def test_a_query_returns_the_values_as_of_a_transaction_despite_later_transactions(
    kind: Make, story: Story, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = begun(kind, url, tmp_path, grants)
    early = store.state.at(2, 2)
    assert store.pasted(early) == AS_OF_2
    found = {}
    for world, newest in story(store, grants):
        assert store.pasted(early) in (AS_OF_2, None), world
        found[world] = read_at(store, 2, newest)
    assert {world for world, read in found.items() if not isinstance(read, StateError)} == READABLE[kind, story]
    assert {read for read in found.values() if not isinstance(read, StateError)} <= {AS_OF_2}


@pytest.mark.parametrize(("kind", "database"), _on_databases(table, lake))
def test_rows_of_a_table_can_be_read_as_of_an_older_transaction(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = begun(kind, url, tmp_path, grants)
    grants.commit_rows(3, store.state, given(store, {"a": 10}))
    assert [read_at(store, txid, 3) for txid in (1, 2, 3)] == [AS_OF_1, AS_OF_2, AS_OF_2 + 10]


@pytest.mark.parametrize(("kind", "database"), _on_databases(opaque))
def test_an_opaque_state_can_be_read_only_as_of_its_last_two_transactions(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = begun(kind, url, tmp_path, grants)
    assert read_at(store, 1, 2) == AS_OF_1
    grants.commit_rows(3, store.state, given(store, {"a": 10}))
    assert read_at(store, 2, 3) == AS_OF_2
    with pytest.raises(
        StateError, match="not readable as of 1: it keeps only the values before its last transaction. Read it as of 3."
    ):
        store.state.at(1, 3)


@pytest.mark.parametrize(("kind", "database"), _on_databases(opaque))
def test_a_value_that_a_person_changed_after_a_transaction_was_undone_is_read(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = begun(kind, url, tmp_path, grants)
    assert [world for world, _ in skipped(store, grants)][-1] == "marked"
    assert isinstance(store.state, SqlState)
    query(url, f"UPDATE {store.state.table} SET n = n + 40 WHERE tx_epoch = 0")
    assert read_at(store, 2, 3) == AS_OF_2 + 40


@pytest.mark.parametrize(("kind", "database"), _on_databases(table))
def test_an_as_of_read_is_refused_if_a_restatement_has_removed_the_rows(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = begun(kind, url, tmp_path, grants)
    again = about_to_restate(grants(3), 2)
    store.state.raise_and_write(again, given(store, {"b": 7}))
    with pytest.raises(
        StateError,
        match="not readable as of 2 while 3 commits: 3 restated 2 and deleted its rows. "
        "Read it as of 3 when that one has ended.",
    ):
        store.state.at(2, 2)
    with pytest.raises(StateError, match="not readable as of 1 while 3 commits: 3 restated 2"):
        store.state.at(1, 2)
    grants.final(again, store.state)
    grants.commit_rows(4, store.state, given(store, {"a": 10}))
    with pytest.raises(StateError, match="not readable as of 2: 3 restated 2 and deleted its rows. Read it as of 3."):
        store.state.at(2, 4)
    assert [read_at(store, txid, 4) for txid in (1, 3)] == [AS_OF_1, AS_OF_1 + 7]


@pytest.mark.parametrize(("kind", "database"), _on_databases(table))
def test_a_query_printed_earlier_returns_no_rows_after_a_restatement_begins(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = begun(kind, url, tmp_path, grants)
    early = store.state.at(1, 2)
    grants.commit_rows(3, store.state, given(store, {"a": 10}))
    assert store.pasted(early) == AS_OF_1
    store.state.raise_and_write(about_to_restate(grants(4), 3), given(store, {"a": 10}))
    assert store.pasted(early) is None


@pytest.mark.parametrize(("kind", "database"), _on_databases(table))
def test_a_restatement_in_an_earlier_ledger_does_not_affect_the_current_rows(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    earlier = begun(kind, url, tmp_path, grants)
    earlier.state.raise_and_write(about_to_restate(grants(3), 1), given(earlier, {"a": 7}))
    earlier.state.clear()
    now = Grants()
    for txid in (1, 2):
        now.commit_rows(txid, earlier.state, given(earlier, {"a": txid}))
    assert read_at(earlier, 2, 2) == 3


@pytest.mark.parametrize(("kind", "database"), _on_databases(table))
def test_rows_without_a_txid_are_read_as_of_every_transaction(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = kind(url, tmp_path)
    assert isinstance(store.state, SqlTable)
    name = store.state.table
    for statement in (
        f"CREATE TABLE {name} (n BIGINT, tx_txid BIGINT)",
        f"CREATE INDEX i{name} ON {name} (tx_txid)",
        f"INSERT INTO {name} (n) VALUES (40)",
    ):
        query(url, statement)
    for txid in (1, 2):
        grants.commit_rows(txid, store.state, [{"n": txid}])
    assert [read_at(store, txid, 2) for txid in (1, 2)] == [41, 43]


@pytest.mark.parametrize(("kind", "database"), _on_databases(transactional, guard))
def test_an_as_of_read_of_a_state_without_earlier_values_names_the_commit_that_must_end_first(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = begun(kind, url, tmp_path, grants)
    store.state.raise_fence(grants(3))
    with pytest.raises(
        StateError,
        match="as of 2 while 3 commits: it keeps no earlier values. Read it as of 3 when that one has ended.",
    ):
        store.state.at(2, 2)


@pytest.mark.parametrize(("kind", "database"), _on_databases(opaque, table))
def test_a_reader_beside_a_writer_reads_only_final_values_or_no_rows(
    kind: Make, url: str, tmp_path: Path, grants: Grants
) -> None:
    store = begun(kind, url, tmp_path, grants)
    final = [2]

    def write() -> None:
        for txid in range(3, 20):
            grant = grants(txid)
            store.state.raise_fence(grant)
            store.state.write(grant, given(store, {"a": 1, f"key {txid}": 1}))
            grants.final(grant, store.state)
            final.append(txid)

    reader = replace(store, state=copy.copy(store.state))  # it opens the store itself
    writer = Thread(target=write)
    writer.start()
    while writer.is_alive():
        newest = final[-1]
        read = read_at(reader, newest, newest)
        # The writer may be further than one transaction by now.
        assert isinstance(read, StateError) or read in (AS_OF_2 + 2 * (newest - 2), None)
    writer.join()
    assert read_at(reader, 19, final[-1]) == AS_OF_2 + 34


def test_an_as_of_read_is_refused_if_the_log_of_the_lake_table_begins_after_the_transaction(
    tmp_path: Path, grants: Grants
) -> None:
    store = begun(lake, "", tmp_path, grants)
    uri = store.state.name.removeprefix("delta.")
    deltalake.DeltaTable(uri).create_checkpoint()
    for version in range(deltalake.DeltaTable(uri).version()):
        Path(uri, "_delta_log", f"{version:020}.json").unlink()
    assert read_at(store, 2, 2) == AS_OF_2
    with pytest.raises(
        StateError,
        match=r"its log begins with version \d+, which is newer than transaction 1. Name a later transaction.",
    ):
        store.state.at(1, 2)


def test_versions_of_an_earlier_ledger_do_not_affect_as_of_reads_of_a_released_lake_table(
    tmp_path: Path, grants: Grants
) -> None:
    store = begun(lake, "", tmp_path, grants)
    grants.commit_rows(9, store.state, given(store, {"a": 10}))
    store.state.release()
    Grants().commit_rows(5, store.state, given(store, {"a": 100}))
    assert [read_at(store, txid, 5) for txid in (3, 5)] == [AS_OF_2 + 10, AS_OF_2 + 110]


def test_an_as_of_read_of_a_restored_lake_table_uses_the_newest_transaction_with_the_txid(
    tmp_path: Path, grants: Grants
) -> None:
    store = lake("", tmp_path)
    grants.commit_rows(1, store.state, given(store, {"a": AS_OF_1}))
    of_1 = deltalake.DeltaTable(store.state.name.removeprefix("delta.")).version()
    for txid in (2, 3):
        grants.commit_rows(txid, store.state, given(store, {"a": 100}))
    deltalake.DeltaTable(store.state.name.removeprefix("delta.")).restore(of_1)
    grants.go_back(2)
    grants.last.clear()
    grants.generation += 1  # a person has accepted what the table holds
    for txid in (2, 3):
        grants.commit_rows(txid, store.state, given(store, {"a": 10}))
    assert [read_at(store, txid, 3) for txid in (1, 2, 3)] == [AS_OF_1, AS_OF_1 + 10, AS_OF_1 + 20]


def test_a_memory_state_is_readable_as_of_a_transaction_until_the_next_one_raises_the_fence(grants: Grants) -> None:
    state = MemoryState(values={"n": Sum()})
    grants.commit(1, state, {"a": 1})
    assert state.at(1, 1) == ""
    check_as_of(state.fence(), 1, 1, state=state.name)
    state.raise_fence(grants(2))
    with pytest.raises(StateError, match="not readable as of 1 while 2 commits"):
        check_as_of(state.fence(), 1, 1, state=state.name)
