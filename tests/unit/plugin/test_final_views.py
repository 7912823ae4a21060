"""What the api-server remembers of final transactions is bounded, whatever viewers look at."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.ledger.receipt import Outcome
from airflow_tx.ledger.views.status import TransactionView, view_final
from airflow_tx.plugin.api import snapshots
from airflow_tx.plugin.api.snapshots import FinalViews, RememberedViews
from tests.finals import final_record

ENDED = "2026-01-01T00:00:00.000+00:00"


def view(txid: int, outcome: Outcome = Outcome.COMMITTED) -> TransactionView:
    times = {"began": ENDED, "processed": ENDED, "granted_at": ENDED, "ended": ENDED}
    run = {"run_id": f"r{txid}", "rows": 1, "op": "op"}
    history = final_record(txid=txid, outcome=outcome, **times, **run)  # type: ignore[arg-type]
    return view_final(history, None)


def test_only_the_end_times_of_the_oldest_final_transactions_stay_in_the_cache() -> None:
    known = FinalViews(map(view, range(1, 6)), most=3)
    assert [known.get(txid) is not None for txid in range(1, 6)] == [False, False, True, True, True]
    assert all(known.ended(txid) is not None for txid in range(1, 6))


def test_a_skipped_transaction_is_not_cached_because_it_may_be_readmitted() -> None:
    known = FinalViews([view(1, Outcome.SKIPPED)])
    assert known.get(1) is None
    assert known.is_skipped(1)


def test_transactions_that_are_no_longer_in_the_ledger_are_removed_from_the_cache() -> None:
    known = FinalViews([view(1), view(2), view(3, Outcome.SKIPPED)])
    known.keep_only({2})
    assert (known.get(1), known.ended(1), known.ended(3), known.is_skipped(3)) == (None, None, None, False)
    assert known.get(2) is not None


def test_the_cache_removes_the_topology_that_was_viewed_the_longest_time_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(snapshots, "MOST_OF_ALL", 5)
    views = RememberedViews()
    record: Any = type("Record", (), {"incarnation": "a", "generation": 1})
    for name in ("first", "second", "third"):
        found = views.of(name, record, range(1, 4))
        for txid in range(1, 3):
            found.note(view(txid))
    views.forget_oldest("first")
    sizes = {name: len(views.of(name, record, range(1, 4))) for name in ("first", "second", "third")}
    assert sizes == {"first": 2, "second": 0, "third": 2}
