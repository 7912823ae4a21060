"""Parse the DAG file of a topology, to get the source and the states that actions need."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.errors import ConfigError
from airflow_tx.ledger import Paths
from airflow_tx.operations.actions.action import ParsedDag
from airflow_tx.transaction import TransactionSpec, spec_of, states_of


def transactional_dag(dag_id: str, *, anywhere: bool = True, option: str = "--dag-id") -> ParsedDag:
    """Return the `Transaction` of a DAG, and the states that its committers update, by name.

    The DAG file is the one that Airflow has registered.

    :param anywhere: whether to search all files if Airflow does not know the DAG, or its file no longer defines it.
    :param option: option or argument that names the DAG, for the error.
    :raises ConfigError: no file defines the DAG, or its file cannot be parsed.
    :raises TransactionDefinitionError: the DAG has no transaction.
    """
    broken: list[str] = []
    for bag in _bags(dag_id, anywhere=anywhere):
        dag = bag.dags.get(dag_id)
        if dag is not None:
            return spec_of(dag), states_of(dag)
        broken += [
            f"{path} ({error.strip().splitlines()[-1]})"
            for path, error in bag.import_errors.items()
        ]
    trouble = (
        f" These files could not be read: {'; '.join(dict.fromkeys(broken))}." if broken else ""
    )
    remedy = (
        f"No DAG file {'defines it' if anywhere else 'that Airflow knows defines it'}.{trouble}"
    )
    if option == "--dag-id":
        remedy += " Name the topology's DAG: --dag-id DAG_ID"
    raise ConfigError(option=option, value=dag_id, remedy=remedy)


def dag_path(dag_id: str) -> Path | None:
    """Return the file of a DAG in Airflow. Return None if the DAG is unknown, or its bundle is not configured here."""
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    known = compat.dag_file(dag_id)
    bundles = DagBundlesManager()  # type: ignore[no-untyped-call]
    if known is None or known.bundle not in set(bundles.get_all_bundle_names()):
        return None
    return Path(bundles.get_bundle(known.bundle).path, known.path)


def elsewhere(spec: TransactionSpec, paths: Paths, conn_id: str) -> str | None:
    """Describe the ledger that a DAG names for its topology. Return None if it is the ledger at `paths`."""
    if (spec.paths, spec.conn_id) == (paths, conn_id):
        return None
    return f"DAG {spec.dag_id!r} keeps topology {spec.topology!r} at {spec.paths.root} of connection {spec.conn_id!r}"


def checked_dag(dag_id: str, paths: Paths, conn_id: str, *, option: str = "--dag-id") -> ParsedDag:
    """Return the `Transaction` of a DAG whose ledger is at `paths`, and the DAG's states by name.

    :param option: option or argument that names the DAG, for the error.
    :raises ConfigError: the DAG names another ledger for its topology, or has another topology.
    """
    spec, states = transactional_dag(dag_id, option=option)
    if problem := elsewhere(spec, paths, conn_id):
        remedy = f"{problem}. Nothing was changed. Repeat the command "
        remedy += (
            f"with topology {spec.topology}, --conn-id {spec.conn_id} and --root {spec.paths.root}"
        )
        raise ConfigError(option="TOPOLOGY", value=paths.topology, remedy=remedy)
    return spec, states


def _bags(dag_id: str, *, anywhere: bool) -> Iterator[Any]:
    from airflow.dag_processing.bundles.manager import DagBundlesManager

    bundles = DagBundlesManager()  # type: ignore[no-untyped-call]
    known = compat.dag_file(dag_id)
    if known is not None and known.bundle in set(bundles.get_all_bundle_names()):
        bundle = bundles.get_bundle(known.bundle)
        bundle.initialize()
        yield _bag(bundle, Path(bundle.path, known.path))
    if anywhere:
        for bundle in bundles.get_all_dag_bundles():
            bundle.initialize()
            yield _bag(bundle, bundle.path)


def _bag(bundle: Any, place: Path) -> Any:
    from airflow.dag_processing.dagbag import BundleDagBag

    return BundleDagBag(dag_folder=place, bundle_path=bundle.path, bundle_name=bundle.name)
