"""A Delta table without Spark: it keeps what a `DeltaState` hands to Spark, and merges it as the statement says."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import Any

from airflow_tx.state.arrow import from_arrow, to_arrow
from airflow_tx.state.delta.appended import DeltaRows
from airflow_tx.state.delta.rows import FENCE, VALUE, Change
from airflow_tx.state.delta.state import DeltaState
from airflow_tx.state.delta.table import DeltaTable, TableReading


class _NoSpark:
    class conf:
        set = staticmethod(lambda name, value: None)


class PlainDeltaTable(DeltaTable):
    """A table in memory.

    :ivar kept: the rows by `tx_row` and `tx_key`.
    :ivar notes: the note of each commit, the newest first.
    """

    def __init__(self, path: str, *, state: str) -> None:
        super().__init__(_NoSpark(), path, state=state, errors=())
        self.kept: dict[tuple[str, str], Change] = {}
        self.notes: list[str] = []
        self._source: list[Change] = []

    def at_this_version(self) -> PlainDeltaTable:
        pinned = PlainDeltaTable(self._path, state=self._state)
        pinned.kept = dict(self.kept)
        return pinned

    def _size(self) -> int:
        return len(self.kept) - 1

    def read(self) -> TableReading:
        row = self.kept.get((FENCE, FENCE))
        return self._held(json.loads(row["tx_fence"])) if row else TableReading(exists=bool(self.kept))

    def rows(self, types: Mapping[str, str], where: str = "TRUE", *, limit: int | None = None) -> list[Change]:
        txid = re.fullmatch(r"tx_txid = (\d+)", where)
        rows = [row for (kind, _), row in self.kept.items() if kind == VALUE]
        found = [row for row in rows if txid is None or row["tx_txid"] == int(txid[1])]
        return [{name: row.get(name) for name in types} for row in found[:limit]]

    def rows_of_keys(self, types: Mapping[str, str], keys: Iterable[str]) -> list[Change]:
        wanted = set(keys)
        return [row for row in self.rows(types) if row["tx_key"] in wanted]

    def history(self, *, limit: int | None = None) -> list[dict[str, Any]]:
        return [{"version": 0, "timestamp": None, "userMetadata": note} for note in self.notes[:limit]]

    def clear(self) -> None:
        held = self.read()
        if held.number:
            kept = json.dumps({"format": 1, "number": held.number + 1, "forgotten": True})
            self.kept = {(FENCE, FENCE): {"tx_fence": kept}}

    def _create(self, rows: DeltaRows) -> None:
        pass

    def _view(self, name: str, rows: list[Change], types: Mapping[str, str]) -> None:
        self._source = from_arrow(to_arrow(rows, types), types)

    def _merged(self, txid: int | None, number: int, metadata: str) -> int:
        for row in self._source:
            place = (row["tx_row"], row["tx_key"])
            if row["tx_txid"] is None:
                self.kept.pop(place, None)
            else:
                self.kept[place] = row
        self.notes.insert(0, metadata)
        return len(self._source)


def plain_delta(path: str, tables: dict[str, PlainDeltaTable], **given: Any) -> DeltaState:
    """Open a state over a table in memory; the same path is the same table."""
    state = DeltaState(path, **given)
    table = tables.setdefault(path, PlainDeltaTable(path, state=state.name))
    state._table = table
    return state
