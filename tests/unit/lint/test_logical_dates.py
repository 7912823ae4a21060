"""A read of the logical date beside a DataIntervalSource is found however it is spelled."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lint.linted import codes_of

FILE = """
from airflow.sdk import DAG, get_current_context, task
from airflow.providers.standard.operators.bash import BashOperator
from airflow.providers.standard.operators.python import PythonOperator
from airflow_tx import CommitOperator, DataIntervalSource, FileSource, Transaction, current_batch

{above}

with DAG("planted", max_active_runs=8):
    with Transaction(source={source}, max_pending=4):
        {inside}
        CommitOperator(task_id="commit", updates=[made])
"""

DAY = "def day():\n    return get_current_context()['ds']\n"
HELPER = "def day(ts):\n    return ts\n"
TASK = "@task\ndef count({given}):\n    {body}"
READ = "made = count()"


def task(body: str = "return []", given: str = "") -> tuple[str, str]:
    return TASK.format(given=given, body=body), READ


def bash(command: str) -> tuple[str, str]:
    return "", f"made = BashOperator(task_id='made', bash_command='{command}').output"


READS = {
    "an argument": task(given="ds=None"),
    "an argument of a task with options": (
        f"@task(retries=2)\n{TASK.format(given='logical_date=None', body='pass')[6:]}",
        READ,
    ),
    "a keyword-only argument": task(given="*, ts_nodash=None"),
    "the rest of the arguments": task("return [context['ds']]", "**context"),
    "the rest, by another name": task("return [given.get('logical_date')]", "**given"),
    "the current context": task("return [get_current_context()['ts']]"),
    "the current context by a name": task("now = get_current_context()\n    return [now['ds_nodash']]"),
    "the run": task("return [get_current_context()['dag_run'].logical_date]"),
    "a function that the task calls": (
        f"def day():\n    return get_current_context()['ds']\n{task('return [day()]')[0]}",
        READ,
    ),
    "a template": bash("count {{ ds }}"),
    "a template with a macro": (
        "",
        "made = BashOperator(task_id='m', bash_command='{{ macros.ds_add(ds, 1) }}').output",
    ),
    "a template of a run": bash("{{ dag_run.logical_date }}"),
    "a template with a filter": bash("{{ logical_date | ts }}"),
    "a callable": ("def read(ds):\n    return []", "made = PythonOperator(task_id='m', python_callable=read).output"),
}
OTHERS = {
    "the interval": task("return [data_interval_start]", "data_interval_start=None"),
    "a template of the interval": (
        "",
        "made = BashOperator(task_id='m', bash_command='{{ data_interval_end | ds }}').output",
    ),
    "a column": task("return [row['ts'] for row in current_batch().read()]"),
    "a helper's argument": (HELPER + task("return [day(1)]")[0], READ),
    "a variable": task("ds = 1\n    return [ds]"),
}


def codes(folder: Path, planted: tuple[str, str], source: str) -> list[str]:
    above, inside = planted
    return codes_of(folder, FILE.format(above=above, inside=inside, source=source))


@pytest.mark.parametrize("name", READS)
def test_the_linter_finds_a_read_of_the_logical_date_only_if_the_source_uses_data_intervals(
    name: str, tmp_path: Path
) -> None:
    assert set(codes(tmp_path, READS[name], "DataIntervalSource()")) == {"TX113"}
    assert codes(tmp_path, READS[name], "FileSource('x/*.csv')") == []


@pytest.mark.parametrize("name", OTHERS)
def test_the_linter_ignores_code_that_only_resembles_a_read_of_the_logical_date(name: str, tmp_path: Path) -> None:
    assert codes(tmp_path, OTHERS[name], "DataIntervalSource()") == []
