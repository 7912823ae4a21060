"""What the end of a transaction leaves to be done: a skip of the next one, and runs that yielded."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from airflow_tx.errors import TxError
from airflow_tx.operators.skipping import take_skip
from airflow_tx.operators.spec import TransactionSpec
from airflow_tx.operators.yielding import start_again
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.reading import Reader
from airflow_tx.protocol.records import Counter
from airflow_tx.protocol.step import Committed, NotYet
from airflow_tx.state.api import FencedState


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
