"""The rows of an update: which are read, how often they can be gone through, and in which portions they are written."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import RowsDiffer, StagingError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.output import same_output
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import Avg, Count, MemoryState, SqlState, SqlTable, Sum, arrow
from airflow_tx.state.arrow import RowTally
from airflow_tx.testing.suites.aggregator_cases import Balance
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit import write
from airflow_tx.transaction.commit.update import Update, append, persistent_aggregate
from airflow_tx.transaction.commit.write import (
    RowsInTurn,
    StagedRows,
    UpdateRows,
    output_digest,
    portions,
    rows_to_write,
    spark_of,
    wanted_columns,
    whole,
    write_update,
)
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import update as of_output
from tests.unit.commit.staged import ATTEMPT, counted, ref

pytestmark = pytest.mark.usefixtures("small")


def words(name: str = "words", *, kind: Any = "opaque", **values: Any) -> MemoryState:
    return MemoryState(name, keys=["word"], values=values or {"n": Count()}, kind=kind)


def postgres(keys: list[str]) -> SqlState:
    return SqlState.from_url("postgresql://user@nowhere/db", table="words", keys=keys, values={"n": Count()})


def update(state: Any, **how: Any) -> Update:
    task: Any = SimpleNamespace(task_id="count", conn_id="spark_default")
    return persistent_aggregate(SimpleNamespace(operator=task, key="counts"), state=state, **how)


def staged(area: StagingArea, count: int, state: Any, **how: Any) -> StagedRows:
    return StagedRows(area, ref(area, counted(count), **how), state, ATTEMPT)


# --- no rows


def test_a_day_without_rows_is_committed_to_every_kind_of_state_and_does_not_delay_later_days(
    make: Any, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/state.db"
    values: dict[str, Any] = {"keys": ["word"], "values": {"n": Sum()}}
    states: list[Any] = [
        MemoryState("memory", **values),
        SqlState.from_url(url, table="words", **values),
        SqlTable.from_url(url, table="lines"),
    ]
    some = [{"word": "a", "n": 1}]
    for number, given in enumerate([[], some, [], some], 1):
        run = make(f"r{number}", [of_output(each) for each in states])
        run.begin()
        processing = run.start()
        batch = CurrentBatch(processing)
        list(batch.read())
        run.end(processing, batch.stage(given))
        assert run.commit_now() is None
    assert [[(row["word"], row["n"]) for row in each.read()] for each in states] == [
        [("a", 2)],
        [("a", 2)],
        [("a", 1), ("a", 1)],
    ]


# --- what is read


def test_columns_that_the_state_does_not_have_are_not_read(area: StagingArea) -> None:
    rows = StagedRows(area, ref(area, counted(2, other="x")), words(), ATTEMPT)
    assert list(rows) == counted(2)
    assert rows.schema().names == ["word", "n"]


def test_the_error_for_a_missing_column_names_the_column(area: StagingArea) -> None:
    with pytest.raises(StagingError, match="total"):
        StagedRows(area, ref(area, counted(2)), words(n=Count(), total=Sum()), ATTEMPT)


def test_the_output_of_another_attempt_is_refused(area: StagingArea) -> None:
    with pytest.raises(StagingError, match=r"it belongs to attempt 1\.1, but this is attempt 1\.2"):
        StagedRows(area, ref(area, counted(2)), words(), TransactionAttempt(1, 2))


def test_files_without_rows_are_not_read(area: StagingArea) -> None:
    import pyarrow as pa  # type: ignore[import-untyped]

    nothing: Any = pa.table({"word": pa.array([], pa.int64()), "n": pa.array([], pa.int64())})
    rows = StagedRows(area, ref(area, nothing, counted(2)), words(), ATTEMPT)
    assert [Path(file).name for file in rows.files] == ["part-1.parquet"]
    assert str(rows.schema().field("word").type) in ("string", "large_string")
    assert (len(rows), rows.size) == (2, sum(file.size for file in rows.output.files))


AVERAGE = {"n": Count(), "delay": Avg()}


@pytest.mark.parametrize(
    ("values", "present", "wanted"),
    [
        ({"n": Count()}, ("other", "n", "word"), ["word", "n"]),
        (AVERAGE, ("word", "n", "delay"), ["word", "n", "delay"]),
        (AVERAGE, ("word", "n", "delay_sum", "delay_count"), ["word", "n", "delay_sum", "delay_count"]),
        (AVERAGE, ("word", "n", "delay", "delay_sum"), ["word", "n", "delay_sum", "delay_count"]),
        (AVERAGE, ("word", "n"), ["word", "n", "delay_sum", "delay_count"]),
        ({"n": Count(), "balance": Balance()}, ("step", "word", "n"), ["word", "n", "step"]),
    ],
)
def test_composite_columns_are_read_as_their_parts_and_a_reducer_reads_every_column(
    values: Any, present: Any, wanted: list[str]
) -> None:
    assert wanted_columns(words(**values), present) == wanted


def test_a_state_without_columns_reads_all_columns_of_the_output() -> None:
    own: Any = SimpleNamespace(columns=None)
    assert wanted_columns(own, ("b", "a")) == ["b", "a"]


# --- how often


def test_rows_for_a_transactional_state_or_a_reducer_or_new_values_can_be_read_twice(area: StagingArea) -> None:
    plain = [counted(2), counted(1)]
    steps = [[{**row, "step": 1} for row in part] for part in plain]
    for state, how, values in (
        (words(kind="transactional"), {}, plain),
        (words(n=Count(), balance=Balance()), {}, steps),
        (words(), {"new_values": "totals"}, plain),
    ):
        rows = rows_to_write(update(state, **how), values, area, ATTEMPT)
        assert list(rows) == list(rows) != []


def test_the_outputs_of_several_mapped_instances_are_combined_even_if_they_are_staged(area: StagingArea) -> None:
    several = [ref(area, counted(2)), ref(area, counted(3), counted(1))]
    found = rows_to_write(update(words()), several, area, ATTEMPT)
    assert not isinstance(found, StagedRows)
    assert {row["word"]: row["n"] for row in found} == {"w0": 0, "w1": 2, "w2": 2}
    assert isinstance(rows_to_write(update(words()), several[:1], area, ATTEMPT), StagedRows)


def test_a_single_row_is_treated_as_a_list_of_one_row_and_none_is_treated_as_no_rows(area: StagingArea) -> None:
    row = {"word": "man", "n": 1}
    assert list(rows_to_write(update(words()), [row], area, ATTEMPT)) == [row]
    assert list(rows_to_write(update(words()), [None, []], area, ATTEMPT)) == []


def reads(rows: StagedRows, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One entry each time that rows are read."""
    found, batches = list[int](), rows.batches

    def noted() -> Any:
        found.append(1)
        return batches()

    monkeypatch.setattr(rows, "batches", noted)
    return found


@pytest.mark.parametrize(
    ("count", "writers", "times"), [(4, "auto", 0), (5, "auto", 1), (10, "auto", 0), (10, "worker", 1)]
)
def test_rows_for_several_store_transactions_are_read_completely_before_the_first_write(
    area: StagingArea, monkeypatch: pytest.MonkeyPatch, count: int, writers: str, times: int
) -> None:
    """Spark compares what it has read itself, and a single transaction says so within it."""
    state = postgres(["word"])
    rows = staged(area, count, state)
    found = reads(rows, monkeypatch)
    assert whole(update(state, writers=writers), rows) is rows
    assert len(found) == times


def test_rows_that_differ_from_the_emitted_rows_are_refused_before_the_commit_has_the_turn(area: StagingArea) -> None:
    from airflow_tx.ledger.row_digest import RowsDigest, form_of_columns

    other = RowsDigest(5, 7, form_of_columns(["word", "n"])).text
    rows = staged(area, 5, words(), row_digest=other)
    with pytest.raises(RowsDiffer, match="from output 'counts'"):
        whole(update(words()), rows)
    plain = counted(2)
    assert whole(update(words()), plain) is plain


# --- in portions


class Noting(MemoryState):
    """Notes which chunks it was given, and with what the last one completes the grant."""

    def __init__(self, **values: Any) -> None:
        super().__init__("words", keys=["word"], values=values or {"n": Count()})
        self.chunks: list[tuple[int, bool]] = []

    def write(self, grant: Any, rows: Any, *, chunk: int = 0, complete: bool = True) -> int:
        self.chunks.append((chunk, complete))
        self.written = grant.written
        return super().write(grant, rows, chunk=chunk, complete=complete)


def test_each_portion_of_rows_is_written_as_a_chunk_and_the_last_chunk_completes_the_grant(
    area: StagingArea,
) -> None:
    state, grant = Noting(), Grants()(1)
    state.raise_fence(grant)
    rows = staged(area, 9, state)
    written = write_update(update(state), grant, rows, dag_file="", log=None)
    assert state.chunks == [(0, False), (1, False), (2, False), (3, True)]
    tally = RowTally(counted(9), state.added_up)
    assert written == state.written == tally.written(len(list(tally)))


def test_a_few_rows_are_written_in_one_chunk_that_completes_the_grant(area: StagingArea) -> None:
    state, grant = Noting(), Grants()(1)
    state.raise_fence(grant)
    assert write_update(update(state), grant, staged(area, 4, state), dag_file="", log=None).keys == 4
    assert state.chunks == [(0, True)]


def test_all_rows_with_the_same_key_are_in_one_portion(area: StagingArea) -> None:
    state = MemoryState("floats", keys=["at", "word"], values={"balance": Balance()})
    keys = [(0.0, "a"), (1.0, "a"), (-0.0, "a"), (0.0, "b"), (2.5, "c"), (-0.0, "b")]
    rows = StagedRows(area, ref(area, [{"at": at, "word": word, "step": 1} for at, word in keys]), state, ATTEMPT)
    found = [row for portion in portions(rows, state, size=1) for row in portion]
    assert sorted((row["at"], row["word"]) for row in found) == [(0.0, "a"), (0.0, "b"), (1.0, "a"), (2.5, "c")]


# --- column by column


EVERY_TYPE = {
    "bigint": 2**62, "double": 0.5, "numeric": Decimal("1.50"), "text": "ü", "boolean": True,
    "date": dt.date(2013, 1, 1), "timestamp": dt.datetime(2013, 1, 1, 12, 0, 0, 1),
    "first": dt.datetime.min, "last": dt.datetime.max, "bytes": b"\0",
}  # fmt: skip


@pytest.mark.parametrize("parts", [[5], [2, 3], [12, 1]])
def test_staged_rows_that_are_read_by_column_are_equal_to_the_rows_that_are_read_by_row(
    area: StagingArea, parts: list[int]
) -> None:
    made = [[{**EVERY_TYPE, "n": n if n % 2 else None} for n in range(count)] for count in parts]
    several = [ref(area, *made), ref(area, made[0])]
    into = append(update(words()).input, state=SqlTable.from_url("sqlite://", table="every"))
    for values in (several[:1], several, [made[0], [], *several, made[0], made[0]]):
        rows = rows_to_write(into, values, area, ATTEMPT)
        tally, by_row = RowTally(rows), RowTally(list(rows))
        found = [
            dict(zip(each, row, strict=True)) for each in tally.portions(4) for row in zip(*each.values(), strict=True)
        ]
        assert found == list(by_row) != []
        assert tally.written(1) == by_row.written(1)


def test_rows_of_several_outputs_can_be_in_one_portion() -> None:
    rows = RowsInTurn([[{"n": 1}], ({"n": n} for n in (2, 3)), [{"n": 4}]])
    assert list(RowTally(rows).portions(3)) == [{"n": [1, 2, 3]}, {"n": [4]}]


def test_staged_rows_for_a_table_are_not_converted_to_one_dict_per_row(
    area: StagingArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(arrow, "from_arrow", lambda batch: pytest.fail("a dict for each row"))
    staged = ref(area, [{"at": dt.datetime(2013, 1, n)} for n in range(1, 9)])
    state = SqlTable.from_url("sqlite://", table="times")
    rows = rows_to_write(append(update(words()).input, state=state), [staged, staged], area, ATTEMPT)
    assert [len(each["at"]) for each in RowTally(rows).portions(5)] == [5, 3, 5, 3]


# --- by whom


@pytest.mark.parametrize(
    ("keys", "count", "chunks"), [(["word"], 1, 2), (["word"], 15, 3), (["word"], 1000, 200), ([], 15, 1)]
)
def test_executors_write_many_rows_in_several_chunks_and_a_single_key_in_one_chunk(
    area: StagingArea, monkeypatch: pytest.MonkeyPatch, log: Any, keys: list[str], count: int, chunks: int
) -> None:
    """What starts Spark is replaced: that is another process."""
    from airflow_tx.transaction.commit import write as spark_writers

    told = dict[str, Any]()

    def write_by_spark(state: Any, grant: Any, rows: Any, spark: str, **options: Any) -> str:
        told.update(options, spark=spark)
        return "written"

    monkeypatch.setattr(spark_writers, "write_by_spark", write_by_spark)
    monkeypatch.setattr(write, "ROWS_A_WRITER", 5)
    state, output = postgres(keys), object()
    how = update(state, writers="spark")
    rows = StagedRows(area, ref(area, [{"word": f"w{n}", "n": n} for n in range(count)]), state, ATTEMPT)
    done = write_update(how, Grants()(1), rows, dag_file="d.py", log=log, output=output)  # type: ignore[arg-type]
    assert done == "written"  # type: ignore[comparison-overlap]
    assert told == {"spark": "spark_default", "partitions": chunks, "dag_file": "d.py", "output": output}
    assert log.lines == [f"State {state.name}: {count} rows are written by Spark (spark_default)"]
    assert not UpdateRows(how, rows).fits()


def test_an_output_with_many_rows_or_many_bytes_is_written_by_spark(
    area: StagingArea, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = postgres(["word"])
    rows = staged(area, 3, state)
    assert spark_of(update(state), rows) is None
    monkeypatch.setattr(write, "LARGE_BYTES", rows.size)
    assert spark_of(update(state), rows) == "spark_default"
    monkeypatch.setattr(write, "LARGE_BYTES", rows.size + 1)
    assert spark_of(update(state), rows) is None
    assert spark_of(update(state, spark_from_rows=3), rows) == "spark_default"
    assert spark_of(update(state, spark_from_rows=4), rows) is None


def test_rows_for_a_state_without_columns_are_written_in_one_write(area: StagingArea) -> None:
    from airflow_tx.state import SqlGuard

    guard = SqlGuard("tx_state", name="guard", statements=["SELECT 1"])
    how, rows = Update(update(words()).input, guard, "worker"), StagedRows(area, ref(area, counted(9)), guard, ATTEMPT)
    assert UpdateRows(how, rows).fits()
    assert spark_of(Update(how.input, guard, spark_from_rows=9), rows) is None


def test_the_worker_writes_few_rows_itself_unless_the_update_always_uses_spark(area: StagingArea) -> None:
    state = postgres([])
    rows = staged(area, 9, state)
    assert spark_of(update(state, spark_from_rows=9), rows) is None
    assert spark_of(update(state, writers="spark"), rows) == "spark_default"


# --- what a transactional state compares


def output(state: Any, *rows: dict[str, Any]) -> str:
    return output_digest(list(rows), update(state).state)


def test_two_outputs_differ_if_a_key_or_a_value_differs_and_not_if_another_column_differs() -> None:
    state, row = words(), {"word": "man", "n": 1}
    same = output(state, row)
    assert output(state, {**row, "other": 5}) == same
    assert len({same, output(state, {**row, "word": "dog"}), output(state, {**row, "n": 2})}) == 3


def test_only_float_columns_may_differ_if_rows_are_added_in_another_order() -> None:
    near = (0.1 + 0.2 + 0.3, 0.3 + 0.2 + 0.1)
    state = words(n=Count(), total=Sum("double"))
    one, other = (output(state, {"word": "man", "n": 1, "total": total}) for total in near)
    assert one != other
    assert same_output(one, other)
    one, other = (output(state, {"word": "man", "n": total, "total": 1.0}) for total in near)
    assert not same_output(one, other)


def test_the_comparison_of_outputs_for_a_reducer_includes_every_column_of_a_row() -> None:
    for state in (words(n=Count(), balance=Balance()), words(n=Count(), delay=Avg())):
        row = {"word": "man", "n": 1, "step": 1}
        assert output(state, row) != output(state, {**row, "step": 2})
