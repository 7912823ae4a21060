"""Output that is not what was emitted, in files of the very same names and sizes: refused by whoever reads it."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import RowsDiffer
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.row_digest import COUNT, RowsDigest
from airflow_tx.outputs.staging.area import OutputRef, StagingArea, read_output, write_manifest, write_rows
from airflow_tx.outputs.staging.row_hash import digest_of_batch

Row: TypeAlias = dict[str, Any]
A: Row = {"key": "a", "n": 1}
B: Row = {"key": "b", "n": 2}
C: Row = {"key": "c", "n": None}
D: Row = {"key": "d", "n": 1}
ROWS = [A, A, C, B]


def digest_of(rows: list[dict[str, Any]]) -> RowsDigest:
    return sum((digest_of_batch(batch) for batch in pa.Table.from_pylist(rows).to_batches()), RowsDigest(0))


@pytest.fixture
def area(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path))


def emitted(area: StagingArea, *, reliable: bool = True, said: RowsDigest | None = None) -> OutputRef:
    """An output of `ROWS`, as an application says that it is."""
    where = area.try_dir("flights", TransactionAttempt(3, 2), TaskTry("count", -1, "try-1"))
    output = replace(write_rows(where, "counts", ROWS), row_digest=(said or digest_of(ROWS)).text, reliable=reliable)
    return write_manifest(where, {"counts": output})["counts"]


def overwrite(area: StagingArea, ref: OutputRef, rows: list[dict[str, Any]]) -> None:
    """Put other rows of the same size into its file."""
    where = area.try_dir(ref.topology, TransactionAttempt(ref.txid, ref.attempt), ref.task)
    before = write_rows(where, "counts", ROWS)
    assert write_rows(where, "counts", rows).files == before.files


def test_an_emitted_output_is_unchanged_when_it_is_read(area: StagingArea) -> None:
    ref = emitted(area)
    assert list(read_output(area, ref)) == ROWS
    assert OutputRef.from_json(ref.to_json()) == ref


@pytest.mark.parametrize("other", [[A, B, C, B], [D, D, C, B]], ids=["one twice and one not", "changed"])
def test_changed_rows_of_an_output_are_refused_after_the_last_row(
    area: StagingArea, other: list[dict[str, Any]]
) -> None:
    ref = emitted(area)
    overwrite(area, ref, other)
    rows = read_output(area, ref)
    with pytest.raises(
        RowsDiffer, match=r"4 rows, digest .* from output 'counts' of task count.* emitted\. Nothing was"
    ):
        list(rows)


def test_a_reader_of_some_columns_compares_only_the_row_counts(area: StagingArea) -> None:
    ref = emitted(area)
    assert [row["n"] for row in read_output(area, ref, columns=["n"])] == [1, 1, None, 2]
    wrong = emitted(area, said=RowsDigest(4, 1, digest_of(ROWS).form))
    assert [row["n"] for row in read_output(area, wrong, columns=["n"])] == [1, 1, None, 2]
    with pytest.raises(RowsDiffer):
        list(read_output(area, wrong))


def test_the_digest_of_an_output_that_is_declared_unreliable_is_not_compared(area: StagingArea) -> None:
    ref = emitted(area, reliable=False, said=RowsDigest(4, 1, digest_of(ROWS).form))
    assert list(read_output(area, ref)) == ROWS


def test_a_digest_does_not_depend_on_the_order_of_columns_or_the_division_into_batches() -> None:
    table = pa.Table.from_pylist(ROWS)
    turned = table.select(["n", "key"])
    whole = digest_of(ROWS)
    assert whole == sum((digest_of_batch(batch) for batch in turned.to_batches(max_chunksize=1)), RowsDigest(0))


def test_rows_with_a_type_that_cannot_be_hashed_are_only_counted() -> None:
    assert digest_of([{"n": [1, 2]}]) == RowsDigest(1, 0, COUNT)


def arrow(**columns: Any) -> RowsDigest:
    return digest_of_batch(pa.record_batch(columns))


def test_a_value_that_moves_to_another_column_changes_the_digest() -> None:
    assert digest_of([{"a": 5, "b": None}, {"a": 1, "b": 1}]) != digest_of([{"a": None, "b": 5}, {"a": 1, "b": 1}])


@pytest.mark.parametrize("other", [pa.array([1], pa.int32()), pa.array([1], pa.date32())])
def test_values_of_two_types_have_different_digests(other: Any) -> None:
    true, found = arrow(a=pa.array([True])), arrow(a=other)
    assert true.form == found.form
    assert true != found


def test_a_column_with_only_nulls_has_the_same_digest_for_every_type() -> None:
    assert arrow(a=pa.nulls(2), b=pa.array([1, 2])) == arrow(a=pa.array([None, None], pa.int32()), b=pa.array([1, 2]))


LOADED = """
import json, sys
from airflow_tx.outputs import OutputRef, StagingArea, read_batches

area, ref = StagingArea(sys.argv[1]), OutputRef.from_json(json.loads(sys.argv[2]))
count = sum(batch.num_rows for batch in read_batches(area, ref))
print("FOUND", json.dumps([count, "pandas" in sys.modules]))
"""
KINDS: Row = {"n": 1, "half": 0.5, "word": "a", "yes": True, "day": date(2013, 1, 2), "cost": Decimal("1.50")}


def test_rows_are_read_and_hashed_without_pandas(area: StagingArea) -> None:
    rows = [KINDS, dict.fromkeys(KINDS), {**KINDS, "n": 2}]
    where = area.try_dir("flights", TransactionAttempt(7, 1), TaskTry("count", -1, "try-1"))
    output = replace(write_rows(where, "counts", rows), row_digest=digest_of(rows).text)
    ref = write_manifest(where, {"counts": output})["counts"]
    command = [sys.executable, "-c", LOADED, area.root, json.dumps(ref.to_json())]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout.split("FOUND ")[1]) == [3, False]


def test_a_slice_of_a_table_has_the_digest_of_its_rows() -> None:
    rows = [KINDS, dict.fromkeys(KINDS), {**KINDS, "n": 2, "yes": False}, KINDS]
    (whole,) = pa.Table.from_pylist(rows).to_batches()
    for start in range(len(rows)):
        part = whole.slice(start, 2)
        assert digest_of_batch(part) == digest_of_batch(
            pa.RecordBatch.from_pylist(rows[start : start + 2], whole.schema)
        )
    assert digest_of_batch(whole.slice(0, 0)).rows == 0
