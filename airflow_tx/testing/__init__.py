"""Tools to test transactional DAGs, sources and states: suites, failpoints, a local ZooKeeper and a local Airflow.

The package is also a pytest plugin: `-p airflow_tx.testing` loads its fixtures.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from airflow_tx.testing.airflow import LocalAirflow as LocalAirflow, connection as connection
    from airflow_tx.testing.crash_kit import CrashKit as CrashKit
    from airflow_tx.testing.dag_trial import trial as trial
    from airflow_tx.testing.eventually import eventually as eventually
    from airflow_tx.testing.failpoints import Failpoints as Failpoints
    from airflow_tx.testing.servers.spark_connect import LocalSparkConnect as LocalSparkConnect
    from airflow_tx.testing.servers.zookeeper import LocalZooKeeper as LocalZooKeeper
    from airflow_tx.testing.suites.map_suite import MapSuite as MapSuite
    from airflow_tx.testing.suites.source_suite import SourceSuite as SourceSuite
    from airflow_tx.testing.suites.state_suite import StateSuite as StateSuite
    from airflow_tx.testing.suites.state_together import TogetherSuite as TogetherSuite

    __all__: list[str]
else:
    # Import the function here. Its module has the same name, and would hide the function when
    # another module imports it.
    from airflow_tx.testing.eventually import eventually as eventually

    # Do not define __dir__. pytest reads every name that a plugin lists, and would import all
    # modules.
    __all__, __getattr__, _ = lazy_names(__name__, __file__)

pytest_plugins = ["airflow_tx.testing.fixtures"]
