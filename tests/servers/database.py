"""What the servers of databases share: data that a program makes, and a system user of their own."""

from __future__ import annotations

import os
import shutil
import uuid
from abc import abstractmethod
from pathlib import Path
from typing import ClassVar

from airflow_tx.testing.servers.server import LocalServer


def as_system_user(user: str) -> list[str]:
    """What to put before a command so that it runs as `user` when this process is root's; nothing otherwise."""
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={user}", f"--regid={user}", "--clear-groups", "--"]


class SqlServer(LocalServer):
    """A server of databases, whose folder is made by a program of its own and which does not run as root."""

    system_user: ClassVar[str]
    """Who runs it when this process is root's."""

    @abstractmethod
    def url(self) -> str:
        """The SQLAlchemy URL of a database that is always there, with the password."""

    @abstractmethod
    def _make_data(self) -> None:
        """Fill the folder `data` below its own."""

    def new_database(self) -> str:
        """Make an empty database with a name of its own; returns its name."""
        import sqlalchemy as sa

        name = f"test_{uuid.uuid4().hex[:12]}"
        engine = sa.create_engine(self.url(), poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        return name

    def _prepare(self) -> None:
        if not (self.data_dir / "data").exists():
            self._make_data()

    def _give(self, *paths: Path) -> None:
        """Make the server's user the owner of its folder and of these files."""
        if os.geteuid() == 0:
            for path in (self.data_dir, *paths):
                shutil.chown(path, self.system_user, self.system_user)

    def _run_program(self, *command: str) -> None:
        super()._run_program(*as_system_user(self.system_user), *command)
