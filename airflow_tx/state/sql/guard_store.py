"""The last committed txid of a guard, and the statements that run with it. Source: protocol.md §7."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.base.errors import StateError, TxidBehind
from airflow_tx.ledger import holds_for_good
from airflow_tx.state.api import Grant, StateWrite
from airflow_tx.state.sql.database import NOTHING, check_durable
from airflow_tx.state.sql.dialect import inserted, statement_text
from airflow_tx.state.sql.fence import FencedStore, Imprint
from airflow_tx.state.sql.schema import NAME

GUARD_TABLE = "airflow_tx_guard"
_Statement = str | tuple[str, Any]
_Statements = Callable[[list[dict[str, Any]]], Iterable[_Statement]] | Iterable[_Statement]
# These statements would end the transaction and commit earlier statements without their txid.
_ENDING = {"abort", "begin", "commit", "end", "release", "rollback", "savepoint", "start"}
_ENDING_IN_MYSQL = {
    "alter",
    "analyze",
    "create",
    "drop",
    "flush",
    "grant",
    "lock",
    "optimize",
    "rename",
    "revoke",
}
_ENDING_IN_MYSQL |= {"repair", "set", "truncate", "unlock", "xa"}
# Parts of a statement that are not code: texts, quoted names and comments. MySQL runs a comment
# that begins with an exclamation mark.
_NO_CODE = re.compile(
    r"""(?<!\w)[eE]'(?:[^'\\]|\\.|'')*' | '(?:[^']|'')*' | "(?:[^"]|"")*" | `[^`]*` | \$(\w*)\$.*?\$\1\$
    | --[^\n]* | /\*.*?\*/""",
    re.DOTALL | re.VERBOSE,
)
_NO_CODE_IN_MYSQL = re.compile(
    r"""'(?:[^'\\]|\\.|'')*' | "(?:[^"\\]|\\.|"")*" | `[^`]*` | \#[^\n]* | --(?=\s|$)[^\n]* | /\*(?!M?!).*?\*/""",
    re.DOTALL | re.VERBOSE,
)
_FIRST_WORD = re.compile(r"[\s(]*(?:/\*m?!\d*\s*)?([a-z]+)")
# The savepoint is lost as soon as the database transaction ends, for any reason.
_SAVEPOINT = "airflow_tx_guard"


class GuardStore(FencedStore):
    """Runs the statements of a SqlGuard inside transactions that `transaction()` opens.

    Before the statements run, the guard records the txid as a negative number. After they have run, it makes the number
    positive, if the transaction has not ended. If another session sees a negative number, the statements have ended the
    transaction. The statements of that transaction do not run again.

    :param guard: name of the guard in this database.
    :param statements: the statements, or a function that returns them for the rows of an update.
    """

    runs_own_statements = False

    def __init__(
        self, url: URL, *, guard: str, statements: _Statements, state: str, where: str
    ) -> None:
        super().__init__(url, state=state, table=(None, GUARD_TABLE), where=where)
        self._guard_name = guard
        self._statements = statements
        self._guard: sa.Table = _guard_table(None)

    def _place(self, connection: Connection) -> None:
        super()._place(connection)
        # A guard does not have its own table, so its identity is its name.
        self._identity = f"guard:{self._guard_name}"
        self._guard = _guard_table(self._schema)

    def raise_fence(self, connection: Connection, grant: Grant) -> Imprint | None:
        self._ensure_guard_table(connection)
        return super().raise_fence(connection, grant)

    def roll_back(self, connection: Connection, grant: Grant) -> None:
        """Set the recorded txid to 0 if another transaction with the same txid recorded it.

        A user has accepted that transaction's values.
        """
        before = self.read_fence(connection)
        own = [before] if before is not None and before.txid == grant.txid else []
        if own and not holds_for_good(own, grant.txid, grant.token.birth, grant.incarnation):
            self._note(connection, 0)

    def _own_table(self, connection: Connection) -> sa.Table:
        return self._guard

    def _ensure_guard_table(self, connection: Connection) -> None:
        if not self._has_table(connection, GUARD_TABLE):
            self._make_table(connection, self._guard)
        if GUARD_TABLE not in self._facts:
            check_durable(connection, self._schema, [GUARD_TABLE], state=self.state)
            self._facts[GUARD_TABLE] = True

    def missing(self, connection: Connection, kept: Imprint) -> str:
        noted = abs(self.noted(connection) or 0)
        # A user sets the number to 0 if the statements ended the transaction but no row was
        # written.
        if noted == 0 or noted >= kept.txid:
            return ""
        return f"{GUARD_TABLE} contains transaction {noted}, but contained {kept.txid} before"

    def imprint(
        self, connection: Connection, kept: Imprint | None = None, wrote: Imprint | None = None
    ) -> Imprint | None:
        return Imprint(abs(self.noted(connection) or 0))

    def _is_there(self, connection: Connection) -> bool:
        return self.noted(connection) is not None

    def holds_for_good(
        self, connection: Connection, txid: int, birth: str, incarnation: str
    ) -> bool:
        # The recorded txid has no birth, but was written under that transaction's fence.
        noted = abs(self.noted(connection) or 0)
        last = self.read_fence(connection)
        if last is None or last.txid != noted:
            return noted == txid
        return holds_for_good([last], txid, birth, incarnation)

    def noted(self, connection: Connection) -> int | None:
        """Return the last transaction whose statements ran.

        The txid is negative if they ended the database transaction.
        """
        if not self._has_table(connection, GUARD_TABLE):
            return None
        query = sa.select(self._guard.c.txid).where(self._guard.c.guard == self._guard_name)
        found: int | None = connection.execute(query).scalar_one_or_none()
        return found

    def put(self, connection: Connection, write: StateWrite, sample: list[str]) -> int:
        """Run the statements and record the txid, holding the fence row's lock.

        Do nothing if this txid is already recorded.

        :raises TxidBehind: a later transaction has run its statements.
        :raises StateError: a statement cannot run in the guard's transaction.
        """
        grant = write.grant
        rows = list(map(dict, write.listed))
        last = self.noted(connection)
        if last is not None and abs(last) > grant.txid:
            raise TxidBehind(txid=grant.txid, stored=abs(last))
        if last == -grant.txid:
            raise self._ended(grant.txid)
        if last != grant.txid:
            statements = self._statements
            given = list(statements(rows) if callable(statements) else statements)
            for number, statement in enumerate(given):
                self._check(
                    connection, number, statement if isinstance(statement, str) else statement[0]
                )
            self._note(connection, -grant.txid)
            connection.exec_driver_sql(f"SAVEPOINT {_SAVEPOINT}")
            self._execute(connection, grant, given, rows)
            self._check_open(connection, grant.txid)
            self._note(connection, grant.txid)
        return len(rows)

    def at(self, connection: Connection, txid: int, newest: int) -> str:
        # The query does not name a table, because only the author of the statements knows which
        # tables they write to.
        query = sa.select(sa.text("...")).select_from(sa.text("..."))
        return statement_text(
            connection.dialect, query.where(self._is_of(connection, txid, newest))
        )

    def take_over(self, connection: Connection, place: str) -> None:
        super().take_over(connection, place)
        if self._has_table(connection, GUARD_TABLE):
            other = self._guard.c.guard == place
            connection.execute(self._guard.update().where(other).values(guard=self._guard_name))

    def _check_moved(self, connection: Connection, place: str) -> None:
        """Do nothing, because a guard has no table with columns."""

    def _identity_at(self, connection: Connection, place: str) -> str:
        return f"guard:{place}"

    def clear(self, connection: Connection) -> None:
        super().clear(connection)
        if self._has_table(connection, GUARD_TABLE):
            connection.execute(self._releasing(connection))

    def _newest_txid(self, connection: Connection) -> int:
        # A negative txid may be from this ledger if a statement rolled back the fence. `put` then
        # raises the error.
        return max(self.noted(connection) or 0, 0)

    def _releasing(self, connection: Connection) -> sa.Delete:
        return self._guard.delete().where(self._guard.c.guard == self._guard_name)

    def _note(self, connection: Connection, txid: int) -> None:
        mine = {"guard": self._guard_name, "txid": txid}
        insert = self._dialect.insert_if_absent(self._guard)
        connection.execute(insert, inserted(mine))
        connection.execute(
            self._guard.update().where(self._guard.c.guard == self._guard_name).values(mine)
        )

    def _execute(
        self,
        connection: Connection,
        grant: Grant,
        statements: Iterable[_Statement],
        rows: list[dict[str, Any]],
    ) -> None:
        for statement in statements:
            sql, parameters = (statement, None) if isinstance(statement, str) else statement
            given: Any = rows if parameters is None else parameters
            text = sa.text(sql)
            if "txid" in text.compile().params:
                given = _with_txid(given, grant.txid)
            # With an empty list, SQLAlchemy would run the statement once, without parameters.
            if given or isinstance(given, Mapping):
                connection.execute(text, given)

    def _check(self, connection: Connection, number: int, sql: str) -> None:
        """Refuse a statement whose first word would end the transaction. A text may contain several statements."""
        mysql = connection.dialect.name in ("mysql", "mariadb")
        ending = _ENDING | _ENDING_IN_MYSQL if mysql else _ENDING
        code = (_NO_CODE_IN_MYSQL if mysql else _NO_CODE).sub(" ", sql).lower().lstrip("; \n\t\r")
        # SQLite's driver runs one statement, but the body of a trigger has several.
        for part in [code] if connection.dialect.name == "sqlite" else code.split(";"):
            word = _FIRST_WORD.match(part)
            if word is not None and word[1] in ending:
                where = "begins" if code.startswith(part) else "continues"
                problem = f"statement {number} {where} with {word[1].upper()}, which would end the guard's transaction"
                remedy = f"{NOTHING} Remove the statement. Create tables before the run."
                raise StateError(state=self.state, problem=problem, remedy=remedy)

    def _check_open(self, connection: Connection, txid: int) -> None:
        """Raise an error if the transaction has already ended, for example by a procedure.

        The fence and the recorded txid may then not match the tables. The statements do not run again.
        """
        try:
            connection.exec_driver_sql(f"RELEASE SAVEPOINT {_SAVEPOINT}")
        except sa.exc.DBAPIError as error:
            if error.connection_invalidated:
                raise
            connection.rollback()
            # If the transaction was rolled back, the recorded txid is lost, so write it again.
            with suppress(sa.exc.DBAPIError), self._engine.begin() as other:
                self._ensure_guard_table(other)
                self._note(other, -txid)
            raise self._ended(txid) from None

    def _ended(self, txid: int) -> StateError:
        table = self._engine.dialect.identifier_preparer.format_table(self._guard)
        name = self._guard_name.replace("'", "''")
        return StateError(
            state=self.state,
            problem="its statements ended the guard's transaction while they ran (by COMMIT, ROLLBACK, DDL, or a "
            f"procedure), so a part of transaction {txid} may be written. Rows of earlier states in the same database "
            "transaction may be visible, and the next try replaces these rows",
            remedy="The statements will not run again. Remove the one that ended the transaction, and check "
            "which rows are written. "
            f"Then set: UPDATE {table} SET txid = N WHERE guard = '{name}', where N is {txid} if all rows are written, "
            "and 0 if no row is. Then clear the commit task.",
        )

    def _refused(self, reason: str) -> StateError:
        """Return the error for a failed statement.

        If an earlier statement ended the transaction, the error mentions this.
        """
        with suppress(sa.exc.DBAPIError), self._engine.connect() as connection:
            noted = self.noted(connection)
            if noted is not None and noted < 0:
                return self._ended(-noted)
        return super()._refused(reason)


def _with_txid(given: Any, txid: int) -> Any:
    if isinstance(given, Mapping):
        return {"txid": txid, **given}
    return [{"txid": txid, **row} for row in given]


def _guard_table(schema: str | None) -> sa.Table:
    columns = (
        sa.Column("guard", NAME, primary_key=True),
        sa.Column("txid", sa.BigInteger, nullable=False),
    )
    return sa.Table(GUARD_TABLE, sa.MetaData(), *columns, schema=schema)
