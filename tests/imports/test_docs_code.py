"""The Python blocks of the pages fit the package: they compile, their imports and arguments exist, and they run."""

from __future__ import annotations

import ast
import importlib
import inspect
import re
import textwrap
from collections.abc import Iterator
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml  # type: ignore[import-untyped]
from airflow.sdk import DAG, task

ROOT = Path(__file__).parents[2]
ROOMS = ("airflow_tx", *(f"airflow_tx.{room}" for room in ("acks", "sources", "spark", "state", "testing")))
OWN_FILES = {
    "orders": "the DAG file that docs/howto/append-rows-to-a-sql-table.md writes",
    "shop_logs": "the source that docs/howto/write-a-source.md writes",
    "shop_state": "the state that docs/testing.md tests",
    "text_words": "the DAG file that docs/start.md writes",
}
"""Modules that no block can import here, and what they stand for."""


def blocks() -> Iterator[tuple[str, str]]:
    """Give each Python block of README and docs with its page and line; of a diff what it leads to."""
    for page in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]:
        text = page.read_text()
        for found in re.finditer(r"^```(python|diff)\n(.*?)^```", text, re.MULTILINE | re.DOTALL):
            line = text[: found.start()].count("\n") + 1
            code = found[2] if found[1] == "python" else re.sub(r"^-.*\n|^[ +]", "", found[2], flags=re.MULTILINE)
            yield f"{page.relative_to(ROOT).as_posix()}:{line}", code


BLOCKS = dict(blocks())


def faults(code: str) -> list[str]:
    """Name what does not fit: a module, a name of a module, an argument of a call."""
    tree = ast.parse(code)
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    found = [fault for node in imports for fault in _missing(node)]
    known = _public() | {name: value for node in imports for name, value in _imported(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in known:
            found += _unfit(node, known[node.func.id])
    return found


def _public() -> dict[str, Any]:
    """Give the public names that only one module has: a block may leave out their import."""
    homes: dict[str, set[int]] = {}
    values: dict[str, Any] = {}
    for room in map(importlib.import_module, ROOMS):
        for name in room.__all__:
            values[name] = getattr(room, name)
            homes.setdefault(name, set()).add(id(values[name]))
    return {name: value for name, value in values.items() if len(homes[name]) == 1}


def _missing(node: ast.ImportFrom) -> list[str]:
    if node.module in OWN_FILES:
        return []
    try:
        module = importlib.import_module(str(node.module))
    except ImportError:
        return [f"there is no module {node.module}"]
    return [f"{node.module} has no {alias.name}" for alias in node.names if not hasattr(module, alias.name)]


def _imported(node: ast.ImportFrom) -> Iterator[tuple[str, Any]]:
    if str(node.module).partition(".")[0] == "airflow_tx" and not _missing(node):
        module = importlib.import_module(str(node.module))
        yield from ((alias.asname or alias.name, getattr(module, alias.name)) for alias in node.names)


def _unfit(call: ast.Call, target: Any) -> list[str]:
    if any(isinstance(each, ast.Starred) for each in call.args) or not callable(target):
        return []
    keywords = {keyword.arg: keyword for keyword in call.keywords if keyword.arg is not None}
    try:
        inspect.signature(target).bind_partial(*call.args, **keywords)
    except TypeError as error:
        return [f"{ast.unparse(call.func)}: {error}"]
    return []


def test_every_code_line_of_the_contributing_guide_occurs_in_an_example() -> None:
    shown = "".join(re.findall(r"^```python\n(.*?)^```", (ROOT / "CONTRIBUTING.md").read_text(), re.M | re.S))
    files = ("examples/shop_state.py", "docs/howto/write-a-source.md")
    known = {_bare(line) for file in files for line in (ROOT / file).read_text().splitlines()}
    assert shown
    assert [line for line in shown.splitlines() if _bare(line) not in known] == []


def _bare(line: str) -> str:
    return line.partition("  #")[0].strip()


@pytest.mark.parametrize("block", BLOCKS)
def test_each_python_block_of_a_page_compiles_and_matches_the_package(block: str) -> None:
    assert faults(BLOCKS[block]) == []


def test_the_pages_have_python_blocks() -> None:
    assert len(BLOCKS) > 40


@pytest.mark.parametrize(
    ("code", "fault"),
    [
        ("import airflow_tx\nfrom airflow_tx.nowhere import Sum", "there is no module airflow_tx.nowhere"),
        ("from airflow_tx.state import Summ", "airflow_tx.state has no Summ"),
        ("FileSource('a', kin='opaque')", "FileSource: got an unexpected keyword argument 'kin'"),
        ("from airflow_tx import Transaction as T\nT(sauce=1)", "T: got an unexpected keyword argument 'sauce'"),
    ],
)
def test_a_wrong_python_block_is_reported(code: str, fault: str) -> None:
    assert faults(code) == [fault]


# --- the blocks run ----------------------------------------------------------------------------------------------

RUN_ELSEWHERE = {
    "docs/howto/append-rows-to-a-sql-table.md": "tests/integration/test_pages.py",
    "docs/howto/move-from-storm.md": "tests/integration/test_from_storm.py",
    "docs/howto/write-a-source.md": "tests/contract/test_source_suite.py",
    "docs/start.md": "tests/airflow/test_first_page.py",
}
"""Pages whose blocks need a server or files of their own, and the test that runs them."""

FRAGMENTS = {"docs/acks.md": 1, "docs/testing.md": 1}
"""Blocks that need a queue, or a file that another page writes. Write no more of them."""

PRELUDE = """
from dags.locations import LocationDB, LocationUpdater
@task
def count(batch=None): return []
@task
def extract(): return []
@task
def sum_up(orders): return []
@task
def send(): return []
@task
def collect(sent): return []
@task
def report(rows): return None
totals = SqlState("tx_state", table="totals", keys=["carrier"], values={"n": Count()})
"""
AROUND = (
    "{block}",
    """
with DAG("page", schedule=None, max_active_runs=8):
{block}
""",
    """
with DAG("page", schedule=None, max_active_runs=8) as dag:
    with Transaction(source=MemorySource({{"0": []}}), max_pending=4) as tx:
        counts, words, steps, enrich = (SparkBatchOperator(task_id=f"t{{n}}", application="a.py") for n in range(4))
{block}
        if not any(each.startswith("commit") for each in dag.task_ids):
            CommitOperator(task_id="commit_all", updates=[persistent_aggregate(count(), state=totals)])
""",
)
"""A block runs alone, in a DAG, or in the block of a transaction."""


def failure(code: str) -> str:
    """Run a block with the public names; give "", or the error of each way to run it."""
    failed = []
    for around in AROUND:
        indent = "        " if "Transaction(" in around else "    " if "DAG(" in around else ""
        named = {
            **_public(),
            "DAG": DAG,
            "task": task,
            "datetime": datetime,
            "timedelta": timedelta,
            "__file__": __file__,
        }
        try:
            exec(compile(PRELUDE, "prelude", "exec"), named)
            exec(compile(around.format(block=textwrap.indent(code, indent)), "block", "exec"), named)
        except Exception as error:  # noqa: BLE001
            failed.append(f"{type(error).__name__}: {error}")
        else:
            return ""
    return "; ".join(failed)


@pytest.mark.parametrize("page", sorted({block.partition(":")[0] for block in BLOCKS}))
def test_the_python_blocks_of_a_page_run_without_an_error(page: str) -> None:
    if page in RUN_ELSEWHERE:
        assert Path(page).name in (ROOT / RUN_ELSEWHERE[page]).read_text()
        return
    own = {block: failure(code) for block, code in BLOCKS.items() if block.partition(":")[0] == page}
    failed = {block: error for block, error in own.items() if error}
    assert len(failed) <= FRAGMENTS.get(page, 0), failed


def test_yaml_blocks_contain_only_environment_variables_that_airflow_reads() -> None:
    texts = [page.read_text() for page in sorted(ROOT.glob("docs/**/*.md"))]
    found = [block for text in texts for block in re.findall(r"^```yaml\n(.*?)^```", text, re.MULTILINE | re.DOTALL)]
    values = [yaml.safe_load(block) for block in found]
    names = [each.get("name", each.get("envName")) for value in values for each in value["env"] + value["secret"]]
    assert names
    assert all(re.fullmatch(r"AIRFLOW__[A-Z]+__[A-Z_]+|AIRFLOW_CONN_[A-Z_]+", name) for name in names)
