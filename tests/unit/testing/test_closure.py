"""A change meets the tests whose modules import what has changed, and no others."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.closure import Sources

ROOT = Path(__file__).parents[3]
LAZY = """
from typing import TYPE_CHECKING
from airflow_tx.base.lazy_names import lazy_names
if TYPE_CHECKING:
    from airflow_tx.sources.kafka import KafkaSource as KafkaSource
    from airflow_tx.sources.files import FileSource as FileSource
else:
    __all__, __getattr__, __dir__ = lazy_names(__name__, __file__)
"""
TYPES = """
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import airflow_tx.sources.lag
"""
FILES = {
    "airflow_tx/__init__.py": LAZY,
    "airflow_tx/base/lazy_names.py": "",
    "airflow_tx/sources/kafka.py": "def read():\n    from airflow_tx.sources import lag",
    "airflow_tx/sources/files.py": TYPES,
    "airflow_tx/sources/lag.py": "",
    "tests/conftest.py": "import airflow_tx.base.lazy_names",
    "tests/unit/test_kafka.py": "from airflow_tx import KafkaSource",
    "tests/unit/test_files.py": "from airflow_tx import FileSource",
    "tests/airflow/test_days.py": "def test_a_day():\n    run('daily')",
    "tests/airflow/test_stack.py": "def test_all():\n    pass",
    "tests/airflow/dags/calendar.py": "from airflow_tx import FileSource\nwith DAG('daily', schedule=None):\n    pass",
    "tests/airflow/dags/topics.py": "from airflow_tx import KafkaSource",
}
Met = Callable[[str], list[str]]


@pytest.fixture
def met(tmp_path: Path) -> Met:
    """Return the tests that a change of one file meets, by their names, the nearest first."""
    for path, text in FILES.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)

    def find(changed: str) -> list[str]:
        near = Sources(tmp_path).distances([changed])
        names = [Path(path).stem for path in sorted(near, key=lambda path: (near[path], path))]
        return [name for name in names if name.startswith("test_")]

    return find


def test_a_change_of_a_module_does_not_select_tests_of_another_lazy_name_of_its_package(met: Met) -> None:
    assert "test_kafka" in met("airflow_tx/sources/kafka.py")
    assert "test_files" not in met("airflow_tx/sources/kafka.py")


def test_an_import_in_a_function_selects_tests_and_an_import_for_a_type_checker_does_not(met: Met) -> None:
    assert "test_kafka" in met("airflow_tx/sources/lag.py")
    assert "test_files" not in met("airflow_tx/sources/lag.py")


def test_a_test_that_names_a_dag_imports_the_file_of_the_dag(met: Met) -> None:
    assert "test_days" in met("airflow_tx/sources/files.py")
    assert "test_days" not in met("airflow_tx/sources/kafka.py")


def test_a_test_that_names_no_dag_imports_every_dag_in_its_folder(met: Met) -> None:
    assert "test_stack" in met("tests/airflow/dags/topics.py")


def test_every_test_imports_the_fixtures_of_its_folders(met: Met) -> None:
    assert set(met("airflow_tx/base/lazy_names.py")) == set(met("tests/conftest.py"))
    assert set(met("tests/conftest.py")) == {"test_kafka", "test_files", "test_days", "test_stack"}


def test_the_tests_nearest_to_a_change_come_first(met: Met) -> None:
    assert met("airflow_tx/sources/kafka.py") == ["test_kafka", "test_stack"]


def test_a_change_outside_of_source_files_selects_no_test(met: Met) -> None:
    assert met("docs/index.md") == []


def test_a_change_of_begin_selects_each_test_with_a_running_airflow() -> None:
    near = Sources(ROOT).distances(["airflow_tx/transaction/processing/begin.py"])
    files = {str(file.relative_to(ROOT)) for file in (ROOT / "tests/airflow").glob("test_*.py")}
    assert {"tests/airflow/test_clear.py", "tests/airflow/test_pipeline.py"} <= files & near.keys()
