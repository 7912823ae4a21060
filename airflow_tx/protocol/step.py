"""The inputs of a step beside its records, and its decision: writes, and an answer. Source: docs/protocol.md §1."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

from airflow_tx.errors import without_controls
from airflow_tx.protocol.answers import Repaired
from airflow_tx.protocol.api import Create, Put, Write
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import (
    Counter,
    History,
    RepairRecord,
    Skipped,
    TopologyRecord,
    encode,
)

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
    ) -> Decision[Repaired]:
        """Decide on writes, and on a `RepairRecord` that says who makes them and why.

        :param after: the topology record once they are made.
        :param summary: what was found and what was made of it.
        :param losses: the rows that were accepted as lost; `change`: the totals that were accepted.
        """
        number = next_repair(read, paths)
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
        record = Create(paths.repair(number), encode(repair))
        return Decision(
            Repaired(after.generation, current, summary), (*writes, *folder, record), record.path
        )


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
