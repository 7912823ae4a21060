"""A real Redis server on this machine, from the system's binary."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Any
from urllib.parse import quote

from airflow_tx.errors import TxError
from airflow_tx.testing.eventually import NotInTime, eventually
from airflow_tx.testing.processes import ProcessFamily

# A password with characters that a URL would trip over.
PASSWORD = "s3cret/@:pass"


class LocalRedis:
    """One Redis server on 127.0.0.1 at a free port, with a data directory of its own; a context manager.

    It ends with this process, even if that is killed.

    :param persistence: "none": a stop or a kill loses everything; "aof": nothing that was answered is lost with the
        process; "rdb": what :meth:`save` wrote is kept.
    :param start_timeout: seconds that a start may take.
    """

    def __init__(self, *, persistence: str = "none", start_timeout: float = 30.0) -> None:
        if persistence not in ("none", "aof", "rdb"):
            raise TxError(message=f"LocalRedis(persistence={persistence!r}): use none, aof or rdb")
        self.port = _free_port()
        self.data_dir = Path(tempfile.mkdtemp(prefix="airflow-tx-redis-"))
        self.log = self.data_dir / "redis.log"
        self._persistence = persistence
        self._start_timeout = start_timeout
        self._family = ProcessFamily()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: int = 0) -> str:
        """The URL of a database, with the password."""
        return f"redis://:{quote(PASSWORD, safe='')}@127.0.0.1:{self.port}/{database}"

    def client(self, database: int = 0) -> Any:
        """A client of a database."""
        from redis import Redis

        return Redis(host="127.0.0.1", port=self.port, db=database, password=PASSWORD)

    def start(self) -> LocalRedis:
        """Start the server and wait until it answers; does nothing if it runs already.

        :raises TxError: the binary is missing, or the server does not come up.
        """
        if self._process is not None and self._process.poll() is None:
            return self
        found = shutil.which("redis-server") or shutil.which("valkey-server")
        if found is None:
            raise TxError(message="No Redis server found. Install it: script/env servers (Debian: redis-server)")
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.data_dir),
            "requirepass": PASSWORD,
            "save": "",
            "appendonly": "yes" if self._persistence == "aof" else "no",
            "appendfsync": "no",
            "databases": "64",
            # It would be written over the mark by which its family is found.
            "set-proc-title": "no",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}
        self._process = self._family.spawn([found, *options], env=environment, log=self.log, cwd=self.data_dir)
        try:
            eventually(self._ended_or_serving, self._start_timeout, "Redis answers", interval=0.02)
        except NotInTime as error:
            self.kill()
            raise self._failed("did not answer in time") from error
        if self._process.poll() is not None:
            self.kill()
            raise self._failed("ended")
        return self

    def save(self) -> None:
        """Write a snapshot, with which a server of persistence "rdb" starts again."""
        self.client().save()

    def stop(self, timeout: float = 10.0) -> None:
        """End the server in order."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the server as a crash would."""
        if self._process is not None:
            self._process.kill()
            self._family.end()
            self._process = None
        if self._persistence == "none":
            (self.data_dir / "dump.rdb").unlink(missing_ok=True)

    def restart(self) -> None:
        """Kill and start; what is there afterwards is up to the persistence."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its data."""
        self.stop()
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> LocalRedis:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _ended_or_serving(self) -> bool:
        from redis.exceptions import RedisError

        if self._process is None or self._process.poll() is not None:
            return True
        try:
            return bool(self.client().ping())
        except (RedisError, OSError):
            return False

    def _failed(self, how: str) -> TxError:
        log = self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else ""
        return TxError(message=f"Redis on port {self.port} {how}. Its log ends with:\n{log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
