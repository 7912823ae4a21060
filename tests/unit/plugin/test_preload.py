"""What a component of Airflow imports before it forks: all that a task of ours needs, and nothing heavy."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from airflow_tx.plugin import preload

HEAVY = {"delta", "numpy", "pandas", "pyarrow", "pyspark"}
STARTED = """
import json, sys, threading
from airflow.jobs.job import Job
before = threading.active_count()
Job()
print("FOUND", json.dumps([sorted(sys.modules), threading.active_count() - before]))
"""


def test_a_component_that_starts_has_what_a_task_needs_and_nothing_heavy_and_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True)
    modules, threads = json.loads(done.stdout.split("FOUND ")[1])
    needed = {"airflow_tx.commit.commit", "airflow_tx.state.sql.state", "airflow_tx.store.zookeeper", "kazoo.client"}
    assert needed <= set(modules)
    assert HEAVY.isdisjoint(modules)
    assert {"airflow_tx.testing.airflow", "airflow_tx.cli.actions"}.isdisjoint(modules)
    assert threads == 0


WORKER = """
import json, sys, threading
import airflow_tx.plugin.celery_worker
print("FOUND", json.dumps([sorted(sys.modules), threading.active_count() - 1]))
"""


def test_a_celery_worker_that_names_the_module_has_what_a_task_needs() -> None:
    done = subprocess.run([sys.executable, "-c", WORKER], capture_output=True, text=True, check=True)
    modules, threads = json.loads(done.stdout.split("FOUND ")[1])
    assert {"airflow_tx.commit.commit", "airflow_tx.state.sql.state", "kazoo.client"} <= set(modules)
    assert HEAVY.isdisjoint(modules)
    assert threads == 0


def test_nothing_is_imported_where_the_option_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TX__PRELOAD", "")
    monkeypatch.delitem(sys.modules, "airflow_tx.commit.commit", raising=False)
    preload.on_starting(object())
    assert "airflow_tx.commit.commit" not in sys.modules


def test_a_name_that_cannot_be_imported_is_one_line_and_the_others_are(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__PRELOAD", "nosuch_module, colorsys")
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    preload.on_starting(object())
    assert "colorsys" in sys.modules
    (line,) = [record.getMessage() for record in caplog.records if record.name == preload.__name__]
    assert line.startswith("[tx] preload names 'nosuch_module', which cannot be imported: No module named")
