"""What Airflow loads of the board: nothing in a worker, all of it in the api-server."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib import import_module

import pytest

from airflow_tx import CommitOperator, Transaction
from airflow_tx.base import compat
from airflow_tx.plugin.api.app import OPENAPI, openapi_text
from airflow_tx.plugin.plugin import TransactionLink, TransactionsPlugin
from airflow_tx.sources.memory import MemorySource

LOADED = """
import json, sys
import airflow_tx.plugin.plugin
print("FOUND", json.dumps(sorted(sys.modules)))
"""


def test_the_stored_description_of_the_api_equals_the_generated_description() -> None:
    assert OPENAPI.read_text() == openapi_text(), "make it anew: python -m airflow_tx.plugin.api.app"


def test_a_component_that_shows_no_page_imports_no_code_of_the_pages() -> None:
    done = subprocess.run([sys.executable, "-c", LOADED], capture_output=True, text=True, check=True)
    modules = json.loads(done.stdout.split("FOUND ")[1])
    ours = [name for name in modules if name.startswith(("airflow_tx.plugin", "airflow_tx.ledger"))]
    assert ours == ["airflow_tx.plugin", "airflow_tx.plugin.plugin"]
    assert "fastapi" not in modules


def test_the_pages_have_one_name_and_separate_routes_and_keep_the_path_of_the_base_url(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from airflow_tx.plugin.plugin import react_apps

    monkeypatch.setenv("AIRFLOW__API__BASE_URL", "https://example.org/a/flow/")
    found = react_apps()
    assert {each["name"] for each in found} == {"Transactions"}
    assert [each["destination"] for each in found] == ["nav", "dag", "dag_run"]
    assert len({each["url_route"] for each in found}) == 3
    assert all(each["bundle_url"].startswith("/a/flow/tx/board/main.umd.cjs?v=") for each in found)


def test_the_plugin_creates_its_apps_only_once() -> None:
    assert TransactionsPlugin.react_apps is TransactionsPlugin.react_apps
    (app,) = TransactionsPlugin.fastapi_apps
    assert app["url_prefix"] == "/tx"


def test_every_listed_operator_of_the_package_exists_and_has_the_link_to_its_transaction() -> None:
    for operator in TransactionLink.operators:
        if operator.__name__ not in compat.DECORATED_TASKS:
            found = getattr(import_module(operator.__module__), operator.__name__)
            assert found.__module__ == operator.__module__


def test_a_task_inside_a_transaction_has_the_link_and_a_task_outside_has_no_link() -> None:
    from airflow.sdk import DAG, task
    from airflow.serialization.serialized_objects import DagSerialization

    @task
    def double(row: int) -> int:
        return 2 * row

    @task
    def read(batch: object) -> list[int]:
        return []

    with DAG("linked", schedule=None, max_active_runs=16) as dag:
        double.override(task_id="elsewhere")(1)
        with Transaction(source=MemorySource({"0": [{"row": 1}]})) as tx:
            double.expand(row=read(tx.batch))
            CommitOperator(task_id="commit", updates=[])
    tasks = {each["__var"]["task_id"]: each["__var"] for each in DagSerialization.to_dict(dag)["dag"]["tasks"]}
    linked = {(operator.__name__, operator.__module__) for operator in TransactionLink.operators}
    found = {name for name, each in tasks.items() if (each["task_type"], each["_task_module"]) in linked}
    assert found == {"begin", "read", "double", "commit"}
