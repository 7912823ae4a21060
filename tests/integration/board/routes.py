"""The routes of the board's API, and addresses that they answer."""

from __future__ import annotations

from typing import Any

import fastapi.routing


def routes_of(app: Any) -> list[Any]:
    """The routes of an application, each by itself: FastAPI 0.163 keeps those of an included router together."""
    each_of = getattr(fastapi.routing, "iter_route_contexts", list)
    return list(each_of(app.routes))


def routes() -> list[tuple[str, str]]:
    """Every route of the application, the bundle's and those that nobody has thought of here included."""
    from airflow_tx.plugin.api.app import make_app

    return [(method, route.path) for route in routes_of(make_app()) for method in sorted(route.methods - {"HEAD"})]


def address(path: str, topology: str, txid: int) -> str:
    filled = path.replace("{topology:path}", topology).replace("{txid}", str(txid)).replace("{action}", "replay")
    filled = f"{filled}?what=1" if path.endswith("/search") else filled
    return filled.replace("{dag_id}", "the_dag").replace("{run_id:path}", "r1")
