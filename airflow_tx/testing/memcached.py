"""A real Memcached server on this machine, from the system's binary."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType

from airflow_tx.errors import TxError
from airflow_tx.testing.eventually import NotInTime, eventually
from airflow_tx.testing.processes import ProcessFamily


class LocalMemcached:
    """One Memcached server on 127.0.0.1 at a free port; a context manager. What it holds ends with it, and it ends with
    this process, even if that is killed.

    :param megabytes: of memory for values.
    :param start_timeout: seconds that a start may take.
    """

    def __init__(self, *, megabytes: int = 64, start_timeout: float = 30.0) -> None:
        self.port = _free_port()
        self.data_dir = Path(tempfile.mkdtemp(prefix="airflow-tx-memcached-"))
        self.log = self.data_dir / "memcached.log"
        self._megabytes = megabytes
        self._start_timeout = start_timeout
        self._family = ProcessFamily()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def address(self) -> str:
        """As a server of `MemcachedState`."""
        return f"127.0.0.1:{self.port}"

    def start(self) -> LocalMemcached:
        """Start the server and wait until it answers; does nothing if it runs already.

        :raises TxError: the binary is missing, or the server does not come up.
        """
        if self._process is not None and self._process.poll() is None:
            return self
        found = shutil.which("memcached") or shutil.which("memcached", path="/usr/bin")
        if found is None:
            raise TxError(message="No Memcached server found. Install it: script/env servers (Debian: memcached)")
        # Without its user option it refuses to run as root.
        as_root = ["-u", "nobody"] if os.geteuid() == 0 else []
        command = [found, "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", "-m", str(self._megabytes), *as_root]
        environment = {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C"}
        self._process = self._family.spawn(command, env=environment, log=self.log, cwd=self.data_dir)
        try:
            eventually(self._ended_or_serving, self._start_timeout, "Memcached answers", interval=0.02)
        except NotInTime as error:
            self.kill()
            raise self._failed("did not answer in time") from error
        if self._process.poll() is not None:
            self.kill()
            raise self._failed("ended")
        return self

    def stop(self) -> None:
        """End the server; what it held is gone."""
        self.kill()

    def kill(self) -> None:
        """End the server as a crash would."""
        if self._process is not None:
            self._family.end()
            self._process = None

    def restart(self) -> None:
        """Kill and start: it is empty afterwards."""
        self.kill()
        self.start()

    def close(self) -> None:
        """Stop the server and remove its log."""
        self.kill()
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> LocalMemcached:
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
        if self._process is None or self._process.poll() is not None:
            return True
        try:
            with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
                probe.sendall(b"version\r\n")
                return probe.recv(100).startswith(b"VERSION")
        except OSError:
            return False

    def _failed(self, how: str) -> TxError:
        log = self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else ""
        return TxError(message=f"Memcached on port {self.port} {how}. Its log ends with:\n{log}")


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
