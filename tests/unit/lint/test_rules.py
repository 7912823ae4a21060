"""Each rule finds its planted line in a DAG file or an application, and nothing in the clean twin."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from airflow_tx.errors import ConfigError
from airflow_tx.lint.folder import findings_of
from airflow_tx.lint.report import formatted
from airflow_tx.lint.rules import RULES

DAG = """
import datetime, random, requests, uuid
from pathlib import Path
from airflow.sdk import DAG, Variable, task
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
    "TX109": (dag(dag="max_active_runs=4"), dag(dag="max_active_runs=5")),
    "TX110": (dag("SEEN.append(1)"), dag("SEEN = []; SEEN.append(1)")),
    "TX111": (APPLICATION.format(column="F.rand()"), APPLICATION.format(column="F.lit(1)")),
}


def codes(folder: Path, text: str) -> list[str]:
    file = folder / "planted.py"
    file.write_text(text)
    return [each.code for each in findings_of(file)]


def test_every_rule_is_planted() -> None:
    assert PLANTED.keys() == RULES.keys()


@pytest.mark.parametrize("code", PLANTED)
def test_a_rule_finds_its_line_and_leaves_the_twin_alone(code: str, tmp_path: Path) -> None:
    planted, clean = PLANTED[code]
    assert (codes(tmp_path, planted), codes(tmp_path, clean)) == ([code], [])


def test_a_comment_leaves_a_finding_out(tmp_path: Path) -> None:
    assert codes(tmp_path, dag("uuid.uuid4()  # noqa: TX105")) == []
    assert codes(tmp_path, dag("uuid.uuid4()  # noqa: TX104")) == ["TX105"]


def test_bad_input_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="No such file"):
        findings_of(tmp_path / "absent.py")
    with pytest.raises(ConfigError, match="no Python file"):
        findings_of(tmp_path)
    with pytest.raises(ConfigError, match="Mend the file"):
        codes(tmp_path, "def (")
    with pytest.raises(ConfigError, match="TX999"):
        codes(tmp_path, "x = 1  # noqa: TX999")


@pytest.mark.parametrize("form", ["json", "sarif"])
def test_a_finding_is_data(form: str, tmp_path: Path) -> None:
    (tmp_path / "planted.py").write_text(PLANTED["TX105"][0])
    data = json.loads(formatted(findings_of(tmp_path), form))
    found = data[0]["code"] if form == "json" else data["runs"][0]["results"][0]["ruleId"]
    assert found == "TX105"


def test_the_dags_of_the_repository_are_clean() -> None:
    root = Path(__file__).resolve().parents[3]
    assert [str(each) for name in ("dags", "spark_apps", "examples") for each in findings_of(root / name)] == []
