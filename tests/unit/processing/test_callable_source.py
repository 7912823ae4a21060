"""The digest of a Python task's source: one for all workers, another one for other code, none where it is unknown."""

from __future__ import annotations

import functools
import hashlib
import importlib.util
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from airflow.providers.standard.operators.empty import EmptyOperator
from airflow.providers.standard.operators.python import PythonOperator, PythonVirtualenvOperator

from airflow_tx.ledger.code_digest import file_digest, function_digest
from airflow_tx.transaction.processing.code import digest_of_callable
from airflow_tx.transaction.processing.task import stage_frames

SOURCE = "def count(rows):\n    return len(list(rows))\n"
KNOWN = "a9c4c0eb568defe2"
"""The digest of `SOURCE`, on every version of Python."""


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


def test_a_function_has_the_same_digest_in_any_file(tmp_path: Path) -> None:
    one, two = loaded(tmp_path / "a", SOURCE), loaded(tmp_path / "b" / "c", f"import os\n\n\n{SOURCE}\n\nx = os\n")
    assert digest_of_callable(one) == digest_of_callable(two) == KNOWN


USING = '''
RATE = 0.2
UNUSED = 1
TABLE: dict[str, int] = {"a": 1}

def unused():
    return UNUSED

def taxed(amount):
    return amount * (1 + RATE)

with DAG("sales"):
    @task(retries=2)
    def add_up(rows):
        """Add up."""
        return [add_up, *map(taxed, rows), TABLE]  # in order

each = lambda row: taxed(row)
'''


def digest(source: str, begins: str = "@task") -> str:
    """Digest the function of a file whose first line begins with a text."""
    line = next(number for number, each in enumerate(source.splitlines(), 1) if each.strip().startswith(begins))
    return function_digest(source, line)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("add_up", "total"),
        ("Add up.", "Add up all rows."),
        ("  # in order", ""),
        (
            "[add_up, *map(taxed, rows), TABLE]",
            "[\n            add_up,\n            *map(taxed, rows), TABLE,\n        ]",
        ),
        ("retries=2", "retries=3"),
        ("UNUSED = 1", "UNUSED = 2"),
        ("    return UNUSED", "    return None"),
        ("RATE = 0.2", "RATE = 0.20"),
    ],
)
def test_names_and_comments_and_layout_and_unused_code_do_not_change_the_digest(old: str, new: str) -> None:
    changed = USING.replace(old, new)
    assert changed != USING
    assert digest(changed) == digest(USING) != ""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("*map(taxed, rows)", "*map(abs, rows)"),
        ("RATE = 0.2", "RATE = 0.19"),
        ('{"a": 1}', '{"a": 2}'),
        ("1 + RATE", "1 - RATE"),
        ("(rows):", "(rows, more=()):"),
        ("    @task(retries=2)", "    @task(retries=2)\n    @cached"),
    ],
)
def test_a_change_of_the_function_or_of_code_that_it_uses_changes_the_digest(old: str, new: str) -> None:
    changed = USING.replace(old, new)
    assert changed != USING
    assert digest(changed) != digest(USING)


def test_a_function_has_the_same_digest_with_the_decorator_and_without_it() -> None:
    assert digest(USING) == digest(USING.replace("    @task(retries=2)\n", ""), "def add_up")


def test_the_digest_of_a_nested_function_includes_the_names_of_its_outer_function() -> None:
    source = "def make():\n    RATE = 2\n    @task\n    def f(x):\n        return x * RATE\n    return f\n"
    assert digest(source) != digest(source.replace("RATE = 2", "RATE = 3"))


def test_the_digest_of_a_lambda_includes_its_body_and_the_code_that_it_uses() -> None:
    other = USING.replace("lambda row: taxed(row)", "lambda row: row")
    assert digest(USING, "each =") not in ("", digest(other, "each ="))
    assert digest(USING, "each =") != digest(USING.replace("RATE = 0.2", "RATE = 0.3"), "each =")


def test_a_line_without_a_function_and_a_source_that_cannot_be_parsed_have_no_digest() -> None:
    assert function_digest(USING, 1) == function_digest("def f(:\n", 1) == ""


def test_the_digest_of_a_python_file_ignores_comments_and_docstrings() -> None:
    digests = {file_digest(text.encode()) for text in (USING, USING + "# more\n", "'''Sales.'''\n" + USING)}
    assert len(digests) == 1
    assert file_digest(USING.replace("UNUSED = 1", "UNUSED = 2").encode()) not in digests


@pytest.mark.parametrize("content", [b"def f(:", b"\x00\xff", b"(" * 5000])
def test_a_file_that_is_not_python_has_the_digest_of_its_bytes(content: bytes) -> None:
    assert file_digest(content) == hashlib.sha256(content).hexdigest()[:16]


def test_functions_with_different_code_have_different_digests(tmp_path: Path) -> None:
    sources = [SOURCE, SOURCE.replace("len", "sum"), SOURCE.replace("rows", "each")]
    assert len({digest_of_callable(loaded(tmp_path / str(n), text)) for n, text in enumerate(sources)}) == 3


def made_by_hand() -> Any:
    names: dict[str, Any] = {}
    exec(SOURCE, names)
    return names["count"]


@pytest.mark.parametrize("function", [len, functools.partial(made_by_hand), made_by_hand(), None])
def test_a_callable_without_source_has_no_digest(function: Any) -> None:
    assert digest_of_callable(SimpleNamespace(python_callable=function)) == ""


def test_an_operator_without_a_callable_has_no_digest() -> None:
    assert digest_of_callable(SimpleNamespace()) == ""


def test_a_task_that_may_return_a_data_frame_has_the_digest_of_its_own_function(tmp_path: Path) -> None:
    found = loaded(tmp_path / "a", SOURCE)
    task = PythonOperator(task_id="count", python_callable=found.python_callable)
    before = digest_of_callable(task)
    stage_frames(task)
    assert task.python_callable is not found.python_callable
    assert digest_of_callable(task) == before == KNOWN
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
def test_a_function_that_runs_in_another_process_or_returns_no_xcom_is_not_wrapped(task: Any) -> None:
    stage_frames(task)
    assert getattr(task, "python_callable", made_by_hand) is made_by_hand


def test_data_frames_inside_a_dict_that_is_stored_as_one_xcom_are_not_staged() -> None:
    value = {"rows": pa.table({"n": [1]})}
    task = PythonOperator(task_id="count", python_callable=lambda: value)
    stage_frames(task)
    assert task.python_callable() is value
