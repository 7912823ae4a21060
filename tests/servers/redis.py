"""A real Redis server on this machine, from the system's binary."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow_tx.base.errors import TxError
from airflow_tx.testing.servers.server import LocalServer, find_program

# A password with characters that a URL would trip over.
REDIS_PASSWORD = "s3cret/@:pass"


class LocalRedis(LocalServer):
    """One Redis server on 127.0.0.1 at a free port, with a data directory of its own; a context manager.

    :param persistence: "none": a stop or a kill loses everything; "aof": nothing that was answered is lost with the
        process; "rdb": what :meth:`save` wrote is kept.
    """

    title = "Redis"
    slug = "redis"
    poll_interval = 0.02

    def __init__(self, *, persistence: str = "none", start_timeout: float = 30.0) -> None:
        if persistence not in ("none", "aof", "rdb"):
            raise TxError(message=f"LocalRedis(persistence={persistence!r}): use none, aof or rdb")
        super().__init__(start_timeout=start_timeout)
        self._persistence = persistence

    def url(self, database: int = 0) -> str:
        return f"redis://:{quote(REDIS_PASSWORD, safe='')}@127.0.0.1:{self.port}/{database}"

    def client(self, database: int = 0) -> Any:
        from redis import Redis

        return Redis(host="127.0.0.1", port=self.port, db=database, password=REDIS_PASSWORD)

    def save(self) -> None:
        """Write a snapshot, with which a server of persistence "rdb" starts again."""
        self.client().save()

    def kill(self) -> None:
        super().kill()
        if self._persistence == "none":
            (self.data_dir / "dump.rdb").unlink(missing_ok=True)

    def restart(self) -> None:
        self.kill()
        self.start()

    def _command(self) -> list[str]:
        found = find_program("Redis", "redis-server", "valkey-server", package="redis-server")
        settings = {
            "port": str(self.port),
            "bind": "127.0.0.1",
            "dir": str(self.data_dir),
            "requirepass": REDIS_PASSWORD,
            "save": "",
            "appendonly": "yes" if self._persistence == "aof" else "no",
            "appendfsync": "no",
            "databases": "64",
            # It would be written over the mark by which its family is found.
            "set-proc-title": "no",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [found, *options]

    def _serves(self) -> bool:
        return bool(self.client().ping())
