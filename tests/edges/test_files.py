"""Every reader of files takes the same rows from the same bytes, or all of them refuse the batch."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import RowsRefused
from airflow_tx.base.rows.arrow import NoTable, readable
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.outputs.staging.row_hash import digest_of_batch
from airflow_tx.sources.files import batch as batch_files
from airflow_tx.sources.files import rows as file_rows
from airflow_tx.sources.files import rows as rows_of_files
from airflow_tx.sources.files.source import FileSource
from airflow_tx.spark.connect import session
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from tests.edges.corpus import BARE, CASES, REFUSED, VALUES, Case, json

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FIRST = TransactionAttempt(1, 1)


def source_of(case: Case, folder: Path) -> FileSource:
    """Write the files of a case, and make the source that reads them."""
    for name, content in case.files.items():
        (folder / name).write_bytes(content)
    return FileSource(
        f"{folder}/*",
        len(case.files),
        format=case.format,
        options=dict(case.options),
        schema=case.schema,
        missing_columns=case.missing_columns,
    )


def digest(table: Any) -> RowsDigest:
    return sum(map(digest_of_batch, readable(table).to_batches()), RowsDigest(0))


def alike(source: FileSource, metadata: Any) -> Any:
    """Read the record batches of rows that Spark has taken."""
    try:
        return source.emit_arrow(FIRST, metadata).read_all()
    except RowsRefused as error:
        raise AssertionError("Spark alone takes it") from error


def read(case: Case, folder: Path, spark: SparkSession | None = None) -> Any:
    """Begin a transaction with all files of a case, and read its rows; of Spark, compare their digest, too."""
    source = source_of(case, folder)
    try:
        batch = source.initialize_transaction(1, None)
        assert batch is not None
        rows: Any = source.emit_batch(FIRST, batch.metadata, spark)
        if spark is None:
            return [dict(row) for row in rows]
        try:
            table = rows.toArrow()
            batches = alike(source, batch.metadata)
            assert digest(table) == digest(batches), (table.schema, batches.schema)
            return table.to_pylist()
        except Exception as error:
            refused = source.explain_error(FIRST, error)
            if refused is None:
                raise
            raise refused from None
    except RowsRefused as error:
        refusal = str(error)
    assert len(refusal.splitlines()) == 1
    return REFUSED


def batches(case: Case, folder: Path) -> Any:
    """Begin a transaction with all files of a case, and read its rows as record batches."""
    source = source_of(case, folder)
    try:
        batch = source.initialize_transaction(1, None)
        assert batch is not None
        reader = source.emit_arrow(FIRST, batch.metadata)
        return [row for each in reader for row in each.to_pylist()]
    except RowsRefused as error:
        refusal = str(error)
    except NoTable as error:
        refusal = str(source.rows_refused(str(error), error.remedy))
    assert len(refusal.splitlines()) == 1
    return REFUSED


def check(case: Case, found: Any) -> None:
    expected = case.rows if case.rows == REFUSED else [dict(row) for row in case.rows]
    assert found == expected
    if found != REFUSED:
        assert repr(list(map(_zoneless, found))) == repr(list(map(_zoneless, expected)))


def _zoneless(row: Any) -> dict[str, Any]:
    """Equal moments may have other zones, and equal rows their columns in another order."""
    return {name: value for name, value in sorted(row.items()) if getattr(value, "tzinfo", None) is None}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_python_reads_each_file_of_edge_values_exactly_or_refuses_the_file(case: Case, tmp_path: Path) -> None:
    check(case, read(case, tmp_path))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_python_reads_each_file_of_edge_values_exactly_in_a_large_batch_or_refuses_the_file(
    case: Case, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_files, "_SMALL", 0)
    check(case, read(case, tmp_path))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_each_file_of_edge_values_is_read_exactly_as_record_batches_or_is_refused(case: Case, tmp_path: Path) -> None:
    check(case, batches(case, tmp_path))


def is_small(case: Case) -> bool:
    """Whether a case is of csv or JSON, and has no blocks of its own."""
    return case.format in ("csv", "json") and sum(map(len, case.files.values())) < 2**16


@pytest.mark.parametrize(("size", "few"), [(1, 1000), (7, 0)], ids=["one thread", "threads"])
@pytest.mark.parametrize("case", [case for case in CASES if is_small(case)], ids=lambda case: case.name)
def test_the_rows_of_a_file_do_not_depend_on_how_the_file_is_split_into_blocks(
    case: Case, few: int, size: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_of_files, "BLOCK", size)
    monkeypatch.setattr(file_rows, "_FEW", few)
    monkeypatch.setattr(pa, "cpu_count", lambda: 3)
    check(case, batches(case, tmp_path))


def for_spark() -> Iterator[Any]:
    """Give the cases for Spark, where each is a job. Of each type of csv, one value taken and one refused are quick."""
    seen: set[tuple[str | None, bool]] = set()
    for case in CASES:
        kind = case.schema, case.rows == REFUSED
        leads = case in VALUES + BARE and kind in seen
        seen.add(kind)
        yield pytest.param(case, marks=[pytest.mark.lead] if leads else [], id=case.name)


@pytest.mark.spark
@pytest.mark.parametrize("case", for_spark())
def test_spark_reads_each_file_of_edge_values_exactly_or_refuses_the_file(
    case: Case, tmp_path: Path, spark: SparkSession
) -> None:
    check(case, read(case, tmp_path, spark))


@pytest.mark.long
@pytest.mark.spark
@pytest.mark.worth("each file through a server of Spark")
def test_a_spark_connect_server_reads_each_file_of_edge_values_exactly_or_refuses_the_file(
    tmp_path: Path, spark_connect: LocalSparkConnect
) -> None:
    with session(f"sc://127.0.0.1:{spark_connect.port}", tag="edges", server="test") as connected:
        for number, case in enumerate(CASES):
            folder = tmp_path / str(number)
            folder.mkdir()
            check(case, read(case, folder, connected))


@pytest.mark.spark
def test_spark_gets_no_rows_of_a_batch_with_a_refused_value(tmp_path: Path, spark: SparkSession) -> None:
    (tmp_path / "1.csv").write_text("n,m\n1,a\n")
    (tmp_path / "2.csv").write_text("n,m\n2,b\nx,c\n")
    source = FileSource(f"{tmp_path}/*.csv", 2, schema="n INT, m STRING")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    with pytest.raises(RowsRefused, match=rf"{tmp_path}/2.csv: line 3: n = 'x' does not fit the schema \(n INT\)"):
        source.emit_batch(FIRST, batch.metadata, spark)


@pytest.mark.spark
@pytest.mark.parametrize("content", ["a,b\n1,x\n2\n", 'a,b\n1,x\n2,"y\n'])
def test_spark_counts_no_row_of_a_csv_file_that_ends_in_the_middle_of_a_line(
    tmp_path: Path, spark: SparkSession, content: str
) -> None:
    (tmp_path / "a.csv").write_text(content)
    source = FileSource(f"{tmp_path}/*.csv")
    batch = source.initialize_transaction(1, None)
    assert batch is not None
    with pytest.raises(RowsRefused, match=r"1 fields, and 2 columns|is not closed"):
        source.emit_batch(FIRST, batch.metadata, spark)


@pytest.mark.spark
def test_spark_refuses_numbers_in_a_text_column_without_a_declared_schema(tmp_path: Path, spark: SparkSession) -> None:
    case = json("numbers and texts", '{"s": "a"}\n{"s": [{"x": 1}]}\n{"s": 1}\n', REFUSED)
    check(case, read(case, tmp_path, spark))
