"""What lists, pages, receipts, events and verification say of a transaction that was restated."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import Asset

from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.audit.chain import StateEvidence
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.receipt import Replaced, restated
from airflow_tx.ledger.steps.end import note_readmission
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.views.view import LedgerView, topology_view, transaction_details
from airflow_tx.operations.actions.skip import TransactionSkip
from airflow_tx.operations.cli import receipts, render
from airflow_tx.operators.commit import LineageOperator, note_commit
from airflow_tx.plugin.api.figures import _Period
from airflow_tx.plugin.api.snapshots import FinalViews, TopologySnapshot
from airflow_tx.plugin.api.timeline import timeline_row
from airflow_tx.plugin.api.transaction_page import _actions, audit_lines
from airflow_tx.triggers.watcher import CommitsProducer, CommitsTrigger
from tests.unit.protocol.books import Books

ADA = Audit("ada", "a bug")


@pytest.fixture
def books() -> Books:
    """Transactions 1 to 3, of which 4 restates 1; the runs are those of the rows 1 to 3."""
    made = Books(added=["n"], journals=True)
    made.run(3)
    assert made.pipeline.restate(1, "run 1", 5) == 4
    return made


def notes(books: Books) -> dict[int, str | None]:
    """What `airflow tx list` notes of each transaction."""
    view = topology_view(books.store, books.pipeline.paths)
    return {row["txid"]: row["note"] for row in [*map(render.transaction, view.transactions), *render.wished(view)]}


def shown(books: Books, txid: int) -> dict[str, Any]:
    """What `airflow tx show` says."""
    found = render.details(transaction_details(books.store, books.pipeline.paths, txid))
    return {name: found[name] for name in ("restates", "restated_by", "pinned")}


def test_a_list_shows_which_transaction_restates_which_other_transaction(books: Books) -> None:
    assert notes(books) == {1: "restated by 4", 2: None, 3: None, 4: "restates 1: a bug (ada)"}
    assert books.pipeline.restate(4, "run 1", 1) == 5
    assert {txid: notes(books)[txid] for txid in (1, 4, 5)} == {
        1: "restated by 5",
        4: "restates 1: a bug (ada); restated by 5",
        5: "restates 4: a bug (ada)",
    }


def test_a_restatement_counts_after_it_is_committed(books: Books) -> None:
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    books.pipeline.begin("run 2")
    assert {txid: notes(books)[txid] for txid in (2, 5)} == {2: None, 5: "restates 2: a bug (ada)"}
    books.pipeline.skip(5)
    assert notes(books)[2] is None
    assert str(notes(books)[5]).startswith("restates 2: a bug (ada); skipped: why")


def test_a_requested_restatement_of_any_transaction_is_listed_until_its_run_begins(books: Books) -> None:
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    assert notes(books)[2] == "to be restated: a bug (ada)"
    assert render.wished(topology_view(books.store, books.pipeline.paths)) == []
    view = topology_view(books.store, books.pipeline.paths, recent=1)
    assert [(row["txid"], row["note"]) for row in render.wished(view)] == [(2, "to be restated: a bug (ada)")]


def test_a_transaction_that_was_readmitted_is_not_listed_as_restated(books: Books) -> None:
    books.skip()
    books.pipeline.ledger.run(note_readmission, 5, ADA)
    assert books.pipeline.run("run 4") == 6
    assert "restated" not in str(notes(books)[5])
    assert notes(books)[6] is None


def test_the_view_of_a_transaction_shows_the_transaction_that_it_restates_and_its_restatement(books: Books) -> None:
    assert shown(books, 1) == {"restates": None, "restated_by": 4, "pinned": None}
    assert shown(books, 4) == {"restates": 1, "restated_by": None, "pinned": None}


def test_the_view_of_a_topology_without_restatements_reads_no_binding(monkeypatch: pytest.MonkeyPatch) -> None:
    books = Books().run(3)
    read = list[str]()
    get = books.store.get

    def noted(path: str) -> Any:
        read.append(path)
        return get(path)

    monkeypatch.setattr(books.store, "get", noted)
    topology_view(books.store, books.pipeline.paths)
    assert not [path for path in read if path.startswith(books.pipeline.paths.runs)]


def test_the_view_of_a_skipped_restatement_shows_that_it_cannot_be_readmitted(books: Books) -> None:
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    books.pipeline.skip(books.pipeline.begin("run 2").txid)
    view = topology_view(books.store, books.pipeline.paths, recent=0)
    assert [each.txid for each in view.transactions] == []
    skipped = transaction_details(books.store, books.pipeline.paths, 5).transaction
    assert (skipped.status, skipped.can_be_readmitted) == ("SKIPPED", False)


def test_a_receipt_line_shows_the_transaction_that_it_restates_and_its_restatement(books: Books) -> None:
    found = {txid: books.receipt(txid) for txid in range(1, 5)}
    lines = [receipts._line(each, "table", restated(found)) for each in found.values()]
    assert [(line["restates"], line["restated_by"]) for line in lines] == [
        (None, 4),
        (None, None),
        (None, None),
        (1, None),
    ]
    assert lines[3]["journal"] == f"2013-01-01/4-{'0' * 64}"


def test_the_newest_committed_restatement_counts_and_a_skipped_restatement_never_counts(books: Books) -> None:
    books.pipeline.restate(4, "run 1", 1)
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    books.pipeline.skip(books.pipeline.begin("run 2").txid)
    assert restated({txid: books.receipt(txid) for txid in range(1, 7)}) == {1: 5, 4: 5}


def test_verify_lists_a_restatement_in_a_note_without_a_finding(books: Books) -> None:
    found = books.verify()
    assert found.findings == ()
    assert [note.partition(" (ada")[0] for note in found.notes] == ["transaction 4: it restates 1: a bug"]


def test_verify_notes_that_the_original_transaction_of_a_skipped_restatement_counts(books: Books) -> None:
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    books.pipeline.skip(books.pipeline.begin("run 2").txid)
    found = books.verify()
    assert found.findings == ()
    assert found.notes[-1].endswith("; transaction 2, which it restated, counts")


def test_verify_adds_up_the_differences_of_restatements(books: Books) -> None:
    for total, is_found in ((1 + 2 + 3 + 5, False), (1 + 2 + 3, True)):
        states = [StateEvidence(each.name, each.fence(), each.receipts(), totals={"n": total}) for each in books.states]
        assert bool(verified(books.ledger, states).findings) is is_found


def test_verify_finds_a_history_record_that_disagrees_with_its_receipt_about_the_restatement(books: Books) -> None:
    books.change(books.history(4), lambda value: value["replaces"].update(txid=2))
    assert "transaction 4: the ledger says restates 2, its receipt 1" in books.verify().findings


def test_the_event_of_a_watcher_names_the_restated_transaction_and_counts_no_row_twice(books: Books) -> None:
    place: dict[str, Any] = {"zookeeper_conn_id": "c", "root": "/tx", "topology": "flights", "watcher": "w"}
    producer = CommitsProducer(CommitsTrigger(**place, every=4, settle=0.0))
    producer._stored = 0
    event = producer._next(books.store)
    assert event == {"topology": "flights", "first": 1, "last": 4, "committed": 4, "rows": 3, "restates": [1]}


def test_the_event_of_a_watcher_does_not_name_the_original_of_a_skipped_restatement(books: Books) -> None:
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    books.pipeline.skip(books.pipeline.begin("run 2").txid)
    place: dict[str, Any] = {"zookeeper_conn_id": "c", "root": "/tx", "topology": "flights", "watcher": "w"}
    producer = CommitsProducer(CommitsTrigger(**place, settle=0.0))
    producer._stored = producer._read = 4
    event = producer._next(books.store)
    assert event == {"topology": "flights", "first": 5, "last": 5, "committed": 0, "rows": 0, "restates": []}


@pytest.mark.parametrize(("replaces", "restates"), [(Replaced(1, "entry"), 1), (None, None)])
def test_the_asset_event_and_the_lineage_of_a_restatement_name_the_restated_transaction(
    replaces: Replaced | None, restates: int | None
) -> None:
    begun = Begun(TransactionAttempt(4, 1), [0, 1], 1, "", False, replaces=replaces)
    asset = Asset("totals")
    event = SimpleNamespace(extra={})
    case: Any = SimpleNamespace(begun=begun, spec=SimpleNamespace(topology="flights"))
    context: Any = {"outlet_events": {asset: event}}
    note_commit(SimpleNamespace(outlets=[asset]), context, case, is_first=True)
    said = {} if restates is None else {"restates": restates}
    assert event.extra == {"topology": "flights", "txid": 4, "attempt": 1, "birth": "", **said}

    operator = LineageOperator()
    operator.note_lineage("flights", begun)
    assert operator._transaction_facet is not None
    assert operator._transaction_facet["restates"] == restates


def test_the_answer_to_the_skip_of_a_restatement_says_that_the_original_transaction_counts(books: Books) -> None:
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    books.pipeline.skip(books.pipeline.begin("run 2").txid)
    books.skip()
    target: Any = SimpleNamespace(ledger=books.pipeline.ledger)
    said = [TransactionSkip(target, txid)._afterwards(txid) for txid in (5, 6)]
    assert said[0] == "Transaction 2, which it was meant to restate, still counts"
    assert said[1] == "To get its rows back: airflow tx readmit flights 6 --why TEXT"


# --- the board


def snapshot(books: Books, finals: FinalViews) -> TopologySnapshot:
    """What the board has read, and what it keeps of committed transactions."""
    view = topology_view(books.store, books.pipeline.paths, recent=0)
    place: Any = SimpleNamespace(name="flights", paths=books.pipeline.paths)
    final = LedgerView(books.store, books.pipeline.paths).final_txids()
    return TopologySnapshot(view.record, place, books.store, view, final, finals=finals)


def rows(found: TopologySnapshot) -> dict[int, tuple[int | None, int | None, bool]]:
    """What the timeline says of each transaction."""
    lines = [timeline_row(each, (), has_run=True) for each in found.transaction_views(found.final)]
    return {each.txid: (each.restates, each.restated_by, each.to_restate) for each in lines}


def test_the_page_updates_cached_transactions_after_they_are_restated(books: Books) -> None:
    finals = FinalViews()
    none = (None, None, False)
    assert rows(snapshot(books, finals)) == {1: (None, 4, False), 2: none, 3: none, 4: (1, None, False)}
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    assert rows(snapshot(books, finals))[2] == (None, None, True)
    books.pipeline.restate(4, "run 1", 1)
    assert rows(snapshot(books, finals))[1] == (None, 5, False)


def test_the_page_does_not_offer_to_readmit_a_skipped_restatement(books: Books) -> None:
    books.pipeline.ledger.run(want, WishRequest(2, "run 2", "run 2"), ADA)
    books.pipeline.skip(books.pipeline.begin("run 2").txid)
    books.skip()
    restatement, other = snapshot(books, FinalViews()).transaction_views([5, 6])
    assert (_actions(restatement), _actions(other)) == ([], ["readmit"])


def test_the_audit_of_a_restatement_names_the_person_who_requested_it(books: Books) -> None:
    found = transaction_details(books.store, books.pipeline.paths, 4).transaction
    assert [(line.what, line.who, line.why) for line in audit_lines(found)] == [("restate", "ada", "a bug")]


def test_the_figures_count_the_rows_of_a_restated_batch_once(books: Books) -> None:
    views = snapshot(books, FinalViews()).transaction_views([1, 4])
    now = views[0].ended
    assert now is not None
    point = _Period(views).point(now)
    assert (point.transactions, point.rows) == (2, 1)
