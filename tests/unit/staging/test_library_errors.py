"""What a library raises while it gives rows: rows that are refused, or rows that another try may read."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.dataset as ds  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import RowsRefused, SourceError, StagingError, StagingUnreachable
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.rejected import rejected_rows
from airflow_tx.outputs.staging.area import StagingArea, TryDir, write_rows
from airflow_tx.transaction.processing.batch import CurrentBatch
from airflow_tx.transaction.processing.task import _staging
from tests.stage import Stage, StageRun
from tests.unit.bench import Numbers

N = pa.schema({"n": pa.int64()})
Give = Callable[[Path], Any]
asked: Any = duckdb.sql


def stream(frames: Iterator[Any]) -> pa.RecordBatchReader:
    """Make a stream of the frames that a library gives one after another."""
    batches = (batch for each in frames for batch in pa.table(each).cast(N).to_batches())
    return pa.RecordBatchReader.from_batches(N, batches)


def removed(folder: Path) -> Path:
    """Name a file that is gone once a library has looked at it."""
    path = folder / "gone.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    return path


def duckdb_of_a_lost_file(folder: Path) -> Any:
    found = duckdb.read_parquet(str(removed(folder)))
    removed(folder).unlink()
    return found


def polars_of_a_lost_file(folder: Path) -> Any:
    found = pl.scan_parquet(removed(folder))
    removed(folder).unlink()
    return stream(found.collect_batches())


def pyarrow_of_a_lost_file(folder: Path) -> Any:
    found = ds.dataset(removed(folder))
    removed(folder).unlink()
    return found.scanner().to_reader()


def pyarrow_of_a_text(folder: Path) -> Any:
    (folder / "a.csv").write_text("n\n1\nx\n")
    return ds.dataset(folder / "a.csv", schema=N, format="csv").scanner().to_reader()


def pandas_of_a_torn_file(folder: Path) -> Any:
    text = 'n,m\n1,1\n2,"2\n'
    return stream(frame[["n"]] for frame in pd.read_csv(io.StringIO(text), chunksize=1))


def duckdb_of_a_damaged_file(folder: Path) -> Any:
    path = folder / "a.csv"
    path.write_text("n\n" + "1\n" * 300_000 + "x\n")
    return duckdb.read_csv(str(path), columns={"n": "INT"})


TEXTS = pl.LazyFrame({"n": ["1", "a"]}).with_columns(pl.col("n").cast(pl.Int64))
REFUSED: dict[str, tuple[Give, str]] = {
    "duckdb": (lambda folder: asked("SELECT CAST(x AS INT) AS n FROM (VALUES ('a')) AS t(x)"), "Could not convert"),
    "duckdb in mid-stream": (
        lambda folder: asked("SELECT CAST(if(n < 900_000, '1', 'a') AS INT) AS n FROM range(1_000_000) AS t(n)"),
        "Conversion Error: Could not convert string 'a'",
    ),
    "duckdb of a file": (duckdb_of_a_damaged_file, "Conversion Error: CSV Error on Line"),
    "polars": (lambda folder: stream(TEXTS.collect_batches()), "conversion from `str` to `i64` failed"),
    "polars, dicts": (lambda folder: (row for row in TEXTS.collect().to_dicts()), "conversion from `str` to `i64`"),
    "pyarrow": (pyarrow_of_a_text, "CSV conversion error to int64"),
    "pandas": (pandas_of_a_torn_file, "EOF inside string starting at row 2"),
}


def broken(folder: Path) -> pa.RecordBatchReader:
    def batches() -> Iterator[Any]:
        yield pa.table({"n": [1]})
        raise ConnectionResetError(104, "Connection reset by peer")

    return stream(batches())


PASSES: dict[str, tuple[Give, str]] = {
    "a stream": (broken, "Connection reset by peer"),
    "duckdb": (duckdb_of_a_lost_file, "IO Error: No files found"),
    "polars": (polars_of_a_lost_file, "No such file"),
    "pyarrow": (pyarrow_of_a_lost_file, "Failed to open local file"),
}


@pytest.fixture
def where(tmp_path: Path) -> TryDir:
    return StagingArea(str(tmp_path / "area")).try_dir("t", TransactionAttempt(1, 1), TaskTry("extract", -1, "1"))


DOORS: dict[str, Callable[[TryDir, Any], Any]] = {
    "stage": lambda where, rows: write_rows(where, "rows", rows),
    "reject": lambda where, rows: rejected_rows(where, rows, "bad"),
}


def made(give: Give, folder: Path) -> Iterator[Any]:
    """Give dicts that a library makes once they are taken."""
    yield from give(folder)


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
@pytest.mark.parametrize(("give", "problem"), REFUSED.values(), ids=REFUSED.keys())
def test_the_error_of_a_library_about_rows_becomes_a_refusal_of_the_rows(
    where: TryDir, tmp_path: Path, give: Give, problem: str, door: Any
) -> None:
    rows = made(give, tmp_path) if give is REFUSED["polars, dicts"][0] else give(tmp_path)
    with pytest.raises(StagingError, match=f"of task extract .*{problem}.*Correct what gives these rows") as refused:
        door(where, rows)
    assert "\n" not in str(refused.value)
    assert type(refused.value) is StagingError


@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
@pytest.mark.parametrize(("give", "problem"), PASSES.values(), ids=PASSES.keys())
def test_the_error_of_a_library_about_an_unreachable_store_may_be_retried(
    where: TryDir, tmp_path: Path, give: Give, problem: str, door: Any
) -> None:
    with pytest.raises(StagingUnreachable, match=f"rows of output .* of task extract .*{problem}.*tried again") as away:
        door(where, give(tmp_path))
    assert "\n" not in str(away.value)


class TheirError(OSError):
    pass


@pytest.mark.parametrize("error", [LookupError, TheirError])
@pytest.mark.parametrize("door", DOORS.values(), ids=DOORS.keys())
def test_the_error_of_a_stream_outside_any_library_is_raised_unchanged(
    where: TryDir, door: Any, error: type[Exception]
) -> None:
    def dicts() -> Iterator[Any]:
        yield {"n": 1}
        raise error("no such page")

    with pytest.raises(error, match="no such page"):
        door(where, dicts())


class Frames(Numbers):
    """A source of one's own, whose rows a library gives."""

    give: Give = REFUSED["duckdb"][0]
    folder = Path()

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        return type(self).give(self.folder)


READERS: dict[str, Callable[[CurrentBatch], Any]] = {
    "read": lambda batch: list(batch.read()),
    "arrow": lambda batch: batch.arrow().read_all(),
}


def batch_of(give: Give, folder: Path) -> CurrentBatch:
    source = Frames()
    type(source).give, type(source).folder = staticmethod(give), folder
    run = StageRun(Stage(source=source, inside=("count",)).spec, "r1")
    run.begin()
    return CurrentBatch(run.start())


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("library", [name for name in REFUSED if name != "polars, dicts"])
def test_a_batch_that_a_library_refuses_is_refused_by_its_source(tmp_path: Path, library: str, read: Any) -> None:
    give, problem = REFUSED[library]
    with pytest.raises(RowsRefused, match=f"Source .*{problem}.*Correct what gives these rows") as refused:
        read(batch_of(give, tmp_path))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
@pytest.mark.parametrize("library", PASSES)
def test_a_batch_that_a_library_cannot_reach_is_not_refused_permanently(
    tmp_path: Path, library: str, read: Any
) -> None:
    give, problem = PASSES[library]
    with pytest.raises(SourceError, match=f"cannot be read now .*{problem}") as away:
        read(batch_of(give, tmp_path))
    assert not isinstance(away.value, RowsRefused)


@pytest.mark.parametrize("read", READERS.values(), ids=READERS.keys())
def test_a_data_frame_with_a_value_that_no_reader_supports_is_refused_by_its_source(tmp_path: Path, read: Any) -> None:
    far = pl.DataFrame({"d": pl.Series([2_932_897]).cast(pl.Date)})
    with pytest.raises(RowsRefused, match="row 0: d = 2932897 days since 1970 is not in the years 1 to 9999"):
        read(batch_of(lambda folder: far, tmp_path))


def test_the_error_names_the_source_of_a_refused_batch_if_a_query_engine_stages_the_batch(tmp_path: Path) -> None:
    def use() -> Any:
        found = batch.arrow()  # noqa: F841 - the query names it
        return batch.stage(asked("SELECT n FROM found"))

    batch = batch_of(lambda folder: pa.RecordBatchReader.from_batches(N, raised()), tmp_path)
    processing = batch._processing
    with processing.as_current(), pytest.raises(RowsRefused, match="Source .*the batch is torn"):
        _staging(use, False)()


def raised() -> Iterator[pa.RecordBatch]:
    yield pa.record_batch({"n": [1]})
    raise pa.ArrowInvalid("the batch is torn")
