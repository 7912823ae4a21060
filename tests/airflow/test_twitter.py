"""In a real Airflow: the book's Twitter analytics over four databases, while tweets are written and Redis is killed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from examples.twitter_tweets import TweetWriter, guarded
from tests.airflow.stack import RawLedger, environment
from tests.servers.redis import REDIS_PASSWORD, LocalRedis

ROOT = Path(__file__).parents[2]
DAG, DATABASES = "twitter_partitioned", [1, 2, 3, 4]


@pytest.fixture(scope="module")
def redis() -> Iterator[tuple[LocalRedis, LocalRedis]]:
    """The tweets, and the counts."""
    with LocalRedis(persistence="aof") as tweets, LocalRedis(persistence="aof") as counts:
        yield tweets, counts


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    with LocalZooKeeper(tmp_path_factory.mktemp("zookeeper"), fsync=False) as zookeeper:
        yield zookeeper.hosts


@pytest.fixture(scope="module")
def airflow(
    tmp_path_factory: pytest.TempPathFactory, redis: tuple[LocalRedis, LocalRedis], hosts: str
) -> Iterator[LocalAirflow]:
    """An Airflow that knows the Twitter DAGs."""
    folder = tmp_path_factory.mktemp("twitter")
    for name in ("dags/twitter.py", "spark_apps/twitter.py"):
        (folder / name).parent.mkdir()
        (folder / name).write_text((ROOT / name).read_text())
    with LocalSparkConnect(master="local[1]") as spark:
        env = {
            **environment(folder, hosts),
            "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": connection("spark_connect", host="127.0.0.1", port=spark.port),
        }
        for conn_id, server in zip(("REDIS_TWEETS", "REDIS_COUNTS"), redis, strict=True):
            env[f"AIRFLOW_CONN_{conn_id}"] = connection(
                "redis", host="127.0.0.1", port=server.port, password=REDIS_PASSWORD
            )
        with LocalAirflow(folder / "home", folder / "dags", env) as running:
            yield running


@pytest.mark.long
def test_four_databases_are_counted_exactly_although_both_servers_are_killed(
    airflow: LocalAirflow, redis: tuple[LocalRedis, LocalRedis], hosts: str
) -> None:
    tweets, counts = redis
    TweetWriter(tweets, [0, 5, 6, 7, 8, 9])  # those of the other topologies, which stay empty
    writer = TweetWriter(tweets, DATABASES)
    writer.write(20)
    airflow.wait_dag(DAG)
    ledger = RawLedger(hosts, DAG)
    writer.go_on(2, every=0.5)
    try:
        eventually(lambda: ledger.allocated >= 2, 240, "two transactions are under way")
        tweets.restart()
        counts.restart()
        eventually(lambda: len(ledger.history()) >= 3, 240, "three transactions are committed")
    finally:
        writer.stop()
    expected = writer.counts()
    eventually(
        lambda: guarded(counts, "partitioned") == expected,
        120,
        "all tweets are counted",
        explain=lambda: f"{expected}\n{guarded(counts, 'partitioned')}",
    )
    assert [entry.txid for entry in ledger.history()] == list(range(1, len(ledger.history()) + 1))
    assert counts.client().hget("{partitioned}:fence", "LAST_COMMIT") == str(len(ledger.history())).encode()
    for path in airflow.home.rglob("*.log"):
        assert REDIS_PASSWORD not in path.read_text(errors="replace"), path
