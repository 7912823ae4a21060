"""Classes that read a ledger, for the steps and for the coordinator, the page and the commands.

Source: docs/protocol.md §§1, 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, TypeVar

from airflow_tx.base.errors import (
    OutcomeUnknown,
    RequirementFailed,
    TooMuchContention,
    UnreadableRecord,
)
from airflow_tx.ledger.api import (
    ANY_VERSION,
    Absent,
    Children,
    Create,
    Delete,
    Node,
    Paths,
    Put,
    Requirement,
    Store,
    Unchanged,
    Write,
    ack_element,
)
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.json_text import R, digest
from airflow_tx.ledger.records import (
    Ack,
    Counter,
    Metadata,
    RepairRecord,
    TopologyRecord,
    TransactionRecord,
    decode,
    encode,
)

# --- reader -------------------------------------------------------------------------------------------------------
# A step requires that the records it has read stay unchanged. The reader adds this requirement to
# the multi.


_A = TypeVar("_A")
_K = TypeVar("_K")

Answers = dict[str, tuple[object, Any]]
"""The last query of each kind, with its result. Older ones are dropped, since a source remembers only one decision."""

PRESENT = Node(b"", ANY_VERSION)
"""The placeholder value of a record that `Reader.exists` assumes to exist.

If the record is missing, the multi is refused.
"""

UNKNOWN = Node(b"", ANY_VERSION)
"""The placeholder value of a record that this process has not read."""

MOST_KNOWN = 2000
"""Maximum number of records that a process remembers."""


class Unanswered(Exception):
    """Signals that a pass needs the result of a query outside the ledger.

    `Ledger.run` makes the query and repeats the step.
    """

    def __init__(self, kind: str, about: object, call: Callable[[], object]) -> None:
        super().__init__(kind, about)
        self.kind = kind
        self.about = about
        self.call = call


@dataclass
class KnownRecords:
    """The last known version of each record and folder. None means that the record did not exist.

    Several threads may share it. Add only versions that exist or have existed in the store. An old version only gets
    the multi refused. A version that does not exist yet could later match a different record.
    """

    nodes: dict[str, Node | None] = field(default_factory=dict)
    children: dict[str, Children] = field(default_factory=dict)

    def clear(self) -> None:
        """Remove all records and names."""
        self.nodes.clear()
        self.children.clear()

    def add(self, seen: KnownRecords) -> None:
        """Add the records that a pass has read, unless a newer version is known."""
        if len(self.nodes) > MOST_KNOWN:
            self.clear()
        for path, node in seen.nodes.items():
            known = self.nodes.get(path)
            if known is None or (node is not None and known.version < node.version):
                self.nodes[path] = node
        for path, children in seen.children.items():
            names = self.children.get(path)
            if names is None or names.version <= children.version:
                self.children[path] = children

    def made_by(self, writes: Sequence[Write], seen: KnownRecords) -> KnownRecords:
        """Return the records and names that these writes will produce. The value None means unknown.

        Call this before sending the multi: another thread may record a later change before this thread records its own.

        :param seen: the records that the pass has read.
        """
        made = self._of(writes)
        made.add(seen._of(writes))
        for write in writes:
            made._apply(write)
        return made

    def take(self, made: KnownRecords, seen: KnownRecords) -> None:
        """Add the results of a multi and the records that its pass read, unless a newer version is known."""
        for path, node in made.nodes.items():
            if node is None:
                self.nodes.pop(path, None)
                self.children.pop(path, None)
        found: dict[str, Node | None] = {**seen.nodes, **made.nodes}
        found = {path: node for path, node in found.items() if node is not None}
        self.add(KnownRecords(found, {**seen.children, **made.children}))
        for path, node in seen.nodes.items():
            if node is None and path not in made.nodes:
                self.nodes.pop(path, None)  # Only this multi required that the record is missing.

    def _of(self, writes: Sequence[Write]) -> KnownRecords:
        written = {write.path for write in writes}
        around = {*written, *(path.rpartition("/")[0] for path in written)}
        nodes: dict[str, Node | None] = {}
        nodes |= {path: node for path in written if (node := self.nodes.get(path)) is not None}
        children = {
            path: found for path in around if (found := self.children.get(path)) is not None
        }
        return KnownRecords(nodes, children)

    def _apply(self, write: Write) -> None:
        path = write.path
        folder, _, name = write.path.rpartition("/")
        node = self.nodes.get(path)
        children = self.children.pop(path, None)
        around = self.children.get(folder)
        self.nodes[path] = None
        if isinstance(write, Put):
            if node is not None and node.version != ANY_VERSION:
                self.nodes[path] = Node(write.data, node.version + 1)
            if children is not None:
                self.children[path] = Children(children.names, children.version + 1)
            return
        if around is not None:
            names = {*around.names, name} if isinstance(write, Create) else {*around.names} - {name}
            self.children[folder] = Children(tuple(sorted(names)), around.version)
        if isinstance(write, Create):
            self.nodes[path] = Node(write.data, 0)
            if not write.data:  # An empty record is a folder.
                self.children[path] = Children((), 0)


class Reader:
    """Reads records for one pass of a step, or of several steps that share a multi.

    :param store: the store of the records.
    :param known: records that this process remembers and need not read again. If one is outdated, the multi is refused,
        and the next pass runs without them. They never decide a step that writes nothing.
    :param hasty: whether this pass may assume, without a read, that some records exist and that others do not.
    :param answers: the answers from outside the ledger that earlier passes received.
    """

    def __init__(
        self,
        store: Store,
        known: KnownRecords | None = None,
        *,
        hasty: bool = False,
        answers: Answers | None = None,
    ) -> None:
        self._store = store
        self._known = known or KnownRecords()
        self._assumed: dict[str, Node | None] = {}
        self.hasty = hasty
        self._answers = answers or {}
        self._versions: dict[str, int | None] = {}
        self._written: list[Write] = []
        self.seen = KnownRecords()

    def apply(self, writes: Sequence[Write]) -> None:
        """Apply the writes of a step for later reads, so that the next step in the same multi sees their results.

        A record that was just written needs no requirement: the multi itself sets its content.
        """
        self._written += writes

    def ask(self, kind: str, about: object, call: Callable[[], _A]) -> _A:
        """Return the result of a query outside the ledger, which an earlier pass has made.

        :param about: the subject of the query. The result is valid only for the same subject.
        :param call: function that makes the query between two passes.
        :raises Unanswered: no earlier pass has the result.
        """
        found, answer = self._answers.get(kind, (None, None))
        if found != about:
            raise Unanswered(kind, about, call)
        result: _A = answer
        return result

    def find(self, cls: type[R], path: str, *, new: bool = False) -> R | None:
        """Read the record at `path`, and require that it stays unchanged. Return None if there is no record.

        :param new: whether a hasty pass may assume that there is no record. If there is one, the multi is refused.
        """
        if new and self.hasty:
            self._assumed[path] = None
        node = self._required(path)
        return None if node is None else decode(cls, path, node.data)

    def get(self, cls: type[R], path: str) -> R:
        """Read the record at `path`, which must exist.

        :raises UnreadableRecord: there is no record.
        """
        return _present(self.find(cls, path), path)

    def peek(self, cls: type[R], path: str) -> R:
        """Read the record at `path` without a requirement, for values that only grow and are safe to use when old."""
        return _present(self.peek_if_any(cls, path), path)

    def peek_if_any(self, cls: type[R], path: str) -> R | None:
        """Like `peek`, but return None if the record is missing."""
        node = self._node(path)
        return None if node is None else decode(cls, path, node.data)

    def exists(self, path: str, *, old: bool = False) -> bool:
        """Return whether there is a record at `path`, with any content, and require that it stays unchanged.

        :param old: whether a hasty pass may assume that there is a record. If there is none, the multi is refused.
        """
        if old and self.hasty:
            self._assumed[path] = PRESENT
        return self._required(path) is not None

    def raw(self, path: str) -> bytes | None:
        """Read the bytes at `path`, in any format, and require that they stay unchanged."""
        node = self._required(path)
        return None if node is None else node.data

    def covered(self, cls: type[R], path: str) -> R:
        """Read the newest record at `path` without a requirement.

        Each change of this record must also change a record that `names` reads.
        """
        write = self._write_of(path)
        node = self._store.get(path) if write is None else _made(write)
        return _present(None if node is None else decode(cls, path, node.data), path)

    def names(self, path: str) -> tuple[str, ...]:
        """Read the names below `path`, and require that no name is added or removed."""
        names = set[str]()
        if not any(isinstance(write, Create) and write.path == path for write in self._written):
            children = self._known.children.get(path) or self._store.children(path)
            if children is None:
                raise UnreadableRecord(path=path, reason="it is missing")
            self.seen.children[path] = children
            self._versions[path] = children.version
            names.update(children.names)
        for write in self._written:
            folder, _, name = write.path.rpartition("/")
            if folder == path and not isinstance(write, Put):
                names ^= {name}
        return tuple(sorted(names))

    def names_if_any(self, path: str) -> tuple[str, ...]:
        """Like `names`, but return () if the path is missing."""
        return self.names(path) if self.exists(path) else ()

    def requirements(self, created: frozenset[str]) -> tuple[Requirement, ...]:
        """Return a requirement for each record that was read.

        A missing record is required only where the multi creates one.

        :param created: paths that the multi creates.
        """
        found: list[Requirement] = []
        for path, version in self._versions.items():
            if version is not None:
                found.append(Unchanged(path, version))
            elif path in created:
                found.append(Absent(path))
        return tuple(found)

    def still_holds(self) -> bool:
        """Return whether no record has changed since it was read, so that all records are from one moment."""
        requirements = self.requirements(frozenset())
        try:
            if requirements:
                self._store.multi(requirements, ())
        except (RequirementFailed, OutcomeUnknown):
            return False
        return True

    def _required(self, path: str) -> Node | None:
        node = self._node(path)
        if self._write_of(path) is None:
            self._versions[path] = None if node is None else node.version
        return node

    def _node(self, path: str) -> Node | None:
        write = self._write_of(path)
        if write is not None:
            return _made(write)
        node = self._known.nodes.get(
            path, UNKNOWN
        )  # Access the dict only once, since another thread may clear it.
        if node is UNKNOWN:
            node = self._assumed[path] if path in self._assumed else self._store.get(path)
        self.seen.nodes[path] = node
        return node

    def _write_of(self, path: str) -> Write | None:
        """Return the last write to this record by an earlier step of the same multi."""
        return next((write for write in reversed(self._written) if write.path == path), None)


def _made(write: Write) -> Node | None:
    return None if isinstance(write, Delete) else Node(write.data, ANY_VERSION)


def _present(record: R | None, path: str) -> R:
    if record is None:
        raise UnreadableRecord(path=path, reason="it is missing")
    return record


# --- rotating state -----------------------------------------------------------------------------------------------
# RotatingTransactionalState stores each batch's metadata and the position after the batch.
#
# `begin` and a replay decide from the state of the previous transaction. When a transaction ends,
# it removes that state. Source: docs/protocol.md §§1, 4; Trident's class of this name.


class RotatingTransactionalState:
    """The metadata and position of each batch by txid, for all partitions of the source, in one record each.

    The multi that follows requires that each state it has read stays unchanged. A missing state is an error and never
    counts as empty.
    """

    def __init__(self, read: Reader, paths: Paths) -> None:
        self._read = read
        self._paths = paths
        self._found: dict[int, Metadata] = {}

    def get_state(self, txid: int) -> Metadata:
        """Read the state of `txid`.

        :raises UnreadableRecord: the state is missing or damaged.
        """
        if txid not in self._found:
            self._found[txid] = self._read.get(Metadata, self._paths.meta(txid))
        return self._found[txid]

    def get_previous_state(self, txid: int) -> Metadata | None:
        """Read the state from which the batch of `txid` is decided; None for the first transaction."""
        return self.get_state(txid - 1) if txid > 1 else None

    def get_last_state(self) -> Metadata | None:
        """Read the state of the last allocated transaction; None before the first transaction."""
        return self.get_previous_state(self.last_txid + 1)

    def get_state_or_create(
        self, txid: int, initializer: Callable[[Any], Metadata]
    ) -> tuple[Metadata, tuple[Write, ...]]:
        """Read the state of `txid`. If there is none, decide it and return the writes that store it.

        :param initializer: function that derives the state from the position before the batch.
        """
        path = self._paths.meta(txid)
        if self._read.find(Metadata, path, new=True) is not None:
            return self.get_state(txid), ()
        state = initializer(self.position_before(txid))
        return state, (Create(path, encode(state)),)

    def override_state(self, txid: int, state: Metadata) -> Write:
        """Replace the state of `txid`, or create it."""
        path = self._paths.meta(txid)
        stored = txid in self._found or self._read.exists(path)
        return Put(path, encode(state)) if stored else Create(path, encode(state))

    def remove_state(self, txid: int) -> tuple[Write, ...]:
        """Remove the state of `txid` if it exists."""
        path = self._paths.meta(txid)
        return (Delete(path),) if txid in self._found or self._read.exists(path) else ()

    def cleanup_before(self, txid: int) -> tuple[Write, ...]:
        """Remove the state of the transaction before `txid`.

        Older states do not exist, since each transaction removes its predecessor's state when it ends.
        """
        return self.remove_state(txid - 1) if txid > 1 else ()

    def position_before(self, txid: int) -> Any:
        """Read the position of the source before the batch of `txid`; None before the first batch."""
        before = self.get_previous_state(txid)
        return None if before is None else before.position

    @cached_property
    def last_txid(self) -> int:
        """Read the last allocated txid. Return 0 before the first transaction."""
        return self._read.get(Counter, self._paths.allocated).txid


def position_after(before: Any, after: Any, *, partitioned: bool) -> Any:
    """Return the position after a batch. A partition without rows in the batch keeps its previous position."""
    return {**(before or {}), **(after or {})} or None if partitioned else after


def unmoved(before: Any, rows: Any, *, partitioned: bool) -> Any:
    """Return the position after a batch whose rows do not change the source's position."""
    return {name: (before or {}).get(name) for name in rows or {}} if partitioned else before


def stale_successors(
    opened: Mapping[int, TransactionRecord], *, current: int, position: str
) -> list[int]:
    """Return the transactions whose batch does not start where their predecessor ended. They must be replayed.

    Storm replays all later transactions when a transaction fails. This package replays only transactions whose base has
    changed. A replay may end at a different position, which makes more transactions stale.

    :param opened: the open transactions from `current` on.
    :param position: digest of the position after transaction `current` − 1.
    """
    found = []
    ended = position
    for txid in sorted(each for each in opened if each >= current):
        if txid > current and txid - 1 not in opened:
            ended = opened[txid].base  # the record of the transaction in between is unreadable
        if opened[txid].base != ended:
            found.append(txid)
        ended = opened[txid].ended
    return found


# --- reading ------------------------------------------------------------------------------------------------------


READINGS = 50
"""Maximum number of repeated reads because a transaction became final during a read."""
MOST_UNREADABLE = 100
"""Maximum number of unreadable records to list by name. A damaged counter can make many records unreadable."""
NO_TOPOLOGY = TopologyRecord("", "", "", 0)
"""The record of a topology that has no ledger."""


@dataclass(frozen=True, kw_only=True)
class TurnReading:
    """The transaction that has the turn to commit, with the other facts that the caller requested.

    :param current: the txid whose turn it is.
    :param opened: the open transactions by txid, in order. Transactions that became final during the read are omitted.
    :param topology: `NO_TOPOLOGY` if there is no ledger yet, or if it was not requested.
    """

    current: int = 1
    opened: Mapping[int, TransactionRecord] = field(default_factory=dict)
    topology: TopologyRecord = NO_TOPOLOGY

    @property
    def record(self) -> TransactionRecord | None:
        """Return the record of the transaction that has the turn. Return None if it has not begun or was not read."""
        return self.opened.get(self.current)

    @property
    def first(self) -> str:
        """Describe briefly the transaction that has the turn. Return "" if its record is unknown."""
        record = self.record
        if record is None:
            return ""
        attempt = TransactionAttempt(self.current, record.attempt)
        return f"transaction {attempt} (run {record.run_id}, {record.phase.value})"


@dataclass(frozen=True, kw_only=True)
class LedgerReading(TurnReading):
    """A ledger at one moment, with all open transactions. No transaction became final during the read.

    :param allocated: the last allocated txid.
    :param base: digest of the position after transaction `current` − 1, if a transaction is open.
    :param unreadable: reason why a record cannot be read, by txid of the other open transactions.
    """

    allocated: int = 0
    base: str = digest(None)
    unreadable: Mapping[int, UnreadableRecord] = field(default_factory=dict)

    @property
    def exists(self) -> bool:
        """Whether the topology has a ledger."""
        return self.topology is not NO_TOPOLOGY

    @cached_property
    def stale(self) -> frozenset[int]:
        """Return the open transactions whose batch does not start where their predecessor ended."""
        return frozenset(stale_successors(self.opened, current=self.current, position=self.base))

    def room(self, max_pending: int) -> bool:
        """Return whether the topology may allocate another transaction."""
        return self.allocated + 1 < self.current + max_pending


class LedgerReader:
    """Reads a ledger repeatedly. Facts that never change are read only once."""

    def __init__(self, store: Store, paths: Paths) -> None:
        self._store = store
        self._paths = paths
        # Once a txid has the turn, the digest of the position before it never changes.
        self._base: tuple[int, str] | None = None

    def read(self, *, last: int | None = None, shown: bool = False) -> LedgerReading | None:
        """Read the ledger. Return None if a transaction became final while it was read.

        :param last: the last transaction to read.
        :param shown: whether to report unreadable open transactions instead of raising an error; for display only.
        :raises UnreadableRecord: a record is damaged or missing.
        """
        read = Reader(self._store)
        counter = read.peek_if_any(Counter, self._paths.current)
        if counter is None and read.peek_if_any(TopologyRecord, self._paths.record) is None:
            return LedgerReading()
        # A topology without a counter is damaged and not new.
        current = (counter or read.peek(Counter, self._paths.current)).txid
        allocated = read.peek(Counter, self._paths.allocated).txid
        opened: dict[int, TransactionRecord] = {}
        unreadable: dict[int, UnreadableRecord] = {}
        base = digest(None)
        # Read the newest transaction first, so that the facts about two neighbours are from the
        # same moment.
        for txid in range(allocated if last is None else min(allocated, last), current - 1, -1):
            try:
                opened[txid] = read.peek(TransactionRecord, self._paths.transaction(txid))
                if txid == current:
                    base = self._base_of(read, current)
            except UnreadableRecord as error:
                if self._moved_on(current, allocated):
                    return None
                if not shown or len(unreadable) == MOST_UNREADABLE:
                    raise
                unreadable[txid] = error
        return LedgerReading(
            # Read the topology record last, since a run that yields writes its own record first.
            topology=read.peek(TopologyRecord, self._paths.record),
            current=current,
            allocated=allocated,
            opened=dict(sorted(opened.items())),
            base=base,
            unreadable=unreadable,
        )

    def settled(self, *, last: int | None = None, shown: bool = False) -> LedgerReading:
        """Read the ledger repeatedly until no transaction becomes final during a read. Raises the errors of `read`."""
        for _ in range(READINGS):
            found = self.read(last=last, shown=shown)
            if found is not None:
                return found
        raise TooMuchContention(step="read", subject=self._paths.topology, times=READINGS)

    def _base_of(self, read: Reader, current: int) -> str:
        if self._base is None or self._base[0] != current:
            position = RotatingTransactionalState(read, self._paths).position_before(current)
            self._base = (current, digest(position))
        return self._base[1]

    def _moved_on(self, current: int, allocated: int) -> bool:
        self._store.sync()
        read = Reader(self._store)
        if read.peek(Counter, self._paths.current).txid != current:
            return True
        return read.peek(Counter, self._paths.allocated).txid != allocated


def repairs_of(read: Reader, paths: Paths) -> list[RepairRecord]:
    """Read the repairs of the ledger, oldest first."""
    numbers = sorted(map(int, read.names_if_any(paths.repairs)))
    return [read.peek(RepairRecord, paths.repair(number)) for number in numbers]


def records_at(read: Reader, cls: type[R], paths: Mapping[_K, str]) -> dict[_K, R]:
    """Read the records at these paths. Records that were removed after they were listed are omitted."""
    found = {key: read.peek_if_any(cls, path) for key, path in paths.items()}
    return {key: record for key, record in found.items() if record is not None}


def listed_acks(store: Store, folder: str, names: Iterable[str]) -> dict[tuple[str, int], Ack]:
    """Read the acks of a transaction, by task id and map index. Acks that no longer exist are omitted."""
    return records_at(Reader(store), Ack, {ack_element(name): f"{folder}/{name}" for name in names})
