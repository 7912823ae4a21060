"""Grants, and the end of a transaction: history, rotation, the turn. Source: docs/protocol.md §§2, 4."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

from airflow_tx.errors import Outranked, StaleBatch, StateMissing, StateRenamed
from airflow_tx.protocol import garbage
from airflow_tx.protocol.answers import Committed
from airflow_tx.protocol.api import Create, Delete, Put, Write
from airflow_tx.protocol.attempt import Grant, Token
from airflow_tx.protocol.consumers import digest_text
from airflow_tx.protocol.json_text import digest, dumps
from airflow_tx.protocol.loss import without_passed
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.receipt import METADATA_KEPT, POSITION_KEPT, Receipt, Written, as_kept
from airflow_tx.protocol.records import (
    Binding,
    Counter,
    History,
    Outcome,
    Phase,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.protocol.roll_forward import check_not_rolling
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.step import Decision, Stamp, put_or_create

HOURS_KEPT = 25
"""Hours of which the topology record counts the transactions: a day, and the current hour."""
HOUR = len("2013-01-01T17")
"""Characters of a time that name its hour."""
PACES_KEPT = 8
"""Of so many transactions it is kept how long their processing took."""


def holds(record: TransactionRecord | None, topology: TopologyRecord, token: Token) -> bool:
    """Ask whether `token` is still the grant that the ledger knows."""
    if record is None or record.phase is not Phase.COMMITTING:
        return False
    found = (topology.generation, record.attempt, record.epoch, record.nonce)
    return found == (token.generation, token.attempt, token.epoch, token.nonce)


def check_token(
    record: TransactionRecord | None, topology: TopologyRecord, token: Token
) -> TransactionRecord:
    """Give the record of the transaction that `token` was granted for.

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


def check_states(
    paths: Paths, txid: int, record: TransactionRecord, states: Collection[str]
) -> None:
    """Refuse a grant that leaves out a state which the transaction may have been written to.

    :raises StateMissing: naming them.
    """
    lost = set(record.fenced) - set(states)
    if lost:
        raise StateMissing(topology=paths.topology, txid=txid, states=", ".join(sorted(lost)))


def check_grant(
    read: Reader, paths: Paths, txid: int, record: TransactionRecord, states: Collection[str]
) -> tuple[TopologyRecord, Any]:
    """Check what every grant requires; gives the topology, and the position before the batch.

    A state that is new while one is missing was renamed in the DAG: it would start from nothing, unnoticed.

    :raises StateRenamed: naming both, and what to do.
    :raises StaleBatch: its predecessor ended elsewhere than its batch starts.
    :raises RollingForward: the states are written again at the moment.
    """
    topology = read.get(TopologyRecord, paths.record)
    check_not_rolling(paths, topology)
    new = set(states) - topology.states.keys()
    gone = topology.states.keys() - set(states)
    if new and gone:
        old = min(gone)
        last = topology.states[old]
        raise StateRenamed(topology=paths.topology, txid=txid, new=min(new), old=old, last=last)
    before = RotatingTransactionalState(read, paths).position_before(txid)
    if digest(before) != record.base:
        raise StaleBatch(
            txid=txid,
            attempt=record.attempt,
            base=record.base,
            previous=txid - 1,
            found=digest(before),
        )
    return topology, before


def claimed(
    record: TransactionRecord,
    topology: TopologyRecord,
    stamp: Stamp,
    paths: Paths,
    *,
    txid: int,
    batch: Mapping[str, Any],
    outcome: Outcome,
    **counted: Any,
) -> TransactionRecord:
    """Note in a record that holds a new grant the receipt of its transaction, except for the written rows.

    :param batch: rows, position, and the position before.
    :param counted: rows, tasks and code of the receipt.
    """
    receipt = Receipt(
        topology=paths.topology,
        incarnation=topology.incarnation,
        generation=topology.generation,
        txid=txid,
        attempt=record.attempt,
        epoch=record.epoch,
        nonce=record.nonce,
        birth=record.birth,
        outcome=outcome.value,
        key=record.key,
        run_id=record.run_id,
        granted=stamp.now,
        metadata=as_kept(batch["rows"], METADATA_KEPT),
        before=as_kept(batch["prev"], POSITION_KEPT),
        after=as_kept(batch["position"], POSITION_KEPT),
        previous=topology.receipt,
        replays=record.replays,
        lost=record.lost,
        changed=record.changed,
        skip=record.skip,
        digest=digest_text(record.counted),
        size=record.size or {},
        journal=record.journal or None,
        replaces=record.replaces,
        wish=record.wish,
        **counted,
    )
    return replace(record, claim=receipt.said())


def make_grant(
    record: TransactionRecord,
    topology: TopologyRecord,
    stamp: Stamp,
    paths: Paths,
    *,
    txid: int,
    batch: Mapping[str, Any],
    noted: Mapping[str, str] | None = None,
) -> Grant:
    """Make the grant that `record` holds.

    :param batch: rows, position, and the position before. With whose transaction it is, since when it is granted, who
        skips it, its journal entry, and what it restates, all facts that a repair needs if the ledger is lost.
        And what is about to be written, by transactional state: a later grant of the transaction is compared with it.
    :param noted: per transactional state, what an earlier grant was about to write.
    """
    token = Token(
        topology.generation, txid, record.attempt, record.epoch, record.nonce, record.birth
    )
    kept = fence_batch(record, stamp.now, batch)
    return Grant(
        paths.topology,
        topology.incarnation,
        token,
        topology.states,
        batch=dumps(kept),
        births=topology.births,
        claim=dumps(record.claim),
        noted=noted or {},
        grants=topology.grants,
    )


def fence_batch(
    of: TransactionRecord | Receipt, granted: str, batch: Mapping[str, Any]
) -> dict[str, Any]:
    """Give what a fence keeps of a transaction, so that a lost ledger can be rebuilt from it.

    :param granted: when its grant was given.
    :param batch: as `make_grant` takes it.
    """
    kept = {"key": of.key, "run_id": of.run_id, "granted": granted, "skip": of.skip, **batch}
    if of.journal:
        kept["journal"] = of.journal
    if of.replaces is not None:
        kept["replaces"] = of.replaces
    return kept


def ended(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    record: TransactionRecord,
    topology: TopologyRecord,
    *,
    txid: int,
    outcome: Outcome,
    states: Collection[str],
    rows: int | None = None,
    ack_val: int = 0,
    written: Mapping[str, Written] | None = None,
    columns: Mapping[str, Collection[str]] | None = None,
) -> Decision[Committed]:
    """Decide to make a transaction final, and to pass the turn on.

    :param states: names of the states whose fence its grant has raised.
    :param written: per state the rows that it got; other states got none.
    :param columns: per state with columns, its value columns in this transaction.
    """
    read.get(Counter, paths.current)  # a repair that sets the turn back refuses this end
    assert record.claim is not None, "its grant has noted it"
    given = {state: (written or {}).get(state, Written()) for state in states}
    receipt = Receipt.from_json(record.claim).with_written(given)
    history = History.of(
        record,
        txid=txid,
        outcome=outcome,
        ended=stamp.now,
        rows=rows,
        ack_val=f"{ack_val:016x}",
        op=stamp.op,
        receipt=receipt.to_json(),
        digest=digest_text(record.counted),
    )
    after = _topology_after(topology, history, states, stamp)
    grants = {**after.grants, **{state: [record.attempt, record.epoch] for state in states}}
    after = replace(
        after,
        receipt=receipt.hash,
        grants=grants,
        columns={**topology.columns, **columns_after(topology.columns, columns or {}, txid)},
    )
    acks = paths.acks(record.acks)
    gone = garbage.deletes(acks, read.names(acks))
    if gone is None:
        after = garbage.left(after, paths, acks)
    after = without_passed(read, paths, after, txid)
    writes: tuple[Write, ...] = (
        Put(paths.record, encode(after)),
        Put(paths.current, encode(Counter(txid + 1))),
        Create(paths.history(txid), encode(history)),
        Delete(paths.transaction(txid)),
        *(gone or ()),
        *RotatingTransactionalState(read, paths).cleanup_before(txid),
        *_forgotten_history(read, paths, txid - stamp.history),
    )
    if outcome is Outcome.COMMITTED and (record.journal or record.replaces is not None):
        bound = encode(Binding(txid, record.journal))
        writes = (*writes, put_or_create(read, paths.run(record.key), bound, old=True))
    return Decision(Committed.first(topology, txid), writes, paths.history(txid))


def _topology_after(
    topology: TopologyRecord, history: History, states: Collection[str], stamp: Stamp
) -> TopologyRecord:
    """Note a transaction that is over in the topology record, and drop what was noted of it there."""
    txid = history.txid
    is_blocked = topology.blocked is not None and topology.blocked.get("txid") == txid
    # A state that takes the old name of another one: entries from before mean that other one.
    reused = {state: txid for state in states if state in topology.renamed}
    return replace(
        topology,
        renamed={old: new for old, new in topology.renamed.items() if old not in reused},
        taken_back_from={**topology.taken_back_from, **reused},
        states={**topology.states, **dict.fromkeys(states, txid)},
        births={**topology.births, **dict.fromkeys(states, history.birth)},
        blocked=None if is_blocked else topology.blocked,
        bid=None,
        skips=[each for each in topology.skips if each != txid],
        pace=pace_after(topology.pace, history),
        hours=hours_after(topology.hours, history),
        op=stamp.op,
    )


def columns_after(
    known: Mapping[str, Mapping[str, int]], columns: Mapping[str, Collection[str]], txid: int
) -> dict[str, dict[str, int]]:
    """Note which value columns states have, and from which transaction on each holds values.

    :param known: what the topology record says; of a state that it does not name, every column holds what the state
        holds.
    """
    return {
        state: {
            name: known[state].get(name, txid) if state in known else 0 for name in sorted(names)
        }
        for state, names in columns.items()
    }


def _forgotten_history(read: Reader, paths: Paths, txid: int) -> list[Write]:
    """Remove the one entry that the end before it had kept: there is no older one."""
    return (
        [Delete(paths.history(txid))]
        if txid > 0 and read.exists(paths.history(txid), old=True)
        else []
    )


def hours_after(hours: Mapping[str, int], history: History) -> dict[str, int]:
    """Count a transaction that is over: the history may be shorter than the hours that people look at."""
    hour = history.ended[:HOUR]
    counted = {**hours, hour: hours.get(hour, 0) + 1}
    return {each: counted[each] for each in sorted(counted)[-HOURS_KEPT:]}


def pace_after(pace: list[list[Any]], history: History) -> list[list[Any]]:
    """Add the measurement of a transaction that is over; only committed ones of a known size count.

    The largest batch is kept, however old: a long trickle must not make forget what a large batch takes. Once another
    one is as large, that one is remembered. Earlier counts in another unit are dropped.

    :param pace: (rows, seconds in process), the oldest first; if other things than rows are counted, with their unit.
    """
    if (
        history.outcome is not Outcome.COMMITTED
        or history.size is None
        or history.processed is None
    ):
        return pace
    unit = next((name for name in history.size if name != "why"), "rows")
    count = history.size.get(unit)
    if not count:
        return pace
    named = [] if unit == "rows" else [unit]
    seconds = (
        datetime.fromisoformat(history.processed) - datetime.fromisoformat(history.began)
    ).total_seconds()
    alike = [each for each in pace if each[2:] == named]
    kept = [*alike, [count, round(max(seconds, 0.0), 3), *named]]
    if len(kept) > PACES_KEPT:
        largest = max(each[0] for each in kept[1:])
        del kept[1 if kept[0][0] > largest else 0]
    return kept
