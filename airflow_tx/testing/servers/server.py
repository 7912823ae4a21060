"""What all servers that tests start have in common: a port, a folder, one way to start and several to end."""

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


# The system gives a client a port of 32768 and up (Linux), or of 49152 and up. Such a port may belong to a client
# before its server has started, or a poll that waits for that server may connect to itself.
_SERVER_PORTS = range(10_000, 32_768)


def free_ports(count: int) -> list[int]:
    """Return ports of 127.0.0.1, all different, that no server uses now and no client will be given."""
    found: set[int] = set()
    while len(found) < count:
        port = secrets.choice(_SERVER_PORTS)
        if _is_free(port):
            found.add(port)
    return list(found)


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        # A connection that has just ended does not keep a server from its port.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def free_port() -> int:
    return free_ports(1)[0]


def clean_environment(*folders: str) -> dict[str, str]:
    """Return an environment without our variables: PGDATA, MYSQL_HOME and the like would change what a server does.

    :param folders: further ones on its PATH.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), *folders])
    return {"PATH": path, "LC_ALL": "C", "TZ": "UTC"}


def pyspark_jars(pattern: str) -> list[Path]:
    """Return the jars of pyspark whose names match; none if pyspark is missing or has no jars."""
    # Asked of the import system, because importing pyspark takes a second.
    spec = importlib.util.find_spec("pyspark")
    folders = (spec.submodule_search_locations or []) if spec else []
    return sorted(jar for folder in folders for jar in (Path(folder) / "jars").glob(pattern))


def find_program(title: str, *names: str, package: str, folder: str = "") -> str:
    """Find the program of a server, on PATH or in a folder where Debian puts it.

    :param package: Debian's.
    :raises TxError: it is not installed.
    """
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), folder])
    found = next(filter(None, (shutil.which(name, path=path) for name in names)), None)
    if found is None:
        raise TxError(
            message=f"No {title} server found. Install it: script/env servers (Debian: {package})"
        )
    return found


def find_java() -> str:
    """Find the program `java`, in JAVA_HOME if that is set.

    :raises TxError: there is none.
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
    """One server on 127.0.0.1 with a folder of its own; a context manager that starts and stops it.

    A subclass says how it is called, how it is started, and how to see that it serves. The server ends with this
    process, even if that is killed.

    :param data_dir: its folder, kept afterwards; default: a temporary one, removed at the end.
    :param port: port to listen on; default: a free one, the same for the life of the object.
    :param start_timeout: seconds that a start may take.
    """

    title: ClassVar[str]
    """Its name in messages."""
    slug: ClassVar[str]
    """Its name in the names of files."""
    end_signal: ClassVar[signal.Signals] = signal.SIGTERM
    """What :meth:`stop` sends."""
    poll_interval: ClassVar[float] = 0.05
    """Seconds between two looks at a server that is starting."""

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
        """How the server is started.

        :raises TxError: what it needs is not installed.
        """

    @abstractmethod
    def _serves(self) -> bool:
        """Whether the server answers; what it raises counts as "not yet"."""

    def _environment(self) -> Mapping[str, str]:
        return clean_environment()

    def _prepare(self) -> None:
        """Requirements of a start, such as data and settings."""

    def _remove_data(self) -> None:
        if self._temporary:
            shutil.rmtree(self.data_dir, ignore_errors=True)

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """Its process, once it is started."""
        assert self._process is not None
        return self._process.pid

    @property
    def mark(self) -> str:
        """Return the mark that all of its processes carry, see `processes.marked`."""
        return self._family.mark

    def start(self) -> Self:
        """Start the server and wait until it answers; does nothing if it runs already.

        :raises TxError: what it needs is not installed, its port is taken, or it does not come up.
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
        """End the server in order, after `timeout` seconds by SIGKILL; what it keeps is there after a :meth:`start`."""
        if self._process is not None and self.running:
            self._process.send_signal(self.end_signal)
            # A stopped process (SIGSTOP) sees the signal only after it resumes.
            signal_process(self._process.pid, signal.SIGCONT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the server as a crash would (SIGKILL); what it keeps is there after a :meth:`start`."""
        if self._process is not None:
            # At once, because it takes a moment to find the rest of its family.
            self._process.kill()
            self._family.end()
            self._process = None

    def restart(self) -> None:
        self.stop()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its folder if that is a temporary one."""
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
        # Asked first, because what answers later may be the other server.
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
        """Run a program that prepares a start, to its end.

        :raises TxError: it failed.
        """
        done = subprocess.run(
            command, env=self._environment(), cwd=self.data_dir, capture_output=True
        )
        if done.returncode != 0:
            told = _last_lines(done.stderr.decode(errors="replace"))
            raise TxError(message=f"{self.title} cannot be prepared: {told}")


def _last_lines(log: str) -> str:
    # The lines of a Java stack trace begin with a tab; what went wrong stands above them.
    told = [line.strip() for line in log.splitlines() if line.strip() and not line.startswith("\t")]
    return " | ".join(told[-5:])


class JavaServer(LocalServer):
    """A server that is one Java process, with this process's environment."""

    def _environment(self) -> Mapping[str, str]:
        return os.environ

    @contextlib.contextmanager
    def frozen(self) -> Iterator[None]:
        """Let the server hang within the block: connections stay open, requests go unanswered.

        One thread after the other gets the signal; until all have stopped, one may still answer.
        """
        if self._process is None or not self.running:
            raise TxError(message="A server that is not running cannot hang. Call start() first.")
        pid = self._process.pid
        signal_process(pid, signal.SIGSTOP)
        os.waitpid(pid, os.WUNTRACED)
        try:
            yield
        finally:
            # Only if it is still our process: after its end another process may have its id.
            if self.running:
                signal_process(pid, signal.SIGCONT)
