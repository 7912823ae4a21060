"""The facet of a transaction in what OpenLineage's file transport writes."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = Path(sys.prefix) / "openlineage"


@pytest.fixture(scope="module")
def facets(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """What the provider gets; in a process of its own, since it would listen to the tasks of all other tests here."""
    if not PACKAGES.is_dir():
        pytest.skip("needs the packages of requirements-openlineage.lock: script/env servers")
    folder = tmp_path_factory.mktemp("lineage")
    command = [sys.executable, "-m", "tests.integration.lineage_program", str(folder / "events")]
    path = os.pathsep.join([str(ROOT), str(PACKAGES)])
    environment = {**os.environ, "PYTHONPATH": path, "AIRFLOW_HOME": str(folder)}
    done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_run_of_our_operators_has_its_transaction_as_a_facet(facets: Any) -> None:
    facet = facets["begun"]
    facts = {name: facet.get(name) for name in ("topology", "txid", "attempt", "position", "rows", "restates")}
    assert facts == {"topology": "numbers", "txid": 1, "attempt": 1, "position": 10, "rows": None, "restates": None}


def test_a_task_without_a_transaction_has_no_facet(facets: Any) -> None:
    assert facets["without"] == {}
