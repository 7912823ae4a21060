"""What happens at the limits: of a request, of the connections from a host, of watches and sessions in memory."""

from __future__ import annotations

import socket
import struct
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

from airflow_tx.base.errors import StoreError, TxError
from airflow_tx.ledger.api import Create
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside
from benchmarks.scale.filled import Repeatable, tree
from benchmarks.scale.server import MB, MeteredStore, MeteredWatchedStore, ScaleZooKeeper, metered, number, row, table

ROOT = "/limits"
BUFFER = 200_000
WATCHES = 100_000
SESSIONS = 500
CONNECTIONS = 3


def main(*_: str) -> None:
    """Try each of them, and print what is said."""
    table("limit", "tried", "what is said", "left behind")
    with ScaleZooKeeper() as server, metered(server.hosts) as store:
        row("1,048,575 bytes in a request", "metadata of 1,100,000 bytes", *_refused(store, 1_100_000))
    with ScaleZooKeeper(options=[f"-Djute.maxbuffer={BUFFER}"]) as server, metered(server.hosts) as store:
        tried = f"servers with jute.maxbuffer {number(BUFFER)}, metadata of 300,000 bytes"
        row("jute.maxbuffer", tried, *_refused(store, 300_000))
    _connections()
    table("what is kept", "number", "heap before, MB", "heap with them, MB", "bytes of each")
    _kept("watches, each on a record of its own", WATCHES, _watched)
    _kept("sessions", SESSIONS, _sessions)


def _refused(store: MeteredStore, size: int) -> tuple[str, str]:
    """Begin a batch that is too large: what is said, and that the ledger is as it was."""
    pipeline = Repeatable(store, ROOT)
    pipeline.ledger.open(pipeline.request)
    before, sent = dict(tree(store, pipeline.paths.base)), store.requests
    request = BeginRequest(pipeline.request, "r1", "r1", "000001", False, {"task0": "1"})
    try:
        pipeline.ledger.begin(request, Outside(decide=lambda *_: Batch("x" * size, 1), run_state=lambda run_id: None))
    except StoreError as error:
        requests = store.requests - sent
        assert dict(tree(store, pipeline.paths.base)) == before
        assert pipeline.run("r1") == 1  # and with another batch the same run goes on
        return f"{type(error).__name__}: {error}", f"nothing, after {requests} requests"
    raise AssertionError("it was taken")


def _connections() -> None:
    with ScaleZooKeeper(settings=[f"maxClientCnxns={CONNECTIONS}"]) as server, ExitStack() as stack:
        said, opened = "", 0
        try:
            while opened < CONNECTIONS + 1:
                stack.enter_context(metered(server.hosts))
                opened += 1
        except TxError as error:
            said = f"{type(error).__name__}: {error}"
    row(f"maxClientCnxns={CONNECTIONS} (60 unless set)", f"connection {opened + 1} of a host", said, "nothing")


def _kept(what: str, count: int, keep: Callable[[ScaleZooKeeper, MeteredStore, int, ExitStack], Any]) -> None:
    with ScaleZooKeeper() as server, metered(server.hosts) as store, ExitStack() as stack:
        store.ensure(ROOT)
        for start in range(0, WATCHES if keep is _watched else 0, 1000):
            store.multi([], [Create(f"{ROOT}/{each:07}", b"") for each in range(start, start + 1000)])
        before = server.heap_used
        keep(server, store, count, stack)
        after = server.heap_used
        found = server.monitored()
        assert count in (int(found["zk_watch_count"]), int(found["zk_num_alive_connections"]) - 2)
        row(what, number(count), f"{before / MB:.1f}", f"{after / MB:.1f}", f"{(after - before) / count:,.0f}")


def _watched(_: ScaleZooKeeper, store: MeteredStore, count: int, __: ExitStack) -> None:
    reader = MeteredWatchedStore.beside(store)
    for each in range(count):
        reader.get(f"{ROOT}/{each:07}")


def _sessions(server: ScaleZooKeeper, _: MeteredStore, count: int, stack: ExitStack) -> None:
    """Open sessions without a client library, whose threads would be the limit."""
    hello = struct.pack(">iqiqi", 0, 0, 60_000, 0, 16) + bytes(16) + b"\0"
    for _each in range(count):
        connection = stack.enter_context(socket.create_connection(("127.0.0.1", server.port), timeout=60))
        connection.sendall(struct.pack(">i", len(hello)) + hello)
        assert connection.recv(4), "the server has closed it"
