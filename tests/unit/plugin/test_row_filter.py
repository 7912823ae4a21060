"""Which rows a filter lets through, of how many transactions."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta, timezone
from typing import Any

import pytest

from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Outcome, Replaced, Replayed
from airflow_tx.ledger.records import End, Phase, TopologyRecord
from airflow_tx.ledger.views.status import TransactionView, view_final
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.plugin.api import timeline as filters
from airflow_tx.plugin.api.snapshots import FinalViews, TopologySnapshot
from airflow_tx.plugin.api.timeline import MOST_LOOKED, ChosenRows, RowFilter, RowMark, RowStatus, chosen_rows
from tests.finals import final_record

NOON = datetime(2013, 1, 1, 12, tzinfo=timezone.utc)


def row(txid: int, seconds: float = 5, **changes: Any) -> TransactionView:
    """Transaction n ends n minutes after noon."""
    ended = NOON + timedelta(minutes=txid)
    began = (ended - timedelta(seconds=seconds)).isoformat()
    history = final_record(
        txid=txid, run_id=f"r{txid}", created=began, began=began,
        processed=began, granted_at=began, ended=ended.isoformat(), rows=1, op="op",
    )  # fmt: skip
    of_view = {name: changes.pop(name) for name in ("batch", "blocked", "restated_by") if name in changes}
    return replace(view_final(replace(history, **changes), None), **of_view)


def open_row(txid: int, phase: Phase, **changes: Any) -> TransactionView:
    view = row(txid, **changes)
    return replace(view, document=replace(view.document, phase=phase, end=None))


def skipped(txid: int, seconds: float = 5) -> TransactionView:
    return row(txid, seconds, end=End(Outcome.SKIPPED, (NOON + timedelta(minutes=txid)).isoformat()))


def chosen(views: Sequence[TransactionView], **wanted: Any) -> ChosenRows:
    finals = FinalViews(views)
    place = LedgerPlace("flights", "zookeeper_default", Paths("/tx", "flights"))
    record = TopologyRecord("life", "dag", "opaque", 3)
    txids = tuple(each.txid for each in views)
    snapshot = TopologySnapshot(record, place, None, None, final=txids, finals=finals)
    # Skipped ones are never remembered: they may still change.
    found = {each.txid: each for each in views}
    object.__setattr__(snapshot, "final_view", found.get)
    return chosen_rows(snapshot, txids, RowFilter(**wanted), NOON)


def test_the_filter_uses_the_status_that_the_timeline_shows() -> None:
    views = [
        row(1), skipped(2), open_row(3, Phase.PROCESSING), open_row(4, Phase.PROCESSING, error="it broke"),
        open_row(5, Phase.FAILED, blocked="the same again"),
    ]  # fmt: skip
    found = {status.value: chosen(views, status=frozenset({status})).txids for status in RowStatus}
    none: dict[str, list[int]] = {"PROCESSED": [], "COMMITTING": [], "READMITTED": []}
    assert found == {**none, "COMMITTED": [1], "SKIPPED": [2], "PROCESSING": [3], "FAILED": [4], "BLOCKED": [5]}
    assert chosen(views, status=frozenset({RowStatus.SKIPPED, RowStatus.FAILED})).txids == [2, 4]


@pytest.mark.parametrize(
    ("text", "txids"), [("manual_7", [1]), ("02.csv", [2]), ("disk is", [3, 4]), ("nothing", []), ("", [1, 2, 3, 4])]
)
def test_a_filter_searches_the_run_id_and_the_batch_and_the_errors_of_every_attempt(
    text: str, txids: list[int]
) -> None:
    replay = Replayed(1, NOON.isoformat(), "The disk is full")
    views = [row(1, run_id="Manual_7"), row(2, batch="02.CSV"), row(3, error="the DISK is full")]
    views.append(row(4, replays=[replay]))
    assert chosen(views, text=text).txids == txids


def test_a_filter_cannot_find_the_hidden_part_of_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(filters, "redacted", lambda text: text.replace("s3cret", "***"))
    views = [row(1, error="password s3cret"), row(2, batch="https://who:s3cret@example.org/1.csv")]
    assert chosen(views, text="s3cret").txids == []
    assert chosen(views, text="***").txids == [1, 2]


def test_an_error_is_redacted_once_no_matter_how_often_viewers_request_it(monkeypatch: pytest.MonkeyPatch) -> None:
    redacted: list[str] = []

    def noted(text: str) -> str:
        redacted.append(text)
        return text

    monkeypatch.setattr(filters, "redacted", noted)
    monkeypatch.setattr("time.monotonic", lambda: 7e9)
    views = [row(1, error="an error of its own"), row(2, error="an error of its own")]
    assert [chosen(views, text=text).txids for text in ("own", "other", "own")] == [[1, 2], [], [1, 2]]
    assert redacted == ["an error of its own"]


def test_a_run_id_filter_matches_only_the_complete_run_id() -> None:
    assert chosen([row(1), row(11)], run="r1").txids == [1]


def test_the_restated_filter_shows_restatements_and_restated_transactions() -> None:
    views = [row(1, restated_by=4), row(2), row(3, attempt=2), row(4, replaces=Replaced(1, ""))]
    assert chosen(views, marks=frozenset({RowMark.RESTATED})).txids == [1, 4]
    assert chosen(views, marks=frozenset({RowMark.REPLAYED})).txids == [3]
    assert chosen(views, marks=frozenset(RowMark)).txids == []


def test_the_slow_filter_shows_transactions_slower_than_95_percent_of_the_committed_ones() -> None:
    views = [row(txid, seconds=txid) for txid in range(1, 101)]
    views += [skipped(101, 96), open_row(102, Phase.PROCESSING, created=(NOON - timedelta(seconds=94)).isoformat())]
    found = chosen(views, marks=frozenset({RowMark.SLOW}))
    assert found.slow == 95
    assert found.txids == [96, 97, 98, 99, 100, 101]


def test_the_slow_filter_shows_nothing_if_no_transaction_is_committed() -> None:
    found = chosen([skipped(1, 99)], marks=frozenset({RowMark.SLOW}))
    assert (found.txids, found.slow) == ([], None)


def test_a_filter_of_too_many_transactions_covers_the_newest_and_names_the_first_covered_txid() -> None:
    views = [row(txid) for txid in range(1, MOST_LOOKED + 6)]
    found = chosen(views, run="r3")
    assert (found.txids, found.oldest) == ([], 6)
    assert chosen(views[5:], run="r7").oldest is None
