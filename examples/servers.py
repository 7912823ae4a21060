"""The servers of the demo and what they need to know of each other: ZooKeeper, Airflow, the state's database, Spark."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from pathlib import Path

from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.failpoints import Failpoints

ROOT = "/airflow_tx"
STATE_VARIABLE = "AIRFLOW_TX_EXAMPLE_STATE"
LAKE_VARIABLE = "AIRFLOW_TX_LAKE"
"""Where the tables of a lake are, if not in the folder of the data."""
_ROOT = Path(__file__).resolve().parents[1]

# Each application is a JVM that lives for seconds: the first compiler only, one thread for garbage, no UI, few
# partitions, and no verification of the classes in Spark's own jars. Half the CPU time of the
# defaults, which are made for hours.
_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:+UnlockDiagnosticVMOptions -XX:-BytecodeVerificationRemote"
_SPARK_DEFAULTS = f"""\
spark.driver.memory              700m
spark.driver.extraJavaOptions    {_JVM}
spark.sql.shuffle.partitions     1
spark.sql.adaptive.enabled       false
spark.sql.codegen.wholeStage     false
spark.ui.enabled                 false
spark.ui.showConsoleProgress     false
"""
_SPARK_LOG = """\
rootLogger.level = warn
rootLogger.appenderRef.stderr.ref = stderr
appender.console.type = Console
appender.console.name = stderr
appender.console.target = SYSTEM_ERR
appender.console.layout.type = PatternLayout
appender.console.layout.pattern = %d{HH:mm:ss} %p %c{1}: %m%n
"""


def database(home: Path) -> Path | str:
    """What holds the states: an SQLite file, or where STATE_VARIABLE names one, a database server."""
    return os.environ.get(STATE_VARIABLE) or home / "state.db"


def spark_environment(folder: Path) -> dict[str, str]:
    """Make `folder` with Spark's settings for many small applications; return the environment that points to it.

    Settings in SPARK_CONF_DIR of this process, such as how to reach S3, are in it as well.
    """
    folder.mkdir()
    given = Path(os.environ.get("SPARK_CONF_DIR", folder), "spark-defaults.conf")
    settings = f"{given.read_text()}\n" if given.exists() else ""
    (folder / "spark-defaults.conf").write_text(f"{settings}{_SPARK_DEFAULTS}")
    (folder / "log4j2.properties").write_text(_SPARK_LOG)
    return {"SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}


def copy_dags(files: Sequence[str], home: Path) -> Path:
    """A folder of DAG files of its own, with the Spark applications beside it: other examples would run along.

    :param files: the files of `dags/` to copy.
    :return: the folder.
    """
    folder = home / "dags"
    folder.mkdir(parents=True)
    for name in files:
        shutil.copy(_ROOT / "dags" / name, folder / name)
    shutil.copytree(_ROOT / "spark_apps", home / "spark_apps", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def make_airflow(home: Path, dags: Path, hosts: str, failpoints: Failpoints) -> LocalAirflow:
    """An Airflow, not started, whose tasks reach ZooKeeper, the state and Spark.

    :param home: the folder of everything; `flights/` in it holds the batches.
    :param hosts: of ZooKeeper.
    """
    env = {
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=hosts),
        "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(database(home))),
        "AIRFLOW_CONN_SPARK_DEFAULT": connection("spark", host="local[1]"),
        # A task may die together with its supervisor: Airflow would wait 300 s before it starts the task again.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # A scheduler finds only its own dead tasks. It takes over the tasks of a dead scheduler at this interval. The
        # default is five minutes.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
        "AIRFLOW__TX__ROOT": ROOT,
        "AIRFLOW__TX__STAGING": (home / "staging").as_uri(),
        "AIRFLOW_TX_DATA": str(home),
        **({LAKE_VARIABLE: os.environ[LAKE_VARIABLE]} if LAKE_VARIABLE in os.environ else {}),
        **spark_environment(home / "spark"),
        **failpoints.environment,
    }
    return LocalAirflow(home / "airflow", dags, env)
