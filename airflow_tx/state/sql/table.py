"""The table of a state in a database: its rows, and the imprint of them."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy.engine import URL, Connection

from airflow_tx.state.api import StateKind
from airflow_tx.state.columns import Cells, Columns
from airflow_tx.state.keys import decode_key, wanted_keys
from airflow_tx.state.sole_writer import replaces
from airflow_tx.state.sql.dialect import PrimaryKeys
from airflow_tx.state.sql.durable import check_durable
from airflow_tx.state.sql.fence import FencedStore
from airflow_tx.state.sql.imprint import Imprint, imprint_of_rows
from airflow_tx.state.sql.primary_key import OWN_KEY, has_own_key, own_values
from airflow_tx.state.sql.schema import PREV, existing_table, split_table, state_table

# One portion of rows: large enough for the database, small enough for memory and for one statement.
ROWS_AT_ONCE = 10_000
FOUND = "the table, with the types of its key columns"
_HALF = 2**32


class StateTable(FencedStore):
    """The table of a SqlState, inside transactions that `transaction()` opens."""

    def __init__(
        self,
        url: URL,
        *,
        table: str,
        columns: Columns,
        kind: StateKind,
        where: str,
        keeps_connection: bool,
    ) -> None:
        self.keeps_connection = keeps_connection
        self._looked_at = 0.0
        definition = {name: aggregator.name for name, aggregator in columns.values.items()}
        place = split_table(table, columns)
        super().__init__(url, state=columns.state, table=place, where=where, definition=definition)
        self.columns = columns
        self.kind = kind
        self._made: dict[tuple[Any, ...], sa.Table] = {}

    def read(self, connection: Connection, limit: int | None = None) -> list[dict[str, Any]]:
        found = self._found(connection)
        if found is None:
            return []
        names = (*self.columns.keys, *self.columns.values)
        query = self._every_row(found[0]).order_by(
            *[found[0].c[name] for name in self.columns.keys]
        )
        query = query.limit(limit)
        return [
            self.columns.completed(dict(zip(names, row, strict=True)))
            for row in connection.execute(query)
        ]

    def each_row(self, connection: Connection) -> Iterator[Cells]:
        """Read all rows, key columns first, in no order; the driver holds some of them at a time."""
        found = self._found(connection)
        if found is None:
            return
        query = self._every_row(found[0]).execution_options(yield_per=ROWS_AT_ONCE)
        try:
            yield from map(tuple, connection.execute(query))
        except sa.exc.DBAPIError as error:
            # Raised here: a caller that reads two states at once would take it for an error of the other state.
            raise self._failure(error, committing=False) from None

    def _every_row(self, table: sa.Table) -> sa.Select[Any]:
        return sa.select(*[table.c[name] for name in (*self.columns.keys, *self.columns.values)])

    def rows_by_grant(self, connection: Connection) -> dict[tuple[int, int, int], int]:
        found = self._found(connection)
        if found is None:
            return {}
        grant = [found[0].c[name] for name in ("tx_txid", "tx_attempt", "tx_epoch")]
        query = sa.select(*grant, sa.func.count()).group_by(*grant)
        return {
            (txid, attempt, epoch): count
            for txid, attempt, epoch, count in map(tuple, connection.execute(query))
        }

    def totals(
        self, connection: Connection, names: Collection[str], without: int = 0
    ) -> dict[str, int]:
        """Add up columns.

        :param without: leave out what this transaction wrote; 0: none.
        """
        found = self._found(connection)
        if found is None or not names:
            return dict.fromkeys(names, 0)
        # In two parts: a total may leave 64 bits, in which SQLite adds up.
        half = sa.literal(_HALF, sa.BigInteger())
        columns = [_before(found[0], name, without) for name in names]
        parts = [
            sa.func.sum(part)
            for each in columns
            for part in ((each - each % half) // half, each % half)
        ]
        row = [int(each or 0) for each in connection.execute(sa.select(*parts)).one()]
        return {
            name: high * _HALF + low
            for name, high, low in zip(names, row[::2], row[1::2], strict=True)
        }

    def multi_get(
        self, connection: Connection, keys: Sequence[Sequence[Any]]
    ) -> list[dict[str, Any] | None]:
        result = list[dict[str, Any] | None]([None] * len(keys))
        found = self._found(connection)
        whole = wanted_keys(self.columns, keys, None if found is None else found[1])
        if found is None:
            return result
        values = list(self.columns.values)
        wanted = [found[0].c[name] for name in values]
        for start in range(0, len(whole), ROWS_AT_ONCE):
            portion = whole[start : start + ROWS_AT_ONCE]
            primary = self._primary(*found, [key for _, key in portion])
            for number, *row in self._dialect.look_up(connection, primary, wanted):
                result[portion[number][0]] = self.columns.completed(
                    dict(zip(values, row, strict=True))
                )
        return result

    def sole_values(
        self, connection: Connection, keys: Sequence[Cells], txids: Collection[int], own: int
    ) -> list[Cells | None]:
        """Read keys, see `SoleWriterState.sole_values`."""
        nothing: Cells = (None,) * len(self.columns.values)
        result = list[Cells | None]([nothing] * len(keys))
        found = self._found(connection)
        if found is None:
            return result
        names = ["tx_txid", "tx_chunk", "tx_created", *self.columns.values]
        names += [PREV + name for name in self.columns.values]
        wanted = [found[0].c[name] for name in names]
        count = len(self.columns.values)
        for start in range(0, len(keys), ROWS_AT_ONCE):
            primary = self._primary(*found, keys[start : start + ROWS_AT_ONCE])
            for number, txid, chunk, created, *row in self._dialect.look_up(
                connection, primary, wanted
            ):
                if created and txid == own:
                    continue  # an earlier try has made it
                alone = replaces(chunk) or (created and txid in txids)
                values = tuple(row[count:] if txid == own else row[:count])
                result[start + number] = values if alone else None
        return result

    def _primary(
        self, table: sa.Table, key_types: Mapping[str, str], keys: Sequence[Cells]
    ) -> PrimaryKeys:
        _, kinds = self._keys(table, key_types)
        arrays: list[Sequence[Any]] = list(zip(*keys, strict=True))
        if has_own_key(table):
            arrays.insert(0, own_values(kinds[1:], arrays, len(keys)))
        return PrimaryKeys.leading(table, kinds, arrays)

    def key_types(self, connection: Connection) -> dict[str, str] | None:
        found = self._found(connection)
        return None if found is None else dict(found[1])

    # --- the imprint ---------------------------------------------------------------------------------------------

    def missing(self, connection: Connection, kept: Imprint) -> str:
        found = self._found(connection)
        if found is None:
            return ""
        if kept.rows is not None or not kept.keys or kept.types != found[1]:
            return kept.missing(imprint_of_rows(connection, found[0]))
        # The definition does not keep the order of the types.
        kinds = [kept.types[name] for name in self.columns.keys]
        keys = [decode_key(kinds, key.encode()) for key in kept.keys]
        wanted = [found[0].c.tx_txid]
        looked_up = self._dialect.look_up(connection, self._primary(*found, keys), wanted)
        txids = dict(map(tuple, looked_up))
        return kept.missing_keys([txids.get(number) for number in range(len(keys))])

    def imprint(
        self, connection: Connection, kept: Imprint | None = None, wrote: Imprint | None = None
    ) -> Imprint | None:
        found = self._found(connection)
        if found is None:
            return None
        now = kept or Imprint()
        if kept is None or kept.rows is not None:
            now = now.with_rows(imprint_of_rows(connection, found[0]))
        return now if wrote is None else now.with_keys(wrote, found[1])

    # --- tables ---------------------------------------------------------------------------------------------------

    def _keys(self, table: sa.Table, key_types: Mapping[str, str]) -> tuple[list[str], list[str]]:
        """Name the columns of ours and of the user that make a key, the primary key first, and their types."""
        names = list(self.columns.keys)
        kinds = [key_types[key] for key in names]
        if not has_own_key(table):
            return names, kinds
        return [OWN_KEY, *names], ["bytes" if names else "bigint", *kinds]

    def _make(self, key_types: Mapping[str, str]) -> sa.Table:
        """Describe the table: the same object for the same types, by which statements are known that were compiled."""
        types = tuple(key_types.items())
        if types not in self._made:
            self._made[types] = state_table(
                self.columns,
                key_types,
                self.kind,
                self._dialect,
                schema=self._schema,
                name=self._name,
            )
        return self._made[types]

    def _found(self, connection: Connection) -> tuple[sa.Table, dict[str, str]] | None:
        """Find the table and its key types, if it exists; its columns are compared now and then."""
        found: tuple[sa.Table, dict[str, str]] | None = self._facts.get(FOUND)
        if found is None and self._has_table(connection, self._name):
            found = existing_table(
                connection,
                self.columns,
                self._make,
                self._dialect,
                schema=self._schema,
                name=self._name,
            )
            check_durable(connection, self._schema, [self._name], state=self.state)
            self._facts[FOUND] = found
            self._looked_at = time.monotonic()
        return found

    def _is_there(self, connection: Connection) -> bool:
        return FOUND in self._facts or self._has_table(connection, self._name)


def _before(table: sa.Table, name: str, txid: int) -> Any:
    """Write SQL for a value before a transaction wrote it."""
    if not txid:
        return table.c[name]
    wrote = sa.and_(table.c.tx_txid == txid, table.c.tx_epoch != 0)
    prev = sa.case((table.c.tx_created, sa.null()), else_=table.c[PREV + name])
    return sa.case((wrote, prev), else_=table.c[name])
