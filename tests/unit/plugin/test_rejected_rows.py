"""The rejected rows of a transaction on its page: they are asked for only when a person wants to see them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.api_fastapi.auth.managers.simple.simple_auth_manager import SimpleAuthManager
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from fastapi.testclient import TestClient

from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.actions.dag_server import LONGEST_REJECTED, REASONS_SHOWN, REJECTED_SHOWN
from airflow_tx.plugin.api import access, app, dag_process
from airflow_tx.state import SqlTable, Sum
from airflow_tx.state.api import REJECTED_COLUMNS
from airflow_tx.state.sql.state import SqlState
from airflow_tx.testing.suites.state_tools import Grants
from tests.golden.board_world import DAG_ID, ROOT, HereProcess, KeptStore, airflow, here, store  # noqa: F401 - fixtures
from tests.integration.pipeline import Pipeline


@pytest.fixture
def topology(store: KeptStore, tmp_path: Path) -> SimpleNamespace:  # noqa: F811
    """A topology with two committed transactions, and an open one; its table of rejected rows."""
    pipeline = Pipeline(store, ROOT, topology="trace", journals=True)
    pipeline.request = replace(pipeline.request, dag_id=DAG_ID)
    for run in ("r1", "r2"):
        pipeline.run(run)
    pipeline.begin("r3")
    url = f"sqlite:///{tmp_path / 'state.db'}"
    state = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()})
    grants = Grants()
    grants.incarnation = pipeline.ledger.topology().incarnation
    return SimpleNamespace(
        states=[state], rejected=SqlTable.from_url(url, table="aside"), grants=grants, pipeline=pipeline
    )


@pytest.fixture
def client(here: None, monkeypatch: pytest.MonkeyPatch) -> TestClient:  # noqa: F811
    manager = SimpleAuthManager()  # type: ignore[no-untyped-call]
    monkeypatch.setattr(access, "get_auth_manager", lambda: manager)
    made = app.make_app()
    made.dependency_overrides[access.access_of] = lambda: access.Access(
        SimpleAuthManagerUser(username="ada", role="admin")
    )
    return TestClient(made, raise_server_exceptions=False)


def row(task: str, reason: str, content: str, where: str = "") -> dict[str, str]:
    return dict(zip(REJECTED_COLUMNS, (task, reason, where, content), strict=True))


def reject(topology: SimpleNamespace, *rows: dict[str, str], txid: int = 2) -> None:
    topology.grants.commit_rows(txid, topology.rejected, list(rows))


def get(client: TestClient, txid: int = 2) -> Any:
    return client.get(f"/api/v1/topologies/trace/transactions/{txid}/rejected")


def test_the_answer_counts_the_reasons_and_shows_the_rejected_rows(
    client: TestClient, topology: SimpleNamespace
) -> None:
    reject(topology, row("count", "late", "a"), row("count", "late", "b"), row("", "no number", "c", "x.csv:2"))
    assert get(client).json() == {
        "reasons": [{"task": "count", "reason": "late", "rows": 2}, {"task": "", "reason": "no number", "rows": 1}],
        "others": 0,
        "rows": 3,
        "shown": [
            {"task": "", "reason": "no number", "where": "x.csv:2", "content": "c"},
            {"task": "count", "reason": "late", "where": "", "content": "a"},
            {"task": "count", "reason": "late", "where": "", "content": "b"},
        ],
    }


def test_an_answer_with_many_reasons_and_rows_is_shortened_and_includes_their_numbers(
    client: TestClient, topology: SimpleNamespace
) -> None:
    reject(topology, *(row("count", f"reason {number:03}", "x") for number in range(100)))
    found = get(client).json()
    assert (len(found["reasons"]), found["others"]) == (REASONS_SHOWN, 100 - REASONS_SHOWN)
    assert (len(found["shown"]), found["rows"]) == (REJECTED_SHOWN, 100)


def test_a_long_rejected_row_is_shortened(client: TestClient, topology: SimpleNamespace) -> None:
    reject(topology, row("count", "y" * 100_000, "x" * 100_000))
    found = get(client).json()
    assert len(get(client).content) < 4 * LONGEST_REJECTED
    assert found["shown"][0]["content"] == "x" * LONGEST_REJECTED + " ..."


def test_credentials_in_a_rejected_row_are_hidden(client: TestClient, topology: SimpleNamespace) -> None:
    reject(topology, row("count", "password=sesame1", '{"url": "https://ann:sesame2@shop/"}'))
    text = get(client).text
    assert "https://***@shop/" in text
    assert "sesame" not in text


def test_the_page_of_a_transaction_does_not_read_the_table_of_rejected_rows(
    client: TestClient, topology: SimpleNamespace, monkeypatch: pytest.MonkeyPatch
) -> None:
    reject(topology, row("count", "late", "a"))
    asked: list[Any] = []
    monkeypatch.setattr(HereProcess, "ask", lambda self, question, **how: asked.append(question))
    monkeypatch.setattr(dag_process, "EVERY", float("inf"))
    assert client.get("/api/v1/topologies/trace/transactions/2").status_code == 200
    assert asked == []


def test_a_request_for_the_rejected_rows_of_an_open_transaction_is_refused(client: TestClient) -> None:
    answer = get(client, 3)
    assert answer.status_code == 409
    assert "and nothing has been written yet" in answer.json()["detail"]


def test_a_request_for_the_rejected_rows_of_an_unknown_transaction_is_refused(client: TestClient) -> None:
    answer = get(client, 99)
    assert (answer.status_code, "No transaction 99" in answer.json()["detail"]) == (409, True)


def test_rejected_rows_are_shown_while_a_restatement_is_requested_but_has_not_begun(
    client: TestClient, topology: SimpleNamespace
) -> None:
    reject(topology, row("count", "late", "a"))
    topology.pipeline.ledger.run(want, WishRequest(2, "r2", "r2"), Audit("ann", "why"))
    assert get(client).json()["rows"] == 1
