"""A DAG without a transaction that counts twice when a run is cleared is found, and an idempotent one is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tx.lint.report import findings_of
from tests.unit.lint.linted import codes_of

DAG = """
import requests
from airflow.sdk import DAG, task
from airflow.providers.common.sql.operators.sql import SQLExecuteQueryOperator
from airflow.providers.http.operators.http import HttpOperator

@task
def load(rows=None, hook=None):
    {line}

with DAG("sales", schedule="@daily"):
    {tasks}
"""
LINES = {
    "hook.run('INSERT INTO t VALUES (1)')": "TX201",
    "hook.run('INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET n = t.n + EXCLUDED.n')": "TX201",
    "hook.run('INSERT INTO t VALUES (1) ON DUPLICATE KEY UPDATE n = n + VALUES(n)')": "TX201",
    "hook.run('UPDATE t SET n = n + 1')": "TX201",
    "hook.run('UPDATE t SET name = 1, n = COALESCE(t.n, 0) + 1 WHERE a = 1')": "TX201",
    "hook.run('MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE SET n = t.n + s.n')": "TX201",
    "hook.run('COPY t FROM STDIN')": "TX201",
    "hook.insert_rows('t', rows)": "TX201",
    "rows.to_sql('t', hook, if_exists='append')": "TX201",
    "hook.incrby('n', 3)": "TX201",
    "rows.update_one({'a': 1}, {'$inc': {'n': 1}})": "TX201",
    "requests.post('http://a')": "TX202",
    "open('/a', 'a').write('x')": "TX203",
    "rows.to_csv('/a', mode='a')": "TX203",
    "rows.write.mode('append').parquet('/a')": "TX203",
    "hook.run('INSERT INTO t VALUES (1) ON CONFLICT DO NOTHING')": None,
    "hook.run('INSERT INTO t VALUES (1) ON CONFLICT (a) DO UPDATE SET n = EXCLUDED.n')": None,
    "hook.run('INSERT INTO t SELECT 1 WHERE NOT EXISTS (SELECT 1 FROM t)')": None,
    "hook.run('INSERT OVERWRITE t SELECT 1')": None,
    "hook.run(['DELETE FROM t WHERE day = 1', 'INSERT INTO t VALUES (1)'])": None,
    "hook.run('TRUNCATE TABLE t; INSERT INTO t VALUES (1)')": None,
    "hook.run('UPDATE t SET n = 3, m = 1')": None,
    "hook.run('MERGE INTO t USING s ON t.k = s.k WHEN MATCHED THEN UPDATE SET n = s.n')": None,
    "hook.run('CREATE TABLE IF NOT EXISTS t (n int)')": None,
    "hook.run('COPY t TO STDOUT')": None,
    "hook.insert_rows('t', rows, replace=True)": None,
    "rows.to_sql('t', hook, if_exists='replace')": None,
    "requests.put('http://a')": None,
    "open('/a', 'w').write('x')": None,
    "rows.write.mode('overwrite').parquet('/a')": None,
    "rows.filter('append').write.parquet('/a')": None,
    "import datetime; print(datetime.datetime.now())": None,
}
OPERATORS = {
    "SQLExecuteQueryOperator(task_id='a', sql='INSERT INTO t VALUES (1)')": "TX201",
    "SQLExecuteQueryOperator(task_id='a', sql='add.sql')": "TX201",
    "SQLExecuteQueryOperator(task_id='a', sql='absent.sql')": None,
    "HttpOperator(task_id='a', endpoint='a')": "TX202",
    "HttpOperator(task_id='a', endpoint='a', method='GET')": None,
}


@pytest.mark.parametrize("line", LINES)
def test_the_linter_finds_a_line_that_adds_rows_again_in_a_second_run(line: str, tmp_path: Path) -> None:
    expected = LINES[line]
    assert codes_of(tmp_path, DAG.format(line=line, tasks="load()")) == ([expected] if expected else [])


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_linter_finds_an_operator_that_adds_rows(operator: str, tmp_path: Path) -> None:
    (tmp_path / "add.sql").write_text("-- the day\nINSERT INTO t SELECT 1;\n")
    expected = OPERATORS[operator]
    assert codes_of(tmp_path, DAG.format(line="pass", tasks=operator)) == ([expected] if expected else [])


def test_the_linter_checks_a_submitted_spark_application(tmp_path: Path) -> None:
    submit = "SparkSubmitOperator(task_id='a', application=str(HERE / 'app.py'))"
    application = """
from pyspark.sql import SparkSession

def main(spark):
    spark.read.parquet("/in").write.mode("{mode}").parquet("/out")

if __name__ == "__main__":
    main(SparkSession.builder.getOrCreate())
"""
    for mode, found in (("append", ["TX203"]), ("overwrite", [])):
        text = DAG.format(line="pass", tasks=submit)
        assert codes_of(tmp_path, text, app=application.format(mode=mode)) == found


SHAPES = {
    "with": "with DAG('sales'):\n    PythonOperator(task_id='a', python_callable=load)",
    "dag=": "dag = DAG('sales')\nPythonOperator(task_id='a', python_callable=load, dag=dag)",
    "@dag": "@dag(schedule=None)\ndef sales():\n    PythonOperator(task_id='a', python_callable=load)\nsales()",
    "a task of @dag": "@dag()\ndef sales():\n    @task\n    def t(hook):\n"
    "        hook.run('INSERT INTO t VALUES (1)')\n    t()\nsales()",
    "a factory": "def make(name):\n    with DAG('sales'):\n        PythonOperator(task_id='a', python_callable=load)\n"
    "make('a')",
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_the_finding_names_the_dag_no_matter_how_the_dag_is_defined(shape: str, tmp_path: Path) -> None:
    file = tmp_path / "sales.py"
    python = "from airflow.providers.standard.operators.python import PythonOperator"
    head = f"from airflow.sdk import DAG, dag, task\n{python}\n"
    file.write_text(f"{head}def load(hook):\n    hook.run('INSERT INTO t VALUES (1)')\n{SHAPES[shape]}\n")
    (found,) = findings_of(file).findings
    assert "DAG sales counts twice when a run is cleared, because a task adds rows" in str(found)


def test_a_dag_whose_helper_function_opens_a_transaction_counts_as_a_dag_with_a_transaction(tmp_path: Path) -> None:
    text = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, FileSource, Transaction
import requests

@task
def send():
    requests.post("http://a")

def block():
    with Transaction(source=FileSource("x")):
        commit = CommitOperator(task_id="commit", updates=[])
    commit >> send()

with DAG("helped"):
    block()
"""
    assert codes_of(tmp_path, text) == []
