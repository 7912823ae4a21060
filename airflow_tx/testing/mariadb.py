"""A real MariaDB server on this machine, from the system's binaries."""

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

USER = "transactions"
# A password with characters that a URL and a quoted text would trip over.
PASSWORD = "s3cret'/@:pass"
DATABASE = "states"
_SYSTEM_USER = "mysql"
_SBIN = "/usr/sbin"  # where Debian puts servers; not on everybody's PATH


class LocalMariaDB:
    """One MariaDB server on 127.0.0.1 at a free port, with a data directory of its own; a context manager.

    Data survive :meth:`stop` and :meth:`kill` followed by :meth:`start`. It ends with this process, even if that is
    killed. Started by root, it runs as the system user `mysql`.

    :param fsync: force every commit to the disk, as production does.
    :param start_timeout: seconds that a start may take.
    :param settings: further settings of the server, such as {"max_allowed_packet": "1M"}.
    """

    def __init__(
        self, *, fsync: bool = False, start_timeout: float = 60.0, settings: dict[str, str] | None = None
    ) -> None:
        self.port = _free_port()
        self.data_dir = Path(tempfile.mkdtemp(prefix="airflow-tx-mariadb-"))
        self.log = self.data_dir / "mariadb.log"
        self._settings = {
            # What a careless server may have: the state must not depend on it.
            "character-set-server": "latin1",
            "sql-mode": "",
            "transaction-isolation": "REPEATABLE-READ",
            "innodb-flush-log-at-trx-commit": "1" if fsync else "0",
            "debug-no-sync": "0" if fsync else "1",
            "innodb-doublewrite": "1" if fsync else "0",
            **(settings or {}),
        }
        self._start_timeout = start_timeout
        self._family = ProcessFamily()
        self._process: subprocess.Popen[bytes] | None = None

    def url(self, database: str = DATABASE) -> str:
        """The SQLAlchemy URL of a database, with the password."""
        from sqlalchemy.engine import URL

        url = URL.create("mysql+pymysql", USER, PASSWORD, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    def new_database(self) -> str:
        """Make an empty database with a name of its own; returns its name."""
        import sqlalchemy as sa

        name = f"test_{uuid.uuid4().hex[:12]}"
        engine = sa.create_engine(self.url(), poolclass=sa.pool.NullPool, isolation_level="AUTOCOMMIT")
        with engine.connect() as connection:
            connection.execute(sa.text(f"CREATE DATABASE {name}"))
        return name

    def start(self) -> LocalMariaDB:
        """Start the server and wait until it answers; does nothing if it runs already.

        :raises TxError: the binaries are missing, or the server does not come up.
        """
        if self._process is not None and self._process.poll() is None:
            return self
        if not (self.data_dir / "data").exists():
            self._make_data()
        settings = {
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self.data_dir / "mariadb.sock"),
            "pid-file": str(self.data_dir / "mariadb.pid"),
            "init-file": str(self.data_dir / "init.sql"),
            "skip-name-resolve": "ON",
            **self._settings,
        }
        options = [f"--{name}={value}" for name, value in settings.items()]
        command = [*_as_user(), _binary("mariadbd"), "--no-defaults", f"--datadir={self.data_dir / 'data'}", *options]
        self._process = self._family.spawn(command, env=_environment(), log=self.log, cwd=self.data_dir)
        try:
            eventually(self._ended_or_serving, self._start_timeout, "MariaDB answers", interval=0.05)
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
            self._process.send_signal(signal.SIGTERM)
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

    def __enter__(self) -> LocalMariaDB:
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
        quoted = PASSWORD.replace("'", "''")
        init = self.data_dir / "init.sql"  # run at each start; one statement a line
        init.write_text(
            f"CREATE USER IF NOT EXISTS '{USER}'@'127.0.0.1' IDENTIFIED BY '{quoted}';\n"
            f"GRANT ALL ON *.* TO '{USER}'@'127.0.0.1';\n"
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n",
            encoding="utf-8",
        )
        if os.geteuid() == 0:
            for path in (self.data_dir, init):
                shutil.chown(path, _SYSTEM_USER, _SYSTEM_USER)
        command = [
            *(*_as_user(), _binary("mariadb-install-db"), "--no-defaults", f"--datadir={self.data_dir / 'data'}"),
            *("--skip-test-db", "--auth-root-authentication-method=normal"),
        ]
        done = subprocess.run(command, env=_environment(), cwd=self.data_dir, capture_output=True)
        if done.returncode != 0:
            raise TxError(message=f"MariaDB: {command[0]} failed: {done.stderr.decode(errors='replace').strip()}")

    def _ended_or_serving(self) -> bool:
        if self._process is None or self._process.poll() is not None:
            return True
        import pymysql  # type: ignore[import-untyped]

        try:
            pymysql.connect(host="127.0.0.1", port=self.port, user=USER, password=PASSWORD, database=DATABASE).close()
        except pymysql.err.OperationalError:
            return False
        return True

    def _failed(self, how: str) -> TxError:
        log = self.log.read_text(encoding="utf-8", errors="replace")[-2000:] if self.log.exists() else ""
        return TxError(message=f"MariaDB on port {self.port} {how}. Its log ends with:\n{log}")


def _binary(name: str) -> str:
    found = shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), _SBIN]))
    if found is None:
        raise TxError(message="No MariaDB server found. Install it: script/env servers (Debian: mariadb-server)")
    return found


def _as_user() -> list[str]:
    if os.geteuid() != 0:
        return []
    return ["setpriv", f"--reuid={_SYSTEM_USER}", f"--regid={_SYSTEM_USER}", "--clear-groups", "--"]


def _environment() -> dict[str, str]:
    # Nothing of ours: MYSQL_HOME and the like would change what the binaries do.
    return {"PATH": os.pathsep.join([os.environ.get("PATH", os.defpath), _SBIN]), "LC_ALL": "C", "TZ": "UTC"}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
