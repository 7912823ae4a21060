"""A step's inputs other than the records, and its decision: an answer and writes. Source: docs/protocol.md §1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from airflow_tx.base.errors import (
    OutcomeUnknown,
    RequirementFailed,
    RollingForward,
    UnreadableRecord,
)
from airflow_tx.base.remedy import without_controls
from airflow_tx.ledger.answers import Done, Repaired
from airflow_tx.ledger.api import Create, Delete, Paths, Put, Store, Write
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.life import all_taken_back, since_reset
from airflow_tx.ledger.reading import Reader, repairs_of
from airflow_tx.ledger.receipt import Deed, DeedOfAttempt
from airflow_tx.ledger.records import (
    Counter,
    Loss,
    RepairRecord,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    decode,
    encode,
)

# --- step ---------------------------------------------------------------------------------------------------------


T_co = TypeVar("T_co", covariant=True)
T = TypeVar("T")


@dataclass(frozen=True)
class Stamp:
    """Values that a step receives as input, since a pure function cannot create them.

    :param now: time as ISO 8601 text.
    :param op: nonce of this pass. It identifies the pass's writes if the store's response is lost.
    :param message_id: random 64-bit id.
    :param history: how many final transactions the ledger remembers.
    """

    now: str
    op: str
    message_id: int
    history: int


@dataclass(frozen=True)
class Decision(Generic[T_co]):
    """A step's answer, and the writes of its multi. The answer becomes valid when the multi succeeds.

    :param writes: the writes of the multi; empty if nothing changes.
    :param proof: path of a record that contains `op` once the multi has succeeded.
    """

    result: T_co
    writes: tuple[Write, ...] = ()
    proof: str = ""


def put(path: str, record: Any, result: T) -> Decision[T]:
    """Return the decision to replace one record."""
    return Decision(result, (Put(path, encode(record)),), path)


@dataclass(frozen=True)
class Audit:
    """The user who acts, and the reason. The ledger stores both with the action."""

    who: str
    why: str

    @property
    def reason(self) -> str:
        """The reason as the ledger stores it: one line without control characters."""
        return " ".join(without_controls(self.why).split())

    def noted(self, stamp: Stamp) -> Deed:
        """Return who acts, when and why, in the form of a record."""
        return Deed(self.who, stamp.now, self.reason)

    def noted_of(self, stamp: Stamp, attempt: int) -> DeedOfAttempt:
        """Return who acts on one attempt, when and why, in the form of a record."""
        return DeedOfAttempt(self.who, stamp.now, self.reason, attempt)

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
        losses: Sequence[Loss] = (),
        change: Mapping[str, Any] | None = None,
        kept: Sequence[RepairRecord] = (),
        above: int = 0,
    ) -> Decision[Repaired]:
        """Add a repair record to the writes, with who makes them, when and why.

        :param after: the topology record after these writes.
        :param summary: description of the finding and the result.
        :param losses: the lost rows that are accepted.
        :param change: facts about the repair; see `RepairRecord`.
        :param kept: repair records that a rebuilt ledger gets back.
        :param above: the highest number of an accepted change in any fence.
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


def taken_back_before(read: Reader, paths: Paths) -> set[int]:
    """Return the transactions that repairs have taken back since the last reset of the ledger."""
    return all_taken_back(since_reset(repairs_of(read, paths)))


def next_repair(read: Reader, paths: Paths) -> int:
    """Return the number of the next repair."""
    return max(map(int, read.names_if_any(paths.repairs)), default=0) + 1


def put_or_create(read: Reader, path: str, data: bytes, *, old: bool = False) -> Write:
    """Return the write that sets a record to `data`, regardless of whether the record exists.

    :param old: whether the record very likely exists, see `Reader.exists`.
    """
    return Put(path, data) if read.exists(path, old=old) else Create(path, data)


def is_committed(read: Reader, paths: Paths, txid: int) -> bool:
    """Return whether a txid without an open record is committed, that is, before `current` and not skipped."""
    current = read.peek(Counter, paths.current)
    return txid < current.txid and read.peek_if_any(Skipped, paths.skipped(txid)) is None


def is_another(read: Reader, paths: Paths, txid: int, birth: str) -> bool:
    """Return whether a txid without an open record belonged to a transaction with another birth.

    The ledger may have allocated the txid twice. If the history is missing, return True for a txid before a rebuild.
    """
    if not birth:
        return False
    history = read.peek_if_any(TransactionRecord, paths.history(txid))
    if history is None:
        return txid <= read.peek(TopologyRecord, paths.record).rebuilt
    return history.birth != birth


def check_not_rolling(paths: Paths, topology: TopologyRecord) -> None:
    """Raise an error if a step needs the states while a roll forward writes them.

    :raises RollingForward: a roll forward has not ended. The error says when it began and how to end it.
    """
    noted = topology.rolling
    if noted is not None:
        states = sorted(noted.found)
        raise RollingForward(topology=paths.topology, when=noted.when, states=states)


def check_raw_not_rolling(paths: Paths, data: bytes | None) -> None:
    """Raise the error of `check_not_rolling`, even if the topology record is missing, closed or damaged."""
    with suppress(UnreadableRecord):
        if data is not None:
            check_not_rolling(paths, decode(TopologyRecord, paths.record, data))


# --- garbage ------------------------------------------------------------------------------------------------------
# Deletion of records that no step reads any more. The multi that makes them obsolete also deletes
# them if they are few.
#
# Many deletions could exceed ZooKeeper's size limit. In this case the multi only lists them in the
# topology record, and a later step deletes them. Source: docs/protocol.md §4.


DELETIONS_A_MULTI = 500
"""Maximum number of deletions in one multi."""


def acks_of(stamp: Stamp, txid: int, attempt: int) -> str:
    """Return the name of the folder for the acks of an attempt. A repair can repeat a txid, but never this name."""
    return f"{txid}.{attempt}-{stamp.op[-8:]}"


def deletes(folder: str, names: Sequence[str]) -> tuple[Write, ...] | None:
    """Return the writes that delete a folder and its content. Return None if they do not fit in one multi."""
    if len(names) >= DELETIONS_A_MULTI:
        return None
    return (*(Delete(f"{folder}/{name}") for name in names), Delete(folder))


def left(topology: TopologyRecord, paths: Paths, *folders: str) -> TopologyRecord:
    """Return the topology record with these folders added to its list of folders to delete."""
    noted = [folder.removeprefix(f"{paths.base}/") for folder in folders]
    return replace(topology, garbage=list(dict.fromkeys([*topology.garbage, *noted])))


def removed(
    read: Reader, stamp: Stamp, paths: Paths, folder: str, names: Sequence[str]
) -> tuple[Write, ...]:
    """Return the writes that delete a folder, or that add the folder to the topology record for later deletion."""
    gone = deletes(folder, names)
    if gone is not None:
        return gone
    topology = left(read.get(TopologyRecord, paths.record), paths, folder)
    return (Put(paths.record, encode(replace(topology, op=stamp.op))),)


def remove(store: Store, path: str) -> None:
    """Delete a record and everything below it, in portions. Several processes may do this at the same time."""
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
        store.sync()  # A record has new children or is being deleted, or the response was lost.
        return False
    return True


def note_removed(
    read: Reader, stamp: Stamp, paths: Paths, folders: Sequence[str]
) -> Decision[Done]:
    """Record in the topology record that these folders are deleted."""
    topology = read.get(TopologyRecord, paths.record)
    rest = [folder for folder in topology.garbage if folder not in folders]
    if rest == topology.garbage:
        return Decision(Done())
    after = replace(topology, garbage=rest, op=stamp.op)
    return put(paths.record, after, Done())
