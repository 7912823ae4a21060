"""The examples in dags/: every file parses, and each one that `script/example` runs is exact."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import pytest

from airflow_tx.ledger.api import Store
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from examples import EXAMPLES
from examples.example import Example, judge
from examples.ledger import opened
from examples.servers import LAKE_VARIABLE
from tests.airflow.stack import Stack
from tests.cluster.object_storage import S3Server
from tests.servers.spark_session import skipped_without_jars

ROOT = Path(__file__).resolve().parents[2]
# In a process of its own: a DAG file is imported as Airflow does it, and leaves nothing behind.
PARSE = """
import json, sys
from airflow.dag_processing.dagbag import BundleDagBag
bag = BundleDagBag(dag_folder=sys.argv[1], bundle_path=sys.argv[1], bundle_name="examples")
print(json.dumps({"errors": bag.import_errors, "dags": {dag_id: dag.fileloc for dag_id, dag in bag.dags.items()}}))
"""


@pytest.mark.lead
@pytest.mark.worth("every example, as Airflow parses it")
def test_airflow_parses_every_dag_file_without_an_error(tmp_path: Path) -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("AIRFLOW")}
    environment.update(AIRFLOW_HOME=str(tmp_path), AIRFLOW__CORE__LOAD_EXAMPLES="False")
    command = [sys.executable, "-c", PARSE, str(ROOT / "dags")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    found = json.loads(done.stdout.splitlines()[-1])
    assert found["errors"] == {}
    without = {"order_book.py"}  # what daily_orders.py reads
    assert {Path(file).name for file in found["dags"].values()} | without == {
        path.name for path in (ROOT / "dags").glob("*.py")
    }
    assert {example.topology for example in EXAMPLES.values()} <= set(found["dags"])


def test_the_examples_page_names_every_example() -> None:
    page = (ROOT / "docs/howto/examples.md").read_text()
    assert [name for name in EXAMPLES if f"script/example {name}" not in page] == []


# What these show has tests of its own, such as test_corrections and test_backfill, or takes a whole Airflow.
TESTED_BY_THEMSELVES = {"chain", "corrections", "daily_orders", "kafka_counts", "lake", "sql_orders", "twitter"}
TOGETHER = sorted(set(EXAMPLES) - TESTED_BY_THEMSELVES)
FIRST = ("words",)


@pytest.fixture(scope="module")
def driven(
    stack: Stack, spark_connect: LocalSparkConnect, request: pytest.FixtureRequest
) -> Iterator[Mapping[str, Future[Example]]]:
    """These at once, for they mostly wait; on the Airflow of the other tests, and with a Spark that is warm."""
    wanted = {item.name for item in request.session.items}
    names = [name for name in TOGETHER if f"test_each_example_gives_exact_totals[{name}]" in wanted]
    examples = {name: EXAMPLES[name](stack.folder, print, stack.failpoints) for name in names}
    for example in examples.values():
        example.prepare()
    # The applications lie beside the folder of the DAGs, as in this repository.
    shutil.copytree(ROOT / "spark_apps", stack.folder / "spark_apps", dirs_exist_ok=True)
    files = [stack.airflow_dags / name for example in examples.values() for name in example.files]
    stack.connect("spark_connect_default", conn_type="spark_connect", host="127.0.0.1", port=spark_connect.port)
    with opened(stack.zookeeper.hosts) as store:
        for file in files:
            text = (ROOT / "dags" / file.name).read_text()
            file.write_text(text.replace("SparkBatchOperator", "SparkConnectBatchOperator"))
        with ThreadPoolExecutor(len(examples)) as pool:
            yield {name: pool.submit(_driven, example, stack, store) for name, example in examples.items()}
        for file in files:  # a coordinator would go on
            file.unlink()


def _driven(example: Example, stack: Stack, store: Store) -> Example:
    example.drive(stack.airflow, store)
    return example


@pytest.mark.worth("the only Spark Connect task in a real Airflow")
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.lead if name in FIRST else pytest.mark.long) for name in TOGETHER]
)
def test_each_example_gives_exact_totals(driven: Mapping[str, Future[Example]], name: str) -> None:
    example = driven[name].result()
    assert example.wrong() == []
    assert judge(example) == 0


@pytest.mark.long
@pytest.mark.parametrize("name", ["trident_words", "words", *sorted(TESTED_BY_THEMSELVES)])
def test_each_example_produces_exact_totals_when_its_own_command_runs_it(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "examples", name, "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"([1-9]\d*) of \1 ", done.stdout.splitlines()[-1]), done.stdout


@pytest.mark.long
def test_the_lake_example_gives_exact_totals_on_s3(tmp_path: Path) -> None:
    with skipped_without_jars(), S3Server("127.0.0.1") as server:
        conf = tmp_path / "conf"
        conf.mkdir()
        # Keys and endpoint come from the environment, as in the cluster of docker/.
        wanted = {name: value for name, value in server.spark_settings.items() if "ClassPath" in name or "path" in name}
        settings = "".join(f"{name} {value}\n" for name, value in wanted.items())
        (conf / "spark-defaults.conf").write_text(settings)
        own = {name: value for name, value in server.environment.items() if name.startswith("AWS_")}
        environment = {**os.environ, **own, LAKE_VARIABLE: "s3://staging/lake", "SPARK_CONF_DIR": str(conf)}
        command = [sys.executable, "-m", "examples", "lake", "--home", str(tmp_path / "home")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        assert re.match(r"([1-9]\d*) of \1 ", done.stdout.splitlines()[-1]), done.stdout
        assert (server.bucket / "lake" / "flights" / "_delta_log").is_dir()
        assert not (tmp_path / "home" / "lake" / "lake").exists()
        secret = own["AWS_SECRET_ACCESS_KEY"]
        logs = [file for file in (tmp_path / "home").rglob("*") if file.is_file()]
        assert logs
        assert [str(file) for file in logs if secret.encode() in file.read_bytes()] == []
