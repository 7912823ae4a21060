"""Where pyspark is not installed with its jars, whatever needs them says in one line how to install it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_tx.base.errors import TxError
from airflow_tx.spark.submit import driver_environment
from airflow_tx.testing.servers import spark_connect, zookeeper

WITH_JARS = "pip install 'airflow-provider-tx[pyspark]'"


@pytest.fixture(autouse=True)
def no_jars(monkeypatch: pytest.MonkeyPatch) -> None:
    """As with pyspark-client alone, which has the modules of pyspark and neither its jars nor its programs."""
    for module in (spark_connect, zookeeper):
        monkeypatch.setattr(module, "pyspark_jars", lambda pattern: [])


def _start_zookeeper(folder: Path) -> None:
    zookeeper.LocalZooKeeper(folder).start()


def _run_zookeeper(folder: Path) -> None:
    zookeeper.main(["--data", str(folder), "--port", "1"])


def _start_connect(folder: Path) -> None:
    spark_connect.LocalSparkConnect(folder).start()


def _submit(folder: Path) -> None:
    driver_environment({"PATH": str(folder)}, dag_file="/dags/a.py", binary="spark9-submit", local=True)


@pytest.mark.parametrize("needing", [_start_zookeeper, _run_zookeeper, _start_connect, _submit])
def test_the_error_of_a_feature_that_needs_the_spark_jars_says_in_one_line_what_to_install(
    needing: Callable[[Path], None], tmp_path: Path
) -> None:
    with pytest.raises((TxError, SystemExit)) as caught:
        needing(tmp_path)
    assert WITH_JARS in str(caught.value)
    assert "\n" not in str(caught.value)
