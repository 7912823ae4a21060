"""The link from a task of ours to its transaction on the board."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from airflow.sdk import BaseOperatorLink

from airflow_tx import compat
from airflow_tx.plugin.pages import RUN_PAGE, base_path

# As Airflow compares them, by module and name: to import them costs a second, for the Spark provider.
_OPERATORS = (
    ("airflow_tx.coordinator.operator", "CoordinateOperator"),
    ("airflow_tx.operators.begin", "BeginTransactionOperator"),
    ("airflow_tx.operators.commit", "CommitOperator"),
    ("airflow_tx.operators.commit_phase", "AcquireTurnOperator"),
    ("airflow_tx.operators.commit_phase", "MarkCommittedOperator"),
    ("airflow_tx.operators.spark_connect", "SparkConnectBatchOperator"),
    ("airflow_tx.operators.spark_submit", "SparkBatchOperator"),
)
# A `@task` within a transaction. The `@task` of other DAGs is in another module.
_TASKS = tuple(("airflow_tx.topology.transaction", name) for name in compat.DECORATED_TASKS)


def _named(module: str, name: str) -> type:
    return type(name, (), {"__module__": module})


class TransactionLink(BaseOperatorLink):
    """Leads to the tab of the run. The api-server makes it, so that a task that has not ended has it, too."""

    name = "Transaction"

    operators = [_named(*each) for each in (*_OPERATORS, *_TASKS)]  # noqa: RUF012 - the type is Airflow's

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        dag = quote(ti_key.dag_id, safe="")
        run = quote(ti_key.run_id, safe="")
        return f"{base_path()}dags/{dag}/runs/{run}/plugin/{RUN_PAGE}"
