"""A Delta Lake table as a state, on a real Spark of this process."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from airflow_tx.errors import FenceOutranked, OutputChanged, StateBehind, StateError, StateUnavailable
from airflow_tx.failpoints import FailpointError
from airflow_tx.sources.memory import MemorySource
from airflow_tx.state import Aggregator, Count, First, Last, Max, Min, Sum
from airflow_tx.state.api import Fence
from airflow_tx.state.delta.state import DeltaState
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.suites.state_tools import Grants, rows, totals
from tests.servers.spark_session import delta_jars, skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def delta() -> None:
    skip_without(delta_jars)


@pytest.fixture
def grants() -> Grants:
    return Grants()


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "a `table`")


@pytest.fixture
def failpoints(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    made = Failpoints(tmp_path / "failpoints")
    for name, value in made.environment.items():
        monkeypatch.setenv(name, value)
    return made


def opened(spark: SparkSession, path: str, kind: str = "opaque") -> DeltaState:
    return DeltaState(path, keys=["key"], values={"n": Sum()}, kind=kind, spark=spark)


def appending(spark: SparkSession, path: str) -> DeltaState:
    return DeltaState(path, mode="append", types={"carrier": "text", "flights": "bigint"}, spark=spark)


def stored(spark: SparkSession, path: str) -> list[dict[str, Any]]:
    found = spark.read.format("delta").load(path).where("tx_row = 'value'").orderBy("tx_key").collect()
    return [row.asDict() for row in found]


@pytest.mark.long
def test_the_worked_examples_of_trident(spark: SparkSession, path: str, grants: Grants) -> None:
    state = opened(spark, path + "1", "transactional")
    grants.commit(1, state, {"man": 3, "dog": 4})
    grants.commit(2, state, {"apple": 10})
    grants.commit(3, state, {"man": 2, "dog": 1})
    assert totals(state) == {"man": 5, "dog": 5, "apple": 10}

    state = opened(spark, path + "2")
    grants.commit(1, state, {"a": 1})
    grants.commit(2, state, {"a": 3})
    state.raise_and_write(grants(3), rows({"a": 2, "only the first attempt has it": 1}))
    (first, *_) = stored(spark, path + "2")
    assert (first["n"], first["tx_prev_n"], first["tx_txid"]) == (6, 4, 3)
    grants.commit(3, opened(spark, path + "2"), {"a": 4})
    assert totals(state) == {"a": 8}
    assert [(row["n"], row["tx_prev_n"], row["tx_txid"]) for row in stored(spark, path + "2")] == [(8, 4, 3)]


@pytest.mark.long
def test_every_aggregator_and_a_replay_that_leaves_keys_out(spark: SparkSession, path: str, grants: Grants) -> None:
    values: Mapping[str, Aggregator] = {
        "total": Sum(),
        "count": Count(),
        "least": Min("double"),
        "most": Max("text"),
        "first": First("date"),
        "last": Last("timestamp"),
        "when": Last("timestamptz"),
        "exact": Sum("numeric"),
    }
    import datetime as dt
    from decimal import Decimal

    def row(key: str, number: int) -> dict[str, Any]:
        moment = dt.datetime(2026, 3, 29, 2, 30, number)
        return {
            "day": dt.date(2026, 1, 1),
            "key": key,
            "total": number,
            "count": 1,
            "least": number / 2,
            "most": str(number),
            "first": moment.date() + dt.timedelta(number),
            "last": moment,
            "when": moment.replace(tzinfo=dt.timezone.utc),
            "exact": Decimal("0.1") + Decimal(10) ** 30,
        }

    def state() -> DeltaState:
        return DeltaState(path, keys=["day", "key"], values=values, spark=spark)

    grants.commit_rows(1, state(), [row("a", 5), row("b", 5)])
    before = state().read()
    state().raise_and_write(grants(2), [row("a", 7), row("b", 7), row("new", 7)])
    state().raise_fence(grants(2, 2))
    assert state().read() == before
    grants.commit_rows(2, state(), [row("a", 3)], attempt=3)
    (a, b) = state().read()
    assert b == before[1]
    assert a == {
        **row("a", 3),
        "total": 8,
        "count": 2,
        "least": 1.5,
        "most": "5",
        "first": row("a", 5)["first"],
        "exact": Decimal("0.2") + 2 * Decimal(10) ** 30,
    }


@pytest.mark.worth("a fence of Delta against a real late writer")
@pytest.mark.parametrize("mode", ["merge", pytest.param("append", marks=pytest.mark.long)])
def test_an_older_writer_that_wakes_after_the_next_transaction_is_refused(
    spark: SparkSession, path: str, grants: Grants, failpoints: Failpoints, mode: str
) -> None:
    make, update = (opened, rows({"a": 1})) if mode == "merge" else (appending, [{"carrier": "AA", "flights": 1}])
    state, first = make(spark, path), grants(1)
    state.raise_and_write(first, update)
    grants.final(first, state)
    old = grants(2)
    state.raise_fence(old)
    asleep = failpoints.arm("delta_state.before_merge", "pause", txid=2)
    raised = _in_thread(lambda: make(spark, path).write(old, update))
    eventually(lambda: asleep.reached, 240, "the writer has looked at the fence")
    grants.commit_rows(2, state, update, attempt=2)
    grants.commit_rows(3, state, update)
    before, commits = state.read(), len(state.history())
    asleep.release()
    assert isinstance(raised(), FenceOutranked)
    assert (state.read(), len(state.history())) == (before, commits)


@pytest.mark.long
def test_of_two_writers_inside_delta_at_the_same_moment_one_begins_anew_and_is_refused(
    spark: SparkSession, path: str, grants: Grants, tmp_path: Path
) -> None:
    """The older one has begun its MERGE, on the table as it was before the newer one's commit."""
    from pyspark.sql.functions import udf

    state, old = opened(spark, path), grants(1)
    state.raise_fence(old)
    started, go_on = str(tmp_path / "started"), str(tmp_path / "go on")

    def slowly(text: str) -> str:
        import os
        import time

        open(started, "w").close()
        while not os.path.exists(go_on):
            time.sleep(0.05)
        return text

    late = opened(spark, path)
    table = late._table
    session = table._spark
    create = session.createDataFrame

    def create_slowly(*args: Any) -> Any:
        return create(*args).withColumn("tx_key", udf(slowly, "string")("tx_key"))

    session.createDataFrame = create_slowly
    held = table.read()
    assert held.row is not None
    row, columns = held.row, late.rows_of(held)
    landed: list[bool] = []
    raised = _in_thread(lambda: landed.append(table.merge(held, row, columns, [], {"txid": 1})))
    eventually(lambda: os.path.exists(started), 240, "the MERGE reads its source")
    new = grants(1, 2)
    state.raise_and_write(new, rows({"a": 1}))
    Path(go_on).touch()
    assert raised() is None
    assert landed == [False]
    assert state.fence() == Fence(new.incarnation, new.token, True, new.batch)
    with pytest.raises(FenceOutranked):
        late.write(old, rows({"b": 1}))
    assert totals(state) == {"a": 1}


@pytest.mark.long
def test_two_grants_that_raise_at_once_end_in_order(spark: SparkSession, path: str, grants: Grants) -> None:
    old, new = grants(1), grants(1, 2)
    waiting = [
        _in_thread(lambda grant=grant: opened(spark, path).raise_and_write(grant, rows({"a": 1})))
        for grant in (old, new)
    ]
    failures = [wait() for wait in waiting]
    assert failures[1] is None
    assert failures[0] is None or isinstance(failures[0], FenceOutranked)
    assert totals(opened(spark, path)) == {"a": 1}
    assert opened(spark, path).fence() == Fence(new.incarnation, new.token, True, new.batch)


@pytest.mark.long
def test_other_data_for_the_same_transaction_is_never_silently_ignored(
    spark: SparkSession, path: str, grants: Grants
) -> None:
    opaque = opened(spark, path + "1")
    grant = grants(1)
    opaque.raise_and_write(grant, rows({"a": 1}))
    opaque.write(grant, rows({"a": 5}))
    assert totals(opaque) == {"a": 5}
    opaque.raise_and_write(grants(1, 2), rows({"b": 7}))
    assert totals(opaque) == {"b": 7}

    transactional = opened(spark, path + "2", "transactional")
    transactional.raise_and_write(grant, rows({"a": 1}))
    with pytest.raises(OutputChanged, match='use kind="opaque"'):
        transactional.write(grant, rows({"a": 5}))
    with pytest.raises(OutputChanged):
        transactional.raise_and_write(grants(1, 2), rows({"a": 5}))
    assert totals(transactional) == {"a": 1}


@pytest.mark.long
def test_the_history_of_the_table_says_which_transaction_made_a_version(
    spark: SparkSession, path: str, grants: Grants
) -> None:
    state = opened(spark, path)
    grants.commit(1, state, {"a": 1})
    state.raise_and_write(grants(2), rows({"a": 10}))
    grants.commit_rows(2, state, rows({"a": 20}), attempt=2)
    found = state.history()
    assert [(each["txid"], each["attempt"], each["applied"]) for each in found] == [
        (2, 2, True),
        (2, 1, True),
        (1, 1, True),
    ]
    told = spark.sql(f"DESCRIBE HISTORY delta.`{path.replace('`', '``')}`").collect()
    assert json.loads(told[0]["userMetadata"])["txid"] == 2
    assert told[-1]["operation"] == "CREATE TABLE"
    version = found[-1]["version"]
    before = spark.read.format("delta").option("versionAsOf", version).load(path).where("tx_row = 'value'")
    assert [(row["key"], row["n"]) for row in before.collect()] == [("a", 1)]


@pytest.mark.long
def test_appended_rows_are_there_once_with_their_transaction(spark: SparkSession, path: str, grants: Grants) -> None:
    state = appending(spark, path)
    twice = {"carrier": "AA", "flights": 2}
    grants.commit_rows(1, state, [twice, twice])
    first = grants(2)
    state.raise_fence(first)
    state.write(first, [{"carrier": "UA", "flights": n} for n in range(5)], chunk=1, complete=False)
    state.write(first, [{"carrier": "UA", "flights": n} for n in range(3)], chunk=1, complete=False)
    state.write(first, [{"carrier": "DL", "flights": None}], chunk=2)
    of_one, of_two = [{**twice, "tx_txid": 1}] * 2, [{"carrier": "DL", "flights": None, "tx_txid": 2}]
    assert state.read() == [*of_one, *({"carrier": "UA", "flights": n, "tx_txid": 2} for n in range(3)), *of_two]
    state.raise_fence(grants(2, 2))
    assert state.read() == of_one
    grants.commit_rows(2, state, [{"carrier": "DL", "flights": None}], attempt=3)
    assert state.read() == [*of_one, *of_two]
    with pytest.raises(StateError, match=r"row 1: flights = '1.5' is not an integer"):
        state.raise_and_write(grants(3), [twice, {"carrier": "AA", "flights": 1.5}])
    assert state.read() == [*of_one, *of_two]


@pytest.mark.long
@pytest.mark.parametrize("mode", ["merge", "append"])
def test_a_committer_that_dies_between_the_merge_and_the_mark_counts_once(
    spark: SparkSession, path: str, tmp_path: Path, failpoints: Failpoints, mode: str
) -> None:
    from tests.integration.spark_runs import Topology, update

    if mode == "merge":
        state = DeltaState(path, keys=["carrier"], values={"flights": Sum()}, spark=spark)
    else:
        state = appending(spark, path)
    topology = Topology(MemorySource({"all": [{"word": "x"}]}), tmp_path, str(tmp_path / "dag.py"))
    run = topology.begin("first")
    run.emit([{"carrier": "AA", "flights": 2}, {"carrier": "UA", "flights": 1}])
    failpoints.arm("commit.before_mark", "raise")
    with pytest.raises(FailpointError):
        run.commit(update(state))
    assert [(row["carrier"], row["flights"]) for row in state.read()] == [("AA", 2), ("UA", 1)]
    run.commit(update(state))
    assert [(row["carrier"], row["flights"]) for row in state.read()] == [("AA", 2), ("UA", 1)]


@pytest.mark.long
def test_an_answer_that_is_lost_is_found_out(
    spark: SparkSession, path: str, grants: Grants, monkeypatch: pytest.MonkeyPatch
) -> None:
    from pyspark.errors import PySparkException

    state, grant = opened(spark, path), grants(1)
    state.raise_fence(grant)
    table = state._table
    merged = table._merged

    def lost(*args: Any) -> int:
        merged(*args)
        raise PySparkException("the answer is lost")

    monkeypatch.setattr(table, "_merged", lost)
    assert state.write(grant, rows({"a": 1})) == 1
    assert totals(state) == {"a": 1}

    def failing(*args: Any) -> int:
        raise PySparkException("no disk left")

    monkeypatch.setattr(table, "_merged", failing)
    with pytest.raises(StateUnavailable, match="no disk left"):
        state.raise_and_write(grants(1, 2), rows({"a": 1}))
    assert totals(state) == {"a": 1}


@pytest.mark.long
def test_a_table_that_went_back_is_refused_and_takes_no_write_until_it_is_whole_again(
    spark: SparkSession, path: str, grants: Grants
) -> None:
    state, quoted = opened(spark, path), path.replace("`", "``")
    grants.commit(1, state, {"a": 1})
    version = state.history()[0]["version"]
    grants.commit(2, state, {"a": 10})
    spark.sql(f"RESTORE TABLE delta.`{quoted}` TO VERSION AS OF {version}").collect()
    with pytest.raises(StateBehind, match="--state-lost"):
        state.raise_and_write(grants(3), rows({"a": 100}))
    grants.generation, grants.last = 2, {}  # a repair accepted what the state holds
    with pytest.raises(StateError, match="the table was taken back"):
        state.raise_and_write(grants(3), rows({"a": 100}))
    spark.sql(f"RESTORE TABLE delta.`{quoted}` TO VERSION AS OF {version + 1}").collect()
    grants.commit(3, state, {"a": 100})
    assert totals(state) == {"a": 111}
    state.clear()
    assert (state.fence(), state.read()) == (None, [])
    with pytest.raises(StateBehind):
        state.raise_and_write(grants(4), rows({"a": 1}))
    grants.last = {}
    grants.commit(4, state, {"b": 1})
    assert totals(state) == {"b": 1}


@pytest.mark.long
def test_a_path_of_another_table_a_state_of_other_columns_and_a_spark_without_delta_are_refused(
    spark: SparkSession, path: str, grants: Grants
) -> None:
    spark.range(3).write.format("delta").save(path + "1")
    with pytest.raises(StateError, match="is not a table of a DeltaState"):
        opened(spark, path + "1").raise_fence(grants(1))
    grants.commit(1, opened(spark, path), {"a": 1})
    for other in (
        DeltaState(path, keys=["key"], values={"n": Max()}, spark=spark),
        opened(spark, path, "transactional"),
        appending(spark, path),
    ):
        with pytest.raises(StateError, match="the stored columns are"):
            other.raise_and_write(grants(2), [])
    plain = spark.newSession()
    plain.conf.set("spark.sql.catalog.spark_catalog", "another")
    with pytest.raises(StateError, match=r"lacks spark.sql.catalog.spark_catalog. Start Spark with the jars"):
        opened(plain, path).fence()


def _in_thread(work: Any) -> Any:
    """Start it; the answer waits for it and gives its error, or None."""
    errors: list[Exception | None] = []

    def run() -> None:
        try:
            work()
            errors.append(None)
        except Exception as error:  # noqa: BLE001
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()

    def wait() -> Exception | None:
        thread.join(120)
        assert errors, "it does not end"
        return errors[0]

    return wait
