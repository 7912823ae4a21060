"""The examples in dags/: every file parses, and each one that `script/example` runs is exact."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from airflow_tx.local.examples import EXAMPLES

ROOT = Path(__file__).resolve().parents[2]
# In a process of its own: a DAG file is imported as Airflow does it, and leaves nothing behind.
PARSE = """
import json, sys
from airflow.dag_processing.dagbag import BundleDagBag
bag = BundleDagBag(dag_folder=sys.argv[1], bundle_path=sys.argv[1], bundle_name="examples")
print(json.dumps({"errors": bag.import_errors, "dags": {dag_id: dag.fileloc for dag_id, dag in bag.dags.items()}}))
"""


def test_every_dag_file_parses(tmp_path: Path) -> None:
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
    assert set(EXAMPLES) <= set(found["dags"])


def test_the_readme_names_every_example() -> None:
    readme = (ROOT / "README.md").read_text()
    assert [name for name in EXAMPLES if f"script/example {name}" not in readme] == []


@pytest.mark.long
@pytest.mark.timeout(700)
@pytest.mark.parametrize("name", sorted(EXAMPLES))
def test_an_example_is_exact(tmp_path: Path, name: str) -> None:
    command = [sys.executable, "-m", "airflow_tx.local.example", name, "--home", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert re.match(r"(\d+) of \1 ", done.stdout.splitlines()[-1]), done.stdout
