"""The base of all servers that tests start: a port, a folder, one way to start and several ways to end."""

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


# The system gives clients ports from 32768 (Linux) or 49152 up. A client could get such a port before the server
# starts, or a poll that waits for the server could connect to itself. So use lower ports.
_SERVER_PORTS = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return different ports of 127.0.0.1 that no server uses, and that the system gives to no client."""
    found: set[int] = set()
    while len(found) < count:
        port = secrets.choice(_SERVER_PORTS)
        if _is_free(port):
            found.add(port)
    return list(found)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # Without this option a connection that has just ended would make the port look used.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    return free_ports(1)[0]


def clean_environment(*folders: str) -> dict[str, str]:
    """Return an environment without variables such as PGDATA and MYSQL_HOME, which would change a server.

    :param folders: further folders of its PATH.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])
    return {"PATH": path, "LC_ALL": "C", "TZ": "UTC"}


def pyspark_jars(pattern: str) -> list[Path]:
    """Return the jars of pyspark whose names match; empty if pyspark is missing or has no jars."""
    # Ask the import system, because an import of pyspark takes a second.
    spec = importlib.util.find_spec("pyspark")
    folders = (spec.submodule_search_locations or []) if spec else []
    return sorted(jar for folder in folders for jar in (Path(folder) / "jars").glob(pattern))


def find_program(title: str, *names: str, package: str, folder: str = "") -> str:
    """Find the program of a server, on PATH or in Debian's folder.

    :param title: name of the server, for the error.
    :param names: possible names of the program.
    :param package: Debian package.
    :param folder: folder in which Debian installs the program; "": on PATH.
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
    """Find the program `java`, in JAVA_HOME if it is set, else on PATH.

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
    """One server on 127.0.0.1 with its own folder; a context manager that starts and stops it.

    A subclass defines the names, the command line, and the check that the server answers. The server ends with this
    process, even if this process is killed.

    :param data_dir: folder of the server, which is kept; None: a temporary folder, removed at the end.
    :param port: port to listen on; None: a free port, the same for the life of the object.
    :param start_timeout: seconds that a start may take.
    """

    title: ClassVar[str]
    """Name of the server in messages."""
    slug: ClassVar[str]
    """Name of the server in file names."""
    end_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """Signal that :meth:`stop` sends."""
    poll_interval: ClassVar[float] = 0.05
    """Seconds between two checks of a server that is starting."""

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
        """Return whether the server answers; an exception counts as "not yet"."""

    def _environment(self) -> Mapping[str, str]:
        return clean_environment()

    def _prepare(self) -> None:
        """Prepare a start, for example create data and settings."""

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
        """Return the mark of all its processes, see `processes.marked`."""
        return self._family.mark

    def start(self) -> Self:
        """Start the server and wait until it answers; do nothing if it is running.

        :raises TxError: a program is not installed, the port is taken, or the server does not start.
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
        """Shut down the server, after `timeout` seconds with SIGKILL. A later :meth:`start` finds its data."""
        if self._process is not None and self.running:
            self._process.send_signal(self.end_signal)
            # A stopped process (SIGSTOP) sees the signal only after it resumes.
            signal_process(self._process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the server with SIGKILL, like a crash. A later :meth:`start` finds its stored data."""
        if self._process is not None:
            # Kill this process first, as it takes a moment to find the rest of the family.
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
        # Check this before the start, as another server on the port could answer the poll.
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
        """Run a program that prepares a start, and wait for its end.

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
    """A server that is one Java process, with this process's environment."""

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Make the server hang during the block: connections stay open, but requests get no answer.

        The threads of the server stop one after the other, so a thread may still answer for a moment.
        """
        if self._process is None or not self.running:
            raise TxError(message="A server that is not running cannot hang. Call start() first.")
        pid = self._process.pid
        signal_process(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        try:
            yield
        finally:
            # Check that the process still runs: after its end another process may have its pid.
            if self.running:
                signal_process(pid, signal.SIGCONT)
