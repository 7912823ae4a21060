"""Whether the database itself keeps the order of a table unique."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import Connection

from airflow_tx.errors import SourceError
from airflow_tx.sources.sql.database import TableErrors

Names = Sequence[str | None]  # an expression has none
log = logging.getLogger(__name__)

_INVALID = """
SELECT c.relname FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid
WHERE i.indrelid = CAST(:table AS regclass) AND NOT i.indisvalid
"""
# An index of a partitioned table holds for its partitions, too.
_CHILDREN = """
SELECT h.inhrelid::regclass::text FROM pg_inherits h JOIN pg_class c ON c.oid = h.inhparent
WHERE c.oid = CAST(:table AS regclass) AND c.relkind = 'r' ORDER BY 1
"""


@dataclass(frozen=True)
class OrderOfTable:
    """The order of the rows of a table.

    :param place: the table and its schema.
    :param spelled: the table in SQL.
    """

    table: str
    columns: Sequence[str]
    place: tuple[str, str | None]
    spelled: str
    errors: TableErrors

    def check_unique(self, inspector: sa.Inspector, connection: Connection) -> None:
        """Refuse an order in which two rows may have one place; warn if no index serves it."""
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
            problem = f"table {self.table} has the rows of {', '.join(children[:5])}, too, which inherit from it: "
            problem += "its indexes do not hold for these rows"
            remedy = f"ALTER TABLE {children[0]} NO INHERIT {self.table}, and read them by PartitionedSqlSource."
            raise self.errors.refused(problem, remedy)

    def _not_unique(self, invalid: Sequence[str]) -> SourceError:
        problem = f"{', '.join(self.columns)} of table {self.table} is not unique: "
        problem += "rows with the same value could not be distinguished"
        remedy = (
            "Make it the primary key or give it a unique index, or order by a time and such an id."
        )
        if invalid:
            problem += f"; its index {', '.join(invalid)} is invalid, PostgreSQL did not finish it"
            remedy = f"Remove rows with the same value, then REINDEX INDEX {invalid[0]}. {remedy}"
        return self.errors.refused(problem, remedy)


def _partial(index: Any) -> bool:
    options = index.get("dialect_options", {})
    return any(options.get(f"{dialect}_where") is not None for dialect in ("postgresql", "sqlite"))
