"""The rows of a Delta table that is a state: their columns, and what an update makes of them. Source: protocol.md §7.

Everything here is computed before anything is written. The commit compares the fence under which the rows were read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from airflow_tx.errors import OutputChanged
from airflow_tx.protocol.records import digest
from airflow_tx.state.aggregators import CombinerAggregator
from airflow_tx.state.api import Grant, StateKind
from airflow_tx.state.checked_rows import CheckedRows
from airflow_tx.state.column_types import to_plain
from airflow_tx.state.columns import Cells, Columns
from airflow_tx.state.reducers import Reduced
from airflow_tx.state.trident.values import (
    OpaqueValue,
    StoredValue,
    TransactionalValue,
    Writer,
    updated_value,
)

FENCE = "fence"
VALUE = "value"
_PREV = "tx_prev_"
_ROWS_AT_ONCE = 10_000
Change = dict[str, Any]
OURS: Mapping[str, str] = {
    "tx_row": "text",  # "fence" or "value"; the table is partitioned by it
    "tx_key": "text",
    "tx_txid": "bigint",
    "tx_token": "text",
    "tx_chunk": "bigint",
    "tx_fence": "text",
}


class Stored(Protocol):
    """Asks the table for rows, whole."""

    def of_keys(self, keys: Iterable[str]) -> dict[str, Change]:
        """Read the rows with these `tx_key`."""

    def of_txid(self, txid: int) -> dict[str, Change]:
        """Read the rows that a transaction was the last to write, by `tx_key`."""


@dataclass(frozen=True)
class WriteContext:
    """The grant and chunk that an update is computed for.

    :param raising: whether it raises the fence, and undoes what another grant of this transaction wrote.
    :param replayed: whether another grant may have written rows of this transaction.
    """

    grant: Grant
    chunk: int
    raising: bool
    replayed: bool

    @property
    def token(self) -> Any:
        """Name the grant as rows do: the fence admits one nonce per rank."""
        return ".".join(map(str, self.grant.token.rank))

    @property
    def writer(self) -> Writer:
        return Writer(self.grant.txid, self.token, self.chunk)

    def wrote(self, row: Change) -> bool:
        return bool(row["tx_token"] == self.token)


class KeyedRows:
    """Values per key: an update reads the rows of its keys, combines and replaces them."""

    pruned = False

    def __init__(
        self, columns: Columns, kind: StateKind, key_types: Mapping[str, str] | None
    ) -> None:
        self.columns = columns
        self.kind = kind
        self.key_types = key_types if columns.keys else {}
        self._opaque = kind is StateKind.OPAQUE

    @property
    def definition(self) -> dict[str, Any]:
        """Describe the columns for the fence, which refuses a state of others."""
        values = {
            name: [aggregator.name, aggregator.type]
            for name, aggregator in self.columns.values.items()
        }
        keys = {
            "names": list(self.columns.keys),
            "types": dict(self.key_types) if self.key_types is not None else None,
        }
        return {"kind": self.kind.value, "keys": keys, "values": values}

    @property
    def types(self) -> dict[str, str]:
        values = {name: aggregator.type for name, aggregator in self.columns.values.items()}
        before = {_PREV + name: kind for name, kind in values.items()}
        more = {"tx_created": "boolean", **before} if self._opaque else {"tx_digest": "text"}
        return {**OURS, **(self.key_types or {}), **values, **more}

    def changes(
        self, rows: list[Mapping[str, Any]], turn: WriteContext, stored: Stored
    ) -> tuple[list[Change], int]:
        """Compute the rows to merge, those to delete without `tx_txid`; and count the keys that are written.

        :raises StateError: a row does not fit, or not to what is stored.
        """
        if rows and self.key_types is None:
            self.key_types = CheckedRows(self.columns).key_types(rows[0])
        deltas = self._deltas(rows)
        found = stored.of_keys(deltas) if deltas else {}
        changed = {
            key: self._changed(key, row, delta, found.get(key), turn)
            for key, (row, delta) in deltas.items()
        }
        if self._opaque and turn.raising and turn.replayed:
            for key, row in stored.of_txid(turn.grant.txid).items():
                if key not in changed and not turn.wrote(row):
                    changed[key] = self._undone(row)
        return list(changed.values()), len(deltas)

    def read(self, row: Change) -> dict[str, Any]:
        """Read a stored row as the user knows it."""
        return self.columns.completed(
            {name: row[name] for name in (*self.columns.keys, *self.columns.values)}
        )

    def values(self, row: Change) -> dict[str, Any]:
        return self.columns.completed({name: row[name] for name in self.columns.values})

    def order(self, row: Change) -> Any:
        return tuple(row[name] for name in self.columns.keys)

    def _deltas(
        self, rows: list[Mapping[str, Any]]
    ) -> dict[str, tuple[tuple[Any, ...], tuple[Any, ...]]]:
        if not rows:
            return {}
        assert self.key_types is not None
        width = len(self.columns.keys)
        found: dict[str, Any] = {}
        for portion in CheckedRows(self.columns).portions(rows, self.key_types, size=_ROWS_AT_ONCE):
            for values in zip(*portion, strict=True):
                key = values[:width]
                found[self.columns.key_bytes(key, self.key_types).decode()] = (key, values[width:])
        return found

    def _changed(
        self, tx_key: str, key: Cells, delta: Cells, row: Change | None, turn: WriteContext
    ) -> Change:
        writer = turn.writer
        shown = dict(zip(self.columns.keys, key, strict=True))
        stored = None if row is None else self._value_of(row)
        if stored is not None:
            writer.check(stored, state=self.columns.state, key=shown)
        value = updated_value(
            self.kind, stored, writer, lambda base: self.columns.combined(key, base, delta)
        )
        changed: Change = {
            "tx_row": VALUE,
            "tx_key": tx_key,
            "tx_txid": writer.txid,
            "tx_token": turn.token,
        }
        changed |= {
            "tx_chunk": turn.chunk,
            **shown,
            **dict(zip(self.columns.values, value.value or (), strict=True)),
        }
        if isinstance(value, OpaqueValue):
            before = value.prev or (None,) * len(self.columns.values)
            names = [_PREV + name for name in self.columns.values]
            return {
                **changed,
                "tx_created": value.prev is None,
                **dict(zip(names, before, strict=True)),
            }
        output = self._digest(delta)
        if row is not None and row["tx_txid"] == writer.txid and row["tx_digest"] != output:
            text = f"{output} for key {shown}"
            raise OutputChanged(
                state=self.columns.state, txid=writer.txid, digest=text, found=row["tx_digest"]
            )
        return {**changed, "tx_digest": output}

    def _value_of(self, row: Change) -> StoredValue[Cells]:
        token = row["tx_token"]
        chunk = row["tx_chunk"]
        values = tuple(row[name] for name in self.columns.values)
        if not self._opaque:
            return TransactionalValue(row["tx_txid"], values, token, chunk)
        prev = (
            None if row["tx_created"] else tuple(row[_PREV + name] for name in self.columns.values)
        )
        return OpaqueValue(row["tx_txid"], values, prev, token, chunk)

    def _digest(self, delta: Cells) -> str:
        """Digest what an update brings to a key.

        Floats may differ by the order of their adding: the digest of the whole output compares them.
        """
        pairs = zip(self.columns.values.values(), delta, strict=True)
        return digest(
            [None if each.type == "double" else _plain(each, value) for each, value in pairs]
        )

    def _undone(self, row: Change) -> Change:
        if row["tx_created"]:
            return deleted(row)
        return {**row, **{name: row[_PREV + name] for name in self.columns.values}}


def _plain(aggregator: CombinerAggregator, delta: Any) -> Any:
    if isinstance(aggregator, Reduced):
        return None if delta is None else [repr(sorted(row.items())) for row in delta]
    return to_plain(aggregator.type, delta)


def deleted(row: Change) -> Change:
    """Write what takes a row out of the table."""
    return {"tx_row": row["tx_row"], "tx_key": row["tx_key"], "tx_txid": None}


def only_types_differ(stored: Mapping[str, Any], made: Mapping[str, Any]) -> bool:
    """Whether two definitions differ in nothing but the key types, which neither the table nor the DAG may know yet."""
    if "keys" not in stored or "keys" not in made or {**stored, "keys": 0} != {**made, "keys": 0}:
        return False
    known = (stored["keys"]["types"], made["keys"]["types"])
    return stored["keys"]["names"] == made["keys"]["names"] and None in known
