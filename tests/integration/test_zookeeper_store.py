"""The store on a real ZooKeeper whose replies get lost, whose sessions expire, which hangs, dies and comes back."""

from __future__ import annotations

import json
import logging
import subprocess
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest
from kazoo.exceptions import (  # type: ignore[import-untyped]
    NotReadOnlyCallError,
    SystemZookeeperError,
    ThrottledOpError,
)

from airflow_tx.base.errors import (
    LoginRefused,
    OutcomeUnknown,
    StoreDeclined,
    StoreRefused,
    StoreUnavailable,
    TooMuchMetadata,
    UnknownMessage,
    UnreadableRecord,
)
from airflow_tx.coordinator.plan import SnapshotReader
from airflow_tx.hooks.zookeeper import ZooKeeperHook
from airflow_tx.ledger.api import Create, Node, Put, Unchanged, topologies
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect, request_refused
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.outputs.messages.stores import open_ackers
from airflow_tx.outputs.messages.tree import Origin
from airflow_tx.state.api import Grant
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers import zookeeper
from airflow_tx.testing.servers.server import find_java, free_ports, pyspark_jars
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from tests.integration.pipeline import Pipeline
from tests.integration.proxy import ReplyEater

_SOON = 300.0
"""Seconds within which an answer comes, however busy the machine is."""

Connect = Callable[..., tuple[Any, ZooKeeperStore]]


@pytest.fixture(scope="module")
def server() -> Iterator[LocalZooKeeper]:
    """Its own, because it is killed."""
    with LocalZooKeeper(fsync=False) as server:
        yield server


@pytest.fixture
def proxy(server: LocalZooKeeper) -> Iterator[ReplyEater]:
    with ReplyEater(server.start().hosts) as proxy:
        yield proxy


@pytest.fixture
def client_of() -> Iterator[Connect]:
    """Makes a client and a store on it."""
    clients = []

    def make(
        hosts: str, *, config: dict[str, Any] | None = None, restarts: bool = False, **options: Any
    ) -> tuple[Any, ZooKeeperStore]:
        # Its session outlives a busy machine. A client that comes back while its server starts may hang for this time
        # divided by the number of hosts: where the server restarts, it is named twenty times.
        own: dict[str, Any] = {"session_timeout": 60, "connect_timeout": _SOON, **(config or {})}
        made = connect(ClientConfig(",".join([hosts] * (20 if restarts else 1)), conn_id="zk_test", **own))
        clients.append(made)
        times = {"read_timeout": _SOON, "write_timeout": _SOON}
        return made, ZooKeeperStore(made, conn="zk_test", hosts=hosts, **{**times, **options})

    yield make
    for client in clients:
        disconnect(client)


@pytest.fixture
def root(server: LocalZooKeeper, client_of: Connect, zookeeper_root: str) -> str:
    client_of(server.start().hosts)[1].ensure(zookeeper_root)
    return zookeeper_root


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def put(store: ZooKeeperStore, path: str) -> None:
    store.multi([Unchanged(path, 0)], [Put(path, b"written")])


# --- an answer that never comes ----------------------------------------------------------------------------------


def test_the_outcome_of_a_write_with_a_lost_reply_is_unknown_until_a_read_resolves_it(
    proxy: ReplyEater, client_of: Connect, root: str, pool: ThreadPoolExecutor
) -> None:
    _, store = client_of(proxy.hosts)
    store.sync()
    proxy.eat()
    writing = pool.submit(put, store, root)
    assert proxy.wait_eaten(_SOON)
    proxy.cut()
    with pytest.raises(OutcomeUnknown, match=f"ZooKeeper did not answer a write of {root}.*ConnectionLoss"):
        writing.result(_SOON)
    store.sync()
    assert store.get(root) == Node(b"written", 1)


def test_the_outcome_of_a_write_that_never_arrived_is_unknown_until_a_read_resolves_it(
    server: LocalZooKeeper, client_of: Connect, root: str, pool: ThreadPoolExecutor
) -> None:
    _, store = client_of(server.hosts, restarts=True)
    with server.frozen():
        writing = pool.submit(put, store, root)
        eventually(lambda: store.requests == 1, _SOON, "the write is sent")
        server.kill()
    server.start()
    with pytest.raises(OutcomeUnknown):
        writing.result(_SOON)
    store.sync()
    assert store.get(root) in (Node(b"", 0), Node(b"written", 1))


def test_the_outcome_of_a_write_is_unknown_if_its_session_expires_during_the_write(
    server: LocalZooKeeper, proxy: ReplyEater, client_of: Connect, root: str, pool: ThreadPoolExecutor
) -> None:
    client, store = client_of(proxy.hosts)
    session = client.client_id[0]
    proxy.eat()
    writing = pool.submit(put, store, root)
    assert proxy.wait_eaten(_SOON)
    server.expire_session(client)
    proxy.cut()
    with pytest.raises(OutcomeUnknown):
        writing.result(_SOON)
    store.sync()
    assert store.get(root) == Node(b"written", 1)
    assert client.client_id[0] != session


def test_a_write_to_a_hanging_server_times_out_and_later_reads_return_the_written_record(
    server: LocalZooKeeper, client_of: Connect, root: str, pool: ThreadPoolExecutor
) -> None:
    _, store = client_of(server.hosts, write_timeout=0.3)
    with server.frozen():
        with pytest.raises(OutcomeUnknown, match="no answer in time"):
            put(store, root)
        syncing, reading = pool.submit(store.sync), pool.submit(store.get, root)
    # It was sent, the server only took its time: a read by the same session sees it.
    syncing.result(_SOON)
    assert reading.result(_SOON) == Node(b"written", 1)


def test_the_ledger_resolves_lost_replies_of_a_real_server(
    proxy: ReplyEater, client_of: Connect, root: str, pool: ThreadPoolExecutor
) -> None:
    client, store = client_of(proxy.hosts)
    pipeline = Pipeline(store, root)

    def lose_reply_to(step: Callable[[], Any]) -> Any:
        """Lose the reply to the multi of a step."""
        sending, transaction = threading.Event(), client.transaction

        def first_transaction() -> Any:
            client.transaction = transaction
            proxy.eat()
            sending.set()
            return transaction()

        client.transaction = first_transaction
        doing: Future[Any] = pool.submit(step)
        assert sending.wait(_SOON)
        assert proxy.wait_eaten(_SOON)
        proxy.cut()
        return doing.result(_SOON)

    pipeline.begin("r0")  # makes the ledger
    begun = lose_reply_to(lambda: pipeline.begin("r1"))
    assert begun.attempt.txid == 2
    pipeline.run("r0")
    processed = pipeline.process(begun)
    grant = lose_reply_to(lambda: pipeline.acquire(begun, processed))
    lose_reply_to(lambda: pipeline.mark(grant))
    view = topology_view(store, pipeline.paths)
    assert (view.current, view.allocated) == (3, 2)


# --- a server that is away ---------------------------------------------------------------------------------------


def test_a_request_that_was_not_sent_is_unavailable_and_the_error_names_connection_and_hosts(
    server: LocalZooKeeper, client_of: Connect, root: str
) -> None:
    client, store = client_of(server.hosts, restarts=True, read_timeout=0.5)
    server.stop()
    eventually(lambda: not client.connected, _SOON, "the client has noticed")
    sent = store.requests
    steps: list[Callable[[], object]] = [
        lambda: put(store, root),
        lambda: store.get(root),
        store.sync,
        lambda: store.ensure(f"{root}/a"),
    ]
    for step in steps:
        with pytest.raises(StoreUnavailable, match=rf"{server.hosts} \(connection zk_test\).* within 0.5 s"):
            step()
    assert store.requests == sent
    server.start()
    eventually(lambda: client.connected, _SOON, "the client has reconnected")
    put(store, root)


def test_reads_continue_after_a_restart_of_the_server(
    server: LocalZooKeeper, client_of: Connect, root: str, pool: ThreadPoolExecutor
) -> None:
    _, store = client_of(server.hosts, restarts=True)
    reads, stop = threading.Event(), threading.Event()

    def read() -> None:
        while not stop.is_set():
            assert store.get(root) == Node(b"", 0)
            reads.set()

    reading = pool.submit(read)
    assert reads.wait(_SOON)
    server.drop_connections()
    reads.clear()
    assert reads.wait(_SOON), "it reads on"
    stop.set()
    reading.result(_SOON)


def test_a_watch_is_triggered_when_the_connection_is_lost(
    server: LocalZooKeeper, client_of: Connect, root: str
) -> None:
    client, store = client_of(server.hosts)
    with store.watch(root) as watch:
        server.lose_connection(client)
        assert watch.wait(_SOON)


def test_a_closed_client_refuses_requests_at_once(server: LocalZooKeeper, root: str) -> None:
    client = connect(ClientConfig(server.hosts))
    store = ZooKeeperStore(client)
    disconnect(client)
    with pytest.raises(StoreUnavailable, match="the client has ended its session"):
        store.get(root)


def test_an_unreachable_server_causes_a_one_line_error_within_the_connect_timeout() -> None:
    (nobody,) = free_ports(1)
    config = ClientConfig(f"127.0.0.1:{nobody}", conn_id="zk_test", login="ada", password="s3cret", connect_timeout=0.5)
    with pytest.raises(StoreUnavailable) as error:
        connect(config)
    told = str(error.value)
    assert told.startswith(f"ZooKeeper 127.0.0.1:{nobody} (connection zk_test) cannot be reached: no answer within")
    assert "s3cret" not in told + repr(config)


def test_an_unanswered_write_of_many_records_causes_a_short_one_line_error(
    proxy: ReplyEater, client_of: Connect, root: str
) -> None:
    _, store = client_of(proxy.hosts, write_timeout=0.3)
    proxy.eat()
    with pytest.raises(OutcomeUnknown, match=f"{root}/19 and 480 more: the write may have happened"):
        store.multi([], [Create(f"{root}/{number}", b"") for number in range(500)])
    proxy.cut()


# --- sizes -------------------------------------------------------------------------------------------------------


def test_the_size_of_a_multi_includes_the_chroot_prefix_of_each_path(
    server: LocalZooKeeper, client_of: Connect, zookeeper_root: str
) -> None:
    """The server would cut the connection, and nobody would know whether it happened."""
    client, store = client_of(server.start().hosts, config={"chroot": f"{zookeeper_root}/{'deep' * 50}"})
    store.ensure("/many")
    many = [Create(f"/many/{number}", b"") for number in range(4000)]
    session = client.client_id[0]
    with pytest.raises(TooMuchMetadata, match=r"^/many/0 and what is written with it would hold 1\d{6} bytes"):
        store.multi([], many)
    store.multi([], many[:3000])
    assert len(store.children("/many").names) == 3000  # type: ignore[union-attr]
    assert client.client_id[0] == session


def test_a_store_uses_the_size_limit_of_its_servers(server: LocalZooKeeper, client_of: Connect, root: str) -> None:
    _, store = client_of(server.hosts, limit=2000)
    with pytest.raises(TooMuchMetadata, match="would hold 1900 bytes, and ZooKeeper takes at most 2000"):
        store.multi([], [Put(root, b"x" * 1900)])
    store.multi([], [Put(root, b"x" * 1500)])


# --- the owner ---------------------------------------------------------------------------------------------------


def test_an_announcement_of_an_owner_is_visible_until_it_is_withdrawn(
    server: LocalZooKeeper, client_of: Connect, root: str
) -> None:
    client, store = client_of(server.hosts)
    path = f"{root}/owner"
    with store.announce(path, b"me"):
        shown = eventually(lambda: (n := store.get(path)) and n.data == b"me" and n, _SOON, "it is shown")
        assert shown
        assert client.exists(path).ephemeralOwner == client.client_id[0]
    store.sync()
    assert store.get(path) is None


def test_an_announcement_is_repeated_in_a_new_session_unless_it_has_ended(
    server: LocalZooKeeper, client_of: Connect, root: str
) -> None:
    client, store = client_of(server.hosts)
    _, other = client_of(server.hosts)
    path = f"{root}/owner"

    def expire() -> None:
        session = client.client_id[0]
        server.expire_session(client)
        eventually(lambda: client.connected and client.client_id[0] != session, _SOON, "it has a new session")

    with store.announce(path, b"me"):
        eventually(lambda: other.get(path), _SOON, "it is shown")
        expire()
        eventually(lambda: other.get(path), _SOON, "it is shown again")
        assert client.exists(path).ephemeralOwner == client.client_id[0]
    expire()
    store.sync()
    assert other.get(path) is None


def test_a_delayed_committer_does_not_remove_the_announcement_of_the_next_committer(
    server: LocalZooKeeper, client_of: Connect, root: str
) -> None:
    """The coordinator would take the next one for dead."""
    server.start()
    _, store = client_of(server.hosts)
    pipeline = Pipeline(store, root)
    looker = SnapshotReader(store, pipeline.paths)

    def granted(run: str) -> Grant:
        begun = pipeline.begin(run)
        return pipeline.acquire(begun, pipeline.process(begun))

    def shown() -> bool | None:
        look = looker.look()
        assert look is not None
        return look.owner

    first = granted("r1")
    with ExitStack() as late:
        late.enter_context(store.announce(pipeline.paths.owner(first.token.nonce), b"r1"))
        eventually(shown, _SOON, "the first one is shown")
        pipeline.mark(first)
        second = granted("r2")
        assert shown() is False
        with store.announce(pipeline.paths.owner(second.token.nonce), b"r2"):
            late.close()
            store.sync()
            assert shown() is True
            assert topology_view(store, pipeline.paths).owner is None  # b"r2" is no JSON
    store.sync()
    assert shown() is False


def test_an_announcement_never_blocks_and_never_fails(server: LocalZooKeeper, client_of: Connect, root: str) -> None:
    client, store = client_of(server.hosts)
    with store.announce(f"{root}/no/parent", b"x"):
        store.sync()
    server.stop()
    eventually(lambda: not client.connected, _SOON, "the client has noticed")
    with store.announce(f"{root}/owner", b"x"):
        pass
    disconnect(client)
    with store.announce(f"{root}/owner", b"x"):
        pass
    server.start()


# --- who may see what --------------------------------------------------------------------------------------------


def test_records_created_with_a_login_cannot_be_used_with_another_login(
    server: LocalZooKeeper, client_of: Connect, zookeeper_root: str
) -> None:
    server.start()
    base = f"{zookeeper_root}-chroot/deep"
    ada = {"chroot": base, "login": "ada", "password": "s3cret"}
    client, store = client_of(server.hosts, config=ada)
    pipeline = Pipeline(store, "/root")
    pipeline.run("r1")
    with store.announce(pipeline.paths.owner("n"), b"x"):
        store.sync()
        client.chroot = ""
        for path in _below(client, zookeeper_root + "-chroot"):
            (acl,) = client.get_acls(path)[0]
            assert (acl.id.scheme, acl.id.id.partition(":")[0]) == ("digest", "ada"), path
        client.chroot = base

    _, stranger = client_of(server.hosts)
    record = f"{base}{pipeline.paths.record}"
    steps: list[Callable[[], object]] = [
        lambda: stranger.get(record),
        lambda: stranger.multi([], [Put(record, b"")]),
        lambda: stranger.multi([], [Create(f"{base}/x", b"")]),
        lambda: stranger.ensure(f"{base}/x"),
    ]
    for step in steps:
        with pytest.raises(StoreRefused, match=r"\(connection zk_test\) refused access to .*NoAuth"):
            step()
    with pytest.raises(StoreRefused, match=base):
        client_of(server.hosts, config={"chroot": base, "login": "eve", "password": "other"})
    assert client_of(server.hosts, config=ada)[1].get(pipeline.paths.record) is not None


def _below(client: Any, path: str) -> Iterator[str]:
    yield path
    for name in client.get_children(path):
        yield from _below(client, f"{path}/{name}")


def test_no_password_is_ever_logged(
    server: LocalZooKeeper, client_of: Connect, root: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.DEBUG), caplog.at_level(logging.DEBUG, logger="airflow_tx.zookeeper"):
        client, store = client_of(server.hosts, config={"login": "ada", "password": "s3cret"})
        client.add_auth("digest", "bob:s3cret")
        store.get(root)
    assert "Sending request" in caplog.text
    assert "s3cret" not in caplog.text


def test_the_command_in_the_error_of_begin_restores_a_counter_that_was_set_back(
    server: LocalZooKeeper, client_of: Connect, zookeeper_root: str
) -> None:
    client, store = client_of(server.start().hosts)
    pipeline = Pipeline(store, zookeeper_root)
    older = b'{"format":1,"txid":0}'
    assert [pipeline.run("r1"), pipeline.run("r2")] == [1, 2]
    client.set(pipeline.paths.allocated, older)
    with pytest.raises(UnreadableRecord, match="its last txid is 0, and transaction 2 has begun") as refused:
        pipeline.run("r3")
    command = str(refused.value).partition("zkCli.sh must ")[2].partition(". Nothing")[0]
    main = [find_java(), "-cp", ":".join(map(str, pyspark_jars("*.jar"))), "org.apache.zookeeper.ZooKeeperMain"]
    typed = [*main, "-server", server.hosts]
    subprocess.run(typed, input=f"{command}\nquit\n", check=True, capture_output=True, text=True)
    assert pipeline.run("r3") == 3


# --- what the servers read otherwise -----------------------------------------------------------------------------


class _Plain(LocalZooKeeper):
    """A server whose Java has no UTF-8 as its charset, as in a container without a locale."""

    def _command(self) -> list[str]:
        return ["env", "LC_ALL=C", *super()._command()]


@pytest.fixture(scope="module")
def plain() -> Iterator[LocalZooKeeper]:
    with _Plain(fsync=False) as server:
        yield server


@pytest.mark.parametrize(("login", "password"), [("ada", "geheim-ä"), ("jörg", "s3cret"), ("a:b", "s3cret")])
def test_a_login_that_servers_interpret_differently_is_refused_and_creates_no_root(
    plain: LocalZooKeeper, client_of: Connect, zookeeper_root: str, login: str, password: str
) -> None:
    config = {"login": login, "password": password}
    client, store = client_of(plain.hosts, config=config)
    for step in (
        lambda: store.ensure(f"{zookeeper_root}/deep"),
        lambda: client_of(plain.hosts, config={**config, "chroot": f"{zookeeper_root}/deep"}),
    ):
        with pytest.raises(LoginRefused, match="Use ASCII alone, without a colon in the login") as refused:
            step()
        assert "\n" not in str(refused.value)
        assert password not in str(refused.value)
    assert client.exists(zookeeper_root) is None


def test_an_ascii_login_can_create_a_root_on_every_server(
    plain: LocalZooKeeper, client_of: Connect, zookeeper_root: str
) -> None:
    login = {"login": "a-da", "password": "s3:cret !"}
    client_of(plain.hosts, config=login)[1].ensure(f"{zookeeper_root}/deep")
    again = client_of(plain.hosts, config={**login, "chroot": f"{zookeeper_root}/deep"})[1]
    again.multi([], [Create("/a", b"1")])
    assert Pipeline(again, "/root").run("r1") == 1


def test_a_server_can_be_reached_by_its_ipv6_address(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "_CONFIG", zookeeper._CONFIG.replace("clientPortAddress=127.0.0.1\n", ""))
    with LocalZooKeeper(fsync=False) as server:
        for host in (f"[::1]:{server.port}", "::1"):
            connection = {"conn_type": "zookeeper", "host": host, "port": server.port}
            monkeypatch.setenv("AIRFLOW_CONN_ZK6", json.dumps(connection))
            assert ZooKeeperHook("zk6").test_connection() == (True, f"ZooKeeper answers at [::1]:{server.port}")
        monkeypatch.setenv("AIRFLOW_CONN_ZK6", f"zookeeper://[::1]:{server.port}")
        assert ZooKeeperHook("zk6").test_connection()[0]
        ackers = open_ackers(f"zookeeper://[::1]:{server.port},[::1]:{server.port}/ackers")
        with pytest.raises(UnknownMessage):  # so they answer
            ackers.check(Origin("words", 1, 1))
        ackers.close()


# --- side by side ------------------------------------------------------------------------------------------------


def test_two_roots_on_one_ensemble_are_independent_and_so_are_two_ensembles(
    server: LocalZooKeeper, zookeeper: LocalZooKeeper, client_of: Connect, zookeeper_root: str
) -> None:
    _, here = client_of(server.start().hosts)
    _, there = client_of(zookeeper.hosts)
    one = Pipeline(here, f"{zookeeper_root}/one")
    two = Pipeline(here, f"{zookeeper_root}/two")
    far = Pipeline(there, f"{zookeeper_root}/one")
    assert [one.run("r1"), one.run("r2"), two.run("r1"), far.run("r1")] == [1, 2, 1, 1]
    for pipeline, current in ((one, 3), (two, 2), (far, 2)):
        assert topology_view(pipeline.store, pipeline.paths).current == current
        assert topologies(pipeline.store, pipeline.paths.root) == ("flights",)
    incarnations = {topology_view(each.store, each.paths).record.incarnation for each in (one, two, far)}
    assert len(incarnations) == 3


def test_an_exceeded_quota_is_not_reported_as_missing_rights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zookeeper, "_CONFIG", zookeeper._CONFIG + "enforceQuota=true\n")
    with LocalZooKeeper(fsync=False) as server:
        client = connect(ClientConfig(server.hosts, conn_id="zk_test"))
        store = ZooKeeperStore(client, conn="zk_test", hosts=server.hosts)
        store.ensure("/small")
        client.create("/zookeeper/quota/small/zookeeper_stats", b"count=1,bytes=0", makepath=True)
        client.create(
            "/zookeeper/quota/small/zookeeper_limits", b"count=-1,bytes=-1=;byteHardLimit=-1;countHardLimit=1"
        )
        steps: list[Callable[[], object]] = [
            lambda: store.multi([], [Create("/small/x", b"")]),
            lambda: store.ensure("/small/x"),
            lambda: connect(ClientConfig(server.hosts, conn_id="zk_test", chroot="/small/x")),
        ]
        for step in steps:
            with pytest.raises(
                StoreDeclined, match=r"about /small/x: the quota of a path is used up\. .* raise the quota"
            ):
                step()
        disconnect(client)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (ThrottledOpError(), "it is overloaded. Nothing was changed; wait until its load is lower"),
        (NotReadOnlyCallError(), "read-only. Nothing was changed; start the other servers, then clear the task."),
        (SystemZookeeperError(), "SystemZookeeperError. Nothing was changed; read the logs of its servers"),
    ],
)
def test_a_request_that_a_server_does_not_support_is_refused_with_the_remedy(error: Exception, said: str) -> None:
    refused = request_refused(error, hosts="zk:2181", connection="zk_test", path="/tx")
    assert said in str(refused)
