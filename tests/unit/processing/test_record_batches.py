"""The rows of a batch as record batches: those of `read()`, with declared types, counted as an engine takes them."""

from __future__ import annotations

import datetime as dt
import json
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from decimal import Decimal
from itertools import islice
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx import FileSource, PartitionedFileSource, PartitionedSqlSource, SqlSource
from airflow_tx.base.errors import RowsDiffer, RowsRefused, SourceError
from airflow_tx.base.rows import arrow
from airflow_tx.ledger.records import TransactionRecord, decode
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.ledger.views.view import transaction_details
from airflow_tx.outputs.staging.area import batches_in
from airflow_tx.sources.files import rows as rows_of_files
from airflow_tx.sources.memory import MemorySource
from airflow_tx.sources.trial import TrialSource
from airflow_tx.state import MemoryState, Sum
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.processing.batch import CurrentBatch
from airflow_tx.transaction.processing.task import _staging
from tests.stage import Stage, StageRun, update
from tests.unit.bench import CountingStore, Lending, Numbers

TASKS = ("count", "audit")
Use = Callable[[CurrentBatch], Any]
asked: Any = duckdb.sql


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))


@pytest.fixture
def small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arrow, "AT_ONCE", 2)
    monkeypatch.setattr(rows_of_files, "BLOCK", 6)


class Run(StageRun):
    """A run of two tasks that read the batch, and its committer."""

    def __init__(self, store: CountingStore, source: Any) -> None:
        stage = Stage(store, source, max_pending=4, tasks=TASKS, inside=TASKS)
        super().__init__(stage.spec, "r1")
        self.state = MemoryState("totals", keys=["word"], values={"count": Sum()})
        self.begin()

    def work(self, use: Use, task: str = "count", *, reliable: bool = True) -> Any:
        """Let a task use the batch; what it made of it."""
        processing = self.start(task)
        with processing.as_current():
            found = _staging(use, False)(CurrentBatch(processing, reliable=reliable))
        self.end(processing, [{"word": "all", "count": 1}])
        return found

    def commit(self) -> None:
        assert commit_in_turn(self.commit_of([update(self.state)]), self.spec.memory, patience=0) is None

    @property
    def history(self) -> TransactionRecord:
        node = self.spec.memory.get(self.spec.paths.history(1))
        return decode(TransactionRecord, "", node.data)

    @property
    def unproven(self) -> tuple[str, ...]:
        return transaction_details(self.spec.memory, self.spec.paths, 1).transaction.unproven


def whole(batch: CurrentBatch) -> pa.Table:
    return batch.arrow().read_all()


def rows(batch: CurrentBatch) -> list[Any]:
    return [dict(row) for row in batch.read()]


def batch_of(store: CountingStore, source: Any) -> CurrentBatch:
    return CurrentBatch(Run(store, source).start("count"))


# --- types --------------------------------------------------------------------------------------------------------


def test_csv_columns_have_the_declared_types_and_are_strings_without_a_schema(
    store: CountingStore, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("n,day,cost\n1,2013-01-31,1.50\n,,\n")
    found = whole(batch_of(store, FileSource(f"{tmp_path}/*.csv", schema="n INT, day DATE, cost DECIMAL(10,2)")))
    assert found.schema == pa.schema({"n": pa.int32(), "day": pa.date32(), "cost": pa.decimal128(10, 2)})
    assert found.to_pylist() == [
        {"n": 1, "day": dt.date(2013, 1, 31), "cost": Decimal("1.50")}, dict.fromkeys(("n", "day", "cost")),
    ]  # fmt: skip
    found = whole(batch_of(CountingStore(), FileSource(f"{tmp_path}/*.csv")))
    assert set(found.schema.types) == {pa.string()}
    assert found.to_pylist()[0] == {"n": "1", "day": "2013-01-31", "cost": "1.50"}


def test_json_columns_have_the_declared_types_or_types_that_fit_all_values(
    store: CountingStore, tmp_path: Path
) -> None:
    lines = [{"n": 1, "tags": ["a"], "by": {"x": 1}}, {"n": 2.5, "later": True}]
    (tmp_path / "a.json").write_text("\n".join(map(json.dumps, lines)))
    schema = "n DOUBLE, tags ARRAY<STRING>, by MAP<STRING, INT>"
    found = whole(batch_of(store, FileSource(f"{tmp_path}/*.json", format="json", schema=schema)))
    assert list(map(str, found.schema.types)) == ["double", "list<item: string>", "map<string, int32>"]
    found = whole(batch_of(CountingStore(), FileSource(f"{tmp_path}/*.json", format="json")))
    assert list(map(str, found.schema.types)) == ["double", "list<item: string>", "struct<x: int64>", "bool"]
    assert found.to_pylist()[1] == {"n": 2.5, "tags": None, "by": None, "later": True}


@pytest.mark.usefixtures("small_pages")
def test_a_column_whose_values_fit_no_single_type_is_refused_no_matter_which_row_does_not_fit(
    store: CountingStore, tmp_path: Path
) -> None:
    (tmp_path / "a.json").write_text('{"n": 1}\n{"n": 2}\n{"n": 3}\n{"n": "x"}\n')
    with pytest.raises(
        RowsRefused, match=r"row 3: n = 'x' does not have the type of the rows above, int64.*Declare"
    ) as refused:
        batch_of(store, FileSource(f"{tmp_path}/*.json", format="json")).arrow()
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("small_pages")
def test_the_error_for_a_value_that_does_not_fit_its_declared_type_names_the_row(store: CountingStore) -> None:
    source = MemorySource({"0": [{"n": 1}, {"n": 2}, {"n": 3}, {"n": "x"}]}, per_batch=9, schema="n INT")
    with pytest.raises(RowsRefused, match=r"row 3: n = 'x' is not a value of type int32"):
        whole(batch_of(store, source))


def test_a_column_that_is_not_declared_is_refused(store: CountingStore) -> None:
    source = MemorySource({"0": [{"n": 1, "m": 2}]}, schema="n INT")
    with pytest.raises(RowsRefused, match="column m is not one of n"):
        whole(batch_of(store, source))


LIBRARIES = {
    "code": pa.array(["x", None]).dictionary_encode(),
    "id": pa.array([2**64 - 1, None], pa.uint64()),
    "text": pa.array(["a", None], pa.large_string()),
}


def test_parquet_columns_of_different_libraries_are_read_as_the_same_arrow_types(
    store: CountingStore, tmp_path: Path
) -> None:
    pq.write_table(pa.table(LIBRARIES), tmp_path / "a.parquet")
    batch = batch_of(store, FileSource(f"{tmp_path}/*.parquet", format="parquet"))
    found = whole(batch)
    assert list(map(str, found.schema.types)) == ["string", "decimal128(20, 0)", "string"]
    assert found.to_pylist() == rows(batch)


WHOLE_OR_NOT: dict[str, tuple[Any, str]] = {
    "a list": (pa.array([[2**64 - 1]], pa.list_(pa.uint64())), "list<element: decimal128(20, 0)>"),
    "a struct": (pa.array([{"x": 2**64 - 1}], pa.struct({"x": pa.uint64()})), "struct<x: decimal128(20, 0)>"),
    "a map": (
        pa.array([[("a", 2**64 - 1)]], pa.map_(pa.string(), pa.uint64())), "map<string, decimal128(20, 0)>"
    ),
    "a date": (pa.array([[2_932_897]], pa.list_(pa.int32())).cast(pa.list_(pa.date32())), ""),
}  # fmt: skip


@pytest.mark.parametrize(("column", "kind"), WHOLE_OR_NOT.values(), ids=WHOLE_OR_NOT.keys())
def test_a_parquet_value_is_the_same_in_dicts_and_record_batches_or_refused_in_both(
    store: CountingStore, tmp_path: Path, column: Any, kind: str
) -> None:
    pq.write_table(pa.table({"n": column}), tmp_path / "a.parquet")
    batch = batch_of(store, FileSource(f"{tmp_path}/*.parquet", format="parquet"))
    if kind:
        found = whole(batch)
        assert str(found.schema.field("n").type) == kind
        assert found.to_pylist(maps_as_pydicts="strict") == rows(batch)
        return
    for read in (rows, whole):
        with pytest.raises(RowsRefused, match="a.parquet: row 0: n = "):
            read(batch)


def test_partition_columns_of_folders_are_columns_of_the_record_batches(store: CountingStore, tmp_path: Path) -> None:
    for region in ("eu", "us"):
        folder = tmp_path / f"region={region}"
        folder.mkdir()
        pq.write_table(pa.table({"n": [1]}), folder / "a.parquet")
        (folder / "a.csv").write_text("n\n1\n")
    parquet = PartitionedFileSource(f"{tmp_path}/*/*.parquet", format="parquet")
    expected = [{"n": 1, "region": "eu"}, {"n": 1, "region": "us"}]
    assert whole(batch_of(store, parquet)).to_pylist() == expected
    csv = PartitionedFileSource(f"{tmp_path}/*/*.csv", schema="n INT")
    assert whole(batch_of(CountingStore(), csv)).to_pylist() == expected


def test_folders_with_different_partition_columns_are_refused(store: CountingStore, tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        pq.write_table(pa.table({name: [1]}), tmp_path / name / "x.parquet")
    with pytest.raises(SourceError, match="column a is missing, but int64 in x.parquet"):
        batch_of(store, PartitionedFileSource(f"{tmp_path}/*/*.parquet", format="parquet")).arrow()


def sqlite(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *values: Any) -> SqlSource:
    path = tmp_path / "shop.db"
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE orders (id INTEGER PRIMARY KEY, name TEXT, price REAL, other NUMERIC)")
        made.executemany("INSERT INTO orders VALUES (?, ?, ?, ?)", values)
    monkeypatch.setenv("AIRFLOW_CONN_SHOP", json.dumps({"conn_type": "sqlite", "host": str(path)}))
    return SqlSource("shop", "orders", columns=["id", "name", "price"])


def test_sql_columns_have_the_types_of_their_table(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sqlite(tmp_path, monkeypatch, (1, "a", 2, 3))
    found = whole(batch_of(store, source))
    assert found.schema == pa.schema({"id": pa.int64(), "name": pa.string(), "price": pa.float64()})
    assert found.to_pylist() == [{"id": 1, "name": "a", "price": 2.0}]
    found = whole(batch_of(CountingStore(), SqlSource("shop", "orders")))
    assert found.schema.field("other").type == pa.int64()


def test_a_sqlite_value_that_does_not_fit_its_declared_column_is_refused(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = sqlite(tmp_path, monkeypatch, (1, "a", "cheap", 3))
    with pytest.raises(RowsRefused, match="row 0: price = 'cheap' is not a value of type double"):
        whole(batch_of(store, source))


def test_a_column_with_different_types_in_two_tables_has_a_type_that_fits_all_values(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sqlite(tmp_path, monkeypatch, (1, "a", 2.5, None))
    with sqlite3.connect(tmp_path / "shop.db") as made:
        made.execute("CREATE TABLE returns (id INTEGER PRIMARY KEY, name TEXT, price INTEGER)")
        made.execute("INSERT INTO returns VALUES (1, 'b', 3)")
    source = PartitionedSqlSource("shop", ["orders", "returns"], columns=["id", "name", "price"])
    found = whole(batch_of(store, source))
    assert found.schema.types == [pa.int64(), pa.string(), pa.float64()]
    assert found.column("price").to_pylist() == [2.5, 3.0]


class Own(Numbers):
    """A source of one's own, which reads frames."""

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        return pl.DataFrame({"number": range(*metadata), "text": "a"})


def test_record_batches_of_a_custom_source_have_the_same_values_as_its_rows(store: CountingStore) -> None:
    batch = batch_of(store, Own())
    expected = [{"number": number, "text": "a"} for number in range(10)]
    assert rows(batch) == whole(batch).to_pylist() == expected


@pytest.mark.usefixtures("small_pages")
def test_a_trial_reads_only_the_first_rows_as_record_batches(store: CountingStore) -> None:
    source = TrialSource(MemorySource({"0": [{"n": n} for n in range(9)]}, per_batch=9, schema="n INT"), most=3)
    assert whole(batch_of(store, source)).to_pylist() == [{"n": 0}, {"n": 1}, {"n": 2}]
    given = TrialSource(MemorySource({"0": [{"n": 7}]}, schema="n INT"), most=3, rows=pl.DataFrame({"m": [1]}))
    assert whole(batch_of(CountingStore(), given)).to_pylist() == [{"m": 1}]


# --- streams ------------------------------------------------------------------------------------------------------


def test_files_are_read_while_their_record_batches_are_consumed(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pq.write_table(pa.table({"n": range(200_000)}), tmp_path / "a.parquet")
    taken = []

    def counted(*arguments: Any) -> Iterator[Any]:
        for batch in batches_in(*arguments):
            taken.append(batch.num_rows)
            yield batch

    monkeypatch.setattr("airflow_tx.sources.files.batch.batches_in", counted)
    reader = batch_of(store, FileSource(f"{tmp_path}/*.parquet", format="parquet")).arrow()
    assert len(taken) == 1
    reader.read_next_batch()
    reader.read_next_batch()
    assert len(taken) == 2
    assert reader.read_all().num_rows + sum(taken[:2]) == 200_000


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(
    "query",
    [
        lambda found: asked("SELECT sum(id) AS s, count(*) AS n FROM found").fetchall(),
        lambda found: pl.DataFrame(found).select(pl.col("id").sum(), pl.len()).rows(),
        lambda found: [(int(frame.id.sum()), len(frame)) for frame in [found.read_pandas()]],
    ],
    ids=["duckdb", "polars", "pandas"],
)
def test_a_query_engine_reads_all_rows_of_a_database(
    store: CountingStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, query: Any
) -> None:
    source = sqlite(tmp_path, monkeypatch, *((number, "a", 1.5, None) for number in range(1, 100)))
    run = Run(store, source)
    assert run.work(lambda batch: query(batch.arrow())) == [(4950, 99)]
    run.work(whole, "audit")
    run.commit()
    assert (run.history.rows, run.unproven) == (99, ())
    assert run.history.digest.startswith("xxh64c-")


# --- what was read ------------------------------------------------------------------------------------------------

TEN = MemorySource({"0": [{"n": n} for n in range(10)]}, per_batch=10, schema="n INT")
# An engine reads ahead, and takes some record batches more than it needs.
MANY = MemorySource({"0": [{"n": n} for n in range(1000)]}, per_batch=1000, schema="n INT")


def limited(batch: CurrentBatch) -> Any:
    found = batch.arrow()  # noqa: F841 - the query names it
    return asked("SELECT * FROM found LIMIT 3").fetchall()


def one(batch: CurrentBatch) -> Any:
    return batch.arrow().read_next_batch()


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize("use", [limited, one])
def test_a_partial_read_of_record_batches_is_refused_unless_the_task_declares_it(
    store: CountingStore, use: Use
) -> None:
    run = Run(store, MANY)
    run.work(whole)
    run.work(use, "audit")
    with pytest.raises(RowsDiffer, match=r"task audit read \d+ rows of the batch, .* reliable=False"):
        run.commit()
    run.work(use, "audit", reliable=False)
    run.commit()
    assert run.unproven == ()


PARTS: dict[str, Use] = {
    "polars, a batch": lambda batch: pl.DataFrame(batch.arrow().read_next_batch()),
    "polars, some batches": lambda batch: pl.concat(map(pl.DataFrame, islice(batch.arrow(), 2))),
    "pandas, a batch": lambda batch: batch.arrow().read_next_batch().to_pandas(),
    "pandas, some batches": lambda batch: pd.concat(each.to_pandas() for each in islice(batch.arrow(), 2)),
    "dicts": lambda batch: list(islice(batch.read(), 10)),
}
WHOLE: dict[str, Use] = {
    "polars, head": lambda batch: pl.DataFrame(batch.arrow()).head(3),
    "polars, head of a plan": lambda batch: pl.DataFrame(batch.arrow()).lazy().head(3).collect(),
    "pandas, head": lambda batch: batch.arrow().read_pandas().head(3),
    "pandas, all batches": lambda batch: [each.to_pandas() for each in batch.arrow()][:1],
    "duckdb, the greatest": lambda batch: duckdb.from_arrow(batch.arrow()).order("n DESC").limit(1).fetchone(),
    "as many batches as there are": lambda batch: list(islice(batch.arrow(), 10)),
    "dicts": lambda batch: list(islice(batch.read(), 100_000)),
}


def files(folder: Path) -> FileSource:
    """Make a source that does not know how many rows it has."""
    pq.write_table(pa.table({"n": range(100_000)}), folder / "a.parquet", row_group_size=10_000)
    return FileSource(f"{folder}/*.parquet", format="parquet")


@pytest.mark.parametrize("use", PARTS.values(), ids=PARTS.keys())
def test_a_partial_read_is_refused_although_the_source_does_not_count_its_rows(
    store: CountingStore, tmp_path: Path, use: Use
) -> None:
    run = Run(store, files(tmp_path))
    run.work(use)
    run.work(lambda batch: None, "audit")
    with pytest.raises(RowsDiffer, match=r"task count read \d+ rows of the batch, but the batch has more rows"):
        run.commit()
    assert run.state.fence() is None


@pytest.mark.parametrize("use", WHOLE.values(), ids=WHOLE.keys())
def test_a_filtered_query_over_the_complete_data_frame_proves_that_all_rows_were_read(
    store: CountingStore, tmp_path: Path, use: Use
) -> None:
    run = Run(store, files(tmp_path))
    run.work(use)
    run.work(lambda batch: None, "audit")
    run.commit()
    assert (run.history.rows, run.unproven) == (100_000, ())


def test_tasks_that_read_dicts_and_tasks_that_read_record_batches_are_compared_by_row_counts(
    store: CountingStore,
) -> None:
    run = Run(store, TEN)
    run.work(rows)
    run.work(whole, "audit")
    run.commit()
    assert run.unproven == ()


class Changing(Numbers):
    """Gives each reading other rows, as many."""

    read = 0

    def row_types(self, attempt: Any, metadata: Any) -> Any:
        return {"number": pa.int64()}

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        type(self).read += 1
        return ({"number": number + self.read} for number in range(*metadata))


def test_a_second_task_that_reads_the_same_number_of_other_rows_is_refused(store: CountingStore) -> None:
    run = Run(store, Changing())
    run.work(whole)
    run.work(whole, "audit")
    with pytest.raises(RowsDiffer, match=r"task audit read 10 rows, digest \w+ of .* task count read 10 rows, digest"):
        run.commit()


def test_the_digest_of_a_batch_that_is_staged_equals_the_digest_of_the_staged_rows(store: CountingStore) -> None:
    run = Run(store, TEN)
    processing = run.start("count")
    batch = CurrentBatch(processing)
    ref = batch.stage(batch.arrow())
    (reading,) = processing.read
    assert reading.found.text == ref["row_digest"] != ""
    assert list(batch.read_output(ref)) == [{"n": n} for n in range(10)]


@pytest.mark.parametrize("how", ["read", "arrow"])
def test_rows_of_files_are_counted_without_a_digest(store: CountingStore, tmp_path: Path, how: str) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n2\n")
    processing = Run(store, FileSource(f"{tmp_path}/*.csv")).start("count")
    assert sum(1 for _ in getattr(CurrentBatch(processing), how)()) > 0
    (reading,) = processing.read
    assert reading.found == RowsDigest(2)


@pytest.mark.usefixtures("small_pages")
def test_a_partial_read_of_files_is_refused_although_files_have_no_row_count(
    store: CountingStore, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n2\n3\n")
    run = Run(store, FileSource(f"{tmp_path}/*.csv"))
    for task in TASKS:
        run.work(one, task)
    with pytest.raises(RowsDiffer, match="task audit read 2 rows of the batch, but the batch has more rows"):
        run.commit()


def test_a_reader_that_has_returned_all_record_batches_counts_as_read_completely(
    store: CountingStore, tmp_path: Path
) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n2\n3\n")
    run = Run(store, FileSource(f"{tmp_path}/*.csv"))
    for task in TASKS:
        run.work(one, task)
    run.commit()
    assert (run.history.rows, run.unproven) == (3, ())


def test_resources_that_a_source_has_opened_are_closed_after_the_last_record_batch(store: CountingStore) -> None:
    source = Lending()
    batch = batch_of(store, source)
    reader = batch.arrow()
    assert source.lent == ["open"]
    reader.read_all()
    assert source.lent == ["closed"]


def test_two_calls_of_the_reader_count_as_two_readings(store: CountingStore) -> None:
    run = Run(store, TEN)
    run.work(lambda batch: (whole(batch), whole(batch)))
    run.work(whole, "audit")
    run.commit()
    assert run.unproven == ("task count: it read the batch 2 times",)


def test_a_reader_that_is_never_used_does_not_count_as_a_reading(store: CountingStore) -> None:
    run = Run(store, TEN)
    run.work(lambda batch: (batch.arrow(), whole(batch)))
    run.work(whole, "audit")
    run.commit()
    assert run.unproven == ()


# --- refusals -----------------------------------------------------------------------------------------------------


def asked_by_duckdb(batch: CurrentBatch) -> Any:
    found = batch.arrow()  # noqa: F841 - the query names it
    return asked("SELECT sum(n) FROM found").fetchall()


@pytest.mark.usefixtures("small_pages")
@pytest.mark.parametrize(
    "use", [whole, asked_by_duckdb, lambda batch: pl.DataFrame(batch.arrow()), lambda batch: batch.stage(batch.arrow())]
)
def test_a_refusal_by_the_source_is_raised_in_every_query_engine(
    store: CountingStore, tmp_path: Path, use: Use
) -> None:
    (tmp_path / "a.csv").write_text("n\n1\n2\n3\n4\nx\n")
    run = Run(store, FileSource(f"{tmp_path}/*.csv", schema="n INT"))
    with pytest.raises(RowsRefused, match="line 6: n = 'x' does not fit the schema") as refused:
        run.work(use)
    assert "\n" not in str(refused.value)


@pytest.mark.usefixtures("small_pages")
def test_an_error_of_the_query_engine_is_raised_unchanged(store: CountingStore) -> None:
    def use(batch: CurrentBatch) -> Any:
        found = batch.arrow()  # noqa: F841 - the query names it
        return asked("SELECT no_such_column FROM found")

    with pytest.raises(duckdb.Error, match="no_such_column"):
        Run(store, TEN).work(use)


@pytest.mark.usefixtures("small_pages")
def test_an_error_of_the_task_after_a_refusal_is_raised_unchanged(store: CountingStore) -> None:
    def use(batch: CurrentBatch) -> Any:
        with pytest.raises(RowsRefused):
            whole(batch)
        raise KeyError("something else")

    source = MemorySource({"0": [{"n": n} for n in (1, 2, 3, "x")]}, per_batch=9, schema="n INT")
    with pytest.raises(KeyError, match="something else"):
        Run(store, source).work(use)


@pytest.mark.usefixtures("small_pages")
def test_an_error_of_the_task_that_quotes_a_refusal_is_raised_unchanged(store: CountingStore) -> None:
    def use(batch: CurrentBatch) -> Any:
        with pytest.raises(RowsRefused) as refused:
            whole(batch)
        raise KeyError(str(refused.value))

    source = MemorySource({"0": [{"n": n} for n in (1, 2, 3, "x")]}, per_batch=9, schema="n INT")
    with pytest.raises(KeyError, match="refused"):
        Run(store, source).work(use)


# --- an engine at the end of the process --------------------------------------------------------------------------

LEFT_OPEN = """
import sys
import duckdb
from airflow_tx import FileSource
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import Stage, StageRun

run = StageRun(Stage(None, FileSource(sys.argv[1] + "/*.parquet", format="parquet")).spec, "r1")
run.begin()
processing = run.start()
rows = CurrentBatch(processing, reliable=False).arrow()
open_result = duckdb.sql(sys.argv[2])
print(open_result.fetchone())
if sys.argv[3] == "acked":
    run.end(processing, [])
"""


# Before 3.14, Python ends a foreign thread that asks for the GIL during finalization, which aborts the process. In rare
# exits, a thread of DuckDB asks so late (duckdb issues 13904 and 20715). Without the wait in `ArrowReading.close`,
# every exit aborts or hangs.
ABORTED = "terminate called without an active exception"


@pytest.mark.parametrize("end", ["acked", "failed"])
@pytest.mark.parametrize("query", ["SELECT n FROM rows LIMIT 3", "SELECT n FROM rows"])
def test_a_process_exits_without_an_error_while_a_query_engine_still_reads(
    tmp_path: Path, query: str, end: str
) -> None:
    pq.write_table(pa.table({"n": range(4_000_000)}), tmp_path / "a.parquet", row_group_size=20_000)
    command = [sys.executable, "-c", LEFT_OPEN, str(tmp_path), query, end]

    def finished() -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)

    done = finished()
    runs = [finished(), finished()] if ABORTED in done.stderr else [done]
    for run in runs:
        assert (run.stdout[-5:], run.returncode) == ("(0,)\n", 0), run.stderr
