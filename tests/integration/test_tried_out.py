"""Tasks that `airflow dags test` or `airflow tasks test` executes: each is refused before the ledger is asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import DAG, task
from airflow.sdk.exceptions import AirflowFailException
from airflow.sdk.execution_time.context import set_current_context

from airflow_tx.hooks.zookeeper import ZooKeeperHook
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Store
from airflow_tx.operators.commit import CommitOperator
from airflow_tx.operators.transaction import Transaction
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.transaction.processing.task import before_task
from airflow_tx.transaction.spec import spec_of
from tests.stage import begin_run
from tests.unit.bench import FakeTi, Numbers

_DATES = ("data_interval_start", "data_interval_end", "logical_date", "partition_key", "partition_date")
_NO_DATES: dict[str, Any] = {"run_type": "manual", "conf": {}, **dict.fromkeys(_DATES)}


@task
def count() -> list[int]:
    return []


def _tree(store: Store, path: str) -> Mapping[str, Any]:
    """Every record below a path, with its version."""
    children = store.children(path)
    found = {path: store.get(path)}
    for name in children.names if children else ():
        found |= _tree(store, f"{path}/{name}")
    return found


@pytest.mark.parametrize("task_id", ["begin", "count", "commit"])
@pytest.mark.parametrize(
    ("run_id", "user"), [("manual__1", "dag_test"), ("__airflow_temporary_run_1", "root")], ids=["dag", "task"]
)
def test_a_task_run_by_dags_test_or_tasks_test_is_refused_and_changes_no_ledger(
    task_id: str,
    run_id: str,
    user: str,
    zookeeper: LocalZooKeeper,
    zookeeper_root: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    connection = {"conn_type": "zookeeper", "host": zookeeper.hosts}
    monkeypatch.setenv("AIRFLOW_CONN_ZOOKEEPER_DEFAULT", json.dumps(connection))
    with DAG("tested", schedule=None) as dag:
        with Transaction(source=Numbers(), root=zookeeper_root):
            count() >> CommitOperator(task_id="commit")
    spec = spec_of(dag)
    begun = begin_run(spec, "r1")
    assert isinstance(begun, Begun)
    with ZooKeeperHook("zookeeper_default").store() as store:
        before = _tree(store, zookeeper_root)

        # On a run that has a transaction it would process, or commit, a second time.
        ti = FakeTi(task_id, "r1", xcoms={("begin", "return_value", -1): begun.to_json()})
        run = SimpleNamespace(**{**_NO_DATES, "run_id": run_id, "triggering_user_name": user})
        tried: Any = dag.get_task(task_id)
        context: Any = {"dag": dag, "ti": ti, "dag_run": run, "task": tried}
        with (
            set_current_context(context),
            pytest.raises(AirflowFailException, match="DAG 'tested' has transactions.*was not touched"),
        ):
            before_task(context) if task_id == "count" else tried.execute(context)

        assert _tree(store, zookeeper_root) == before
