"""The base class of all servers that tests start.

A server has a port, a folder, one way to start and several to stop.
"""

from __future__ import annotations

import contextlib
import importlib.util
import os
import secrets
import shutil
import signal
import socket
import subprocess
import tempfile
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, ClassVar

from airflow_tx.base.errors import TxError
from airflow_tx.testing.eventually import NotInTime, eventually
from airflow_tx.testing.processes import ProcessFamily, signal_process

if TYPE_CHECKING:
    from typing_extensions import Self


# The system assigns ports from 32768 (Linux) or 49152 to clients. A client could get such a port
# before the server starts. A poll that waits for the server could also connect to itself. So lower
# ports are used.
_SERVER_PORTS = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return different ports on 127.0.0.1 that no server uses and that the system assigns to no client."""
    found: set[int] = set()
    while len(found) < count:
        port = secrets.choice(_SERVER_PORTS)
        if _is_free(port):
            found.add(port)
    return list(found)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Without this option, the port would seem in use after the end of a connection.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    return free_ports(1)[0]


def clean_environment(*folders: str) -> dict[str, str]:
    """Return an environment without variables that would change a server, such as PGDATA and MYSQL_HOME.

    :param folders: further folders for PATH.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])
    return {"PATH": path, "LC_ALL": "C", "TZ": "UTC"}


def pyspark_jars(pattern: str) -> list[Path]:
    """Return the jars of pyspark with matching names, or none if pyspark is missing or has no jars."""
    # Ask the import system, since importing pyspark takes a second.
    spec = importlib.util.find_spec("pyspark")
    folders = (spec.submodule_search_locations or []) if spec else []
    return sorted(jar for folder in folders for jar in (Path(folder) / "jars").glob(pattern))


def find_program(title: str, *names: str, package: str, folder: str = "") -> str:
    """Return the path of a server's program, from PATH or from the folder of its Debian package.

    :param title: the name of the server, for the error.
    :param names: the possible names of the program.
    :param package: the Debian package of the program.
    :param folder: the folder in which Debian installs the program, or "" if this folder is on PATH.
    :raises TxError: the program is not installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), folder])
    found = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if found is None:
        raise TxError(
            message=f"No {title} server found. Install it: script/env servers (Debian: {package})"
        )
    return found


def find_java() -> str:
    """Return the path of `java`, from JAVA_HOME if this is set, otherwise from PATH.

    :raises TxError: Java is not installed.
    """
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=os.path.join(home, "bin") if home else None)
    if java is None:
        where = f"JAVA_HOME={home}" if home else "PATH"
        raise TxError(
            message=f"No Java found in {where}. Install Java 17 or newer (Debian: openjdk-17-jre-headless)."
        )
    return java


class LocalServer(ABC):
    """A server on 127.0.0.1 with its own folder. It is a context manager that starts and stops the server.

    A subclass defines the names, the command line, and the check that the server responds. The server ends when this
    process ends, even if this process is killed.

    :param data_dir: the folder of the server, which is kept. If it is None, a temporary folder is used and removed at
        the end.
    :param port: the port to listen on. If it is None, a free port is used for the life of the object.
    :param start_timeout: the longest time that a start may take, in seconds.
    """

    title: ClassVar[str]
    """The name of the server in messages."""
    slug: ClassVar[str]
    """The name of the server in file names."""
    end_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """The signal that :meth:`stop` sends."""
    poll_interval: ClassVar[float] = 0.05
    """The seconds between two checks whether a starting server responds."""

    def __init__(
        self,
        data_dir: str | os.PathLike[str] | None = None,
        *,
        port: int | None = None,
        start_timeout: float = 60.0,
    ) -> None:
        self._temporary = data_dir is None
        self._owner = os.getpid()
        self.data_dir = Path(
            data_dir or tempfile.mkdtemp(prefix=f"airflow-tx-{self.slug}-")
        ).absolute()
        self.port = port or free_port()
        self.log = self.data_dir / f"{self.slug}.log"
        self._start_timeout = start_timeout
        self._family = ProcessFamily()
        self._process: subprocess.Popen[bytes] | None = None

    @abstractmethod
    def _command(self) -> list[str]:
        """Return the command line of the server.

        :raises TxError: a program that the server needs is not installed.
        """

    @abstractmethod
    def _serves(self) -> bool:
        """Return whether the server responds. An exception counts as False."""

    def _environment(self) -> Mapping[str, str]:
        return clean_environment()

    def _prepare(self) -> None:
        """Prepare the start, for example by creating data and settings."""

    def _remove_data(self) -> None:
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Return the pid of the started server."""
        assert self._process is not None
        return self._process.pid

    @property
    def mark(self) -> str:
        """Return the mark of all processes of the server, see `processes.marked`."""
        return self._family.mark

    def start(self) -> Self:
        """Start the server, and wait until it responds. Do nothing if it is already running.

        :raises TxError: a program is not installed, another process uses the port, or the server does not start.
        """
        if self.running:
            return self
        command = self._command()
        self._require_free_port()
        self.data_dir.mkdir(parents=True, exist_ok=True)
        self._prepare()
        self._process = self._family.spawn(
            command, env=self._environment(), log=self.log, cwd=self.data_dir
        )
        try:
            eventually(
                self._ended_or_serving,
                self._start_timeout,
                f"{self.title} answers",
                interval=self.poll_interval,
            )
        except NotInTime as error:
            self.kill()
            raise self._failed_start(f"did not answer in {self._start_timeout:g} s") from error
        if not self.running:
            self.kill()
            raise self._failed_start("ended")
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """Stop the server. After `timeout` seconds, kill it. A later :meth:`start` finds its data."""
        if self._process is not None and self.running:
            self._process.send_signal(self.end_signal)
            # A stopped process (SIGSTOP) receives the signal only after it continues.
            signal_process(self._process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """Kill the server with SIGKILL, like a crash. A later :meth:`start` finds its stored data."""
        if self._process is not None:
            # Kill this process first, since finding the rest of the family takes a moment.
            self._process.kill()
            self._family.end()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server, and remove its folder if the folder is temporary."""
        self.stop()
        if os.getpid() == self._owner:
            self._remove_data()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _require_free_port(self) -> None:
        # Check this before the start, since another server on the port could respond to the poll.
        if not _is_free(self.port):
            told = f"{self.title} cannot start: port {self.port} is taken. Free it, or use another one."
            raise TxError(message=told)

    def _ended_or_serving(self) -> bool:
        return not self.running or self._serves()

    def _failed_start(self, how: str) -> TxError:
        log = self.log.read_text(encoding="utf-8", errors="replace") if self.log.exists() else ""
        where = f"{self.title} on 127.0.0.1:{self.port}"
        return TxError(
            message=f"{where} {how} while starting; its log {self.log} ends: {_last_lines(log)}"
        )

    def _run_program(self, *command: str) -> None:
        """Run a program that prepares the start of the server, and wait until it ends.

        :raises TxError: the program failed.
        """
        done = subprocess.run(
            command, env=self._environment(), cwd=self.data_dir, capture_output=True
        )
        if done.returncode != 0:
            told = _last_lines(done.stderr.decode(errors="replace"))
            raise TxError(message=f"{self.title} cannot be prepared: {told}")


def _last_lines(log: str) -> str:
    # The lines of a Java stack trace begin with a tab. The error is above them.
    told = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("\t")]
    return " | ".join(told[-5:])


class JavaServer(LocalServer):
    """A server that is a single Java process, with the environment of this process."""

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Make the server hang until the `with` block ends. Connections stay open, but requests get no response.

        The threads of the server stop one after the other, so some may still respond for a moment.
        """
        if self._process is None or not self.running:
            raise TxError(message="A server that is not running cannot hang. Call start() first.")
        pid = self._process.pid
        signal_process(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        try:
            yield
        finally:
            # Check that the process is still running. After its end, another process may get the
            # same pid.
            if self.running:
                signal_process(pid, signal.SIGCONT)
