"""What the package declares is what it imports: no more is installed, and nothing is missing."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.metadata import packages_distributions
from pathlib import Path
from typing import Any

import pytest

tomllib: Any = import_module("tomllib" if sys.version_info >= (3, 11) else "tomli")
ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
# What one of our dependencies needs itself, and of which we use what it uses.
PART_OF = {
    "apache-airflow-core": "apache-airflow",
    "apache-airflow-task-sdk": "apache-airflow",
    "apache-airflow-providers-common-compat": "apache-airflow",
    "apache-airflow-providers-common-sql": "apache-airflow",
    "attrs": "apache-airflow",
    "fastapi": "apache-airflow",
    "fsspec": "apache-airflow",
    "grpcio": "pyspark-client",
    "httpx": "apache-airflow",
    "msgspec": "apache-airflow",
    "pendulum": "apache-airflow",
    "pydantic": "apache-airflow",
    "pydantic-core": "apache-airflow",
    "rich": "apache-airflow",
    "starlette": "apache-airflow",
    "structlog": "apache-airflow",
    "tabulate": "apache-airflow",
    "typing-extensions": "apache-airflow",
}
LOADED_BY = {"celery", "click", "openlineage"}
"""Imported where only these libraries themselves call."""


def _names(requirements: list[str]) -> set[str]:
    return {re.split(r"[\[<>=!~; ]", each)[0] for each in requirements}


DEFAULT = _names(PROJECT["dependencies"])
EXTRA = {name for each in PROJECT["optional-dependencies"].values() for name in _names(each)}


def _run(node: ast.AST) -> Iterator[ast.AST]:
    """Walk through what Python runs, without the blocks for the type checker."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test) == "TYPE_CHECKING":
            yield from _run(ast.Module(child.orelse, []))
        else:
            yield child
            yield from _run(child)


def _imported() -> set[str]:
    """Give the third-party modules that are imported anywhere, but for the type checker alone."""
    own = {"airflow_tx", *LOADED_BY, *sys.stdlib_module_names}
    found: set[str] = set()
    for file in (ROOT / "airflow_tx").rglob("*.py"):
        for node in _run(ast.parse(file.read_text())):
            if isinstance(node, ast.Import):
                found |= {each.name for each in node.names}
            elif isinstance(node, ast.ImportFrom):
                found.add(node.module or "")
            elif isinstance(node, ast.Call) and ast.unparse(node.func) == "LazyModule":
                found.add(ast.literal_eval(node.args[0]))
    return {name for name in found if name.partition(".")[0] not in own}


@pytest.fixture(scope="module")
def needed() -> dict[str, set[str]]:
    """Give the distributions of each module that is imported."""
    known = packages_distributions()
    found: dict[str, set[str]] = {}
    for name in _imported():
        if name.startswith("airflow."):
            provider = re.match(r"airflow\.providers\.(apache\.spark|standard)", name)
            found[name] = {
                f"apache-airflow-providers-{provider[1].replace('.', '-')}" if provider else "apache-airflow"
            }
        else:
            owners = {each.lower().replace("_", "-") for each in known[name.partition(".")[0]]}
            found[name] = {PART_OF.get(each, each) for each in owners}
    return found


def test_every_imported_library_is_declared_as_a_dependency(needed: dict[str, set[str]]) -> None:
    assert {name: owners for name, owners in needed.items() if not owners & (DEFAULT | EXTRA)} == {}


def test_every_default_dependency_is_imported(needed: dict[str, set[str]]) -> None:
    assert DEFAULT - {name for owners in needed.values() for name in owners} == set()


def test_pyspark_with_its_jars_is_an_optional_dependency() -> None:
    assert "pyspark" not in DEFAULT
    assert "pyspark" in _names(PROJECT["optional-dependencies"]["pyspark"])


def test_all_spark_packages_of_the_extra_have_the_same_version_bounds() -> None:
    bounds = {re.sub(r"^[a-z-]+", "", each) for each in PROJECT["optional-dependencies"]["pyspark"]}
    assert len(bounds) == 1
