"""The end of a transaction: what is due after it, and how one that a person wants skipped comes to its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow.sdk.exceptions import AirflowRuntimeError

from airflow_tx import compat
from airflow_tx.commit.run_slots import Runs, start_yielded
from airflow_tx.config import Settings
from airflow_tx.errors import TxError
from airflow_tx.protocol import skip
from airflow_tx.protocol.answers import AlreadySkipped, Committed, NotYet
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import History
from airflow_tx.protocol.replay import LIVE_RUN_STATES
from airflow_tx.protocol.skip import refuse_stuck
from airflow_tx.spec import TransactionSpec
from airflow_tx.state.api import FencedState, StateKind

# Seconds that a run which has just yielded gets to end.
_PATIENCE = 4


def pass_on(
    ledger: Ledger, states: Mapping[str, FencedState], runs: Runs, ended: Committed | NotYet, *, log: Any
) -> None:
    """Go on from a transaction that is final: take skips that are due, start runs that yielded. It fails nothing.

    :param states: all states of the topology, by name.
    :param ended: what its commit or skip gave.
    """
    while isinstance(ended, Committed) and ended.skip and ledger.turn().current == ended.txid + 1:
        try:
            ended = take_skip(ledger, ended.txid + 1, states, log=log)
        except TxError as error:
            log.warning("The next transaction is not skipped now: %s", error)
            return
    if isinstance(ended, Committed) and ended.waiting:
        try:
            for run_id, _ in start_yielded(ledger, runs, ended.waiting, patience=_PATIENCE):
                log.info("Run %s had yielded, and is started again", run_id)
        except (TxError, AirflowRuntimeError) as error:
            log.warning("Runs that yielded (%s) are not started again now: %s", ", ".join(ended.waiting), error)


def clean_up(spec: TransactionSpec, ledger: Ledger, ti: Any, txid: int, *, log: Any) -> None:
    """Remove what no task needs any more once a transaction is committed. It fails nothing."""

    def has_live_run(txid: int) -> bool:
        history = Reader(ledger.store).peek_if_any(History, spec.paths.history(txid))
        return history is not None and compat.run_state(ti, spec.dag_id, history.run_id) in LIVE_RUN_STATES

    try:
        area = spec.staging()
        # Its own run lives on: a task beside or after the block may not have read yet.
        read = area.sweep(spec.topology, txid, has_live_run)
        area.kept.sweep(spec.topology, txid + 1 - Settings.load().keep_new_values)
        spec.source.cleanup_before(min([*read, txid]))
    except Exception as error:  # noqa: BLE001
        log.warning("Transaction %s is committed, but was not cleaned up: %s", txid, error)


# --- skips -------------------------------------------------------------------------------------------------------


def states_of(dag: Any) -> dict[str, FencedState]:
    """Return the states that the committers of a DAG update, by name."""
    return {update.state.name: update.state for task in dag.tasks for update in getattr(task, "updates", ())}


def due_skip(ledger: Ledger) -> int | None:
    """Return the txid whose turn it is, if it is to be skipped."""
    turn = ledger.turn()
    return turn.current if turn.record is not None and turn.record.skip is not None else None


def undoable(states: Mapping[str, FencedState], *txids: int) -> dict[str, bool]:
    """Find out by name whether a state can undo what it has of these transactions, or has nothing of them."""
    return {name: _undoes(state) or not any(state.holds(txid) for txid in txids) for name, state in states.items()}


def _undoes(state: FencedState) -> bool:
    return state.kind is StateKind.OPAQUE and state.can_roll_back


def take_skip(ledger: Ledger, txid: int, states: Mapping[str, FencedState], *, log: Any) -> Committed | NotYet:
    """Skip a transaction, if it is its turn.

    :param states: all states of the topology, by name.
    :raises Refused: it cannot be skipped as it is.
    :raises StateError: a state does not take the grant; the transaction stays open, and this can be repeated.
    """
    found = undoable(states, txid)
    answer = ledger.run(skip.grant_skip, txid, found)
    if isinstance(answer, AlreadySkipped):
        return Committed(txid, here=False)
    if isinstance(answer, NotYet):
        return answer
    grant = answer.grant
    for state in states.values():
        state.raise_fence(grant)
    # A committer may have written since the first look; now none can any more.
    empty = {name: state for name, state in states.items() if found[name] and not _undoes(state)}
    refuse_stuck(txid, [name for name, state in empty.items() if state.holds(txid)], noted=True)
    for state in states.values():
        state.pass_over(grant)
    done = ledger.run(skip.commit_skip, grant.token, states=list(states))
    log.info("Transaction %s of %s is skipped", grant.attempt, ledger.paths.topology)
    return done
