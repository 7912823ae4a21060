"""The worked examples of the seeds, and the values that carry them."""

from __future__ import annotations

import pickle

import pytest

from airflow_tx.base.errors import TxidBehind
from airflow_tx.state import OpaqueValue, TransactionalValue


def test_the_example_of_a_transactional_state_from_trident_has_the_documented_values() -> None:
    stored = {"man": TransactionalValue(1, 3), "dog": TransactionalValue(3, 4), "apple": TransactionalValue(2, 10)}
    for word, count in {"man": 2, "dog": 1}.items():
        stored[word] = stored[word].update(3, stored[word].get(3) + count)
    assert stored == {
        "man": TransactionalValue(3, 5),
        "dog": TransactionalValue(3, 4),
        "apple": TransactionalValue(2, 10),
    }


@pytest.mark.parametrize(("txid", "after"), [(3, OpaqueValue(3, 6, 4)), (2, OpaqueValue(2, 3, 1))])
def test_the_example_of_an_opaque_state_from_trident_has_the_documented_values(
    txid: int, after: OpaqueValue[int]
) -> None:
    stored = OpaqueValue(txid=2, value=4, prev=1)
    assert stored.update(txid, (stored.get(txid) or 0) + 2) == after


def test_the_example_of_a_changed_batch_from_the_book_has_the_documented_values() -> None:
    stored = OpaqueValue[int](320, 5, None)
    first = stored.update(321, (stored.get(321) or 0) + 8)
    assert first.value == 13
    assert first.update(321, (first.get(321) or 0) + 4) == OpaqueValue(321, 9, 5)


def test_a_read_without_a_txid_returns_the_newest_value() -> None:
    assert OpaqueValue(2, 4, 1).get(None) == 4
    assert TransactionalValue(2, 4).get(None) == 4


def test_a_read_or_an_update_for_an_earlier_transaction_is_refused() -> None:
    for stored in (OpaqueValue(5, 4, 1), TransactionalValue(5, 4)):
        with pytest.raises(TxidBehind, match="transaction 4 refused: the stored value is of transaction 5"):
            stored.get(4)
        with pytest.raises(TxidBehind):
            stored.update(4, 7)


def test_a_second_rollback_does_not_change_the_value() -> None:
    once = OpaqueValue(2, 4, 1).rolled_back()
    assert once == once.rolled_back() == OpaqueValue(2, 1, 1)
    assert (once.get(2), once.get(3)) == (1, 1)


def test_values_can_be_pickled() -> None:
    for value in (OpaqueValue(2, 4, 1, chunk=3), TransactionalValue(2, 4)):
        assert pickle.loads(pickle.dumps(value)) == value
