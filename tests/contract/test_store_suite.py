"""The store suite on every store we have."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from airflow_tx.ledger.api import Store
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.suites.store_suite import StoreSuite


class TestMemoryStore(StoreSuite):
    @pytest.fixture
    def store(self) -> Store:
        return MemoryStore()


@contextmanager
def _client(config: ClientConfig) -> Iterator[Store]:
    client = connect(config)
    yield ZooKeeperStore(client, conn=config.conn_id, hosts=config.hosts)
    disconnect(client)


class TestZooKeeperStore(StoreSuite):
    @pytest.fixture
    def config(self, zookeeper: LocalZooKeeper) -> ClientConfig:
        return ClientConfig(zookeeper.hosts)

    @pytest.fixture
    def store(self, config: ClientConfig) -> Iterator[Store]:
        with _client(config) as store:
            yield store

    @pytest.fixture
    def other(self, config: ClientConfig) -> Iterator[Store]:
        with _client(config) as store:
            yield store


@pytest.mark.lead
class TestZooKeeperStoreBelowAChrootWithDigestAcls(TestZooKeeperStore):
    @pytest.fixture
    def config(self, zookeeper: LocalZooKeeper) -> ClientConfig:
        return ClientConfig(zookeeper.hosts, chroot="/suite/chroot", login="suite", password="s3cret")
