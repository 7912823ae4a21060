"""A real PostgreSQL server on this machine, from the system's binaries."""

from __future__ import annotations

import shutil
import signal
import subprocess
from pathlib import Path

from airflow_tx.base.errors import TxError
from tests.servers.database import SqlServer, as_system_user

POSTGRES_USER = "postgres"
# A password with characters that a URL and an array literal would trip over.
POSTGRES_PASSWORD = "s3cret/@:pass"


UNUSUAL_SETTINGS = (
    "quote_all_identifiers = on",
    "extra_float_digits = -5",
    "array_nulls = off",
    "bytea_output = 'escape'",
    "DateStyle = 'SQL, DMY'",
    "IntervalStyle = 'sql_standard'",
    "TimeZone = 'Asia/Kathmandu'",
    "standard_conforming_strings = off",
    "client_encoding = 'LATIN1'",
)
"""What a role or a database may have set for its sessions, and what a reader must not depend on."""


class LocalPostgres(SqlServer):
    """One PostgreSQL server on 127.0.0.1 at a free port, with a data directory of its own; a context manager.

    Data survive :meth:`stop` and :meth:`kill` followed by :meth:`start`. Started by root, it runs as the system user
    `postgres`.

    :param fsync: force every commit to the disk and log in by scram, as production does.
    """

    title = "PostgreSQL"
    slug = "postgres"
    system_user = POSTGRES_USER
    end_signal = signal.SIGINT  # its "fast shutdown", which breaks connections off

    def __init__(self, *, fsync: bool = False, start_timeout: float = 60.0) -> None:
        super().__init__(start_timeout=start_timeout)
        self._fsync = fsync

    def url(self, database: str = "postgres") -> str:
        from sqlalchemy.engine import URL

        url = URL.create("postgresql+psycopg2", POSTGRES_USER, POSTGRES_PASSWORD, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    def add_superuser(self, name: str, password: str) -> None:
        """Let somebody else log in, too. Where a run begins in the middle of a module, its fixtures ask twice."""
        import sqlalchemy as sa

        role = f"CREATE ROLE {name} LOGIN SUPERUSER PASSWORD '{password}'"
        with sa.create_engine(self.url(), poolclass=sa.pool.NullPool).begin() as connection:
            connection.execute(sa.text(f"DO $$ BEGIN {role}; EXCEPTION WHEN duplicate_object THEN NULL; END $$"))

    def _command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.data_dir),
            "fsync": "on" if self._fsync else "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        return [
            *as_system_user(POSTGRES_USER),
            postgres_program("postgres"),
            "-D",
            str(self.data_dir / "data"),
            *options,
        ]

    def _make_data(self) -> None:
        password = self.data_dir / "password"
        password.write_text(POSTGRES_PASSWORD, encoding="utf-8")
        self._give(password)
        self._run_program(
            postgres_program("initdb"),
            *("-D", str(self.data_dir / "data"), "-U", POSTGRES_USER, f"--pwfile={password}"),
            # Tests connect thousands of times, and scram is made to be slow.
            f"--auth={'scram-sha-256' if self._fsync else 'md5'}",
            *("--encoding=UTF8", "--no-locale", "--no-sync"),
        )

    def _serves(self) -> bool:
        ready = [postgres_program("pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", POSTGRES_USER]
        return subprocess.run(ready, env=self._environment(), cwd=self.data_dir).returncode == 0


def postgres_program(name: str) -> str:
    """Find a program of the newest PostgreSQL on this machine.

    :raises TxError: there is none.
    """
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which("postgres")
    if found is None:
        raise TxError(message="No PostgreSQL server found. Install it: script/env servers (Debian: postgresql)")
    return str(Path(found).resolve().parent / name)
