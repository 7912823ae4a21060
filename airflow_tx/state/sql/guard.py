"""Your own SQL, exactly once per transaction: statements and the last committed txid in one database transaction.

Source: the LAST_COMMIT table of the book on lambda architectures with Storm; protocol.md §7.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

from airflow_tx.base.errors import ConfigError
from airflow_tx.state.api import StateKind, named
from airflow_tx.state.sql.state import FencedInSql

if TYPE_CHECKING:
    from airflow_tx.state.sql.guard_store import GuardStore

Parameters: TypeAlias = Mapping[str, Any] | Sequence[Mapping[str, Any]] | None
Statement: TypeAlias = str | tuple[str, Parameters]
Statements: TypeAlias = Callable[[list[dict[str, Any]]], Iterable[Statement]] | Sequence[Statement]


class SqlGuard(FencedInSql["GuardStore"]):
    """SQL statements that run once per transaction, in the same database transaction that records the txid.

    If this process or another one tries the commit again, the guard finds the txid in the table `airflow_tx_guard` and
    runs nothing. The fence refuses a committer that was declared dead. Statements that have run are not undone. So, as
    with every transactional state, a replay must have the same output, and an opaque source is refused.

    Parameters are written `:name` in every database. `:txid` is the transaction. A statement must not end the database
    transaction. COMMIT and similar statements are refused before anything runs. If a procedure ends the transaction,
    the guard detects this afterwards, and the error says what to do. Tables must exist already (docs/fence.md).

    :param conn_id: Airflow connection of type sqlite, postgres or mysql, looked up when the state is used.
    :param name: name of the guard. Two guards in one database need two names.
    :param statements: a list of statements, or a function that returns this list for the rows of the update. A
        statement is `(sql, parameters)`. It runs once if the parameters are a mapping, or once for each mapping in a
        list. SQL without parameters runs once for each row of the update, with the row's columns as parameters.
    """

    kind = StateKind.TRANSACTIONAL
    runs_once = "statements"

    def __init__(self, conn_id: str, *, name: str, statements: Statements) -> None:
        if not name or len(name) > 200:
            raise ConfigError(
                option="SqlGuard(name=)", value=name, remedy="Give a name of 1 to 200 characters."
            )
        if not callable(statements) and (
            isinstance(statements, str) or not all(map(_is_statement, statements))
        ):
            remedy = 'Give a list of (sql, parameters), or a function: [("INSERT INTO t VALUES (:n)", None)].'
            raise ConfigError(
                option=f"SqlGuard({name!r}, statements=)", value=statements, remedy=remedy
            )
        super().__init__(conn_id, name)
        self.guard = name
        self.statements = statements
        shown: Any = statements
        if not callable(shown):
            shown = [each if isinstance(each, str) else each[0] for each in shown]
        # Do not show the parameters, because they may contain secrets.
        self.normalize(statements=named(shown))

    def holds(self, txid: int) -> bool:
        return self.last_txid() == txid

    def holds_for_good(self, txid: int, birth: str, incarnation: str) -> bool:
        return self._asked(self._store.holds_for_good, txid, birth, incarnation)

    def last_txid(self) -> int | None:
        """Return the last transaction whose statements ran, at least in part, or None if there is none."""
        noted = self._asked(self._store.noted)
        return None if noted is None else abs(noted)

    def _open(self) -> GuardStore:
        from airflow_tx.base.connections import located
        from airflow_tx.state.sql.guard_store import GuardStore

        url, where = located(self.conn_id, self._url)
        return GuardStore(
            url, guard=self.guard, statements=self.statements, state=self.name, where=where
        )


def _is_statement(statement: object) -> bool:
    if isinstance(statement, tuple):
        return len(statement) == 2 and isinstance(statement[0], str)
    return isinstance(statement, str)
