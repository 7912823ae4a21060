"""A state in a Delta Lake table: each change is one commit of the table, under a fence. Source: protocol.md §7."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import astuple
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import ConfigError, StateDiffers, StateError
from airflow_tx.state import fence
from airflow_tx.state.aggregators import Aggregator
from airflow_tx.state.api import Fence, FencedState, Grant, QueryableState, StateKind, StoredReceipt, fenced_kind
from airflow_tx.state.columns import checked_columns
from airflow_tx.state.delta.appended import AppendColumns, AppendedRows, DeltaRows
from airflow_tx.state.delta.rows import KeyedRows, WriteContext, only_types_differ
from airflow_tx.state.delta.session import check_session, spark_errors, started
from airflow_tx.state.keys import wanted_keys
from airflow_tx.state.row_tally import RowTally

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.state.delta.table import DeltaTable, TableReading

# A receipt in a commit's note, which lasts as long as Delta keeps its log.
RECEIPT = ("txid", "attempt", "receipt", "hash")
# How often a change begins again because another one came between its reading and its commit.
_RACES = 30


class DeltaState(QueryableState):
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
            raise ConfigError(option="DeltaState(mode=)", value=mode, remedy='Use "merge" or "append".')
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
        self._spark = spark
        self._opened: DeltaTable | None = None

    def __repr__(self) -> str:
        if self.mode == "append":
            return f"DeltaState({self.path!r}, mode='append', types={self.columns.types})"
        return super().__repr__()

    def _parameters(self) -> dict[str, Any]:
        return {"path": self.path}

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_opened": None, "_spark": None}

    def serialize(self) -> dict[str, Any]:
        if self.mode == "append":
            return {**FencedState.serialize(self), "mode": self.mode, "types": dict(self.columns.types)}
        return {**super().serialize(), "mode": self.mode}

    def raise_fence(self, grant: Grant) -> None:
        self._change(grant, None, raising=True, chunk=0, complete=False)

    def write(self, grant: Grant, rows: Iterable[Mapping[str, Any]], *, chunk: int = 0, complete: bool = True) -> int:
        return self._change(grant, rows, raising=False, chunk=chunk, complete=complete)

    def raise_and_write(self, grant: Grant, rows: Iterable[Mapping[str, Any]]) -> int:
        return self._change(grant, rows, raising=True, chunk=0, complete=True)

    def fence(self) -> Fence | None:
        return self._table.read().row

    def holds(self, txid: int) -> bool:
        held = self._table.read()
        if held.definition is None:
            return False
        return bool(self._table.rows(self._rows(held).types, f"tx_txid = {int(txid)}", limit=1))

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        held = self._table.read()
        if held.definition is None:
            return []
        rows = self._rows(held)
        return [rows.read(row) for row in sorted(self._table.rows(rows.types, limit=limit), key=rows.order)]

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        if self.mode == "append":
            remedy = "Read the table, or let another state keep values per key."
            raise StateError(state=self.name, problem="it appends rows, which have no keys", remedy=remedy)
        held, result = self._table.read(), list[dict[str, Any] | None]([None] * len(keys))
        rows = self._rows(held)
        assert isinstance(rows, KeyedRows)
        whole = wanted_keys(self.columns, keys, None if held.definition is None else rows.key_types)
        if not whole:
            return result
        names = [self.columns.key_bytes(key, rows.key_types).decode() for _, key in whole]
        found = {row["tx_key"]: rows.values(row) for row in self._table.rows_of_keys(rows.types, dict.fromkeys(names))}
        for (number, _), name in zip(whole, names, strict=True):
            result[number] = dict(found[name]) if name in found else None
        return result

    def key_types(self) -> dict[str, str] | None:
        held = self._table.read()
        if held.definition is None:
            return None
        rows = self._rows(held)
        types = rows.row_types if isinstance(rows, AppendedRows) else rows.key_types
        return None if types is None else dict(types)

    def history(self) -> list[dict[str, Any]]:
        """Read the commits of this state, the newest first, while Delta keeps its log: `version` and `timestamp` of
        the table, `txid`, `attempt`, `token`, `chunk`, `rows`, `applied`; of the last of a grant `receipt`, `hash`."""
        found = []
        for commit in self._table.history():
            note = _json(commit["userMetadata"])
            if "txid" in note:
                found.append({"version": commit["version"], "timestamp": commit["timestamp"], **note})
        return found

    def receipts(self) -> list[StoredReceipt]:
        # The newest first: of one transaction the last one counts.
        kept = [each for each in reversed(self.history()) if "receipt" in each]
        last = {each["txid"]: StoredReceipt(*(each[name] for name in RECEIPT)) for each in kept}
        return [last[txid] for txid in sorted(last)]

    def clear(self) -> None:
        self._table.clear()

    # --- a change -------------------------------------------------------------------------------------------------

    def _change(
        self, grant: Grant, rows: Iterable[Mapping[str, Any]] | None, *, raising: bool, chunk: int, complete: bool
    ) -> int:
        tally = RowTally.of(rows or (), self.added_up)
        given = None if rows is None else list(tally)
        for _ in range(_RACES):
            held = self._table.read()
            try:
                done = self._tried(held, grant, given, tally, raising=raising, chunk=chunk, complete=complete)
            except StateError:
                # What was read under another fence than `held` says nothing.
                if self._table.read().number == held.number:
                    raise
                continue
            if done is not None:
                return done
        problem = f"the table changed {_RACES} times in a row between the reading of its fence and the commit"
        raise StateError(state=self.name, problem=problem, remedy="Nothing was written. Clear the task.")

    def _tried(
        self,
        held: TableReading,
        grant: Grant,
        given: list[Mapping[str, Any]] | None,
        tally: RowTally,
        *,
        raising: bool,
        chunk: int,
        complete: bool,
    ) -> int | None:
        if raising:

            def holds() -> bool:
                return self.kind is not StateKind.OPAQUE and self.holds(grant.txid)

            row = fence.raised(held.row, grant, state=self.name, holds=holds)
        else:
            fence.check_write(held.row, grant, state=self.name)
            assert held.row is not None
            row = held.row
        rows = self._rows(held)
        again = held.row is not None and held.row.token == grant.token
        if again and not given and (row.applied or not complete):
            return 0
        replayed = held.row is not None and not again and _may_have(held.row, grant)
        turn = WriteContext(grant, chunk, raising and not again, replayed)
        changes, size = rows.changes(given or [], turn, self._table.stored(rows, held))
        row = fence.applied(row) if complete else row
        token = grant.token
        note = {"topology": grant.topology, "txid": token.txid, "attempt": token.attempt, "token": str(token)}
        note |= {"chunk": chunk, "rows": size, "applied": row.applied}
        if complete and (receipt := grant.receipt(self.name, tally.written(size))) is not None:
            note |= dict(zip(RECEIPT, astuple(StoredReceipt.of(receipt)), strict=True))
        return size if self._table.merge(held, row, rows, changes, note) else None

    def _rows(self, held: TableReading) -> DeltaRows:
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
            problem = f"the stored columns are {json.dumps(stored)}, the DAG now has {json.dumps(made)}"
            raise StateDiffers(
                state=self.name, problem=problem, remedy="Bring them back, or give the state another path."
            )
        return rows

    # --- Spark ----------------------------------------------------------------------------------------------------

    @property
    def _table(self) -> DeltaTable:
        if self._opened is None:
            from airflow_tx.state.delta.table import DeltaTable

            session = self._spark if self._spark is not None else started(self._conf)
            check_session(session, self.name)
            self._opened = DeltaTable(session.newSession(), self.path, state=self.name, errors=spark_errors())
        return self._opened


def _may_have(found: Fence, grant: Grant) -> bool:
    """Whether rows of this transaction may be there: it held the fence, or a repair has begun a new count."""
    return found.token.txid == grant.txid or found.token.generation != grant.token.generation


def _json(text: str | None) -> dict[str, Any]:
    try:
        found = json.loads(text or "{}")
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}
