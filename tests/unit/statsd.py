"""A StatsD server, as Airflow's metrics reach it."""

from __future__ import annotations

import socket


class StatsD:
    """A StatsD server: what was sent to it so far."""

    def __init__(self) -> None:
        self.socket = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self.socket.bind(("127.0.0.1", 0))

    @property
    def port(self) -> int:
        return int(self.socket.getsockname()[1])

    def received(self) -> list[str]:
        """Those of ours. A datagram on this machine is there once it was sent."""
        found = []
        self.socket.setblocking(False)
        while True:
            try:
                found.append(self.socket.recv(65536).decode())
            except BlockingIOError:
                return [each for each in found if "airflow_tx" in each]
