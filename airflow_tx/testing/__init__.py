"""For the tests of this project and of its users: real servers on this machine, faults, and waiting for conditions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_tx.testing.airflow import LocalAirflow
    from airflow_tx.testing.map_suite import MapSuite
    from airflow_tx.testing.mariadb import LocalMariaDB
    from airflow_tx.testing.source_suite import SourceSuite
    from airflow_tx.testing.state_suite import StateSuite
    from airflow_tx.testing.zookeeper import LocalZooKeeper

# Lazy, because every pytest run in an environment with this package imports the plugin in this folder.
_PUBLIC = {
    "LocalAirflow": "airflow_tx.testing.airflow",
    "LocalMariaDB": "airflow_tx.testing.mariadb",
    "LocalZooKeeper": "airflow_tx.testing.zookeeper",
    "MapSuite": "airflow_tx.testing.map_suite",
    "SourceSuite": "airflow_tx.testing.source_suite",
    "StateSuite": "airflow_tx.testing.state_suite",
}

__all__ = ["LocalAirflow", "LocalMariaDB", "LocalZooKeeper", "MapSuite", "SourceSuite", "StateSuite"]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
