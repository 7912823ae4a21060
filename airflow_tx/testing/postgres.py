"""A real PostgreSQL server on this machine, from the system's binaries."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import tempfile
import uuid
from pathlib import Path
from types import TracebackType

from airflow_tx.errors import TxError
from airflow_tx.testing.eventually import NotInTime, eventually
from airflow_tx.testing.processes import ProcessFamily

USER = "postgres"
# A password with characters that a URL and an array literal would trip over.
PASSWORD = "s3cret/@:pass"


class LocalPostgres:
    """One PostgreSQL server on 127.0.0.1 at a free port, with a data directory of its own; a context manager.

    Data survive :meth:`stop` and :meth:`kill` followed by :meth:`start`. It ends with this process, even if that is
    killed. PostgreSQL refuses to run as root: then its system user `postgres` runs it.

    :param fsync: force every commit to the disk, as production does.
    :param start_timeout: seconds that a start may take.
    """

    def __init__(self, *, fsync: bool = False, start_timeout: float = 60.0) -> None:
        self.port = _free_port()
        self.data_dir = Path(tempfile.mkdtemp(prefix="airflow-tx-postgres-"))
        self.log = self.data_dir / "postgres.log"
        self._fsync = fsync
        self._start_timeout = start_timeout
        self._family = ProcessFamily()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = "postgres") -> str:
        """The SQLAlchemy URL of a database, with the password."""
        from sqlalchemy.engine import URL

        url = URL.create("postgresql+psycopg2", USER, PASSWORD, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    def new_database(self) -> str:
        """Make an empty database with a name of its own; returns its name."""
        import sqlalchemy as sa

        name = f"test_{uuid.uuid4().hex[:12]}"
        engine = sa.create_engine(self.url(), poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        return name

    def start(self) -> LocalPostgres:
        """Start the server and wait until it answers; does nothing if it runs already.

        :raises TxError: the binaries are missing, or the server does not come up.
        """
        if self._process is not None and self._process.poll() is None:
            return self
        if not (self.data_dir / "data").exists():
            self._make_data()
        settings = {
            "port": str(self.port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(self.data_dir),
            "fsync": "on" if self._fsync else "off",
        }
        options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
        command = [*_as_user(), str(_binaries() / "postgres"), "-D", str(self.data_dir / "data"), *options]
        self._process = self._family.spawn(command, env=_environment(), log=self.log, cwd=self.data_dir)
        try:
            eventually(self._ended_or_serving, self._start_timeout, "PostgreSQL answers", interval=0.05)
        except NotInTime as error:
            self.kill()
            raise self._failed("did not answer in time") from error
        if self._process.poll() is not None:
            self.kill()
            raise self._failed("ended")
        return self

    def stop(self, timeout: float = 10.0) -> None:
        """End the server, breaking its connections off; its data stay for a :meth:`start`."""
        if self._process is not None and self._process.poll() is None:
            self._process.send_signal(signal.SIGINT)  # PostgreSQL's "fast shutdown"
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(timeout)
        self.kill()

    def kill(self) -> None:
        """End the server as a crash would; its data stay for a :meth:`start`."""
        if self._process is not None:
            self._family.end()
            self._process = None

    def close(self) -> None:
        """Stop the server and remove its data."""
        self.stop()
        shutil.rmtree(self.data_dir, ignore_errors=True)

    def __enter__(self) -> LocalPostgres:
        try:
            return self.start()
        except BaseException:
            self.close()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _make_data(self) -> None:
        password = self.data_dir / "password"
        password.write_text(PASSWORD, encoding="utf-8")
        if os.geteuid() == 0:
            for path in (self.data_dir, password):
                shutil.chown(path, USER, USER)
        self._run(
            str(_binaries() / "initdb"),
            *("-D", str(self.data_dir / "data"), "-U", USER, "--auth=scram-sha-256", f"--pwfile={password}"),
            *("--encoding=UTF8", "--no-locale", "--no-sync"),
        )

    def _run(self, *command: str) -> None:
        done = subprocess.run([*_as_user(), *command], env=_environment(), cwd=self.data_dir, capture_output=True)
        if done.returncode != 0:
            raise TxError(message=f"PostgreSQL: {command[0]} failed: {done.stderr.decode(errors='replace').strip()}")

    def _ended_or_serving(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return True
        ready = [str(_binaries() / "pg_isready"), "-q", "-h", "127.0.0.1", "-p", str(self.port), "-U", USER]
        return subprocess.run(ready, env=_environment(), cwd=self.data_dir).returncode == 0

    def _failed(self, how: str) -> TxError:
        log = self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else ""
        return TxError(message=f"PostgreSQL on port {self.port} {how}. Its log ends with:\n{log}")


def _binaries() -> Path:
    versions = sorted(Path("/usr/lib/postgresql").glob("*/bin/postgres"), key=lambda path: float(path.parts[-3]))
    found = str(versions[-1]) if versions else shutil.which("postgres")
    if found is None:
        raise TxError(message="No PostgreSQL server found. Install it: script/env servers (Debian: postgresql)")
    return Path(found).resolve().parent


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={USER}", f"--regid={USER}", "--clear-groups", "--"]


def _environment() -> dict[str, str]:
    # Nothing of ours: PGDATA, PGPORT and the like would change what the binaries do.
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
