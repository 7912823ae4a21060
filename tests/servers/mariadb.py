"""A real MariaDB server on this machine, from the system's binaries."""

from __future__ import annotations

from airflow_tx.testing.servers.server import clean_environment, find_program
from tests.servers.database import SqlServer, as_system_user

MARIADB_USER = "transactions"
# A password with characters that a URL and a quoted text would trip over.
MARIADB_PASSWORD = "s3cret'/@:pass"
DATABASE = "states"
_SBIN = "/usr/sbin"  # where Debian puts servers; not on everybody's PATH


class LocalMariaDB(SqlServer):
    """One MariaDB server on 127.0.0.1 at a free port, with a data directory of its own; a context manager.

    Data survive :meth:`stop` and :meth:`kill` followed by :meth:`start`. Started by root, it runs as the system user
    `mysql`.

    :param fsync: force every commit to the disk, as production does.
    :param settings: further settings of the server, such as {"max_allowed_packet": "1M"}.
    """

    title = "MariaDB"
    slug = "mariadb"
    system_user = "mysql"

    def __init__(
        self, *, fsync: bool = False, start_timeout: float = 60.0, settings: dict[str, str] | None = None
    ) -> None:
        super().__init__(start_timeout=start_timeout)
        self._settings = {
            # What a careless server may have: the state must not depend on it.
            "character-set-server": "latin1",
            "sql-mode": "",
            "transaction-isolation": "REPEATABLE-READ",
            # 0 would lose what was committed a moment before a kill.
            "innodb-flush-log-at-trx-commit": "1" if fsync else "2",
            "innodb-doublewrite": "1" if fsync else "0",
            **self._own_settings(fsync=fsync),
            **(settings or {}),
        }

    def _own_settings(self, *, fsync: bool) -> dict[str, str]:
        """The settings that MySQL does not know."""
        return {"debug-no-sync": "0" if fsync else "1"}

    def _program(self) -> list[str]:
        """The command of the server without its options."""
        return [_binary("mariadbd")]

    def _install(self) -> None:
        """Make the system's tables."""
        self._run_program(
            *(_binary("mariadb-install-db"), "--no-defaults", f"--datadir={self.data_dir / 'data'}"),
            *("--skip-test-db", "--auth-root-authentication-method=normal"),
        )

    def url(self, database: str = DATABASE) -> str:
        from sqlalchemy.engine import URL

        url = URL.create("mysql+pymysql", MARIADB_USER, MARIADB_PASSWORD, "127.0.0.1", self.port, database)
        return url.render_as_string(hide_password=False)

    def _command(self) -> list[str]:
        settings = {
            "port": str(self.port),
            "bind-address": "127.0.0.1",
            "socket": str(self.data_dir / "mariadb.sock"),
            "pid-file": str(self.data_dir / "mariadb.pid"),
            "init-file": str(self.data_dir / "init.sql"),
            # A server that starts deletes temporary files there, also of another server.
            "tmpdir": str(self.data_dir),
            "skip-name-resolve": "ON",
            **self._settings,
        }
        data = ("--no-defaults", f"--datadir={self.data_dir / 'data'}")
        options = [f"--{name}={value}" for name, value in settings.items()]
        return [*as_system_user(self.system_user), *self._program(), *data, *options]

    def _environment(self) -> dict[str, str]:
        return clean_environment(_SBIN)

    def _make_data(self) -> None:
        quoted = MARIADB_PASSWORD.replace("'", "''")
        init = self.data_dir / "init.sql"  # run at each start; one statement a line
        init.write_text(
            f"CREATE USER IF NOT EXISTS '{MARIADB_USER}'@'127.0.0.1' IDENTIFIED BY '{quoted}';\n"
            f"GRANT ALL ON *.* TO '{MARIADB_USER}'@'127.0.0.1' WITH GRANT OPTION;\n"
            f"CREATE DATABASE IF NOT EXISTS {DATABASE};\n",
            encoding="utf-8",
        )
        self._give(init)
        self._install()

    def _serves(self) -> bool:
        import pymysql  # type: ignore[import-untyped]

        pymysql.connect(
            host="127.0.0.1", port=self.port, user=MARIADB_USER, password=MARIADB_PASSWORD, database=DATABASE
        ).close()
        return True


def _binary(name: str) -> str:
    return find_program("MariaDB", name, package="mariadb-server", folder=_SBIN)
