"""Up to which row a table of PostgreSQL is settled.

A transaction that has drawn a value of a sequence holds a lock on that sequence until it ends, also when the statement
is undone; a transaction that runs at all holds one on its own virtual id. Both kinds are in `pg_locks`, which any user
may read. So transactions that could have drawn an id below the last committed one are noted, and waited for; no writer
waits.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import sqlalchemy as sa

from airflow_tx.sources.sql.database import READER
from airflow_tx.sources.sql.positions import RowKey, shown
from airflow_tx.sources.sql.settled import Settling, log

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
# The zone that the session began with, before we set ours.
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
# A backend whose user is unknown is the server's own, such as the backend of autovacuum.
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
    """The sequence that hands out the ids."""

    id: int
    name: str


class PostgresSettling(Settling):
    """Waits for the transactions that could have drawn a smaller id, or a smaller time, than the last committed one."""

    def end(self, after: RowKey | None) -> RowKey | None:
        if self.connection.execute(sa.text("SELECT pg_is_in_recovery()")).scalar():
            remedy = "Let the connection lead to the primary."
            raise self.errors.refused(
                "its server is a standby, which does not know the running transactions", remedy
            )
        sequence = self._sequence
        end = self.newest(after, self.past())
        if end is None:
            return None
        drawn = self.drawn()
        if drawn is not None and end[0] > drawn and sequence is not None:
            log.warning(
                "%s: table %s has rows up to %s, but its sequence %s is at %d. Rows beyond it did not get their ids "
                "from the sequence, and wait until the sequence has passed them.",
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
        """Wait until the transactions that run now, of which one may have drawn a smaller value, are over."""
        # A sequence that was never used does not hand out the ids.
        drawing = sequence if sequence is not None and self.drawn() is not None else None
        noted = self._running(drawing)
        if not noted:
            return True
        waiting = Holders(list(noted.values()))
        for _ in self.pauses(waiting):
            running = self._running(drawing)
            # One that was noted may be prepared by now, and has another name then.
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
        """Find the transactions that may have drawn a value, each with its name in messages."""
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
    """The transactions that are waited for, by their names."""

    names: list[str]

    def __str__(self) -> str:
        named = ", ".join(self.names[:5]) + (" ..." if len(self.names) > 5 else "")
        return f"{len(self.names)} running transaction(s) may still commit a row before it: {named}"


def _named(pid: int | None, application: str | None, since: Any) -> str:
    if pid is None:
        return f"prepared {application}" if application else "a prepared one"
    named = f"pid {pid}" + (f" ({application})" if application else "")
    return named if since is None else f"{named} since {since:%Y-%m-%d %H:%M:%S%z}"
