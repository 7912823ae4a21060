"""An example of a custom state: a file that all workers share, with the fence, the values and the receipts.

It passes `StateSuite`, see tests/contract/test_state_suite.py. Every commit writes the whole file, so use it only for
small states.
"""

from __future__ import annotations

import fcntl
import os
import pickle
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from airflow_tx.ledger.receipt import Receipt
from airflow_tx.state import Aggregator, fence
from airflow_tx.state.aggregators import Cells, checked_columns
from airflow_tx.state.api import (
    Fence,
    QueryableState,
    StateKind,
    StateWrite,
    StoredReceipt,
    StoredState,
    fenced_kind,
)
from airflow_tx.state.keys import wanted_keys
from airflow_tx.state.maps import StoredValue, Writer, updated_value
from airflow_tx.state.rows import CheckedRows


@dataclass
class Content:
    """The content of the file. An opaque value is stored together with the previous value."""

    fence: Fence | None = None
    key_types: dict[str, str] | None = None
    rows: dict[Cells, StoredValue[Cells]] = field(default_factory=dict)
    receipts: dict[int, StoredReceipt] = field(default_factory=dict)


class ShopState(StoredState, QueryableState):
    """A state that keeps its values in a file.

    :param folder: a folder that every worker can write. The file is a pickle, so only users who may write DAG files may
        have write access to this folder.
    :param name: the name of the state, which is also the name of the file.
    """

    def __init__(
        self,
        folder: str | os.PathLike[str],
        name: str,
        *,
        keys: Iterable[str],
        values: Mapping[str, Aggregator],
        types: Mapping[str, str] | None = None,
        kind: StateKind | str = StateKind.OPAQUE,
    ) -> None:
        # The value is plain JSON, since Airflow shows the state.
        self.normalize(folder=os.fspath(folder))
        self.name = name
        self.kind = fenced_kind(kind, state=name)
        self.columns = checked_columns(self, keys, values, types)
        self._file = Path(folder, name)

    # --- reading

    def _content(self) -> Content:
        return pickle.loads(self._file.read_bytes()) if self._file.exists() else Content()

    def fence(self) -> Fence | None:
        return self._content().fence

    def receipts(self) -> list[StoredReceipt]:
        return [each for _, each in sorted(self._content().receipts.items())]

    def key_types(self) -> dict[str, str] | None:
        return self._content().key_types

    def holds(self, txid: int) -> bool:
        return any(stored.txid == txid for stored in self._content().rows.values())

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        found = [
            {**dict(zip(self.columns.keys, key, strict=True)), **self._shown(stored.value)}
            for key, stored in self._content().rows.items()
            if stored.value is not None
        ]
        return found[:limit]

    def multi_get(self, keys: Sequence[Sequence[Any]]) -> list[dict[str, Any] | None]:
        content = self._content()
        found: list[dict[str, Any] | None] = [None] * len(keys)
        for number, key in wanted_keys(self.columns, keys, content.key_types):
            stored = content.rows.get(key)
            if stored is not None and stored.value is not None:
                found[number] = self._shown(stored.value)
        return found

    def _shown(self, cells: Cells) -> dict[str, Any]:
        return self.columns.completed(dict(zip(self.columns.values, cells, strict=True)))

    def accept_values(self, change: int = 0) -> None:
        with self._changing() as content:
            if content.fence is not None:
                content.fence = fence.with_change(content.fence, change)

    # --- one store transaction

    @contextmanager
    def _transaction(self, write: StateWrite) -> Iterator[FileTransaction]:
        with self._changing() as content:
            yield FileTransaction(self, write, content)

    @contextmanager
    def _changing(self) -> Iterator[Content]:
        with open(f"{self._file}.lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # Closing the lock file releases the lock.
            content = self._content()
            yield content
            draft = Path(f"{self._file}.draft")
            with draft.open("wb") as file:
                pickle.dump(content, file)
                file.flush()
                os.fsync(file.fileno())
            # The rename is atomic, so a reader gets either the old file or the new one.
            draft.replace(self._file)


class FileTransaction:
    """One store transaction, which raises the fence, or checks that the fence has the grant's token."""

    def __init__(self, state: ShopState, write: StateWrite, content: Content) -> None:
        self.state, self.write, self.content = state, write, content
        self.writer = Writer(write.grant.txid, write.grant.token, write.chunk)
        if write.raising:
            keeps = state.kind is StateKind.TRANSACTIONAL
            content.fence = fence.raised(
                content.fence,
                write.grant,
                state=state.name,
                holds=lambda: keeps and state.holds(write.grant.txid),
            )
            self._undo(self.writer)
        else:
            fence.check_write(content.fence, write.grant, state=state.name)
        if write.undoing:
            self._undo(Writer(write.grant.txid))  # Undo it like a write of another grant.
            assert content.fence is not None
            content.fence = replace(content.fence, applied=False)

    def _undo(self, writer: Writer) -> None:
        """Roll back each key that another grant of this transaction has written."""
        undone = {key: stored.undone(writer) for key, stored in self.content.rows.items()}
        self.content.rows = {key: stored for key, stored in undone.items() if stored.value is not None}

    def put(self) -> int:
        rows = self.write.listed
        if not rows:
            return 0
        state, columns = self.state, self.state.columns
        checks = CheckedRows(columns)
        self.content.key_types = self.content.key_types or checks.key_types(rows[0])
        (checked,) = checks.portions(rows, self.content.key_types, size=len(rows))
        split = len(columns.keys)
        for row in zip(*checked, strict=True):
            key, deltas = row[:split], row[split:]
            stored = self.content.rows.get(key)
            if stored is not None:
                self.writer.check(stored, state=state.name, key=dict(zip(columns.keys, key, strict=True)))
            combine = partial(self._combined, key, deltas)
            self.content.rows[key] = updated_value(state.kind, stored, self.writer, combine)
        return len(rows)

    def _combined(self, key: Cells, deltas: Cells, before: Cells | None) -> Cells:
        return self.state.columns.combined(key, before, deltas, replacing=False)

    def end(self, receipt: Receipt | None) -> None:
        if self.write.complete and self.content.fence is not None:
            self.content.fence = fence.applied(self.content.fence)
        if receipt is not None:
            self.content.receipts[receipt.txid] = StoredReceipt.of(receipt)
