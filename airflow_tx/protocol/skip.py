"""The steps `skip` and `readmit`: a batch is taken out of the way, and brought back. Source: docs/protocol.md §5."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from airflow_tx.errors import (
    AlreadyFinal,
    NotSkipped,
    Refused,
    RestatementSkipped,
    SkipRefused,
    UnknownTxid,
)
from airflow_tx.protocol.answers import AlreadySkipped, Committed, Done, Granted, NotYet
from airflow_tx.protocol.api import Create, Put
from airflow_tx.protocol.attempt import Token
from airflow_tx.protocol.end import (
    check_grant,
    check_states,
    check_token,
    claimed,
    ended,
    make_grant,
)
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import (
    Counter,
    Outcome,
    Phase,
    Skipped,
    TopologyRecord,
    TransactionRecord,
    encode,
)
from airflow_tx.protocol.rotating_state import RotatingTransactionalState
from airflow_tx.protocol.step import Audit, Decision, Stamp, put


def note_skip(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, audit: Audit
) -> Decision[Done | AlreadySkipped]:
    """Note that a transaction is to be skipped at its turn; until then it may still be replayed.

    :raises AlreadyFinal, UnknownTxid: see `open_record`.
    """
    record = open_record(read, paths, txid)
    if record is None:
        return Decision(AlreadySkipped(txid))
    if record.skip is not None and record.phase is Phase.COMMITTING:
        return Decision(
            Done()
        )  # the receipts of its states may name the person who wanted it first
    noted = replace(record, skip=audit.noted(stamp), op=stamp.op)
    writes = (
        Put(paths.transaction(txid), encode(noted)),
        listed_skip(read, stamp, paths, txid, wanted=True),
    )
    return Decision(Done(), writes, paths.transaction(txid))


def withdraw_skip(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, *, keeps_grant: bool = False
) -> Decision[Done]:
    """Withdraw the request to skip it: it must be replayed, since its states may be rolled back already.

    :param keeps_grant: the skip was refused before it got a grant: one that a committer has stays what it is.
    :raises AlreadyFinal, UnknownTxid: see `open_record`; NotSkipped: it is skipped already: re-admit it.
    """
    record = _still_open(read, paths, txid)
    if record.skip is None:
        return Decision(Done())
    granted = record.phase is Phase.COMMITTING and not keeps_grant
    after = replace(
        record,
        skip=None,
        phase=Phase.FAILED if granted else record.phase,
        epoch=record.epoch + 1 if granted else record.epoch,
        error="it was to be skipped, and that was withdrawn" if granted else record.error,
        remedy=None if granted else record.remedy,
        op=stamp.op,
    )
    writes = (
        Put(paths.transaction(txid), encode(after)),
        listed_skip(read, stamp, paths, txid, wanted=False),
    )
    return Decision(Done(), writes, paths.transaction(txid))


def find_open(
    read: Reader, stamp: Stamp, paths: Paths, txids: Collection[int]
) -> Decision[dict[int, TransactionRecord | Refused]]:
    """Give the record of each transaction, or why it is not open: all of them as of one moment."""
    allocated = read.get(Counter, paths.allocated).txid
    return Decision(
        {txid: _open_or_refused(read, paths, txid, allocated) for txid in sorted(set(txids))}
    )


def grant_skip(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, states: Mapping[str, bool | None]
) -> Decision[Granted | NotYet | AlreadySkipped]:
    """Take the turn to skip a transaction, outranking its holder.

    :param states: the states whose fence is about to be raised, as for `held_for_good`.
    :raises SkipRefused: no one wants it skipped; or a state that cannot undo it may hold values of it.
    :raises StaleBatch: it must be replayed first: its predecessor ended elsewhere.
    :raises StateMissing, StateRenamed: a state that it, or one before it, may have been written to is not among them.
    """
    record = open_record(read, paths, txid)
    if record is None:
        return Decision(AlreadySkipped(txid))
    if record.skip is None:
        raise SkipRefused(
            txid=txid, problem="no one asked for it", remedy=f"To ask: {_skip(paths, txid)}"
        )
    current = read.get(Counter, paths.current)
    if current.txid != txid:
        return Decision(NotYet(current.txid))
    check_undoable(paths, txid, record, states, noted=True)
    topology, before = check_grant(read, paths, txid, record, states)
    meta = RotatingTransactionalState(read, paths).get_state(txid)
    # Not `granted`: no row of the batch is written under this grant.
    taken = replace(
        record,
        phase=Phase.COMMITTING,
        epoch=record.epoch + 1,
        nonce=stamp.op,
        journal="",
        op=stamp.op,
    )
    batch = {"rows": meta.rows, "position": meta.position, "prev": before}
    taken = claimed(taken, topology, stamp, paths, txid=txid, batch=batch, outcome=Outcome.SKIPPED)
    grant = make_grant(taken, topology, stamp, paths, txid=txid, batch=batch)
    return put(paths.transaction(txid), taken, Granted(grant))


def commit_skip(
    read: Reader, stamp: Stamp, paths: Paths, token: Token, states: Collection[str]
) -> Decision[Committed]:
    """Make the skip final: the rows are kept to be re-admitted, the position stays, and the turn is passed on.

    :param states: names of the states whose fence the grant has raised.
    :raises Outranked: the token is not the one the ledger holds; SkipRefused: the wish was taken back.
    """
    txid = token.txid
    record = read.find(TransactionRecord, paths.transaction(txid))
    if record is None and read.peek_if_any(Skipped, paths.skipped(txid)) is not None:
        return Decision(Committed(txid, here=False))
    topology = read.get(TopologyRecord, paths.record)
    record = check_token(record, topology, token)
    if record.skip is None:
        raise SkipRefused(
            txid=txid, problem="no one asks for it any more", remedy=f"To ask: {_skip(paths, txid)}"
        )
    kept = Skipped(record.key, record.run_id, None, record.skip, stamp.op)
    if record.replaces is None:
        rows = RotatingTransactionalState(read, paths).get_state(txid).rows
        kept = replace(kept, rows=rows)
    else:
        # The transaction that it restated counts. With its rows, a re-admission would count them twice.
        kept = replace(kept, replaces=record.replaces["txid"])
    end = ended(
        read, stamp, paths, record, topology, txid=txid, outcome=Outcome.SKIPPED, states=states
    )
    return replace(end, writes=(*end.writes, Create(paths.skipped(txid), encode(kept))))


def note_readmission(
    read: Reader, stamp: Stamp, paths: Paths, txid: int, audit: Audit
) -> Decision[Done]:
    """Let the next `begin` of a skipped transaction's run take its rows again, as a new transaction.

    :raises NotSkipped, RestatementSkipped: see `check_skipped`.
    """
    wanted = replace(
        check_skipped(read, stamp, paths, txid).result, readmit=audit.noted(stamp), op=stamp.op
    )
    return put(paths.skipped(txid), wanted, Done())


def check_skipped(read: Reader, stamp: Stamp, paths: Paths, txid: int) -> Decision[Skipped]:
    """Give what is kept of a skipped transaction.

    :raises NotSkipped: it is not skipped, or was re-admitted already.
    :raises RestatementSkipped: it restated a transaction, which counts.
    """
    skipped = read.find(Skipped, paths.skipped(txid))
    if skipped is None:
        raise NotSkipped(txid=txid, topology=paths.topology, found="not skipped")
    if skipped.readmitted_as is not None:
        raise NotSkipped(
            txid=txid, topology=paths.topology, found=f"re-admitted as {skipped.readmitted_as}"
        )
    if skipped.replaces is not None:
        raise RestatementSkipped(txid=txid, topology=paths.topology, replaces=skipped.replaces)
    return Decision(skipped)


def open_record(read: Reader, paths: Paths, txid: int) -> TransactionRecord | None:
    """Read the record of an open transaction; None if it is skipped.

    :raises AlreadyFinal: it is committed.
    :raises UnknownTxid: it was never allocated.
    """
    record = read.find(TransactionRecord, paths.transaction(txid))
    if record is not None:
        return record
    # In this order: a transaction that becomes final between the two reads is found skipped, and never committed.
    current = read.peek(Counter, paths.current)
    if read.find(Skipped, paths.skipped(txid)) is not None:
        return None
    if 0 < txid < current.txid:
        raise AlreadyFinal(txid=txid, outcome="committed", remedy="Nothing was changed.")
    raise _unknown(paths, txid)


def _open_or_refused(
    read: Reader, paths: Paths, txid: int, allocated: int
) -> TransactionRecord | Refused:
    if not 0 < txid <= allocated:
        return _unknown(paths, txid)
    try:
        return _still_open(read, paths, txid)
    except Refused as refused:
        return refused


def _unknown(paths: Paths, txid: int) -> UnknownTxid:
    return UnknownTxid(txid=txid, topology=paths.topology, path=paths.transactions)


def _still_open(read: Reader, paths: Paths, txid: int) -> TransactionRecord:
    record = open_record(read, paths, txid)
    if record is not None:
        return record
    skipped = read.find(Skipped, paths.skipped(txid))
    remedy = f"To get it back: {_readmit(paths, txid)}"
    if skipped is not None and skipped.replaces is not None:
        remedy = f"Transaction {skipped.replaces}, which it restated, counts."
    raise AlreadyFinal(txid=txid, outcome="skipped", remedy=remedy)


def listed_skip(read: Reader, stamp: Stamp, paths: Paths, txid: int, *, wanted: bool) -> Put:
    """List the transaction in the topology record, or no longer: who passes the turn on reads it there."""
    topology = read.get(TopologyRecord, paths.record)
    skips = sorted({*topology.skips, txid} if wanted else {*topology.skips} - {txid})
    return Put(paths.record, encode(replace(topology, skips=skips, op=stamp.op)))


def check_undoable(
    paths: Paths,
    txid: int,
    record: TransactionRecord,
    states: Mapping[str, bool | None],
    *,
    noted: bool,
) -> None:
    """Find out whether a transaction whose turn it is can be skipped: every state with values of it must undo them.

    :param states: as for `held_for_good`.
    :param noted: whether the ledger knows already that it is to be skipped.
    :raises StateMissing: a state that it may have been written to is not among them.
    :raises SkipRefused: a state that cannot undo it may hold something of it.
    """
    check_states(paths, txid, record, states)
    stuck = held_for_good(record, states)
    if stuck:
        raise skip_refused(txid, stuck, noted=noted)


def held_for_good(record: TransactionRecord, states: Mapping[str, bool | None]) -> list[str]:
    """Name the states that may hold something of a transaction and cannot undo it.

    The values in a state decide: the record may have been set back to before a grant. Only if a state cannot tell
    what it holds, the record says whether a grant was about to write it.

    :param states: the states of the topology, and whether each can undo the writes to it, or holds no values of
            the transaction. None: it cannot tell.
    """
    unknown = {name for name in record.fenced if states.get(name) is None}
    return sorted(unknown | {name for name, can in states.items() if can is False})


def skip_refused(txid: int, states: Sequence[str], *, noted: bool) -> SkipRefused:
    """Make the error of a skip that these states cannot undo."""
    return SkipRefused(
        txid=txid,
        problem=f"it may be in state {', '.join(states)} already, which cannot undo it",
        remedy=f"{'' if noted else 'Nothing was changed. '}Replay it until it is committed; a state of "
        'kind="opaque" can undo.',
    )


def _skip(paths: Paths, txid: int) -> str:
    return f"airflow tx skip {paths.topology} {txid} --why TEXT"


def _readmit(paths: Paths, txid: int) -> str:
    return f"airflow tx readmit {paths.topology} {txid} --why TEXT"
