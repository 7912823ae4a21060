"""A search of all topologies in a real api-server, and in a browser."""

from __future__ import annotations

from typing import Any

import pytest
from playwright.sync_api import ViewportSize, expect

from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.testing.eventually import eventually
from tests.airflow.browser import NARROW, WIDE, People
from tests.integration.board.server import OF_ONE_DAG, ROOT, STRANGER, Board
from tests.integration.cli_runs import fail
from tests.integration.pipeline import Pipeline

LARGE = ViewportSize(width=1400, height=900)


def files(store: ZooKeeperStore, topology: str, dag_id: str = "the_dag") -> Pipeline:
    """A topology whose transaction n has file n."""
    pipeline = Pipeline(store, ROOT, topology=topology)
    pipeline.request = TopologyRequest(dag_id, "opaque", 3)
    pipeline.metadata = lambda row: {"files": [{"name": f"2026-05-0{row}.csv"}, {"name": f"{topology}-{row}.txt"}]}
    return pipeline


@pytest.fixture
def searched(board: Board, store: ZooKeeperStore) -> Any:
    """Two topologies of one DAG, of which the second has failed, and one of another DAG."""
    files(store, "orders").run("orders_1")
    flights = files(store, "flights")
    flights.run("flights_1")
    fail(flights, flights.begin("flights_2"), "Disk is full")
    files(store, "hidden", "lossy").run("hidden_1")
    begun = {"orders": 1, "flights": 2, "hidden": 1}

    def seen() -> bool:
        lines = board.get("topologies")["topologies"]
        return begun.items() <= {each["topology"]: each["allocated"] for each in lines}.items()

    eventually(seen, 240, "all are seen")
    return board


def found(board: Board, what: str, user: str = "vera", **params: Any) -> list[tuple[Any, ...]]:
    answer = board.get("search", user, what=what, **params)
    return [(each["topology"], each["txid"], each["phase"], each["matched"]) for each in answer["found"]]


def test_a_search_finds_a_file_in_every_topology_and_lists_the_most_urgent_topology_first(searched: Board) -> None:
    assert found(searched, "2026-05-01.csv") == [
        ("flights", 1, "COMMITTED", "batch"),
        ("hidden", 1, "COMMITTED", "batch"),
        ("orders", 1, "COMMITTED", "batch"),
    ]
    assert found(searched, "ORDERS-1.txt") == [("orders", 1, "COMMITTED", "batch")]


def test_a_search_finds_transactions_by_run_by_error_and_by_txid(searched: Board) -> None:
    assert found(searched, "flights_2") == [("flights", 2, "FAILED", "run")]
    assert found(searched, "disk is full") == [("flights", 2, "FAILED", "error")]
    assert ("flights", 2, "FAILED", "txid") in found(searched, "2")


def test_a_search_reads_only_topologies_that_match_the_filter(searched: Board) -> None:
    assert found(searched, "2026-05-01.csv", text="ORD") == [("orders", 1, "COMMITTED", "batch")]
    assert found(searched, "2026-05-01.csv", state="failed") == [("flights", 1, "COMMITTED", "batch")]


def test_the_result_of_a_search_does_not_reveal_topologies_that_the_user_may_not_see(searched: Board) -> None:
    assert {topology for topology, *_ in found(searched, "2026-05-01", OF_ONE_DAG)} == {"flights", "orders"}
    hidden = searched.get("search", OF_ONE_DAG, what="hidden_1")
    nothing = searched.get("search", OF_ONE_DAG, what="no such run")
    assert hidden == nothing
    assert (hidden["topologies"], hidden["looked"], hidden["transactions"]) == (2, 2, 3)
    strange = searched.get("search", STRANGER, what="2026-05-01")
    assert (strange["found"], strange["topologies"], strange["transactions"], strange["complete"]) == ([], 0, 0, True)


def test_an_empty_search_is_refused(board: Board) -> None:
    with board.client("vera") as client:
        answer = client.get("/api/v1/search", params={"what": "  "})
    assert (answer.status_code, answer.json()) == (422, {"detail": "Enter a text to search for."})


@pytest.mark.long
def test_a_person_finds_a_file_on_the_overview_and_opens_its_transaction(searched: Board, people: People) -> None:
    vera = people("vera")
    vera.open()
    vera.board.get_by_role("searchbox", name="Find transactions").fill("orders-1.txt")
    vera.page.keyboard.press("Enter")
    found = vera.board.get_by_role("region", name="Find transactions")
    link = found.get_by_role("link", name="orders, 1", exact=True)
    expect(link).to_be_visible()
    # The list of topologies is as it was; the address can be sent to others.
    expect(vera.board.get_by_role("link", name="flights", exact=True)).to_be_visible()
    vera.page.reload()
    for size in (NARROW, LARGE):
        for scheme in ("dark", "light"):
            vera.page.set_viewport_size(size)
            vera.page.emulate_media(color_scheme=scheme)
            expect(found).to_contain_text("batch orders-1.txt")
            assert (vera.findings(), vera.overflow()) == ([], 0)
    vera.page.set_viewport_size(WIDE)
    link.click()
    expect(vera.board.get_by_role("heading", level=1)).to_have_text("Transaction 1")
