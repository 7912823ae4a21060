"""The rows of a Delta table to which a state appends: every row counts, and a replay takes back its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_tx.errors import ConfigError, StateError
from airflow_tx.state.column_types import CONVERT, converted
from airflow_tx.state.columns import REFUSALS, RESERVED
from airflow_tx.state.delta.rows import (
    OURS,
    VALUE,
    Change,
    KeyedRows,
    Stored,
    WriteContext,
    deleted,
)


class _Alone:
    """Takes the place of an aggregator; two equal rows that a caller wants to make one are refused, never lost."""

    name = "append"
    type = "json"

    def combine(self, a: Any, b: Any) -> Any:
        raise ValueError(
            "is there twice: append mode keeps equal rows only from one output of one task that is staged"
        )


class AppendColumns:
    """The columns of rows that are appended, for committers; every row counts."""

    aggregators: Mapping[str, Any] = {}
    composites: Mapping[str, Any] = {}
    added_up: tuple[str, ...] = ()

    def __init__(self, types: Mapping[str, str]) -> None:
        self.types = dict(types)
        self.keys = tuple(types)
        self.values = {self.keys[-1]: _Alone()}

    def serialized(self) -> dict[str, Any]:
        return {"types": self.types}


class AppendedRows:
    """Rows that are appended, each with its transaction; a replay takes back those of the attempt before it."""

    pruned = True

    def __init__(self, state: str, types: Mapping[str, str]) -> None:
        self.state = state
        self.row_types = dict(types)
        problem = ""
        if not types:
            problem = 'Name every column: types={"carrier": "text", "flights": "bigint"}.'
        elif reserved := [name for name in types if not name or name.lower().startswith(RESERVED)]:
            problem = f"Columns named {reserved} ({RESERVED}* is reserved)."
        elif len({name.lower() for name in types}) < len(types) or not set(types.values()) <= set(
            CONVERT
        ):
            problem = f"Name each column once, with one of the types {', '.join(CONVERT)}."
        if problem:
            raise ConfigError(option="DeltaState(types=)", value=dict(types), remedy=problem)

    @property
    def definition(self) -> dict[str, Any]:
        return {"kind": "append", "columns": self.row_types}

    @property
    def types(self) -> dict[str, str]:
        return {**OURS, **self.row_types}

    def changes(
        self, rows: list[Mapping[str, Any]], turn: WriteContext, stored: Stored
    ) -> tuple[list[Change], int]:
        """Compute the rows to merge, those to delete without `tx_txid`; and count the rows that are appended."""
        txid = turn.grant.txid
        mine = {"tx_row": VALUE, "tx_txid": txid, "tx_token": turn.token, "tx_chunk": turn.chunk}
        changed = dict[str, Change]()
        for number, row in enumerate(self._fitting(rows)):
            key = f"{txid}/{turn.chunk}/{number}"
            changed[key] = {**mine, "tx_key": key, **row}
        if not turn.raising or turn.replayed:
            for key, row in stored.of_txid(txid).items():
                gone = row["tx_chunk"] == turn.chunk if turn.wrote(row) else turn.raising
                if gone and key not in changed:
                    changed[key] = deleted(row)
        return list(changed.values()), len(rows)

    def read(self, row: Change) -> dict[str, Any]:
        """Read a stored row as the user knows it, with its transaction."""
        return {**{name: row[name] for name in self.row_types}, "tx_txid": row["tx_txid"]}

    def order(self, row: Change) -> Any:
        return tuple(map(int, row["tx_key"].split("/")))

    def _fitting(self, rows: list[Mapping[str, Any]]) -> list[dict[str, Any]]:
        for number, row in enumerate(rows):
            if set(row) != set(self.row_types):
                expected = f"expected columns {list(self.row_types)}, found {sorted(map(str, row))}"
                raise self._refusal(
                    number, expected, "Select exactly these columns before writing."
                )
        columns = {
            name: self._column(name, kind, [row[name] for row in rows])
            for name, kind in self.row_types.items()
        }
        return [
            {name: column[number] for name, column in columns.items()}
            for number in range(len(rows))
        ]

    def _column(self, name: str, kind: str, values: list[Any]) -> list[Any]:
        try:
            return list(converted(kind, values))
        except REFUSALS:
            for number, value in enumerate(values):
                try:
                    converted(kind, [value])
                except REFUSALS as error:
                    shown = f"{name} = {str(value)[:200]!r} {error}"
                    raise self._refusal(number, shown, f"The column is a {kind}.") from None
            raise

    def _refusal(self, number: int, problem: str, remedy: str) -> StateError:
        return StateError(state=self.state, problem=f"row {number}: {problem}", remedy=remedy)


DeltaRows = KeyedRows | AppendedRows
