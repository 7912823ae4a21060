"""States by txid of which old ones are dropped. Source: Trident's RotatingTransactionalState.

Unlike Trident's, every write checks the version that this object has read, and nothing unreadable is taken for empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from airflow_tx.errors import OutcomeUnknown, RequirementFailed, TooMuchContention, UnreadableRecord
from airflow_tx.protocol.api import Absent, Create, Delete, Node, Put, Requirement, Store, Unchanged, Write
from airflow_tx.protocol.records import Metadata, decode, encode

Initializer = Callable[[int, Any], Any]
"""(txid, last state before it) → the state of txid."""

PASSES = 100
_TOGETHER = 100  # deletions in one multi


class RotatingTransactionalState:
    """Plain-JSON states by txid, one record each below `path`, in the format of `coordinator/meta/<txid>`.

    A state is stored as both rows and position. Where they differ, as in a ledger's metadata, it is
    `{"rows": …, "position": …}`. Not thread-safe; several processes may use one path.

    :param path: it is made when something is first written.
    """

    def __init__(self, store: Store, path: str) -> None:
        self._store = store
        self._path = path.rstrip("/")
        self._seen: dict[int, Node] = {}

    def get_state(self, txid: int) -> Any:
        """The state of `txid`; None if it has none.

        :raises UnreadableRecord: it is damaged or of a newer format.
        """
        node = self._read(txid)
        return None if node is None else self._state(txid, node)

    def get_previous_state(self, txid: int) -> Any:
        """The state of the greatest txid before `txid`; None if there is none."""
        earlier = [known for known in self._txids() if known < txid]
        return self.get_state(earlier[-1]) if earlier else None

    def get_last_state(self) -> Any:
        """The state of the greatest txid; None if there is none."""
        txids = self._txids()
        return self.get_state(txids[-1]) if txids else None

    def get_state_or_create(self, txid: int, initializer: Initializer) -> Any:
        """The stored state of `txid`, or None if this call has created it.

        As in Trident, the initializer is asked only for the newest txid; before a later one the new state is None.
        After a lost reply the stored state is given even if it is this call's own: as for any replay, it holds.

        :param initializer: may be asked again when another process was faster elsewhere.
        """
        for _ in range(PASSES):
            node = self._read(txid)
            if node is not None:
                return self._state(txid, node)
            later = [known for known in self._txids() if known > txid]
            state = None if later else initializer(txid, self.get_previous_state(txid))
            if self._create(txid, state):
                return None
        raise self._contention("get_state_or_create", txid)

    def override_state(self, txid: int, state: Any) -> None:
        """Replace the state of `txid`, or create it.

        :raises RequirementFailed: it is not what this object has last read or written, or it was never read and exists.
        """
        path, seen, data = self._record(txid), self._seen.get(txid), _encode(state)
        if seen is None:
            self._store.ensure(self._path)
        for _ in range(PASSES):
            try:
                if seen is None:
                    self._store.multi([Absent(path)], [Create(path, data)])
                else:
                    self._store.multi([Unchanged(path, seen.version)], [Put(path, data)])
            except OutcomeUnknown:
                if self._read_back(path) == seen:
                    continue
                if not self._written(path, data, seen):
                    raise self._changed(path, seen) from None
            self._seen[txid] = Node(data, 0 if seen is None else seen.version + 1)
            return
        raise self._contention("override_state", txid)

    def remove_state(self, txid: int) -> None:
        """Forget the state of `txid`; nothing happens if it has none.

        :raises RequirementFailed: it is not what this object has last read.
        """
        seen = self._seen.get(txid) or self._read(txid)
        for _ in range(PASSES):
            if seen is None:
                return
            if self._delete([(txid, seen)]):
                self._seen.pop(txid, None)
                return
            now = self._read_back(self._record(txid))
            if now is not None and now != seen:
                raise self._changed(self._record(txid), seen)
            seen = now
        raise self._contention("remove_state", txid)

    def cleanup_before(self, txid: int) -> None:
        """Forget the states of all txids before `txid`."""
        for _ in range(PASSES):
            earlier = [known for known in self._txids() if known < txid][:_TOGETHER]
            if not earlier:
                return
            nodes = [(known, self._read(known)) for known in earlier]
            if self._delete([(known, node) for known, node in nodes if node is not None]):
                for known in earlier:
                    self._seen.pop(known, None)
        raise self._contention("cleanup_before", txid)

    # --- records -------------------------------------------------------------------------------------------------

    def _record(self, txid: int) -> str:
        return f"{self._path}/{txid}"

    def _txids(self) -> list[int]:
        children = self._store.children(self._path)
        names = () if children is None else children.names
        for name in names:
            if not name.isdigit():
                raise UnreadableRecord(path=f"{self._path}/{name}", reason="its name is not a txid")
        return sorted(int(name) for name in names)

    def _read(self, txid: int) -> Node | None:
        node = self._store.get(self._record(txid))
        if node is None:
            self._seen.pop(txid, None)
        else:
            self._seen[txid] = node
        return node

    def _state(self, txid: int, node: Node) -> Any:
        found = decode(Metadata, self._record(txid), node.data)
        if found.rows == found.position:
            return found.rows
        return {"rows": found.rows, "position": found.position}

    def _create(self, txid: int, state: Any) -> bool:
        path, data = self._record(txid), _encode(state)
        self._store.ensure(self._path)
        try:
            self._store.multi([Absent(path)], [Create(path, data)])
        except (RequirementFailed, OutcomeUnknown):
            self._store.sync()
            return False
        self._seen[txid] = Node(data, 0)
        return True

    def _delete(self, entries: Sequence[tuple[int, Node]]) -> bool:
        requirements: list[Requirement] = [Unchanged(self._record(txid), node.version) for txid, node in entries]
        writes: list[Write] = [Delete(self._record(txid)) for txid, _ in entries]
        try:
            self._store.multi(requirements, writes)
        except (RequirementFailed, OutcomeUnknown):
            self._store.sync()
            return False
        return True

    def _read_back(self, path: str) -> Node | None:
        self._store.sync()
        return self._store.get(path)

    def _written(self, path: str, data: bytes, seen: Node | None) -> bool:
        return self._store.get(path) == Node(data, 0 if seen is None else seen.version + 1)

    def _changed(self, path: str, seen: Node | None) -> RequirementFailed:
        expected = "nothing" if seen is None else f"version {seen.version}"
        return RequirementFailed(path=path, expected=expected, found="another version")

    def _contention(self, step: str, txid: int) -> TooMuchContention:
        return TooMuchContention(step=step, subject=self._record(txid), times=PASSES)


def _encode(state: Any) -> bytes:
    split = isinstance(state, dict) and state.keys() == {"rows", "position"} and state["rows"] != state["position"]
    rows, position = (state["rows"], state["position"]) if split else (state, state)
    return encode(Metadata(1, rows, position))
