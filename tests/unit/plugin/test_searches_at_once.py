"""Searches of several people at once: a slow one of one person refuses nobody else, and ends once nobody waits."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import pytest
from airflow.api_fastapi.auth.managers.simple.user import SimpleAuthManagerUser
from airflow.api_fastapi.core_api.security import get_user
from fastapi import Request
from fastapi.testclient import TestClient
from starlette.middleware.base import BaseHTTPMiddleware

from airflow_tx.ledger.api import Store
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import LedgerView, topology_view
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api import questions, routes
from airflow_tx.plugin.api.access import Visit
from airflow_tx.plugin.api.app import make_app
from airflow_tx.plugin.api.questions import AGAIN_AFTER
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from airflow_tx.testing.eventually import eventually
from tests.integration.pipeline import Pipeline

SLOW = "slow"
"""A search for this waits until the test lets it go on."""


class Ledgers:
    """Ledgers that wait for an event where somebody looks for `SLOW`."""

    def __init__(self) -> None:
        self.slow = threading.Semaphore(0)
        self.waiting = 0
        self.asked = 0
        self.search = threading.local()

    def unremembered(self, snapshot: TopologySnapshot, question: Callable[[Store], Any]) -> Any:
        self.asked += 1
        if self.search.what == SLOW:
            self.waiting += 1
            self.slow.acquire()
        assert snapshot.store is not None
        return question(snapshot.store)


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> Iterator[Ledgers]:
    pipeline = Pipeline(MemoryStore(), "/tx")
    pipeline.metadata = lambda row: {"files": [{"name": f"{row}.csv"}]}
    pipeline.run("r1")
    view = topology_view(pipeline.store, pipeline.paths, recent=0)
    final = LedgerView(pipeline.store, pipeline.paths).final_txids()
    place = LedgerPlace("flights", "zookeeper", pipeline.paths)
    snapshots = [TopologySnapshot(view.record, place, pipeline.store, view, final)] * 2
    found = Ledgers()
    monkeypatch.setattr(routes, "ledger_snapshots", lambda: found)
    monkeypatch.setattr(routes, "_readable_topologies", lambda access: snapshots)
    search = routes.searched_all

    def slow(some: Any, what: str, **options: Any) -> Any:
        found.search.what = what
        return search(some, what, **options)

    monkeypatch.setattr(routes, "searched_all", slow)
    yield found
    for _ in range(100):
        found.slow.release()


@pytest.fixture
def client(ledgers: Ledgers) -> Iterator[TestClient]:
    app = make_app()

    def user(request: Request) -> SimpleAuthManagerUser:
        return SimpleAuthManagerUser(username=request.headers.get("person", "Anonymous"), role="admin")

    app.dependency_overrides[get_user] = user
    with TestClient(app, raise_server_exceptions=False) as client:
        yield client


def search(client: TestClient, what: str, **headers: str) -> httpx.Response:
    named = {name.replace("_", "-"): value for name, value in headers.items()}
    answer: httpx.Response = client.get("/api/v1/search", params={"what": what}, headers=named)
    return answer


@pytest.fixture
def pool() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(4) as pool:
        yield pool


def test_a_second_search_of_one_person_is_refused_while_other_people_can_search(
    client: TestClient, ledgers: Ledgers, pool: ThreadPoolExecutor
) -> None:
    first = pool.submit(search, client, SLOW, person="vera")
    eventually(lambda: ledgers.waiting == 1, 240, "the first search waits")
    for _ in range(3):
        again = search(client, "1.csv", person="vera")
        assert (again.status_code, again.headers["retry-after"]) == (429, str(AGAIN_AFTER))
        other = search(client, "1.csv", person="otto")
        assert (other.status_code, len(other.json()["found"])) == (200, 1)
    assert again.json()["detail"].startswith("Another search of yours is under way.")
    for _ in range(4):
        ledgers.slow.release()
    assert first.result().status_code == 200
    assert search(client, "1.csv", person="vera").status_code == 200


def test_searches_without_a_login_are_distinguished_by_the_browser(
    client: TestClient, ledgers: Ledgers, pool: ThreadPoolExecutor
) -> None:
    pool.submit(search, client, SLOW, user_agent="one")
    eventually(lambda: ledgers.waiting == 1, 240, "the first search waits")
    assert search(client, "1.csv", user_agent="one").status_code == 429
    assert search(client, "1.csv", user_agent="another").status_code == 200
    for _ in range(4):
        ledgers.slow.release()


def test_a_search_is_refused_when_all_search_threads_are_in_use(
    client: TestClient, ledgers: Ledgers, monkeypatch: pytest.MonkeyPatch, pool: ThreadPoolExecutor
) -> None:
    monkeypatch.setattr(questions, "MOST_SEARCHES", 1)
    pool.submit(search, client, SLOW, person="vera")
    eventually(lambda: ledgers.waiting == 1, 240, "the first search waits")
    assert "Searches of 1 other people are under way." in search(client, "1.csv", person="otto").json()["detail"]
    for _ in range(4):
        ledgers.slow.release()


async def passed_on(request: Request, answer: Callable[[Request], Any]) -> Any:
    return await answer(request)


@pytest.mark.parametrize("behind", [False, True], ids=["alone", "behind a middleware, as in Airflow"])
def test_a_search_whose_browser_has_disconnected_ends_and_frees_its_thread(
    client: TestClient, ledgers: Ledgers, *, behind: bool
) -> None:
    sent: list[Any] = []
    app: Any = BaseHTTPMiddleware(client.app, dispatch=passed_on) if behind else client.app
    path = "/api/v1/search"
    scope = {
        "type": "http", "method": "GET", "path": path, "raw_path": path.encode(), "root_path": "", "scheme": "http",
        "query_string": b"what=" + SLOW.encode(), "headers": [(b"person", b"vera")], "http_version": "1.1",
        "server": ("h", 1), "client": ("c", 1),
    }  # fmt: skip

    async def leave() -> None:
        left = asyncio.Event()
        messages = [{"type": "http.request", "body": b"", "more_body": False}]

        async def receive() -> Any:
            if messages:
                return messages.pop()
            await left.wait()
            return {"type": "http.disconnect"}

        async def send(message: Any) -> None:
            sent.append(message)

        asking = asyncio.create_task(app(scope, receive, send))
        while ledgers.waiting == 0:
            await asyncio.sleep(0.01)
        left.set()
        visit = await visits.get()
        while not visit.has_left():
            await asyncio.sleep(0.01)
        ledgers.slow.release()
        await asking

    visits: asyncio.Queue[Any] = asyncio.Queue()
    made = Visit.__init__

    def note(visit: Any) -> None:
        made(visit)
        visits.put_nowait(visit)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Visit, "__init__", note)
        asyncio.run(leave())
    # Of two topologies it has looked at the one that it waited for.
    assert ledgers.asked == 1
    assert search(client, "1.csv", person="vera").status_code == 200


@pytest.mark.parametrize(
    ("what", "status"),
    [
        ("x" * 50_000, 422), (" \t\n", 422), ("", 422), ("[(*+?{|^$\\", 200), ("'\"; DROP TABLE", 200), ("\0", 200),
        ("%ED%A0%80", 200), ("1" * 200, 200), ("٣", 200), ("²", 200), ("../..", 200), ("2026-99-99", 200), ("🦆", 200),
    ],
)  # fmt: skip
@pytest.mark.usefixtures("ledgers")
def test_any_search_text_is_answered_with_a_short_response(client: TestClient, what: str, status: int) -> None:
    answer = search(client, what, person="vera")
    assert answer.status_code == status
    assert len(answer.content) < 1000


def test_a_search_with_an_unpaired_surrogate_in_its_url_is_answered(client: TestClient) -> None:
    assert client.get("/api/v1/search?what=%ED%A0%80a", headers={"person": "vera"}).status_code == 200
