"""Who did something by hand, and why: kept in the ledger with what was done."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tx.protocol.api import Create, Write
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import RepairRecord, encode
from airflow_tx.protocol.step import Stamp


@dataclass(frozen=True)
class Audit:
    """A person, and the reason he gave."""

    who: str
    why: str

    def noted(self, stamp: Stamp) -> dict[str, str]:
        """As it is kept in a record."""
        return {"who": self.who, "when": stamp.now, "why": self.why}


def note(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    audit: Audit,
    *,
    what: str,
    generation: int,
    told: str,
    losses: Sequence[dict[str, Any]] = (),
) -> tuple[Write, ...]:
    """The writes of a `RepairRecord`; the last of them is the record itself, which proves that it happened.

    :param generation: of the ledger after it.
    :param told: what was found and what was made of it, in words.
    :param losses: the rows that were accepted as lost.
    """
    there = read.exists(paths.repairs)
    names = read.names(paths.repairs) if there else ()
    number = max(map(int, names), default=0) + 1
    record = RepairRecord(number, what, audit.who, stamp.now, audit.why, told, generation, stamp.op, [*losses])
    folder = () if there else (Create(paths.repairs, b""),)
    return (*folder, Create(paths.repair(number), encode(record)))
