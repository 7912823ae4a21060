"""For the tests of this project and of its users: real servers on this machine, faults, and waiting for conditions."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.testing.airflow import LocalAirflow as LocalAirflow
    from airflow_tx.testing.servers.spark_connect import LocalSparkConnect as LocalSparkConnect
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper as LocalZooKeeper
    from airflow_tx.testing.suites.map_suite import MapSuite as MapSuite
    from airflow_tx.testing.suites.source_suite import SourceSuite as SourceSuite
    from airflow_tx.testing.suites.state_suite import StateSuite as StateSuite

    __all__: list[str]
else:
    # Every pytest run in an environment with this package imports the plugin in this folder.
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
