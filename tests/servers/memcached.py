"""A real Memcached server on this machine, from the system's binary."""

from __future__ import annotations

import os
import socket

from airflow_tx.testing.servers.server import LocalServer, find_program


class LocalMemcached(LocalServer):
    """One Memcached server on 127.0.0.1 at a free port; a context manager. What it holds ends with it.

    :param megabytes: of memory for values.
    """

    title = "Memcached"
    slug = "memcached"
    poll_interval = 0.02

    def __init__(self, *, megabytes: int = 64, start_timeout: float = 30.0) -> None:
        super().__init__(start_timeout=start_timeout)
        self._megabytes = megabytes

    @property
    def address(self) -> str:
        """As a server of `MemcachedState`."""
        return f"127.0.0.1:{self.port}"

    def _command(self) -> list[str]:
        found = find_program("Memcached", "memcached", package="memcached", folder="/usr/bin")
        # Without its user option it refuses to run as root.
        as_root = ["-u", "nobody"] if os.geteuid() == 0 else []
        return [found, "-l", "127.0.0.1", "-p", str(self.port), "-U", "0", "-m", str(self._megabytes), *as_root]

    def _serves(self) -> bool:
        with socket.create_connection(("127.0.0.1", self.port), timeout=1) as probe:
            probe.sendall(b"version\r\n")
            return probe.recv(100).startswith(b"VERSION")
