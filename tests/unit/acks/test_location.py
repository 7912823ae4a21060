"""Where ackers are: what is refused, and what a process shares."""

from __future__ import annotations

import json

import pytest

from airflow_tx.base.errors import AckersUnavailable, ConfigError
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.outputs.messages.stores import ZnodeAckers, ackers_of, open_ackers, shared_ackers
from airflow_tx.outputs.messages.tree import Origin
from airflow_tx.testing.servers.server import free_ports

ORIGIN = Origin("words", 1, 1)


@pytest.fixture
def nobody(monkeypatch: pytest.MonkeyPatch) -> int:
    """A port at which nobody listens, and the connections `away` and `other`."""
    (port,) = free_ports(1)
    away = {"conn_type": "redis", "host": "127.0.0.1", "port": port, "password": "s3cret"}
    monkeypatch.setenv("AIRFLOW_TX_CONN_away", json.dumps(away))
    monkeypatch.setenv("AIRFLOW_TX_CONN_other", json.dumps({"conn_type": "sqlite", "host": "x"}))
    return port


def test_ackers_without_a_connection_are_stored_next_to_the_ledger() -> None:
    for connected in (ackers_of, shared_ackers):
        with connected(None, MemoryStore(), "/airflow_tx") as store:
            assert isinstance(store, ZnodeAckers)


def test_a_connection_that_is_not_to_redis_or_zookeeper_is_refused_for_ackers(nobody: int) -> None:
    with pytest.raises(ConfigError, match="redis or zookeeper"):
        open_ackers("other")


def test_the_error_for_an_unreachable_acker_store_shows_no_password(nobody: int) -> None:
    for connected in (ackers_of, shared_ackers):
        with pytest.raises(AckersUnavailable, match="The ackers at connection away cannot be reached") as refusal:
            with connected("away", MemoryStore(), "/airflow_tx") as store:
                store.check(ORIGIN)
        assert "s3cret" not in str(refusal.value)
    with pytest.raises(AckersUnavailable, match="redis cannot be reached"):
        open_ackers(f"redis://:s3cret@127.0.0.1:{nobody}/0").check(ORIGIN)


@pytest.mark.parametrize("where", ["zookeeper:///airflow_tx", "zookeeper://[::1/airflow_tx", "zookeeper://h:p/root"])
def test_a_zookeeper_connection_without_a_host_is_refused(where: str) -> None:
    with pytest.raises(ConfigError, match="zookeeper://host:port/root"):
        open_ackers(where)


def test_a_process_reuses_its_connection_to_the_ackers_until_the_connection_fails(nobody: int) -> None:
    stores = []
    for _ in range(2):
        with shared_ackers("away", MemoryStore(), "/airflow_tx") as store:
            stores.append(store)
    with pytest.raises(AckersUnavailable), shared_ackers("away", MemoryStore(), "/airflow_tx") as store:
        store.check(ORIGIN)
    with shared_ackers("away", MemoryStore(), "/airflow_tx") as store:
        stores.append(store)
    assert stores[0] is stores[1]
    assert stores[1] is not stores[2]
