"""Corrections travel: which transactions lack one, and until when each is compared. Source: docs/protocol.md §12."""

from __future__ import annotations

from datetime import timedelta

import pytest

from airflow_tx.ledger.book import LINES_A_PAGE
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.steps.end import note_readmission, note_skip
from airflow_tx.ledger.steps.replay import WishRequest
from tests.unit.protocol.chains import ADA, Chain, due


def test_no_transaction_is_behind_without_a_correction() -> None:
    chain = Chain().run(3).take(2)
    found = chain.found()
    assert (found.behind, found.comparison.txid, found.is_due) == ((), 3, False)


def test_a_correction_of_a_transaction_in_a_range_is_due_until_a_follow_up_has_read_it() -> None:
    chain = Chain().run(2).take(2)
    end = chain.correct(1)
    assert due(chain.found()) == {1: {1: end}}
    assert chain.request() == [1]
    assert chain.totals.ledger.wishes()[0].why == f"upstream 1 restated by {end}"
    assert (chain.request(), chain.cursor) == ([], end - 1)
    chain.follow(1)
    assert chain.found().behind == ()
    chain.request()
    assert (chain.cursor, chain.totals.ledger.noted_behind()) == (end, {})


def test_a_correction_is_compared_again_until_the_downstream_transaction_is_final() -> None:
    chain = Chain().run(2).take(1)
    end = chain.correct(2)
    assert (chain.request(), chain.cursor) == ([], end - 1)
    begun = chain.totals.begin("t2")
    assert (chain.request(), chain.cursor) == ([], end - 1)
    chain.finish(begun)
    assert (chain.request(), chain.cursor) == ([], end)


def test_a_correction_between_the_reading_and_the_commit_is_found() -> None:
    chain = Chain().run(1)
    begun = chain.totals.begin("t1")
    end = chain.correct(1)
    assert due(chain.found()) == {}
    chain.finish(begun)
    assert due(chain.found()) == {1: {1: end}}


def test_a_correction_that_waits_does_not_delay_another_correction() -> None:
    chain = Chain().run(3).take(1)
    chain.correct(3)
    end = chain.correct(1)
    assert due(chain.found()) == {1: {1: end}}


def test_a_correction_of_a_correction_counts_for_the_first_transaction_of_the_chain() -> None:
    chain = Chain().run(2).take(2)
    first = chain.correct(1)
    chain.take(1)
    last = chain.correct(first, key=1)
    assert due(chain.found()) == {1: {1: last}}
    taken = chain.upstream.taken(first, last)
    assert (taken.counts, taken.ends) == ({}, {})


def test_a_batch_that_has_read_the_newest_end_is_not_behind_an_earlier_end() -> None:
    chain = Chain().run(1)
    first = chain.correct(1)
    last = chain.correct(first, key=1)
    chain.take(1)
    found = chain.found()
    assert (found.behind, found.comparison.txid) == ((), last)


def test_a_skipped_restatement_upstream_is_not_a_correction() -> None:
    chain = Chain().run(1).take(1)
    chain.orders.ledger.want_restated(WishRequest(1, "o1", "o1"), ADA)
    chain.orders.skip(chain.orders.begin("o1").txid)
    assert (chain.found().behind, chain.found().comparison.txid) == ((), 2)


def test_a_skipped_follow_up_is_listed_and_not_repeated_for_the_same_ends() -> None:
    chain = Chain().run(1).take(1)
    end = chain.correct(1)
    chain.request()
    chain.totals.skip(chain.totals.begin("t1").txid)
    found = chain.found()
    assert (due(found), [each.txid for each in found.left]) == ({}, [1])
    assert (chain.request(), chain.cursor) == ([], end)
    later = chain.correct(end, key=1)
    assert due(chain.found()) == {1: {1: later}}


def test_a_restatement_by_a_person_resolves_a_correction() -> None:
    chain = Chain().run(1).take(1)
    chain.correct(1)
    chain.request()
    chain.totals.skip(chain.totals.begin("t1").txid)
    chain.request()
    chain.totals.ledger.want_restated(WishRequest(1, "t1", "t1"), ADA)
    chain.follow(1)
    assert chain.found().comparison.caught_up == [1]
    chain.request()
    assert chain.totals.ledger.noted_behind() == {}


def test_a_follow_up_that_has_read_its_upstream_before_another_correction_is_behind_again() -> None:
    chain = Chain().run(1).take(1)
    end = chain.correct(1)
    chain.request()
    begun = chain.totals.begin("t1")
    later = chain.correct(end, key=1)
    assert chain.request() == []
    chain.finish(begun)
    assert due(chain.found()) == {1: {1: later}}


def test_a_skipped_transaction_is_not_behind_and_its_readmission_reads_the_newest_ends() -> None:
    chain = Chain().run(2)
    begun = chain.totals.begin("t1")
    chain.totals.skip(begun.txid)
    end = chain.correct(1)
    found = chain.found()
    assert (found.behind, found.comparison.txid) == ((), end)
    chain.totals.ledger.run(note_readmission, 1, ADA)
    again = chain.totals.begin("t1")
    assert again.metadata["ends"] == {"1": end}
    chain.finish(again)
    later = chain.correct(end, key=1)
    assert due(chain.found()) == {2: {1: later}}


def test_a_due_correction_is_postponed_briefly_if_others_of_its_range_are_requested() -> None:
    chain = Chain().run(2).take(2)
    end = chain.correct(1)
    chain.orders.ledger.want_restated(WishRequest(end, "o1", "o1"), ADA)
    final = chain.upstream.final_since(end)
    assert final is not None
    soon = chain.found(final + timedelta(minutes=9))
    assert (due(soon), set(soon.postponed)) == ({}, {1})
    assert due(chain.found(final + timedelta(minutes=10))) == {1: {1: end}}


def test_a_transaction_that_cannot_be_restated_is_noted_as_behind_with_the_reason() -> None:
    chain = Chain().run(1)
    chain.totals.journals = False
    chain.take(1)
    end = chain.correct(1)
    assert chain.request() == [1]
    note = chain.totals.ledger.noted_behind()[1]
    assert "the journal has no entry for it" in note.why
    assert (chain.request(), chain.cursor) == ([], end)


def test_corrections_of_a_new_upstream_ledger_are_compared_from_its_first_transaction() -> None:
    chain = Chain().run(2).take(2)
    chain.correct(1)
    found = chain.found()
    chain.totals.ledger.note_compared(replace(found.comparison, incarnation="another", txid=3))
    assert chain.found().compared == 0


@pytest.mark.parametrize("taken", range(1, 8))
def test_the_restatement_that_contains_an_upstream_transaction_is_found(taken: int) -> None:
    chain = Chain().run(8).take(3)
    chain.totals.ledger.want_restated(WishRequest(2, "t2", "t2"), ADA)
    chain.follow(2)
    chain.totals.skip(chain.totals.begin("again").txid)
    chain.totals.ledger.run(note_readmission, 5, ADA)
    chain.finish(chain.totals.begin("again"))
    chain.take(3)
    end = chain.correct(taken)
    holder = {1: 1, 2: 2, 3: 3, 4: 6, 5: 7, 6: 8, 7: 9}[taken]
    assert due(chain.found()) == {holder: {taken: end}}


def test_a_transaction_with_a_requested_skip_does_not_count_as_final() -> None:
    chain = Chain().run(1)
    begun = chain.totals.begin("t1")
    chain.totals.ledger.run(note_skip, begun.txid, ADA)
    end = chain.correct(1)
    assert chain.found().comparison.txid == end - 1


def test_a_restatement_that_is_committed_while_the_book_of_ends_is_read_has_its_line() -> None:
    chain = Chain().run(LINES_A_PAGE + 1)
    reading = chain.upstream
    assert list(reading.lines(LINES_A_PAGE, LINES_A_PAGE + 1)) == [LINES_A_PAGE, LINES_A_PAGE + 1]
    end = chain.correct(1)
    assert reading.taken(1, 1).ends == {"1": end}
