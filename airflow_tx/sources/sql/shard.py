"""Read one table of one connection: decide the next rows, detect lost rows, and read the rows of a batch."""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from typing import TYPE_CHECKING, Any, ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection, Dialect

from airflow_tx.base.errors import SourceError
from airflow_tx.base.remedy import Remedy
from airflow_tx.base.rows import READER, Element, JdbcQuery, NoJdbc, session_of_spark, sql_text
from airflow_tx.sources.api import Json, RowTypes
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot, PartitionLog
from airflow_tx.sources.sql.database import Database, TableErrors
from airflow_tx.sources.sql.spec import SqlSpec
from airflow_tx.sources.sql.table import (
    MARKED_ROWS,
    KeyRange,
    Mark,
    RowKey,
    Rows,
    Table,
    TablePosition,
    shown,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- settled ------------------------------------------------------------------------------------------------------
# Find the last settled row of a table. No transaction can commit another row at or before it. A
# database assigns ids in order, but transactions commit in any order. For each kind of database,
# there is a way to find the transactions that may still commit a smaller id. The source waits for
# them.


log = logging.getLogger(__name__)


class Settling(ABC):
    """Finds the last settled row of a table. Each subclass supports one kind of database.

    :param connection: connection in autocommit mode.
    :param table: table to read.
    :param errors: object that creates the errors.
    :param deadline: monotonic time when the wait for transactions ends.
    """

    first_pause: ClassVar[float] = 0.02
    longest_pause: ClassVar[float] = 0.5

    def __init__(
        self, connection: Connection, table: Table, errors: TableErrors, deadline: float
    ) -> None:
        self.connection = connection
        self.table = table
        self.errors = errors
        self.deadline = deadline

    @abstractmethod
    def end(self, after: RowKey | None) -> RowKey | None:
        """Return the last settled key after `after`. Return None if there is none yet.

        :raises SourceError: this server does not show which rows are settled.
        """

    @abstractmethod
    def drawn(self) -> int | None:
        """Return the last id that the database has assigned.

        Return None if the database assigns no ids, or does not show them.
        """

    def identity(self) -> str | None:
        """Return a value that changes when the table is restarted, for example by TRUNCATE.

        It seldom changes otherwise. Return None if the database has no such value.
        """
        return None

    @abstractmethod
    def earlier(
        self, key: sa.ColumnElement[object], kind: str, seconds: float
    ) -> sa.ColumnElement[bool]:
        """Return the SQL condition that a time is at least `seconds` ago, by the clock of the database.

        :param kind: "time" for a time without a time zone, which is in the time zone of the database, or "instant".
        """

    def newest(self, after: RowKey | None, *conditions: sa.ColumnElement[bool]) -> RowKey | None:
        """Return the last committed key after `after`."""
        return self.table.newest(self.connection, self.table.after(after), *conditions)

    def past(self) -> sa.ColumnElement[bool]:
        """Return the SQL condition that a row is at least `settle` seconds old.

        It is always true without a time column.
        """
        first = self.table.order[0]
        if first.kind not in ("time", "instant"):
            return sa.true()
        return self.earlier(self.table.keys[0], first.kind, self.table.spec.settle)

    def set_back(self, last: RowKey | None) -> int | None:
        """Return the last assigned id if it is less than `last`, since the ids after it would count as taken."""
        if last is None or [column.kind for column in self.table.order] != ["integer"]:
            return None
        drawn = self.drawn()
        return drawn if drawn is not None and drawn < last[0] else None

    def pauses(self, waits_for: object) -> Iterator[None]:
        """Pause before each further attempt. Stop at the deadline, and log the transactions that were waited for.

        :param waits_for: object whose `str` names the transactions that were waited for.
        """
        pause = self.first_pause
        while (left := self.deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(2 * pause, self.longest_pause)
            yield
        log.warning(
            "%s reads no new row of table %s: %s. No row is lost: the source continues when these transactions end. "
            "It has already waited for `patience`, %g s.",
            self.errors.source, self.table.name, waits_for, self.table.spec.patience,
        )  # fmt: skip


class SqliteSettling(Settling):
    """In SQLite, every committed row is settled. SQLite has only one writer at a time, so ids commit in order."""

    def end(self, after: RowKey | None) -> RowKey | None:
        return self.newest(after, self.past())

    def drawn(self) -> int | None:
        schema, _, name = self.table.name.rpartition(".")
        if schema:
            return None
        keys = sa.text("SELECT name, upper(type) FROM pragma_table_info(:name) WHERE pk > 0")
        if self.connection.execute(keys, {"name": name}).all() != [
            (self.table.order[0].name, "INTEGER")
        ]:
            return None
        made = sa.text("SELECT upper(sql) FROM sqlite_master WHERE type = 'table' AND name = :name")
        if "AUTOINCREMENT" in str(self.connection.execute(made, {"name": name}).scalar()):
            known = sa.text("SELECT seq FROM sqlite_sequence WHERE name = :name")
            return int(self.connection.execute(known, {"name": name}).scalar() or 0)
        newest = self.newest(None)
        return 0 if newest is None else int(newest[0])

    def earlier(
        self, key: sa.ColumnElement[object], kind: str, seconds: float
    ) -> sa.ColumnElement[bool]:
        found: sa.ColumnElement[bool] = (
            sa.func.julianday(key) <= sa.func.julianday("now") - seconds / 86_400
        )
        return found


# --- settled mysql ------------------------------------------------------------------------------------------------
# Find the last settled row of a MySQL or MariaDB table. A transaction takes a metadata lock on a
# table before it gets an id, and holds the lock until it ends. Once the source gets a lock on the
# table, all of these transactions have ended. Under this lock, the source reads the last committed
# id.


_LOCKED = (1205, 3572)
_OF_TABLE = "table_schema = COALESCE(:schema, DATABASE()) AND table_name = :name"
_NEXT = f"SELECT auto_increment FROM information_schema.tables WHERE {_OF_TABLE}"
_EXTRA = f"SELECT extra FROM information_schema.columns WHERE {_OF_TABLE} AND column_name = :column"


class MySqlSettling(Settling):
    """Holds a lock on the table while it reads the last key from the index.

    It first requests a read lock, which delays no other statement. If write transactions always overlap, the server
    never grants this lock, since new writers get theirs first. It then requests a write lock. New statements on the
    table wait for this lock. Each request lasts at most one second. The pauses between requests become longer.
    """

    first_pause: ClassVar[float] = 1.0
    longest_pause: ClassVar[float] = 8.0

    def end(self, after: RowKey | None) -> RowKey | None:
        self._check_server()
        # Compute the time limit before taking the lock, since waiting rows may get a time while it
        # is held.
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
        """Return whether the ordering column has AUTO_INCREMENT."""
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
        """Request a lock. Return whether the server grants it within the session's lock timeout of one second."""
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
            problem = "its server is read-only, such as a replica, and cannot list the running transactions"
            raise self.errors.refused(problem, "Use a connection to the primary server.")
        if step > 1 and self._given_by_server():
            raise self.errors.refused(
                f"auto_increment_increment is {step}: several servers hand out ids, in no common order",
                "Order by a time and the id, or let only one server hand out ids.",
            )

    def earlier(
        self, key: sa.ColumnElement[object], kind: str, seconds: float
    ) -> sa.ColumnElement[bool]:
        # This package's session is in UTC.
        now = (
            "UTC_TIMESTAMP(6)"
            if kind == "instant"
            else "CONVERT_TZ(UTC_TIMESTAMP(6), '+00:00', @@global.time_zone)"
        )
        query = sa.text(f"SELECT {now} - INTERVAL :micros MICROSECOND")
        ago = self.connection.execute(query, {"micros": int(seconds * 1_000_000)}).scalar_one()
        found: sa.ColumnElement[bool] = key <= ago
        return found


# --- settled postgres ---------------------------------------------------------------------------------------------
# Find the last settled row of a PostgreSQL table. A transaction that has drawn a value of a
# sequence holds a lock on the sequence until it ends. This is true even if its statement was rolled
# back. Every running transaction holds a lock on its own virtual id. Any user can read both locks
# in `pg_locks`. The source lists the transactions that may have drawn an id below the last
# committed id, and waits for them. No writer waits for the source.


_SEQUENCE = """
SELECT s.seqrelid AS id, s.seqrelid::regclass::text AS name, s.seqcache AS cached, s.seqincrement AS step,
       s.seqcycle AS cycles
FROM pg_attribute c
JOIN pg_depend d ON
    d.refclassid = 'pg_class'::regclass AND d.refobjid = c.attrelid AND d.refobjsubid = c.attnum AND d.deptype = 'i'
    AND d.classid = 'pg_class'::regclass
JOIN pg_sequence s ON s.seqrelid = d.objid
WHERE c.attrelid = CAST(:table AS regclass) AND c.attname = :column
UNION
SELECT s.seqrelid, s.seqrelid::regclass::text, s.seqcache, s.seqincrement, s.seqcycle
FROM pg_attribute c
JOIN pg_attrdef a ON a.adrelid = c.attrelid AND a.adnum = c.attnum
JOIN pg_depend d ON d.classid = 'pg_attrdef'::regclass AND d.objid = a.oid AND d.refclassid = 'pg_class'::regclass
JOIN pg_sequence s ON s.seqrelid = d.refobjid
WHERE c.attrelid = CAST(:table AS regclass) AND c.attname = :column
"""
# The session's time zone before this package set it.
_ZONE = "SELECT reset_val FROM pg_settings WHERE name = 'TimeZone'"
_DRAWN = """
SELECT CASE WHEN has_sequence_privilege(CAST(:id AS oid), 'USAGE, SELECT')
            THEN pg_sequence_last_value(CAST(:id AS oid)) END
"""
_FILE = "SELECT pg_relation_filenode(CAST(CAST(:id AS oid) AS regclass))"
_OF_SEQUENCE = """
SELECT l.virtualtransaction, l.pid, a.application_name, a.xact_start
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'relation' AND l.relation = CAST(:id AS oid) AND l.mode = 'RowExclusiveLock'
  AND l.database = (SELECT oid FROM pg_database WHERE datname = current_database())
"""
# A backend without a user is a process of the server itself, such as autovacuum.
_OF_ALL = """
SELECT l.virtualtransaction, l.pid, a.application_name, a.xact_start
FROM pg_locks l LEFT JOIN pg_stat_activity a ON a.pid = l.pid
WHERE l.locktype = 'virtualxid' AND l.mode = 'ExclusiveLock' AND l.pid <> pg_backend_pid()
  AND (a.pid IS NULL OR (a.datname = current_database() AND a.usesysid IS NOT NULL AND a.application_name <> :reader))
UNION ALL
SELECT 'prepared ' || transaction::text, NULL, gid, prepared
FROM pg_prepared_xacts WHERE database = current_database()
"""


@dataclass(frozen=True)
class Sequence:
    """The sequence that assigns the ids."""

    id: int
    name: str


class PostgresSettling(Settling):
    """Waits for transactions that may have a smaller id, or an earlier time, than the last committed row."""

    def end(self, after: RowKey | None) -> RowKey | None:
        if self.connection.execute(sa.text("SELECT pg_is_in_recovery()")).scalar():
            remedy = "Use a connection to the primary server."
            raise self.errors.refused(
                "its server is a standby, which cannot list the running transactions", remedy
            )
        sequence = self._sequence
        end = self.newest(after, self.past())
        if end is None:
            return None
        drawn = self.drawn()
        if drawn is not None and end[0] > drawn and sequence is not None:
            log.warning(
                "%s: table %s has rows up to %s, but its sequence %s is at %d. Rows beyond it did not get their ids "
                "from the sequence. The source reads them after the sequence has passed their ids.",
                self.errors.source, self.table.name, shown(end), sequence.name, drawn,
            )  # fmt: skip
            end = self.newest(after, self.table.upto((drawn,)))
        return end if end is None or self._over(sequence) else None

    def drawn(self) -> int | None:
        if self._sequence is None:
            return None
        found = self.connection.execute(sa.text(_DRAWN), {"id": self._sequence.id}).scalar()
        return None if found is None else int(found)

    def identity(self) -> str | None:
        if self._sequence is None:
            return None
        found = self.connection.execute(sa.text(_FILE), {"id": self._sequence.id}).scalar()
        return None if found is None else str(found)

    def earlier(
        self, key: sa.ColumnElement[object], kind: str, seconds: float
    ) -> sa.ColumnElement[bool]:
        zone = "" if kind == "instant" else f" AT TIME ZONE ({_ZONE})"
        query = sa.text(f"SELECT (clock_timestamp() - make_interval(secs => :seconds)){zone}")
        found: sa.ColumnElement[bool] = (
            key <= self.connection.execute(query, {"seconds": seconds}).scalar_one()
        )
        return found

    def _over(self, sequence: Sequence | None) -> bool:
        """Wait for the running transactions that may have drawn a smaller value. Return False at the deadline."""
        # If the sequence was never used, another object assigns the ids.
        drawing = sequence if sequence is not None and self.drawn() is not None else None
        noted = self._running(drawing)
        if not noted:
            return True
        waiting = Holders(list(noted.values()))
        for _ in self.pauses(waiting):
            running = self._running(drawing)
            # A listed transaction may have become a prepared transaction, which has another id.
            still = [
                name
                for each, name in running.items()
                if each in noted or each.startswith(("-1/", "prepared "))
            ]
            if not still:
                return True
            waiting.names = still
        return False

    def _running(self, sequence: Sequence | None) -> dict[str, str]:
        """Return the running transactions that may have drawn a sequence value, with their names for the log."""
        if sequence is None:
            found = self.connection.execute(sa.text(_OF_ALL), {"reader": READER})
        else:
            found = self.connection.execute(sa.text(_OF_SEQUENCE), {"id": sequence.id})
        return {row[0]: _named(row[1], row[2], row[3]) for row in found}

    @cached_property
    def _sequence(self) -> Sequence | None:
        column = self.table.order[0]
        if column.kind != "integer":
            return None
        name = self.table.spelled(self.connection.dialect)
        found = self.connection.execute(
            sa.text(_SEQUENCE), {"table": name, "column": column.name}
        ).first()
        if found is None:
            return None
        wrong = f"CACHE {found.cached}" if found.cached > 1 else "CYCLE" if found.cycles else ""
        wrong = f"INCREMENT {found.step}" if found.step < 1 else wrong
        if wrong:
            raise self.errors.refused(
                f"sequence {found.name} of {self.table.name}.{column.name} has {wrong}: a session may use an id long "
                "after greater ones were committed",
                f"ALTER SEQUENCE {found.name} CACHE 1 NO CYCLE INCREMENT 1, or order by a time and the id.",
            )
        return Sequence(found.id, found.name)


@dataclass
class Holders:
    """The transactions that the source waits for. The object's `str` has their names.

    :param names: transaction names.
    """

    names: list[str]

    def __str__(self) -> str:
        named = ", ".join(self.names[:5]) + (" ..." if len(self.names) > 5 else "")
        return f"{len(self.names)} running transaction(s) may still commit a row before it: {named}"


def _named(pid: int | None, application: str | None, since: Any) -> str:
    if pid is None:
        return f"prepared {application}" if application else "a prepared transaction"
    named = f"pid {pid}" + (f" ({application})" if application else "")
    return named if since is None else f"{named} since {since:%Y-%m-%d %H:%M:%S%z}"


# --- shard --------------------------------------------------------------------------------------------------------


MOST_RANGES = 1_000
"""Maximum number of ranges in a batch, since its metadata lists all of them."""
SAMPLED_ROWS = 100
_AT_ONCE = 2_000
_SETTLING: Mapping[str, type[Settling]] = {
    "postgresql": PostgresSettling,
    "mysql": MySqlSettling,
    "mariadb": MySqlSettling,
    "sqlite": SqliteSettling,
}


@dataclass(frozen=True)
class ShardSnapshot(LogSnapshot):
    """A table's state after a position.

    :param end: last row that can be taken, or None if no row can be taken.
    """

    end: RowKey | None = None

    @property
    def range(self) -> KeyRange:
        """The rows that can be taken, at least one."""
        assert self.end is not None
        return KeyRange(self.position.last, self.end)


class Shard(PartitionLog):
    """One table of one connection. Each object serves one decision, or the read of one batch.

    :param what: source class name, for errors.
    """

    def __init__(
        self, conn_id: str, table: str, spec: SqlSpec, errors: TableErrors, *, what: str
    ) -> None:
        self.table = table
        self.spec = spec
        self.errors = errors
        self.database = Database(conn_id, errors, what=what)
        self._deadline = time.monotonic() + spec.patience
        self._checked: Table | None = None

    # --- deciding -------------------------------------------------------------------------------------------------

    def snapshot(self, position: Json) -> ShardSnapshot:
        """Find the rows that can be taken. Wait for open transactions, up to the source's `patience`."""
        at = self.position(position)
        with self.database.connected() as connection:
            settling = self._settling(connection, self._deadline)
            kept = self._kept(settling, at)
            gone = self._lost(settling, at, kept)
            if gone is not None:
                return ShardSnapshot(at, 0, gone)
            # Start with the current number of rows, so that a deleted row does not hide a late row.
            at = replace(at, rows=kept)
            end = settling.end(at.last)
        return ShardSnapshot(at, 0 if end is None else None, end=end)

    def sizes(self, snapshot: ShardSnapshot) -> list[int]:
        """Return the sizes of a sample of the next rows, in bytes."""
        with self.database.connected() as connection:
            table = self.checked(connection)
            rows = connection.execute(table.read(table.within(snapshot.range), most=SAMPLED_ROWS))
            return [sum(map(_size, row[: len(table.columns)])) for row in rows]

    def count(self, snapshot: ShardSnapshot, most: int) -> int:
        with self.database.connected() as connection:
            table = self.checked(connection)
            return table.count(connection, table.within(snapshot.range), most=most)

    def take(self, snapshot: ShardSnapshot, most: int | None) -> LogBatch | Gone | None:
        if snapshot.end is None or most == 0:
            return None
        each = self.spec.rows_per_read
        most = min(each * MOST_RANGES, each * MOST_RANGES if most is None else most)
        with self.database.connected() as connection:
            cuts = self.checked(connection).cuts(connection, snapshot.range, most=most, each=each)
            if not cuts:
                return None
            mark = self._mark(
                self._settling(connection), KeyRange(snapshot.position.since, cuts[-1][0])
            )
        numbers = [0, *(number for _, number in cuts)]
        counts = [upto - before for before, upto in pairwise(numbers)]
        rows = Rows(snapshot.position.last, tuple(key for key, _ in cuts), tuple(counts))
        after: TablePosition = replace(
            snapshot.position.after(rows.ends[-1], rows.count), mark=mark
        )
        ended = rows.ends[-1] == snapshot.end
        return LogBatch(rows.to_json(), after.to_json(), rows.count, ended=ended)

    def backlog(self, position: Json) -> int:
        """Count the rows after a position, including unsettled rows."""
        at = self.position(position)
        with self.database.connected() as connection:
            table = self.checked(connection)
            return table.count(connection, table.after(at.last))

    def gone(self, position: Json, most: int | None = None) -> Gone | None:
        """Return the loss if the table was restarted, or has late rows that no batch contains.

        Otherwise return None.
        """
        at = self.position(position)
        with self.database.connected() as connection:
            settling = self._settling(connection)
            return self._lost(settling, at, self._kept(settling, at))

    def lacks(self, position: Json) -> str | None:
        """Return a clause that explains how the table went back, judging by its last id or greatest key."""
        at = self.position(position)
        if at.last is None:
            return None
        with self.database.connected() as connection:
            settling = self._settling(connection)
            newest = settling.newest(None)
            drawn = settling.set_back(at.last)
            # If the database knows its last assigned id, a smaller greatest key may only indicate
            # deleted rows.
            is_before = settling.drawn() is None and newest is not None and newest < at.last
            if drawn is None and not is_before and not self._is_other(settling, at.mark):
                return None
        found = "nothing" if newest is None else shown(newest)
        return f"table {self.table} has {found} as its last row, but rows up to {shown(at.last)} were already taken"

    def _settling(self, connection: Connection, deadline: float = 0.0) -> Settling:
        return _SETTLING[self.database.kind](
            connection, self.checked(connection), self.errors, deadline
        )

    def _mark(self, settling: Settling, taken: KeyRange) -> Mark | None:
        """Return digests that identify the last taken rows.

        Return None unless an id alone orders the rows, since only ids can restart.
        """
        table = settling.table
        if [column.kind for column in table.order] != ["integer"]:
            return None
        rows = table.last(settling.connection, table.within(taken), most=MARKED_ROWS)
        return Mark.of(table.order[0].name, rows, settling.identity())

    def _is_other(self, settling: Settling, mark: Mark | None) -> bool:
        """Return whether the ids of the last taken rows now belong to other rows."""
        if mark is None or not mark.rows:
            return False
        table = settling.table
        numbers = list(mark.rows)
        rows = table.last(settling.connection, table.keys[0].in_(numbers), most=len(numbers))
        return mark.is_other(table.order[0].name, rows, settling.identity())

    def _kept(self, settling: Settling, position: TablePosition) -> int:
        """Count the current rows in the range to search for late rows."""
        if position.last is None:
            return 0
        return settling.table.count(
            settling.connection, settling.table.within(KeyRange(position.since, position.last))
        )

    def _lost(self, settling: Settling, position: TablePosition, kept: int) -> Gone | None:
        if position.last is None:
            return None
        drawn = settling.set_back(position.last)
        key = settling.table.order[0].name
        if drawn is not None or self._is_other(settling, position.mark):
            again = TablePosition(restarts=position.restarts + 1)
            what = f"table {self.table} begins again: rows up to {shown(position.last)} were taken, and "
            what += (
                f"other rows have the last of these {key}s"
                if drawn is None
                else f"the last {key} is {drawn}"
            )
            what = f"{what} now; accepted, it is read from its first row on"
            return Gone(what, again.to_json(), went_back=True)
        if kept <= position.rows:
            return None
        behind = "" if position.since is None else f" behind {shown(position.since)}"
        what = f"{kept - position.rows} row(s) of table {self.table} came too late, they are in no batch: up to "
        what += f"{shown(position.last)} there were {position.rows}{behind} when they were taken, and there are {kept}"
        return Gone(what, replace(position, rows=kept).to_json())

    # --- the rows of a batch --------------------------------------------------------------------------------------

    def rows(self, metadata: Json) -> Iterator[Mapping[str, Any]]:
        """Read exactly the decided rows, in order.

        :raises SourceError: the table has more or fewer rows. This is detected at the end of the read.
        """
        rows = self.parsed(metadata)
        found = 0
        with self.database.reading() as connection:
            table = self.checked(connection)
            streamed = connection.execution_options(stream_results=True, max_row_buffer=_AT_ONCE)
            for row in streamed.execute(table.read(table.within(rows.whole))):
                found += 1
                yield table.row(row)
        if found != rows.count:
            raise self.changed(rows, found)

    def row_types(self) -> RowTypes:
        """Return the Arrow types of the columns."""
        with self.database.connected() as connection:
            return self.checked(connection).arrow_types()

    def changed(self, rows: Rows, found: int) -> SourceError:
        """Return the error if the number of rows differs from the decided number."""
        after = "the beginning" if rows.after is None else shown(rows.after)
        problem = f"table {self.table} had {rows.count} rows after {after} up to {shown(rows.ends[-1])}, but now has "
        problem += f"{found}: rows were deleted, changed or inserted since the batch was decided"
        remedy = Remedy.of(
            "Restore the rows, then clear the task. Or process the remaining rows: ",
            self.errors.replay,
            ". With kind='opaque', you can also clear `begin` to decide the batch again.",
        )
        return self.errors.refused(problem, remedy)

    def again(self, metadata: Json) -> Json:
        """Return the metadata for the same key range, with the current number of rows.

        :raises SourceError: there are more rows than before. By the position, the new rows belong to no batch.
        """
        rows = self.parsed(metadata)
        with self.database.connected() as connection:
            table = self.checked(connection)
            counts = tuple(table.count(connection, table.within(each)) for each in rows.ranges)
        found = replace(rows, counts=counts)
        if found.count > rows.count:
            problem = f"table {self.table} had {rows.count} rows up to {shown(rows.ends[-1])}, now {found.count}"
            raise self.errors.refused(
                problem,
                "Change the ids of the inserted rows to be the last ones, then clear this task.",
            )
        return found.to_json()

    def parsed(self, metadata: Json) -> Rows:
        """Parse the metadata of a batch.

        :raises OtherSource: the metadata belongs to another source.
        """
        try:
            return Rows.from_json(metadata, len(self.spec.order_by))
        except ValueError as error:
            raise self.errors.other_source(f"metadata {error}") from None

    def position(self, at: Json) -> TablePosition:
        """Parse a position.

        :raises OtherSource: the position belongs to another source.
        """
        try:
            return TablePosition.from_json(at, len(self.spec.order_by))
        except ValueError as error:
            raise self.errors.other_source(f"position {error}") from None

    def checked(self, connection: Connection) -> Table:
        """Return the table. The first call checks the table."""
        if self._checked is None:
            self._checked = Table(connection, self.table, self.spec, self.errors)
        return self._checked


def _size(value: Any) -> int:
    sized = value if isinstance(value, (bytes, memoryview)) else str(value).encode(errors="replace")
    return len(sized)


# --- jdbc ---------------------------------------------------------------------------------------------------------
# Spark reads a SQL batch over JDBC, with its ranges in parallel.


class JdbcRows:
    """Reads the rows of a batch as a DataFrame.

    On PostgreSQL, Spark reads all rows from the snapshot in which they were counted, even in a long or repeated read.
    On MySQL and MariaDB, the rows are counted before Spark reads them, without a common snapshot.

    :param shard: reader of the table.
    :param rows: decided rows.
    """

    def __init__(self, shard: Shard, rows: Rows) -> None:
        self._shard = shard
        self._rows = rows
        self._held: Connection | None = None

    def frame(self, spark: SparkSession) -> DataFrame:
        """Return a DataFrame of the rows, with one Spark partition per range.

        :raises SourceError: the number of rows differs from the decided number.
        """
        try:
            return self._frame(spark)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Release the database snapshot. Spark cannot read any more rows afterwards."""
        held = self._held
        self._held = None
        if held is not None:
            held.close()

    def _frame(self, spark: SparkSession) -> DataFrame:
        database = self._shard.database
        with database.failures():
            self._held = database.hold()
            table = self._shard.checked(self._held)
            found = table.count(self._held, table.within(self._rows.whole))
            if found != self._rows.count:
                raise self._shard.changed(self._rows, found)
            in_session = session_of_spark(self._held, shared=True)
            dialect = self._held.dialect
        if database.kind != "postgresql":
            self.close()  # MySQL cannot share a snapshot with other connections
        query = Query(table, dialect)
        predicates = [query.predicate(each) for each in self._rows.ranges]
        read = JdbcQuery(query.name, table.read_exactly.in_spark(), predicates, in_session)
        try:
            return read.frame(spark, database.url)
        except NoJdbc as error:
            raise self._shard.errors.refused(str(error), error.remedy) from None


class Query:
    """Builds the query with which Spark reads a table. Python uses the same query."""

    def __init__(self, table: Table, dialect: Dialect) -> None:
        self._table = table
        self._dialect = dialect
        self._keys: list[Element] = [
            sa.column(f"tx_key_{number}") for number, _ in enumerate(table.keys)
        ]

    @property
    def name(self) -> str:
        """The subquery that Spark selects from, as text."""
        keys = [key.label(f"tx_key_{number}") for number, key in enumerate(self._table.keys)]
        return f"({sql_text(sa.select(*self._table.selected, *keys), self._dialect)}) AS tx_rows"

    def predicate(self, rows: KeyRange) -> str:
        """Return the condition of a range as text, since Spark does not accept query parameters."""
        return sql_text(self._table.within(rows, self._keys), self._dialect)
