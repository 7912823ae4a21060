"""A planted line is found however it is spelled, and correct code is left alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.lint.linted import HEAD, codes_of, processing

PLANTED = {
    "clock: an alias of a class": ("TX104", "from datetime import datetime as dt", "dt.now()"),
    "clock: an alias of a module": ("TX104", "import datetime as d", "d.date.today()"),
    "clock: an alias of a function": ("TX104", "import time\nnow = time.time", "return now()"),
    "clock: pendulum": ("TX104", "import pendulum", "pendulum.now('UTC').isoformat()"),
    "clock: imported in the task": ("TX104", "", "import pendulum as p\np.today()"),
    "clock: of the module": ("TX104", "from datetime import date\nTODAY = date.today()", "return str(TODAY)"),
    "clock: in an f-string": ("TX104", "import datetime", "return f'{datetime.datetime.now():%Y}'"),
    "clock: an inner function": ("TX104", "import time", "def inner():\n    return time.time()\nreturn inner()"),
    "chance: a name": ("TX105", "from random import choice as pick", "return pick(rows)"),
    "chance: no seed": ("TX105", "import random", "return random.Random().random()"),
    "chance: numpy": ("TX105", "import numpy as np", "return np.random.rand(3)"),
    "chance: pandas": ("TX105", "", "return rows.sample(frac=0.1)"),
    "chance: a token": ("TX105", "import secrets", "return secrets.token_hex()"),
    "variable: an alias": ("TX106", "from airflow.models import Variable as V", "return V.get('day')"),
    "variable: of the module": ("TX106", "from airflow import sdk\nDAY = sdk.Variable.get('d')", "return DAY"),
    "sql: a constant": ("TX101", "UPSERT = '''\n  -- adds\n  INSERT INTO t VALUES (1)'''", "hook.run(UPSERT)"),
    "sql: an f-string": ("TX101", "T = 't'", "hook.run(f'DELETE FROM {T}')"),
    "sql: joined": ("TX101", "", "sql = 'INSERT INTO ' + rows + ' VALUES (1)'\nhook.execute(sql)"),
    "sql: format": ("TX101", "", "hook.run('UPDATE {} SET a = 1'.format(rows))"),
    "sql: a list": ("TX101", "", "hook.run(['SELECT 1', 'INSERT INTO t VALUES (1)'])"),
    "sql: a keyword": ("TX101", "", "hook.run(sql='INSERT INTO t VALUES (1)')"),
    "sql: text()": ("TX101", "import sqlalchemy as sa", "hook.execute(sa.text('DELETE FROM t'))"),
    "sql: with": ("TX101", "", "hook.execute('WITH a AS (SELECT 1) INSERT INTO t SELECT * FROM a')"),
    "sql: core": ("TX101", "from sqlalchemy import insert", "hook.execute(insert(rows).values(a=1))"),
    "sql: a table": ("TX101", "", "hook.execute(rows.insert(), [])"),
    "sql: a hook made elsewhere": ("TX101", "import other", "other.make().cursor().execute('DELETE FROM t')"),
    "sql: psycopg2": ("TX101", "from psycopg2.extras import execute_values as ev", "ev(hook, 'DELETE FROM t', [])"),
    "sql: rows": ("TX101", "", "hook.insert_rows('t', rows)"),
    "sql: pandas": ("TX101", "", "rows.to_sql('t', hook)"),
    "sql: redis": ("TX101", "", "hook.hincrby('h', 'k', 1)"),
    "http: a session": ("TX102", "import requests", "with requests.Session() as s:\n    s.post('http://a')"),
    "http: a verb": ("TX102", "import requests", "requests.request('PUT', 'http://a')"),
    "http: a client": ("TX102", "from httpx import Client", "client = Client()\nclient.delete('http://a')"),
    "http: urllib": ("TX102", "from urllib.request import Request, urlopen", "r = Request('a', b'x')\nurlopen(r)"),
    "http: a hook": ("TX102", "from airflow.providers.http.hooks.http import HttpHook", "HttpHook().run('x')"),
    "http: mail": ("TX102", "from airflow.utils.email import send_email", "send_email('a', 'b', 'c')"),
    "file: a mode": ("TX103", "", "open('/data/a', mode='w')"),
    "file: a path": ("TX103", "from pathlib import Path", "Path('/data/a').open('a')"),
    "file: text": ("TX103", "from pathlib import Path", "(Path('/data') / 'a').write_text('x')"),
    "file: pandas": ("TX103", "", "rows.to_parquet('/data/a')"),
    "file: a function of a module": ("TX103", "import tarfile", "tarfile.open('a.tar', 'w')"),
    "file: S3": ("TX103", "", "hook.load_string('x', key='k', bucket_name='b')"),
    "file: copied": ("TX103", "from shutil import copy as cp", "cp('/a', '/b')"),
    "file: an object": ("TX103", "import boto3", "boto3.client('s3').put_object(Bucket='b', Key='k')"),
    "sql: an operator": ("TX101", "", "SQLInsertRowsOperator(task_id='a', table_name='t', rows=[])"),
    "sql: S3 to Redshift": ("TX101", "", "S3ToRedshiftOperator(task_id='a', table='t', s3_key='k')"),
    "sql: polars": ("TX101", "", "rows.write_database('t', connection=hook, if_table_exists='append')"),
    "sql: Iceberg": ("TX101", "import pyiceberg.catalog as c", "c.load_catalog('a').load_table('b').append(rows)"),
    "sql: BigQuery": ("TX101", "", "hook.insert_rows_json('t', rows)"),
    "file: DuckDB": ("TX103", "import duckdb", "duckdb.sql(\"COPY rows TO '/data/a.parquet' (FORMAT parquet)\")"),
    "chance: a hash": ("TX105", "", "return hash(f'{rows}')"),
    "chance: a hash of a text": ("TX105", "", "return hash('a')"),
    "folder: listed": ("TX114", "import os", "return os.listdir('/data')"),
    "folder: a glob": ("TX114", "from glob import glob", "return sorted(glob('/data/*'))"),
    "folder: a path": ("TX114", "from pathlib import Path", "return [*Path('/data').iterdir()]"),
    "try: an attribute": ("TX114", "", "return f'/data/{rows.try_number}'"),
    "try: of the context": (
        "TX114", "from airflow.sdk import get_current_context", "ti = get_current_context()['ti']\nreturn ti.try_number"
    ),
    "state: an item": ("TX110", "SEEN = {}", "SEEN['a'] = 1"),
    "state: added": ("TX110", "from collections import defaultdict as dd\nSEEN = dd(int)", "SEEN['a'] += 1"),
    "state: global": ("TX110", "n = 0", "global n\nn += 1"),
    "state: a counter": ("TX110", "import itertools\nIDS = itertools.count()", "return next(IDS)"),
    "two levels deep": ("TX105", "import uuid\ndef a():\n    b()\ndef b():\n    return uuid.uuid4()", "return a()"),
    "a circle": ("TX105", "import uuid\ndef a():\n    return count() or a() or uuid.uuid4()", "return a()"),
    "a reference": ("TX105", "import uuid\ndef a(row):\n    return uuid.uuid4()", "return list(map(a, rows))"),
    "a method": (
        "TX101",
        "class Job:\n    def run(self):\n        self.save()\n"
        "    def save(self):\n        self.hook.run('DELETE FROM t')",
        "Job().run()",
    ),
    "a method of a class above": (
        "TX105",
        "import uuid\nclass Base:\n    def key(self):\n        return uuid.uuid1()\nclass Job(Base):\n    pass",
        "job = Job()\nreturn job.key()",
    ),
    "an attribute of self": (
        "TX102",
        "import requests\nclass Api:\n    def __init__(self):\n        self.s = requests.Session()\n"
        "    def send(self):\n        self.s.post('http://a')",
        "Api().send()",
    ),
}  # fmt: skip

CLEAN = {
    "a hash of a number": ("", "return hash(5) + hash(rows[0]['n'])"),
    "a folder of its own": ("import os, tempfile", "return os.listdir(tempfile.mkdtemp())"),
    "a try in a log line": ("import logging", "logging.info('try %s', rows.ti.try_number)\nreturn rows"),
    "a list that grows": ("", "found = []\nfound.append(rows)\nreturn found"),
    "a copy to a reader": ("", "hook.copy_expert('COPY t TO STDOUT', rows)\nreturn rows"),
    "a constant time": ("from datetime import datetime", "return datetime(2026, 1, 1)"),
    "a parsed time": ("from datetime import datetime", "return [datetime.fromisoformat(row['at']) for row in rows]"),
    "a name like a clock": ("", "now = rows[0]['now']\nreturn now"),
    "a duration": ("import time", "begin = time.time()\nprint(time.time() - begin)\nreturn []"),
    "a monotonic clock": ("import time", "begin = time.monotonic()\nreturn rows"),
    "a deadline": ("import time", "end = time.time() + 60\nwhile time.time() < end:\n    pass"),
    "a log line": ("import logging, datetime", "logging.info('at %s', datetime.datetime.now())\nreturn rows"),
    "a seed": ("import random", "return random.Random(current_batch().txid).random()"),
    "a seeded module": ("import random", "random.seed(1)\nreturn random.random()"),
    "a seeded sample": ("", "return rows.sample(n=3, random_state=1)"),
    "an id of the row": ("import uuid", "return uuid.uuid5(uuid.NAMESPACE_URL, rows[0]['url'])"),
    "a parameter like a module": ("import requests", "def send(requests):\n    requests.post('a')\nreturn rows"),
    "a query": ("", "return hook.get_records('SELECT * FROM updates -- INSERT INTO t')"),
    "a query with a word": ("", "hook.execute('SELECT replace(a, b, c) FROM t')"),
    "a text that is no SQL": ("", "hook.run('update of the day')"),
    "a name that is a mode": ("import tarfile", "return tarfile.open('a.tar'), hook.open('wax.csv')"),
    "a file of settings": ("", "return hook.load_file('rates.yaml')"),
    "an HTTP query": ("import requests", "return requests.get('http://a').json()"),
    "a file that is read": ("from pathlib import Path", "open('/a', 'rb')\nreturn Path('a').open().read()"),
    "a temporary file": (
        "import tempfile\nfrom pathlib import Path",
        "with tempfile.TemporaryDirectory() as folder:\n    path = Path(folder) / 'a'\n    path.write_text('x')\n"
        "    rows.to_csv(path)\n    open(f'{folder}/b', 'w')",
    ),
    "a buffer": ("import io", "buffer = io.StringIO()\nrows.to_csv(buffer)\nreturn buffer"),
    "a text of a frame": ("", "return rows.to_csv() + rows.to_json()"),
    "a local list": ("SEEN = []", "SEEN = []\nSEEN.append(1)"),
    "a list of the caller": ("", "found = []\nfor row in rows:\n    found.append(row)\nreturn found"),
    "a table that is read": ("RATES = {'a': 1}", "return RATES['a'] + RATES.get('b', 0)"),
    "an object of the module": ("import logging\nLOG = logging.getLogger()", "LOG.setLevel(1)\nLOG.update = 1"),
    "tracked messages": ("", "for each in current_batch().emit_many(3):\n    hook.rpush('q', each)"),
    "staged rows": ("", "return current_batch().stage(rows)"),
    "a function that no task calls": ("import uuid\ndef other():\n    return uuid.uuid4()", "return rows"),
}  # fmt: skip


@pytest.mark.parametrize("case", PLANTED)
def test_the_linter_finds_a_mistake_in_every_spelling(case: str, tmp_path: Path) -> None:
    code, above, line = PLANTED[case]
    assert set(codes_of(tmp_path, processing(line, above))) == {code}


@pytest.mark.parametrize("case", CLEAN)
def test_the_linter_has_no_finding_in_correct_code(case: str, tmp_path: Path) -> None:
    above, line = CLEAN[case]
    assert codes_of(tmp_path, processing(line, above)) == []


# --- shapes of a block --------------------------------------------------------------------------------------------

TASK = """
import requests
{decorated}
def send():
    requests.post("http://a")
"""
OPEN = "with DAG('a'), Transaction(source=FileSource('x')):\n    "
PYTHON = "from airflow.providers.standard.operators.python import PythonOperator\n"
BLOCKS = {
    "with two managers": ("@task", "@BLOCK send()"),
    "options": ("@task(retries=3)", "@BLOCK send.override(task_id='b')()"),
    "mapped": ("@task.virtualenv", "@BLOCK send.expand(a=[1])"),
    "a name": ("@task", "with DAG('a'):\n    tx = Transaction(source=FileSource('x'))\n    with tx:\n        send()"),
    "a function of a DAG": (
        "@task",
        "from airflow.sdk import dag\n@dag(schedule=None)\ndef a():\n"
        "    with Transaction(source=FileSource('x')):\n        send()\na()",
    ),
    "a task group": (
        "@task",
        "from airflow.sdk import TaskGroup\nwith DAG('a'), Transaction(source=FileSource('x')):\n"
        "    with TaskGroup('g'):\n        send()",
    ),
    "a task group by a function": (
        "@task",
        "from airflow.sdk import task_group\n@task_group\ndef g():\n    send()\n"
        "@BLOCK g()",
    ),
    "a PythonOperator": (
        "",
        PYTHON + "@BLOCK PythonOperator(task_id='s', python_callable=send)",
    ),
    "a lambda": (
        "",
        PYTHON + "@BLOCK PythonOperator(task_id='s', python_callable=lambda: send())",
    ),
    "an operator of the file": (
        "",
        "from airflow.sdk import BaseOperator\n"
        "class Send(BaseOperator):\n    def execute(self, context):\n        send()\n"
        "@BLOCK Send(task_id='s')",
    ),
    "the module of the package": (
        "@task",
        "import airflow_tx as tx\nwith DAG('a'), tx.Transaction(source=tx.FileSource('x')):\n    send()",
    ),
    "a task inside of the DAG": ("", "@BLOCK @task\n    def b():\n        send()\n    b()"),
}  # fmt: skip


@pytest.mark.parametrize("case", BLOCKS)
def test_the_linter_finds_a_task_in_any_spelling_of_a_transaction(case: str, tmp_path: Path) -> None:
    decorated, block = BLOCKS[case]
    text = f"{HEAD}{TASK.format(decorated=decorated)}\n{block.replace('@BLOCK ', OPEN)}\n"
    assert codes_of(tmp_path, text) == ["TX102"]


OPERATORS = {
    "SQLExecuteQueryOperator(task_id='a', sql='DELETE FROM t')": ["TX101"],
    "SQLExecuteQueryOperator(task_id='a', sql='SELECT 1')": [],
    "SparkBatchOperator(task_id='a', application='{{ var.value.app }}')": ["TX106"],
    "SparkBatchOperator(task_id='a', application='b.py', application_args=['{{ macros.datetime.now() }}'])": ["TX104"],
    "SparkBatchOperator(task_id='a', application='b.py', application_args=['{{ ds }}'])": [],
    "SparkBatchOperator(task_id='a', application='b.py', on_failure_callback=send)": [],
}


@pytest.mark.parametrize("operator", OPERATORS)
def test_the_linter_checks_an_operator_by_its_arguments(operator: str, tmp_path: Path) -> None:
    text = f"{HEAD}{TASK.format(decorated='')}\n{OPEN}{operator}\n"
    assert codes_of(tmp_path, text) == OPERATORS[operator]


def test_tasks_in_a_commit_phase_and_tasks_after_the_transaction_may_send_messages(tmp_path: Path) -> None:
    block = """
from airflow_tx import commit_phase
with DAG('a', max_active_runs=8):
    with Transaction(source=FileSource('x')):
        with commit_phase():
            commit = CommitOperator(task_id="commit", updates=[])
            send()
    commit >> send()
"""
    assert codes_of(tmp_path, f"{HEAD}{TASK.format(decorated='@task')}\n{block}") == []


def test_the_linter_follows_functions_into_modules_next_to_the_file(tmp_path: Path) -> None:
    helper = "from deeper import key\ndef keys(rows):\n    return [key(row) for row in rows]\n"
    deeper = "import uuid\ndef key(row):\n    return uuid.uuid4()\n"
    for above in ("from helper import keys", "import helper\nkeys = helper.keys", "from .helper import keys"):
        text = processing("return keys(rows)", above)
        assert codes_of(tmp_path, text, helper=helper, deeper=deeper) == ["TX105"], above


def test_the_linter_checks_the_spark_application_of_an_operator(tmp_path: Path) -> None:
    operator = "SparkBatchOperator(task_id='a', application='app.py')"
    application = """
from pyspark.sql import functions as F
from airflow_tx.spark import batch_app

@batch_app
def main(spark, batch):
    batch.emit("rows", batch.read().withColumn("id", F.rand()))
"""
    assert codes_of(tmp_path, f"{HEAD}\n{OPEN}{operator}\n", app=application) == ["TX111"]


# --- paths to the committer ---------------------------------------------------------------------------------------

PATHS = {
    "a = one()\nb = two(a)\nCommitOperator(task_id='c', updates=[b])": [],
    "one() >> two() >> CommitOperator(task_id='c', updates=[])": [],
    "c = CommitOperator(task_id='c', updates=[])\nc << [one(), two()]": [],
    "c = CommitOperator(task_id='c', updates=[])\none().set_downstream(c)": [],
    "c = CommitOperator(task_id='c', updates=[])\nchain(one(), two(), c)": [],
    "found = []\nfor n in range(3):\n    found.append(one())\nCommitOperator(task_id='c', updates=found)": [],
    "with TaskGroup('g') as g:\n    one()\ng >> CommitOperator(task_id='c', updates=[])": [],
    "a = one.override(task_id='d')()\nCommitOperator(task_id='c', updates=[a['n']])": [],
    "a = one()\ntwo(a)\nCommitOperator(task_id='c', updates=[a])": ["TX108"],
    "one()\nCommitOperator(task_id='c', updates=[two()])": ["TX108"],
    "a = SparkBatchOperator(task_id='a', application='a.py')\nCommitOperator(task_id='c', updates=[one()])": ["TX108"],
    "CommitOperator(task_id='c', updates=[one()]) >> two()": ["TX108"],
    "one()": [],
}


@pytest.mark.parametrize("lines", PATHS)
def test_the_linter_finds_a_task_without_a_path_to_the_committer(lines: str, tmp_path: Path) -> None:
    body = "\n    ".join(lines.splitlines())
    text = f"""{HEAD}
from airflow.sdk import TaskGroup, chain
@task
def one(): ...
@task
def two(a=None): ...
with DAG('a', max_active_runs=8), Transaction(source=FileSource('x')):
    {body}
"""
    assert codes_of(tmp_path, text) == PATHS[lines]


# --- options and applications -------------------------------------------------------------------------------------

OPTIONS = {
    "'a', max_active_runs=4": "TX109",
    "'a', **OPTIONS": "TX109",
    "'a'": None,
    "'a', max_active_runs=5": None,
    "'a', catchup=True": "TX107",
    "'a', catchup=CATCHUP": "TX107",
    "'a', catchup=False": None,
}


@pytest.mark.parametrize("options", OPTIONS)
def test_the_linter_checks_the_options_of_the_dag(options: str, tmp_path: Path) -> None:
    text = f"""{HEAD}
OPTIONS = {{"max_active_runs": 3}}
CATCHUP = True
with DAG({options}):
    with Transaction(source=FileSource('x'), max_pending=4):
        CommitOperator(task_id="commit", updates=[])
"""
    expected = OPTIONS[options]
    assert codes_of(tmp_path, text) == ([expected] if expected else [])


APPLICATIONS = {
    "df.withColumn('id', monotonically_increasing_id())": "TX111",
    "df.withColumn('id', F.expr('uuid()'))": "TX111",
    "df.selectExpr('current_date AS day')": "TX111",
    "df.groupBy('a').agg(F.collect_list('b'))": "TX111",
    "df.groupBy('a').agg(F.sort_array(F.collect_list('b')))": None,
    "df.groupBy('a').agg(F.sum('b'))": None,
    "df.withColumn('now', F.col('current_date_of_row'))": None,
    "df.sample(0.1)": "TX105",
    "df.sample(0.1, 42)": None,
    "df.write.mode('append').parquet('/data/x')": "TX103",
    "df.withColumn('id', key())": "TX105",
}


@pytest.mark.parametrize("expression", APPLICATIONS)
def test_the_linter_checks_a_spark_application(expression: str, tmp_path: Path) -> None:
    text = f"""
import uuid
from pyspark.sql import functions as F
from pyspark.sql.functions import monotonically_increasing_id, udf
from airflow_tx.spark import batch_app

@udf
def key():
    return str(uuid.uuid4())

@batch_app
def main(spark, batch):
    df = batch.read()
    batch.emit("rows", {expression})
"""
    expected = APPLICATIONS[expression]
    assert codes_of(tmp_path, text) == ([expected] if expected else [])
