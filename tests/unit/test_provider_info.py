"""What Airflow is told of the provider is complete: each class that Airflow lists by its kind is in the list of it."""

from __future__ import annotations

import importlib
import inspect
import json
import re
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import airflow
import jsonschema  # type: ignore[import-untyped]
import pytest
from airflow.sdk import BaseHook, BaseNotifier, BaseOperator, BaseOperatorLink, BaseSensorOperator
from airflow.triggers.base import BaseTrigger

import airflow_tx
from airflow_tx.provider_info import get_provider_info

PACKAGE = Path(airflow_tx.__file__).parent
INFO = get_provider_info()
KINDS: dict[str, type] = {
    "operators": BaseOperator,
    "sensors": BaseSensorOperator,
    "hooks": BaseHook,
    "triggers": BaseTrigger,
}


def modules() -> Iterator[Any]:
    """Every module with a class that says in its file what it is; parts of tests are the user's own business."""
    for path in sorted(PACKAGE.rglob("*.py")):
        name = ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__")
        if "testing" not in path.parts and re.search(r"(?m)^class \w+\(", path.read_text()):
            yield importlib.import_module(name)


@pytest.fixture(scope="module")
def classes() -> list[type]:
    """The classes that the package defines and that can be made."""
    found = [each for module in modules() for _, each in inspect.getmembers(module, inspect.isclass)]
    return [each for each in found if each.__module__.startswith("airflow_tx.") and not inspect.isabstract(each)]


def listed(kind: str) -> list[str]:
    return [name for each in INFO[kind] for name in each["python-modules"]]


@pytest.mark.parametrize("kind", KINDS)
def test_the_provider_info_lists_exactly_the_modules_with_airflow_classes_of_each_kind(
    classes: list[type], kind: str
) -> None:
    sensors = {each for each in classes if issubclass(each, BaseSensorOperator)}
    own = {each for each in classes if issubclass(each, KINDS[kind])} - (sensors if kind == "operators" else set())
    assert own
    assert listed(kind) == sorted({each.__module__ for each in own})


def test_the_provider_info_has_no_list_for_a_kind_without_a_class(classes: list[type]) -> None:
    assert [each for each in classes if issubclass(each, BaseNotifier)] == []
    assert "notifications" not in INFO


def test_every_link_of_an_operator_is_declared_in_the_provider_info(classes: list[type]) -> None:
    own = {f"{each.__module__}.{each.__qualname__}" for each in classes if issubclass(each, BaseOperatorLink)}
    assert own == set(INFO["extra-links"])


def test_every_hook_with_a_connection_type_is_declared_with_this_type(classes: list[type]) -> None:
    hooks: list[Any] = [each for each in classes if issubclass(each, BaseHook)]
    own = {(each.conn_type, f"{each.__module__}.{each.__qualname__}", each.hook_name) for each in hooks}
    declared = INFO["connection-types"]
    assert own == {(each["connection-type"], each["hook-class-name"], each["hook-name"]) for each in declared}


def test_every_name_in_the_provider_info_exists() -> None:
    names = [each["hook-class-name"] for each in INFO["connection-types"]]
    names += [each["handler"] for each in INFO["asset-uris"]] + INFO["cli"] + INFO["extra-links"]
    for name in names:
        module, _, attribute = name.rpartition(".")
        assert callable(getattr(importlib.import_module(module), attribute)), name


def test_the_provider_info_is_valid_according_to_the_schema_of_airflow() -> None:
    schema = json.loads((Path(airflow.__file__).parent / "provider_info.schema.json").read_text())
    jsonschema.validate(INFO, schema)
    # What the schema lets pass and Airflow does not know would be told to nobody.
    assert set(INFO) - {"versions"} <= set(schema["properties"])
    integrations = {each["integration-name"] for each in INFO["integrations"]}
    assert {each["integration-name"] for kind in KINDS for each in INFO[kind]} == integrations


def test_the_version_in_the_provider_info_is_the_version_of_the_package() -> None:
    assert INFO["versions"][0] == version(INFO["package-name"])
