"""Who writes an update: chosen by its size, overridable; and in which portions this process writes."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import ConfigError, FenceOutranked, LedgerBehind, RowsDiffer, StateError, StoreUnavailable
from airflow_tx.ledger.attempt import Grant, TaskTry
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Written
from airflow_tx.outputs.staging.area import StagingArea, write_manifest, write_rows
from airflow_tx.outputs.staging.row_hash import digest_of_batch
from airflow_tx.spark.writers import rebuilt_error, total
from airflow_tx.state import Avg, Count, DeltaTable, MemoryState, SqlState, SqlTable
from airflow_tx.testing.suites.aggregator_cases import Balance, LastTwo
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit import write
from airflow_tx.transaction.commit.handoff import explain_outranked
from airflow_tx.transaction.commit.update import Update, persistent_aggregate
from airflow_tx.transaction.commit.write import StagedRows, UpdateRows, output_digest, rows_to_write, spark_of
from tests.unit.commit.staged import ATTEMPT

pytestmark = pytest.mark.usefixtures("small")

POSTGRES = SqlState.from_url("postgresql://user:secret@nowhere/db", table="words", keys=["word"], values={"n": Count()})
SQLITE = SqlState.from_url("sqlite:///nowhere.db", table="words", keys=["word"], values={"n": Count()})
MEMORY = MemoryState("words", keys=["word"], values={"n": Count()})


def ref(area: StagingArea, count: int, name: str = "counts", **more: Any) -> dict[str, Any]:
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, f"try {count}"))
    rows = [{"word": f"w{i}", "n": i, **more} for i in range(count)]
    return write_manifest(where, {name: write_rows(where, name, rows)})[name].to_json()


def staged(area: StagingArea, count: int, state: Any = POSTGRES) -> StagedRows:
    return StagedRows(area, ref(area, count), state, ATTEMPT)


def update(state: Any = POSTGRES, conn_id: str | None = "spark_default", **how: Any) -> Any:
    task = SimpleNamespace(task_id="count", **({"conn_id": conn_id} if conn_id else {}))
    return persistent_aggregate(SimpleNamespace(operator=task, key="counts"), state=state, **how)


def test_spark_writes_a_large_output_and_the_worker_writes_a_small_output(area: StagingArea) -> None:
    assert spark_of(update(), staged(area, 10)) == "spark_default"
    assert spark_of(update(), staged(area, 9)) is None
    assert spark_of(update(spark_from_rows=9), staged(area, 9)) == "spark_default"


def test_an_update_can_choose_its_writer(area: StagingArea) -> None:
    assert spark_of(update(writers="worker"), staged(area, 10)) is None
    assert spark_of(update(writers="spark", spark="local[2]"), staged(area, 1)) == "local[2]"
    assert spark_of(update(spark="sc://spark:15002"), staged(area, 10)) == "sc://spark:15002"


def test_the_auto_writer_never_chooses_spark_for_a_state_that_spark_cannot_write(area: StagingArea) -> None:
    assert spark_of(update(SQLITE), staged(area, 10)) is None
    assert spark_of(update(MEMORY), staged(area, 10)) is None
    assert spark_of(update(conn_id=None), staged(area, 10)) is None
    assert spark_of(update(), [{"word": "w", "n": 1}] * 20) is None


@pytest.mark.parametrize(
    ("state", "conn_id", "plain", "why"),
    [
        (SQLITE, "spark_default", False, "State 'url.words' allows one writer at a time, like SQLite"),
        (POSTGRES, None, False, 'No Spark connection is set, .* add spark="spark_default"'),
        (POSTGRES, "spark_default", True, "but here the commit task combines rows that tasks return"),
    ],
    ids=["one writer", "nowhere", "plain"],
)
def test_spark_as_the_writer_is_refused_for_a_state_that_spark_cannot_write(
    area: StagingArea, state: Any, conn_id: str | None, plain: bool, why: str
) -> None:
    rows: Any = [{"word": "w", "n": 1}] if plain else staged(area, 3)
    with pytest.raises(ConfigError, match=why):
        spark_of(update(state, conn_id, writers="spark"), rows)
    assert spark_of(update(state, conn_id, writers="spark"), []) is None


def test_an_unknown_writer_is_refused_while_the_dag_is_parsed() -> None:
    with pytest.raises(ConfigError, match='Use "auto", "worker" or "spark"'):
        update(writers="executors")


@pytest.mark.parametrize(
    "how", [{"spark_from_rows": 0}, {"spark_from_rows": -1}, {"spark_from_rows": 9, "writers": "worker"}]
)
def test_an_invalid_number_of_rows_for_spark_is_refused_while_the_dag_is_parsed(how: Any) -> None:
    with pytest.raises(ConfigError, match='Use a number of rows from 1, with writers="auto"'):
        update(**how)


def test_a_spark_address_with_parameters_is_refused_and_not_shown() -> None:
    with pytest.raises(ConfigError, match="create a connection of type spark_connect") as refused:
        update(spark="sc://spark:15002/;token=abc")
    assert "abc" not in str(refused.value)
    assert "secret" not in repr(update())


def test_many_rows_are_written_in_portions_and_few_rows_are_written_at_once(area: StagingArea) -> None:
    grant, state = Grants()(1), MemoryState("words", keys=["word"], values={"n": Count()})
    few, many, how = staged(area, 4, state), staged(area, 9, state), update(state)
    assert UpdateRows(how, few).fits()
    assert not UpdateRows(how, many).fits()
    state.raise_fence(grant)
    assert write.write_update(how, grant, many, dag_file="", log=None).keys == 9
    assert sorted(value.chunk or 0 for value in state.database.rows.values()) == [0, 0, 0, 0, 1, 1, 1, 1, 2]
    fence = state.fence()
    assert fence is not None
    assert fence.applied


def emitted(area: StagingArea, count: int, said: int) -> StagedRows:
    """Rows of an output of which the digest of others was noted, if `said` is not 1."""
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, f"said {said}"))
    rows = [{"word": f"w{i}", "n": 1} for i in range(count)]
    (batch,) = pa.Table.from_pylist([{**row, "n": said} for row in rows]).to_batches()
    output = replace(write_rows(where, "counts", rows), row_digest=digest_of_batch(batch).text)
    return StagedRows(area, write_manifest(where, {"counts": output})["counts"].to_json(), MEMORY, ATTEMPT)


def test_many_rows_are_compared_with_the_emitted_rows_before_the_first_row_is_written(area: StagingArea) -> None:
    how = update(MEMORY)
    right = emitted(area, 9, said=1)
    assert write.whole(how, right) is right
    with pytest.raises(RowsDiffer, match=r"9 rows, digest .* were read from output 'counts' of task count.* emitted"):
        write.whole(how, emitted(area, 9, said=2))


class _Output:
    """Where the new values of an update go."""

    def __init__(self, output: Any = None) -> None:
        self._output = output

    def of(self, name: str) -> Any:
        return self._output


def written_at_once(how: Update, grant: Grant, rows: Any, output: Any = None) -> Written:
    found = write.write_moment([UpdateRows(how, rows)], grant, _Output(output))  # type: ignore[arg-type]
    return found[how.state.name]


def moment(*states: Any) -> list[Any]:
    """The states that are written together with the raise of their fences."""
    rows = [UpdateRows(Update(None, state), []) for state in states]
    return [each.state for each in write.moment_of(rows)]


def test_the_fence_of_a_lake_table_is_raised_with_its_rows_unless_two_states_share_a_database() -> None:
    lake = DeltaTable("/lake/words")
    one, two = (SqlTable.from_url("sqlite:///nowhere.db", table=table) for table in ("one", "two"))
    assert moment(POSTGRES, lake, one) == [lake]
    assert moment(POSTGRES, lake, one, two) == [one, two]
    assert moment(POSTGRES, one) == [POSTGRES]


def test_few_rows_are_compared_with_the_emitted_rows_in_the_store_transaction_that_writes_them(
    area: StagingArea,
) -> None:
    state = MemoryState("words", keys=["word"], values={"n": Count()})
    how, wrong = update(state), emitted(area, 4, said=2)
    assert write.whole(how, wrong) is wrong
    with pytest.raises(RowsDiffer):
        written_at_once(how, Grants()(1), wrong)
    assert (state.fence(), state.read()) == (None, [])
    assert written_at_once(how, Grants()(1), emitted(area, 4, said=1)).keys == 4


def test_for_a_reducer_all_rows_of_a_key_are_in_one_portion_in_their_order(area: StagingArea) -> None:
    state = MemoryState("users", keys=["user"], values={"balance": Balance(), "last": LastTwo()})
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, "try"))
    rows = [{"user": f"u{i % 7}", "step": (i * 37) % 23 - 11, "other": "x"} for i in range(50)]
    staged = write_manifest(where, {"counts": write_rows(where, "counts", rows)})["counts"].to_json()
    found = StagedRows(area, staged, state, ATTEMPT)
    assert found.columns == ["user", "step", "other"]
    expected = {f"u{i}": 0 for i in range(7)}
    for row in rows:
        expected[str(row["user"])] = max(0, expected[str(row["user"])] + int(str(row["step"])))
    for attempt in (1, 2):
        grant = Grants()(1, attempt)
        state.database.fence = None
        state.raise_fence(grant)
        assert write.write_update(update(state), grant, found, dag_file="", log=None).keys == 7
        # The same portions again are harmless.
        assert write.write_update(update(state), grant, found, dag_file="", log=None).keys == 7
        assert {row["user"]: row["balance"] for row in state.read()} == expected
    assert len({value.chunk for value in state.database.rows.values()}) > 2
    assert output_digest(found, update(state).state) == output_digest(list(found)[::-1], update(state).state)


def test_a_reducer_without_keys_reads_its_rows_as_a_stream(area: StagingArea) -> None:
    state = MemoryState("users", keys=[], values={"balance": Balance(), "n": Count()})
    rows = staged(area, 9, state)
    assert spark_of(update(state, spark_from_rows=1), rows) is None
    grant = Grants()(1)
    state.raise_fence(grant)
    with pytest.raises(StateError, match="step"):  # the rows have none
        write.write_update(update(state), grant, rows, dag_file="", log=None)
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, "steps"))
    steps = [{"step": 1, "n": 2} for _ in range(9)]
    ref_of_steps = write_manifest(where, {"counts": write_rows(where, "counts", steps)})["counts"].to_json()
    rows = StagedRows(area, ref_of_steps, state, ATTEMPT)
    assert write.write_update(update(state), grant, rows, dag_file="", log=None).keys == 1
    assert state.read() == [{"balance": 9, "n": 18}]


class _Keys:
    """The new values of an update: which keys were looked up."""

    def __init__(self) -> None:
        self.found: list[Sequence[Any]] = []

    def keys(self, state: Any, keys: Sequence[Sequence[Any]], *, chunk: int) -> None:
        self.found += [(chunk, *key) for key in keys]


def test_the_new_values_for_a_reducer_contain_each_written_key_once(area: StagingArea) -> None:
    state = MemoryState("users", keys=["user"], values={"balance": Balance()})
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, "try"))
    rows = [{"user": f"u{i % 2}", "step": i} for i in range(3)]
    ref_of_rows = write_manifest(where, {"counts": write_rows(where, "counts", rows)})["counts"].to_json()
    found, output = StagedRows(area, ref_of_rows, state, ATTEMPT), _Keys()
    assert written_at_once(update(state, new_values="balances"), Grants()(1), found, output).keys == 2
    assert output.found == [(0, "u0"), (0, "u1")]


def test_a_state_refuses_a_key_that_is_in_two_portions(area: StagingArea) -> None:
    grant, state = Grants()(1), MemoryState("words", keys=["word"], values={"n": Count()})
    where = area.try_dir("words", ATTEMPT, TaskTry("count", -1, "try"))
    rows = [{"word": f"w{i % 8}", "n": 1} for i in range(9)]
    twice = write_manifest(where, {"counts": write_rows(where, "counts", rows)})["counts"].to_json()
    state.raise_fence(grant)
    with pytest.raises(StateError, match="(?i)chunk|twice|aggregate"):
        write.write_update(update(state), grant, StagedRows(area, twice, state, ATTEMPT), dag_file="", log=None)


def test_staged_rows_can_be_read_twice_and_their_digest_does_not_depend_on_their_order(area: StagingArea) -> None:
    rows, plain = staged(area, 9), [{"n": i, "word": f"w{i}"} for i in reversed(range(9))]
    assert list(rows) == list(rows) == plain[::-1]
    assert output_digest(rows, update().state) == output_digest(plain, update().state)
    assert output_digest(rows, update().state) != output_digest(plain[1:], update().state)
    assert output_digest(plain * 2, update().state) != output_digest([], update().state)


def test_the_digest_of_an_output_with_a_composite_column_includes_the_emitted_values(area: StagingArea) -> None:
    state = MemoryState("words", keys=["word"], values={"n": Count(), "delay": Avg()})
    whole = rows_to_write(update(state), [ref(area, 2, delay=1.5)], area, ATTEMPT)
    assert isinstance(whole, StagedRows)
    assert whole.columns == ["word", "n", "delay"]
    digest = output_digest(whole, update(state).state)
    other = rows_to_write(update(state), [ref(area, 2, delay=2.5)], area, ATTEMPT)
    assert output_digest(other, update(state).state) != digest


def test_an_outranked_chunk_is_reported_before_other_refused_chunks() -> None:
    outranked = {"error": "FenceOutranked", "fields": {"state": "s", "token": "1", "found": "2"}}
    other = {"error": "StateError", "fields": {"state": "s", "problem": "p", "remedy": "r"}}
    with pytest.raises(FenceOutranked):
        total([{"keys": 3}, other, outranked])
    assert total([{"keys": 3, "rows": 5}, {"keys": 4, "rows": 4}]) == (7, 9)
    assert isinstance(rebuilt_error("Unheard", {"state": "s"}), StateError)


def test_an_outranked_committer_is_reported_as_outranked_although_the_ledger_is_unreachable() -> None:
    def holds(token: Any) -> bool:
        raise StoreUnavailable(hosts="zk1:2181", connection="zk", reason="cut off")

    ledger: Any = SimpleNamespace(holds=holds)
    outranked = FenceOutranked(state="words", token="1/1.1#1", found="1/1.2#3")
    assert explain_outranked(ledger, {}, Grants()(1), outranked) is outranked
    behind = LedgerBehind(state="words", topology="flights", found=2, expected=1, txid=1)
    with pytest.raises(StoreUnavailable):  # whether it is, only the ledger knows
        explain_outranked(ledger, {}, Grants()(1), behind)
