"""The rows of a small output, as they lie in its manifest: exactly those of its files, and of whoever wrote them."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from datetime import date, datetime
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import RowsDiffer, StagingError
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import (
    MANIFEST,
    SMALL_ROWS,
    StagingArea,
    TryDir,
    read_output,
    rows_as_json,
    rows_from_json,
    with_content,
    write_manifest,
    write_rows,
)

ROWS = [{"key": f"k{n}", "n": n, "day": date(2013, 1, n + 1), "cost": Decimal("1.50")} for n in range(5)]


@pytest.fixture
def where(tmp_path: Path) -> TryDir:
    area = StagingArea(str(tmp_path))
    return area.try_dir("flights", TransactionAttempt(7, 1), TaskTry("count", -1, "try-1"))


def written(rows: list[dict[str, Any]]) -> str:
    return rows_as_json(pa.Table.from_pylist(rows).to_batches())


values = st.fixed_dictionaries(
    {
        "whole": st.none() | st.integers(-(2**63), 2**63 - 1),
        "half": st.none() | st.floats(allow_nan=False),
        "word": st.none() | st.text(st.characters(codec="utf-8"), max_size=5),
        "yes": st.none() | st.booleans(),
        "day": st.none() | st.dates(),
        "cost": st.none() | st.decimals(-1000, 1000, places=2),
    }
)
TYPES = pa.schema(
    {
        "whole": pa.int64(), "half": pa.float64(), "word": pa.string(),
        "yes": pa.bool_(), "day": pa.date32(), "cost": pa.decimal128(10, 2),
    }
)  # fmt: skip


@given(rows=st.lists(values, max_size=8), first=st.integers(0, 8))
def test_small_outputs_have_the_same_rows_in_the_manifest_and_in_their_file(rows: list[Any], first: int) -> None:
    batches = [pa.RecordBatch.from_pylist(part, TYPES) for part in (rows[:first], rows[first:])]
    read = list(rows_from_json(rows_as_json(batches)))
    expected = [row for batch in batches for row in batch.to_pylist()]
    assert read == expected
    assert repr(read) == repr(expected)  # 1 is no 1.0, and 1.50 no 1.5


def test_nan_and_infinity_are_unchanged_in_rows_that_are_stored_as_json() -> None:
    (row,) = rows_from_json(written([{"n": math.nan, "m": -math.inf}]))
    assert math.isnan(row["n"])
    assert row["m"] == -math.inf


@pytest.mark.parametrize("value", [b"x", datetime(2013, 1, 2), [1], {"a": 1}])
def test_rows_of_a_type_without_a_json_form_are_stored_in_files(value: Any) -> None:
    assert written([{"n": 1, "value": value}]) == ""


def test_many_rows_and_long_rows_are_stored_in_files() -> None:
    assert written([{"n": n} for n in range(SMALL_ROWS)])
    assert written([{"n": n} for n in range(SMALL_ROWS + 1)]) == ""
    assert written([{"text": "x" * 9_000}]) == ""


def test_a_small_output_is_read_from_the_manifest_and_its_files_are_not_opened(
    where: TryDir, monkeypatch: pytest.MonkeyPatch
) -> None:
    output = with_content(where, "counts", write_rows(where, "counts", ROWS))
    ref = write_manifest(where, {"counts": output})["counts"]
    monkeypatch.setattr(type(where.files), "open", None)
    area = StagingArea(where.files.root)
    assert list(read_output(area, ref)) == ROWS
    assert list(read_output(area, ref, columns=["n", "key"])) == [{"n": n, "key": f"k{n}"} for n in range(5)]


def test_a_manifest_with_changed_rows_is_refused(where: TryDir) -> None:
    output = with_content(where, "counts", write_rows(where, "counts", ROWS))
    ref = write_manifest(where, {"counts": output})["counts"]
    manifest = Path(where.files.uri(where.child(MANIFEST)))
    document = json.loads(manifest.read_text())
    document["outputs"]["counts"]["content"] = document["outputs"]["counts"]["content"].replace("k1", "k2")
    manifest.write_text(json.dumps(document))
    with pytest.raises(StagingError, match="is not the one that the reference names"):
        read_output(StagingArea(where.files.root), ref)


def test_rows_in_a_manifest_that_differ_from_the_emitted_count_are_refused(where: TryDir) -> None:
    output = write_rows(where, "counts", ROWS)
    (file,) = output.files
    with pytest.raises(RowsDiffer, match=r"5 rows were read from output 'counts' of task \w+, but 6"):
        with_content(where, "counts", replace(output, files=(replace(file, rows=6),)))


def test_an_output_without_rows_is_read_from_the_manifest_and_its_files_are_not_opened(where: TryDir) -> None:
    output = with_content(where, "counts", write_rows(where, "counts", pa.table({"n": pa.array([], pa.int64())})))
    ref = write_manifest(where, {"counts": output})["counts"]
    assert output.content
    assert list(read_output(StagingArea(where.files.root), ref, columns=["n"])) == []
