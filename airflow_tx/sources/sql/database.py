"""Open a connection's database for reading. Failures are reported in one line without credentials."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from urllib.parse import quote

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection
from sqlalchemy.pool import NullPool

from airflow_tx.base.connections import signs_of_life, url_of_connection
from airflow_tx.base.errors import (
    ConfigError,
    OtherSource,
    PartitionUnavailable,
    RowsRefused,
    SourceError,
)
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.base.rows import READER, SETTINGS

# --- database -----------------------------------------------------------------------------------------------------


CONNECT_TIMEOUT = 10
_EXTRAS = {"postgresql": "postgres", "mysql": "mysql"}
# Options of a database URL that apply only to states.
_OF_STATES = ("lock_timeout", "idle_timeout")


@dataclass(frozen=True)
class TableErrors:
    """Creates the errors for one of a source's tables.

    :param source: repr of the source.
    :param conn_id: connection of the database.
    :param partition: partition of the table, or None for a source without partitions.
    :param replay: command that replays the transaction with its current rows.
    """

    source: str
    conn_id: str
    partition: str | None = None
    replay: Command | None = None

    def refused(self, problem: str, remedy: Remedy | str) -> SourceError:
        """Return the error for a problem that only a user can solve."""
        return SourceError(source=self.source, problem=f"{self._where}{problem}", remedy=remedy)

    def rows_refused(self, problem: str, remedy: str, place: str) -> RowsRefused:
        """Return the error for rows with a value that no reader accepts.

        :param place: place of the value that `problem` quotes.
        """
        problem = f"{self._where}{problem}"
        place = f"{self._where}{place}"
        return RowsRefused(source=self.source, problem=problem, remedy=remedy, place=place)

    def other_source(self, problem: str) -> OtherSource:
        """Return the error for a ledger record that another source has written."""
        return OtherSource(source=self.source, problem=f"{self._where}{problem}")

    @property
    def _where(self) -> str:
        return "" if self.partition is None else f"partition {self.partition}: "

    def away(self, reason: str) -> SourceError:
        """Return the error for a table that cannot be reached now."""
        if self.partition is not None:
            return PartitionUnavailable(partition=self.partition, source=self.source, reason=reason)
        problem = f"the database of connection {self.conn_id} cannot be reached: {reason}"
        return SourceError(
            source=self.source, problem=problem, remedy="Bring it back, then clear the task."
        )

    def missing(self, table: str) -> SourceError:
        """Return the error for a missing table."""
        if self.partition is not None:
            return self.away(f"there is no table {table}")
        problem = f"the database of connection {self.conn_id} has no table {table}"
        return self.refused(
            problem, "Create it, or correct table= or the database of the connection."
        )


class Database:
    """The database of a connection.

    :raises ConfigError: the type of the database is not supported, or its driver is missing.
    """

    def __init__(self, conn_id: str, errors: TableErrors, *, what: str) -> None:
        self.url = url_of_connection(conn_id, what=what)
        self.kind = self.url.get_backend_name()
        self._errors = errors
        self._secret = str(self.url.password) if self.url.password else ""
        self._engine = self._made(_with_options(self.url), what)

    @contextmanager
    def connected(self) -> Iterator[Connection]:
        """Open a connection in autocommit mode. Each statement then sees all earlier commits."""
        with self.failures(), self._engine.connect() as connection:
            yield connection.execution_options(isolation_level="AUTOCOMMIT")

    @contextmanager
    def reading(self) -> Iterator[Connection]:
        """Open a connection with one transaction, which reads from one database snapshot."""
        with self.failures(), closing(self.hold()) as connection:
            yield connection

    def hold(self) -> Connection:
        """Open a connection like `reading`. The caller must close it."""
        connection = self._engine.connect()
        if self.kind != "sqlite":
            connection = connection.execution_options(isolation_level="REPEATABLE READ")
        if self.kind == "postgresql":
            # The transaction may stay open for as long as Spark reads.
            connection.exec_driver_sql("SET LOCAL idle_in_transaction_session_timeout = 0")
        return connection

    @contextmanager
    def failures(self) -> Iterator[None]:
        """Convert database driver errors to errors of this package."""
        try:
            yield
        except sa.exc.DBAPIError as error:
            self._fail(error)
        except UnicodeError as error:
            problem = f"a text in the database is not in its encoding: {error}"
            raise self._errors.refused(problem, "Correct it, or read other columns=.") from None
        except sa.exc.SQLAlchemyError as error:
            problem = f"the database cannot be read: {self.scrubbed(str(error))}"
            raise self._errors.refused(problem, "Correct the table or the source.") from None

    def scrubbed(self, text: str) -> str:
        """Format a text as one line, without the password."""
        line = " ".join(text.split())
        return line.replace(self._secret, "***") if self._secret else line

    def _fail(self, error: sa.exc.DBAPIError) -> NoReturn:
        reason = self.scrubbed(str(error.orig))
        unanswered = isinstance(
            error, (sa.exc.OperationalError, sa.exc.InterfaceError, sa.exc.InternalError)
        )
        if unanswered or error.connection_invalidated:
            raise self._errors.away(reason) from None
        remedy = "Correct the source, or what the user of the connection may do."
        raise self._errors.refused(f"the database says: {reason}", remedy) from None

    def _made(self, url: URL, what: str) -> sa.Engine:
        try:
            # Do not roll back before a close. If the server does not respond, a rollback would log
            # an error.
            engine = sa.create_engine(
                url, poolclass=NullPool, hide_parameters=True, pool_reset_on_return=None
            )
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get(self.kind, self.kind)
            remedy = (
                f"The driver {error.name} is missing: pip install 'airflow-provider-tx[{extra}]'."
            )
            raise ConfigError(option=f"{what} database", value=self.kind, remedy=remedy) from None
        # Insert the listener before all others, because SQLAlchemy queries each new connection
        # about quoting.
        sa.event.listen(engine, "connect", _prepared(self.kind), insert=True)
        return engine


def _with_options(url: URL) -> URL:
    kind = url.get_backend_name()
    given = dict(url.query)
    url = url.difference_update_query(_OF_STATES)
    if kind == "postgresql":
        ours = {name: str(value) for name, value in signs_of_life(url).items()}
        wanted = {
            "connect_timeout": str(CONNECT_TIMEOUT),
            **ours,
            **given,
            "application_name": READER,
            "client_encoding": "utf8",
        }
        return url.update_query_dict(wanted)
    if kind == "mysql":
        return url.update_query_dict(
            {"connect_timeout": str(CONNECT_TIMEOUT), "charset": "utf8mb4"}
        )
    # Open SQLite in read-only mode. This mode does not create a missing file.
    return url.set(database=f"file:{quote(url.database or '')}").update_query_dict(
        {"uri": "true", "mode": "ro"}
    )


def _prepared(kind: str) -> Callable[[Any, Any], None]:
    def prepare(connection: Any, record: Any) -> None:
        if kind == "sqlite":
            # Accept texts that are not UTF-8 here. `Table.row` refuses them, and its error names
            # the row.
            connection.text_factory = lambda text: text.decode(errors="surrogateescape")
            return
        with closing(connection.cursor()) as cursor:
            cursor.execute(SETTINGS[kind])
        connection.commit()

    return prepare


# --- unique -------------------------------------------------------------------------------------------------------
# Check that a database constraint keeps a table's order unique.


Names = Sequence[str | None]  # An index expression has no column name.
log = logging.getLogger(__name__)

_INVALID = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = CAST(:table AS regclass) AND NOT i.indisvalid
"""
# The tables that inherit from an ordinary table. A partitioned table's partitions are not included,
# since its indexes cover them.
_CHILDREN = """
SELECT h.inhrelid::regclass::text FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhparent
WHERE c.oid = CAST(:table AS regclass) AND c.relkind = 'r' ORDER BY 1
"""


@dataclass(frozen=True)
class OrderOfTable:
    """The order of a table's rows.

    :param table: name of the table.
    :param columns: columns of the order.
    :param place: table and schema.
    :param spelled: name of the table in SQL, with quotes.
    :param errors: object that creates the errors.
    """

    table: str
    columns: Sequence[str]
    place: tuple[str, str | None]
    spelled: str
    errors: TableErrors

    def check_unique(self, inspector: sa.Inspector, connection: Connection) -> None:
        """Raise an error if the order may not be unique. Log a warning if no index supports the order."""
        invalid: set[str] = set()
        if connection.dialect.name == "postgresql":
            named = {"table": self.spelled}
            self._check_children(list(connection.execute(sa.text(_CHILDREN), named).scalars()))
            invalid = set(connection.execute(sa.text(_INVALID), named).scalars())
        order = list(self.columns)
        primary: Names = inspector.get_pk_constraint(*self.place)["constrained_columns"]
        if list(primary) == order:
            return
        found = inspector.get_indexes(*self.place)
        indexes = [each for each in found if not _partial(each) and each["name"] not in invalid]
        unique: list[Names] = [primary]
        unique += [each["column_names"] for each in indexes if each.get("unique")]
        unique += [each["column_names"] for each in inspector.get_unique_constraints(*self.place)]
        if not any(columns and set(columns) <= set(order) for columns in unique):
            raise self._not_unique(sorted(invalid))
        ways: list[Names] = [*unique, *(each["column_names"] for each in indexes)]
        if not any(list(columns[: len(order)]) == order for columns in ways):
            log.warning(
                "Table %s has no index that begins with (%s), so every batch sorts the table: CREATE INDEX ON %s (%s)",
                self.table, ", ".join(order), self.table, ", ".join(order),
            )  # fmt: skip

    def _check_children(self, children: Sequence[str]) -> None:
        if children:
            problem = f"table {self.table} also contains the rows of {', '.join(children[:5])}, which inherit from it: "
            problem += "its indexes do not cover these rows"
            remedy = f"ALTER TABLE {children[0]} NO INHERIT {self.table}, and read them by PartitionedSqlSource."
            raise self.errors.refused(problem, remedy)

    def _not_unique(self, invalid: Sequence[str]) -> SourceError:
        problem = f"{', '.join(self.columns)} of table {self.table} is not unique: "
        problem += "rows with the same value could not be distinguished"
        remedy = (
            "Make it the primary key or give it a unique index, or order by a time and such an id."
        )
        if invalid:
            problem += (
                f"; its index {', '.join(invalid)} is invalid, because PostgreSQL did not finish it"
            )
            remedy = f"Remove rows with the same value, then REINDEX INDEX {invalid[0]}. {remedy}"
        return self.errors.refused(problem, remedy)


def _partial(index: Any) -> bool:
    options = index.get("dialect_options", {})
    return any(options.get(f"{dialect}_where") is not None for dialect in ("postgresql", "sqlite"))
