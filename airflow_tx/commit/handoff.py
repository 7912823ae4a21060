"""What the end of a transaction leaves to be done: a skip of the next one, and runs that yielded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_tx.commit.run_slots import start_again
from airflow_tx.errors import TxError
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import Counter, TransactionRecord
from airflow_tx.protocol.skip import refuse_stuck
from airflow_tx.protocol.step import AlreadySkipped, Committed, NotYet
from airflow_tx.spec import TransactionSpec
from airflow_tx.state.api import FencedState, Grant, StateKind


def skip_and_pass_on(
    spec: TransactionSpec, ledger: Ledger, states: Mapping[str, FencedState], ti: Any, txid: int, log: Any
) -> None:
    """Skip a transaction if it is its turn, and go on from there.

    :param states: all states of the topology, by name.
    :raises Refused, StateError: see `take_skip`.
    """
    pass_on(spec, ledger, states, ti, take_skip(ledger, txid, states, log=log), log)


def _is_turn(ledger: Ledger, txid: int) -> bool:
    """Whether it is the turn of a transaction still: a retry asks late."""
    return Reader(ledger.store).peek(Counter, ledger.paths.current).txid == txid


def pass_on(
    spec: TransactionSpec,
    ledger: Ledger,
    states: Mapping[str, FencedState],
    ti: Any,
    ended: Committed | NotYet,
    log: Any,
) -> None:
    """Go on from a transaction that is final; what goes wrong here fails nothing.

    :param states: all states of the topology, by name.
    :param ended: what its commit or skip gave.
    """
    while isinstance(ended, Committed) and ended.skip and _is_turn(ledger, ended.txid + 1):
        try:
            ended = take_skip(ledger, ended.txid + 1, states, log=log)
        except TxError as error:
            log.warning("The next transaction is not skipped now: %s", error)
            return
    if isinstance(ended, Committed) and ended.waiting:
        start_again(spec, ledger, ti, ended.waiting, log=log)


def states_of(dag: Any) -> dict[str, FencedState]:
    """By name, the states that the committers of a DAG update."""
    return {update.state.name: update.state for task in dag.tasks for update in getattr(task, "updates", ())}


def wanted(ledger: Ledger) -> int | None:
    """The txid whose turn it is, if it is to be skipped."""
    read = Reader(ledger.store)
    current = read.peek(Counter, ledger.paths.current).txid
    record = read.peek_if_any(TransactionRecord, ledger.paths.transaction(current))
    return current if record is not None and record.skip is not None else None


def undoable(states: Mapping[str, FencedState], *txids: int) -> dict[str, bool]:
    """By name, whether a state takes back what was written to it of these transactions, or has nothing of them."""
    return {name: _undoes(state) or not any(state.holds(txid) for txid in txids) for name, state in states.items()}


def _undoes(state: FencedState) -> bool:
    return state.kind is StateKind.OPAQUE and state.can_roll_back


def take_skip(ledger: Ledger, txid: int, states: Mapping[str, FencedState], *, log: Any) -> Committed | NotYet:
    """Skip a transaction, if it is its turn.

    :param states: all states of the topology, by name.
    :raises Refused: it cannot be skipped as it is: see `skipping.grant_skip` and `skipping.refuse_stuck`.
    :raises StateError: a state does not take the grant; the transaction stays open, and this can be repeated.
    """
    found = undoable(states, txid)
    answer = ledger.grant_skip(txid, found)
    if isinstance(answer, AlreadySkipped):
        return Committed(txid, here=False)
    if isinstance(answer, NotYet):
        return answer
    grant = Grant.of(ledger.paths.topology, answer.attempt, answer.grant, rows=answer.rows, position=answer.position)
    for state in states.values():
        state.raise_fence(grant)
    # A committer may have written since the first look; now none can any more.
    empty = {name: state for name, state in states.items() if found[name] and not _undoes(state)}
    refuse_stuck(txid, [name for name, state in empty.items() if state.holds(txid)], noted=True)
    for state in states.values():
        state.pass_over(grant)
    done = ledger.commit_skip(grant.token, states=list(states))
    log.info("Transaction %s of %s is skipped", answer.attempt, ledger.paths.topology)
    return done
