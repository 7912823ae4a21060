"""`airflow tx accept-loss`: rows that a source has lost are given up, on the record, so that it goes on behind them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from airflow_tx.cli import render
from airflow_tx.cli.context import action, audit_of, check_why, confirm, conn_id_of, ledger_on, paths_of, store_of
from airflow_tx.errors import ConfigError, LossRefused, SourceError, TxError
from airflow_tx.protocol.loss import shortened
from airflow_tx.protocol.records import digest
from airflow_tx.protocol.view import topology_record

if TYPE_CHECKING:
    from airflow_tx.protocol.batch import Loss
    from airflow_tx.sources.api import Source


@action
def accept_loss(args: Namespace) -> None:
    """`airflow tx accept-loss TOPOLOGY --why TEXT`."""
    check_why(args, f"accept-loss {args.topology}")
    with store_of(args) as store:
        source = _source(args, args.dag_id or topology_record(store, paths_of(args)).dag_id)
        ledger = ledger_on(store, args)
        losses = losses_of(source, ledger.deciding_from())
        if not losses:
            raise LossRefused(topology=args.topology)
        what = "; ".join(shortened([loss.description for loss in losses]))
        confirm(args, f"Let topology {args.topology} go on without these rows, in no transaction ever: {what}.")
        ledger.accept_loss(losses, audit_of(args))
    render.print_rows([render.loss(loss) for loss in losses], args.output)


def losses_of(source: Source, positions: Iterable[Any]) -> list[Loss]:
    """Collect what is lost behind any of these positions, each loss once.

    :raises SourceError: the source cannot be asked.
    """
    found: dict[str, Loss] = {}
    try:
        for position in positions:
            found |= {digest([loss.partition, loss.position]): loss for loss in source.losses(position)}
    except TxError:
        raise
    except Exception as error:
        problem = f"it cannot tell what it has lost: {type(error).__name__}: {error}"
        remedy = "Nothing was changed; let it be reached, and repeat."
        raise SourceError(source=repr(source), problem=problem, remedy=remedy) from error
    finally:
        source.close()
    return list(found.values())


def _source(args: Namespace, dag_id: str) -> Source:
    from airflow_tx.cli.dags import elsewhere, transactional_dag

    spec, _ = transactional_dag(dag_id)
    if problem := elsewhere(spec, paths_of(args), conn_id_of(args)):
        remedy = f"Nothing was changed. Repeat: airflow tx accept-loss {spec.topology} --conn-id {spec.conn_id} "
        remedy += f"--root {spec.paths.root} --why TEXT"
        raise ConfigError(option="TOPOLOGY", value=args.topology, remedy=f"{problem}. {remedy}")
    return spec.source
