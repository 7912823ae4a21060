"""Tests of the receipts that a state stores, as part of `StateSuite`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace

import pytest

from airflow_tx.base.errors import FenceOutranked
from airflow_tx.ledger import NOTHING_WRITTEN
from airflow_tx.ledger.receipt import Receipt, Written, hash_of
from airflow_tx.state.api import FencedState, Grant, StoredReceipt
from airflow_tx.state.arrow import RowTally
from airflow_tx.testing.suites.state_tools import Grants, MakeState, StateTests, rows


def kept(state: FencedState) -> list[StoredReceipt]:
    """Return the receipts that a state has stored. Skip the test if it stores none."""
    found = state.receipts()
    if found is None:
        pytest.skip("it keeps no receipts")
    return found


def written(state: FencedState, *parts: Sequence[dict[str, object]]) -> Written:
    """Return the counts and digests of rows, for a state that gets the rows in portions or all at once."""
    found = NOTHING_WRITTEN
    for part in parts:
        tally = RowTally(part, state.added_up)
        found += tally.written(len(list(tally)))
    return found


def expected_receipt(
    grant: Grant, state: FencedState, *parts: Sequence[dict[str, object]]
) -> StoredReceipt:
    """Return the receipt that a state must store for the rows written under a grant."""
    receipt = replace(grant, written=NOTHING_WRITTEN).receipt(state.name, written(state, *parts))
    return StoredReceipt.of(receipt)


class ReceiptSuite(StateTests):
    """Tests of receipts. The store transaction that completes a transaction also stores its receipt in the state."""

    def test_a_complete_update_leaves_its_receipt(self, state: FencedState, grants: Grants) -> None:
        first = grants(1)
        second = rows({"a": 1, "b": 2})
        state.raise_and_write(first, iter(second))
        assert kept(state) == [expected_receipt(first, state, second)]
        (found,) = kept(state)
        assert found.hash == hash_of(found.text)
        grants.final(first, state)
        grants.commit(2, state, {})
        assert [each.txid for each in kept(state)] == [1, 2]

    def test_a_grant_that_is_replayed_replaces_its_receipt(
        self, make_state: MakeState, grants: Grants
    ) -> None:
        state = make_state("opaque")
        state.raise_and_write(grants(1), rows({"a": 1, "b": 2}))
        again = grants(1, 2)
        state.raise_and_write(again, rows({"a": 1}))
        assert kept(make_state("opaque")) == [expected_receipt(again, state, rows({"a": 1}))]

    def test_of_several_chunks_the_last_write_leaves_the_receipt_of_all(
        self, state: FencedState, grants: Grants
    ) -> None:
        grant = grants(1)
        one = rows({"a": 1})
        two = rows({"b": 2})
        state.raise_fence(grant)
        state.write(grant, one, chunk=0, complete=False)
        state.write(grant, two, chunk=1, complete=False)
        assert kept(state) == []
        state.write(replace(grant, written=written(state, one, two)), (), chunk=2)
        assert kept(state) == [expected_receipt(grant, state, one, two)]

    def test_a_writer_that_is_refused_leaves_none(self, state: FencedState, grants: Grants) -> None:
        old = grants(1)
        new = grants(1, 2)
        state.raise_fence(old)
        state.raise_and_write(new, rows({"a": 1}))
        with pytest.raises(FenceOutranked):
            state.write(old, rows({"a": 1}))
        assert kept(state) == [expected_receipt(new, state, rows({"a": 1}))]

    def test_a_value_column_is_added_up_over_all_keys(
        self, state: FencedState, grants: Grants
    ) -> None:
        assert state.totals(["n"]) == {"n": 0}
        grants.commit(1, state, {"a": 2**62, "b": 2**62, "c": None, "e": -3})
        grants.commit(2, state, {"a": -1, "d": 2**62})
        assert state.totals(["n"]) == {"n": 3 * 2**62 - 4}

    def test_two_states_of_one_store_keep_their_own(
        self, make_state: MakeState, grants: Grants, kind: str
    ) -> None:
        one = make_state(kind)
        other = make_state(kind, "second")
        grant = grants(1)
        for state in (one, other):
            state.raise_fence(grant)
            state.write(grant, rows({"a": 1}))
        assert [Receipt.from_json(_json(each)).written.keys() for each in kept(one)] == [{one.name}]
        assert [Receipt.from_json(_json(each)).written.keys() for each in kept(other)] == [
            {other.name}
        ]


def _json(stored: StoredReceipt) -> object:
    return json.loads(stored.text)
