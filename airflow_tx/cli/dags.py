"""The DAG of a topology, parsed from its file: it names the states that a repair or a skip has to ask."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.errors import ConfigError

if TYPE_CHECKING:
    from airflow.sdk import DAG

    from airflow_tx.operators.spec import TransactionSpec
    from airflow_tx.state.api import FencedState


def transactional_dag(dag_id: str) -> tuple[TransactionSpec, dict[str, FencedState]]:
    """The transaction of a DAG, and by name the states that its committers update.

    :raises ConfigError: there is no such DAG, or its file does not parse.
    :raises TransactionDefinitionError: it has no transaction.
    """
    from airflow_tx.operators.skipping import states_of
    from airflow_tx.operators.spec import spec_of

    dag = _parse(dag_id)
    return spec_of(dag), states_of(dag)


def _parse(dag_id: str) -> DAG:
    from airflow.dag_processing.bundles.manager import DagBundlesManager
    from airflow.dag_processing.dagbag import BundleDagBag

    broken: list[str] = []
    bundles = DagBundlesManager()  # type: ignore[no-untyped-call]
    for bundle in bundles.get_all_dag_bundles():
        bundle.initialize()
        bag = BundleDagBag(dag_folder=bundle.path, bundle_path=bundle.path, bundle_name=bundle.name)
        dag = bag.dags.get(dag_id)
        if dag is not None:
            return dag
        broken += [f"{path} ({error.strip().splitlines()[-1]})" for path, error in bag.import_errors.items()]
    trouble = f" These files could not be read: {'; '.join(broken)}." if broken else ""
    raise ConfigError(
        option="--dag-id",
        value=dag_id,
        remedy=f"No DAG file defines it.{trouble} Name the topology's DAG: --dag-id DAG_ID",
    )
