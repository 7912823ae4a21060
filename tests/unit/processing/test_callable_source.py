"""The digest of a Python task's source: one for all workers, another one for other code, none where it is unknown."""

from __future__ import annotations

import functools
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator, PythonVirtualenvOperator

from airflow_tx.transaction.processing.task import digest_of_callable, stage_frames

SOURCE = "def count(rows):\n    return len(list(rows))\n"


def loaded(folder: Path, source: str, name: str = "count") -> Any:
    """A task whose function another worker has read from a folder of its own."""
    folder.mkdir(parents=True)
    file = folder / "tasks.py"
    file.write_text(source)
    spec = importlib.util.spec_from_file_location("tasks", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return SimpleNamespace(python_callable=getattr(module, name))


def test_it_is_the_same_wherever_the_file_lies_and_whatever_else_is_in_it(tmp_path: Path) -> None:
    one, two = loaded(tmp_path / "a", SOURCE), loaded(tmp_path / "b" / "c", f"import os\n\n\n{SOURCE}\n\nx = os\n")
    assert digest_of_callable(one) == digest_of_callable(two) == "f37d3886aeabd73e"


def test_it_is_another_one_for_other_code(tmp_path: Path) -> None:
    sources = [SOURCE, SOURCE.replace("len", "sum"), SOURCE.replace("rows", "each")]
    assert len({digest_of_callable(loaded(tmp_path / str(n), text)) for n, text in enumerate(sources)}) == 3


def made_by_hand() -> Any:
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    return names["count"]


@pytest.mark.parametrize("function", [len, functools.partial(made_by_hand), made_by_hand(), None])
def test_there_is_none_of_what_has_no_source(function: Any) -> None:
    assert digest_of_callable(SimpleNamespace(python_callable=function)) == ""


def test_there_is_none_of_an_operator_that_calls_no_function() -> None:
    assert digest_of_callable(SimpleNamespace()) == ""


def test_a_task_that_may_return_a_frame_has_the_digest_of_its_own_function(tmp_path: Path) -> None:
    found = loaded(tmp_path / "a", SOURCE)
    task = PythonOperator(task_id="count", python_callable=found.python_callable)
    before = digest_of_callable(task)
    stage_frames(task)
    assert task.python_callable is not found.python_callable
    assert digest_of_callable(task) == before == "f37d3886aeabd73e"
    assert task.python_callable([1, 2]) == 2


@pytest.mark.parametrize(
    "task",
    [
        PythonVirtualenvOperator(task_id="elsewhere", python_callable=made_by_hand),
        PythonOperator(task_id="silent", python_callable=made_by_hand, do_xcom_push=False),
        EmptyOperator(task_id="empty"),
    ],
    ids=lambda task: str(task.task_id),
)
def test_a_function_that_runs_elsewhere_or_gives_no_xcom_is_left_alone(task: Any) -> None:
    stage_frames(task)
    assert getattr(task, "python_callable", made_by_hand) is made_by_hand


def test_a_dict_that_becomes_one_xcom_is_left_alone() -> None:
    value = {"rows": pa.table({"n": [1]})}
    task = PythonOperator(task_id="count", python_callable=lambda: value)
    stage_frames(task)
    assert task.python_callable() is value
