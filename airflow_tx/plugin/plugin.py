"""The Airflow plugin of this provider, which every Airflow component loads."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any
from urllib.parse import quote, urlsplit

from airflow.configuration import conf
from airflow.plugins_manager import AirflowPlugin
from airflow.sdk import BaseOperatorLink

from airflow_tx.base import compat

# --- plugin -------------------------------------------------------------------------------------------------------


class _MadeOnDemand:
    """A part of the plugin that is created when Airflow first reads it. Workers need no page, so they create none."""

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self._make = make
        self._made: list[Any] | None = None

    def __get__(self, instance: object, owner: type) -> list[Any]:
        if self._made is None:
            self._made = self._make()
        return self._made


def _fastapi_apps() -> list[Any]:
    from airflow_tx.plugin.api.app import PREFIX, make_app

    return [{"app": make_app(), "url_prefix": PREFIX, "name": "Transactions"}]


class TransactionsPlugin(AirflowPlugin):
    """Serves the Transactions page in the api-server, and imports modules before the fork. See `plugin.preload`."""

    name = "airflow_tx"
    fastapi_apps = _MadeOnDemand(_fastapi_apps)
    react_apps = _MadeOnDemand(lambda: react_apps())
    operator_extra_links = _MadeOnDemand(lambda: [TransactionLink()])

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Import modules before the fork in a scheduler, triggerer or DAG processor. Log a warning for an old Airflow.

        The plugin has no listener. With any listener, Airflow refuses each DAG that has a task with
        `end_from_trigger=True`.
        """
        component = compat.forking_component()
        if component is not None:
            if note := compat.version_note():
                logging.getLogger(__name__).warning(note)
            from airflow_tx.plugin.preload import client_used_by_scheduler, import_ahead

            import_ahead(f"the {component}", client_used=client_used_by_scheduler)


# --- pages --------------------------------------------------------------------------------------------------------
# The places of the page in Airflow's UI: the navigation bar, and a tab of each DAG and of each run.


PAGE_NAME = "Transactions"
RUN_PAGE = "run-transaction"
_DESTINATIONS = {"nav": "transactions", "dag": "dag-transactions", "dag_run": RUN_PAGE}


def base_path() -> str:
    """Return the path of `[api] base_url`, with a slash at its end."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + "/"


def react_apps() -> list[dict[str, Any]]:
    """Return the pages for Airflow. They share one name, by which Airflow finds the component in the bundle."""
    from airflow_tx.plugin.api.app import PREFIX, bundle_digest

    url = f"{base_path()}{PREFIX.lstrip('/')}/board/main.umd.cjs?v={bundle_digest()}"
    return [
        {
            "name": PAGE_NAME,
            "bundle_url": url,
            "destination": destination,
            "url_route": route,
            "category": "browse",
        }
        if destination == "nav"
        else {
            "name": PAGE_NAME,
            "bundle_url": url,
            "destination": destination,
            "url_route": route,
        }
        for destination, route in _DESTINATIONS.items()
    ]


# --- links --------------------------------------------------------------------------------------------------------
# The link from a task of this provider to the transaction of the task on the Transactions page.


# Airflow compares operators by module and name. Importing the operators would take a second,
# because of the Spark provider.
_OPERATORS = (
    ("airflow_tx.coordinator.dag", "CoordinateOperator"),
    ("airflow_tx.operators.commit", "BeginTransactionOperator"),
    ("airflow_tx.operators.commit", "CommitOperator"),
    ("airflow_tx.operators.commit", "AcquireTurnOperator"),
    ("airflow_tx.operators.commit", "MarkCommittedOperator"),
    ("airflow_tx.operators.spark_connect", "SparkConnectBatchOperator"),
    ("airflow_tx.operators.spark", "SparkBatchOperator"),
)
# A `@task` in a transaction. The `@task` of any other DAG has another module.
_TASKS = tuple(("airflow_tx.operators.transaction", name) for name in compat.DECORATED_TASKS)


def _named(module: str, name: str) -> type:
    return type(name, (), {"__module__": module})


class TransactionLink(BaseOperatorLink):
    """A link to the Transactions tab of the run.

    The api-server creates the link, so it appears before the task has ended.
    """

    name = "Transaction"

    operators = [_named(*each) for each in (*_OPERATORS, *_TASKS)]  # noqa: RUF012 - the type is Airflow's

    def get_link(self, operator: Any, *, ti_key: Any) -> str:
        dag = quote(ti_key.dag_id, safe="")
        run = quote(ti_key.run_id, safe="")
        return f"{base_path()}dags/{dag}/runs/{run}/plugin/{RUN_PAGE}"
