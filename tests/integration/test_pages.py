"""The DAG files of the how-to pages: Airflow reads each of them, and a trial counts."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.dag_processing.dagbag import DagBag
from airflow.sdk import DAG

from airflow_tx.state import SqlTable
from airflow_tx.testing.dag_trial import trial
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.alarms import Alarm, AlarmKind
from tests.servers.postgres import LocalPostgres
from tests.servers.redis import LocalRedis

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
FILE = re.compile(r"^```python\n# (?:dags/)?(\w+\.py)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
PAGES = sorted(path.name for path in HOWTO.glob("*.md") if "```python\n# dags/" in path.read_text())


class Webhook(HTTPServer):
    """Keeps each body that it gets, with its idempotency key."""

    def __init__(self) -> None:
        self.received = list[tuple[str | None, Any]]()
        super().__init__(("127.0.0.1", 0), _Request)

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/"


class _Request(BaseHTTPRequestHandler):
    server: Webhook

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.received.append((self.headers["Idempotency-Key"], json.loads(body)))
        self.send_response(200)
        self.end_headers()


def dags_of(page: str, folder: Path) -> dict[str, DAG]:
    """Write the files of a page into a folder, and read them as Airflow does."""
    for name, code in FILE.findall((HOWTO / page).read_text()):
        (folder / name).write_text(code)
    bag = DagBag(dag_folder=str(folder))
    assert bag.import_errors == {}
    return dict(bag.dags)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("AIRFLOW_CONN_SPARK_DEFAULT", json.dumps({"conn_type": "spark", "host": "local[1]"}))
    return tmp_path


@pytest.mark.parametrize("page", PAGES)
def test_airflow_parses_the_dag_files_of_each_page(page: str, folder: Path) -> None:
    assert dags_of(page, folder)


def test_a_dag_with_the_source_of_the_page_counts_exactly(folder: Path) -> None:
    dag = dags_of("write-a-source.md", folder)["shop_sales"]
    result = trial(dag, rows=[{"shop": "berlin"}, {"shop": "paris"}, {"shop": "berlin"}], states={})
    assert result.states["tx_state.sales"].read() == [{"shop": "berlin", "sales": 2}, {"shop": "paris", "sales": 1}]


def test_a_trial_of_the_dag_on_the_page_shows_its_rejected_rows(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(folder))
    (folder / "inbox").mkdir()
    (folder / "inbox" / "visits-1.csv").write_text("page,seconds\nhome,5\nhome,-1\nhelp,soon\nhelp,2\n")
    monkeypatch.chdir(folder)
    dag = dags_of("keep-bad-rows-aside.md", folder)["visited_pages"]
    result = trial(dag, states={})
    assert result.state == "failed"
    assert result.rejected
    given = [{"page": "home", "seconds": seconds} for seconds in [5] * 199 + [-1]]
    result = trial(dag, rows=given, states={})
    assert result.state == "success"
    (row,) = result.states[result.rejected].rows  # type: ignore[union-attr]
    assert (row["tx_reason"], row["tx_content"]) == ("no seconds, or below 0", '{"page": "home", "seconds": -1}')


@pytest.fixture
def webhook() -> Iterator[Webhook]:
    with Webhook() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()


def test_the_callback_on_the_page_sends_the_alert_to_a_webhook(
    folder: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "alerted_words" in dags_of("../alarms.md", folder)
    monkeypatch.setenv("ALERT_URL", webhook.url)
    named: dict[str, Any] = {}
    exec((folder / "alerted_words.py").read_text(), named)
    named["alert"]({"alarm": Alarm(AlarmKind.BLOCKED, "words", "words", "It is blocked.", "Skip it.")})
    assert webhook.received == [(None, {"text": "blocked: It is blocked. Skip it."})]


def test_the_message_task_on_the_page_sends_the_txid_as_the_key_of_the_message(
    folder: Path, webhook: Webhook, monkeypatch: pytest.MonkeyPatch
) -> None:
    dag = dags_of("send-each-message-once.md", folder)["sent_words"]
    monkeypatch.setenv("RECEIVER", webhook.url)
    for _clear in (1, 2):
        assert trial(dag, rows=[{"value": "the dog"}], states={}).state == "success"
    assert [key for key, _ in webhook.received] == ["sent_words/1", "sent_words/1"]


def test_the_test_on_the_page_compares_the_rows_of_a_table(folder: Path) -> None:
    page = "append-rows-to-a-sql-table.md"
    assert "orders" in dags_of(page, folder)
    (code,) = re.findall(r"^```python\n# tests/test_orders.py\n(.*?)^```$", (HOWTO / page).read_text(), re.M | re.S)
    named: dict[str, Any] = {}
    exec(code, named)
    del sys.modules["orders"]
    named["test_an_empty_note_is_null"]()


def test_the_report_on_the_page_leaves_out_a_transaction_that_is_not_final(
    folder: Path, postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch
) -> None:
    url = postgres.url(postgres.new_database())
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", url.replace("+psycopg2", ""))
    grants, orders = Grants(), SqlTable.from_url(url, table="orders")
    for txid in (1, 2):
        grants.commit_rows(txid, orders, [{"price": 10 * txid}])
    orders.raise_and_write(grants(3), [{"price": 500}])
    named: dict[str, Any] = {}
    (code,) = [
        code for name, code in FILE.findall((HOWTO / "read-several-stores.md").read_text()) if name == "report.py"
    ]
    exec(code, named)
    event = SimpleNamespace(extra={"payload": {"first": 2, "last": 2}})
    assert named["report"].function({named["SALES"]: [event]}) == (30,)


def test_the_summary_task_on_the_page_runs_after_the_committer_in_the_commit_phase(
    folder: Path, redis: LocalRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW_CONN_WAREHOUSE", json.dumps({"conn_type": "sqlite", "host": f"{folder}/orders.db"}))
    monkeypatch.setenv("AIRFLOW_CONN_REDIS", redis.url())
    dag = dags_of("read-several-stores.md", folder)["sales"]
    result = trial(dag, rows=[{"product": "tea", "price": "3"}, {"product": "salt", "price": "4"}], states={})
    assert result.state == "success"
    assert "commit_phase.commit" in dag.get_task("commit_phase.summary").upstream_task_ids


FLIGHTS = [
    {"carrier": "AA", "origin": "JFK", "dep_delay": 5},
    {"carrier": "UA", "origin": "EWR", "dep_delay": None},
    {"carrier": "AA", "origin": "EWR", "dep_delay": -2},
]


def test_the_duckdb_and_polars_dags_on_the_page_count_rows_as_the_page_says(folder: Path) -> None:
    dags = dags_of("use-polars-or-duckdb.md", folder)
    by_duckdb = trial(dags["flights_by_carrier"], rows=FLIGHTS, states={})
    assert sorted(by_duckdb.states["tx_state.flights_by_carrier"].read(), key=str) == [
        {"carrier": "AA", "flights": 2, "late": 3}, {"carrier": "UA", "flights": 1, "late": None},
    ]  # fmt: skip
    by_polars = trial(dags["flights_by_airport"], rows=FLIGHTS, states={})
    assert sorted(by_polars.states["tx_state.carriers"].read(), key=str) == [
        {"carrier": "AA", "flights": 2}, {"carrier": "UA", "flights": 1},
    ]  # fmt: skip
    assert sorted(by_polars.states["tx_state.airports"].read(), key=str) == [
        {"origin": "EWR", "late": -2}, {"origin": "JFK", "late": 5},
    ]  # fmt: skip
