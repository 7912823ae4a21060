"""What Airflow loads into each of its components for this provider."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from airflow.plugins_manager import AirflowPlugin

from airflow_tx import compat


class _MadeOnDemand:
    """A part of a plugin that is made when Airflow first asks for it: the page is no business of a worker."""

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


def _react_apps() -> list[Any]:
    from airflow_tx.plugin.pages import react_apps

    return react_apps()


def _links() -> list[Any]:
    from airflow_tx.plugin.links import TransactionLink

    return [TransactionLink()]


class TransactionsPlugin(AirflowPlugin):
    """The board of transactions in the api-server; and what components import ahead, see `plugin.preload`."""

    name = "airflow_tx"
    fastapi_apps = _MadeOnDemand(_fastapi_apps)
    react_apps = _MadeOnDemand(_react_apps)
    operator_extra_links = _MadeOnDemand(_links)

    @classmethod
    def on_load(cls, *_: Any, **__: Any) -> None:
        """Import ahead in a scheduler, a triggerer or a DAG processor.

        It is no listener: with any listener Airflow refuses each DAG that has a task with `end_from_trigger=True`.
        """
        component = compat.forking_component()
        if component is not None:
            from airflow_tx.plugin.preload import client_used_by_scheduler, import_ahead

            import_ahead(f"the {component}", client_used=client_used_by_scheduler)
