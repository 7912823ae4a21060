"""Each rule finds its planted line in a DAG file or an application, and nothing in the clean twin."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from airflow_tx.lint.report import findings_of, formatted
from airflow_tx.lint.rules import RULES

DAG = """
import datetime, random, requests, uuid
from pathlib import Path
from airflow.sdk import DAG, Variable, get_current_context, task
from airflow_tx import CommitOperator, DataIntervalSource, FileSource, Transaction, current_batch

SEEN = []

@task
def count(hook=None):
    rows = list(current_batch().read())
    {line}
    return rows

with DAG("planted", {dag}):
    with Transaction(source={source}, max_pending=4):
        CommitOperator(task_id="commit", updates=[count()])
"""
APPLICATION = """
from pyspark.sql import functions as F
from airflow_tx.spark import batch_app

@batch_app
def main(spark, batch):
    batch.emit("rows", batch.read().withColumn("id", {column}))
"""

BLOCK = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, FileSource, Transaction

@task
def other():
    pass

@task
def count():
    return []

with DAG("planted", max_active_runs=8):
    with Transaction(source=FileSource("x/*.csv"), max_pending=4):
        commit = CommitOperator(task_id="commit", updates=[count()])
        {line}
"""
PHASE = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, FileSource, Transaction, append, commit_phase, persistent_aggregate
from airflow_tx.state import DeltaTable, SqlState, SqlTable, Sum

sums = SqlState("db", table="sums", keys=["word"], values={{"n": Sum()}})

@task
def count():
    return []

with DAG("planted", max_active_runs=8):
    with Transaction(source=FileSource("x/*.csv"), max_pending=4):
        counted = count()
        to_sums = persistent_aggregate(counted, state=sums)
        to_rows = append(counted, state={table})
        with commit_phase():
            {phase}
"""
TABLE = "SqlTable('db', table='rows')"
TWO = "first = CommitOperator(task_id='a', updates=[{}]); second = CommitOperator(task_id='b', updates=[{}]); {}"
PLAIN = """
import requests
from airflow.sdk import DAG, task

@task
def count(hook):
    {line}

with DAG("planted"):
    count()
"""


def phase(first: str, second: str, order: str, table: str = TABLE) -> str:
    return PHASE.format(table=table, phase=TWO.format(first, second, order))


def plain(line: str) -> str:
    return PLAIN.format(line=line)


def dag(line: str = "pass", dag: str = "max_active_runs=8", source: str = "FileSource('x/*.csv')") -> str:
    return DAG.format(line=line, dag=dag, source=source)


PLANTED = {
    "TX101": (dag("hook.run('INSERT INTO t VALUES (1)')"), dag("hook.run('SELECT 1')")),
    "TX102": (dag("requests.post('http://a')"), dag("requests.get('http://a')")),
    "TX103": (dag("open('/tmp/a', 'a')"), dag("open('/tmp/a')")),
    "TX104": (dag("datetime.datetime.now()"), dag("datetime.datetime(2026, 1, 1)")),
    "TX105": (dag("uuid.uuid4()"), dag("random.Random(len(rows)).random()")),
    "TX106": (dag("Variable.get('day')"), dag("{}.get('day')")),
    "TX107": (dag(dag="catchup=True"), dag(dag="catchup=True", source="DataIntervalSource()")),
    "TX108": (BLOCK.format(line="other()"), BLOCK.format(line="other() >> commit")),
    "TX109": (dag(dag="max_active_runs=4"), dag(dag="max_active_runs=5")),
    "TX110": (dag("SEEN.append(1)"), dag("SEEN = []; SEEN.append(1)")),
    "TX111": (APPLICATION.format(column="F.rand()"), APPLICATION.format(column="F.lit(1)")),
    "TX112": (
        phase("to_rows", "to_sums", "first >> second"),
        phase("to_sums", "to_rows", "first >> second"),
    ),
    "TX113": (
        dag("get_current_context()['ds']", source="DataIntervalSource()"),
        dag("get_current_context()['data_interval_start']", source="DataIntervalSource()"),
    ),
    "TX114": (dag("__import__('os').path; open(glob.glob('/data/*')[0])"), dag("open('/data/a')")),
    "TX201": (plain("hook.run('INSERT INTO t VALUES (1)')"), plain("hook.run('REPLACE INTO t VALUES (1)')")),
    "TX202": (plain("requests.post('http://a')"), plain("requests.put('http://a')")),
    "TX203": (plain("open('/tmp/a', 'a')"), plain("open('/tmp/a', 'w')")),
}


def codes(folder: Path, text: str) -> list[str]:
    file = folder / "planted.py"
    file.write_text(text)
    report = findings_of(file)
    assert report.unread == []
    return [each.code for each in report.findings]


def test_every_rule_of_the_linter_has_an_example_with_the_mistake() -> None:
    assert PLANTED.keys() == RULES.keys()


@pytest.mark.parametrize("code", PLANTED)
def test_a_rule_finds_the_mistake_in_its_example_and_nothing_in_the_corrected_example(
    code: str, tmp_path: Path
) -> None:
    planted, clean = PLANTED[code]
    assert (codes(tmp_path, planted), codes(tmp_path, clean)) == ([code], [])


@pytest.mark.parametrize("table", [TABLE, "SqlTable.from_url('sqlite:///x', table='r')", "DeltaTable('/x')"])
@pytest.mark.parametrize("order", ["second >> first", "pass"], ids=["before it", "beside it"])
def test_the_linter_finds_a_table_that_is_not_written_last_in_a_commit_phase(
    order: str, table: str, tmp_path: Path
) -> None:
    assert codes(tmp_path, phase("to_sums", "to_rows", order, table)) == ["TX112"]


@pytest.mark.parametrize("order", ["second >> first", "pass"])
def test_the_linter_accepts_committers_with_only_tables_or_only_states_in_any_order(order: str, tmp_path: Path) -> None:
    assert codes(tmp_path, phase("to_rows", "to_rows", order)) == []
    assert codes(tmp_path, phase("to_sums", "to_sums", order)) == []


def test_the_updates_of_a_single_committer_in_a_phase_may_be_in_any_order(tmp_path: Path) -> None:
    both = "CommitOperator(task_id='a', updates=[to_rows, to_sums])"
    assert codes(tmp_path, PHASE.format(table=TABLE, phase=both)) == []


def test_a_noqa_comment_suppresses_a_finding(tmp_path: Path) -> None:
    assert codes(tmp_path, dag("uuid.uuid4()  # noqa: TX105")) == []
    assert codes(tmp_path, dag("uuid.uuid4()  # noqa: TX104")) == ["TX105"]


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_findings_can_be_printed_as_json_and_as_sarif(form: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED["TX105"][0])
    data = json.loads(formatted(findings_of(tmp_path), form))
    found = data[0]["code"] if form == "json" else data["runs"][0]["results"][0]["ruleId"]
    assert found == "TX105"


ROOT = Path(__file__).resolve().parents[3]


def test_the_linter_has_no_findings_in_the_dags_of_the_repository() -> None:
    found = [each for name in ("dags", "spark_apps", "examples") for each in findings_of(ROOT / name).findings]
    assert [f"{Path(each.file).name} {each.code}" for each in found] == ["daily_sales.py TX201"]
    assert "DAG daily_sales counts twice when a run is cleared, because" in str(found[0])


def test_the_linter_page_has_a_section_for_each_rule() -> None:
    page = (ROOT / "docs" / "lint.md").read_text()
    assert re.findall(r"^### (TX\d+)$", page, re.MULTILINE) == list(RULES)
