"""Which transactions have a text, by their records alone."""

from __future__ import annotations

import time
from typing import Any

import pytest

from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import LedgerView, topology_view
from airflow_tx.operations.actions.search import SearchedLedger, TextFound, WantedText
from tests.integration.cli_runs import fail
from tests.integration.pipeline import Pipeline


def found(
    pipeline: Pipeline, wanted: WantedText, *, most: int = 100, most_found: int = 50, seconds: float = 600
) -> TextFound:
    view = topology_view(pipeline.store, pipeline.paths, recent=0)
    final = LedgerView(pipeline.store, pipeline.paths).final_txids()
    ledger = SearchedLedger(pipeline.store, pipeline.paths, view.record.zone, view.opened, final)
    return ledger.look(wanted, most=most, most_found=most_found, until=time.monotonic() + seconds)


def parts(pipeline: Pipeline, what: str) -> list[tuple[int, str, str]]:
    """What has a text: txid, part and its text."""
    return [(each.view.txid, each.part.value, each.text) for each in found(pipeline, WantedText(what)).matches]


@pytest.fixture
def pipeline() -> Pipeline:
    """Transaction n has three files; 1 and 2 are committed, 3 has failed."""
    pipeline = Pipeline(MemoryStore(), "/tx")
    pipeline.metadata = lambda row: {
        "folder": "/data",
        "files": [{"name": f"2026-05-0{row}{part}.csv", "size": 7} for part in "abc"],
    }
    for run in ("scheduled__one", "manual__two"):
        pipeline.run(run)
    fail(pipeline, pipeline.begin("manual__three"), "Disk is full")
    return pipeline


@pytest.mark.parametrize(
    ("what", "has"),
    [
        ("2026-05-02c.CSV", [(2, "batch", "2026-05-02c.csv")]),
        ("2026-05-03", [(3, "batch", "2026-05-03a.csv")]),
        ("scheduled__", [(1, "run", "scheduled__one")]),
        ("2", [(2, "txid", "2"), (3, "batch", "2026-05-03a.csv"), (1, "batch", "2026-05-01a.csv")]),
        ("disk is", [(3, "error", "Disk is full")]),
        ("nothing like that", []),
    ],
)
def test_a_search_finds_a_text_in_each_part_of_open_and_final_transactions(
    pipeline: Pipeline, what: str, has: list[tuple[int, str, str]]
) -> None:
    assert sorted(parts(pipeline, what)) == sorted(has)


def test_a_search_finds_the_error_of_an_earlier_attempt(pipeline: Pipeline) -> None:
    pipeline.run("manual__three")
    assert parts(pipeline, "disk is")[0][:2] == (3, "error")


@pytest.mark.parametrize(
    ("what", "txids"),
    [
        ("2026-05-03", [2]),
        ("2026-05-03T23:00:00+02:00", [2]),
        ("2026-05-04", []),
        ("2026-13-01", []),
        ("0001-01-01", []),
    ],
)
def test_a_search_for_a_date_finds_the_transaction_whose_interval_contains_the_date(
    what: str, txids: list[int]
) -> None:
    week = {1: "2026-04-20T00:00:00+00:00", 2: "2026-04-27T00:00:00+00:00", 3: "2026-05-04T00:00:00+00:00"}
    pipeline = Pipeline(MemoryStore(), "/tx")
    pipeline.metadata = lambda row: {"from": week[row], "to": week[row + 1]}
    for run in ("r1", "r2"):
        pipeline.run(run)
    assert [txid for txid, part, _ in parts(pipeline, what) if part == "date"] == txids


def test_a_search_for_a_date_finds_the_partition_with_this_date() -> None:
    pipeline = Pipeline(MemoryStore(), "/tx")
    pipeline.metadata = lambda row: {"partition": f"2026-05-0{row}T00:00:00+02:00"}
    pipeline.run("r1")
    pipeline.run("r2")
    assert [txid for txid, _, _ in parts(pipeline, "2026-05-01T22:00:00Z")] == [2]


def test_a_search_does_not_find_text_that_is_hidden_from_the_user(pipeline: Pipeline) -> None:
    hide = {"hide_name": lambda text: "***", "hide_error": lambda text: "***"}
    for what in ("full", "2026-05-02c.csv"):
        assert found(pipeline, WantedText(what, **hide)).matches == ()


@pytest.mark.parametrize(("limits", "looked"), [({"most": 2}, 2), ({"most_found": 1}, 2), ({"seconds": -1.0}, 0)])
def test_a_search_that_ends_early_reports_that_it_is_incomplete(
    pipeline: Pipeline, limits: dict[str, Any], looked: int
) -> None:
    answer = found(pipeline, WantedText("csv"), **limits)
    assert (answer.looked, answer.complete) == (looked, False)
    assert found(pipeline, WantedText("csv")).complete


def test_a_search_lists_the_newest_transaction_first(pipeline: Pipeline) -> None:
    assert [txid for txid, _, _ in parts(pipeline, ".csv")] == [3, 2, 1]


def test_a_search_for_a_position_finds_it_only_if_the_search_text_names_its_partition() -> None:
    pipeline = Pipeline(MemoryStore(), "/tx")
    pipeline.metadata = lambda row: {"orders-0": {"from": 10 * row, "to": 10 * row + 10}, "orders-1": {}}
    pipeline.run("first")
    pipeline.run("second")
    assert parts(pipeline, "Orders-0:17") == [(1, "batch", "orders-0:17 (10 to 19)")]
    assert parts(pipeline, "orders-1:17") == parts(pipeline, "17") == []


@pytest.mark.parametrize(
    ("metadata", "what"),
    [
        ({"redis://ann:secret@host/0:list": {"from": 0, "quantity": 9}}, "redis://ann:secret@host/0:list:5"),
        ({"ann:secret": 5}, "ann:secret:5"),
        ({"day=0": {"folder": "s3://ann:secret@bucket", "files": [{"name": "01.csv"}]}}, "secret@bucket/01.csv"),
        ({"day=0": {"folder": "/d", "files": [{"name": "secret.csv"}]}}, "day=0:secret.csv"),
    ],
)
def test_a_search_does_not_find_a_position_whose_partition_name_is_hidden_from_the_user(
    metadata: Any, what: str
) -> None:
    pipeline = Pipeline(MemoryStore(), "/tx")
    pipeline.metadata = lambda row: metadata
    pipeline.run("r1")
    assert parts(pipeline, what) != []
    hidden = WantedText(what, hide_name=lambda text: text.replace("secret", "***"))
    assert found(pipeline, hidden).matches == ()
