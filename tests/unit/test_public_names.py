"""What a user finds with `help()`."""

from __future__ import annotations

import importlib
import inspect
import pydoc
import re
from enum import Enum
from typing import Any

import pytest

import airflow_tx
import airflow_tx.acks
import airflow_tx.sources
import airflow_tx.spark
import airflow_tx.state
import airflow_tx.testing

ROOMS = (airflow_tx, airflow_tx.acks, airflow_tx.sources, airflow_tx.spark, airflow_tx.state, airflow_tx.testing)
PUBLIC = [(room, name) for room in ROOMS for name in room.__all__ if name != "Json"]
_MANY = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)


def parameters(public: Any) -> list[str]:
    """The names that it takes; a protocol is never made, and an enum is listed."""
    if isinstance(public, type) and (issubclass(public, Enum) or getattr(public, "_is_protocol", False)):
        return []
    return [each.name for each in inspect.signature(public).parameters.values() if each.kind not in _MANY]


@pytest.mark.parametrize(("room", "name"), PUBLIC, ids=[f"{room.__name__}.{name}" for room, name in PUBLIC])
def test_the_help_of_a_public_name_describes_each_of_its_parameters(room: Any, name: str) -> None:
    public = getattr(room, name)
    shown = pydoc.plain(pydoc.render_doc(public))
    described = {name for kind in ("param", "ivar") for name in re.findall(rf":{kind} (\w+):", shown)}
    assert [each for each in parameters(public) if each not in described] == []


BLOCK = [name for room, name in PUBLIC if room is airflow_tx and name.endswith(("Operator", "Sensor", "Transaction"))]


@pytest.mark.parametrize("name", BLOCK)
def test_the_help_of_an_operator_says_where_its_further_arguments_are_described(name: str) -> None:
    assert "Initialize self" not in (inspect.getdoc(getattr(airflow_tx, name).__init__) or "Initialize self")


def test_no_public_name_is_a_module() -> None:
    importlib.import_module("airflow_tx.testing.eventually")
    assert [name for room, name in PUBLIC if inspect.ismodule(getattr(room, name))] == []
