"""The ZooKeeper that tests run on: it behaves like a real one, also in what goes wrong, and leaves nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient  # type: ignore[import-untyped]

from airflow_tx.base.errors import TxError
from airflow_tx.testing import LocalZooKeeper
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.processes import MARK, marked
from airflow_tx.testing.servers.server import free_ports

_SOON = 240.0
"""Seconds within which an answer comes, however busy the machine is."""


@pytest.fixture(scope="module")
def server() -> Iterator[LocalZooKeeper]:
    with LocalZooKeeper(fsync=False) as running:
        yield running


@pytest.fixture
def client(server: LocalZooKeeper, zookeeper_root: str) -> Iterator[KazooClient]:
    server.start()
    with connected(server.hosts, zookeeper_root) as kazoo:
        yield kazoo


@pytest.fixture
def patient(server: LocalZooKeeper, zookeeper_root: str) -> Iterator[KazooClient]:
    """A client that survives a restart: one that comes back while the server starts may hang in its first read, for
    the session's timeout divided by the number of hosts. With one server named six times the session outlives that.
    """
    server.start()
    with connected(",".join([server.hosts] * 6), zookeeper_root) as kazoo:
        yield kazoo


@contextlib.contextmanager
def connected(hosts: str, root: str) -> Iterator[KazooClient]:
    # On a busy machine a restart takes seconds, and kazoo's own back-off grows beyond a short session.
    retry = {"max_tries": -1, "delay": 0.05, "max_delay": 0.5}
    kazoo = KazooClient(hosts, timeout=60, connection_retry=retry)
    kazoo.start(timeout=_SOON)
    kazoo.ensure_path(root)
    kazoo.chroot = root
    yield kazoo
    kazoo.stop()
    kazoo.close()


def test_the_session_and_its_ephemeral_nodes_are_kept_after_a_lost_connection(
    server: LocalZooKeeper, client: KazooClient
) -> None:
    states: list[str] = []
    client.add_listener(states.append)
    session = client.client_id[0]
    client.create("/mine", ephemeral=True)

    server.lose_connection(client)

    eventually(lambda: states[-2:] == ["SUSPENDED", "CONNECTED"], _SOON, "the client has reconnected")
    assert client.client_id[0] == session
    assert client.exists("/mine") is not None


def test_an_expired_session_removes_its_ephemeral_nodes(server: LocalZooKeeper, client: KazooClient) -> None:
    states: list[str] = []
    client.add_listener(states.append)
    session = client.client_id[0]
    client.create("/mine", ephemeral=True)

    server.expire_session(client)

    eventually(lambda: states[-2:] == ["LOST", "CONNECTED"], _SOON, "the client has a new session")
    assert client.client_id[0] != session
    assert client.exists("/mine") is None


def test_data_and_sessions_are_kept_after_a_crash(server: LocalZooKeeper, patient: KazooClient) -> None:
    session = patient.client_id[0]
    patient.create("/kept", b"value")

    server.kill()
    assert not server.running
    server.start()

    assert eventually(lambda: patient.get("/kept")[0], _SOON, "the client reads again") == b"value"
    assert patient.client_id[0] == session


def test_a_frozen_server_answers_after_it_resumes(server: LocalZooKeeper, client: KazooClient) -> None:
    with server.frozen():
        answer = client.get_async("/")
        assert not answer.wait(0.3)
    assert answer.get(timeout=_SOON) is not None


def test_nodes_created_after_the_snapshot_are_missing_after_a_restore(
    server: LocalZooKeeper, patient: KazooClient, tmp_path: Path
) -> None:
    patient.create("/before")
    server.snapshot_to(tmp_path)
    eventually(lambda: patient.create("/after"), _SOON, "the client writes again")

    server.restore_from(tmp_path)

    # A client that has seen a later transaction is refused by the older server, as by a real restored ensemble.
    with_new_session = KazooClient(f"{server.hosts}{patient.chroot}", timeout=60)
    with_new_session.start(timeout=_SOON)
    try:
        assert with_new_session.get_children("/") == ["before"]
    finally:
        with_new_session.stop()
        with_new_session.close()


def test_a_restore_from_a_folder_without_a_snapshot_is_refused(server: LocalZooKeeper, tmp_path: Path) -> None:
    with pytest.raises(TxError, match="holds no copy"):
        server.restore_from(tmp_path)


def test_a_missing_java_command_causes_a_one_line_error(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("JAVA_HOME", str(tmp_path))
    with pytest.raises(TxError, match="No Java found in JAVA_HOME=.* Install Java 17 or newer"):
        LocalZooKeeper(tmp_path).start()


def test_the_error_names_the_port_that_is_already_in_use(server: LocalZooKeeper, tmp_path: Path) -> None:
    server.start()
    with pytest.raises(TxError, match=f"port {server.port} is taken"):
        LocalZooKeeper(tmp_path, port=server.port).start()


def test_the_error_of_a_server_that_cannot_start_contains_the_end_of_its_log(tmp_path: Path) -> None:
    (tmp_path / "version-2").write_text("not a folder")
    with pytest.raises(
        TxError,
        match=r"ZooKeeper on 127.0.0.1:\d+ ended while starting; its log .*version-2",
    ):
        LocalZooKeeper(tmp_path).start()


def test_a_closed_server_leaves_no_process_and_no_folder() -> None:
    with LocalZooKeeper(fsync=False) as own:
        folder = own.data_dir
        assert folder.exists()
    assert not own.running
    assert not folder.exists()


def test_the_server_ends_when_its_parent_process_is_killed(tmp_path: Path) -> None:
    code = (
        "import sys, time\n"
        "from airflow_tx.testing import LocalZooKeeper\n"
        "LocalZooKeeper(sys.argv[1], fsync=False).start()\n"
        "print('started', flush=True)\n"
        "time.sleep(600)\n"
    )
    owner = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE)
    assert owner.stdout is not None
    assert owner.stdout.readline() == b"started\n"
    mark = _mark_of_server(tmp_path)
    owner.send_signal(signal.SIGKILL)
    owner.communicate()

    eventually(lambda: not marked(mark), _SOON, "the server has ended")


def _mark_of_server(folder: Path) -> str:
    """The mark of the processes whose working directory is `folder`."""
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            if os.readlink(f"/proc/{pid}/cwd") != str(folder):
                continue
            variables = Path(f"/proc/{pid}/environ").read_bytes().decode().split("\0")
        except OSError:
            continue
        return next(v.rpartition(":")[2] for v in variables if v.startswith(f"{MARK}="))
    raise AssertionError(f"no process works in {folder}")


def test_the_command_runs_the_server_until_it_is_interrupted_and_keeps_the_data(tmp_path: Path) -> None:
    (port,) = free_ports(1)
    command = [
        sys.executable,
        "-m",
        "airflow_tx.testing.servers.zookeeper",
        "--data",
        str(tmp_path),
        "--port",
        str(port),
    ]
    for turn in (1, 2):
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert f"ZooKeeper listens on 127.0.0.1:{port}" in process.stdout.readline()
            client = KazooClient(f"127.0.0.1:{port}", timeout=60)
            client.start(timeout=_SOON)
            client.create(f"/mine{turn}")
            assert client.exists("/mine1")
            client.stop()
            client.close()
            process.send_signal(signal.SIGINT)
            assert process.wait(_SOON) == 0
