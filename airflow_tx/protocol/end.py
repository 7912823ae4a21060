"""Writes the end of a transaction, committed or skipped: history, rotation, the turn. Source: protocol.md §§2, 4."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace

from airflow_tx.errors import Outranked, StateRenamed
from airflow_tx.protocol import garbage
from airflow_tx.protocol.api import Create, Delete, Put, Write
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.loss import without_passed
from airflow_tx.protocol.pace import pace_after
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, History, Outcome, Phase, TopologyRecord, TransactionRecord, encode
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.step import Stamp


def holds(record: TransactionRecord | None, topology: TopologyRecord, token: Token) -> bool:
    """Whether `token` is still the grant that the ledger knows."""
    if record is None or record.phase is not Phase.COMMITTING:
        return False
    found = (topology.generation, record.attempt, record.epoch, record.nonce)
    return found == (token.generation, token.attempt, token.epoch, token.nonce)


def check_token(record: TransactionRecord | None, topology: TopologyRecord, token: Token) -> TransactionRecord:
    """The record of the transaction that `token` was granted for.

    :raises Outranked: the token is not the one the ledger holds.
    """
    if record is None or not holds(record, topology, token):
        found = (
            "no open transaction"
            if record is None
            else f"{topology.generation}/{token.txid}.{record.attempt}#{record.epoch} ({record.phase.value})"
        )
        raise Outranked(txid=token.txid, token=str(token), found=found)
    return record


def check_names(topology: TopologyRecord, paths: Paths, txid: int, states: Collection[str]) -> None:
    """Refuse a state that is new while one is missing: renamed in the DAG, it would start from nothing, unnoticed.

    :raises StateRenamed: naming both, and what to do.
    """
    new, gone = set(states) - topology.states.keys(), topology.states.keys() - set(states)
    if new and gone:
        old = min(gone)
        last = topology.states[old]
        raise StateRenamed(topology=paths.topology, txid=txid, new=min(new), old=old, last=last)


def history_of(record: TransactionRecord, stamp: Stamp, txid: int, outcome: Outcome) -> History:
    """What is remembered of a transaction that ends now."""
    return History(
        txid=txid,
        attempts=record.attempt,
        run_id=record.run_id,
        outcome=outcome,
        began=record.began,
        processed=record.processed,
        granted_at=record.granted_at,
        ended=stamp.now,
        rows=None,
        ack_val="0" * 16,
        op=stamp.op,
        failures=record.failures,
        skip=record.skip if outcome is Outcome.SKIPPED else None,
        size=record.size,
        lost=record.lost,
        changed=record.changed,
        birth=record.birth,
    )


def ended(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    topology: TopologyRecord,
    record: TransactionRecord,
    history: History,
    states: Collection[str],
) -> tuple[Write, ...]:
    """Make a transaction final and pass the turn on.

    :param record: of the transaction.
    :param states: names of the states whose fence its grant has raised.
    """
    txid = history.txid
    read.get(Counter, paths.current)
    final = {**topology.states, **dict.fromkeys(states, txid)}
    # Of one that an older release began nothing is known.
    births = {name: each for name, each in {**topology.births, **dict.fromkeys(states, record.birth)}.items() if each}
    blocked = None if (topology.blocked or {}).get("txid") == txid else topology.blocked
    skips = [each for each in topology.skips if each != txid]
    pace = pace_after(topology.pace, history)
    after = replace(
        topology, states=final, births=births, blocked=blocked, bid=None, skips=skips, pace=pace, op=stamp.op
    )
    acks = paths.acks(txid, record.acks)
    gone = garbage.deletes(acks, read.names(acks))
    if gone is None:
        after = garbage.left(after, paths, acks)
    after = without_passed(read, paths, after, txid)
    rotating = RotatingTransactionalState(read, paths)
    if rotating.last_by_partition(txid):
        after = garbage.left(after, paths, paths.sources)
    return (
        Put(paths.record, encode(after)),
        Put(paths.current, encode(Counter(txid + 1))),
        Create(paths.history(txid), encode(history)),
        Delete(paths.transaction(txid)),
        *(gone or ()),
        *rotating.cleanup_before(txid),
        *_forgotten_history(read, paths, txid - stamp.history),
    )


def _forgotten_history(read: Reader, paths: Paths, txid: int) -> list[Write]:
    """Each end removes the one entry that the end before it had kept, so no other is to be found."""
    return [Delete(paths.history(txid))] if txid > 0 and read.exists(paths.history(txid), old=True) else []
