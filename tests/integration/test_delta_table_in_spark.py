"""A Delta table that a session of delta-spark makes, changes, merges and reads between transactions."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from decimal import Decimal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from deltalake.transaction import AddAction, RemoveAction

from airflow_tx.base.errors import StateDiffers, StateError
from airflow_tx.state import DeltaTable
from airflow_tx.testing.suites.state_tools import Grants
from tests.lake import read_back, staged
from tests.servers.jars import delta_jars
from tests.servers.spark_session import skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.long, pytest.mark.spark]
Sql = Callable[[str], list[Any]]


@pytest.fixture
def sql(spark: SparkSession) -> Iterator[Sql]:
    """Run a statement in a session with Delta Lake."""
    skip_without(delta_jars)
    yield lambda statement: spark.sql(statement).collect()
    spark.catalog.clearCache()


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "orders")


@pytest.fixture
def grants() -> Grants:
    return Grants()


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def commit(table: DeltaTable, grants: Grants, txid: int, rows: pa.Table, attempt: int = 1) -> None:
    grant = grants(txid, attempt)
    table.raise_and_write(grant, staged(table, grant.attempt, rows))
    grants.final(grant, table)


def held(sql: Sql, table: DeltaTable) -> list[int]:
    return sorted(row.n for row in sql(f"SELECT n FROM delta.`{table.uri}`"))


# --- the remedies of refusals -------------------------------------------------------------------------------------

_REFUSED = {
    "deletion vectors": "(n BIGINT) USING delta TBLPROPERTIES (delta.enableDeletionVectors = true)",
    "append only": "(n BIGINT) USING delta TBLPROPERTIES (delta.appendOnly = true)",
    "column mapping": "(n BIGINT) USING delta TBLPROPERTIES (delta.columnMapping.mode = 'name')",
    "forgets transactions": (
        "(n BIGINT) USING delta TBLPROPERTIES (delta.setTransactionRetentionDuration = 'interval 1 day')"
    ),
    "NOT NULL": "(n BIGINT NOT NULL) USING delta",
    "generated column": "(n BIGINT, m BIGINT GENERATED ALWAYS AS (n + 1)) USING delta",
    "clusters": "(n BIGINT) USING delta CLUSTER BY (n)",
    "row tracking": "(n BIGINT) USING delta TBLPROPERTIES (delta.enableRowTracking = true)",
    "change data": "(n BIGINT) USING delta TBLPROPERTIES (delta.enableChangeDataFeed = true)",
    "commit times": "(n BIGINT) USING delta TBLPROPERTIES (delta.enableInCommitTimestamps = true)",
    "partitioned": (
        "(n BIGINT, day DATE) USING delta PARTITIONED BY (day) TBLPROPERTIES (delta.enableChangeDataFeed = true)"
    ),
}


@pytest.mark.worth("delta-spark: a statement of a remedy takes seconds, and a table of its own each")
@pytest.mark.parametrize("properties", _REFUSED.values(), ids=list(_REFUSED))
def test_the_statement_in_each_refusal_repairs_the_table_so_that_the_commit_succeeds(
    sql: Sql, tmp_path: Path, grants: Grants, properties: str
) -> None:
    parts = ["day"] if "PARTITIONED" in properties else []
    table = DeltaTable(tmp_path / "orders", partition_by=parts)
    sql(f"CREATE TABLE delta.`{table.uri}` {properties}")
    sql(f"INSERT INTO delta.`{table.uri}` (n) VALUES (7), (8)")
    rows = numbers(9) if not parts else numbers(9).append_column("day", pa.array([None], pa.date32()))
    grant = grants(1)
    files = staged(table, grant.attempt, rows)
    version = deltalake.DeltaTable(table.uri).version()
    with pytest.raises(StateDiffers, match="In Spark: ") as refusal:
        table.raise_and_write(grant, files)
    assert deltalake.DeltaTable(table.uri).version() == version
    assert Path(table.uri, files[0]["path"]).exists()
    remedy = str(refusal.value).partition("In Spark: ")[2]
    for statement in remedy.rstrip(".").split("; then "):
        sql(statement)
    if "CREATE TABLE" in remedy:
        table = DeltaTable(f"{table.uri}_copy", partition_by=parts)
        files = staged(table, grant.attempt, rows)
    table.raise_and_write(grant, files)
    assert held(sql, table) == [7, 8, 9]


def test_a_table_with_deletion_vectors_is_refused_until_they_are_purged(
    sql: Sql, table: DeltaTable, grants: Grants
) -> None:
    commit(table, grants, 1, numbers(*range(10)))
    sql(f"ALTER TABLE delta.`{table.uri}` SET TBLPROPERTIES (delta.enableDeletionVectors = true)")
    sql(f"DELETE FROM delta.`{table.uri}` WHERE n = 3")
    sql(f"ALTER TABLE delta.`{table.uri}` SET TBLPROPERTIES (delta.enableDeletionVectors = false)")
    assert pa.table(deltalake.DeltaTable(table.uri).deletion_vectors().read_all()).num_rows == 1
    grant = grants(2)
    files = staged(table, grant.attempt, numbers(20))
    version = deltalake.DeltaTable(table.uri).version()
    with pytest.raises(StateDiffers, match=r"has deletion vectors. .*REORG TABLE .* APPLY \(PURGE\)"):
        table.raise_and_write(grant, files)
    assert deltalake.DeltaTable(table.uri).version() == version
    sql(f"REORG TABLE delta.`{table.uri}` APPLY (PURGE)")
    table.raise_and_write(grant, files)
    commit(table, grants, 2, numbers(21), attempt=2)
    assert held(sql, table) == [0, 1, 2, 4, 5, 6, 7, 8, 9, 21]


def test_rows_in_a_file_that_cannot_be_rewritten_are_refused_with_a_command_that_works(
    sql: Sql, table: DeltaTable, grants: Grants
) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(txid))
    _merge_in_the_calendar_of_before_1582(table)
    grant = grants(2, 2)
    files = staged(table, grant.attempt, numbers(3))
    told = "rows of transaction 2 are in a file of another writer and cannot be removed: "
    with pytest.raises(StateError, match=told + ".* calendar") as refusal:
        table.raise_and_write(grant, files)
    assert "\n" not in str(refusal.value)
    assert held(sql, table) == [1, 2]
    _run_remedy(sql, refusal.value)
    table.raise_and_write(grant, files)
    assert held(sql, table) == [1, 3]


def _run_remedy(sql: Sql, refusal: Exception) -> None:
    """Run the statements that a refusal tells, all but "clear the task"."""
    for statement in str(refusal).partition("In Spark: ")[2].split("; then ")[:-1]:
        sql(statement)


@pytest.mark.parametrize("kind", ["é b", "日本", "\U0001f600%"])
def test_a_file_with_an_unsupported_path_is_refused_and_no_row_is_duplicated(
    sql: Sql, tmp_path: Path, grants: Grants, kind: str
) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["kind"])
    for txid in (1, 2):
        commit(table, grants, txid, numbers(txid).append_column("kind", pa.array([kind])))
    sql(f"OPTIMIZE delta.`{table.uri}`")
    grant = grants(2, 2)
    files = staged(table, grant.attempt, numbers(3).append_column("kind", pa.array([kind])))
    told = "rows of transaction 2 are in a file of another writer and cannot be removed: "
    with pytest.raises(StateError, match=told + ".* does not support") as refusal:
        table.raise_and_write(grant, files)
    with pytest.raises(StateError, match="cannot rewrite file kind=.*IS NOT NULL"):
        table.release()
    assert held(sql, table) == [1, 2]
    _run_remedy(sql, refusal.value)
    table.raise_and_write(grant, files)
    assert held(sql, table) == [1, 3]
    assert sorted(row["n"] for row in read_back(table.uri)) == [1, 3]
    # Each file lies in the folder of its partition again, which readers such as polars need.
    paths = deltalake.DeltaTable(table.uri).file_uris()
    assert [each for each in paths if "/kind=" not in each] == []


def test_the_statement_in_a_refused_release_repairs_the_table_so_that_it_can_be_released(
    sql: Sql, tmp_path: Path, grants: Grants
) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["kind"])
    for txid in (1, 2):
        commit(table, grants, txid, numbers(txid).append_column("kind", pa.array(["é"])))
    sql(f"OPTIMIZE delta.`{table.uri}`")
    with pytest.raises(StateError) as refusal:
        table.release()
    _run_remedy(sql, refusal.value)
    table.release()
    assert held(sql, table) == [1, 2]
    assert table.rows_by_txid() == {None: 2}


def _merge_in_the_calendar_of_before_1582(table: DeltaTable) -> None:
    """Replace the files of a table by one as an old Spark writes it."""
    there = deltalake.DeltaTable(table.uri)
    rows = numbers(1, 2).append_column("tx_txid", pa.array([1, 2], pa.int64()))
    sink = io.BytesIO()
    pq.write_table(rows.replace_schema_metadata({"org.apache.spark.legacyDateTime": ""}), sink)
    Path(table.uri, "merged.parquet").write_bytes(sink.getvalue())
    old = pa.table(there.get_add_actions(flatten=True)).to_pylist()
    removed = [RemoveAction(each["path"], True, 1, each["size_bytes"], {}) for each in old]
    added = AddAction("merged.parquet", len(sink.getvalue()), {}, 1, True, '{"numRecords": 2}')
    there.create_write_transaction([*removed, added], "append", there.schema())


# --- other writers between transactions ---------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["delta-spark", "deltalake"])
def test_every_row_stays_exact_if_optimize_vacuum_and_merge_run_between_transactions(
    sql: Sql, table: DeltaTable, grants: Grants, by: str
) -> None:
    change = _by_spark(sql, table.uri) if by == "delta-spark" else _by_deltalake(table.uri)
    for txid in (1, 2):
        commit(table, grants, txid, numbers(10 * txid, 10 * txid + 1))
    change("merge", 10, 100)
    table.raise_and_write(first := grants(3), staged(table, first.attempt, numbers(30)))
    change("optimize")
    third = grants(3, 2)
    files = staged(table, third.attempt, numbers(31, 32))
    change("vacuum")
    table.raise_fence(third)
    change("merge", 20, 200)
    change("optimize")
    change("vacuum")
    table.write(third, files)
    grants.final(third, table)
    change("merge", 31, 300)
    commit(table, grants, 4, numbers())
    assert held(sql, table) == [11, 21, 32, 100, 200, 300]
    assert table.rows_by_txid() == {1: 2, 2: 2, 3: 2}


@pytest.mark.parametrize("statement", ["OPTIMIZE {t}", "UPDATE {t} SET n = n", "DELETE FROM {t} WHERE n = 0"])
def test_a_replay_keeps_rows_of_other_transactions_after_spark_has_rewritten_partitions(
    sql: Sql, tmp_path: Path, grants: Grants, statement: str
) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["d", "kind"])
    kinds = pa.array(["a b", None, "x/y"])
    zeros = pa.array([Decimal("0E-18"), Decimal("1E-7"), None], pa.decimal128(38, 18))
    for txid in (1, 2):
        rows = numbers(txid, txid + 10, txid + 20).append_column("d", zeros).append_column("kind", kinds)
        commit(table, grants, txid, rows)
    sql(f"INSERT INTO delta.`{table.uri}` (n, d, kind) VALUES (0, 0, 'a b')")
    sql(f"OPTIMIZE delta.`{table.uri}`")
    before = _others(sql, table)
    sql(statement.format(t=f"delta.`{table.uri}`"))
    commit(table, grants, 2, rows.slice(0, 1), attempt=2)
    assert _others(sql, table) == before
    assert table.rows_by_txid()[2] == 1


def _others(sql: Sql, table: DeltaTable) -> list[tuple[Any, ...]]:
    return sorted(tuple(row) for row in sql(f"SELECT n, d, kind FROM delta.`{table.uri}` WHERE tx_txid = 1"))


def test_a_release_keeps_every_row_of_a_table_that_spark_has_compacted(
    sql: Sql, table: DeltaTable, grants: Grants
) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(10 * txid))
    sql(f"OPTIMIZE delta.`{table.uri}`")
    table.release()
    commit(table, Grants(), 1, numbers(30))
    assert held(sql, table) == [10, 20, 30]
    assert table.rows_by_txid() == {None: 2, 1: 1}


def test_spark_can_run_the_query_that_reads_a_table_as_of_a_transaction(
    sql: Sql, table: DeltaTable, grants: Grants
) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(10 * txid))
    sql(f"OPTIMIZE delta.`{table.uri}`")
    commit(table, grants, 3, numbers(30))
    read = [sorted(row["n"] for row in sql(table.at(txid, 3))) for txid in (1, 2, 3)]
    assert read == [[10], [10, 20], [10, 20, 30]]


def test_rows_removed_by_a_restore_command_are_missing_in_the_row_counts_per_transaction(
    sql: Sql, table: DeltaTable, grants: Grants
) -> None:
    commit(table, grants, 1, numbers(10, 11))
    version = deltalake.DeltaTable(table.uri).version()
    commit(table, grants, 2, numbers(20))
    sql(f"RESTORE TABLE delta.`{table.uri}` TO VERSION AS OF {version}")
    assert table.rows_by_txid() == {1: 2}, "verify --values compares these with the receipts"
    assert [each.txid for each in table.receipts()] == [1, 2]
    commit(table, grants, 3, numbers(30))
    assert held(sql, table) == [10, 11, 30]


def _by_spark(sql: Sql, uri: str) -> Callable[..., object]:
    statements = {
        "optimize": "OPTIMIZE delta.`{uri}`",
        "vacuum": "VACUUM delta.`{uri}`",
        "merge": (
            "MERGE INTO delta.`{uri}` t USING (SELECT {old}L AS n) s ON t.n = s.n "
            "WHEN MATCHED THEN UPDATE SET n = {new}"
        ),
    }

    def change(what: str, old: int = 0, new: int = 0) -> None:
        sql(statements[what].format(uri=uri, old=old, new=new))

    return change


def _by_deltalake(uri: str) -> Callable[..., object]:
    def change(what: str, old: int = 0, new: int = 0) -> None:
        theirs = deltalake.DeltaTable(uri)
        if what == "optimize":
            theirs.optimize.compact()
        elif what == "vacuum":
            theirs.vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
        else:
            merging = theirs.merge(numbers(old), "t.n = s.n", source_alias="s", target_alias="t")
            merging.when_matched_update({"n": str(new)}).execute()

    return change
