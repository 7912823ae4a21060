"""Output that is not what was emitted, in files of the very same names and sizes: refused by whoever reads it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.errors import RowsDiffer
from airflow_tx.protocol.attempt import TaskTry, TransactionAttempt
from airflow_tx.protocol.rows_digest import COUNT, RowsDigest
from airflow_tx.staging import OutputRef, StagingArea, read_output, write_manifest, write_rows
from airflow_tx.staging.row_hash import digest_of_batch

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


def test_what_was_emitted_is_read(area: StagingArea) -> None:
    ref = emitted(area)
    assert list(read_output(area, ref)) == ROWS
    assert OutputRef.from_json(ref.to_json()) == ref


@pytest.mark.parametrize("other", [[A, B, C, B], [D, D, C, B]], ids=["one twice and one not", "changed"])
def test_other_rows_are_refused_once_all_are_read(area: StagingArea, other: list[dict[str, Any]]) -> None:
    ref = emitted(area)
    overwrite(area, ref, other)
    rows = read_output(area, ref)
    with pytest.raises(RowsDiffer, match=r"of output 'counts' of task count.* 4 rows, digest .* emitted\. Nothing was"):
        list(rows)


def test_who_reads_some_columns_compares_the_numbers(area: StagingArea) -> None:
    ref = emitted(area)
    assert [row["n"] for row in read_output(area, ref, columns=["n"])] == [1, 1, None, 2]
    wrong = emitted(area, said=RowsDigest(4, 1, digest_of(ROWS).form))
    assert [row["n"] for row in read_output(area, wrong, columns=["n"])] == [1, 1, None, 2]
    with pytest.raises(RowsDiffer):
        list(read_output(area, wrong))


def test_an_unreliable_output_is_not_compared(area: StagingArea) -> None:
    ref = emitted(area, reliable=False, said=RowsDigest(4, 1, digest_of(ROWS).form))
    assert list(read_output(area, ref)) == ROWS


def test_the_order_of_columns_and_the_cut_of_batches_are_nothing() -> None:
    table = pa.Table.from_pylist(ROWS)
    turned = table.select(["n", "key"])
    whole = digest_of(ROWS)
    assert whole == sum((digest_of_batch(batch) for batch in turned.to_batches(max_chunksize=1)), RowsDigest(0))


def test_rows_with_a_type_that_is_not_covered_are_counted() -> None:
    assert digest_of([{"n": [1, 2]}]) == RowsDigest(1, 0, COUNT)
