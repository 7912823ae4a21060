"""One ledger with a topology of every kind, made once by the code of the product, and what is asked of it."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator

import pytest

from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration.commands import Commands
from tests.integration.kinds.ledger import REDIS, ROOT, Ledger
from tests.integration.kinds.topologies import KINDS
from tests.servers.memcached import LocalMemcached
from tests.servers.redis import LocalRedis


@pytest.fixture(scope="package")
def ledger(
    zookeeper: LocalZooKeeper, redis: LocalRedis, commands: Commands, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Ledger]:
    """A topology of each of `KINDS`, after all that happens to it."""
    redis.client(REDIS).flushdb()
    commands.begin({})
    with LocalMemcached() as cache:
        commands.environment["AIRFLOW_TX_KINDS_CACHES"] = cache.address
        made = Ledger(commands, tmp_path_factory.mktemp("kinds"), redis.url(REDIS))
        made.connect(redis=made.redis, cache=f"memcached://127.0.0.1:{cache.port}")
        made.live(KINDS)
        yield made
    commands.begin({})
    forget_dags(commands)
    client = connect(ClientConfig(zookeeper.hosts))
    client.delete(ROOT, recursive=True)
    disconnect(client)


def forget_dags(commands: Commands) -> None:
    """Let the next tests have Airflow's database as if these DAGs had never been there."""
    handle = sqlite3.connect(f"{commands.environment['AIRFLOW_HOME']}/airflow.db")
    with handle:
        for table in ("xcom", "task_instance", "dag_run", "serialized_dag", "dag_code", "dag_version", "dag"):
            handle.execute(f"DELETE FROM {table}")
    handle.close()
