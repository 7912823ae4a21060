"""The example of docs/testing.md passes for a DAG that writes into a state, and fails for another one."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.testing.crash_kit import _POINTS, _TASK_POINTS
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "testing.md"


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Write the files of the page, and give its test."""
    blocks = re.findall(r"^```python\n# (\S+)\n(.*?)^```$", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    files = dict(blocks)
    (tmp_path / "dags").mkdir()
    for name in ("dags/words.py", "dags/noted_words.py"):
        (tmp_path / name).write_text(files[name])
    monkeypatch.chdir(tmp_path)
    names: dict[str, Any] = {}
    exec(files["test_words.py"], names)
    found: Callable[..., None] = names["test_no_crash_counts_a_word_twice"]
    return found


def test_the_crash_test_example_has_ten_lines() -> None:
    code = PAGE.read_text().partition("def test_no_crash")[2].partition("```")[0]
    assert len([line for line in code.splitlines() if line.strip()]) <= 10


def test_the_testing_page_and_the_crash_kit_list_every_failpoint_of_a_run() -> None:
    code = "".join(file.read_text() for file in (ROOT / "airflow_tx").rglob("*.py"))
    found = set(re.findall(r'failpoint\(\s*"((?:begin|process|commit)\.\w+)"', code)) | {"spark.batch"}
    assert found == {*_POINTS, *_TASK_POINTS}
    assert found <= set(re.findall(r"`(\w+\.\w+)`", PAGE.read_text()))


@pytest.mark.long
def test_a_dag_that_writes_only_into_states_passes_the_crash_test_at_every_failpoint(
    example: Callable[..., None], tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    example(tmp_path, zookeeper)


@pytest.mark.long
def test_a_dag_that_writes_outside_of_a_state_fails_the_crash_test(
    example: Callable[..., None], tmp_path: Path, zookeeper: LocalZooKeeper
) -> None:
    with pytest.raises(AssertionError, match="noted_words, killed at process.before_ack of task count: the run added"):
        example(tmp_path, zookeeper, dag_id="noted_words")
