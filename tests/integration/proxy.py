"""A TCP proxy that loses replies: what the server answers never arrives, as if the network broke just then."""

from __future__ import annotations

import contextlib
import socket
import threading
from types import TracebackType

from typing_extensions import Self


class ReplyEater:
    """Passes bytes between clients and one server, until it is told to swallow what the server says.

    :param target: `host:port` of the server.
    """

    def __init__(self, target: str) -> None:
        host, _, port = target.partition(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._open: list[socket.socket] = []
        self._lock = threading.Lock()
        self._eating = threading.Event()
        self._eaten = threading.Event()
        self._closing = False
        threading.Thread(target=self._accept, daemon=True).start()

    @property
    def hosts(self) -> str:
        """Where clients connect."""
        return f"127.0.0.1:{self._listener.getsockname()[1]}"

    def eat(self) -> None:
        """From now on replies are lost."""
        self._eaten.clear()
        self._eating.set()

    def wait_eaten(self, timeout: float) -> bool:
        """Wait until the server has answered into the void: what was asked has happened by then."""
        return self._eaten.wait(timeout)

    def cut(self) -> None:
        """Close all connections; new ones work."""
        self._eating.clear()
        with self._lock:
            doomed, self._open = self._open, []
        for each in doomed:
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._closing = True
        self._listener.close()
        self.cut()

    def _accept(self) -> None:
        while not self._closing:
            try:
                client, _ = self._listener.accept()
            except OSError:
                continue
            try:
                server = socket.create_connection(self._target, timeout=10)
            except OSError:
                client.close()  # kept, it would wait for an answer as long as nobody else connects
                continue
            server.settimeout(None)
            with self._lock:
                self._open += [client, server]
            threading.Thread(target=self._pump, args=(client, server, False), daemon=True).start()
            threading.Thread(target=self._pump, args=(server, client, True), daemon=True).start()

    def _pump(self, source: socket.socket, sink: socket.socket, replies: bool) -> None:
        with contextlib.suppress(OSError):
            while data := source.recv(65536):
                if replies and self._eating.is_set():
                    self._eaten.set()
                else:
                    sink.sendall(data)
        with contextlib.suppress(OSError):
            sink.shutdown(socket.SHUT_RDWR)
