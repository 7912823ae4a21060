"""A process that loads what a DAG file takes of ours."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import airflow_tx

ROOT = Path(__file__).resolve().parents[2]

# What every DAG file with a SparkSubmitOperator has loaded anyway, then what it takes of ours: one source among it.
PARSE = """
import json, sys, time

from airflow.sdk import DAG, task
from airflow.providers.apache.spark.operators.spark_submit import SparkSubmitOperator

before = set(sys.modules)
start = time.process_time()
import airflow_tx
for name in sys.argv[1:]:
    getattr(airflow_tx, name)
from airflow_tx.state import SqlState, Sum
seconds = time.process_time() - start
print(json.dumps({"seconds": seconds, "loaded": sorted(set(sys.modules) - before), "all": sorted(sys.modules)}))
"""

BASES = {"Source", "TransactionalSource", "PartitionedTransactionalSource", "OpaquePartitionedTransactionalSource"}
SOURCES = sorted(name for name in airflow_tx.__all__ if name.endswith("Source") and name not in BASES)
NAMES = sorted(set(airflow_tx.__all__) - set(SOURCES))
FIRST_PAGE = ("CommitOperator", "Transaction", "coordinator_dag", "current_batch", "persistent_aggregate")
"""The names of a first DAG file, besides its source."""


def parse(home: Path, *names: str) -> dict[str, Any]:
    """What a new process loads, and in how many seconds of processor time, that takes these names of `airflow_tx`."""
    environment = {"AIRFLOW_HOME": str(home), "PATH": "/usr/bin:/bin", "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}
    command = [sys.executable, "-c", PARSE, *names]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=environment)
    assert done.returncode == 0, done.stderr
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


def beyond_airflow(loaded: Iterable[str]) -> list[str]:
    """Leave out the modules of Airflow itself."""
    return [name for name in loaded if name.partition(".")[0] != "airflow"]
