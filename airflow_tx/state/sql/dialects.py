"""The databases that a SQL state knows: another one is another subclass of `Dialect`, and one line here."""

from __future__ import annotations

from sqlalchemy.engine import URL

from airflow_tx.errors import ConfigError
from airflow_tx.state.sql.dialect import Dialect
from airflow_tx.state.sql.mysql import MySql
from airflow_tx.state.sql.postgres import Postgres
from airflow_tx.state.sql.sqlite import Sqlite

DIALECTS: dict[str, type[Dialect]] = {"sqlite": Sqlite, "postgresql": Postgres, "mysql": MySql, "mariadb": MySql}


def dialect_of(url: URL) -> Dialect:
    """The dialect of a database URL.

    :raises ConfigError: a database that this state does not know.
    """
    backend = url.get_backend_name()
    if backend not in DIALECTS:
        raise ConfigError(option="SqlState database", value=backend, remedy=f"Use one of {', '.join(DIALECTS)}.")
    return DIALECTS[backend]()
