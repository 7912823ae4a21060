"""What kazoo does on a client's behalf: threads, connections, a log. Here it learns to say why it does not connect."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import KazooException  # type: ignore[import-untyped]
from kazoo.handlers.threading import SequentialThreadingHandler  # type: ignore[import-untyped]
from kazoo.protocol.serialization import Auth  # type: ignore[import-untyped]

if TYPE_CHECKING:
    Adapter = logging.LoggerAdapter[logging.Logger]
else:
    Adapter = logging.LoggerAdapter

_WHY = ("Connection dropped: ", "Connection time-out: ", "Cannot resolve ")


class ConnectionHandler(SequentialThreadingHandler):  # type: ignore[misc]
    """kazoo's threads, of which one that ends by an error keeps it, and connections that do not wait for one server.

    :param patience: seconds that one server gets to accept a connection; kazoo would give it a whole session time-out.
    :ivar error: the error that has ended the connection permanently.
    """

    def __init__(self, patience: float) -> None:
        super().__init__()
        self._patience = patience
        self.error: KazooException | None = None

    def create_connection(self, *args: Any, timeout: float, **kwargs: Any) -> Any:
        return super().create_connection(*args, timeout=min(timeout, self._patience), **kwargs)

    def spawn(self, func: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        def run() -> None:
            try:
                func(*args, **kwargs)
            except (
                KazooException
            ) as error:  # a login that is refused; else it would be a trace on the screen
                self.error = error

        return super().spawn(run)


class ConnectionLog(Adapter):
    """The log of one client, which keeps why it was not connected last, and holds no password.

    :ivar reason: in kazoo's words; "": it was not said.
    """

    def __init__(self, logger: logging.Logger) -> None:
        super().__init__(logger, {})
        self.reason = ""

    def log(self, level: int, msg: object, *args: Any, **kwargs: Any) -> None:
        # kazoo has a line for each operation.
        if level <= logging.DEBUG and not self.isEnabledFor(level):
            return
        text = str(msg)
        if text.startswith(_WHY):
            self.reason = (text % args).removeprefix(_WHY[0])
        # The code that wants a connection reports the errors of kazoo; at level DEBUG kazoo writes the request
        # `Auth` with its credentials.
        if not isinstance(sys.exc_info()[1], KazooException) and not any(
            isinstance(arg, Auth) for arg in args
        ):
            super().log(level, msg, *args, **kwargs)
