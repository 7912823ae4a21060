"""A ZooKeeper whose heap, watches, sessions and processor time can be read, and a store that counts bytes."""

from __future__ import annotations

import os
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from airflow_tx.ledger.api import Create, Put, Requirement, Write
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import WatchedStore, ZooKeeperStore
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

T = TypeVar("T")
MB = 1_000_000


class ScaleZooKeeper(LocalZooKeeper):
    """A server with a heap of its own size.

    :param heap: megabytes.
    :param options: further ones of Java, as `-Djute.maxbuffer=…`.
    :param settings: further lines of its configuration.
    """

    def __init__(self, heap: int = 512, options: Sequence[str] = (), settings: Sequence[str] = (), **others: Any):
        super().__init__(**({"fsync": False, "start_timeout": 300.0} | others))
        self._heap, self._options, self._settings = heap, options, settings

    def _command(self) -> list[str]:
        java, *rest = super()._command()
        return [java, *self._options, *(f"-Xmx{self._heap}m" if each.startswith("-Xmx") else each for each in rest)]

    def _prepare(self) -> None:
        super()._prepare()
        with self._config.open("a") as config:
            config.writelines(f"{line}\n" for line in ("4lw.commands.whitelist=*", *self._settings))

    def monitored(self) -> dict[str, str]:
        """What the server says of itself: `mntr`."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=30) as connection:
            connection.sendall(b"mntr")
            with connection.makefile("rb") as stream:
                lines = stream.read().decode().splitlines()
        return dict(line.split("\t", 1) for line in lines if "\t" in line)

    @property
    def heap_used(self) -> int:
        """Bytes that are alive after a collection."""
        done = subprocess.run(["jmap", "-histo:live", str(self.pid)], capture_output=True, text=True, check=True)
        return int(done.stdout.splitlines()[-1].split()[2])

    @property
    def processor_seconds(self) -> float:
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    @property
    def snapshot_size(self) -> int:
        """Bytes of the newest snapshot."""
        found = sorted((self.data_dir / "version-2").glob("snapshot.*"), key=lambda each: int(each.suffix[1:], 16))
        return found[-1].stat().st_size

    def started_again(self) -> tuple[float, float]:
        """Stop it and start it: seconds until it answers, and seconds of a processor."""
        self.stop(60)
        began = time.perf_counter()
        self.start()
        return time.perf_counter() - began, self.processor_seconds


class _Meter(ZooKeeperStore):
    """Counts the bytes of records and names, both ways."""

    read = written = 0
    asked = answered = 0
    """Requests and answers: kazoo tells of these in a thread of its own, so each number has one writer."""
    largest = 0
    """Bytes of the largest record that it has written."""

    def _sent(self, request: Callable[[], Any]) -> Any:
        self.asked += 1
        answer = super()._sent(request)
        answer.rawlink(self._count)
        return answer

    def settle(self) -> None:
        """Wait until every answer is counted."""
        while self.answered < self.asked:
            time.sleep(0.001)

    def _count(self, answer: Any) -> None:
        self.answered += 1
        found = answer.value
        if type(found) is tuple:  # not one of a node's times and versions
            data = found[0]
            self.read += len(data) if isinstance(data, bytes) else sum(len(name) + 4 for name in data)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        super().multi(requirements, writes)
        for write in writes:
            size = len(write.data) if isinstance(write, (Create, Put)) else 0
            self.written, self.largest = self.written + size, max(self.largest, size)


class MeteredStore(_Meter):
    """A store that counts bytes."""


class MeteredWatchedStore(_Meter, WatchedStore):
    """One that remembers, and counts the bytes that it is sent."""


@contextmanager
def metered(hosts: str, cls: type[MeteredStore] = MeteredStore) -> Iterator[MeteredStore]:
    """A store on a client of its own."""
    client = connect(ClientConfig(hosts, session_timeout=60.0))
    try:
        yield cls(client)
    finally:
        disconnect(client)


@dataclass(frozen=True)
class Cost:
    """What something took: of each of several times.

    :param seconds: by the clock.
    :param own: seconds of a processor in this process; `server`: in ZooKeeper's.
    """

    requests: float
    read: float
    written: float
    seconds: float
    own: float
    server: float

    def __str__(self) -> str:
        sizes = f"{size(self.read)} | {size(self.written)}"
        times = f"{self.seconds * 1000:.1f} | {self.own * 1000:.1f} | {self.server * 1000:.1f}"
        return f"{number(self.requests)} | {sizes} | {times}"


COLUMNS = "requests | bytes read | bytes written | ms | processor ms, own | processor ms, ZooKeeper"


def cost(store: _Meter, server: ScaleZooKeeper, action: Callable[[], Any], times: int = 1) -> Cost:
    """Do something so many times."""
    store.settle()
    before = (store.requests, store.read, store.written)
    server_before, own, began = server.processor_seconds, time.process_time(), time.perf_counter()
    for _ in range(times):
        action()
    took = (time.perf_counter() - began, time.process_time() - own, server.processor_seconds - server_before)
    store.settle()
    counted = (after - one for after, one in zip((store.requests, store.read, store.written), before, strict=True))
    return Cost(*(each / times for each in (*counted, *took)))


def size(count: float) -> str:
    """Bytes, short."""
    return f"{count:.0f}" if count < 10_000 else f"{count / 1000:,.0f} kB"


def number(count: float) -> str:
    """A whole number where it is one."""
    return f"{count:,.0f}" if count == int(count) else f"{count:,.1f}"


def table(*columns: str) -> None:
    """Print the head of a table."""
    print(f"\n| {' | '.join(columns)} |\n|{'---|' * ' | '.join(columns).count(' | ')}---|")


def row(*cells: object) -> None:
    """Print a row of it."""
    print(f"| {' | '.join(map(str, cells))} |", flush=True)
