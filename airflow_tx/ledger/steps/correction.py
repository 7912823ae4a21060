"""The steps that record the corrections of the upstream topology. Source: docs/protocol.md §12."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from airflow_tx.base.remedy import shortened_reason
from airflow_tx.ledger.answers import Done
from airflow_tx.ledger.api import Create, Delete, Paths, Write
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import (
    MOST_OF_REASON,
    Behind,
    Followed,
    TopologyRecord,
    Wish,
    encode,
)
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit, Decision, Stamp, put_or_create


@dataclass(frozen=True)
class ComparedUpTo:
    """The result of a comparison of corrections.

    :param incarnation: incarnation of the upstream topology.
    :param txid: the last upstream transaction that need not be compared again.
    :param birth: birth of that transaction; "" if it has no line.
    :param caught_up: transactions that are no longer behind, because they have their corrections or do not count.
    """

    incarnation: str
    txid: int
    birth: str
    caught_up: Sequence[int] = field(default=())


def note_compared(
    read: Reader, stamp: Stamp, paths: Paths, compared: ComparedUpTo
) -> Decision[Done]:
    """Record how far corrections were compared. Remove the records of transactions that are no longer behind."""
    found = read.find(Followed, paths.followed)
    gone = [txid for txid in compared.caught_up if read.exists(paths.behind(txid))]
    after = Followed(compared.incarnation, compared.txid, compared.birth, stamp.op)
    is_same = found is not None and replace(found, op=stamp.op) == after
    if is_same and not gone:
        return Decision(Done())
    writes = [put_or_create(read, paths.followed, encode(after))]
    return Decision(
        Done(), (*writes, *(Delete(paths.behind(txid)) for txid in gone)), paths.followed
    )


def note_behind(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, ends: Mapping[int, int], *, why: str
) -> Decision[Done]:
    """Record which corrections a transaction lacks, and why no restatement is requested for them."""
    path = paths.behind(txid)
    note = _behind(read, stamp, paths, txid, ends, why=why)
    found = read.find(Behind, path)
    if found is not None and replace(found, op=stamp.op) == note:
        return Decision(Done())
    return Decision(Done(), _put_note(read, paths, note), path)


def want_correction(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: WishRequest,
    *,
    txid: int,
    ends: Mapping[int, int],
    audit: Audit,
) -> Decision[Wish]:
    """Record the request to restate a transaction because it lacks corrections.

    :param request: the request for the transaction that counts.
    :param txid: the transaction that begins its chain.
    :raises RestateRefused: as `want`.
    """
    wanted = want(read, stamp, paths, request, audit)
    note = _behind(read, stamp, paths, txid, ends, why="")
    return replace(wanted, writes=(*wanted.writes, *_put_note(read, paths, note)))


def _behind(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, ends: Mapping[int, int], *, why: str
) -> Behind:
    read.get(TopologyRecord, paths.record)  # a rename closes this record, then copies all others
    said = {str(each): end for each, end in sorted(ends.items())}
    found = read.find(Behind, paths.behind(txid))
    since = found.when if found is not None and found.is_of(ends) else stamp.now
    return Behind(txid, said, since, shortened_reason(why, MOST_OF_REASON), stamp.op)


def _put_note(read: Reader, paths: Paths, note: Behind) -> tuple[Write, ...]:
    folder = () if read.exists(paths.all_behind) else (Create(paths.all_behind, b""),)
    return (*folder, put_or_create(read, paths.behind(note.txid), encode(note)))
