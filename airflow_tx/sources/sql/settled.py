"""Up to which row a table is settled: no transaction can commit a row at or below it any more.

Ids are drawn in order, and committed in any order. Each database says in its own way which transactions may still
commit a smaller one, and these are waited for.
"""

from __future__ import annotations

import logging
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import ClassVar

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.sources.sql.database import TableErrors
from airflow_tx.sources.sql.positions import RowKey
from airflow_tx.sources.sql.table import Table

log = logging.getLogger(__name__)


class Settling(ABC):
    """How a kind of database says up to where a table is settled; it waits for transactions until `deadline`."""

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
        """Find the last settled key behind `after`; None: there is none yet. Refuse if this server cannot say."""

    @abstractmethod
    def drawn(self) -> int | None:
        """Find the last id that the database has handed out; None: it hands out none, or does not say."""

    def identity(self) -> str | None:
        """Name what is another once the table begins again, and seldom else; None: this database says nothing."""
        return None

    @abstractmethod
    def earlier(
        self, key: sa.ColumnElement[object], kind: str, seconds: float
    ) -> sa.ColumnElement[bool]:
        """Build the condition that a time is so many seconds before now, by the database's clock.

        :param kind: "time" (without a zone: it is the database's own), or "instant".
        """

    def newest(self, after: RowKey | None, *conditions: sa.ColumnElement[bool]) -> RowKey | None:
        """Find the last key behind `after` that is committed."""
        return self.table.newest(self.connection, self.table.after(after), *conditions)

    def past(self) -> sa.ColumnElement[bool]:
        """Build the condition of rows whose time is `settle` seconds old; all rows, if no time orders them."""
        first = self.table.order[0]
        if first.kind not in ("time", "instant"):
            return sa.true()
        return self.earlier(self.table.keys[0], first.kind, self.table.spec.settle)

    def set_back(self, last: RowKey | None) -> int | None:
        """Find the last id that was handed out, if it is smaller than `last`: the next ones would count as taken."""
        if last is None or [column.kind for column in self.table.order] != ["integer"]:
            return None
        drawn = self.drawn()
        return drawn if drawn is not None and drawn < last[0] else None

    def pauses(self, waits_for: object) -> Iterator[None]:
        """Pause between attempts, until time is up; then say what was waited for, by its text at that moment."""
        pause = self.first_pause
        while (left := self.deadline - time.monotonic()) > 0:
            time.sleep(min(pause, left))
            pause = min(2 * pause, self.longest_pause)
            yield
        log.warning(
            "%s takes no new row of table %s: %s. Nothing is lost, it continues when they are over; it has waited for "
            "them as long as `patience` says, %g s.",
            self.errors.source, self.table.name, waits_for, self.table.spec.patience,
        )  # fmt: skip


class SqliteSettling(Settling):
    """SQLite has one writer at a time: what it draws and what it commits is in one order."""

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
