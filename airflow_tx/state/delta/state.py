"""A state in a Delta Lake table: each change is one commit of the table, under a fence. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import astuple
from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import ConfigError, StateDiffers, StateError
from airflow_tx.protocol.receipt import Receipt
from airflow_tx.state import fence
from airflow_tx.state.aggregators import Aggregator
from airflow_tx.state.api import (
    Fence,
    FenceMoved,
    Grant,
    QueryableState,
    StateKind,
    StateReading,
    StateWrite,
    StoredReceipt,
    fenced_kind,
)
from airflow_tx.state.columns import checked_columns
from airflow_tx.state.delta.appended import AppendColumns, AppendedRows, DeltaRows
from airflow_tx.state.delta.rows import Change, KeyedRows, WriteContext, only_types_differ
from airflow_tx.state.delta.session import check_session, spark_errors, started
from airflow_tx.state.keys import wanted_keys
from airflow_tx.state.store_transaction import StoredState

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.state.delta.table import DeltaTable, TableReading

# A receipt in a commit's note, which lasts as long as Delta keeps its log.
RECEIPT = ("txid", "attempt", "receipt", "hash")


class DeltaState(StoredState, QueryableState):
    """A Delta Lake table that transactions write, each exactly once: values per key, or appended rows.

    Columns have your names and can be read by anything that reads Delta, `WHERE tx_row = 'value'`; those of this
    package begin with `tx_`, and the one row with `tx_row = 'fence'` is ours. Raise, roll-back and all rows of one
    write are one commit of the table, whole or not at all; a writer that a later grant has outranked changes nothing; a
    replay takes back what the attempt before it wrote. How, what cannot be had, what Spark needs: docs/stores.md.

    :param path: of the table, in Spark's spelling; one path is one state.
    :param keys: key columns; [] keeps one row for everything.
    :param values: aggregator per value column: any.
    :param kind: "opaque" (a replay may have other rows) or "transactional" (it has the same output).
    :param types: key column -> type; a column without one gets the type of the first row that arrives. In append mode:
        every column -> type.
    :param mode: "merge": values per key; "append": each row is kept, with `tx_txid` (always opaque, no keys or values).
    :param spark: the session to use.
    :param conf: settings of a session that the state starts.
    """

    always_written = ("mode",)
    left_out = ("spark", "conf")
    can_clear = True
    receipts_kept = 0

    def __init__(
        self,
        path: str,
        *,
        keys: Sequence[str] = (),
        values: Mapping[str, Aggregator] | None = None,
        kind: StateKind | str = StateKind.OPAQUE,
        types: Mapping[str, str] | None = None,
        mode: str = "merge",
        spark: SparkSession | None = None,
        conf: Mapping[str, str] | None = None,
    ) -> None:
        if mode not in ("merge", "append"):
            raise ConfigError(
                option="DeltaState(mode=)", value=mode, remedy='Use "merge" or "append".'
            )
        self.path = str(path).rstrip("/")
        self.name = f"delta.{self.path}"
        self.mode = mode
        self.kind = fenced_kind(kind, state=self.name)
        self.columns: Any
        if mode == "append":
            if keys or values or self.kind is not StateKind.OPAQUE:
                remedy = "Append mode takes neither keys nor values, and is opaque: give types={column: type}."
                raise ConfigError(option="DeltaState(mode=)", value=mode, remedy=remedy)
            AppendedRows(self.name, dict(types or {}))
            self.columns = AppendColumns(dict(types or {}))
        else:
            self.columns = checked_columns(self, keys, values or {}, types)
        self._conf = dict(conf or {})
        self.normalize(path=self.path)
        if spark is not None:
            self._session = spark

    @contextmanager
    def _transaction(self, write: StateWrite) -> Iterator[_DeltaTransaction]:
        held = self._table.read()
        try:
            yield _DeltaTransaction(self, self._table, held, write)
        except StateError:
            # Rows that were read under another fence than `held` prove nothing: begin again.
            if self._table.read().number != held.number:
                raise FenceMoved from None
            raise

    def fence(self) -> Fence | None:
        return self._table.read().row

    def holds(self, txid: int) -> bool:
        held = self._table.read()
        if held.definition is None:
            return False
        return bool(self._table.rows(self.rows_of(held).types, f"tx_txid = {int(txid)}", limit=1))

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        held = self._table.read()
        if held.definition is None:
            return []
        rows = self.rows_of(held)
        return [
            rows.read(row)
            for row in sorted(self._table.rows(rows.types, limit=limit), key=rows.order)
        ]

    @contextmanager
    def reading(self) -> Iterator[StateReading]:
        """Read one version of the table."""
        self._check_keyed()
        table = self._table.at_this_version()
        held = table.read()
        rows = self.rows_of(held)
        assert isinstance(rows, KeyedRows)
        there = held.definition is not None
        portions = table.portions(rows.types) if there else ()
        names = (*self.columns.keys, *self.columns.values)
        yield StateReading(
            held.row,
            rows.key_types if there else None,
            (tuple(map(row.__getitem__, names)) for portion in portions for row in portion),
        )

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        self._check_keyed()
        held = self._table.read()
        result = list[dict[str, Any] | None]([None] * len(keys))
        rows = self.rows_of(held)
        assert isinstance(rows, KeyedRows)
        whole = wanted_keys(self.columns, keys, None if held.definition is None else rows.key_types)
        if not whole:
            return result
        names = [self.columns.key_bytes(key, rows.key_types).decode() for _, key in whole]
        found = {
            row["tx_key"]: rows.values(row)
            for row in self._table.rows_of_keys(rows.types, dict.fromkeys(names))
        }
        for (number, _), name in zip(whole, names, strict=True):
            result[number] = dict(found[name]) if name in found else None
        return result

    def key_types(self) -> dict[str, str] | None:
        held = self._table.read()
        if held.definition is None:
            return None
        rows = self.rows_of(held)
        types = rows.row_types if isinstance(rows, AppendedRows) else rows.key_types
        return None if types is None else dict(types)

    def _check_keyed(self) -> None:
        if self.mode == "append":
            remedy = "Read the table, or let another state keep values per key."
            raise StateError(
                state=self.name, problem="it appends rows, which have no keys", remedy=remedy
            )

    def history(self) -> list[dict[str, Any]]:
        """Read the commits of this state, the newest first, while Delta keeps its log: `version` and `timestamp` of
        the table, `txid`, `attempt`, `token`, `chunk`, `rows`, `applied`; of the last of a grant `receipt`, `hash`."""
        found = []
        for commit in self._table.history():
            note = _json(commit["userMetadata"])
            if "txid" in note:
                found.append(
                    {"version": commit["version"], "timestamp": commit["timestamp"], **note}
                )
        return found

    def receipts(self) -> list[StoredReceipt]:
        # The newest first: of one transaction the last one counts.
        kept = [each for each in reversed(self.history()) if "receipt" in each]
        last = {each["txid"]: StoredReceipt(*(each[name] for name in RECEIPT)) for each in kept}
        return [last[txid] for txid in sorted(last)]

    def clear(self) -> None:
        self._table.clear()

    def rows_of(self, held: TableReading) -> DeltaRows:
        """Read the columns as they are stored; a StateError if they are not those of this state."""
        stored = held.definition
        if self.mode == "append":
            rows: DeltaRows = AppendedRows(self.name, self.columns.types)
        else:
            known = None if stored is None else (stored.get("keys") or {}).get("types")
            wanted = dict(self.columns.types)
            if known is None and set(wanted) >= set(self.columns.keys):
                known = wanted
            fits = known is None or all(known.get(key) == kind for key, kind in wanted.items())
            rows = KeyedRows(self.columns, self.kind, known if fits else wanted)
        made = rows.definition
        if stored is not None and stored != made and not only_types_differ(stored, made):
            problem = (
                f"the stored columns are {json.dumps(stored)}, the DAG now has {json.dumps(made)}"
            )
            raise StateDiffers(
                state=self.name,
                problem=problem,
                remedy="Bring them back, or give the state another path.",
            )
        return rows

    # --- Spark ----------------------------------------------------------------------------------------------------

    @cached_property
    def _session(self) -> SparkSession:
        return started(self._conf)

    @cached_property
    def _table(self) -> DeltaTable:
        from airflow_tx.state.delta.table import DeltaTable

        check_session(self._session, self.name)
        session = self._session.newSession()
        return DeltaTable(session, self.path, state=self.name, errors=spark_errors())


class _DeltaTransaction:
    """One write: a change of rows that lands in one commit, if nothing has changed since `held` was read."""

    def __init__(
        self, state: DeltaState, table: DeltaTable, held: TableReading, write: StateWrite
    ) -> None:
        self._table = table
        self._held = held
        self._write = write
        self._row = self._admitted(state)
        again = held.row is not None and held.row.token == write.grant.token
        self._rows = state.rows_of(held)
        self._idle = again and not write.listed and (self._row.applied or not write.complete)
        self._changes: list[Change] = []
        self._size = 0
        if not self._idle:
            replayed = held.row is not None and not again and _may_have(held.row, write.grant)
            turn = WriteContext(write.grant, write.chunk, write.raising and not again, replayed)
            self._changes, self._size = self._rows.changes(
                write.listed, turn, table.stored(self._rows, held)
            )

    def put(self) -> int:
        return self._size

    def end(self, receipt: Receipt | None) -> None:
        if self._idle:
            return
        row = fence.applied(self._row) if self._write.complete else self._row
        if not self._table.merge(
            self._held, row, self._rows, self._changes, self._note(row, receipt)
        ):
            raise FenceMoved

    def _admitted(self, state: DeltaState) -> Fence:
        """Raise the fence, or find that it holds the grant."""
        grant = self._write.grant
        found = self._held.row
        if self._write.raising:
            keeps = state.kind is not StateKind.OPAQUE
            return fence.raised(
                found, grant, state=state.name, holds=lambda: keeps and state.holds(grant.txid)
            )
        fence.check_write(found, grant, state=state.name)
        assert found is not None
        return found

    def _note(self, row: Fence, receipt: Receipt | None) -> dict[str, Any]:
        token = self._write.grant.token
        note: dict[str, Any] = {
            "topology": self._write.grant.topology,
            "txid": token.txid,
            "attempt": token.attempt,
        }
        note |= {
            "token": str(token),
            "chunk": self._write.chunk,
            "rows": self._size,
            "applied": row.applied,
        }
        if receipt is not None:
            note |= dict(zip(RECEIPT, astuple(StoredReceipt.of(receipt)), strict=True))
        return note


def _may_have(found: Fence, grant: Grant) -> bool:
    """Whether rows of this transaction may be there: it held the fence, or a repair has begun a new count."""
    return found.token.txid == grant.txid or found.token.generation != grant.token.generation


def _json(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
