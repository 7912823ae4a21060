"""A public name that is asked of the wrong package is found in the right one."""

from __future__ import annotations

import importlib
import math
import pickle
import sys

import pytest

from airflow_tx.base.lazy_names import LazyModule


@pytest.mark.parametrize(
    ("package", "name", "room"),
    [
        ("airflow_tx", "SqlState", "airflow_tx.state"),
        ("airflow_tx", "batch_app", "airflow_tx.spark"),
        ("airflow_tx.state", "Transaction", "airflow_tx"),
        ("airflow_tx.spark", "CrashKit", "airflow_tx.testing"),
    ],
)
def test_the_error_for_an_import_from_the_wrong_package_names_the_right_package(
    package: str, name: str, room: str
) -> None:
    with pytest.raises(ImportError, match=rf"^{package} has no {name}. Import it from {room}.$"):
        getattr(importlib.import_module(package), name)


def test_a_name_that_no_package_has_raises_an_attribute_error() -> None:
    assert not hasattr(importlib.import_module("airflow_tx"), "SqlStates")


def test_a_lazy_module_is_imported_when_one_of_its_names_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    lazy = LazyModule("colorsys")
    assert "colorsys" not in sys.modules
    assert lazy.rgb_to_hsv(0, 0, 0) == (0, 0, 0)
    assert "colorsys" in sys.modules


def test_a_lazy_module_is_pickled_by_its_name() -> None:
    assert pickle.loads(pickle.dumps(LazyModule("math"))).pi == math.pi
