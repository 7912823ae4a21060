"""The DAG of the topology that a command names."""

from __future__ import annotations

from argparse import Namespace
from typing import TYPE_CHECKING

from airflow_tx.actions.dags import checked_dag
from airflow_tx.cli.context import conn_id_of, paths_of

if TYPE_CHECKING:
    from airflow_tx.spec import TransactionSpec
    from airflow_tx.state.api import FencedState


def dag_of(args: Namespace, dag_id: str) -> tuple[TransactionSpec, dict[str, FencedState]]:
    """Return the transaction of the DAG of the topology, and its states by name.

    :param dag_id: unless `--dag-id` names another one.
    :raises ConfigError: the DAG keeps another topology.
    """
    return checked_dag(args.dag_id or dag_id, paths_of(args), conn_id_of(args))
