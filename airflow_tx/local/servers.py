"""The servers of the demo and what they need to know of each other: ZooKeeper, Airflow, the state's database, Spark."""

from __future__ import annotations

from pathlib import Path

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.failpoints import Failpoints

ROOT = "/airflow_tx"

# Each application is a JVM that lives for seconds: the first compiler only, one thread for garbage, no UI, and no more
# partitions than the two cores of a small machine can use.
_SPARK_DEFAULTS = """\
spark.driver.memory              700m
spark.driver.extraJavaOptions    -XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Xshare:auto
spark.sql.shuffle.partitions     2
spark.default.parallelism        2
spark.ui.enabled                 false
spark.ui.showConsoleProgress     false
spark.sql.adaptive.enabled       false
"""


def database(home: Path) -> Path:
    """The SQLite file that holds the states."""
    return home / "state.db"


def make_airflow(home: Path, dags: Path, hosts: str, failpoints: Failpoints) -> LocalAirflow:
    """An Airflow, not started, whose tasks reach ZooKeeper, the state and Spark.

    :param home: the folder of everything; `flights/` in it holds the batches.
    :param hosts: of ZooKeeper.
    """
    spark = home / "spark"
    spark.mkdir()
    (spark / "spark-defaults.conf").write_text(_SPARK_DEFAULTS)
    env = {
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=hosts),
        "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(database(home))),
        "AIRFLOW_CONN_SPARK_DEFAULT": connection("spark", host="local[1]"),
        "AIRFLOW__TX__ROOT": ROOT,
        "AIRFLOW__TX__STAGING": (home / "staging").as_uri(),
        "AIRFLOW_TX_DATA": str(home),
        "SPARK_CONF_DIR": str(spark),
        "SPARK_LOCAL_IP": "127.0.0.1",
        **failpoints.environment,
    }
    return LocalAirflow(home / "airflow", dags, env)
