"""One table of one connection: what its next rows are, whether it has lost some, and the rows of a batch."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from sqlalchemy.engine import Connection

from airflow_tx.errors import SourceError
from airflow_tx.sources.api import Json
from airflow_tx.sources.partitions import Gone, LogBatch, LogSnapshot, PartitionLog
from airflow_tx.sources.sql.database import Database, TableErrors
from airflow_tx.sources.sql.positions import (
    MARKED_ROWS,
    KeyRange,
    Mark,
    RowKey,
    Rows,
    TablePosition,
    shown,
)
from airflow_tx.sources.sql.settled import Settling, SqliteSettling
from airflow_tx.sources.sql.settled_mysql import MySqlSettling
from airflow_tx.sources.sql.settled_postgres import PostgresSettling
from airflow_tx.sources.sql.spec import SqlSpec
from airflow_tx.sources.sql.table import Table

MOST_RANGES = 1_000
"""A batch has at most so many ranges: they are its metadata."""
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
    """The rows of a table after a position.

    :param end: the last row that may be taken; None: there is none.
    """

    end: RowKey | None = None

    @property
    def range(self) -> KeyRange:
        """The rows that may be taken, at least one."""
        assert self.end is not None
        return KeyRange(self.position.last, self.end)


class Shard(PartitionLog):
    """One table of one connection, for one decision or for the rows of one batch; `what` is the class of the source."""

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
        """Find out up to where rows may be taken. It waits for transactions as long as the source's patience says."""
        at = self.position(position)
        with self.database.connected() as connection:
            settling = self._settling(connection, self._deadline)
            kept = self._kept(settling, at)
            gone = self._lost(settling, at, kept)
            if gone is not None:
                return ShardSnapshot(at, 0, gone)
            # A deleted row must not be counted in place of a late one.
            at = replace(at, rows=kept)
            end = settling.end(at.last)
        return ShardSnapshot(at, 0 if end is None else None, end=end)

    def sizes(self, snapshot: ShardSnapshot) -> list[int]:
        """Measure the bytes of each of the next rows, as many as make a sample."""
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
        """Count the rows behind a position, settled or not."""
        at = self.position(position)
        with self.database.connected() as connection:
            table = self.checked(connection)
            return table.count(connection, table.after(at.last))

    def gone(self, position: Json, most: int | None = None) -> Gone | None:
        """Find the rows at or before a position that are in no batch, or that the next ones would be taken for."""
        at = self.position(position)
        with self.database.connected() as connection:
            settling = self._settling(connection)
            return self._lost(settling, at, self._kept(settling, at))

    def _settling(self, connection: Connection, deadline: float = 0.0) -> Settling:
        return _SETTLING[self.database.kind](
            connection, self.checked(connection), self.errors, deadline
        )

    def _mark(self, settling: Settling, taken: KeyRange) -> Mark | None:
        """Mark the last of the rows that were taken; only ids can begin again."""
        table = settling.table
        if [column.kind for column in table.order] != ["integer"]:
            return None
        rows = table.last(settling.connection, table.within(taken), most=MARKED_ROWS)
        return Mark.of(table.order[0].name, rows, settling.identity())

    def _is_other(self, settling: Settling, mark: Mark | None) -> bool:
        """Find out whether other rows have the ids of the last ones that were taken."""
        if mark is None or not mark.rows:
            return False
        table = settling.table
        numbers = list(mark.rows)
        rows = table.last(settling.connection, table.keys[0].in_(numbers), most=len(numbers))
        return mark.is_other(table.order[0].name, rows, settling.identity())

    def _kept(self, settling: Settling, position: TablePosition) -> int:
        """Count the current rows, of the rows that are counted again."""
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
            return Gone(f"{what} now; accepted, it is read from its first row on", again.to_json())
        if kept <= position.rows:
            return None
        behind = "" if position.since is None else f" behind {shown(position.since)}"
        what = f"{kept - position.rows} row(s) of table {self.table} came too late, they are in no batch: up to "
        what += f"{shown(position.last)} there were {position.rows}{behind} when they were taken, and there are {kept}"
        return Gone(what, replace(position, rows=kept).to_json())

    # --- the rows of a batch --------------------------------------------------------------------------------------

    def rows(self, metadata: Json) -> Iterator[Mapping[str, Any]]:
        """Read exactly the rows that were decided, in their order; refuse at the end if there are more or fewer."""
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

    def changed(self, rows: Rows, found: int) -> SourceError:
        """Make the error for rows that differ from the decided ones."""
        after = "the beginning" if rows.after is None else shown(rows.after)
        problem = f"table {self.table} had {rows.count} rows behind {after} up to {shown(rows.ends[-1])}, and has "
        problem += f"{found}: rows were deleted, changed or inserted since the batch was decided"
        remedy = "Bring the table back to what it was, then clear the task; or take what is left of them: "
        remedy += (
            f"{self.errors.replay}; with kind='opaque' clear `begin`: the batch is decided again."
        )
        return self.errors.refused(problem, remedy)

    def again(self, metadata: Json) -> Json:
        """Count the current rows between the same keys; refuse more, which by the position are in no batch."""
        rows = self.parsed(metadata)
        with self.database.connected() as connection:
            table = self.checked(connection)
            counts = tuple(table.count(connection, table.within(each)) for each in rows.ranges)
        found = replace(rows, counts=counts)
        if found.count > rows.count:
            problem = f"table {self.table} had {rows.count} rows up to {shown(rows.ends[-1])}, and has {found.count}"
            raise self.errors.refused(
                problem, "Give those inserted ids that come last, then clear this task."
            )
        return found.to_json()

    def parsed(self, metadata: Json) -> Rows:
        """Read the metadata of a batch; metadata of another source is refused."""
        try:
            return Rows.from_json(metadata, len(self.spec.order_by))
        except ValueError as error:
            raise self.errors.other_source(f"metadata {error}") from None

    def position(self, at: Json) -> TablePosition:
        """Read a position; one of another source is refused."""
        try:
            return TablePosition.from_json(at, len(self.spec.order_by))
        except ValueError as error:
            raise self.errors.other_source(f"position {error}") from None

    def checked(self, connection: Connection) -> Table:
        """Check the table, once."""
        if self._checked is None:
            self._checked = Table(connection, self.table, self.spec, self.errors)
        return self._checked


def _size(value: Any) -> int:
    sized = value if isinstance(value, (bytes, memoryview)) else str(value).encode(errors="replace")
    return len(sized)
