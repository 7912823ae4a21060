"""What `begin` asks: the ledger for a transaction, and, if the ledger wants to know, the source and Airflow."""

from __future__ import annotations

import secrets
from typing import Any

from airflow_tx import compat
from airflow_tx.errors import SourceError, TxError
from airflow_tx.operators.spec import TransactionSpec
from airflow_tx.protocol.beginning import BeginRequest, TopologyRequest
from airflow_tx.protocol.records import dumps
from airflow_tx.protocol.step import AlreadyCommitted, Begun, NoData, WindowFull
from airflow_tx.sources.api import TransactionalSource, as_batch


def ask(spec: TransactionSpec, ti: Any, *, retry: bool) -> Begun | NoData | WindowFull | AlreadyCommitted:
    """Ask for the transaction of a run.

    :param ti: the task instance of `begin`.
    :param retry: whether Airflow retried it, rather than somebody cleared it.
    :raises Refused: see `Ledger.begin`.
    :raises SourceError: the source failed; nothing was allocated.
    """
    with spec.store() as store:
        return spec.ledger(store).begin(
            make_request(spec, ti, retry=retry),
            decide=lambda txid, position: decide(spec.source, txid, position),
            run_state=lambda run_id: compat.run_state(ti, spec.dag_id, run_id),
        )


def make_request(spec: TransactionSpec, ti: Any, *, retry: bool) -> BeginRequest:
    """What the run asks for."""
    return BeginRequest(
        topology=TopologyRequest(spec.dag_id, spec.source.kind.value, spec.window),
        key=ti.run_id,
        run_id=ti.run_id,
        task_try=str(ti.id),
        retry=retry,
        tasks={task: f"{secrets.randbits(64) or 1:016x}" for task in spec.tasks},
    )


def decide(source: TransactionalSource, txid: int, position: Any) -> tuple[Any, Any] | None:
    """Ask the source for the rows of a transaction; None if it has none. Whatever goes wrong there is one line.

    :param position: where the transaction before it ended.
    :raises SourceError: the source failed, or what it said is no plain JSON.
    """
    try:
        batch = as_batch(source.initialize_transaction(txid, position)) if source.is_ready() else None
        if batch is not None:
            dumps([batch.rows, batch.position])
    except TxError:
        raise
    except Exception as error:
        raise SourceError(
            source=type(source).__name__,
            problem=f"transaction {txid} after position {dumps(position)[:200]}: {type(error).__name__}: {error}",
            remedy="Nothing was allocated; correct the source, then clear this task.",
        ) from error
    return None if batch is None else (batch.rows, batch.position)
