"""A Delta table to which transactions append: what is in it after commits, replays, restatements and other writers."""

from __future__ import annotations

import json
import os
import shutil
import time
from collections.abc import Callable, Iterable
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from deltalake import TableFeatures
from deltalake.transaction import AddAction, RemoveAction

from airflow_tx.base.errors import (
    FenceOutranked,
    SkipRefused,
    StateBehind,
    StateDiffers,
    StateError,
)
from airflow_tx.state import DeltaTable
from airflow_tx.state.api import STAGED, Grant
from airflow_tx.state.arrow import RowTally
from airflow_tx.state.lake.delta import FENCES, DeltaStore
from airflow_tx.state.lake.state import FENCES_KEPT, NOTES, SWEPT_EVERY
from airflow_tx.testing.suites.state_tools import Grants, about_to_restate, about_to_skip
from tests.lake import read_back, staged


@pytest.fixture
def table(tmp_path: Path) -> DeltaTable:
    return DeltaTable(tmp_path / "orders")


@pytest.fixture
def grants() -> Grants:
    return Grants()


def numbers(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def commit(table: DeltaTable, grants: Grants, txid: int, rows: pa.Table, attempt: int = 1) -> Grant:
    grant = grants(txid, attempt)
    table.raise_and_write(grant, staged(table, grant.attempt, rows))
    grants.final(grant, table)
    return grant


def held(table: DeltaTable) -> list[tuple[int, int]]:
    """Read the table as anybody does."""
    return sorted((row["tx_txid"], row["n"]) for row in read_back(table.uri))


def live(table: DeltaTable) -> int:
    return len(deltalake.DeltaTable(table.uri).file_uris())


def optimize(table: DeltaTable) -> None:
    deltalake.DeltaTable(table.uri).optimize.compact()
    assert live(table) == 1


# --- commits and replays ------------------------------------------------------------------------------------------


def test_committed_rows_are_in_the_table_with_their_txid(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10, 11))
    commit(table, grants, 2, numbers(20))
    assert held(table) == [(1, 10), (1, 11), (2, 20)]
    assert table.rows_by_txid() == {1: 2, 2: 1}
    assert sorted(row["n"] for row in table.read()) == [10, 11, 20]


def test_staged_rows_are_not_in_the_table(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    staged(table, grants(2).attempt, numbers(20))
    assert held(table) == [(1, 10)]


@pytest.mark.parametrize("other", [(5,), (1, 2, 3), ()], ids=["another row", "more rows", "no row"])
def test_a_replay_replaces_the_rows_of_the_previous_attempt(
    table: DeltaTable, grants: Grants, other: tuple[int, ...]
) -> None:
    commit(table, grants, 1, numbers(10))
    table.raise_and_write(first := grants(2), staged(table, first.attempt, numbers(20, 21)))
    commit(table, grants, 2, numbers(*other), attempt=2)
    assert held(table) == [(1, 10), *((2, n) for n in other)]


def test_a_later_grant_of_the_same_attempt_keeps_the_files_that_are_already_in_the_table(
    table: DeltaTable, grants: Grants
) -> None:
    first = grants(1)
    files = staged(table, first.attempt, numbers(1, 2))
    for grant in (first, grants(1), grants(1)):
        assert table.raise_and_write(grant, files) == 2
    assert held(table) == [(1, 1), (1, 2)]
    assert live(table) == 1


def test_repeating_a_write_creates_no_new_version(table: DeltaTable, grants: Grants) -> None:
    grant = grants(1)
    files = staged(table, grant.attempt, numbers(1, 2))
    assert table.raise_and_write(grant, files) == 2
    version = deltalake.DeltaTable(table.uri).version()
    assert table.write(grant, files) == 2
    assert table.raise_and_write(grant, files) == 2
    assert deltalake.DeltaTable(table.uri).version() == version


@pytest.mark.parametrize("merged", [False, True])
def test_a_second_write_with_other_rows_under_the_same_grant_replaces_the_first_rows(
    table: DeltaTable, grants: Grants, merged: bool
) -> None:
    commit(table, grants, 1, numbers(10))
    grant = grants(2)
    assert table.raise_and_write(grant, staged(table, grant.attempt, numbers(1, 2))) == 2
    for n, write in ((3, table.write), (4, table.raise_and_write)):
        if merged:
            optimize(table)
        assert write(grant, staged(table, grant.attempt, numbers(n))) == 1
        assert held(table) == [(1, 10), (2, n)]
    assert table.write(grant, []) == 0
    assert held(table) == [(1, 10)]
    receipt = grant.receipt(table.name, RowTally([]).written(0))
    assert receipt is not None
    assert table.receipts()[-1].text == receipt.text


def test_a_repeated_write_of_the_same_files_after_an_optimize_creates_no_version(
    table: DeltaTable, grants: Grants
) -> None:
    commit(table, grants, 1, numbers(10))
    grant = grants(2)
    files = staged(table, grant.attempt, numbers(20, 21))
    table.raise_and_write(grant, files)
    optimize(table)
    version = deltalake.DeltaTable(table.uri).version()
    assert table.write(grant, files) == 2
    assert deltalake.DeltaTable(table.uri).version() == version
    assert held(table) == [(1, 10), (2, 20), (2, 21)]


def test_a_batch_without_rows_is_committed(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers())
    commit(table, grants, 2, numbers(20))
    commit(table, grants, 3, numbers())
    assert held(table) == [(2, 20)]


def test_a_skip_removes_the_rows_of_its_transaction(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    table.raise_and_write(first := grants(2), staged(table, first.attempt, numbers(20)))
    assert table.holds(2)
    skip = about_to_skip(grants(2))
    table.raise_fence(skip)
    table.pass_over(skip)
    assert held(table) == [(1, 10)]
    assert not table.holds(2)


def test_a_receipt_is_written_in_the_same_version_as_the_commit(table: DeltaTable, grants: Grants) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(txid))
    replayed = commit(table, grants, 2, numbers(7), attempt=2)
    found = table.receipts()
    assert [(each.txid, each.attempt) for each in found] == [(1, 1), (2, 2)]
    receipt = replayed.receipt(table.name, replayed.written)
    assert receipt is not None
    assert json.loads(found[-1].text)["written"][table.name]["keys"] == 1


# --- versions of a commit -----------------------------------------------------------------------------------------


def log(table: DeltaTable) -> list[Path]:
    return sorted(Path(table.uri, "_delta_log").glob("*.json"))


def made_by(table: DeltaTable, work: Callable[[], object]) -> list[str]:
    """Say what each version that some work makes is: of a raise, of an update, of columns, or of several of these."""
    before = len(log(table))
    work()
    found = list[str]()
    for version in log(table)[before:]:
        actions = [json.loads(line) for line in version.read_text().splitlines()]
        marks = {each["txn"]["appId"] for each in actions if "txn" in each}
        said = {
            "columns": any("metaData" in each for each in actions),
            "raise": {"airflow_tx.raise", "airflow_tx.fence"} <= marks,
            "update": "airflow_tx.applied" in marks,
        }
        found.append(" and ".join(name for name, is_so in said.items() if is_so))
    return found


@pytest.mark.parametrize("values", [(20, 21), ()], ids=["rows", "no row"])
def test_a_combined_raise_and_write_creates_one_version(
    table: DeltaTable, grants: Grants, values: tuple[int, ...]
) -> None:
    commit(table, grants, 1, numbers(10))
    assert made_by(table, lambda: commit(table, grants, 2, numbers(*values))) == ["raise and update"]
    replay = grants(2, 2)
    assert made_by(table, lambda: table.raise_and_write(replay, [])) == ["raise and update"]
    fence = table.fence()
    assert fence is not None
    assert (fence.token, fence.applied) == (replay.token, True)


def test_new_columns_create_a_separate_version_before_the_version_with_the_rows(
    table: DeltaTable, grants: Grants
) -> None:
    two = ["columns", "raise and update"]
    assert made_by(table, lambda: commit(table, grants, 1, numbers(10))) == two
    wider = numbers(20).append_column("why", pa.array(["new"]))
    assert made_by(table, lambda: commit(table, grants, 2, wider)) == two


def test_the_first_rows_define_the_columns_even_if_an_update_without_rows_came_earlier(
    tmp_path: Path, grants: Grants
) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["n"])
    two = ["columns", "raise and update"]
    assert made_by(table, lambda: commit(table, grants, 1, numbers())) == two
    rows = numbers(20).append_column("m", pa.array([1]))
    assert made_by(table, lambda: commit(table, grants, 2, rows)) == two
    assert held(table) == [(2, 20)]


def test_a_separate_raise_and_a_separate_write_create_one_version_each(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    grant = grants(2)
    files = staged(table, grant.attempt, numbers(20))
    assert made_by(table, lambda: table.raise_fence(grant)) == ["raise"]
    assert made_by(table, lambda: table.raise_fence(grant)) == []
    assert made_by(table, lambda: table.raise_and_write(grant, files)) == ["update"]
    assert made_by(table, lambda: table.raise_and_write(grant, files)) == []


def test_raising_the_fence_of_a_missing_table_creates_the_table(table: DeltaTable, grants: Grants) -> None:
    assert made_by(table, lambda: table.raise_fence(grants(1))) == ["columns and raise"]


def test_columns_after_a_separate_raise_create_a_version_before_the_rows(table: DeltaTable, grants: Grants) -> None:
    grant = grants(1)
    table.raise_fence(grant)
    files = staged(table, grant.attempt, numbers(10))
    assert made_by(table, lambda: table.write(grant, files)) == ["columns", "update"]
    assert held(table) == [(1, 10)]


def test_a_table_is_not_created_if_its_first_rows_are_refused(table: DeltaTable, grants: Grants) -> None:
    grant = grants(1)
    files = staged(table, grant.attempt, numbers(10))
    Path(table.uri, files[0]["path"]).unlink()
    with pytest.raises(StateError, match="is not there"):
        table.raise_and_write(grant, files)
    assert log(table) == []


def test_the_next_attempt_uses_a_table_that_a_killed_attempt_created_with_columns_only(
    table: DeltaTable, grants: Grants
) -> None:
    killed = grants(1)
    table.raise_and_write(killed, staged(table, killed.attempt, numbers(10)))
    for version in log(table)[1:]:
        version.unlink()
    shutil.rmtree(Path(table.uri, FENCES))
    commit(table, grants, 1, numbers(11), attempt=2)
    assert held(table) == [(1, 11)]


# --- release ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [False, True])
def test_a_replay_removes_only_rows_of_its_own_ledger_from_a_released_table(
    table: DeltaTable, grants: Grants, merged: bool
) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(10 * txid))
    if merged:
        optimize(table)
    table.release()
    assert (table.fence(), table.rows_by_txid()) == (None, {None: 2})
    others = Grants()
    for txid, attempt in ((1, 1), (2, 1), (2, 2)):
        commit(table, others, txid, numbers(100 * txid + attempt), attempt)
    assert table.rows_by_txid() == {None: 2, 1: 1, 2: 1}
    assert sorted(row["n"] for row in read_back(table.uri)) == [10, 20, 101, 202]


def test_repeating_a_release_creates_no_second_version(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    version = deltalake.DeltaTable(table.uri).version()
    table.release()
    table.release()
    assert deltalake.DeltaTable(table.uri).version() == version + 1


def test_a_table_can_be_released_by_each_later_ledger(table: DeltaTable) -> None:
    for n in (10, 20, 30):
        commit(table, Grants(), 1, numbers(n))
        table.release()
    assert table.rows_by_txid() == {None: 3}


def test_a_table_without_rows_of_the_ledger_can_be_released(table: DeltaTable, grants: Grants) -> None:
    deltalake.write_deltalake(table.uri, numbers(7))
    table.raise_fence(grants(1))
    table.release()
    commit(table, Grants(), 1, numbers(10))
    assert table.rows_by_txid() == {None: 1, 1: 1}


def test_receipts_of_an_earlier_ledger_are_not_returned_after_a_release(table: DeltaTable, grants: Grants) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(txid))
    table.release()
    commit(table, Grants(), 1, numbers(3))
    assert [each.txid for each in table.receipts()] == [1]


def test_a_committer_of_the_earlier_ledger_is_refused_after_a_release(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    old = grants(2)
    table.raise_fence(old)
    files = staged(table, old.attempt, numbers(20))
    table.release()
    with pytest.raises(StateError):
        table.write(old, files)
    commit(table, Grants(), 1, numbers(11))
    with pytest.raises(StateError):
        table.raise_and_write(old, files)
    assert table.rows_by_txid() == {None: 1, 1: 1}


def test_a_commit_during_a_release_is_not_lost(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    stalled, load = table._store.load(), table._store.load
    loads = [lambda: stalled]
    table._store.load = lambda: loads.pop()() if loads else load()  # type: ignore[method-assign]
    deltalake.write_deltalake(table.uri, numbers(7), mode="append", schema_mode="merge")
    table.release()
    assert table.rows_by_txid() == {None: 2}
    assert sorted(row["n"] for row in read_back(table.uri)) == [7, 10]


def test_a_release_keeps_every_value_and_partition(tmp_path: Path, grants: Grants) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["day", "kind"])
    rows = (
        numbers(1, 2, 3)
        .append_column("day", pa.array([date(2026, 1, 1), None, date(2026, 1, 2)]))
        .append_column("kind", pa.array(["a b", "ü%", None]))
        .append_column("deep", pa.array([{"m": [1, None]}, None, {"m": []}]))
        .append_column("at", pa.array([0, 1, None], pa.timestamp("us")))
    )
    commit(table, grants, 1, rows)
    before = [{**row, "tx_txid": None} for row in read_back(table.uri)]
    table.release()
    assert sorted(read_back(table.uri), key=lambda row: row["n"]) == sorted(before, key=lambda row: row["n"])


# --- columns and partitions ---------------------------------------------------------------------------------------


def test_a_column_added_later_is_null_in_earlier_rows(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    commit(table, grants, 2, numbers(20).append_column("why", pa.array(["new"])))
    commit(table, grants, 3, numbers(30))
    rows = {row["n"]: row["why"] for row in read_back(table.uri)}
    assert [rows[n] for n in (10, 20, 30)] == [None, "new", None]


def test_a_new_column_may_contain_timestamps_without_a_time_zone(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    commit(table, grants, 2, numbers(20).append_column("at", pa.array([0], pa.timestamp("us"))))
    assert held(table) == [(1, 10), (2, 20)]


def _refused(table: DeltaTable, grants: Grants, txid: int, rows: pa.Table, match: str) -> None:
    """A write that is refused changes nothing, and leaves the staged files."""
    before = deltalake.DeltaTable(table.uri).version()
    grant = grants(txid)
    files = staged(table, grant.attempt, rows)
    with pytest.raises(StateError, match=match) as refusal:
        table.raise_and_write(grant, files)
    assert "\n" not in str(refusal.value)
    assert deltalake.DeltaTable(table.uri).version() == before
    assert all(Path(table.uri, each["path"]).exists() for each in files)


def test_a_column_whose_type_differs_from_the_table_is_refused(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    cast = r'column n has the type string in the rows, and long in the table. .*df\["n"\].cast\("long"\)'
    _refused(table, grants, 2, pa.table({"n": ["ten"]}), cast)
    _refused(table, grants, 2, pa.table({"N": pa.array([1], pa.int64())}), "differs from column n by case alone")


def test_partition_values_are_read_in_every_spelling_that_writers_use(tmp_path: Path, grants: Grants) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["day", "kind"])
    days = [date(2026, 1, 1), date(2026, 1, 2), None, date(2026, 1, 1)]
    rows = (
        numbers(1, 2, 3, 4)
        .append_column("day", pa.array(days))
        .append_column("kind", pa.array(["a b", "ü%", "c", None]))
    )
    commit(table, grants, 1, rows)
    found = deltalake.DeltaTable(table.uri)
    assert found.metadata().partition_columns == ["day", "kind"]
    read = {row["n"]: row["day"] for row in read_back(table.uri)}
    assert [read[n] for n in (1, 2, 3, 4)] == days
    assert held(table) == [(1, 1), (1, 2), (1, 3), (1, 4)]
    commit(table, grants, 1, rows.slice(0, 2), attempt=2)
    assert held(table) == [(1, 1), (1, 2)]


def test_rows_without_a_partition_column_are_refused(tmp_path: Path, grants: Grants) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["n"])
    commit(table, grants, 1, numbers(10).append_column("m", pa.array([1])))
    plain = DeltaTable(tmp_path / "orders")
    grant = grants(2)
    files = staged(plain, grant.attempt, pa.table({"m": [1]}))
    with pytest.raises(StateError, match="the rows lack partition column n"):
        table.raise_and_write(grant, files)
    with pytest.raises(StateDiffers, match=r"partitioned by \['n'\], but the state declares \[\]"):
        plain.raise_and_write(grant, files)


@pytest.mark.parametrize("harm", ["missing", "longer"])
def test_a_missing_or_changed_staged_file_is_refused(table: DeltaTable, grants: Grants, harm: str) -> None:
    commit(table, grants, 1, numbers(10))
    grant = grants(2)
    (file,) = staged(table, grant.attempt, numbers(20))
    where = Path(table.uri, file["path"])
    if harm == "missing":
        where.unlink()
    else:
        where.write_bytes(where.read_bytes() + b"x")
    with pytest.raises(StateError, match="is not there|bytes instead of"):
        table.raise_and_write(grant, [file])
    assert held(table) == [(1, 10)]


def test_a_file_that_is_listed_twice_is_refused(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    grant = grants(2)
    files = staged(table, grant.attempt, numbers(20))
    with pytest.raises(StateError, match="is listed twice"):
        table.raise_and_write(grant, files * 2)
    assert held(table) == [(1, 10)]


def test_files_of_another_attempt_are_refused(table: DeltaTable, grants: Grants) -> None:
    files = staged(table, grants(1).attempt, numbers(10))
    with pytest.raises(StateError, match=r"does not belong to attempt 1\.2"):
        table.raise_and_write(grants(1, 2), files)
    files = staged(table, grants(2).attempt, numbers(10))
    with pytest.raises(StateError, match="some rows of file"):
        table.raise_and_write(grants(1), files)


def test_rows_that_are_not_a_list_of_staged_files_are_refused(table: DeltaTable, grants: Grants) -> None:
    with pytest.raises(StateError, match=r"is not a file of a table.*append\("):
        table.raise_and_write(grants(1), [{"n": 1}])


# --- other writers ------------------------------------------------------------------------------------------------


def test_a_replay_removes_the_rows_of_the_previous_attempt_from_merged_files(table: DeltaTable, grants: Grants) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(10 * txid, 10 * txid + 1))
    table.raise_and_write(first := grants(3), staged(table, first.attempt, numbers(30)))
    optimize(table)
    commit(table, grants, 3, numbers(31), attempt=2)
    assert held(table) == [(1, 10), (1, 11), (2, 20), (2, 21), (3, 31)]


def _updates(table: deltalake.DeltaTable) -> None:
    table.update({"n": "n + 0"}, predicate="n >= 0")


def _deletes(table: deltalake.DeltaTable) -> None:
    table.delete("n = 11")


def _merges(table: deltalake.DeltaTable) -> None:
    merging = table.merge(numbers(11), "t.n = s.n", source_alias="s", target_alias="t")
    merging.when_matched_delete().execute()


@pytest.mark.parametrize("moves", [_updates, _deletes, _merges])
@pytest.mark.parametrize(
    "value",
    [
        pa.scalar("a"),
        pa.scalar(b"a"),
        pa.scalar(["a", None]),
        pa.scalar({"text": "a", "bytes": b"b"}),
        pa.scalar([("k", ["v"])], pa.map_(pa.string(), pa.list_(pa.string()))),
    ],
    ids=str,
)
def test_rows_with_texts_can_be_removed_from_a_file_that_deltalake_has_rewritten(
    table: DeltaTable, grants: Grants, value: pa.Scalar, moves: Callable[[deltalake.DeltaTable], None]
) -> None:
    def rows(*n: int) -> pa.Table:
        return numbers(*n).append_column("v", pa.array([value.as_py()] * len(n), value.type))

    commit(table, grants, 1, rows(10, 11, 12))
    table.raise_and_write(first := grants(2), staged(table, first.attempt, rows(20)))
    optimize(table)
    moves(deltalake.DeltaTable(table.uri))
    before = [row for row in read_back(table.uri) if row["tx_txid"] == 1]
    commit(table, grants, 2, rows(21), attempt=2)
    after = read_back(table.uri)
    assert [row for row in after if row["tx_txid"] == 1] == before
    assert [row["n"] for row in after if row["tx_txid"] == 2] == [21]


def test_an_optimize_between_raise_and_write_changes_no_row(table: DeltaTable, grants: Grants) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(txid))
    grant = grants(3)
    table.raise_fence(grant)
    files = staged(table, grant.attempt, numbers(3))
    optimize(table)
    table.write(grant, files)
    assert held(table) == [(1, 1), (2, 2), (3, 3)]


def test_a_merge_and_a_vacuum_by_another_program_do_not_affect_commits(table: DeltaTable, grants: Grants) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(txid, txid + 10))
    theirs = deltalake.DeltaTable(table.uri)
    merging = theirs.merge(numbers(1), "t.n = s.n", source_alias="s", target_alias="t")
    merging.when_matched_update({"n": "100"}).execute()
    grant = grants(3)
    files = staged(table, grant.attempt, numbers(3))
    deltalake.DeltaTable(table.uri).vacuum(0, dry_run=False, enforce_retention_duration=False, full=True)
    table.raise_and_write(grant, files)
    assert held(table) == [(1, 11), (1, 100), (2, 2), (2, 12), (3, 3)]
    grants.final(grant, table)
    commit(table, grants, 3, numbers(4), attempt=2)
    assert held(table) == [(1, 11), (1, 100), (2, 2), (2, 12), (3, 4)]


def test_a_decimal_partition_value_keeps_its_spelling_when_a_shared_file_is_rewritten(
    tmp_path: Path, grants: Grants
) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["d"])
    texts = ["0.000000000000000000", "0.000000100000000000", "1.500000000000000000"]
    for txid in (1, 2):
        values = pa.array([Decimal(text) for text in texts], pa.decimal128(38, 18))
        rows = numbers(*range(3)).append_column("d", values)
        commit(table, grants, txid, rows)
    deltalake.DeltaTable(table.uri).optimize.compact()
    table.raise_and_write(grants(2, 2), [])
    log = Path(table.uri, "_delta_log", f"{deltalake.DeltaTable(table.uri).version():020}.json").read_text()
    actions = [json.loads(line) for line in log.splitlines()]
    assert sorted(each["add"]["partitionValues"]["d"] for each in actions if "add" in each) == texts


def test_file_paths_are_escaped_exactly_like_deltalake_escapes_them(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    characters = [*map(chr, range(1, 128)), "\x80é日\U0001f600"]
    names = [f"p{each}.parquet" for each in characters if each != "/"]
    there = deltalake.DeltaTable(table.uri)
    added: list[AddAction | RemoveAction] = [AddAction(name, 1, {}, 1, True, '{"numRecords": 1}') for name in names]
    there.create_write_transaction(added, "append", there.schema())
    store = table._store
    at = store.load()
    assert at is not None
    found = store.live_files(at)
    assert {each.path for each in found} > {*names}
    assert [each.path for each in found if not each.removable] == []


@pytest.mark.parametrize("merged", [False, True])
def test_rows_without_a_txid_stay_in_the_table(table: DeltaTable, grants: Grants, merged: bool) -> None:
    deltalake.write_deltalake(table.uri, numbers(7))
    commit(table, grants, 1, numbers(10))
    if merged:
        optimize(table)
    commit(table, grants, 1, numbers(11), attempt=2)
    assert table.rows_by_txid() == {None: 1, 1: 1}


def test_a_committer_that_read_the_table_before_a_newer_raise_is_refused(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    old = grants(2)
    table.raise_fence(old)
    files = staged(table, old.attempt, numbers(20))
    zombie = DeltaTable(table.uri)
    stalled = zombie._store.load()
    commit(table, grants, 2, numbers(21), attempt=2)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(DeltaStore, "load", lambda _: stalled)
        with pytest.raises(StateError):
            zombie.write(old, files)
    with pytest.raises(FenceOutranked):
        zombie.write(old, files)
    assert held(table) == [(1, 10), (2, 21)]


# --- clean-up, and a long log ----------------------------------------------------------------------------------------


def test_unused_staged_files_of_ended_transactions_are_deleted_after_the_retention(
    tmp_path: Path, grants: Grants
) -> None:
    table = DeltaTable(tmp_path / "orders", retention_days=1)
    unpublished = staged(table, grants(1, 7).attempt, numbers(1))
    commit(table, grants, 1, numbers(10))
    table.raise_and_write(first := grants(2), staged(table, first.attempt, numbers(20)))
    commit(table, grants, 2, numbers(21), attempt=2)
    commit(table, grants, 3, numbers(30))
    still_open = staged(table, grants(4).attempt, numbers(40))
    foreign = Path(table.uri, STAGED, "notes.txt")
    foreign.write_text("not ours")
    before = {*Path(table.uri, STAGED).rglob("*.parquet")}
    assert table.sweep(4) == 0
    _wait_days(table, 2)
    assert table.sweep(4) == 2
    gone = before - {*Path(table.uri, STAGED).rglob("*.parquet")}
    assert Path(table.uri, unpublished[0]["path"]) in gone
    assert {each.parent.name.split(".")[0] for each in gone} == {"1", "2"}
    assert Path(table.uri, still_open[0]["path"]).exists()
    assert foreign.exists()
    assert held(table) == [(1, 10), (2, 21), (3, 30)]


def _wait_days(table: DeltaTable, days: int) -> None:
    """Let the notes of dead files be so many days old."""
    notes = Path(table.uri, NOTES)
    found = json.loads(notes.read_text())
    notes.write_text(json.dumps({path: since - days * 86_400 for path, since in found.items()}))


@pytest.mark.lead
@pytest.mark.worth("two hundred commits of a table, its checkpoints and its clean-up")
def test_a_table_whose_log_was_cleaned_up_keeps_its_fence_and_its_rows(tmp_path: Path, grants: Grants) -> None:
    table = DeltaTable(tmp_path / "orders", retention_days=0)
    dead = staged(table, grants(1, 7).attempt, numbers(1))
    for txid in range(1, 111):
        last = commit(table, grants, txid, numbers(txid))
    zombie = grants(111)
    table.raise_fence(zombie)
    log = Path(table.uri, "_delta_log")
    assert len([*log.glob("*.checkpoint.parquet")]) >= 2, "each commit reads few files of the log"
    assert not Path(table.uri, dead[0]["path"]).exists(), "a commit cleans up by itself"
    assert len([*Path(table.uri, FENCES).iterdir()]) < FENCES_KEPT + SWEPT_EVERY
    _clean_up(table)
    assert len([*log.glob("*.json")]) < 110
    fence = DeltaTable(table.uri).fence()
    assert fence is not None
    assert fence.token == zombie.token
    assert [each.txid for each in table.receipts()] != list(range(1, 111)), "receipts go with the log"
    table.raise_and_write(grants(111, 2), [])
    with pytest.raises(FenceOutranked):
        table.write(zombie, staged(table, zombie.attempt, numbers(111)))
    with pytest.raises(StateError):
        table.raise_and_write(last, [])
    assert held(table) == [(txid, txid) for txid in range(1, 111)]


def _clean_up(table: DeltaTable) -> None:
    """Let deltalake remove what its log retention allows, 40 days later."""
    theirs = deltalake.DeltaTable(table.uri)
    theirs.create_checkpoint()
    for each in Path(table.uri, "_delta_log").iterdir():
        os.utime(each, (0, time.time() - 40 * 86_400))
    theirs.cleanup_metadata()


# --- restatements -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("merged", [False, True])
def test_a_restatement_removes_the_rows_of_the_restated_transaction(
    table: DeltaTable, grants: Grants, merged: bool
) -> None:
    for txid in (1, 2, 3):
        commit(table, grants, txid, numbers(10 * txid))
    if merged:
        optimize(table)
    versions = deltalake.DeltaTable(table.uri).version()
    grant = about_to_restate(grants(4), 2)
    table.raise_and_write(grant, staged(table, grant.attempt, numbers(21, 22)))
    assert held(table) == [(1, 10), (3, 30), (4, 21), (4, 22)]
    assert deltalake.DeltaTable(table.uri).version() == versions + 1
    again = about_to_restate(grants(4, 2), 2)
    table.raise_and_write(again, staged(table, again.attempt, numbers(23)))
    assert held(table) == [(1, 10), (3, 30), (4, 23)]


def test_a_restatement_that_has_written_to_the_table_cannot_be_skipped(table: DeltaTable, grants: Grants) -> None:
    for txid in (1, 2):
        commit(table, grants, txid, numbers(10 * txid))
    grant = about_to_restate(grants(3), 1)
    table.raise_and_write(grant, staged(table, grant.attempt, numbers(11)))
    for later in (grants(3), about_to_restate(grants(3, 2), 1)):
        with pytest.raises(SkipRefused, match="removed the rows.*Replay it until it is committed"):
            table.raise_fence(about_to_skip(grants(3, 2)))
        table.raise_fence(later)
    assert held(table) == [(2, 20), (3, 11)]


def test_a_restatement_that_has_not_written_to_the_table_can_be_skipped(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    table.raise_fence(about_to_restate(grants(2), 1))
    skip = about_to_skip(grants(2))
    table.raise_fence(skip)
    table.pass_over(skip)
    assert held(table) == [(1, 10)]


# --- refusals -----------------------------------------------------------------------------------------------------


def _with_vectors(table: deltalake.DeltaTable) -> None:
    table.alter.add_feature(TableFeatures.DeletionVectors, allow_protocol_versions_increase=True)
    table.alter.set_table_properties({"delta.enableDeletionVectors": "true"})


def _with_a_setting(table: deltalake.DeltaTable) -> None:
    table.alter.set_table_properties({"delta.appendOnly": "true"})


def _with_a_constraint(table: deltalake.DeltaTable) -> None:
    table.alter.add_constraint({"positive": "n > 0"})


def _that_forgets(table: deltalake.DeltaTable) -> None:
    table.alter.set_table_properties({"delta.setTransactionRetentionDuration": "interval 1 day"})


@pytest.mark.parametrize(
    ("change", "match"),
    [
        (_with_vectors, "enableDeletionVectors"),
        (_with_a_setting, "appendOnly"),
        (_with_a_constraint, "constraints|checkConstraints"),
        (_that_forgets, "setTransactionRetentionDuration"),
    ],
)
def test_a_table_with_an_unsupported_setting_or_constraint_is_refused(
    table: DeltaTable, grants: Grants, change: Any, match: str
) -> None:
    commit(table, grants, 1, numbers(10))
    change(deltalake.DeltaTable(table.uri))
    _refused(table, grants, 2, numbers(20), match)


def test_a_not_null_column_is_refused(table: DeltaTable, grants: Grants) -> None:
    field = pa.field("n", pa.int64(), nullable=False)
    deltalake.DeltaTable.create(table.uri, deltalake.Schema.from_arrow(pa.schema([field])))
    _refused(table, grants, 1, numbers(10), "column n as NOT NULL")


def test_a_not_null_field_inside_a_column_is_refused(table: DeltaTable, grants: Grants) -> None:
    inner = pa.struct([pa.field("x", pa.int64(), nullable=False)])
    schema = pa.schema([("n", pa.int64()), ("deep", inner)])
    deltalake.DeltaTable.create(table.uri, deltalake.Schema.from_arrow(schema))
    _refused(table, grants, 1, numbers(10), "NOT NULL within column deep")


def _logged(table: DeltaTable, **action: Any) -> None:
    """Add a commit of one action, as any writer may."""
    log = Path(table.uri, "_delta_log")
    (log / f"{len([*log.glob('*.json')]):020}.json").write_text(json.dumps(action) + "\n")


def _metadata(table: DeltaTable) -> dict[str, Any]:
    lines = Path(table.uri, "_delta_log", f"{0:020}.json").read_text().splitlines()
    found: dict[str, Any] = next(json.loads(line)["metaData"] for line in lines if '"metaData"' in line)
    return found


@pytest.mark.parametrize(
    "declared",
    [
        {"delta.invariants": json.dumps({"expression": {"expression": "n > 5"}})},
        {"delta.generationExpression": "1 + 1"},
        {"delta.identity.start": 1},
        {"CURRENT_DEFAULT": "7", "EXISTS_DEFAULT": "7"},
        {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"},
    ],
    ids=lambda each: next(iter(each)),
)
@pytest.mark.parametrize("depth", ["column", "field"])
def test_a_column_rule_that_no_library_enforces_is_refused(
    table: DeltaTable, grants: Grants, declared: dict[str, Any], depth: str
) -> None:
    commit(table, grants, 1, numbers(10))
    metadata = _metadata(table)
    field = {"name": "n", "type": "long", "nullable": True, "metadata": declared}
    inner = {"type": "struct", "fields": [{**field, "name": "x"}]}
    array = {"type": "array", "elementType": inner, "containsNull": True}
    deep = {"name": "deep", "type": array, "nullable": True, "metadata": {}}
    schema = json.loads(metadata["schemaString"])
    kept = [each for each in schema["fields"] if each["name"] != "n"]
    last = [field] if depth == "column" else [{**field, "metadata": {}}, deep]
    _logged(table, metaData={**metadata, "schemaString": json.dumps({**schema, "fields": [*kept, *last]})})
    name = "n" if depth == "column" else "deep"
    _refused(table, grants, 2, numbers(3), rf"declares {next(iter(declared))} = .* of column {name}, which no reader")


def test_a_constraint_in_the_table_settings_is_refused(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    _logged(table, metaData={**_metadata(table), "configuration": {"delta.constraints.positive": "n > 0"}})
    _refused(table, grants, 2, numbers(3), r"has a constraint .*delta\.constraints\.positive=n > 0.* CREATE TABLE")


@pytest.mark.parametrize(("feature", "said"), [("somethingNew", "somethingNew"), ("catalogOwned-preview", "catalog")])
def test_a_table_feature_that_no_installed_library_reads_is_refused_permanently(
    table: DeltaTable, grants: Grants, feature: str, said: str
) -> None:
    commit(table, grants, 1, numbers(10))
    features = {"readerFeatures": [feature], "writerFeatures": ["appendOnly", "invariants", feature]}
    _logged(table, protocol={"minReaderVersion": 3, "minWriterVersion": 7, **features})
    with pytest.raises(StateDiffers, match=said) as refused:
        table.raise_fence(grants(2))
    assert "\n" not in str(refused.value)


def test_a_damaged_log_is_refused_permanently(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    log = Path(table.uri, "_delta_log")
    (log / f"{len([*log.glob('*.json')]):020}.json").write_text("{no json")
    with pytest.raises(StateDiffers, match=r"deltalake refuses the table .*[Jj]son") as refused:
        table.raise_fence(grants(2))
    assert "\n" not in str(refused.value)


def test_a_table_that_was_dropped_and_recreated_is_refused(table: DeltaTable, grants: Grants) -> None:
    commit(table, grants, 1, numbers(10))
    shutil.rmtree(table.uri)
    with pytest.raises(StateBehind):
        commit(table, grants, 2, numbers(20))
    deltalake.write_deltalake(table.uri, numbers(7))
    with pytest.raises(StateBehind):
        commit(table, grants, 2, numbers(20))


def test_a_read_only_folder_is_refused_and_the_error_names_the_missing_right(grants: Grants) -> None:
    with pytest.raises(StateError, match="Give the committer the right to write|No such file or directory"):
        DeltaTable("/proc/orders").raise_fence(grants(1))


def test_staged_files_are_in_a_folder_that_vacuum_ignores(table: DeltaTable, grants: Grants) -> None:
    grant = grants(1)
    files: Iterable[dict[str, Any]] = staged(table, grant.attempt, numbers(1))
    assert all(each["path"].startswith(f"{STAGED}/1.1.") for each in files)
