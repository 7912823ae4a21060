"""Up to which row a table of MySQL or MariaDB is settled.

A transaction that has begun to write a table holds a metadata lock on it until it ends, taken before it draws an id. A
lock on the table is granted once all of these are over; under it the last committed id is read.
"""

from __future__ import annotations

from typing import ClassVar

import sqlalchemy as sa

from airflow_tx.sources.sql.positions import RowKey
from airflow_tx.sources.sql.settled import Settling

_LOCKED = (1205, 3572)
_OF_TABLE = "table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
_NEXT = f"SELECT auto_increment FROM information_schema.tables WHERE {_OF_TABLE}"
_EXTRA = f"SELECT extra FROM information_schema.columns WHERE {_OF_TABLE} AND column_name = :column"


class MySqlSettling(Settling):
    """Holds a lock on the table for the time of one read of its index.

    A read lock disturbs no statement, and is never granted where transactions that write overlap all the time: new
    ones go before it. So a write lock is requested after it, behind which new statements on the table wait: for one
    second at most, with pauses that grow.
    """

    first_pause: ClassVar[float] = 1.0
    longest_pause: ClassVar[float] = 8.0

    def end(self, after: RowKey | None) -> RowKey | None:
        self._check_server()
        # Rows that wait for our lock have earlier times.
        past = self.past()
        if self.newest(after, past) is None or not self._locked():
            return None
        try:
            return self.newest(after, past)
        finally:
            self.connection.exec_driver_sql("UNLOCK TABLES")

    def drawn(self) -> int | None:
        if not self._given_by_server():
            return None
        if self.connection.dialect.is_mariadb is False:  # type: ignore[attr-defined]
            self.connection.exec_driver_sql("SET SESSION information_schema_stats_expiry = 0")
        found = self.connection.execute(sa.text(_NEXT), self._named()).scalar()
        return None if found is None else int(found) - 1

    def _given_by_server(self) -> bool:
        """Check whether AUTO_INCREMENT is on the column that orders the rows."""
        column = {**self._named(), "column": self.table.order[0].name}
        return (
            "auto_increment"
            in str(self.connection.execute(sa.text(_EXTRA), column).scalar()).lower()
        )

    def _named(self) -> dict[str, str | None]:
        schema, _, name = self.table.name.rpartition(".")
        return {"schema": schema or None, "name": name}

    def _locked(self) -> bool:
        waits_for = "transactions that have written to it are open (SELECT * FROM information_schema.innodb_trx)"
        pauses = self.pauses(waits_for)
        while not (self._granted("READ") or self._granted("WRITE")):
            if next(pauses, self) is self:
                return False
        return True

    def _granted(self, lock: str) -> bool:
        """Request a lock for as long as the session waits for one: a second."""
        name = self.connection.dialect.identifier_preparer.format_table(self.table.clause)
        try:
            self.connection.exec_driver_sql(f"LOCK TABLES {name} {lock}")
        except sa.exc.DBAPIError as error:
            if error.orig is None or error.orig.args[0] not in _LOCKED:
                raise
            return False
        return True

    def _check_server(self) -> None:
        read_only, step = self.connection.exec_driver_sql(
            "SELECT @@global.read_only, @@auto_increment_increment"
        ).one()
        if str(read_only) not in ("0", "OFF"):
            problem = "its server is read-only, as a replica is, which does not know the running transactions"
            raise self.errors.refused(problem, "Let the connection lead to the primary.")
        if step > 1 and self._given_by_server():
            raise self.errors.refused(
                f"auto_increment_increment is {step}: several servers hand out ids, in no common order",
                "Order by a time and the id, or let one server hand them out.",
            )

    def earlier(
        self, key: sa.ColumnElement[object], kind: str, seconds: float
    ) -> sa.ColumnElement[bool]:
        # The zone of our own session is UTC.
        now = (
            "UTC_TIMESTAMP(6)"
            if kind == "instant"
            else "CONVERT_TZ(UTC_TIMESTAMP(6), '+00:00', @@global.time_zone)"
        )
        query = sa.text(f"SELECT {now} - INTERVAL :micros MICROSECOND")
        ago = self.connection.execute(query, {"micros": int(seconds * 1_000_000)}).scalar_one()
        found: sa.ColumnElement[bool] = key <= ago
        return found
