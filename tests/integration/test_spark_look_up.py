"""Rows of DataFrames, looked up by executors in real stores: in this process's Spark, and on a Spark Connect server."""

from __future__ import annotations

import datetime as dt
import json
import os
import sys
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import ConfigError
from airflow_tx.operators.spark import SparkBatchOperator
from airflow_tx.operators.spark_connect import SparkConnectBatchOperator
from airflow_tx.outputs.staging.area import read_output
from airflow_tx.spark.batch import Batch
from airflow_tx.spark.connect import session
from airflow_tx.state import (
    Avg,
    CollectSet,
    Count,
    First,
    MapGet,
    MemcachedState,
    MemoryState,
    OpaqueMap,
    RedisMap,
    RedisState,
    SqlState,
    StaticState,
    Sum,
)
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit.update import partition_persist
from tests.integration.spark_runs import Topology
from tests.integration.watch import Watch
from tests.servers.memcached import LocalMemcached
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import REDIS_PASSWORD, LocalRedis
from tests.unit.bench import Numbers

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

pytestmark = pytest.mark.spark

SECRET = uuid.uuid4().hex
MOMENT = dt.datetime(2013, 1, 1, 5, 30)
CARRIERS: Mapping[str, Any] = {
    "keys": ["carrier"],
    "values": {
        "flights": Count(),
        "paid": Sum("numeric"),
        "mean": Avg(),
        "seen": CollectSet(),
        "first": First("timestamp"),
        "name": First("text"),
    },
}


@pytest.fixture(params=[pytest.param("classic", marks=pytest.mark.long), "connect"])
def batch(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A batch in a session of each kind, as an application gets it."""
    made = object.__new__(Batch)
    if request.param == "classic":
        made._spark = request.getfixturevalue("spark")
        yield made
        return
    server: LocalSparkConnect = request.getfixturevalue("spark_connect")
    with session(server.url, tag="look-ups", server="test") as made._spark:
        yield made


def frame(batch: Any, partitions: int = 3) -> DataFrame:
    """Rows 0 to 99, with a carrier and a column of another kind."""
    spark: SparkSession = batch._spark
    rows = [(number, f"C{number % 5}", [number]) for number in range(100)]
    made: DataFrame = spark.createDataFrame(rows, "id bigint, carrier string, list array<bigint>")
    return made.repartition(partitions)


def collected(found: DataFrame) -> list[dict[str, Any]]:
    return [row.asDict() for row in found.orderBy("id").collect()]


def carriers(state: Any) -> Any:
    """The state with three carriers in it."""
    row = {"flights": 2, "paid": Decimal("0.25"), "mean": 3.0, "seen": "x", "first": MOMENT, "name": "Ä"}
    Grants().commit_rows(1, state, [{"carrier": f"C{number}", **row} for number in range(3)])
    return state


@pytest.fixture(scope="module", autouse=True)
def reader(postgres: LocalPostgres) -> None:
    postgres.add_superuser("reader", SECRET)


def secret_url(postgres: LocalPostgres) -> str:
    """The URL of a new database, with a password that nobody may see."""
    url = sa.engine.make_url(postgres.url(postgres.new_database())).set(username="reader", password=SECRET)
    return url.render_as_string(hide_password=False)


def connection_of(url: str) -> str:
    """The URL as the text of an Airflow connection."""
    parts = sa.engine.make_url(url)
    at = {"host": parts.host, "port": parts.port, "login": parts.username, "password": parts.password}
    return json.dumps({"conn_type": "postgres", "schema": parts.database, **at})


@pytest.mark.lead
@pytest.mark.worth("look-ups of a whole column from a store, in every type")
@pytest.mark.parametrize(
    "store", ["postgres", *(pytest.param(store, marks=pytest.mark.long) for store in ("redis", "sqlite"))]
)
def test_a_look_up_adds_value_columns_with_their_types_and_null_for_missing_keys(
    batch: Any, store: str, postgres: LocalPostgres, redis: LocalRedis, prefix: str, tmp_path: Path
) -> None:
    state: Any
    if store == "redis":
        state = RedisState.from_url(redis.url(), prefix=prefix, **CARRIERS)
    else:
        url = secret_url(postgres) if store == "postgres" else f"sqlite:///{tmp_path}/state.db"
        state = SqlState.from_url(url, table="carriers", **CARRIERS)
    found = batch.look_up(carriers(state), frame(batch))
    types = dict(found.dtypes)
    assert [types[name] for name in ("flights", "paid", "seen", "first", "mean")] == [
        "bigint", "string", "string", "timestamp_ntz", "double",
    ]  # fmt: skip
    rows = collected(found)
    assert [row["id"] for row in rows] == list(range(100))
    assert rows[1]["list"] == [1]
    known = {"flights": 2, "paid": "0.25", "mean": 3.0, "seen": '["x"]', "first": MOMENT, "name": "Ä"}
    assert {name: rows[1][name] for name in known} == known
    assert [row["flights"] for row in rows[:5]] == [2, 2, 2, None, None]
    chosen = batch.look_up(state, frame(batch).withColumnRenamed("carrier", "by"), query=MapGet(["by"], ["name"]))
    assert collected(chosen)[7] == {"id": 7, "by": "C2", "list": [7], "name": "Ä"}


@pytest.mark.long
def test_no_password_appears_in_a_query_plan_or_a_log(
    batch: Any,
    postgres: LocalPostgres,
    redis: LocalRedis,
    prefix: str,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_TX_STATE", connection_of(secret_url(postgres)))
    state = carriers(SqlState("tx_state", table="carriers", **CARRIERS))
    other = RedisState.from_url(redis.url(), prefix=prefix, keys=["id"], values={"n": Count()})
    Grants().commit_rows(1, other, [{"id": 7, "n": 70}])
    # Of two look-ups in a query each has a key of its own.
    both = batch.look_up(other, batch.look_up(state, frame(batch)))
    both.explain(True)
    rows = collected(both)
    assert [(row["flights"], row["n"]) for row in rows[7:9]] == [(2, 70), (None, None)]
    told = capfd.readouterr()
    assert "MapInArrow" in told.out + told.err
    assert SECRET not in told.out + told.err
    server: LocalSparkConnect = request.getfixturevalue("spark_connect")
    assert Watch(SECRET, server.folder).files() == []


class Places:
    """A database of locations of one's own, which notes each of its calls."""

    def __init__(self, log: str) -> None:
        self.log = log

    def begin_commit(self, txid: int | None) -> None: ...

    def commit(self, txid: int | None) -> None: ...

    def places(self, ids: Sequence[int]) -> list[list[str]]:
        with open(self.log, "a") as file:
            file.write(f"{len(ids)}\n")
        return [[f"place {number}"] * (number % 3) for number in ids]


class PlacesFactory:
    """Its factory, as a class that no executor can import."""

    def __init__(self, log: str) -> None:
        self.log = log

    def make_state(self, conf: Mapping[str, Any], partition_index: int, num_partitions: int) -> Places:
        return Places(self.log)


class QueryPlaces:
    """A query that drops rows, and makes several of others."""

    def batch_retrieve(self, state: Places, rows: Sequence[Mapping[str, Any]]) -> list[list[str]]:
        assert all(row["list"] == [row["id"]] for row in rows)
        return state.places([row["id"] for row in rows])

    def execute(self, row: Mapping[str, Any], result: list[str]) -> Iterable[Mapping[str, Any]]:
        return [{"place": place, "number": number} for number, place in enumerate(result)]


@pytest.mark.long
@pytest.mark.parametrize("static", [False, True])
def test_a_user_defined_query_runs_once_for_each_arrow_batch_of_a_partition(
    batch: Any, tmp_path: Path, static: bool
) -> None:
    factory: Any = PlacesFactory(str(tmp_path / "calls"))
    given = StaticState(factory) if static else factory
    found = batch.look_up(given, frame(batch), query=QueryPlaces(), fields="place string, number int")
    # Sorted here: Spark would ask twice, to find out how to divide the rows among partitions.
    rows = sorted((row["id"], row["place"], row["number"]) for row in found.collect())
    assert rows[:3] == [(1, "place 1", 0), (2, "place 2", 0), (2, "place 2", 1)]
    assert len(rows) == sum(number % 3 for number in range(100))
    assert sum(map(int, Path(factory.log).read_text().split())) == 100
    assert len(Path(factory.log).read_text().split()) <= 3


class UpdatePlaces:
    """The updater of an update that is only asked."""

    def update_state(self, state: Places, rows: Sequence[Mapping[str, Any]]) -> None: ...


@pytest.mark.lead
@pytest.mark.parametrize("partitions", [pytest.param(1, marks=pytest.mark.long), 3])
def test_a_look_up_accepts_an_update_and_queries_the_state_of_the_update(
    batch: Any, tmp_path: Path, partitions: int
) -> None:
    output: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="return_value")
    factory = PlacesFactory(str(tmp_path / "calls"))
    writers: Any = {"partitions": partitions, "partition_by": ["id"]}
    update = partition_persist(output, state=factory, updater=UpdatePlaces(), **writers)
    found = batch.look_up(update, frame(batch), query=QueryPlaces(), fields="place string, number int")
    rows = sorted((row["id"], row["place"], row["number"]) for row in found.collect())
    assert rows[:3] == [(1, "place 1", 0), (2, "place 2", 0), (2, "place 2", 1)]
    assert len(rows) == sum(number % 3 for number in range(100))


@pytest.mark.long
def test_a_look_up_queries_maps_and_static_states_by_key(
    batch: Any, redis: LocalRedis, prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    query: Any = MapGet(keys=["carrier"], values=["n"])
    with LocalMemcached() as server:
        monkeypatch.setenv("AIRFLOW_CONN_TX_CACHE", json.dumps({"conn_type": "memcached", "host": server.address}))
        told = {"conn_type": "redis", "host": "127.0.0.1", "port": redis.port, "password": REDIS_PASSWORD}
        monkeypatch.setenv("AIRFLOW_CONN_TX_REDIS", json.dumps(told))
        maps: list[Any] = [
            MemcachedState.opaque("tx_cache", prefix=prefix),
            OpaqueMap(RedisMap("tx_redis", prefix=prefix)),
            StaticState({"C1": 5}),
        ]
        for given in maps:
            if not isinstance(given, StaticState):
                made = given.make_state({}, 0, 1) if isinstance(given, MemcachedState) else given
                made.multi_put([("C1",)], [5])
            rows = collected(batch.look_up(given, frame(batch), query=query, fields="n bigint"))
            assert [row["n"] for row in rows[:3]] == [None, 5, None], given


MEMORY = MemoryState("here", keys=["carrier"], values={"flights": Count()})


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"frame": "renamed"}, r"\(frame\) = \['carrier'\].*Name the columns of the key"),
        ({"frame": "twice"}, r"\(frame\) = \['flights'\].*The DataFrame already has a column with this name"),
        ({"state": StaticState({})}, r"\(fields=\) = None.*StaticState does not declare its new columns: set fields="),
        ({"query": QueryPlaces()}, r"\(fields=\) = None.*QueryPlaces does not declare"),
        ({"fields": "flights bigger than"}, r"\(fields=\) = 'flights bigger than'.*Declare the columns as in DDL"),
        ({"state": MEMORY}, r"\(state\) = 'MemoryState'.*Executors cannot read.*use state_query in a @task"),
    ],
)
def test_an_invalid_look_up_fails_with_one_line_before_any_job_runs(
    batch: Any, how: dict[str, Any], told: str, redis: LocalRedis, prefix: str
) -> None:
    from pyspark.sql.functions import lit

    state: Any = RedisState.from_url(redis.url(), prefix=prefix, keys=["carrier"], values={"flights": Count()})
    asked = frame(batch)
    asked = {"renamed": asked.withColumnRenamed("carrier", "by"), "twice": asked.withColumn("flights", lit(1))}.get(
        how.get("frame", ""), asked
    )
    with pytest.raises(ConfigError, match=told):
        batch.look_up(
            how.get("state", state),
            asked,
            query=how.get("query"),
            fields=how.get("fields"),
        )


APP = """
from airflow_tx.spark import batch_app
from states import carriers

@batch_app
def main(spark, batch):
    rows = spark.range(4).selectExpr("id", "concat('C', id) AS carrier")
    batch.emit("named", batch.look_up(carriers, rows).select("carrier", "flights"))
"""
STATES = """
from airflow_tx.state import Count, SqlState

carriers = SqlState("tx_state", table="carriers", keys=["carrier"], values={"flights": Count()})
"""


@pytest.mark.lead
@pytest.mark.parametrize(
    "operator", [pytest.param(SparkBatchOperator, marks=pytest.mark.long), SparkConnectBatchOperator]
)
def test_an_application_can_look_up_values_with_the_connection_of_its_task(
    operator: Any,
    postgres: LocalPostgres,
    spark_connect: LocalSparkConnect,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name in ("PATH", "PYTHONPATH", "PYSPARK_PYTHON", "PYSPARK_DRIVER_PYTHON", "SPARK_LOCAL_IP"):
        monkeypatch.setenv(name, os.environ.get(name, sys.executable if "PYTHON" in name[5:] else ""))
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    monkeypatch.setenv("AIRFLOW_TX_CONN_tx_state", "")  # so that what is handed over is taken back
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    connect = {"conn_type": "spark_connect", "host": "127.0.0.1", "port": spark_connect.port}
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_CONNECT_DEFAULT", json.dumps(connect))
    monkeypatch.setenv("AIRFLOW_CONN_TX_STATE", connection_of(secret_url(postgres)))
    state = SqlState("tx_state", table="carriers", keys=["carrier"], values={"flights": Count()})
    Grants().commit_rows(1, state, [{"carrier": "C1", "flights": 5}])
    (tmp_path / "app.py").write_text(APP)
    (tmp_path / "states.py").write_text(STATES)
    topology = Topology(Numbers(), tmp_path, str(tmp_path / "dag.py"))
    run = topology.begin("r1")
    more = {"connections": ["tx_state"]} if operator is SparkBatchOperator else {}
    ti = run.execute(operator(task_id="count", application="app.py", **more))
    handed = operator is SparkBatchOperator  # the code of the other one runs in this process
    assert (SECRET in os.environ["AIRFLOW_TX_CONN_tx_state"]) is handed
    area = topology.area
    found = read_output(area, ti.pushed["named"], attempt=run.begun.attempt)
    assert {row["carrier"]: row["flights"] for row in found} == {"C0": None, "C1": 5, "C2": None, "C3": None}
