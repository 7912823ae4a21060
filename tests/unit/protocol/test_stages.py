"""What lists show of corrections, and the way of a transaction through a chain. Source: docs/protocol.md §12."""

from __future__ import annotations

from airflow_tx.ledger import LedgerView, TransactionView
from airflow_tx.ledger.steps.replay import WishRequest
from airflow_tx.ledger.upstream.corrections import TakenRanges
from airflow_tx.ledger.views.stages import ChainStages
from tests.unit.protocol.chains import ADA, Chain


def views(chain: Chain) -> dict[int, TransactionView]:
    found = LedgerView(chain.totals.store, chain.totals.paths).view()
    return {each.txid: each for each in found.transactions}


def behind(chain: Chain) -> dict[int, str]:
    return {txid: each.behind for txid, each in views(chain).items() if each.behind is not None}


def left(chain: Chain) -> list[int]:
    found = LedgerView(chain.totals.store, chain.totals.paths).view()
    return [each.txid for each in found.behind if each.is_left]


def test_the_view_of_a_transaction_that_is_behind_shows_its_pending_restatement() -> None:
    chain = Chain().run(2).take(2)
    chain.correct(1)
    assert behind(chain) == {}
    chain.request()
    assert behind(chain) == {1: "a correction of orders 1: its restatement is requested"}
    begun = chain.totals.begin("t1")
    assert behind(chain) == {1: "a correction of orders 1: transaction 3 restates it"}
    assert left(chain) == []
    chain.finish(begun)
    assert behind(chain) == {}


def test_a_transaction_stays_behind_if_its_follow_up_was_skipped() -> None:
    chain = Chain().run(1).take(1)
    chain.correct(1)
    chain.request()
    chain.totals.skip(chain.totals.begin("t1").txid)
    assert behind(chain) == {1: "a correction of orders 1: its restatement was skipped or withdrawn"}
    assert left(chain) == [1]


def test_the_view_of_a_transaction_that_cannot_be_restated_shows_the_reason() -> None:
    chain = Chain().run(1)
    chain.totals.journals = False
    chain.take(1)
    chain.correct(1)
    chain.request()
    assert "the journal has no entry for it" in behind(chain)[1]
    assert left(chain) == [1]


def test_a_restatement_is_listed_as_behind_and_not_the_transaction_that_it_has_replaced() -> None:
    chain = Chain().run(1).take(1)
    end = chain.correct(1)
    chain.request()
    chain.follow(1)
    chain.correct(end, key=1)
    chain.request()
    assert list(behind(chain)) == [2]


def test_several_corrections_are_listed_in_txid_order() -> None:
    chain = Chain().run(2)
    chain.totals.metadata = lambda row: chain.upstream.taken(1, 2).to_json()
    chain.take(1)
    chain.correct(2)
    chain.correct(1)
    chain.request()
    assert behind(chain) == {1: "corrections of orders 1, 2: its restatement is requested"}


def test_a_topology_is_behind_by_the_number_of_upstream_transactions_that_it_has_not_read() -> None:
    chain = Chain().run(5).take(2)
    assert TakenRanges(chain.totals.ledger).ahead() == 3
    assert TakenRanges(chain.orders.ledger).ahead() is None
    chain.take(3).correct(1)
    assert TakenRanges(chain.totals.ledger).ahead() == 0, "a restatement has rows in a batch that was taken"


def test_the_upstream_and_downstream_views_of_a_transaction_name_the_transactions_that_count() -> None:
    chain = Chain().run(2).take(1)
    end = chain.correct(1)
    chain.totals.ledger.want_restated(WishRequest(1, "t1", "t1"), ADA)
    restated = chain.follow(1)
    down = ChainStages.of(chain.orders.ledger, 1)
    assert (down.up_in_words, down.down_in_words) == (None, f"totals {restated}")
    assert ChainStages.of(chain.orders.ledger, end).down_in_words == f"totals {restated}"
    assert ChainStages.of(chain.orders.ledger, 2).down_in_words == "totals: not read yet"
    up = ChainStages.of(chain.totals.ledger, restated)
    assert (up.up_in_words, up.down_in_words) == (f"orders 1; {end} counts instead of 1", None)


def test_an_open_transaction_shows_the_upstream_transactions_that_it_reads() -> None:
    chain = Chain().run(1)
    begun = chain.totals.begin("t1")
    assert ChainStages.of(chain.totals.ledger, begun.txid).up_in_words == "orders 1"
