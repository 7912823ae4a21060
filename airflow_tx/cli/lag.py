"""The lag of topologies, for the commands that show them: their sources are asked, as their DAGs name them."""

from __future__ import annotations

from argparse import Namespace
from collections.abc import Iterable

from airflow_tx.cli.context import conn_id_of, ledger_on
from airflow_tx.errors import TxError
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.view import TopologyView
from airflow_tx.sources.lag import Asked, Lag, LagUnknown, lags

ASK_FOR = 10.0
"""Seconds that a person waits for the answers of all sources at most."""


def lags_of(args: Namespace, store: Store, views: Iterable[TopologyView]) -> dict[str, Lag | LagUnknown]:
    """Ask for the lag of every topology, or why it is unknown."""
    asked: dict[str, Asked] = {}
    found: dict[str, Lag | LagUnknown] = {}
    for view in views:
        try:
            asked[view.name] = _asked(args, store, view)
        except TxError as error:
            found[view.name] = LagUnknown(topology=view.name, reason=str(error))
        except Exception as error:  # noqa: BLE001  # the DAG file is anybody's
            found[view.name] = LagUnknown(topology=view.name, reason=f"{type(error).__name__}: {error}")
    return {**found, **lags(asked, seconds=ASK_FOR)}


def _asked(args: Namespace, store: Store, view: TopologyView) -> Asked:
    from airflow_tx.cli.dags import elsewhere, transactional_dag

    spec, _ = transactional_dag(view.record.dag_id, anywhere=False)
    ledger = ledger_on(store, args, view.name)
    if reason := elsewhere(spec, ledger.paths, conn_id_of(args)):
        raise LagUnknown(topology=view.name, reason=reason)
    return spec.source, ledger.position()
