"""A real ZooKeeper on this machine, from the jars that pyspark ships, with faults on demand."""

from __future__ import annotations

import contextlib
import importlib.util
import os
import shutil
import signal
import socket
import struct
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from airflow_tx.errors import TxError
from airflow_tx.testing.eventually import NotInTime, eventually
from airflow_tx.testing.processes import ProcessFamily, signal_process

if TYPE_CHECKING:
    from kazoo.client import KazooClient  # type: ignore[import-untyped]

_MAIN = "org.apache.zookeeper.server.ZooKeeperServerMain"
_DATA = "version-2"  # the folder in which ZooKeeper keeps snapshots and logs
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


class LocalZooKeeper:
    """One ZooKeeper server on 127.0.0.1 with a real data directory; a context manager that starts and stops it.

    Sessions and data survive :meth:`restart` and :meth:`kill` followed by :meth:`start`, as they do on a real
    ensemble. It is one server: no quorum, no leader election.

    :param data_dir: folder for its data, kept afterwards; default: a temporary one, removed at the end.
    :param port: port to listen on; default: a free one, the same for the life of the object.
    :param fsync: force every write to the disk, as production does; without it, writes are faster and survive
        the death of the process all the same.
    :param start_timeout: seconds that a start may take.
    """

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        fsync: bool = True,
        start_timeout: float = 60.0,
    ) -> None:
        self._temporary = data_dir is None
        self._owner = os.getpid()
        self.data_dir = Path(data_dir or tempfile.mkdtemp(prefix="airflow-tx-zookeeper-")).absolute()
        self.port = port or _free_port()
        self.log = self.data_dir / "zookeeper.log"
        self._fsync = fsync
        self._start_timeout = start_timeout
        self._family = ProcessFamily()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def hosts(self) -> str:
        """The connection string for clients, ``127.0.0.1:PORT``."""
        return f"127.0.0.1:{self.port}"

    @property
    def running(self) -> bool:
        """Whether the server process is alive."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> LocalZooKeeper:
        """Start the server and wait until it answers; does nothing if it runs already.

        :raises TxError: if Java or pyspark's jars are missing, or the server does not come up.
        """
        if self.running:
            return self
        java, jars = _find_java(), _find_jars()
        self._require_free_port()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        config = self.data_dir / "zoo.cfg"
        config.write_text(_CONFIG.format(data_dir=self.data_dir, port=self.port), encoding="utf-8")
        options = [
            "-Xmx128m",
            "-XX:+UseSerialGC",
            "-XX:TieredStopAtLevel=1",
            # The default log file is 64 MiB of zeros, too much to copy in a test of a restored ensemble.
            "-Dzookeeper.preAllocSize=1024",
            f"-Dzookeeper.forceSync={'yes' if self._fsync else 'no'}",
        ]
        command = [java, *options, "-cp", f"{jars}/*", _MAIN, str(config)]
        self._process = self._family.spawn(command, env=os.environ, log=self.log, cwd=self.data_dir)
        try:
            eventually(self._ended_or_serving, self._start_timeout, "ZooKeeper answers", interval=0.05)
        except NotInTime as error:
            self.kill()
            raise self._failed_start(f"did not answer in {self._start_timeout:g} s") from error
        if not self.running:
            self.kill()
            raise self._failed_start("ended")
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """End the server (SIGTERM, after `timeout` seconds SIGKILL) and reap it; its data stay for a :meth:`start`."""
        if self._process is not None and self.running:
            self._process.terminate()
            # Hanging (SIGSTOP), it only sees the SIGTERM once it goes on.
            signal_process(self._process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL) and reap it; its data stay for another :meth:`start`."""
        if self._process is not None:
            self._family.end()
            self._process = None

    def restart(self) -> None:
        """Stop and start the server on the same data and port; clients keep their sessions."""
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its data if the directory was a temporary one."""
        self.stop()
        if self._temporary and os.getpid() == self._owner:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    def snapshot_to(self, path: str | os.PathLike[str]) -> None:
        """Copy all data to the folder ``path``, replacing what is there; a running server is stopped meanwhile."""
        with self._stopped():
            _replace_tree(self.data_dir / _DATA, Path(path) / _DATA)

    def restore_from(self, path: str | os.PathLike[str]) -> None:
        """Put back what :meth:`snapshot_to` copied, as an operator does with a lost ensemble's last backup.

        :raises TxError: if ``path`` holds no such copy.
        """
        source = Path(path) / _DATA
        if not source.is_dir():
            raise TxError(message=f"{path} holds no copy of a ZooKeeper's data. Make one with snapshot_to().")
        with self._stopped():
            _replace_tree(source, self.data_dir / _DATA)

    def expire_session(self, client: KazooClient) -> None:
        """End the session of a connected client on the server, as if it had been silent for too long.

        Its ephemeral nodes are gone when this returns; the client learns it when it reconnects, at once.
        """
        self._take_over(client, end_session=True)

    def lose_connection(self, client: KazooClient) -> None:
        """Cut the connection of one client, which keeps its session and reconnects."""
        self._take_over(client, end_session=False)

    def drop_connections(self) -> None:
        """Cut the connections of all clients by a crash and a restart of the server; sessions survive."""
        self.kill()
        self.start()

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the server hang within the block: connections stay open, requests go unanswered.

        The signal is told to one thread after the other; until all have stopped, one may still answer.
        """
        if self._process is None or not self.running:
            raise TxError(message="A server that is not running cannot hang. Call start() first.")
        pid = self._process.pid
        signal_process(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        try:
            yield
        finally:
            # Only if it is still ours: killed meanwhile and reaped, its id may be another's.
            if self.running:
                signal_process(pid, signal.SIGCONT)

    def __enter__(self) -> LocalZooKeeper:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @contextlib.contextmanager
    def _stopped(self) -> Iterator[None]:
        was_running = self.running
        self.stop()
        yield
        if was_running:
            self.start()

    def _require_free_port(self) -> None:
        # Asked first, because what answers later may be the other server.
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", self.port))
            except OSError as error:
                told = f"ZooKeeper cannot start: port {self.port} is taken. Name another one, or none for a free one."
                raise TxError(message=told) from error

    def _ended_or_serving(self) -> bool:
        return not self.running or _serves(self.port)

    def _failed_start(self, what: str) -> TxError:
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        # The lines of a Java stack trace begin with a tab; what went wrong stands above them.
        told = " | ".join([line.strip() for line in lines if line.strip() and not line.startswith("\t")][-5:])
        return TxError(message=f"ZooKeeper on {self.hosts} {what} while starting; its log {self.log} ends: {told}")

    def _take_over(self, client: KazooClient, *, end_session: bool) -> None:
        # The server serves a session on one connection only: a second one with the same id and password makes
        # it close the first. Spoken by hand, because a client library would close the session when it leaves.
        identity = client.client_id
        if identity is None:
            raise TxError(message="The client has no session. Start it and wait until it is connected.")
        session_id, password = identity
        hello = struct.pack(">iqiq", 0, 0, 10_000, session_id) + struct.pack(">i", len(password)) + password + b"\0"
        with socket.create_connection(("127.0.0.1", self.port), timeout=10) as twin:
            twin.sendall(struct.pack(">i", len(hello)) + hello)
            _read_frame(twin)
            if end_session:
                twin.sendall(struct.pack(">iii", 8, 1, _CLOSE_SESSION))
                _read_frame(twin)


def _read_frame(connection: socket.socket) -> bytes:
    with connection.makefile("rb") as stream:
        (size,) = struct.unpack(">i", stream.read(4).rjust(4, b"\0"))
        return stream.read(size)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _serves(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=2) as connection:
            connection.sendall(b"srvr")
            with connection.makefile("rb") as stream:
                return b"Mode: standalone" in stream.read()
    except OSError:
        return False


def _find_java() -> str:
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise TxError(message=f"No Java found in {where}. Install Java 17 or newer (Debian: openjdk-17-jre-headless).")
    return java


def _find_jars() -> Path:
    # Asked of the import system, because importing pyspark takes a second.
    spec = importlib.util.find_spec("pyspark")
    for folder in (spec.submodule_search_locations or []) if spec else []:
        jars = Path(folder) / "jars"
        if any(jars.glob("zookeeper-[0-9]*.jar")):
            return jars
    raise TxError(
        message="No ZooKeeper found in pyspark's jars. Install the full package pyspark (not pyspark-client)."
    )


def _replace_tree(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    if source.is_dir():
        shutil.copytree(source, target)
