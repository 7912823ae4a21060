"""Where the board appears in Airflow's UI: in the navigation, and as a tab of DAGs and of runs."""

from __future__ import annotations

from typing import Any
from urllib.parse import urlsplit

from airflow.configuration import conf

from airflow_tx.plugin.api.app import PREFIX
from airflow_tx.plugin.api.bundle import bundle_digest

PAGE_NAME = "Transactions"
RUN_PAGE = "run-transaction"
_DESTINATIONS = {"nav": "transactions", "dag": "dag-transactions", "dag_run": RUN_PAGE}


def base_path() -> str:
    """Return the path of `[api] base_url`, with a slash at its end."""
    return urlsplit(conf.get("api", "base_url", fallback="") or "").path.rstrip("/") + "/"


def react_apps() -> list[dict[str, Any]]:
    """Describe the pages to Airflow. They have one name, by which it finds the component of the bundle again."""
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
