"""The servers of the demo and the settings that connect them: ZooKeeper, Airflow, the state's database, and Spark."""

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
"""The environment variable with the location of a lake's tables. By default, they are in the data folder."""
_ROOT = Path(__file__).resolve().parents[1]

# Each application is a JVM that lives for seconds. Use only the first compiler, one thread for
# garbage collection, no UI, few partitions, and no verification of the classes in Spark's own jars.
# This takes half the CPU time of the default settings, which are for applications that run for
# hours.
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
    """Return the database for states: the server that STATE_VARIABLE names, or else an SQLite file."""
    return os.environ.get(STATE_VARIABLE) or home / "state.db"


def spark_environment(folder: Path) -> dict[str, str]:
    """Create `folder` with Spark's settings for many small applications. Return the environment with its path.

    The folder also contains the settings in SPARK_CONF_DIR of this process, such as the address of S3.
    """
    folder.mkdir()
    given = Path(os.environ.get("SPARK_CONF_DIR", folder), "spark-defaults.conf")
    settings = f"{given.read_text()}\n" if given.exists() else ""
    (folder / "spark-defaults.conf").write_text(f"{settings}{_SPARK_DEFAULTS}")
    (folder / "log4j2.properties").write_text(_SPARK_LOG)
    return {"SPARK_CONF_DIR": str(folder), "SPARK_LOCAL_IP": "127.0.0.1"}


def copy_dags(files: Sequence[str], home: Path) -> Path:
    """Copy DAG files to a new folder, so that no other example runs, and the Spark applications to a folder next to it.

    :param files: the names of the files in `dags/` to copy.
    :return: the folder with the copied DAG files.
    """
    folder = home / "dags"
    folder.mkdir(parents=True)
    for name in files:
        shutil.copy(_ROOT / "dags" / name, folder / name)
    shutil.copytree(_ROOT / "spark_apps", home / "spark_apps", ignore=shutil.ignore_patterns("__pycache__"))
    return folder


def make_airflow(home: Path, dags: Path, hosts: str, failpoints: Failpoints) -> LocalAirflow:
    """Create, but do not start, an Airflow whose tasks can connect to ZooKeeper, the state and Spark.

    :param home: the folder of all files. The files of flights are in its subfolder `flights`.
    :param hosts: the connection string of ZooKeeper.
    """
    env = {
        "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=hosts),
        "AIRFLOW_CONN_TX_STATE": connection("sqlite", host=str(database(home))),
        "AIRFLOW_CONN_SPARK_DEFAULT": connection("spark", host="local[1]"),
        # A task may die together with its supervisor. By default, Airflow waits 300 s before it
        # restarts the task.
        "AIRFLOW__SCHEDULER__TASK_INSTANCE_HEARTBEAT_TIMEOUT": "60",
        # A scheduler only detects its own dead tasks. It takes over the tasks of a dead scheduler
        # at this interval, which is five minutes by default.
        "AIRFLOW__SCHEDULER__ORPHANED_TASKS_CHECK_INTERVAL": "15",
        "AIRFLOW__TX__ROOT": ROOT,
        "AIRFLOW__TX__STAGING": (home / "staging").as_uri(),
        "AIRFLOW_TX_DATA": str(home),
        **({LAKE_VARIABLE: os.environ[LAKE_VARIABLE]} if LAKE_VARIABLE in os.environ else {}),
        **spark_environment(home / "spark"),
        **failpoints.environment,
    }
    return LocalAirflow(home / "airflow", dags, env)
