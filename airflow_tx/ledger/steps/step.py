"""The inputs of a step beside its records, and its decision: writes, and an answer. Source: docs/protocol.md §1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from airflow_tx.base.errors import (
    OutcomeUnknown,
    RequirementFailed,
    UnreadableRecord,
    without_controls,
)
from airflow_tx.ledger.answers import Done, Repaired
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
)
from airflow_tx.ledger.life import since_reset, taken_back
from airflow_tx.ledger.records import (
    Counter,
    History,
    RepairRecord,
    Skipped,
    TopologyRecord,
    decode,
    encode,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from _typeshed import DataclassInstance


# --- reader -------------------------------------------------------------------------------------------------------
# How a step reads: every record read becomes a requirement of the multi that follows, so none can be forgotten.


_A = TypeVar("_A")
_R = TypeVar("_R", bound="DataclassInstance")

Answers = dict[str, tuple[object, Any]]
"""Per kind of question the last one and its answer: a source holds only what it has decided last."""

PRESENT = Node(b"", ANY_VERSION)
"""A record that `Reader.exists` assumes to be there: the multi is refused if it is not."""

UNKNOWN = Node(b"", ANY_VERSION)
"""A record that this process does not know."""

MOST_KNOWN = 2000
"""Records that a process remembers at most. A process that runs for hours would else remember all of them."""


class Unanswered(Exception):
    """The pass needs an answer from outside the ledger: `Ledger.run` asks, and runs the step again."""

    def __init__(self, kind: str, about: object, call: Callable[[], object]) -> None:
        super().__init__(kind, about)
        self.kind = kind
        self.about = about
        self.call = call


@dataclass
class KnownRecords:
    """Records and names of children, as last read or written; None is a record that was not there.

    Several threads may share them. Keep only versions that the store has or has had. An old version costs a refused
    multi. A version that does not exist yet would be taken for the record that gets it later.
    """

    nodes: dict[str, Node | None] = field(default_factory=dict)
    children: dict[str, Children] = field(default_factory=dict)

    def clear(self) -> None:
        """Forget everything."""
        self.nodes.clear()
        self.children.clear()

    def add(self, seen: KnownRecords) -> None:
        """Remember what a pass has read, unless something newer is known."""
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
        """Return what writes will make of their records, and of the names around them; None: not known.

        Ask before you send their multi: another thread may note a later change before this thread notes its own.

        :param seen: what the pass that decided on them has read.
        """
        made = self._of(writes)
        made.add(seen._of(writes))
        for write in writes:
            made._apply(write)
        return made

    def take(self, made: KnownRecords, seen: KnownRecords) -> None:
        """Remember what a multi has made, and what its pass had read, unless something newer is known."""
        for path, node in made.nodes.items():
            if node is None:
                self.nodes.pop(path, None)
                self.children.pop(path, None)
        found: dict[str, Node | None] = {**seen.nodes, **made.nodes}
        found = {path: node for path, node in found.items() if node is not None}
        self.add(KnownRecords(found, {**seen.children, **made.children}))
        for path, node in seen.nodes.items():
            if node is None and path not in made.nodes:
                self.nodes.pop(path, None)  # that a record is absent is required of one multi only

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
            if not write.data:  # a folder
                self.children[path] = Children((), 0)


class Reader:
    """The reads of one pass of a step, or of several that share a multi.

    :param store: where records come from.
    :param known: records that this process has read or written; they are not read again. If they are out of date, the
        multi is refused, and the step passes again without them. They never answer a step that writes nothing.
    :param hasty: whether this pass may assume what is most likely.
    :param answers: what earlier passes have asked outside the ledger.
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
        """Apply the writes of a step, for the step that follows in the same multi: it reads what they make.

        Nothing is required of a record that was just written: the multi itself makes it what it is.
        """
        self._written += writes

    def ask(self, kind: str, about: object, call: Callable[[], _A]) -> _A:
        """Return the answer that an earlier pass has got to this question.

        :param about: what is asked, by which the question is recognised.
        :param call: gets the answer from outside the ledger, between two passes.
        :raises Unanswered: no earlier pass has asked.
        """
        found, answer = self._answers.get(kind, (None, None))
        if found != about:
            raise Unanswered(kind, about, call)
        result: _A = answer
        return result

    def find(self, cls: type[_R], path: str, *, new: bool = False) -> _R | None:
        """Read the record at `path`, or None, and require that it stays so.

        :param new: most likely it is not there yet, which a hasty pass assumes: the multi is refused if it is.
        """
        if new and self.hasty:
            self._assumed[path] = None
        node = self._required(path)
        return None if node is None else decode(cls, path, node.data)

    def get(self, cls: type[_R], path: str) -> _R:
        """Read the record at `path`, which must exist.

        :raises UnreadableRecord: it does not.
        """
        return _present(self.find(cls, path), path)

    def peek(self, cls: type[_R], path: str) -> _R:
        """Read the record at `path` without a requirement: for values that only grow, where an old one is safe."""
        return _present(self.peek_if_any(cls, path), path)

    def peek_if_any(self, cls: type[_R], path: str) -> _R | None:
        """Like `peek`, for a record that may be missing."""
        node = self._node(path)
        return None if node is None else decode(cls, path, node.data)

    def exists(self, path: str, *, old: bool = False) -> bool:
        """Ask whether there is a record at `path`, with any content, and require that it does not change.

        :param old: most likely it is there, which a hasty pass assumes: the multi is refused if it is not.
        """
        if old and self.hasty:
            self._assumed[path] = PRESENT
        return self._required(path) is not None

    def raw(self, path: str) -> bytes | None:
        """Read the bytes at `path`, of any format, and require that they do not change."""
        node = self._required(path)
        return None if node is None else node.data

    def covered(self, cls: type[_R], path: str) -> _R:
        """Read the current record at `path`, if its every change touches a record that is read with `names`."""
        write = self._write_of(path)
        node = self._store.get(path) if write is None else _made(write)
        return _present(None if node is None else decode(cls, path, node.data), path)

    def names(self, path: str) -> tuple[str, ...]:
        """Read the names below `path`, and require that its own version stays: each change of a name touches it."""
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
        """Like `names`, for a path that may be missing."""
        return self.names(path) if self.exists(path) else ()

    def requirements(self, created: frozenset[str]) -> tuple[Requirement, ...]:
        """Give one requirement a record read. The multi that creates an absent one checks it; others need no check.

        :param created: paths that the multi creates.
        """
        found: list[Requirement] = []
        for path, version in self._versions.items():
            if version is not None:
                found.append(Unchanged(path, version))
            elif path in created:
                found.append(Absent(path))
        return tuple(found)

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
        )  # one access: another thread may forget it in between
        if node is UNKNOWN:
            node = self._assumed[path] if path in self._assumed else self._store.get(path)
        self.seen.nodes[path] = node
        return node

    def _write_of(self, path: str) -> Write | None:
        """The last write that a step before this one makes of a record, in the same multi."""
        return next((write for write in reversed(self._written) if write.path == path), None)


def _made(write: Write) -> Node | None:
    return None if isinstance(write, Delete) else Node(write.data, ANY_VERSION)


def _present(record: _R | None, path: str) -> _R:
    if record is None:
        raise UnreadableRecord(path=path, reason="it is missing")
    return record


# --- step ---------------------------------------------------------------------------------------------------------


T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True)
class Stamp:
    """Values that a step may not make itself.

    :param now: time as ISO 8601 text.
    :param op: nonce of this pass; a write that was not answered is recognised by it.
    :param message_id: random 64-bit id.
    :param history: how many final transactions are remembered.
    """

    now: str
    op: str
    message_id: int
    history: int


@dataclass(frozen=True)
class Decision(Generic[T_co]):
    """The answer of a step, and the writes of the one multi that makes it true.

    :param writes: none: nothing changes, it is an answer only.
    :param proof: a record that holds `op` once the multi has happened.
    """

    result: T_co
    writes: tuple[Write, ...] = ()
    proof: str = ""


def put(path: str, record: Any, result: T) -> Decision[T]:
    """Decide to replace one record."""
    return Decision(result, (Put(path, encode(record)),), path)


@dataclass(frozen=True)
class Audit:
    """A person, and the reason for what the person does: kept in the ledger with it, in one line."""

    who: str
    why: str

    @property
    def reason(self) -> str:
        """The stored form of the reason: without control characters."""
        return " ".join(without_controls(self.why).split())

    def noted(self, stamp: Stamp) -> dict[str, str]:
        """Return it as a record keeps it."""
        return {"who": self.who, "when": stamp.now, "why": self.reason}

    def repair(
        self,
        read: Reader,
        stamp: Stamp,
        paths: Paths,
        writes: Sequence[Write],
        *,
        what: str,
        after: TopologyRecord,
        current: int,
        summary: str,
        losses: Sequence[dict[str, Any]] = (),
        change: Mapping[str, Any] | None = None,
        kept: Sequence[RepairRecord] = (),
        above: int = 0,
    ) -> Decision[Repaired]:
        """Decide on writes, and on a `RepairRecord` that says who makes them and why.

        :param after: the topology record once they are made.
        :param summary: what was found and what was made of it.
        :param losses: the rows that were accepted as lost; `change`: the totals that were accepted.
        :param kept: records of repairs that a lost ledger gets back; `above`: the greatest number that a fence names.
        """
        number = max(next_repair(read, paths), above + 1, *(each.number + 1 for each in kept))
        repair = RepairRecord(
            number,
            what,
            who=self.who,
            when=stamp.now,
            why=self.reason,
            told=summary,
            generation=after.generation,
            op=stamp.op,
            losses=[*losses],
            change=dict(change or {}),
        )
        folder = () if read.exists(paths.repairs) else (Create(paths.repairs, b""),)
        again = [Create(paths.repair(each.number), encode(each)) for each in kept]
        record = Create(paths.repair(number), encode(repair))
        result = Repaired(after.generation, current, summary)
        return Decision(result, (*writes, *folder, *again, record), record.path)


def repairs_of(read: Reader, paths: Paths) -> list[RepairRecord]:
    """Read what people did to the ledger, the oldest first."""
    numbers = sorted(map(int, read.names_if_any(paths.repairs)))
    return [read.peek(RepairRecord, paths.repair(number)) for number in numbers]


def taken_back_before(read: Reader, paths: Paths) -> set[int]:
    """Name the transactions that repairs have taken back since the ledger was last reset."""
    return {txid for each in since_reset(repairs_of(read, paths)) for txid in taken_back(each)}


def next_repair(read: Reader, paths: Paths) -> int:
    """Number the next repair."""
    return max(map(int, read.names_if_any(paths.repairs)), default=0) + 1


def put_or_create(read: Reader, path: str, data: bytes, *, old: bool = False) -> Write:
    """Give the write that lets a record be `data`, whether or not it exists.

    :param old: most likely it exists, see `Reader.exists`.
    """
    return Put(path, data) if read.exists(path, old=old) else Create(path, data)


def is_committed(read: Reader, paths: Paths, txid: int) -> bool:
    """Ask whether a txid without an open record is committed: it is behind `current` and not listed as skipped."""
    current = read.peek(Counter, paths.current)
    return txid < current.txid and read.peek_if_any(Skipped, paths.skipped(txid)) is None


def is_another(read: Reader, paths: Paths, txid: int, birth: str) -> bool:
    """Ask whether a txid without an open record was another transaction than the one of this birth.

    The ledger gave the txid a second time, or it was rebuilt, so this is unknown.
    """
    if not birth:
        return False
    history = read.peek_if_any(History, paths.history(txid))
    if history is None:
        return txid <= read.peek(TopologyRecord, paths.record).rebuilt
    return history.birth != birth


# --- garbage ------------------------------------------------------------------------------------------------------
# Records that no step reads any more: removed with the multi that leaves them, or in portions if they are too many.
#
# A multi that grows with the batch would once be larger than ZooKeeper takes. So what is beyond a portion is only
# noted in the topology record; the next step removes it. Source: docs/protocol.md §4.


DELETIONS_A_MULTI = 500
"""Deletions in one multi."""


def acks_of(stamp: Stamp, txid: int, attempt: int) -> str:
    """Name the acks of an attempt; a name is used once, even if a repair lets transactions begin again."""
    return f"{txid}.{attempt}-{stamp.op[-8:]}"


def deletes(folder: str, names: Sequence[str]) -> tuple[Write, ...] | None:
    """Delete a folder and its content; None if that is more than a portion."""
    if len(names) >= DELETIONS_A_MULTI:
        return None
    return (*(Delete(f"{folder}/{name}") for name in names), Delete(folder))


def left(topology: TopologyRecord, paths: Paths, *folders: str) -> TopologyRecord:
    """Note in the topology record that folders are to be removed."""
    noted = [folder.removeprefix(f"{paths.base}/") for folder in folders]
    return replace(topology, garbage=list(dict.fromkeys([*topology.garbage, *noted])))


def removed(
    read: Reader, stamp: Stamp, paths: Paths, folder: str, names: Sequence[str]
) -> tuple[Write, ...]:
    """Delete a folder, or note that it is to be removed."""
    gone = deletes(folder, names)
    if gone is not None:
        return gone
    topology = left(read.get(TopologyRecord, paths.record), paths, folder)
    return (Put(paths.record, encode(replace(topology, op=stamp.op))),)


def remove(store: Store, path: str) -> None:
    """Delete a record and everything below it, in portions. Several processes may do so at once."""
    while store.children(path) is not None:
        empty(store, path)
        _delete(store, [path])


def empty(store: Store, path: str) -> None:
    """Delete everything below a record, in portions."""
    while (children := store.children(path)) and children.names:
        every = [f"{path}/{name}" for name in children.names]
        for start in range(0, len(every), DELETIONS_A_MULTI):
            below = every[start : start + DELETIONS_A_MULTI]
            if not _delete(store, below):
                for each in below:
                    empty(store, each)


def _delete(store: Store, paths: Sequence[str]) -> bool:
    try:
        store.multi([], [Delete(path) for path in paths])
    except (RequirementFailed, OutcomeUnknown):
        store.sync()  # there is something below one, another process deletes too, or the reply was lost
        return False
    return True


def note_removed(
    read: Reader, stamp: Stamp, paths: Paths, folders: Sequence[str]
) -> Decision[Done]:
    """Note that folders are removed."""
    topology = read.get(TopologyRecord, paths.record)
    rest = [folder for folder in topology.garbage if folder not in folders]
    if rest == topology.garbage:
        return Decision(Done())
    after = replace(topology, garbage=rest, op=stamp.op)
    return put(paths.record, after, Done())
