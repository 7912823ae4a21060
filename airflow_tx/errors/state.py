"""Errors of states: fences, updates, and stores that cannot be reached."""

from __future__ import annotations

from airflow_tx.errors.root import TxError


class StateError(TxError):
    """A state that cannot take this update; no part of it was applied."""

    template = "State {state!r} refused: {problem}. {remedy}"


class StateDiffers(StateError):
    """A place that holds another state than the DAG describes: other columns, other aggregators, another format."""

    for_good = True


class StateUnavailable(StateError):
    """The store of a state cannot be reached; the transaction stays replayable."""

    template = (
        "State {state!r} ({where}) cannot be reached: {reason}. No value of this transaction was committed. Clear "
        "the commit task when the state is back."
    )


class StateLocked(StateUnavailable):
    """Another session holds what a state's update needs, and did not let go in time; nothing was written."""

    template = (
        "State {state!r} ({where}) is locked by another session: {reason}. No value of this transaction was committed. "
        "The next try waits again."
    )


class StateOutcomeUnknown(StateUnavailable):
    """The answer to the commit of a state's update was lost; the transaction stays replayable."""

    template = (
        "State {state!r} ({where}) cannot be reached: {reason}. The update may have been written, since only the "
        "answer to it is missing; the next try finds out. Clear the commit task when the database is back."
    )


class PortionsLost(StateUnavailable):
    """The store no longer has every portion that it confirmed to the writers of this grant; nothing was committed."""

    template = (
        "State {state!r} ({where}) has lost {lost} of {portions} confirmed portions of transaction {txid}: "
        "the database failed over to a standby that was behind. No value of this transaction was committed. The next "
        "try writes all portions again. If no try is left, clear the commit task."
    )


class FenceOutranked(StateError):
    """The fence refuses a writer that a later grant has outranked."""

    template = (
        "Write to state {state!r} refused: token {token} is outranked, the fence holds {found}. "
        "A newer try continues."
    )


class FenceForeign(StateError):
    """The fence belongs to another topology or to another life of this ledger."""

    for_good = True
    template = (
        "State {state!r} refused: its fence belongs to ledger {found}, this topology is ledger {expected}. "
        "One state serves one topology. Use another table. If the DAG was renamed: airflow tx rename OLD {topology} "
        "--why TEXT. If this ledger was lost and created again: airflow tx repair {topology} --ledger-lost"
    )


class StateBehind(StateError):
    """The store holds less than the ledger committed: it was restored from an older backup, or emptied."""

    for_good = True
    template = (
        "State {state!r} refused: the ledger committed transaction {expected} to it, its fence says {found}. The "
        "store went back. "
        "Write what it lacks again from the journal: airflow tx repair {topology} --roll-forward {state}. "
        "Or restore it, or accept what it holds: airflow tx repair {topology} --state-lost {state}"
    )


class LedgerBehind(StateError):
    """The ledger holds less than the store: ZooKeeper was restored from an older snapshot."""

    for_good = True
    template = (
        "State {state!r} refused: its fence says transaction {found}, the ledger is at {txid} and committed "
        "{expected} to it. "
        "The ledger went back. Take the place from the state: airflow tx repair {topology} --ledger-lost"
    )


class TxidBehind(StateError):
    """A value that a later transaction has already updated (Trident: current batch is behind state's batch)."""

    for_good = True
    template = (
        "Update of transaction {txid} refused: the stored value is of transaction {stored}. Commit transactions "
        "in order."
    )


class ChunkConflict(StateError):
    """Two writers of one transaction touched the same key."""

    template = (
        "State {state!r} refused: key {key} came from chunk {found} and from chunk {chunk} in transaction {txid}. "
        "Aggregate by key before writing."
    )


class OutputChanged(StateError):
    """A transactional state that holds something of a transaction got another output for it."""

    template = (
        "State {state!r} refused: transaction {txid} has output {digest}, an earlier attempt had {found} and has "
        "written some of it, which cannot be undone. Replay it with the code and data of then; or restore the state "
        "from a backup of before the transaction and clear the commit task. To take any output on a replay, "
        'use kind="opaque".'
    )


class NotTakenBack(StateError):
    """A restatement whose earlier contribution the state, or one of its aggregators, cannot take back."""

    for_good = True


class NotComparable(TxError):
    """Two states that cannot be compared."""

    template = "{first} and {second} cannot be compared: {problem}. {remedy}"


class NotComparableNow(NotComparable):
    """Two states that are at different places of their source, or that are being written; they will not be for ever."""

    template = "{first} and {second} cannot be compared now: {problem}. {remedy}"
