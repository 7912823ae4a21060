"""A DAG file is parsed again and again: what it imports from here loads no heavy library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import airflow_tx
from tests.imports.parsing import FIRST_PAGE, NAMES, beyond_airflow, parse


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return parse(Path(tmp_path_factory.mktemp("airflow")), *airflow_tx.__all__)


@pytest.mark.worth("what a DAG file imports is paid at every parse")
@pytest.mark.parametrize("library", ["kazoo", "pandas", "pyarrow", "pyspark"])
def test_the_package_imports_no_heavy_library_when_a_dag_file_is_parsed(loaded: dict[str, Any], library: str) -> None:
    assert not [name for name in loaded["loaded"] if name.partition(".")[0] == library]


@pytest.mark.parametrize("library", ["kazoo", "pandas", "pyspark"])
def test_a_dag_file_is_parsed_without_importing_a_heavy_library(loaded: dict[str, Any], library: str) -> None:
    assert library not in loaded["all"]


@pytest.mark.worth("what a DAG file imports is paid at every parse")
def test_the_dag_file_of_the_start_page_imports_only_a_few_modules_of_the_package(tmp_path: Path) -> None:
    assert len(beyond_airflow(parse(tmp_path, *FIRST_PAGE, "FileSource")["loaded"])) <= 83


def test_a_dag_file_that_imports_all_public_names_except_sources_loads_only_a_few_modules(tmp_path: Path) -> None:
    assert len(beyond_airflow(parse(tmp_path, *NAMES, "FileSource")["loaded"])) <= 92
