"""The hook on a real ZooKeeper: Test button, store, and the store that a process shares."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import pytest

from airflow_tx.base.errors import ConfigError, StoreRefused, StoreUnavailable
from airflow_tx.hooks import zookeeper as kept_client
from airflow_tx.hooks.zookeeper import ZooKeeperHook, shared_store, shared_watched_store
from airflow_tx.ledger.store.client import disconnect
from airflow_tx.plugin.api.snapshots import LedgerClient
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.server import find_java, pyspark_jars
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper


@pytest.fixture(autouse=True)
def connection(zookeeper: LocalZooKeeper, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({"conn_type": "zookeeper", "host": zookeeper.hosts}))
    # On a busy machine a server that is there answers late.
    monkeypatch.setenv("AIRFLOW__TX__SESSION_TIMEOUT", "60")
    monkeypatch.setenv("AIRFLOW__TX__CONNECT_TIMEOUT", "240")
    # The connection is read again where a test says so, not because it takes long.
    monkeypatch.setattr(kept_client, "CHECK_EVERY", float("inf"))
    yield
    for client in kept_client._kept.values():
        client.close()
    kept_client._kept.clear()


@contextmanager
def without_patience() -> Iterator[None]:
    """Within the block, nobody waits long for a server that is not there."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("AIRFLOW__TX__CONNECT_TIMEOUT", "0.5")
        yield


def test_the_test_button_reports_whether_the_server_answers(
    monkeypatch: pytest.MonkeyPatch, zookeeper: LocalZooKeeper
) -> None:
    assert ZooKeeperHook("zk").test_connection() == (True, f"ZooKeeper answers at {zookeeper.hosts}")
    monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({"conn_type": "zookeeper", "host": "127.0.0.1:1"}))
    with without_patience():
        answers, said = ZooKeeperHook("zk").test_connection()
    assert not answers
    assert "ZooKeeper 127.0.0.1:1 (connection zk) cannot be reached" in said


def test_a_store_is_closed_at_the_end_of_its_with_block() -> None:
    with ZooKeeperHook("zk").store() as store:
        assert store.get("/") is not None
    assert store.ended


def test_a_missing_pem_file_causes_a_one_line_error(monkeypatch: pytest.MonkeyPatch, zookeeper: LocalZooKeeper) -> None:
    fields = {"host": zookeeper.hosts, "extra": {"use_tls": True, "ca_file": "/nowhere/ca.pem"}}
    monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({"conn_type": "zookeeper", **fields}))
    with pytest.raises(ConfigError, match="ca_file of connection zk = '/nowhere/ca.pem'"):
        ZooKeeperHook("zk").get_conn()


def test_all_threads_of_a_process_share_one_client() -> None:
    with ThreadPoolExecutor(8) as pool:
        stores = list(pool.map(lambda _: shared_store("zk"), range(16)))
    assert len({id(store) for store in stores}) == 1
    assert stores[0].get("/") is not None


def test_a_forked_child_creates_its_own_client() -> None:
    shared = shared_store("zk")
    receiving, sending = os.pipe()
    child = os.fork()
    if child == 0:
        own = shared_store("zk")
        os.write(sending, b"own" if own is not shared and own.get("/") is not None else b"bad")
        os._exit(0)
    assert os.read(receiving, 3) == b"own"
    os.waitpid(child, 0)
    assert shared.get("/") is not None


def test_a_shared_client_is_replaced_after_it_was_closed() -> None:
    first = shared_store("zk")
    (kept,) = kept_client._kept.values()
    disconnect(kept._client)
    second = shared_store("zk")
    assert second is not first
    assert second.get("/") is not None


@pytest.mark.lead
def test_a_shared_client_is_replaced_if_an_older_server_refuses_its_session(
    monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    copy = tmp_path_factory.mktemp("snapshot")
    # A client that is not served is given up after two of its sessions.
    monkeypatch.setenv("AIRFLOW__TX__SESSION_TIMEOUT", "2")
    with LocalZooKeeper(fsync=False) as server:
        monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({"conn_type": "zookeeper", "host": server.hosts}))
        server.snapshot_to(copy)
        shared_store("zk").ensure("/the/future")
        server.restore_from(copy)

        def served() -> bool:
            try:
                store = shared_store("zk")
                return store.lost_for == 0 and store.get("/the/future") is None
            except StoreUnavailable:
                return False

        eventually(served, 240, "a new client is served")


def put_into(monkeypatch: pytest.MonkeyPatch, server: LocalZooKeeper) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({"conn_type": "zookeeper", "host": server.hosts}))


def test_a_kept_client_uses_the_new_server_after_its_connection_was_changed(
    monkeypatch: pytest.MonkeyPatch, zookeeper: LocalZooKeeper
) -> None:
    with LocalZooKeeper(fsync=False) as moved:
        with ZooKeeperHook("zk").store() as before:
            before.ensure("/only/before")
        board = LedgerClient("zk")
        assert shared_store("zk").get("/only/before") is not None
        # The board waits two seconds for its client.
        eventually(lambda: board.store().get("/only/before") is not None, 240, "the board has a client")
        put_into(monkeypatch, moved)
        assert shared_store("zk").get("/only/before") is not None  # it is not read for every question
        monkeypatch.setattr(kept_client, "CHECK_EVERY", 0.0)
        assert shared_store("zk").get("/only/before") is None
        assert shared_watched_store("zk").get("/only/before") is None
        eventually(lambda: board.store().get("/only/before") is None, 240, "the board has followed")
        board._kept.close()


def test_a_kept_client_is_used_again_while_its_connection_cannot_be_read(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    first = shared_store("zk")
    monkeypatch.setattr(kept_client, "CHECK_EVERY", 0.0)
    monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({"conn_type": "zookeeper", "host": ""}))
    assert shared_store("zk") is first
    assert "Connection zk cannot be read again: host of connection zk" in caplog.text


def test_the_steps_on_the_page_change_the_password_of_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[2] / "docs" / "howto" / "run-a-zookeeper.md").read_text()
    hashed, typed = re.findall(r"```(?:bash|)\n(.*?)```", page[page.index("## Change the password") :], re.DOTALL)[:2]
    with LocalZooKeeper(fsync=False) as server:
        login = {"conn_type": "zookeeper", "host": server.hosts, "login": "ada"}
        monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({**login, "password": "old"}))
        shared_store("zk").ensure("/airflow_tx/flights")
        command = [sys.executable, *shlex.split(hashed)[1:]]
        new = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()
        main = [find_java(), "-cp", ":".join(map(str, pyspark_jars("*.jar"))), "org.apache.zookeeper.ZooKeeperMain"]
        commands = typed.partition("\n")[2].replace("HASH", new) + "quit\n"
        subprocess.run([*main, "-server", server.hosts], input=commands, check=True, capture_output=True, text=True)
        with pytest.raises(StoreRefused):
            shared_store("zk").get("/airflow_tx/flights")
        monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({**login, "password": "new"}))
        monkeypatch.setattr(kept_client, "CHECK_EVERY", 0.0)
        assert shared_store("zk").get("/airflow_tx/flights") is not None
        shared_store("zk").ensure("/airflow_tx/flights/coordinator")


def test_the_next_call_connects_again_after_a_server_was_unreachable(monkeypatch: pytest.MonkeyPatch) -> None:
    with LocalZooKeeper(fsync=False) as server:
        monkeypatch.setenv("AIRFLOW_CONN_ZK", json.dumps({"conn_type": "zookeeper", "host": server.hosts}))
        server.stop()
        with without_patience(), pytest.raises(StoreUnavailable, match=r"\(connection zk\)"):
            shared_store("zk")
        server.start()
        assert shared_store("zk").get("/") is not None
