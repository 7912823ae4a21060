"""A real ZooKeeper on this machine, from the jars in pyspark, with faults on demand.

``python -m airflow_tx.testing.servers.zookeeper --data FOLDER`` runs a server until you interrupt it.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shutil
import signal
import socket
import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from airflow_tx.base.errors import TxError
from airflow_tx.spark.submit import WITH_JARS
from airflow_tx.testing.servers.server import JavaServer, find_java, pyspark_jars

if TYPE_CHECKING:
    from kazoo.client import KazooClient  # type: ignore[import-untyped]

_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_DATA = "version-2"  # The folder in which ZooKeeper stores snapshots and logs.
_CLOSE_SESSION = -11
_CONFIG = """\
tickTime=500
minSessionTimeout=1000
maxSessionTimeout=120000
dataDir={data_dir}
clientPort={port}
clientPortAddress=127.0.0.1
admin.enableServer=false
maxClientCnxns=0
4lw.commands.whitelist=srvr
"""


class LocalZooKeeper(JavaServer):
    """A ZooKeeper server on 127.0.0.1 with a real data directory.

    It is a context manager that starts and stops the server.

    Sessions and data survive a :meth:`restart`, and a :meth:`kill` followed by a :meth:`start`, as in a real ensemble.
    It is one server, without a quorum or a leader election.

    :param data_dir: the folder of the data, which is kept. If it is None, a temporary folder is used and removed at the
        end.
    :param port: the port to listen on. If it is None, a free port is used for the life of the object.
    :param fsync: whether every write is forced to the disk, as in production. Without it, writes are faster, and still
        survive the death of the process.
    :param start_timeout: the longest time that a start may take, in seconds.
    """

    title = "ZooKeeper"
    slug = "zookeeper"

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        fsync: bool = True,
        start_timeout: float = 60.0,
    ) -> None:
        super().__init__(data_dir, port=port, start_timeout=start_timeout)
        self._fsync = fsync

    @property
    def hosts(self) -> str:
        """Return the connection string for clients, ``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self.port}"

    def snapshot_to(self, path: str | os.PathLike[str]) -> None:
        """Copy all data of the server to the folder ``path``, replacing its content.

        A running server stops for a moment.
        """
        with self._stopped():
            _replace_tree(self.data_dir / _DATA, Path(path) / _DATA)

    def restore_from(self, path: str | os.PathLike[str]) -> None:
        """Restore a copy from :meth:`snapshot_to`, like an operator who restores the last backup of a lost ensemble.

        :raises TxError: ``path`` has no such copy.
        """
        source = Path(path) / _DATA
        if not source.is_dir():
            raise TxError(
                message=f"{path} holds no copy of a ZooKeeper's data. Make one with snapshot_to()."
            )
        with self._stopped():
            _replace_tree(source, self.data_dir / _DATA)

    def expire_session(self, client: KazooClient) -> None:
        """End the session of a connected client on the server, as if the client had sent no message for too long.

        When this method returns, the ephemeral nodes of the client do not exist any more. The client reconnects
        immediately, and then receives the end of its session.
        """
        self._take_over(client, end_session=True)

    def lose_connection(self, client: KazooClient) -> None:
        """Cut the connection of one client, which keeps its session and reconnects."""
        self._take_over(client, end_session=False)

    def drop_connections(self) -> None:
        """Cut the connections of all clients by crashing and restarting the server. The sessions continue."""
        self.kill()
        self.start()

    def _command(self) -> list[str]:
        options = [
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            # The default log file has 64 MiB of zeros, which is too much to copy in a test of a
            # restored ensemble.
            "-Dzookeeper.preAllocSize=1024",
            f"-Dzookeeper.forceSync={'yes' if self._fsync else 'no'}",
        ]
        return [find_java(), *options, "-cp", f"{_find_jars()}/*", _MAIN, str(self._config)]

    @property
    def _config(self) -> Path:
        return self.data_dir / "zoo.cfg"

    def _prepare(self) -> None:
        self._config.write_text(
            _CONFIG.format(data_dir=self.data_dir, port=self.port), encoding="utf-8"
        )

    def _serves(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=2) as connection:
            connection.sendall(b"srvr")
            with connection.makefile("rb") as stream:
                return b"Mode: standalone" in stream.read()

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        was_running = self.running
        self.stop()
        yield
        if was_running:
            self.start()

    def _take_over(self, client: KazooClient, *, end_session: bool) -> None:
        # The server serves each session on a single connection. If a second connection has the same
        # id and password, it closes the first. This code uses the protocol directly, since a client
        # library would close the session when it ends.
        identity = client.client_id
        if identity is None:
            raise TxError(
                message="The client has no session. Start it and wait until it is connected."
            )
        session_id, password = identity
        hello = (
            struct.pack(">iqiq", 0, 0, 10_000, session_id)
            + struct.pack(">i", len(password))
            + password
            + b"\0"
        )
        frames = [hello, struct.pack(">ii", 1, _CLOSE_SESSION)] if end_session else [hello]
        # The client reconnects immediately. If it resumes its session first, the second connection
        # gets no response.
        while not self._answers(frames):
            pass

    def _answers(self, frames: Sequence[bytes]) -> bool:
        """Send a greeting and requests. Return whether all got a response or the session has ended."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=60) as twin:
            twin.sendall(b"".join(struct.pack(">i", len(each)) + each for each in frames))
            welcome = _read_frame(twin)
            is_over = len(welcome) >= 16 and struct.unpack(">iiq", welcome[:16])[2] == 0
            return bool(welcome) and (is_over or all(_read_frame(twin) for _ in frames[1:]))


def _read_frame(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4).rjust(4, b"\0"))
        return stream.read(size)


def _find_jars() -> Path:
    found = pyspark_jars("zookeeper-[0-9]*.jar")
    if not found:
        problem = "No ZooKeeper found: pyspark has one in its jars."
        raise TxError(message=f"{problem} Run: {WITH_JARS}, or start one of your own.")
    return found[0].parent


def _replace_tree(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    if source.is_dir():
        shutil.copytree(source, target)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a server for trials until SIGINT or SIGTERM. Its data are kept, but without a second copy."""
    parser = argparse.ArgumentParser(
        prog="python -m airflow_tx.testing.servers.zookeeper", description=main.__doc__
    )
    parser.add_argument(
        "--data", type=Path, required=True, help="folder for its data, made if it is missing"
    )
    parser.add_argument(
        "--port", type=int, default=2181, help="port of 127.0.0.1 to listen on (default: 2181)"
    )
    options = parser.parse_args(arguments)
    ends = {signal.SIGINT, signal.SIGTERM}
    try:
        with LocalZooKeeper(options.data, port=options.port) as server:
            signal.pthread_sigmask(signal.SIG_BLOCK, ends)
            print(
                f"ZooKeeper listens on {server.hosts}, data in {server.data_dir}; Ctrl-C ends it.",
                flush=True,
            )
            signal.sigwait(ends)
    except (TxError, OSError) as error:
        raise SystemExit(str(error)) from error


if __name__ == "__main__":
    main()
