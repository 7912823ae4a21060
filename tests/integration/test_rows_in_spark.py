"""What Spark says of the rows that it reads and writes: exact, or nothing; on a session of its own and on a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from datetime import date, datetime, timezone
from decimal import Context, Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.ledger.steps.processing import RowsRead
from airflow_tx.outputs.staging.area import batches_in
from airflow_tx.outputs.staging.row_hash import digest_of_batch
from airflow_tx.spark.connect import session
from airflow_tx.spark.observed import RowsObserver
from airflow_tx.state import Max, MemoryState
from airflow_tx.state.rows import combined
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.suites.state_tools import Grants

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

ROWS = 4000
Emit = Callable[["DataFrame"], object]


@pytest.fixture(params=[pytest.param("classic", marks=pytest.mark.long), "connect"])
def any_spark(request: pytest.FixtureRequest) -> Iterator[SparkSession]:
    if request.param == "classic":
        yield request.getfixturevalue("spark")
        return
    server: LocalSparkConnect = request.getfixturevalue("spark_connect")
    with session(f"sc://127.0.0.1:{server.port}", tag="rows", server="test") as connected:
        yield connected


@pytest.fixture(scope="module")
def parquet(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Rows in four files."""
    folder = tmp_path_factory.mktemp("rows")
    for part in range(4):
        ids = list(range(part, ROWS, 4))
        columns = {"id": ids, "k": [number % 7 for number in ids], "s": [str(number) for number in ids]}
        pq.write_table(pa.table(columns), folder / f"{part}.parquet")
    return f"file://{folder}"


def plain(df: DataFrame, emit: Emit) -> None:
    emit(df.groupBy("k").count())


def filtered(df: DataFrame, emit: Emit) -> None:
    emit(df.filter("id < 10"))


def named(df: DataFrame, emit: Emit) -> None:
    from pyspark.sql import functions as F

    emit(df.withColumn("why", F.lit("over the limit {")))


def looked_at_before(df: DataFrame, emit: Emit) -> None:
    assert not df.isEmpty()
    df.show(1)
    df.take(3)
    assert df.limit(5).count() == 5
    emit(df.groupBy("k").count())


def cached(df: DataFrame, emit: Emit) -> None:
    df.cache()
    df.show(1)
    emit(df.groupBy("k").count())
    emit(df.filter("id < 3"))
    df.unpersist()


def in_two_outputs(df: DataFrame, emit: Emit) -> None:
    emit(df.filter("id < 10"))
    emit(df.filter("id >= 10"))


def deduplicated(df: DataFrame, emit: Emit) -> None:
    emit(df.dropDuplicates(["k"]))


def in_a_subquery(df: DataFrame, emit: Emit) -> None:
    df.createOrReplaceTempView("rows_read")
    emit(df.sparkSession.sql("SELECT k, (SELECT max(id) FROM rows_read) m FROM range(3) r(k)"))


def semi_joined(df: DataFrame, emit: Emit) -> None:
    emit(df.join(df.sparkSession.range(3).toDF("k"), "k", "left_semi"))


def sorted_(df: DataFrame, emit: Emit) -> None:
    emit(df.orderBy("s"))


def ranged(df: DataFrame, emit: Emit) -> None:
    emit(df.repartitionByRange(3, "s"))


def united_with_itself(df: DataFrame, emit: Emit) -> None:
    emit(df.union(df))


def united_with_some_of_itself(df: DataFrame, emit: Emit) -> None:
    emit(df.union(df.limit(3)))


def joined_with_itself(df: DataFrame, emit: Emit) -> None:
    emit(df.join(df.groupBy("k").count(), "k"))


def joined_with_nothing(df: DataFrame, emit: Emit) -> None:
    emit(df.join(df.sparkSession.range(0).toDF("k"), "k"))


def checked(df: DataFrame, emit: Emit) -> None:
    """Fails at a value that is refused, as rows of a source do."""
    from pyspark.sql import functions as F

    emit(df.where(F.when(df.id < 0, F.raise_error("no such value").cast("boolean")).otherwise(F.lit(True))))


def of_no_row(df: DataFrame, emit: Emit) -> None:
    emit(df.filter("1 = 0"))


def collected(df: DataFrame, emit: Emit) -> None:
    emit(df.sparkSession.createDataFrame([(len(df.collect()),)], "n int"))


ALL = [plain, filtered, named, looked_at_before, in_two_outputs, deduplicated, semi_joined]
NOTHING_SAID = [united_with_some_of_itself, of_no_row, collected]
NO_PROOF = [sorted_, ranged, cached, united_with_itself, joined_with_itself, joined_with_nothing, in_a_subquery]


def observed(
    spark: SparkSession, files: str, job: Callable[[DataFrame, Emit], object], out: Path, *, known: bool = False
) -> RowsRead | None:
    observer = RowsObserver()
    df = observer.reading(spark.read.parquet(files), rows=ROWS if known else None)
    try:
        job(df, partial(observer.write, uri=f"file://{out}"))
        read = next(iter(observer.read()), None)
        assert read or observer.unproven()
        return read
    finally:
        observer.close()


KNOWN = pytest.mark.parametrize("known", [False, True], ids=["", "of a known number"])


def written(folder: str) -> RowsDigest:
    files = sorted(Path(folder.removeprefix("file://")).glob("*.parquet"))
    batches = [batch for file in files for batch in pq.ParquetFile(file).iter_batches()]
    return sum((digest_of_batch(batch) for batch in batches), RowsDigest(0))


@KNOWN
@pytest.mark.parametrize("job", ALL, ids=lambda job: job.__name__)
def test_all_rows_that_an_output_was_computed_from_are_counted_once(
    any_spark: SparkSession, parquet: str, tmp_path: Path, job: Any, known: bool
) -> None:
    found = observed(any_spark, parquet, job, tmp_path / "out", known=known)
    assert found is not None
    assert found.found == written(parquet)


def test_rows_that_a_query_only_validates_are_counted_exactly(
    any_spark: SparkSession, parquet: str, tmp_path: Path
) -> None:
    found = observed(any_spark, parquet, checked, tmp_path / "out")
    assert found is not None
    assert not found.at_least


@KNOWN
def test_spark_does_not_number_the_rows_of_a_batch_with_a_known_size(
    any_spark: SparkSession, parquet: str, capsys: pytest.CaptureFixture[str], known: bool
) -> None:
    RowsObserver().reading(any_spark.read.parquet(parquet), rows=ROWS if known else None).explain()
    is_numbered = "monotonically_increasing_id" in capsys.readouterr().out
    assert is_numbered == (type(any_spark).__module__.startswith("pyspark.sql.connect") and not known)


@KNOWN
@pytest.mark.parametrize("job", NOTHING_SAID, ids=lambda job: job.__name__)
def test_the_observer_reports_no_count_for_rows_used_in_two_outputs_or_in_none(
    any_spark: SparkSession, parquet: str, tmp_path: Path, job: Any, known: bool
) -> None:
    assert observed(any_spark, parquet, job, tmp_path / "out", known=known) is None


@KNOWN
@pytest.mark.parametrize("job", NO_PROOF, ids=lambda job: job.__name__)
def test_rows_that_spark_may_read_twice_or_not_at_all_do_not_cause_an_error(
    any_spark: SparkSession, parquet: str, tmp_path: Path, job: Any, known: bool
) -> None:
    found = observed(any_spark, parquet, job, tmp_path / "out", known=known)
    assert found is None or not found.proves_against(written(parquet))


@pytest.mark.long
@pytest.mark.parametrize("job", [*ALL, *NOTHING_SAID, *NO_PROOF])
def test_the_observer_lists_outputs_whose_rows_spark_has_not_counted_exactly(
    any_spark: SparkSession, parquet: str, tmp_path: Path, job: Callable[[DataFrame, Emit], object]
) -> None:
    observer = RowsObserver()
    df = observer.reading(any_spark.read.parquet(parquet))
    try:
        job(df, partial(observer.write, uri=f"file://{tmp_path}"))
        said, read = observer.unproven(), next(iter(observer.read()), None)
    finally:
        observer.close()
    proven = read is not None and (read.at_least or read.found.rows == ROWS)
    assert said or proven
    assert not (said and job in ALL)
    assert all(why.endswith(" the batch") for why in said.values())
    if job in (united_with_itself, united_with_some_of_itself, joined_with_itself):
        assert list(said.values()) == ["one output contains the rows of two reads of the batch"]


def test_an_output_of_two_reads_is_unproven_and_two_outputs_of_one_read_are_proven(
    any_spark: SparkSession, parquet: str, tmp_path: Path
) -> None:
    observer = RowsObserver()
    try:
        one, two = (observer.reading(any_spark.read.parquet(parquet)) for _ in range(2))
        for number, df in enumerate((one, two)):
            observer.write(df, f"file://{tmp_path}/{number}")
        assert observer.unproven() == {}
        observer.write(one.union(two), f"file://{tmp_path}/2")
        assert observer.unproven() == {(): "one output contains the rows of two reads of the batch"}
    finally:
        observer.close()


def test_an_output_is_unproven_if_its_sql_query_reads_the_batch_twice_on_a_server(
    spark_connect: LocalSparkConnect, parquet: str, tmp_path: Path
) -> None:
    with session(f"sc://127.0.0.1:{spark_connect.port}", tag="rows", server="test") as spark:
        observer = RowsObserver()
        df = observer.reading(spark.read.parquet(parquet), rows=ROWS)
        written = observer.write(
            spark.sql("SELECT * FROM {a} UNION ALL SELECT * FROM {a}", a=df), f"file://{tmp_path}/out"
        )
    assert written.rows == 2 * ROWS
    assert observer.unproven() == {
        (): "SQL text or a subquery on Spark Connect may have used rows more than once from the batch"
    }


def test_an_aggregate_over_a_limit_is_proven_to_miss_rows(
    any_spark: SparkSession, parquet: str, tmp_path: Path
) -> None:
    found = observed(any_spark, parquet, lambda df, emit: emit(df.limit(10).groupBy("k").count()), tmp_path / "out")
    assert found is not None
    assert found.found.rows < ROWS
    assert found.proves_against(written(parquet))


def test_a_limit_below_the_size_of_the_batch_is_reported_as_a_partial_read(
    any_spark: SparkSession, parquet: str, tmp_path: Path
) -> None:
    found = observed(any_spark, parquet, lambda df, emit: emit(df.limit(10)), tmp_path / "out", known=True)
    assert found is not None
    assert found.found.rows < ROWS
    assert found.more


AGGREGATED = {
    "three": lambda df: df.groupBy("k").count().limit(3),
    "the greatest": lambda df: df.groupBy("k").count().orderBy("count").select("k").limit(3),
    "of two": lambda df: df.groupBy("k").count().select("k").limit(2),
}
NOT_AGGREGATED = {
    "one": lambda df: df.groupBy("k").count().select("k").limit(1),
    "rows": lambda df: df.orderBy("s").limit(3),
    "below": lambda df: df.limit(ROWS).groupBy("k").count(),
}


@pytest.mark.parametrize("job", AGGREGATED.values(), ids=AGGREGATED)
def test_a_limit_of_several_groups_of_an_aggregate_is_proven_to_read_all_rows(
    any_spark: SparkSession, parquet: str, tmp_path: Path, job: Any
) -> None:
    found = observed(any_spark, parquet, lambda df, emit: emit(job(df)), tmp_path / "out", known=True)
    assert found == RowsRead(written(parquet))


@pytest.mark.parametrize("job", NOT_AGGREGATED.values(), ids=NOT_AGGREGATED)
def test_a_limit_of_one_group_or_of_input_rows_is_unproven_on_a_spark_server(
    spark_connect: LocalSparkConnect, parquet: str, tmp_path: Path, job: Any
) -> None:
    with session(spark_connect.url, tag="rows", server="test") as spark:
        found = observed(spark, parquet, lambda df, emit: emit(job(df)), tmp_path / "out", known=True)
    assert found is None or found.more


REPEATED = {
    None: "a sort, a cache or a repeated stage may have processed rows twice, or never, from the batch",
    # Of each of two partitions a half is read, twice.
    ROWS // 4: "Spark Connect may have repeated a stage with a limit, unseen, for rows from the batch",
}


@pytest.mark.parametrize("limit", REPEATED, ids=["alone", "beside a limit"])
def test_an_output_is_not_proven_if_spark_has_repeated_a_stage(
    spark_connect: LocalSparkConnect, parquet: str, tmp_path: Path, limit: int | None
) -> None:
    """The files of the shuffles are lost once, while the last stage reads them."""
    lost, local = tmp_path / "lost", spark_connect.folder / "local"

    def loses(rows: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        yield from rows
        if not lost.exists():
            lost.touch()
            for file in local.rglob("shuffle_*"):
                file.unlink(missing_ok=True)

    with session(f"sc://127.0.0.1:{spark_connect.port}", tag="rows", server="test") as spark:
        observer = RowsObserver()
        df = observer.reading(spark.read.parquet(parquet), rows=ROWS)
        given = df if limit is None else df.limit(limit)
        written = observer.write(given.repartition(8).mapInArrow(loses, given.schema), f"file://{tmp_path}/out")
    assert written.rows == (limit or ROWS)
    assert observer.read() == []
    assert observer.unproven() == {(): REPEATED[limit]}


@pytest.mark.lead
@pytest.mark.worth("the digest of rows is the same on both sides of a server")
@pytest.mark.parametrize(
    "jobs", [ALL, pytest.param([*NOTHING_SAID, *NO_PROOF], marks=pytest.mark.long)], ids=["counted", "not counted"]
)
def test_rows_that_a_server_returns_are_counted_like_rows_that_a_server_writes(
    spark_connect: LocalSparkConnect, parquet: str, jobs: Sequence[Callable[[DataFrame, Emit], object]]
) -> None:
    with session(f"sc://127.0.0.1:{spark_connect.port}", tag="rows", server="test") as spark:
        for job in jobs:
            observer = RowsObserver()

            def fetch(df: DataFrame, observer: RowsObserver = observer) -> None:
                said, table = observer.fetch(df)
                assert said.agrees(sum(map(digest_of_batch, table.to_batches()), RowsDigest(0)))

            job(observer.reading(spark.read.parquet(parquet)), fetch)
            found = next(iter(observer.read()), None)
            if job in ALL:
                assert found is not None, job.__name__
                assert found.found == written(parquet), job.__name__
            else:
                assert found is None or not found.proves_against(written(parquet)), job.__name__


def test_rows_that_a_source_returns_twice_count_twice(any_spark: SparkSession, parquet: str, tmp_path: Path) -> None:
    observer, once = RowsObserver(), any_spark.read.parquet(parquet)
    observer.write(observer.reading(once.union(once)), f"file://{tmp_path / 'out'}")
    (found,) = observer.read()
    observer.close()
    assert found == RowsRead(written(parquet) + written(parquet))


def test_a_spark_timestamp_is_written_as_a_point_in_time_to_a_state_with_time_zones(
    any_spark: SparkSession, tmp_path: Path
) -> None:
    texts = [
        "0001-01-01 00:00:00.000001",
        "1500-02-03 04:05:06.000007",
        "2024-10-27 00:30:00",
        "9999-12-31 23:59:59.999999",
    ]
    given = [datetime.fromisoformat(text).replace(tzinfo=timezone.utc) for text in texts]
    selects = [f"SELECT '{text}' AS k, TIMESTAMP'{text}Z' AS at" for text in texts]
    df, uri = any_spark.sql(" UNION ALL ".join(selects)), f"file://{tmp_path}/out"
    observer = RowsObserver()
    observer.write(df, uri)
    observer.close()
    state = MemoryState("last", keys=["k"], values={"at": Max("timestamptz")})
    files = sorted(Path(tmp_path, "out").glob("*.parquet"))
    rows = [row for file in files for batch in batches_in(file.open("rb")) for row in batch.to_pylist()]
    Grants().commit_rows(1, state, combined(rows, state))
    assert {row["k"]: row["at"] for row in state.read()} == dict(zip(texts, given, strict=True))


# --- the hash -----------------------------------------------------------------------------------------------------

SCHEMA = (
    "b BOOLEAN, t TINYINT, h SMALLINT, i INT, l BIGINT, f FLOAT, d DOUBLE, s STRING, x BINARY, day DATE, "
    "at TIMESTAMP, ntz TIMESTAMP_NTZ, few DECIMAL(9,2), some DECIMAL(18,3), many DECIMAL(38,6)"
)


WIDE = Context(prec=60)


def integers(bits: int) -> st.SearchStrategy[int]:
    return st.integers(-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)


def decimals(digits: int, places: int) -> st.SearchStrategy[Decimal]:
    return st.integers(-(10**digits) + 1, 10**digits - 1).map(lambda number: Decimal(number).scaleb(-places, WIDE))


MOMENTS = st.datetimes(datetime(1700, 1, 1), datetime(2200, 1, 1))
VALUES = {
    "b": st.booleans(),
    "t": integers(8),
    "h": integers(16),
    "i": integers(32),
    "l": integers(64),
    "f": st.floats(width=32),
    "d": st.floats(),
    "s": st.text(st.characters(exclude_categories=["Cs"]), max_size=80),
    "x": st.binary(max_size=80),
    "day": st.dates(date(1700, 1, 1), date(2200, 1, 1)),
    "at": MOMENTS.map(lambda moment: moment.replace(tzinfo=timezone.utc)),
    "ntz": MOMENTS,
    "few": decimals(9, 2),
    "some": decimals(18, 3),
    "many": decimals(38, 6),
}
A_ROW = st.tuples(*(st.none() | each for each in VALUES.values()))


@pytest.mark.lead
@settings(max_examples=15)
@given(rows=st.lists(A_ROW, max_size=12))
def test_the_row_digest_of_a_written_file_equals_the_digest_that_spark_computed(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory, rows: list[Any]
) -> None:
    folder, observer = tmp_path_factory.mktemp("rows"), RowsObserver()
    said = observer.write(spark.createDataFrame(rows, SCHEMA).coalesce(1), f"file://{folder}/out")
    assert said.rows == len(rows)
    assert said.agrees(written(f"file://{folder}/out"))
    if rows:
        assert said.form == written(f"file://{folder}/out").form
