"""The last committed txid of a guard, and the statements that run with it. Source: PROTOCOL §7."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.errors import StateError, TxidBehind
from airflow_tx.state.api import Grant
from airflow_tx.state.backing.sql_fence import NOTHING, FencedStore
from airflow_tx.state.backing.sql_types import NAME
from airflow_tx.state.guard import Statements

GUARD_TABLE = "airflow_tx_guard"
# They would end the transaction, and what ran before them would stay without its txid.
_ENDING = {"abort", "begin", "commit", "end", "release", "rollback", "savepoint", "start"}
_ENDING_IN_MYSQL = {"alter", "analyze", "create", "drop", "flush", "grant", "lock", "optimize", "rename", "revoke"}
_ENDING_IN_MYSQL |= {"repair", "set", "truncate", "unlock", "xa"}
_COMMENT = re.compile(r"/\*.*?\*/|--[^\n]*", re.DOTALL)


class GuardStore(FencedStore):
    """What a SqlGuard does, inside transactions that it opens with `transaction()`.

    :param guard: name of the guard in this database.
    """

    def __init__(self, url: URL, *, guard: str, state: str, where: str) -> None:
        super().__init__(url, state=state, table=(None, GUARD_TABLE), where=where)
        self._guard_name = guard
        self._guard: sa.Table = _guard_table(None)

    def _place(self, connection: Connection) -> None:
        super()._place(connection)
        # A guard has no table of its own to stand beside.
        self._identity = f"guard:{self._guard_name}"
        self._guard = _guard_table(self._schema)

    def raise_fence(self, connection: Connection, grant: Grant) -> None:
        """Besides raising the fence: make the table of the guards, while nothing is locked."""
        if not self._has_table(connection, GUARD_TABLE):
            with self._dialect.ddl(connection) as ddl:
                if not self._has_table(ddl, GUARD_TABLE):
                    self._dialect.create(ddl, self._guard)
        super().raise_fence(connection, grant)

    def _is_there(self, connection: Connection) -> bool:
        return self.last_txid(connection) is not None

    def last_txid(self, connection: Connection) -> int | None:
        """The last transaction whose statements ran."""
        if not self._has_table(connection, GUARD_TABLE):
            return None
        query = sa.select(self._guard.c.txid).where(self._guard.c.guard == self._guard_name)
        found: int | None = connection.execute(query).scalar_one_or_none()
        return found

    def apply(
        self,
        connection: Connection,
        grant: Grant,
        statements: Statements,
        rows: list[dict[str, Any]],
        *,
        complete: bool,
    ) -> None:
        """Run the statements and note the txid, unless it is noted; under the lock of the fence row.

        :raises TxidBehind: a later transaction has run its statements.
        :raises StateError: a statement cannot run here.
        """
        if not complete:
            raise StateError(
                state=self.state,
                problem="it was given a part of an update, and its statements run once",
                remedy="Give all rows in one write.",
            )
        last = self.last_txid(connection)
        if last is not None and last > grant.txid:
            raise TxidBehind(txid=grant.txid, stored=last)
        if last != grant.txid:
            self._run(connection, grant, statements, rows)
            if last is None:
                connection.execute(self._guard.insert().values(guard=self._guard_name, txid=grant.txid))
            else:
                mine = self._guard.c.guard == self._guard_name
                connection.execute(self._guard.update().where(mine).values(txid=grant.txid))
        self.set_applied(connection)

    def clear(self, connection: Connection) -> None:
        """Delete the fence row and the txid."""
        super().clear(connection)
        if self._has_table(connection, GUARD_TABLE):
            connection.execute(self._guard.delete().where(self._guard.c.guard == self._guard_name))

    def _run(self, connection: Connection, grant: Grant, statements: Statements, rows: list[dict[str, Any]]) -> None:
        for number, statement in enumerate(statements(rows) if callable(statements) else statements):
            sql, parameters = (statement, None) if isinstance(statement, str) else statement
            self._check(connection, number, sql)
            given: Any = rows if parameters is None else parameters
            text = sa.text(sql)
            if "txid" in text.compile().params:
                given = _with_txid(given, grant.txid)
            # An empty list of parameters would run the statement once, without any.
            if given or isinstance(given, Mapping):
                connection.execute(text, given)

    def _check(self, connection: Connection, number: int, sql: str) -> None:
        word = next(iter(_COMMENT.sub(" ", sql).lower().replace(";", " ").split()), "")
        ending = _ENDING | _ENDING_IN_MYSQL if connection.dialect.name in ("mysql", "mariadb") else _ENDING
        if word in ending:
            raise StateError(
                state=self.state,
                problem=f"statement {number} begins with {word.upper()}, which would end the guard's transaction",
                remedy=f"{NOTHING} Take it out; make tables beforehand.",
            )


def _with_txid(given: Any, txid: int) -> Any:
    if isinstance(given, Mapping):
        return {"txid": txid, **given}
    return [{"txid": txid, **row} for row in given]


def _guard_table(schema: str | None) -> sa.Table:
    return sa.Table(
        GUARD_TABLE,
        sa.MetaData(),
        sa.Column("guard", NAME, primary_key=True),
        sa.Column("txid", sa.BigInteger, nullable=False),
        schema=schema,
    )
