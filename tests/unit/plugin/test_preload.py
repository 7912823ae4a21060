"""What a component of Airflow imports before it forks: all that a task of ours needs, and nothing heavy."""

from __future__ import annotations

import json
import multiprocessing
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from airflow_tx.base import compat
from airflow_tx.base.compat import components
from airflow_tx.plugin import preload
from airflow_tx.plugin.plugin import TransactionsPlugin

CLIENT = "pyspark.sql.connect.session"
LOCAL_BUNDLE = "airflow.dag_processing.bundles.local.LocalDagBundle"
HEAVY = {"airflow.api_fastapi.app", "delta", "numpy", "pandas", "pyarrow", "pyspark"}
STARTED = """
import json, sys, threading
sys.argv = ["airflow", "scheduler"]
from airflow.jobs.job import Job
before = threading.active_count()
Job()
print("FOUND", json.dumps([sorted(sys.modules), threading.active_count() - before]))
"""
ENDS_FROM_TRIGGER = """
from datetime import timedelta
from airflow.providers.standard.sensors.time_delta import TimeDeltaSensor
from airflow.sdk import DAG
with DAG("plain", schedule=None):
    TimeDeltaSensor(task_id="wait", delta=timedelta(seconds=1), deferrable=True, end_from_trigger=True)
"""
PARSED = """
import os, sys
sys.argv = ["airflow", "dag-processor"]
from airflow.jobs.job import Job
from airflow.dag_processing.dagbag import DagBag
Job()
found = DagBag(os.environ["AIRFLOW__CORE__DAGS_FOLDER"])
print("FOUND", sorted(found.dags), found.import_errors)
"""


@pytest.mark.parametrize(
    ("version", "is_3_2", "said"),
    [
        ("3.2.2", True, "on Airflow 3.2.2: tasks are retried after every error. "),
        ("3.3.1", False, None),
        ("3.4.0", False, "tested with Airflow 3.2 and 3.3, and this is Airflow 3.4.0."),
        ("4.0.dev0", False, "tested with Airflow 3.2 and 3.3, and this is Airflow 4.0.dev0."),
    ],
)
def test_a_component_logs_in_one_line_the_features_that_its_airflow_version_lacks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, version: str, is_3_2: bool, said: str | None
) -> None:
    monkeypatch.setattr("airflow.__version__", version)
    monkeypatch.setattr(components, "is_airflow_3_2", lambda: is_3_2)
    monkeypatch.setattr(sys, "argv", ["airflow", "triggerer"])
    monkeypatch.setattr(preload, "import_ahead", lambda component, client_used: None)
    TransactionsPlugin.on_load()
    told = [record.getMessage() for record in caplog.records]
    assert told == [] if said is None else (len(told) == 1 and said in told[0])


@pytest.mark.lead
@pytest.mark.worth("what a scheduler imports ahead makes every task of every DAG cheap, or the scheduler slow")
def test_a_starting_component_imports_only_light_modules_for_tasks_and_starts_no_thread() -> None:
    done = subprocess.run([sys.executable, "-c", STARTED], capture_output=True, text=True, check=True)
    modules, threads = json.loads(done.stdout.split("FOUND ")[1])
    needed = {
        "airflow_tx.transaction.commit.committer",
        "airflow_tx.state.sql.state",
        "airflow_tx.ledger.store.zookeeper",
        "kazoo.client",
    }
    assert needed <= set(modules)
    assert HEAVY.isdisjoint(modules)
    assert {"airflow_tx.testing.airflow", "airflow_tx.operations.cli.actions"}.isdisjoint(modules)
    assert threads == 0


# Celery is not installed for tests: what its command does with the module, in the order in which it does it.
CELERY = """
class worker_init:
    receivers = []
    connect = staticmethod(receivers.append)
"""
WORKER = """
import json, sys, threading
if sys.argv[1] == "airflow":
    sys.modules["airflow.providers.celery.executors.celery_executor_utils"] = sys
from airflow_tx.plugin.celery_worker import celery_command
before = {*sys.modules}
from celery.signals import worker_init
[begin] = worker_init.receivers
begin(sender=None)
print("FOUND", json.dumps([sorted({*sys.modules} - before), threading.active_count() - 1]))
"""


@pytest.mark.lead
@pytest.mark.parametrize("application", ["airflow", "another"])
def test_a_celery_worker_of_airflow_imports_the_task_modules_and_other_workers_import_none(
    application: str, tmp_path: Path
) -> None:
    (tmp_path / "celery").mkdir()
    (tmp_path / "celery" / "__init__.py").touch()
    (tmp_path / "celery" / "signals.py").write_text(CELERY)
    done = subprocess.run(
        [sys.executable, "-c", WORKER, application],
        env={**os.environ, "PYTHONPATH": str(tmp_path), "AIRFLOW__CORE__DAGS_FOLDER": str(tmp_path)},
        capture_output=True,
        text=True,
        check=True,
    )
    modules, threads = json.loads(done.stdout.split("FOUND ")[1])
    needed = {"airflow_tx.transaction.commit.committer", "airflow_tx.state.sql.state", "kazoo.client"}
    assert needed <= set(modules) if application == "airflow" else not modules
    assert HEAVY.isdisjoint(modules)
    assert threads == 0


def test_celery_finds_the_preload_module_by_its_entry_point() -> None:
    project = (Path(__file__).parents[3] / "pyproject.toml").read_text()
    section = project.split('[project.entry-points."celery.commands"]\n')[1].splitlines()
    assert section[0] == 'airflow_tx = "airflow_tx.plugin.celery_worker:celery_command"'


# --- what is imported --------------------------------------------------------------------------------------------


class Imported:
    """The modules that would be imported, in place of their import."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def __call__(self, name: str) -> None:
        self.names.append(name)


@pytest.fixture
def imported(monkeypatch: pytest.MonkeyPatch) -> Imported:
    """Keep this process as it is, and let it be a scheduler."""
    found = Imported()
    monkeypatch.setattr(sys, "argv", ["airflow", "scheduler"])
    monkeypatch.setattr(preload, "import_module", found)
    return found


def test_an_empty_preload_option_imports_nothing(imported: Imported, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TX__PRELOAD", "")
    TransactionsPlugin.on_load()
    assert imported.names == []


@pytest.mark.parametrize("command", ["api-server", "celery", "dags", "tasks"])
def test_a_process_that_does_not_fork_tasks_imports_nothing(
    command: str, imported: Imported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "argv", ["airflow", command])
    TransactionsPlugin.on_load()
    assert imported.names == []


def test_a_worker_that_a_scheduler_has_spawned_imports_nothing(
    imported: Imported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(multiprocessing, "parent_process", object)
    TransactionsPlugin.on_load()
    assert imported.names == []


def test_a_dag_with_a_sensor_that_ends_in_its_trigger_can_be_parsed_with_the_provider(dags: Path) -> None:
    (dags / "plain.py").write_text(ENDS_FROM_TRIGGER)
    env = {**os.environ, "AIRFLOW__CORE__LOAD_EXAMPLES": "False"}  # there is a listener among them
    done = subprocess.run([sys.executable, "-c", PARSED], env=env, capture_output=True, text=True, check=True)
    assert done.stdout.split("FOUND ")[1].strip() == "['plain'] {}"


@pytest.mark.parametrize(
    ("names", "used", "client"),
    [
        (None, True, True),
        (None, False, False),
        ("auto, colorsys", True, True),
        ("airflow_tx", True, False),
        (CLIENT, False, True),
    ],
)
def test_the_spark_connect_client_is_imported_if_it_is_used_or_if_the_option_names_it(
    names: str | None, used: bool, client: bool, imported: Imported, monkeypatch: pytest.MonkeyPatch
) -> None:
    if names is not None:
        monkeypatch.setenv("AIRFLOW__TX__PRELOAD", names)
    preload.import_ahead("a test", client_used=lambda: used)
    assert (CLIENT in imported.names) is client
    assert ("airflow_tx.transaction.commit.committer" in imported.names) is (names != CLIENT)


def test_a_scheduler_does_not_search_for_uses_of_the_client_unless_the_option_is_auto(
    imported: Imported, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__PRELOAD", "airflow_tx")
    preload.import_ahead("a test", client_used=lambda: pytest.fail("it was asked"))


# --- what must not harm ------------------------------------------------------------------------------------------


def logged(caplog: pytest.LogCaptureFixture) -> str:
    """The one line that was logged."""
    (line,) = [record.getMessage() for record in caplog.records if record.name == preload.__name__]
    return line


@pytest.mark.parametrize("raised", [ImportError("No module named 'nosuch'"), SystemExit(3), GeneratorExit()])
def test_a_module_that_cannot_be_imported_is_logged_in_one_line_and_the_others_are_imported(
    raised: BaseException, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    found: list[str] = []

    def import_one(name: str) -> None:
        if name == "nosuch":
            raise raised
        found.append(name)

    monkeypatch.setattr(preload, "import_module", import_one)
    monkeypatch.setattr(sys, "argv", ["airflow", "triggerer"])
    monkeypatch.setenv("AIRFLOW__TX__PRELOAD", "nosuch, colorsys")
    TransactionsPlugin.on_load()
    assert found == ["colorsys"]
    assert "cannot preload module 'nosuch'" in logged(caplog)


def test_an_unreadable_option_is_logged_in_one_line(
    imported: Imported, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__MAX_PENDING", "many")
    TransactionsPlugin.on_load()
    assert imported.names == []
    assert "does not preload the modules of [tx] preload: [tx] max_pending" in logged(caplog)


def hang() -> bool:
    """Be a database that does not answer."""
    time.sleep(600)
    return True


def leave() -> bool:
    """Be a driver that ends the process."""
    sys.exit(0)


def fail() -> bool:
    """Be a database that is not there."""
    raise OSError("refused")


@pytest.mark.parametrize("question", [hang, leave, fail])
def test_a_database_that_fails_counts_as_no_connection_and_does_not_stop_the_scheduler(
    question: Callable[[], bool], monkeypatch: pytest.MonkeyPatch
) -> None:
    patience = 0.5 if question is hang else 300.0
    assert scheduler_finds(monkeypatch, lambda _: question(), patience=patience) is False


# --- whether the client is used ----------------------------------------------------------------------------------


def scheduler_finds(
    monkeypatch: pytest.MonkeyPatch, connection_exists: Callable[[str], bool], *, patience: float = 300.0
) -> bool:
    """What a scheduler that forks tasks finds, with these connections in its database."""
    monkeypatch.setattr(preload, "_PATIENCE", patience)
    monkeypatch.setattr(compat, "scheduler_forks_tasks", lambda: True)
    monkeypatch.setattr(compat, "connection_exists", connection_exists)
    return preload.client_used_by_scheduler()


@pytest.fixture(autouse=True)
def dags(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of DAG files, empty at first."""
    folder = tmp_path / "dags"
    (folder / "reports").mkdir(parents=True)
    monkeypatch.setenv("AIRFLOW__CORE__DAGS_FOLDER", str(folder))
    for name in [name for name in os.environ if name.startswith("AIRFLOW_CONN_")]:
        monkeypatch.delenv(name)
    return folder


@pytest.mark.parametrize(
    ("connection", "used"),
    [
        ("spark-connect://spark:15002", True),
        ('{"conn_type": "spark_connect", "host": "spark"}', True),
        ('{\n "host": "spark",\n "conn_type":"spark-connect"}', True),
        ("spark://master:7077", False),
        ('{"conn_type": "http", "extra": {"of": "spark_connect"}}', False),
    ],
)
def test_a_spark_connection_in_the_environment_counts_as_a_use_of_the_client(
    connection: str, used: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_MY_SPARK", connection)
    assert preload.client_used_by_worker() is used
    assert scheduler_finds(monkeypatch, lambda _: False) is used


def test_a_spark_connection_in_the_metadata_database_counts_as_a_use_of_the_client(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert scheduler_finds(monkeypatch, lambda conn_type: conn_type == "spark_connect")


@pytest.mark.parametrize(
    ("file", "text", "used"),
    [
        ("a.py", "from airflow_tx import SparkConnectBatchOperator", True),
        ("reports/b.py", "persistent_aggregate(x, state=s, writers='spark', spark='spark_connect_default')", True),
        ("reports/c.py", "from pyspark.sql.connect.session import SparkSession", True),
        ("a.py", "from airflow_tx import SparkBatchOperator", False),
        ("notes.txt", "SparkConnectBatchOperator", False),
    ],
)
def test_a_dag_file_that_uses_the_client_is_found_in_the_dag_folder(
    file: str, text: str, used: bool, dags: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (dags / file).write_text(text)
    (dags / "dangling.py").symlink_to(dags / "nowhere")
    assert preload.client_used_by_worker() is used
    assert scheduler_finds(monkeypatch, lambda _: False) is used


def test_a_dag_file_that_uses_the_client_is_found_in_a_bundle_with_a_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = {"name": "more", "classpath": LOCAL_BUNDLE, "kwargs": {"path": str(tmp_path / "more")}}
    downloaded = {"name": "git", "classpath": "nosuch.GitDagBundle", "kwargs": {"tracking_ref": "main"}}
    monkeypatch.setenv("AIRFLOW__DAG_PROCESSOR__DAG_BUNDLE_CONFIG_LIST", json.dumps([downloaded, bundle]))
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "a.py").write_text("SparkConnectHook()")
    assert preload.client_used_by_worker()


@pytest.mark.parametrize(
    ("command", "executor", "forks"),
    [
        ("scheduler", "LocalExecutor", True),
        pytest.param("triggerer", "LocalExecutor", False, marks=pytest.mark.long),
        pytest.param("scheduler", "airflow.executors.base_executor.BaseExecutor", False, marks=pytest.mark.long),
    ],
)
def test_only_a_scheduler_whose_executor_runs_tasks_on_its_machine_forks_tasks(
    command: str, executor: str, forks: bool
) -> None:
    asked = f"import sys; sys.argv = ['airflow', '{command}']; from airflow_tx.base import compat; "
    done = subprocess.run(
        [sys.executable, "-c", f"{asked}print('FOUND', compat.scheduler_forks_tasks())"],
        env={**os.environ, "AIRFLOW__CORE__EXECUTOR": executor},
        capture_output=True,
        text=True,
        check=True,
    )
    assert f"FOUND {forks}" in done.stdout


def test_importing_the_client_starts_no_python_thread_and_a_later_fork_has_one_thread() -> None:
    done = subprocess.run([sys.executable, "-c", FORKED], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.split("FOUND ")[1]) == [1, 1]


FORKED = """
import os, threading
import pyspark.sql.connect.session
reading, writing = os.pipe()
if not os.fork():
    os.write(writing, str(len(os.listdir("/proc/self/task"))).encode())
    os._exit(0)
print("FOUND", [threading.active_count(), int(os.read(reading, 9))])
"""
