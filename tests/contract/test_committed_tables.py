"""A table as the source of another topology: rows by their transactions, counted and read at one moment."""

from __future__ import annotations

import datetime as dt
import subprocess
import sys
import uuid
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import ConfigError, StateDiffers, StateError, TxError
from airflow_tx.base.rows.types import COLUMN_TYPES
from airflow_tx.spark.connect import session
from airflow_tx.state import CommittedTable, DeltaTable, SqlTable, TableCounts
from airflow_tx.state.api import REJECTED_COLUMNS
from airflow_tx.state.column_types import json_text
from airflow_tx.state.sql import rows as sql_rows
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.suites.state_tools import Grants
from tests.contract.committed import KINDS, LAKES, SERVERS, Filled, opened
from tests.servers.postgres import LocalPostgres
from tests.servers.spark_session import jdbc_jars, skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).parents[2]
NOON = dt.datetime(2026, 1, 2, 12, 0, 0, 5)
VALUES: dict[str, list[Any]] = {
    "bigint": [2**63 - 1, -(2**63), 0],
    "double": [0.1, -0.0, 5e-324, 1.7976931348623157e308],
    "numeric": [Decimal("12.50"), Decimal("-99999999999999999999.999999999999999999"), Decimal(0)],
    "text": ["tab\there, line\nand \\N, 'quote' \"double\" %s :x", "", " é 🙂 e\u0301 "],
    "boolean": [True, False],
    "date": [dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31)],
    "timestamp": [NOON, dt.datetime(1, 1, 1), dt.datetime(9999, 12, 31, 23, 59, 59, 999999)],
    "timestamptz": [each.replace(tzinfo=dt.timezone.utc) for each in (NOON, dt.datetime(1500, 2, 3, 4))],
    "bytes": [b"\x00\\x\n", b""],
    "json": [{"b": [1, None], "a": "\\"}, [], {}],
}
"""Values at the edges of each type that a table of a database may have."""
TYPES = {
    "bigint": "BIGINT", "double": "DOUBLE", "text": "STRING", "boolean": "BOOLEAN", "date": "DATE",
    "timestamp": "TIMESTAMP_NTZ", "timestamptz": "TIMESTAMP", "bytes": "BINARY", "json": "STRING",
}  # fmt: skip


@pytest.fixture(params=[*KINDS, pytest.param("s3", marks=pytest.mark.long)])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    return opened(request, request.param, tmp_path)


def rows(*numbers: int) -> list[dict[str, Any]]:
    return [{"id": number, "part": f"p{number % 2}"} for number in numbers]


def ids(found: pa.Table) -> list[int]:
    return sorted(found.column("id").to_pylist())


# --- counts -------------------------------------------------------------------------------------------------------


def test_the_rows_of_all_requested_transactions_are_counted_in_one_call(filled: Filled) -> None:
    filled.commit(1, rows(1, 2, 3))
    filled.commit(2, [])
    filled.commit(3, rows(4))
    counts = filled.table.counts([3, 2, 1, 7, 0, -1])
    assert counts.rows == {1: 3, 2: 0, 3: 1, 7: 0}
    counts.close()


def test_a_missing_table_has_no_rows(filled: Filled) -> None:
    counts = filled.table.counts([1, 2])
    assert counts.rows == {1: 0, 2: 0}
    found = filled.table.arrow(counts).read_all()
    counts.close()
    assert (found.column_names, found.num_rows) == ([], 0)
    assert filled.table.row_types(upstream_txid=True) == {"upstream_txid": pa.int64()}


def test_a_table_returns_the_incarnation_of_the_ledger_that_raised_its_fence(filled: Filled) -> None:
    assert filled.table.incarnation() is None
    filled.commit(1, rows(1))
    assert filled.table.incarnation() == filled.grants.incarnation
    filled.table.release()
    assert filled.table.incarnation() is None


def test_a_hundred_transactions_are_counted_and_read_in_one_call(filled: Filled) -> None:
    if filled.kind == "s3":
        pytest.skip("a commit of it takes a second")
    for txid in range(1, 121):
        filled.commit(txid, rows(*range(txid, txid + txid % 3)))
    wanted = list(range(11, 111))
    counts = filled.table.counts(wanted)
    assert counts.rows == {txid: txid % 3 for txid in wanted}
    found = filled.table.arrow(counts, upstream_txid=True).read_all()
    counts.close()
    assert sorted(found.column("upstream_txid").to_pylist()) == [txid for txid in wanted for _ in range(txid % 3)]


# --- rows ---------------------------------------------------------------------------------------------------------


def test_reading_transactions_returns_only_their_rows_and_no_column_of_the_package(filled: Filled) -> None:
    for txid, numbers in enumerate(((3, 2, 1), (4,), (6, 5)), 1):
        filled.commit(txid, rows(*numbers))
    found = filled.read(3, 1)
    assert sorted(found.column_names) == ["id", "part"]
    assert ids(found) == [1, 2, 3, 5, 6]
    if not filled.is_lake:
        assert found.column("id").to_pylist() == [3, 2, 1, 6, 5]
    assert filled.read().num_rows == filled.read(0, -1, 9).num_rows == 0


def test_the_txid_of_each_row_can_be_read_as_a_column(filled: Filled) -> None:
    filled.commit(1, rows(1, 2))
    filled.commit(2, rows(3))
    found = filled.read(1, 2, upstream_txid=True)
    assert found.schema.field("upstream_txid").type == pa.int64()
    pairs = zip(found.column("upstream_txid").to_pylist(), found.column("id").to_pylist(), strict=True)
    assert sorted(pairs) == [(1, 1), (1, 2), (2, 3)]
    assert found.column("upstream_txid").to_pylist() == [1, 1, 2]


def test_a_user_column_named_upstream_txid_is_refused_only_if_upstream_txid_is_requested(filled: Filled) -> None:
    filled.commit(1, [{"id": 1, "part": "a", "Upstream_Txid": 5}])
    assert filled.read(1).column("Upstream_Txid").to_pylist() == [5]
    with pytest.raises(StateDiffers, match="already has a column Upstream_Txid. Read it without upstream_txid=True"):
        filled.read(1, upstream_txid=True)


def test_the_rows_of_a_restatement_replace_the_rows_of_the_restated_transaction(filled: Filled) -> None:
    filled.commit(1, rows(1, 2))
    filled.commit(2, rows(3))
    filled.commit(3, rows(10, 11, 12), restates=1)
    counts = filled.table.counts([1, 2, 3])
    counts.close()
    assert counts.rows == {1: 0, 2: 1, 3: 3}
    assert ids(filled.read(1, 2, 3)) == [3, 10, 11, 12]


def test_the_rows_of_a_released_topology_are_never_read(filled: Filled) -> None:
    filled.commit(1, rows(1, 2))
    filled.table.release()
    filled.grants = Grants()
    filled.commit(1, rows(3))
    for txids in ([1], [1, 0, -1, -2]):
        counts = filled.table.counts(txids)
        counts.close()
        assert counts.rows == {1: 1}
        assert ids(filled.read(*txids)) == [3]


def test_reading_a_transaction_without_rows_returns_the_column_types_of_the_table(filled: Filled) -> None:
    filled.commit(1, rows(1))
    filled.commit(2, [])
    found = filled.read(2)
    assert found.num_rows == 0
    assert dict(zip(found.schema.names, found.schema.types, strict=True)) == filled.table.row_types()


def test_a_counted_snapshot_can_be_read_after_later_commits_if_the_store_has_snapshots(filled: Filled) -> None:
    filled.commit(1, rows(1, 2))
    counts = filled.table.counts([1])
    is_kept = counts.snapshot is not None
    assert is_kept == (filled.kind == "postgres" or filled.is_lake)
    filled.commit(2, rows(7), restates=1)
    assert filled.table.arrow(counts).read_all().num_rows == (2 if is_kept else 0)
    assert filled.read(1).num_rows == 0
    counts.close()


READ_IN_BATCHES = """
import resource, sys
from airflow_tx.state import DeltaTable, SqlTable

place, name = sys.argv[1:]
table = SqlTable.from_url(place, table=name) if name else DeltaTable(place)
table.arrow(table.counts([3])).read_all()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
rows = [batch.num_rows for batch in table.arrow(table.counts([1, 2]))]
print(sum(rows), max(rows), (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) // 1024)
"""


def test_a_large_batch_is_read_in_bounded_memory(filled: Filled) -> None:
    if filled.kind == "s3":
        pytest.skip("its files are read as those on a disk")
    for txid in (1, 2):
        filled.commit(txid, [{"id": number, "part": "a", "text": f"{number:1000}"} for number in range(80_000)])
    table = filled.table
    place = [table.uri, ""] if isinstance(table, DeltaTable) else [table._url, table.table]  # type: ignore[attr-defined]
    done = subprocess.run(
        [sys.executable, "-c", READ_IN_BATCHES, *place], capture_output=True, text=True, check=True, cwd=ROOT
    )
    rows, largest, megabytes = map(int, done.stdout.split())
    assert rows == 160_000
    assert largest <= 65_536
    # The texts alone are 160 MB: a few batches are held, of 33 MB, or 65 MB of a file.
    assert megabytes < 130


def test_a_table_returns_its_openlineage_dataset_and_its_connections(filled: Filled, tmp_path: Path) -> None:
    found = filled.table.dataset()
    scheme = {"sqlite": "sqlite", "postgres": "postgres", "delta": "file", "partitioned": "file", "s3": "s3"}
    assert found.namespace.partition("://")[0] == scheme.get(filled.kind, "mysql")
    assert filled.table.connections() == {}


def test_a_table_that_uses_an_airflow_connection_reports_the_connection() -> None:
    assert SqlTable("warehouse", table="orders").connections() == {"warehouse": "postgres"}
    lake = DeltaTable("s3://lake/bronze/orders", conn_id="aws_lake")
    assert lake.connections() == {"aws_lake": "aws"}
    assert lake.dataset() == ("s3://lake", "bronze/orders")


# --- types --------------------------------------------------------------------------------------------------------


def columns_of(filled: Filled) -> dict[str, list[Any]]:
    """Give the columns that a table of this kind can have: JSON is a type of databases alone."""
    return {name: values for name, values in VALUES.items() if name != "json" or not filled.is_lake}


def rows_of(columns: dict[str, list[Any]]) -> list[dict[str, Any]]:
    most = max(map(len, columns.values()))
    made: list[dict[str, Any]] = [
        {f"c_{name}": values[number] if number < len(values) else None for name, values in columns.items()}
        for number in range(most)
    ]
    return [{"id": number, "part": "a", **row} for number, row in enumerate([*made, dict.fromkeys(made[0])])]


def told(name: str, value: Any) -> Any:
    """Say what a reader has of a value: of JSON the text."""
    return json_text(value) if name == "c_json" and value is not None else value


def test_each_value_is_read_with_its_type(filled: Filled) -> None:
    given = rows_of(columns_of(filled))
    filled.commit(1, given)
    found = filled.read(1)
    types = {name: COLUMN_TYPES[TYPES[name]].arrow_type() for name in TYPES} | {"numeric": pa.decimal128(38, 18)}
    for name in columns_of(filled):
        assert found.schema.field(f"c_{name}").type == types[name]
    by_id = {row["id"]: row for row in found.to_pylist()}
    for row in given:
        assert by_id[row["id"]] == {name: told(name, value) for name, value in row.items()}


@pytest.mark.parametrize("kind", ["sqlite", *SERVERS[:2], pytest.param("mysql", marks=pytest.mark.long)])
def test_a_number_that_does_not_fit_a_spark_decimal_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str
) -> None:
    filled = opened(request, kind, tmp_path)
    filled.commit(1, [{"id": 1, "n": Decimal(1)}, {"id": 2, "n": Decimal(10) ** 20}])
    with pytest.raises(
        StateError, match="100000000000000000000.* (row whose tx_txid, tx_row is 1, 1|not a value of type decimal)"
    ):
        filled.read(1)


def test_rejected_rows_are_read_with_the_columns_of_rejected_rows(filled: Filled) -> None:
    given = [dict.fromkeys(REJECTED_COLUMNS, "x") | {"part": "a"}]
    filled.commit(1, given)
    assert filled.read(1).to_pylist() == given


# --- tables of one's own ------------------------------------------------------------------------------------------


@pytest.fixture
def run() -> Callable[[str, str], None]:
    def execute(url: str, sql: str) -> None:
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql(sql)
        engine.dispose()

    return execute


@pytest.mark.parametrize("kind", ["sqlite", *SERVERS[:2], pytest.param("mysql", marks=pytest.mark.long)])
def test_a_table_without_row_numbers_returns_only_rows_of_its_transactions(
    request: pytest.FixtureRequest, tmp_path: Path, run: Callable[[str, str], None], kind: str
) -> None:
    url = f"sqlite:///{tmp_path}/own.db" if kind == "sqlite" else request.getfixturevalue(kind).url()
    name = f"t{uuid.uuid4().hex[:8]}"
    run(url, f"CREATE TABLE {name} (tx_txid BIGINT, id BIGINT, born INTEGER DEFAULT 5)")
    run(url, f"CREATE INDEX i{name} ON {name} (tx_txid)")
    run(url, f"INSERT INTO {name} (tx_txid, id) VALUES (NULL, 100), (-1, 101)")
    filled = Filled(kind, lambda: SqlTable.from_url(url, table=name))
    filled.commit(1, [{"id": 1}, {"id": 2}])
    filled.commit(2, [{"id": 3}])
    assert ids(filled.read(2, 1, -1)) == [1, 2, 3]
    assert filled.read(1).column("born").to_pylist() == [5, 5]
    counts = filled.table.counts([1, 2])
    counts.close()
    assert counts.rows == {1: 2, 2: 1}


def test_a_column_that_the_database_fills_itself_is_read(
    postgres: LocalPostgres, run: Callable[[str, str], None]
) -> None:
    name = f"t{uuid.uuid4().hex[:8]}"
    own = "key uuid DEFAULT '00000000-0000-0000-0000-000000000001', n numeric(5,2) DEFAULT 1.5, j jsonb DEFAULT '[1]'"
    own += ", twice bigint GENERATED ALWAYS AS (id * 2) STORED, s smallint DEFAULT 7, v interval DEFAULT '1 day 02:00'"
    run(postgres.url(), f"CREATE TABLE {name} (tx_txid bigint PRIMARY KEY, id bigint, {own})")
    filled = Filled("postgres", lambda: SqlTable.from_url(postgres.url(), table=name))
    filled.commit(1, [{"id": 21}])
    (found,) = filled.read(1).to_pylist()
    assert found == {
        "id": 21, "key": "00000000-0000-0000-0000-000000000001", "n": Decimal("1.50"), "j": "[1]", "twice": 42, "s": 7,
        "v": "1 day 02:00:00",
    }  # fmt: skip
    assert filled.table.row_types()["s"] == pa.int32()
    run(postgres.url(), f"ALTER TABLE {name} ADD COLUMN m money")
    with pytest.raises(StateDiffers, match="column m of table .* is MONEY, and no reader.*change its type to numeric"):
        filled.read(1)


def test_a_sqlite_column_without_an_exact_type_is_refused(tmp_path: Path, run: Callable[[str, str], None]) -> None:
    url = f"sqlite:///{tmp_path}/own.db"
    run(url, "CREATE TABLE own (tx_txid BIGINT PRIMARY KEY, id BIGINT, n NUMERIC)")
    with pytest.raises(
        StateDiffers, match="column n of table own is NUMERIC, and no reader.*Declare it as one of: BIGINT"
    ):
        SqlTable.from_url(url, table="own").row_types()


def test_a_table_without_a_txid_column_is_refused(tmp_path: Path, run: Callable[[str, str], None]) -> None:
    run(f"sqlite:///{tmp_path}/own.db", "CREATE TABLE own (id BIGINT)")
    with pytest.raises(StateDiffers, match="table own has no column tx_txid"):
        SqlTable.from_url(f"sqlite:///{tmp_path}/own.db", table="own").counts([1])


def test_declared_column_types_are_known_before_the_first_row_is_written(
    request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    filled = opened(request, "sqlite", tmp_path)
    table = filled.reopen(types={"id": "bigint", "n": "numeric"})
    assert table.row_types(upstream_txid=True) == {
        "id": pa.int64(), "n": pa.decimal128(38, 18), "upstream_txid": pa.int64()
    }  # fmt: skip


def test_an_unreachable_database_causes_a_one_line_error_without_the_password() -> None:
    table = SqlTable.from_url("postgresql+psycopg2://nobody:sesame@127.0.0.1:1/x", table="orders")
    with pytest.raises(TxError, match="cannot be reached") as refused:
        table.counts([1])
    assert "\n" not in str(refused.value)
    assert "sesame" not in str(refused.value)


# --- tables of a lake ---------------------------------------------------------------------------------------------


@pytest.fixture(params=LAKES)
def lake(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    return opened(request, request.param, tmp_path)


def uri_of(filled: Filled) -> str:
    table = filled.table
    assert isinstance(table, DeltaTable)
    return table.uri


def test_rows_of_several_transactions_in_one_compacted_file_are_counted_and_read_by_txid(lake: Filled) -> None:
    for txid in (1, 2, 3, 4):
        lake.commit(txid, rows(*range(10 * txid, 10 * txid + txid)))
    held = lake.table.counts([1, 2, 3, 4])
    table = deltalake.DeltaTable(uri_of(lake))
    assert table.optimize.compact()["numFilesRemoved"] >= 4
    table.vacuum(retention_hours=0, dry_run=False, enforce_retention_duration=False)
    assert lake.table.counts([2, 4, 5]).rows == {2: 2, 4: 4, 5: 0}
    assert ids(lake.read(2, 4)) == [20, 21, 40, 41, 42, 43]
    # Staged files stay for their own retention.
    assert ids(lake.table.arrow(TableCounts({2: 2}, held.snapshot)).read_all()) == [20, 21]
    lake.commit(5, rows(90), restates=2)
    assert lake.table.counts([1, 2, 3, 4, 5]).rows == {1: 1, 2: 0, 3: 3, 4: 4, 5: 1}
    assert ids(lake.read(1, 2, 3, 4, 5)) == [10, 30, 31, 32, 40, 41, 42, 43, 90]


def test_a_column_that_was_added_later_is_null_in_earlier_rows(lake: Filled) -> None:
    lake.commit(1, rows(1))
    lake.commit(2, [{"id": 2, "part": "a", "note": "new"}])
    assert sorted(lake.read(1, 2).column("note").to_pylist(), key=str) == [None, "new"]


def test_rows_whose_txid_was_removed_are_not_read_and_rows_whose_values_were_changed_are_read(lake: Filled) -> None:
    lake.commit(1, rows(1, 2, 3))
    table = deltalake.DeltaTable(uri_of(lake))
    table.update({"part": "'p9'"}, predicate="id = 2")
    table.update({"tx_txid": "CAST(NULL AS BIGINT)"}, predicate="id = 3")
    assert lake.table.counts([1]).rows == {1: 2}
    assert sorted(map(tuple, (row.values() for row in lake.read(1).select(["id", "part"]).to_pylist()))) == [
        (1, "p1"),
        (2, "p9"),
    ]


def test_row_groups_without_requested_transactions_are_not_read(lake: Filled) -> None:
    for txid in (1, 2, 3):
        lake.commit(txid, [{"id": number, "part": "a"} for number in range(txid * 100, txid * 100 + 50)])
    properties = deltalake.WriterProperties(max_row_group_size=50)
    deltalake.DeltaTable(uri_of(lake)).optimize.compact(writer_properties=properties)
    assert [batch.num_rows for batch in lake.table.arrow(lake.table.counts([2]))] == [50]
    assert ids(lake.read(2)) == list(range(200, 250))


def test_a_table_with_deletion_vectors_is_refused_with_the_statement_that_purges_them(lake: Filled) -> None:
    lake.commit(1, rows(1))
    deltalake.DeltaTable(uri_of(lake)).alter.set_table_properties(
        {"delta.enableDeletionVectors": "true"}, raise_if_not_exists=False
    )
    for ask in (lambda: lake.table.counts([1]), lambda: lake.read(1)):
        with pytest.raises(StateDiffers, match=r"deletion vectors.*REORG TABLE .* APPLY \(PURGE\)") as refused:
            ask()
        assert "\n" not in str(refused.value)


# --- spark --------------------------------------------------------------------------------------------------------


@pytest.fixture(params=[each for each in KINDS if each != "sqlite"])
def in_spark(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    skip_without(jdbc_jars)
    return opened(request, request.param, tmp_path / "with [x] {y} é")


def same(frame: Any, arrow: pa.Table) -> None:
    found = frame.toArrow()
    assert (found.schema.names, found.schema.types) == (arrow.schema.names, arrow.schema.types)
    assert found.sort_by("id").to_pylist() == arrow.sort_by("id").to_pylist()


@pytest.mark.spark
def test_spark_reads_the_same_rows_and_types_as_python(spark: SparkSession, in_spark: Filled) -> None:
    in_spark.commit(1, rows_of(columns_of(in_spark)))
    in_spark.commit(2, [{**row, "id": row["id"] + 100, "part": "a b%2F+é"} for row in rows_of(columns_of(in_spark))])
    in_spark.commit(3, [{**rows_of(columns_of(in_spark))[0], "id": 999, "part": None}])
    counts = in_spark.table.counts([1, 3])
    frame = in_spark.table.frame(spark, counts, upstream_txid=True)
    same(frame, in_spark.read(1, 3, upstream_txid=True))
    assert frame.filter("upstream_txid = 3").count() == 1
    counts.close()
    same(in_spark.frame(spark, [1, 2, 3]), in_spark.read(1, 2, 3))


@pytest.mark.spark
def test_spark_reads_zero_rows_with_the_column_types_of_the_table(spark: SparkSession, in_spark: Filled) -> None:
    assert in_spark.frame(spark, [1]).collect() == []
    in_spark.commit(1, rows(1))
    in_spark.commit(2, [])
    for txids in ([2], [], [-1]):
        same(in_spark.frame(spark, txids, upstream_txid=True), in_spark.read(*txids, upstream_txid=True))


@pytest.mark.spark
def test_spark_reads_the_snapshot_in_which_rows_were_counted(spark: SparkSession, in_spark: Filled) -> None:
    in_spark.commit(1, rows(1, 2))
    counts = in_spark.table.counts([1])
    in_spark.commit(2, rows(7), restates=1)
    frame = in_spark.table.frame(spark, counts)
    assert frame.count() == (0 if counts.snapshot is None else 2)
    counts.close()


@pytest.mark.spark
def test_spark_reads_large_transactions_in_several_partitions_and_small_ones_in_one_partition(
    spark: SparkSession, in_spark: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sql_rows, "ROWS_A_PART", 4)
    sizes = {1: 1, 2: 2, 3: 3, 4: 12, 5: 13, 6: 4}
    for txid, size in sizes.items():
        in_spark.commit(txid, rows(*range(100 * txid, 100 * txid + size)))
    frame = in_spark.frame(spark, list(sizes))
    same(frame, in_spark.read(*sizes))
    if not in_spark.is_lake:
        assert frame.rdd.getNumPartitions() == 9


@pytest.mark.spark
def test_spark_reads_rows_of_several_transactions_from_one_compacted_file(spark: SparkSession, lake: Filled) -> None:
    for txid in (1, 2, 3):
        lake.commit(txid, rows(*range(10 * txid, 10 * txid + 2)))
    lake.commit(4, [{"id": 40, "part": "p0", "note": "new"}])
    deltalake.DeltaTable(uri_of(lake)).optimize.compact()
    same(lake.frame(spark, [1, 3, 4]), lake.read(1, 3, 4))


@pytest.mark.spark
def test_spark_reads_the_values_of_partition_columns_with_their_declared_types(
    spark: SparkSession, tmp_path: Path
) -> None:
    values = {"b": True, "d": dt.date(2026, 1, 2), "n": Decimal("1.50"), "i": -(2**63), "t": "a/b=c%20 é'\""}
    filled = Filled("delta", lambda: DeltaTable(tmp_path / "t", partition_by=list(values)))
    filled.commit(1, [{"id": 1, **values}, {"id": 2, **dict.fromkeys(values)}])
    filled.commit(2, [{"id": 3, **values, "b": False}])
    found = filled.read(1, 2)
    assert found.sort_by("id").to_pylist()[0] == {"id": 1, **values}
    same(filled.frame(spark, [1, 2]), found)


@pytest.mark.long
@pytest.mark.spark
def test_a_spark_connect_server_reads_the_same_rows_as_python(lake: Filled, spark_connect: LocalSparkConnect) -> None:
    lake.commit(1, rows(1, 2, 3))
    lake.commit(2, rows(4))
    with session(f"sc://127.0.0.1:{spark_connect.port}", tag="committed", server="test") as connected:
        same(lake.frame(connected, [1], upstream_txid=True), lake.read(1, upstream_txid=True))
        same(lake.frame(connected, [9]), lake.read(9))


@pytest.mark.spark
def test_spark_refuses_a_value_with_the_same_message_as_python(spark: SparkSession, postgres: LocalPostgres) -> None:
    skip_without(jdbc_jars)
    name = f"t{uuid.uuid4().hex[:8]}"
    filled = Filled("postgres", lambda: SqlTable.from_url(postgres.url(), table=name))
    filled.commit(1, [{"id": 1, "n": Decimal(10) ** 20}])
    with pytest.raises(StateError) as refused:
        filled.read(1)
    with pytest.raises(Exception) as said:  # noqa: PT011 - those of Spark have no common class
        filled.frame(spark, [1]).collect()
    assert str(refused.value) in str(said.value)


@pytest.mark.spark
def test_a_sqlite_table_cannot_be_read_in_spark(
    spark: SparkSession, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    filled = opened(request, "sqlite", tmp_path)
    filled.commit(1, rows(1))
    with pytest.raises(ConfigError, match="under Spark = 'sqlite' cannot be used. Read it in a Python task") as refused:
        filled.frame(spark, [1])
    assert "\n" not in str(refused.value)


def test_a_table_can_be_recreated_from_its_serialized_arguments() -> None:
    for table in (
        SqlTable("warehouse", table="orders", types={"n": "text"}),
        DeltaTable("/lake/x", partition_by=["a"]),
    ):
        assert isinstance(table, CommittedTable)
        name, arguments = table.described()
        again: Any = {"SqlTable": SqlTable, "DeltaTable": DeltaTable}[name.rpartition(".")[2]](**arguments)
        assert again.described() == table.described()
