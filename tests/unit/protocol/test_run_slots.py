"""Whose offer leads, and what a run that yields leaves in the ledger."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import Outbid
from airflow_tx.ledger.answers import Bidding, Done, NotNeeded
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Waiter, Yield, encode
from airflow_tx.ledger.steps import run_slots
from tests.model.driver import Run, Topology

FIRST = Waiter("r2", 2, "t2", 1)
NOW = "2013-01-01T00:00:00.000+00:00"


@pytest.fixture
def waiting(topology: Topology) -> Topology:
    """Transaction 1 has no run slot; transactions 2 and 3 wait for it."""
    for number in (1, 2, 3):
        Run(topology, f"r{number}").begin(1)
    return topology


def bid(topology: Topology, waiter: Waiter, **given: Any) -> Any:
    return topology.ledger().run(run_slots.bid, waiter, **given)


def yields(topology: Topology, waiter: Waiter) -> Any:
    return topology.ledger().run(run_slots.note_yield, waiter)


def test_a_waiting_run_leads_without_a_transaction_or_with_the_highest_txid_and_newest_try() -> None:
    in_line = [
        Waiter("a", 1, "t9", 1),
        Waiter("b", 2, "t1", 1),
        Waiter("c", 2, "t2", 1),
        Waiter("d", None, "t0", 1),
        Waiter("e", None, "t5", 1),
    ]
    assert [each.run_id for each in sorted(in_line, key=lambda each: each.rank)] == ["a", "b", "c", "d", "e"]


def test_the_same_bid_for_a_run_slot_is_written_only_once(waiting: Topology) -> None:
    assert bid(waiting, FIRST) == Bidding("r2")
    before = waiting.topology
    assert before.bid == Waiter("r2", 2, "t2", 1, NOW)
    waiting.clock.advance(60)
    assert bid(waiting, FIRST) == Bidding("r2")
    assert waiting.topology == before


def test_a_bid_for_a_run_slot_that_was_made_for_another_turn_is_ignored(waiting: Topology) -> None:
    bid(waiting, Waiter("r3", 3, "t3", 1))
    offer = waiting.topology.bid
    Run(waiting, "r1").whole(1)
    waiting.store().multi([], [Put(waiting.paths.record, encode(replace(waiting.topology, bid=offer)))])
    assert bid(waiting, Waiter("r9", 2, "t1", 2)) == Bidding("r9")


@pytest.mark.parametrize(("when", "leads"), [(NOW, "r3"), ("2013-01-01T00:00:00.001+00:00", "r2")])
def test_a_bid_for_a_run_slot_counts_until_its_time_limit(waiting: Topology, when: str, leads: str) -> None:
    bid(waiting, Waiter("r3", 3, "t3", 1))
    assert bid(waiting, FIRST, overdue=when) == Bidding(leads)


def test_only_the_run_with_the_leading_bid_yields_and_the_error_for_another_run_names_it(waiting: Topology) -> None:
    with pytest.raises(Outbid, match="none"):
        yields(waiting, FIRST)
    bid(waiting, Waiter("r3", 3, "t3", 1))
    with pytest.raises(Outbid, match="r3"):
        yields(waiting, FIRST)


def test_a_yielded_run_is_listed_with_the_turn_to_which_it_yields(waiting: Topology) -> None:
    bid(waiting, FIRST)
    for _ in range(2):
        assert yields(waiting, FIRST) == Done()
    record, after = waiting.record(2), waiting.topology
    assert record is not None
    assert (record.yielded, after.yields, after.bid) == (1, 1, None)
    assert after.yielded == {"r2": Yield(1, 2, NOW)}


def test_a_yielded_run_without_a_transaction_is_listed(waiting: Topology) -> None:
    waiter = Waiter("r9", None, "t9", 1)
    bid(waiting, waiter)
    assert yields(waiting, waiter) == Done()
    assert waiting.topology.yielded == {"r9": Yield(1, None, NOW)}


def test_a_run_that_was_started_again_after_its_yield_is_no_longer_listed(waiting: Topology) -> None:
    for waiter in (FIRST, Waiter("r3", 3, "t3", 1)):
        bid(waiting, waiter)
        yields(waiting, waiter)
    for _ in range(2):
        assert waiting.ledger().run(run_slots.came_back, "r2") == Done()
        assert set(waiting.topology.yielded) == {"r3"}


def test_no_run_yields_to_a_turn_that_has_passed(waiting: Topology) -> None:
    passed = Waiter("r3", 3, "t3", 2)
    assert bid(waiting, passed) == NotNeeded()
    assert yields(waiting, passed) == NotNeeded()
