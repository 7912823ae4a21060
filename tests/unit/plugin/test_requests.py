"""Requests that nobody should send: each is refused with little work, and without a part of it in the answer."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from airflow.api_fastapi.core_api.security import get_user
from fastapi.testclient import TestClient

from airflow_tx.plugin.api import action_routes
from airflow_tx.plugin.api.app import MOST_BODY, make_app
from tests.integration.board.server import SAME_ORIGIN

PATH = "/api/v1/topologies/flights/actions/replay/preview"
MARK = "marked-input"


@pytest.fixture
def client(monkeypatch: pytest.MonkeyPatch) -> TestClient:
    """A user who is logged in; nothing is asked of the ledger."""

    def unasked(*_: Any) -> None:
        raise AssertionError("the ledger is asked")

    monkeypatch.setattr(action_routes, "topology_for", unasked)
    app = make_app()
    app.dependency_overrides[get_user] = object
    return TestClient(app, raise_server_exceptions=False)


def test_only_the_beginning_of_a_request_body_that_is_too_long_is_read() -> None:
    read = []
    sent: list[Any] = []

    async def receive() -> Any:
        read.append(1)
        return {"type": "http.request", "body": b"1," * 8192, "more_body": True}

    async def send(message: Any) -> None:
        sent.append(message)

    headers = [(b"content-type", b"application/json"), (b"x-requested-with", b"airflow_tx")]
    scope = {
        "type": "http", "method": "POST", "path": PATH, "raw_path": PATH.encode(), "root_path": "", "scheme": "http",
        "query_string": b"", "headers": headers, "http_version": "1.1", "server": ("h", 1), "client": ("c", 1),
    }  # fmt: skip
    asyncio.run(make_app()(scope, receive, send))
    assert sent[0]["status"] == 413
    assert len(read) == MOST_BODY // 16384 + 1


@pytest.mark.parametrize(
    "body",
    [
        '{"txids": [NaN]}',
        '{"txids": [1e400]}',
        '{"txids": [-Infinity]}',
        '{"txids": ["\\ud800"]}',
        '{"\\ud800": 1}',
        f'{{"{MARK}": 1}}',
        f'{{"txids": ["{MARK}"]}}',
        f'{{"txids": [1], "force": "{MARK}"}}',
        f'["{MARK}"]',
        f'"{MARK}',
        '{"names": [""]}',
        '{"names": ["a\\u0000"]}',
        '{"names": ["a\\nb"]}',
        '{"names": ["\\u001b[31mred"]}',
        '{"names": ["\\ud800"]}',
        '{"names": "one"}',
        f'{{"names": ["{"x" * 501}"]}}',
        f'{{"names": [{", ".join(["1"] * 10_000)}]}}',
        '{"names": [' + '"a", ' * 9_999 + '"a"]}',
        '{"repair": "\\ud800"}',
        f'{{"repair": "{MARK * 9}"}}',
        f'{{"restate": "{MARK}"}}',
        "[" * 60_000,
        "1" * 60_000,
        "",
    ],
    ids=lambda body: body[:30],
)
def test_the_error_for_a_malformed_body_does_not_repeat_the_body(client: TestClient, body: str) -> None:
    answer = client.post(PATH, content=body, headers={**SAME_ORIGIN, "Content-Type": "application/json"})
    assert answer.status_code in (400, 422), answer.text
    assert MARK not in answer.text


@pytest.mark.parametrize(
    "path",
    [
        f"/api/v1/topologies?state={MARK}",
        f"/api/v1/topologies?limit={MARK}",
        f"/api/v1/topologies/flights/transactions?since={MARK}",
        f"/api/v1/topologies/flights/transactions/{MARK}",
        f"/api/v1/topologies/{MARK}~00/transactions",
        f"/api/v1/topologies/flights/search?what={MARK}{'x' * 300}",
    ],
)
def test_the_error_for_a_malformed_query_does_not_repeat_the_query(client: TestClient, path: str) -> None:
    answer = client.get(path)
    assert answer.status_code == 422, answer.text
    assert MARK not in answer.text


def test_the_error_for_an_unknown_action_does_not_repeat_the_action(client: TestClient) -> None:
    answer = client.post(f"/api/v1/topologies/flights/actions/{MARK}/preview", json={}, headers=SAME_ORIGIN)
    assert answer.status_code == 422
    assert MARK not in answer.text
