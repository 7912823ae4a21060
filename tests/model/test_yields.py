"""Who gives up its run slot, one at a time, and comes back (protocol.md §6; TRACES.md: 13)."""

from __future__ import annotations

import pytest

from airflow_tx.base.errors import Outbid
from airflow_tx.ledger.answers import Bidding, Committed, Done, NotNeeded
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps import run_slots
from tests.model.driver import Run, Topology


@pytest.fixture
def waiting(topology: Topology) -> Topology:
    """Transactions 1, 2 and 3 are open; the run of the first has no run slot."""
    for number in (1, 2, 3):
        Run(topology, f"r{number}").begin(1)
    return topology


IN_BEGIN = Waiter("r8", None, "018", 1)
NEWER_IN_BEGIN = Waiter("r9", None, "019", 1)
SECOND = Waiter("r2", 2, "022", 1)
THIRD = Waiter("r3", 3, "013", 1)


@pytest.mark.parametrize(
    "order",
    [
        [SECOND, THIRD, IN_BEGIN, NEWER_IN_BEGIN],
        [NEWER_IN_BEGIN, IN_BEGIN, THIRD, SECOND],
        [THIRD, NEWER_IN_BEGIN, SECOND, IN_BEGIN],
    ],
    ids=["rising", "falling", "mixed"],
)
def test_runs_without_a_transaction_yield_first_and_then_runs_with_the_highest_txid(
    waiting: Topology, order: list[Waiter]
) -> None:
    left, gone = list(order), []
    while left:
        for waiter in left:
            waiting.ledger().run(run_slots.bid, waiter)
        leaders = {waiting.ledger().run(run_slots.bid, waiter) for waiter in left}
        assert len(leaders) == 1
        leader = next(waiter for waiter in left if Bidding(waiter.run_id) in leaders)
        for waiter in left:
            if waiter is not leader:
                with pytest.raises(Outbid):
                    waiting.ledger().run(run_slots.note_yield, waiter)
        assert waiting.ledger().run(run_slots.note_yield, leader) == Done()
        left.remove(leader)
        gone.append(leader.run_id)
    assert gone == ["r9", "r8", "r3", "r2"]
    assert waiting.topology.yields == 4


def test_the_next_run_must_bid_again_after_another_run_has_yielded(waiting: Topology) -> None:
    for waiter in (THIRD, SECOND, THIRD):
        waiting.ledger().run(run_slots.bid, waiter)
    assert waiting.ledger().run(run_slots.note_yield, THIRD) == Done()
    with pytest.raises(Outbid, match="run none does"):
        waiting.ledger().run(run_slots.note_yield, SECOND)


def test_a_run_that_yields_does_not_fail_and_is_named_when_the_turn_is_handed_over(waiting: Topology) -> None:
    first, second, third = Run(waiting, "r1"), Run(waiting, "r2"), Run(waiting, "r3")
    waiting.ledger().run(run_slots.bid, THIRD)
    waiting.ledger().run(run_slots.note_yield, THIRD)
    record = waiting.record(3)
    assert record is not None
    assert (record.attempt, record.yielded, record.failures) == (1, 1, 0)
    first.begin(1)
    first.process({"a": 1})
    assert first.written().mark() == Committed(1, by_this_call=True, waiting=("r3",))
    assert waiting.ledger().run(run_slots.came_back, "r3") == Done()
    assert waiting.ledger().run(run_slots.came_back, "r3") == Done()
    second.begin(1)
    second.process({"a": 1})
    assert second.written().mark() == Committed(2, by_this_call=True, waiting=())
    assert third.begin(1, retry=True).attempt.attempt == 1
    third.process({"a": 1})
    third.commit()
    assert waiting.totals() == {"a": 3}


def test_a_skip_of_the_blocking_transaction_reports_the_run_that_has_yielded(waiting: Topology) -> None:
    waiting.ledger().run(run_slots.bid, IN_BEGIN)
    waiting.ledger().run(run_slots.note_yield, IN_BEGIN)
    waiting.note_skip(1)
    assert waiting.take_skip(1) == Committed(1, by_this_call=True, waiting=("r8",))


def test_no_run_can_bid_or_yield_after_the_turn_has_moved(waiting: Topology) -> None:
    waiting.ledger().run(run_slots.bid, THIRD)
    Run(waiting, "r1").whole(1)
    assert waiting.topology.bid is None
    assert waiting.ledger().run(run_slots.bid, THIRD) == NotNeeded()
    assert waiting.ledger().run(run_slots.note_yield, THIRD) == NotNeeded()
    assert waiting.topology.yielded == {}


def test_a_run_whose_transaction_is_no_longer_open_does_not_yield(waiting: Topology) -> None:
    waiter = Waiter("r0", 7, "099", 1)
    waiting.ledger().run(run_slots.bid, waiter)
    assert waiting.ledger().run(run_slots.note_yield, waiter) == NotNeeded()


def test_a_repeated_bid_or_a_repeated_yield_counts_once(waiting: Topology) -> None:
    assert waiting.ledger().run(run_slots.bid, THIRD) == waiting.ledger().run(run_slots.bid, THIRD) == Bidding("r3")
    assert (
        waiting.ledger().run(run_slots.note_yield, THIRD) == waiting.ledger().run(run_slots.note_yield, THIRD) == Done()
    )
    assert waiting.topology.yields == 1


def test_a_run_must_bid_again_even_if_an_entry_of_an_earlier_yield_is_left(waiting: Topology) -> None:
    """It was started again, and whoever did so died before it took the entry back."""
    waiting.ledger().run(run_slots.bid, THIRD)
    waiting.ledger().run(run_slots.note_yield, THIRD)
    Run(waiting, "r1").whole(1)
    again = Waiter("r3", 3, "033", 2)
    with pytest.raises(Outbid):
        waiting.ledger().run(run_slots.note_yield, again)
    waiting.ledger().run(run_slots.bid, again)
    assert waiting.ledger().run(run_slots.note_yield, again) == Done()
    assert waiting.topology.yielded["r3"].blocking == 2


def test_a_bidding_run_that_died_is_replaced_after_a_timeout(waiting: Topology) -> None:
    waiting.ledger().run(run_slots.bid, THIRD)
    assert waiting.ledger().run(run_slots.bid, SECOND, overdue=waiting.clock.advance(60)) == Bidding("r3")
    assert waiting.ledger().run(run_slots.bid, SECOND, overdue=waiting.clock.advance(60)) == Bidding("r2")
    with pytest.raises(Outbid):
        waiting.ledger().run(run_slots.note_yield, THIRD)
    assert waiting.ledger().run(run_slots.note_yield, SECOND) == Done()


def test_a_later_try_of_the_leading_run_keeps_the_lead(waiting: Topology) -> None:
    waiting.ledger().run(run_slots.bid, IN_BEGIN)
    again = Waiter("r8", None, "020", 1)
    assert waiting.ledger().run(run_slots.bid, again) == Bidding("r8")
    assert waiting.ledger().run(run_slots.bid, NEWER_IN_BEGIN) == Bidding("r8")
    assert waiting.ledger().run(run_slots.note_yield, again) == Done()
