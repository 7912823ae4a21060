"""Tables that a crash empties, or that keep a part of a transaction: they are refused before anything is read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.errors import StateDiffers

_POSTGRES = """
    SELECT s.nspname, c.relname, ''
    FROM pg_class c
    JOIN pg_namespace s
      ON s.oid = c.relnamespace,
    pg_class t
    JOIN pg_namespace n
      ON n.oid = t.relnamespace
    WHERE n.nspname = :schema
      AND t.relname IN :tables
      AND c.relpersistence = 'u'
      AND (
        c.oid = t.oid
        OR c.oid IN (
          SELECT relid
          FROM pg_partition_tree(t.oid)
        )
      )
"""
_MYSQL = """
    SELECT t.table_schema,
      t.table_name,
      t.engine
    FROM information_schema.tables t
    LEFT JOIN information_schema.engines e
      ON e.engine = t.engine
    WHERE t.table_schema
        = COALESCE(:schema, DATABASE())
      AND t.table_name IN :tables
      AND t.table_type = 'BASE TABLE'
      AND COALESCE(e.transactions, 'NO')
        <> 'YES'
"""
# By the name of SQLAlchemy's dialect: the query, what is wrong, what mends it.
_CHECKS: Mapping[str, tuple[str, str, str]] = {
    "postgresql": (
        _POSTGRES,
        "is UNLOGGED, so a crash of the server empties it",
        "SET LOGGED",
    ),
    "mysql": (
        _MYSQL,
        "has the engine {engine}, which has no transactions",
        "ENGINE=InnoDB",
    ),
}
_CHECKS = {**_CHECKS, "mariadb": _CHECKS["mysql"]}


def check_durable(
    connection: Connection, schema: str | None, tables: Sequence[str], *, state: str
) -> None:
    """Refuse tables whose content does not survive.

    :raises StateDiffers: naming the first one, and the DDL that mends it.
    """
    if connection.dialect.name not in _CHECKS:
        return
    text, problem, change = _CHECKS[connection.dialect.name]
    query = sa.text(text).bindparams(sa.bindparam("tables", expanding=True))
    found = connection.execute(query, {"schema": schema, "tables": list(tables)}).first()
    if found is None:
        return
    place, name, engine = found
    table = sa.Table(name, sa.MetaData(), schema=place)
    named = connection.dialect.identifier_preparer.format_table(table)
    raise StateDiffers(
        state=state,
        problem=f"table {named} {problem.format(engine=engine)}",
        remedy=f"Nothing was written. Change it, then clear the commit task: ALTER TABLE {named} {change}",
    )
