"""A search of all topologies is bounded, and says what it did not look at."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import StoreUnavailable, TxError
from airflow_tx.ledger.api import Paths, Put, Store
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import LedgerView, topology_view
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.operations.actions.search import MOST_FOUND
from airflow_tx.plugin.api import routes
from airflow_tx.plugin.api.routes import searched_all
from airflow_tx.plugin.api.snapshots import LedgerAway, TopologySnapshot
from tests.integration.cli_runs import fail
from tests.integration.pipeline import Pipeline


class Asked:
    """The ledgers: each is asked on the store of its snapshot; the ones in `away` do not answer."""

    def __init__(self) -> None:
        self.away: set[str] = set()
        self.error: TxError = StoreUnavailable(hosts="h", connection="c", reason="it is away")
        self.asked: list[str] = []

    def unremembered(self, snapshot: TopologySnapshot, question: Callable[[Store], Any]) -> Any:
        self.asked.append(snapshot.name)
        if snapshot.name in self.away:
            raise self.error
        assert snapshot.store is not None
        return question(snapshot.store)


@pytest.fixture
def ledgers(monkeypatch: pytest.MonkeyPatch) -> Asked:
    asked = Asked()
    monkeypatch.setattr(routes, "ledger_snapshots", lambda: asked)
    monkeypatch.setattr(routes, "redacted", lambda text: text)
    return asked


def snapshot(name: str, transactions: int = 2) -> TopologySnapshot:
    """A topology whose transaction n has the file `name-n.csv`."""
    pipeline = Pipeline(MemoryStore(), "/tx", topology=name)
    pipeline.metadata = lambda row: {"files": [{"name": f"{name}-{row}.csv"}]}
    for number in range(transactions):
        pipeline.run(f"r{number}")
    view = topology_view(pipeline.store, pipeline.paths, recent=0)
    place = LedgerPlace(name, "zookeeper", pipeline.paths)
    final = LedgerView(pipeline.store, pipeline.paths).final_txids()
    return TopologySnapshot(view.record, place, pipeline.store, view, final)


def test_a_search_covers_every_topology_and_names_the_part_of_a_transaction_that_matches(ledgers: Asked) -> None:
    answer = searched_all([snapshot("orders"), snapshot("flights")], " -2.CSV ")
    assert [(each.topology, each.txid, each.matched.value, each.text) for each in answer.found] == [
        ("orders", 2, "batch", "orders-2.csv"),
        ("flights", 2, "batch", "flights-2.csv"),
    ]
    assert (answer.topologies, answer.looked, answer.transactions, answer.complete) == (2, 2, 4, True)


def test_a_search_of_too_many_topologies_covers_the_first_and_reports_that_it_is_incomplete(
    ledgers: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MOST_TOPOLOGIES", 2)
    answer = searched_all([snapshot(name) for name in "abc"], "csv")
    assert {each.topology for each in answer.found} == {"a", "b"}
    assert (answer.topologies, answer.looked, answer.partly, answer.complete) == (3, 2, 0, False)


def test_all_topologies_share_the_maximum_number_of_transactions_that_one_search_reads(
    ledgers: Asked, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "MOST_SEARCHED", 6)
    # What the first does not need is left to the others.
    answer = searched_all([snapshot("a", 1), snapshot("b", 9), snapshot("c", 9)], "csv")
    assert [each.txid for each in answer.found] == [1, 9, 8, 9, 8, 7]
    assert (answer.transactions, answer.partly, answer.complete) == (6, 2, False)


def test_a_search_ends_after_its_time_limit(ledgers: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "ALL_WITHIN", -1.0)
    answer = searched_all([snapshot("a")], "csv")
    assert (answer.found, answer.topologies, answer.looked, answer.complete) == ([], 1, 0, False)


def test_a_search_ends_after_it_has_found_enough_transactions(ledgers: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_FOUND", 3)
    answer = searched_all([snapshot("a"), snapshot("b"), snapshot("c")], "csv")
    assert [(each.topology, each.txid) for each in answer.found] == [("a", 2), ("a", 1), ("b", 2)]
    assert not answer.complete


def test_a_search_continues_with_an_unreachable_ledger_and_names_its_topologies(ledgers: Asked) -> None:
    ledgers.away = {"a"}
    answer = searched_all([snapshot("a"), snapshot("b")], "csv")
    assert {each.topology for each in answer.found} == {"b"}
    assert (answer.unread, answer.complete) == (["a"], False)


def test_a_filter_cannot_find_the_hidden_part_of_an_error(ledgers: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    pipeline = Pipeline(MemoryStore(), "/tx")
    fail(pipeline, pipeline.begin("r1"), "host db.example.org is away")
    view = topology_view(pipeline.store, pipeline.paths, recent=0)
    some = [TopologySnapshot(view.record, LedgerPlace("a", "c", pipeline.paths), pipeline.store, view)]
    assert [each.matched.value for each in searched_all(some, "example").found] == ["error"]
    monkeypatch.setattr(routes, "redacted", lambda text: text.replace("db.example.org", "***"))
    assert searched_all(some, "example").found == []
    assert [each.text for each in searched_all(some, "is away").found] == ["host *** is away"]


def of_pipeline(pipeline: Pipeline, name: str) -> TopologySnapshot:
    view = topology_view(pipeline.store, pipeline.paths, recent=0)
    final = LedgerView(pipeline.store, pipeline.paths).final_txids()
    return TopologySnapshot(view.record, LedgerPlace(name, name, pipeline.paths), pipeline.store, view, final)


def digests(name: str, runs: int) -> TopologySnapshot:
    """A topology whose batches have the text `cafe` in a digest and in the name of a column alone."""
    pipeline = Pipeline(MemoryStore(), "/tx", topology=name)
    pipeline.metadata = lambda row: {
        "folder": "/data",
        "files": [{"name": f"{row}.csv", "digest": "content:cafe"}],
        "schema": "cafe STRING",
    }
    for number in range(runs):
        pipeline.run(f"r{number}")
    return of_pipeline(pipeline, name)


def test_a_match_in_the_name_of_a_batch_is_listed_before_a_match_in_digests(ledgers: Asked) -> None:
    pipeline = Pipeline(MemoryStore(), "/tx", topology="b")
    pipeline.metadata = lambda row: {"files": [{"name": "the_cafe.csv"}]}
    pipeline.run("r0")
    answer = searched_all([digests("a", MOST_FOUND + 1), of_pipeline(pipeline, "b")], "cafe")
    assert [(each.topology, each.matched.value) for each in answer.found[:2]] == [("b", "batch"), ("a", "detail")]
    assert answer.found[1].text == "digest content:cafe"
    assert (len(answer.found), answer.complete) == (MOST_FOUND, False)


def test_a_match_of_a_complete_name_is_listed_before_a_match_of_a_part_of_a_name(ledgers: Asked) -> None:
    pipeline = Pipeline(MemoryStore(), "/tx", topology="a")
    pipeline.metadata = lambda row: {"folder": "/data", "files": [{"name": f"{row}.csv"}]}
    for number in range(21):
        pipeline.run(f"r{number}")
    found = searched_all([of_pipeline(pipeline, "a")], "1.csv").found
    assert [each.txid for each in found] == [1, 21, 11]


def test_a_search_finds_a_run_id_and_a_txid_of_any_age(ledgers: Asked, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(routes, "MOST_SEARCHED", 1)
    some = [snapshot("a", 3), snapshot("b", 3)]
    assert {(each.topology, each.txid) for each in searched_all(some, "r0").found} == {("a", 1), ("b", 1)}
    assert {(each.topology, each.txid) for each in searched_all(some, "1").found} >= {("a", 1), ("b", 1)}


def test_a_search_for_a_status_finds_transactions_with_this_status(ledgers: Asked) -> None:
    pipeline = Pipeline(MemoryStore(), "/tx")
    pipeline.run("r1")
    fail(pipeline, pipeline.begin("r2"), "Disk is full")
    found = searched_all([of_pipeline(pipeline, "a")], "Failed").found
    assert [(each.txid, each.matched.value, each.text) for each in found] == [(2, "status", "FAILED")]


def test_an_unreachable_zookeeper_is_queried_once_for_all_its_topologies(ledgers: Asked) -> None:
    some = [replace(snapshot(name), place=LedgerPlace(name, "gone", Paths("/tx", name))) for name in "abc"]
    ledgers.away = {"a", "b", "c"}
    ledgers.error = LedgerAway(reason="it is away")
    answer = searched_all([*some, snapshot("d")], "csv")
    assert (answer.unread, {each.topology for each in answer.found}) == (["a", "b", "c"], {"d"})
    assert ledgers.asked == ["a", "d", "d"]


def test_a_search_whose_browser_has_disconnected_reads_nothing_more(ledgers: Asked) -> None:
    answer = searched_all([snapshot("a")], "csv", has_left=lambda: True)
    assert (answer.looked, ledgers.asked) == (0, [])


def test_a_transaction_that_cannot_be_read_is_listed_last_with_its_path(ledgers: Asked) -> None:
    """It may be the wanted one."""
    orders = snapshot("orders", transactions=3)
    assert orders.store is not None
    path = orders.paths.history(2)
    orders.store.multi([], [Put(path, b"{")])
    found = searched_all([orders], "orders").found
    assert [each.txid for each in found] == [3, 1, 2]
    assert f"{path} cannot be read" in found[-1].text
