"""A map that can be rolled back: it notes in itself which keys a transaction touches. Source: protocol.md §7.

Trident's opaque values undo a key when a replay touches it again. A key that only the failed attempt touched would keep
what that attempt wrote; its name is here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import count
from typing import Any, TypeVar

from airflow_tx.errors import StateError, TxError
from airflow_tx.state.keys import Key, as_key
from airflow_tx.state.trident.json_values import from_text, to_text
from airflow_tx.state.trident.maps import MapState
from airflow_tx.state.trident.snapshot import SnapshottableMap
from airflow_tx.state.trident.values import ValueUpdater

_T = TypeVar("_T")
NOTE = "$KEYS$"
# Memcached takes values of 1 MiB; a key has up to 1 KiB, and a note stands beside the one before it.
_KEYS_A_NOTE = 200
_NOTES_AT_ONCE = 10


class Same:
    """Updates a value to itself: in an opaque map, to the one before the transaction."""

    def update(self, stored: Any) -> Any:
        return stored


class RollBackMap(SnapshottableMap[Any]):
    """Rolls an opaque map back when a transaction begins again: `RollBackMap(OpaqueMap(backing))`.

    Before a key is updated, it is noted under a key of this class: one more put for each update. `begin_commit` of the
    same txid gives every key that was noted the value it had before.

    :param map_state: an opaque map; its store takes texts as values, and keys of two parts beside its own.
    :param index: which of several writers it is of; each has notes of its own, for they may share a store.
    :param writers: how many there are.
    """

    can_roll_back = True

    def __init__(self, map_state: MapState[Any], index: int = 0, writers: int = 1) -> None:
        super().__init__(map_state)
        self._index = index
        self._writers = writers
        self._txid: int | None = None
        self._notes = 0
        self._is_open = False

    def begin_commit(self, txid: int | None, **grant: Any) -> None:
        if self._is_open:
            # A batch that failed: the newest values are seen outside of it alone.
            super().begin_commit(None)
        touched = [] if txid is None else list(self._touched(txid))
        super().begin_commit(txid, **grant)
        self._txid = txid
        self._notes = 0
        self._is_open = True
        for keys in touched:
            super().multi_update(keys, [Same()] * len(keys))

    def commit(self, txid: int | None) -> None:
        super().commit(txid)
        self._is_open = False

    def multi_update(
        self, keys: Sequence[Sequence[Any]], updaters: Sequence[ValueUpdater[Any]]
    ) -> list[Any]:
        self._note(keys)
        return super().multi_update(keys, updaters)

    def multi_put(self, keys: Sequence[Sequence[Any]], values: Sequence[Any]) -> None:
        self._note(keys)
        super().multi_put(keys, values)

    def holds(self, txid: int) -> bool:
        """Whether something of a transaction may be in the map."""
        return next(self._touched(txid), None) is not None

    def _note(self, keys: Sequence[Sequence[Any]]) -> None:
        if self._txid is None or not keys:
            return
        texts = [
            to_text(
                [self._txid, [as_key(key) for key in keys[start : start + _KEYS_A_NOTE]]]
            ).decode()
            for start in range(0, len(keys), _KEYS_A_NOTE)
        ]
        names = self._names(self._notes, len(texts))
        try:
            super().multi_put(names, texts)
        except TxError:
            raise
        except Exception as error:
            problem = f"its store does not take {names[0]}, under which the keys of a transaction are noted "
            remedy = "Nothing was written. Let the store take texts under such a key, or its map say that it cannot: "
            raise StateError(
                state=self.name,
                problem=f"{problem}({type(error).__name__}: {error})",
                remedy=f"{remedy}class MyMap(OpaqueMap): can_roll_back = False.",
            ) from error
        self._notes += len(texts)

    def _names(self, start: int, number: int) -> list[Key]:
        return [(NOTE, each * self._writers + self._index) for each in range(start, start + number)]

    def _touched(self, txid: int) -> Iterator[list[Key]]:
        """Read the keys that are noted of a transaction; notes of other ones come after its last."""
        for start in count(0, _NOTES_AT_ONCE):
            for text in self._map.multi_get(self._names(start, _NOTES_AT_ONCE)):
                noted = None if text is None else from_text(text)
                if noted is None or noted[0] != txid:
                    return
                yield [as_key(key) for key in noted[1]]
