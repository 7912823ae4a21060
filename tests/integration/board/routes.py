"""The routes of the board's API, and addresses that they answer."""

from __future__ import annotations


def routes() -> list[tuple[str, str]]:
    """Every route of the application, the bundle's and those that nobody has thought of here included."""
    from airflow_tx.plugin.api.app import make_app

    return [
        (method, route.path)  # type: ignore[attr-defined]
        for route in make_app().routes
        for method in sorted(route.methods - {"HEAD"})  # type: ignore[attr-defined]
    ]


def address(path: str, topology: str, txid: int) -> str:
    filled = path.replace("{topology:path}", topology).replace("{txid}", str(txid)).replace("{action}", "replay")
    filled = f"{filled}?what=1" if path.endswith("/search") else filled
    return filled.replace("{dag_id}", "the_dag").replace("{run_id:path}", "r1")
