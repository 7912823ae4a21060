"""Up to which row a table is settled: no transaction can commit a row at or below it any more.

Ids are drawn in order, and committed in any order. Each database is asked in its own way which transactions may still
commit a smaller one, and these are waited for.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.sources.sql.database import Teller
from airflow_tx.sources.sql.positions import RowKey
from airflow_tx.sources.sql.table import Table

log = logging.getLogger(__name__)


class Settling(ABC):
    """How a database says up to where one of its tables is settled.

    :param deadline: of `time.monotonic`; until then transactions are waited for.
    """

    first_pause: ClassVar[float] = 0.02
    longest_pause: ClassVar[float] = 0.5

    def __init__(self, connection: Connection, table: Table, teller: Teller, deadline: float) -> None:
        self.connection, self.table, self.teller, self.deadline = connection, table, teller, deadline

    @abstractmethod
    def end(self, after: RowKey | None) -> RowKey | None:
        """The last settled key behind `after`; None: there is none yet.

        :raises SourceError: this server cannot tell.
        """

    @abstractmethod
    def drawn(self) -> int | None:
        """The last id that the database has handed out; None: it hands out none, or does not say."""

    def identity(self) -> str | None:
        """What is another once the table begins anew, and seldom else; None: nothing that this database would say."""
        return None

    @abstractmethod
    def earlier(self, key: sa.ColumnElement[object], kind: str, seconds: float) -> sa.ColumnElement[bool]:
        """Whether a time lies so many seconds before now, by the database's clock.

        :param kind: "time" (without a zone: it is the database's own), or "instant".
        """

    def newest(self, after: RowKey | None, *conditions: sa.ColumnElement[bool]) -> RowKey | None:
        """Find the last key behind `after` that is committed."""
        return self.table.newest(self.connection, self.table.after(after), *conditions)

    def past(self) -> sa.ColumnElement[bool]:
        """Rows whose time lies `settle` seconds back; all rows, if they are not ordered by a time."""
        first = self.table.order[0]
        if first.kind not in ("time", "instant"):
            return sa.true()
        return self.earlier(self.table.keys[0], first.kind, self.table.spec.settle)

    def set_back(self, last: RowKey | None) -> int | None:
        """The last id that was handed out, if it is smaller than `last`: the next ones would count as taken."""
        if last is None or [column.kind for column in self.table.order] != ["integer"]:
            return None
        drawn = self.drawn()
        return drawn if drawn is not None and drawn < last[0] else None

    def pauses(self, waits_for: object) -> Iterator[None]:
        """Pauses between looks, until time is up; then it is told for what was waited.

        :param waits_for: its text, when it is told.
        """
        pause = self.first_pause
        while (left := self.deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(2 * pause, self.longest_pause)
            yield
        log.warning(
            "%s takes no new row of table %s: %s. Nothing is lost, it goes on when they are over; it has waited for "
            "them as long as `patience` says, %g s.",
            self.teller.source, self.table.name, waits_for, self.table.spec.patience,
        )  # fmt: skip


class SqliteSettling(Settling):
    """SQLite has one writer at a time: what it draws and what it commits is in one order."""

    def end(self, after: RowKey | None) -> RowKey | None:
        return self.newest(after, self.past())

    def drawn(self) -> int | None:
        schema, _, name = self.table.name.rpartition(".")
        if schema:
            return None
        asked = sa.text("SELECT name, upper(type) FROM pragma_table_info(:name) WHERE pk > 0")
        if [tuple(row) for row in self.connection.execute(asked, {"name": name})] != [
            (self.table.order[0].name, "INTEGER")
        ]:
            return None
        made = sa.text("SELECT upper(sql) FROM sqlite_master WHERE type = 'table' AND name = :name")
        if "AUTOINCREMENT" in str(self.connection.execute(made, {"name": name}).scalar()):
            known = sa.text("SELECT seq FROM sqlite_sequence WHERE name = :name")
            return int(self.connection.execute(known, {"name": name}).scalar() or 0)
        newest = self.newest(None)
        return 0 if newest is None else int(newest[0])

    def earlier(self, key: sa.ColumnElement[object], kind: str, seconds: float) -> sa.ColumnElement[bool]:
        found: sa.ColumnElement[bool] = sa.func.julianday(key) <= sa.func.julianday("now") - seconds / 86_400
        return found


def holders_text(holders: Sequence[str]) -> str:
    """Word who is waited for."""
    named = ", ".join(holders[:5]) + (" ..." if len(holders) > 5 else "")
    return f"{len(holders)} running transaction(s) may still commit a row before it: {named}"
