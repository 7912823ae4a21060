"""Arguments of the sources of SQL tables, places and ranges as JSON, and what needs no server: SQLite."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, RowsRefused, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.sql.database import Database, TableErrors
from airflow_tx.sources.sql.source import PartitionedSqlSource, SqlSource
from airflow_tx.sources.sql.table import CHECKED_ROWS, KeyRange, Rows, TablePosition
from airflow_tx.testing.airflow import connection
from airflow_tx.transaction.processing.task import problem_of

ATTEMPT = TransactionAttempt(1, 1)


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        ({"conn_id": ""}, "conn_id of SqlSource = '' cannot be used"),
        ({"table": " "}, "table of SqlSource = ' ' cannot be used"),
        ({"order_by": []}, "order_by of SqlSource = [] cannot be used"),
        ({"order_by": ["a", "b", "c"]}, "order_by of SqlSource"),
        ({"order_by": ["id", "id"]}, "order_by of SqlSource"),
        ({"columns": "id"}, "columns of SqlSource = 'id' cannot be used"),
        ({"columns": []}, "columns of SqlSource"),
        ({"settle": -1}, "settle of SqlSource = -1 cannot be used. Give seconds, 0 or more."),
        ({"patience": float("inf")}, "patience of SqlSource = inf cannot be used"),
        ({"rows_per_read": 0}, "rows_per_read of SqlSource = 0 cannot be used"),
        ({"max_rows_per_batch": 0}, "max_rows_per_batch of SqlSource = 0 cannot be used"),
        ({"kind": "both"}, "kind of SqlSource = 'both' cannot be used"),
    ],
)
def test_the_error_for_an_invalid_argument_of_a_sql_source_names_it(arguments: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError) as error:
        SqlSource(**{"conn_id": "shop", "table": "orders", **arguments})
    assert told in str(error.value)


@pytest.mark.parametrize("names", [[], ["a", "a"], "", [1]])
def test_a_partitioned_source_refuses_missing_or_duplicate_names(names: Any) -> None:
    with pytest.raises(ConfigError, match="conn_ids of PartitionedSqlSource"):
        PartitionedSqlSource(names, "orders")
    with pytest.raises(ConfigError, match="tables of PartitionedSqlSource"):
        PartitionedSqlSource("shop", names)


def test_a_sql_source_names_its_connections_and_names_each_partition_by_connection_and_table() -> None:
    assert SqlSource("shop", "orders").connections() == {"shop": "postgres"}
    source = PartitionedSqlSource(["a", "b"], ["x", "s.y"])
    assert source.connections() == {"a": "postgres", "b": "postgres"}
    assert source.partitions() == ["a.x", "a.s.y", "b.x", "b.s.y"]


def test_importing_a_sql_source_does_not_import_a_database_library() -> None:
    check = "import sys, airflow_tx; airflow_tx.SqlSource, airflow_tx.PartitionedSqlSource; "
    check += "sys.exit('sqlalchemy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", check]).returncode == 0


KEYS: list[tuple[Any, ...]] = [
    (2**63 - 1,),
    ("01J5Z", ),
    (datetime(2026, 1, 1, 12, 30, 0, 1), "a'b"),
    (datetime(2026, 1, 1, tzinfo=timezone.utc), 7),
]  # fmt: skip


@pytest.mark.parametrize("key", KEYS, ids=str)
def test_positions_and_rows_are_unchanged_after_they_are_stored_as_json(key: tuple[Any, ...]) -> None:
    position = TablePosition(key, None, 3, 1)
    assert TablePosition.from_json(json.loads(json.dumps(position.to_json())), len(key)) == position
    rows = Rows(None, (key, key), (2, 1))
    assert Rows.from_json(json.loads(json.dumps(rows.to_json())), len(key)) == rows
    assert (rows.count, rows.whole) == (3, KeyRange(None, key))
    assert rows.ranges == [KeyRange(None, key), KeyRange(key, key)]


def test_a_time_is_stored_in_utc_in_every_time_zone_of_the_session() -> None:
    at = datetime(2026, 1, 1, 1, tzinfo=timezone(timedelta(hours=1)))
    assert TablePosition((at, 1)).to_json()["last"] == [{"at": "2026-01-01T00:00:00.000000+00:00"}, 1]


def test_the_rows_that_are_counted_again_include_at_least_the_last_batch_and_only_few_others() -> None:
    first = TablePosition().after((10,), 10)
    assert first == TablePosition((10,), None, 10)
    assert first.after((20,), 5) == TablePosition((20,), None, 15)
    assert first.after((30,), CHECKED_ROWS) == TablePosition((30,), (10,), CHECKED_ROWS)


class Books:
    """An SQLite database that is the connection `books`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        monkeypatch.setenv("AIRFLOW_CONN_BOOKS", connection("sqlite", host=str(path)))

    def run(self, script: str) -> None:
        with sqlite3.connect(self.path) as opened:
            opened.executescript(script)


@pytest.fixture
def books(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Books:
    return Books(tmp_path / "books.db", monkeypatch)


def rows(source: SqlSource, position: Any = None) -> list[Any]:
    batch = source.initialize_transaction(1, position)
    found: Any = [] if batch is None else source.emit_batch(ATTEMPT, batch.metadata)
    return list(found)


def test_a_missing_sqlite_database_is_not_created(books: Books) -> None:
    with pytest.raises(SourceError, match="the database of connection books cannot be reached: unable to open"):
        rows(SqlSource("books", "sold"))
    assert not books.path.exists()


def test_the_error_for_a_missing_connection_names_it() -> None:
    with pytest.raises(ConfigError, match=r"SqlSource\(conn_id\) = 'nobody' cannot be used"):
        rows(SqlSource("nobody", "sold"))


@pytest.mark.parametrize("mode", ["DELETE", "WAL"])
def test_times_in_sqlite_strings_are_ordered_and_rows_in_the_future_are_not_taken_yet(books: Books, mode: str) -> None:
    books.run(
        f"""PRAGMA journal_mode = {mode};
        CREATE TABLE sold (id INTEGER PRIMARY KEY, at TIMESTAMP NOT NULL, title TEXT);
        INSERT INTO sold VALUES (2, '2026-01-01 10:00:00', 'b'), (1, '2026-01-01T10:00:01Z', 'a');
        INSERT INTO sold VALUES (3, datetime('now', '+1 hour'), 'c');"""
    )
    source = SqlSource("books", "sold", order_by=["at", "id"], columns=["title"])
    assert rows(source) == [{"title": "b"}, {"title": "a"}]


@pytest.mark.parametrize(("kind", "told"), [("", "the last id is 1 now"), ("AUTOINCREMENT", "")])
def test_ids_that_sqlite_assigns_again_stop_the_source(books: Books, kind: str, told: str) -> None:
    books.run(f"CREATE TABLE sold (id INTEGER PRIMARY KEY {kind}, n INT); INSERT INTO sold (n) VALUES (1), (2)")
    source = SqlSource("books", "sold")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    books.run("DELETE FROM sold WHERE id = 2")
    if told:
        with pytest.raises(SourceError, match=told):
            rows(source, batch.position)
        return
    books.run("INSERT INTO sold (n) VALUES (3)")
    assert rows(source, batch.position) == [{"id": 3, "n": 3}]


SOLD = "CREATE TABLE sold (id INTEGER PRIMARY KEY AUTOINCREMENT, title TEXT, state TEXT DEFAULT 'new');"


def sold(books: Books) -> tuple[SqlSource, Any]:
    """A source that has taken three rows, and where it stands."""
    books.run(SOLD + "INSERT INTO sold (title) VALUES ('a'), ('b'), ('c')")
    source = SqlSource("books", "sold")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    return source, json.loads(json.dumps(batch.position))


def test_a_recreated_table_that_is_larger_than_the_old_one_stops_the_source(books: Books) -> None:
    source, position = sold(books)
    books.run("DELETE FROM sold; DELETE FROM sqlite_sequence")
    books.run("INSERT INTO sold (title) VALUES ('d'), ('e'), ('f'), ('g'), ('h')")
    told = "table sold begins again: rows up to 3 were taken, and other rows have the last of these ids now"
    with pytest.raises(SourceError, match=told):
        rows(source, position)
    (loss,) = source.losses(position)
    assert [row["title"] for row in rows(source, loss.resume_at)] == ["d", "e", "f", "g", "h"]


@pytest.mark.parametrize(
    "change",
    [
        "UPDATE sold SET title = 'x', state = 'sold' WHERE id = 3",
        "UPDATE sold SET state = 'sold'",
        "UPDATE sold SET title = 'x', state = 'sold' WHERE id > 1; DELETE FROM sold WHERE id < 3",
        "ALTER TABLE sold ADD price INT; UPDATE sold SET price = id",
        "DELETE FROM sold",
    ],
)
def test_changed_or_deleted_rows_that_were_taken_do_not_count_as_a_recreated_table(books: Books, change: str) -> None:
    source, position = sold(books)
    books.run(f"{change}; INSERT INTO sold (title) VALUES ('d')")
    assert source.losses(position) == []
    assert [row["id"] for row in rows(source, position)] == [4]


def test_a_replay_with_changed_rows_omits_deleted_rows_and_refuses_inserted_rows(books: Books) -> None:
    books.run("CREATE TABLE sold (id INTEGER PRIMARY KEY, title TEXT); INSERT INTO sold VALUES (1, 'a'), (3, 'b')")
    source = SqlSource("books", "sold", rows_per_read=1)
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    books.run("DELETE FROM sold WHERE id = 1; UPDATE sold SET title = 'c'")
    with pytest.raises(SourceError, match="Or process the remaining rows: airflow tx replay TOPOLOGY 1 --changed-"):
        list(source.emit_batch(ATTEMPT, batch.metadata))  # type: ignore[arg-type]
    again = source.decide_again(ATTEMPT, batch.metadata)
    assert list(source.emit_batch(ATTEMPT, again)) == [{"id": 3, "title": "c"}]  # type: ignore[arg-type]
    assert source.losses(batch.position) == []
    books.run("INSERT INTO sold VALUES (1, 'a'), (2, 'x')")
    with pytest.raises(
        SourceError, match="had 2 rows up to 3, now 3. Change the ids of the inserted rows to be the last ones"
    ):
        source.decide_again(ATTEMPT, batch.metadata)


def test_a_position_without_a_mark_is_accepted(books: Books) -> None:
    source, position = sold(books)
    del position["mark"]
    books.run("INSERT INTO sold (title) VALUES ('d')")
    assert [row["id"] for row in rows(source, position)] == [4]


def test_the_error_for_an_id_that_cannot_be_ordered_shows_the_id(books: Books) -> None:
    books.run("CREATE TABLE sold (id BIGINT UNIQUE NOT NULL); INSERT INTO sold VALUES (1.5)")
    told = r"table sold has a row whose id is '1\.5', of type float: rows cannot be ordered by it"
    with pytest.raises(SourceError, match=told):
        rows(SqlSource("books", "sold"))


def test_the_error_for_a_text_in_a_column_of_integers_shows_the_text(books: Books) -> None:
    books.run("CREATE TABLE sold (id BIGINT UNIQUE NOT NULL); INSERT INTO sold VALUES (1), ('x1')")
    with pytest.raises(SourceError, match="table sold has a row whose id is 'x1', of type str: rows cannot be ordered"):
        rows(SqlSource("books", "sold"))


def test_a_string_that_is_not_valid_utf8_is_refused_only_if_its_column_is_read(books: Books) -> None:
    books.run("CREATE TABLE sold (id INTEGER PRIMARY KEY, title TEXT, n INT)")
    books.run("INSERT INTO sold VALUES (1, 'é', 1), (2, CAST(x'e9' AS TEXT), 'many')")
    told = r"column title of table sold is \S+ in the row whose id is 2: .* read other columns: columns=\['id', 'n'\]"
    with pytest.raises(SourceError, match=told) as refused:
        rows(SqlSource("books", "sold"))
    str(refused.value).encode()
    assert rows(SqlSource("books", "sold", columns=["id", "n"])) == [{"id": 1, "n": 1}, {"id": 2, "n": "many"}]


def test_a_refused_string_of_two_lines_is_not_stored_in_the_ledger(books: Books) -> None:
    books.run("CREATE TABLE sold (id INTEGER PRIMARY KEY, title TEXT)")
    books.run("INSERT INTO sold VALUES (1, CAST(x'7365637265740ae9' AS TEXT))")
    with pytest.raises(RowsRefused, match="secret") as refused:
        rows(SqlSource("books", "sold"))
    told = "column title of table sold has an unusable value, which is in the log of the task"
    assert problem_of(refused.value) == f"Source {refused.value.source} refused: {told}."


def test_a_reader_sets_keepalives_and_timeouts_to_detect_an_unreachable_server(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever waits for its answer would otherwise wait for hours, and nothing would be begun."""
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", "postgresql://reader@shop/orders?keepalives_idle=3")
    database = Database("shop", TableErrors("SqlSource", "shop"), what="SqlSource")
    options = database._engine.url.query
    assert options["keepalives_idle"] == "3"
    assert (options["keepalives_interval"], options["keepalives_count"]) == ("5", "4")
    assert (options["tcp_user_timeout"], options["connect_timeout"]) == ("30000", "10")
