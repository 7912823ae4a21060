"""Which measurements of the last transactions are kept."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.ledger.steps.end import HOURS_KEPT, PACES_KEPT, hours_after, pace_after
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import LedgerView, topology_view
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api.snapshots import TopologySnapshot
from tests.finals import final_record
from tests.model.driver import Run, Topology


def ended(size: dict[str, Any] | None, seconds: int = 5, outcome: Outcome = Outcome.COMMITTED) -> TransactionRecord:
    processed = f"2026-01-01T00:{seconds // 60:02}:{seconds % 60:02}+00:00"
    return final_record(
        outcome=outcome,
        began="2026-01-01T00:00:00+00:00",
        processed=processed,
        size=size,
    )


def of(rows: int, seconds: int = 5) -> TransactionRecord:
    return ended({"rows": rows, "why": ""}, seconds)


def test_the_pace_records_rows_and_processing_seconds() -> None:
    assert pace_after([], of(100, 65)) == [[100, 65.0]]
    assert pace_after([[100, 65.0]], of(7)) == [[100, 65.0], [7, 5.0]]


@pytest.mark.parametrize(
    "history",
    [
        ended(None),
        ended({"rows": 0, "why": ""}),
        ended({"why": ""}),
        ended({"rows": 5, "why": ""}, outcome=Outcome.SKIPPED),
    ],
    ids=["of no known size", "empty", "without a count", "skipped"],
)
def test_a_transaction_without_measurements_does_not_change_the_pace(history: TransactionRecord) -> None:
    assert pace_after([[100, 65.0]], history) == [[100, 65.0]]


def test_measurements_in_another_unit_are_replaced() -> None:
    files = [[100, 65.0, "files"]]
    assert pace_after(files, ended({"files": 3, "why": ""})) == [*files, [3, 5.0, "files"]]
    assert pace_after(files, of(7)) == [[7, 5.0]]
    assert pace_after([[7, 5.0]], ended({"files": 3, "why": ""})) == [[3, 5.0, "files"]]


def test_a_clock_that_was_set_back_gives_zero_seconds() -> None:
    history = ended({"rows": 5, "why": ""})
    assert history.processed is not None
    back = replace(history, began=history.processed, processed=history.began)
    assert pace_after([], back) == [[5, 0.0]]


@given(st.lists(st.tuples(st.integers(1, 100), st.integers(0, 3000)), max_size=40))
def test_the_pace_keeps_the_last_measurements_and_the_largest_one(measured: list[tuple[int, int]]) -> None:
    pace: list[list[float]] = []
    for rows, seconds in measured:
        pace = pace_after(pace, of(rows, seconds))
    assert len(pace) == min(len(measured), PACES_KEPT)
    last = [[rows, float(seconds)] for rows, seconds in measured]
    assert pace[1:] == last[len(last) - len(pace) + 1 :]
    if measured:
        assert max(rows for rows, _ in pace) == max(rows for rows, _ in measured)


def test_the_newest_of_several_equally_large_measurements_is_kept() -> None:
    pace = [[100, 900.0], *([[100, 10.0]] * (PACES_KEPT - 1))]
    assert pace_after(pace, of(100, 10)) == [[100, 10.0]] * PACES_KEPT


def test_transactions_are_counted_per_hour_for_the_last_hours() -> None:
    hours: dict[str, int] = {}
    for hour in range(30):
        for minute in range(hour % 3 + 1):
            moment = f"2026-01-0{1 + hour // 24}T{hour % 24:02}:{minute:02}:00.000+00:00"
            hours = hours_after(hours, final_record(ended=moment))
    assert len(hours) == HOURS_KEPT
    assert hours["2026-01-02T05"] == 29 % 3 + 1
    assert "2026-01-01T04" not in hours


def test_the_topology_record_counts_the_final_transactions_per_hour_beyond_the_history() -> None:
    memory = MemoryStore()
    topology = Topology(lambda: memory, "/tx", [], history=2)
    for number in range(1, 8):
        run = Run(topology, f"r{number}")
        run.processed(2, {})
        if number == 4:
            topology.skip(number)
        else:
            run.commit()
    store = topology.store()
    assert ReadOnlyLedger(store, topology.paths).existing_topology().hours == {"2013-01-01T00": 7}
    place = LedgerPlace("trace", "zookeeper", topology.paths)
    record, view = ReadOnlyLedger(store, topology.paths).existing_topology(), topology_view(store, topology.paths)
    shown = TopologySnapshot(record, place, store, view, LedgerView(store, topology.paths).final_txids())
    assert len(shown.final) < 7
    assert shown.commits_per_hour(topology.clock.now())[-1] == 7
