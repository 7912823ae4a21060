"""For the tests of this project and of its users: real servers on this machine, faults, and waiting for conditions."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from airflow_tx.testing.airflow import LocalAirflow
    from airflow_tx.testing.servers.kafka import LocalKafka
    from airflow_tx.testing.servers.mariadb import LocalMariaDB
    from airflow_tx.testing.servers.memcached import LocalMemcached
    from airflow_tx.testing.servers.postgres import LocalPostgres
    from airflow_tx.testing.servers.redis import LocalRedis
    from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
    from airflow_tx.testing.suites.map_suite import MapSuite
    from airflow_tx.testing.suites.source_suite import SourceSuite
    from airflow_tx.testing.suites.state_suite import StateSuite
    from airflow_tx.testing.suites.store_suite import StoreSuite

# Lazy, because every pytest run in an environment with this package imports the plugin in this folder.
_PUBLIC = {
    "LocalAirflow": "airflow_tx.testing.airflow",
    "LocalKafka": "airflow_tx.testing.servers.kafka",
    "LocalMariaDB": "airflow_tx.testing.servers.mariadb",
    "LocalMemcached": "airflow_tx.testing.servers.memcached",
    "LocalPostgres": "airflow_tx.testing.servers.postgres",
    "LocalRedis": "airflow_tx.testing.servers.redis",
    "LocalSparkConnect": "airflow_tx.testing.servers.spark_connect",
    "LocalZooKeeper": "airflow_tx.testing.servers.zookeeper",
    "MapSuite": "airflow_tx.testing.suites.map_suite",
    "SourceSuite": "airflow_tx.testing.suites.source_suite",
    "StateSuite": "airflow_tx.testing.suites.state_suite",
    "StoreSuite": "airflow_tx.testing.suites.store_suite",
}

__all__ = [
    "LocalAirflow",
    "LocalKafka",
    "LocalMariaDB",
    "LocalMemcached",
    "LocalPostgres",
    "LocalRedis",
    "LocalSparkConnect",
    "LocalZooKeeper",
    "MapSuite",
    "SourceSuite",
    "StateSuite",
    "StoreSuite",
]


def __getattr__(name: str) -> Any:
    if name in _PUBLIC:
        return getattr(import_module(_PUBLIC[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
