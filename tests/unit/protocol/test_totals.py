"""What was added to value columns, and the totals of a state that has other values than its receipts add up to."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import msgspec
import pytest

from airflow_tx.ledger.audit.chain import StateEvidence
from airflow_tx.ledger.audit.verification import ColumnTotal, Verified, _column_total, verified
from airflow_tx.ledger.json_text import read_as, replace
from airflow_tx.ledger.receipt import NOTHING_WRITTEN, Written
from airflow_tx.ledger.records import RepairRecord
from airflow_tx.state import Avg, Count, Max, MemoryMap, OpaqueMap, Sum
from airflow_tx.state.aggregators import Columns
from airflow_tx.state.arrow import RowTally
from airflow_tx.state.trident import TridentAggregate
from tests.unit.protocol.books import Books

TOTALS = {"n": 15}


def written(rows: list[dict[str, Any]], *added: str) -> Written:
    tally = RowTally(rows, added)
    return tally.written(len(list(tally)))


def test_integer_columns_are_summed_and_null_does_not_change_the_sum() -> None:
    rows: list[dict[str, Any]] = [{"n": 2, "m": -3, "other": 7}, {"n": None, "m": 2**70, "other": 7}]
    assert written(rows, "n", "m").sums == {"n": 2, "m": 2**70 - 3}


@pytest.mark.parametrize("value", [2.0, Decimal(2), True, "2", ...])
def test_a_column_with_a_value_that_is_not_an_integer_has_no_sum(value: Any) -> None:
    odd = {"m": 1} if value is ... else {"n": value, "m": 1}
    assert written([{"n": 1, "m": 1}, odd], "n", "m").sums == {"m": 2}


def test_rows_that_are_read_again_are_summed_once() -> None:
    tally = RowTally([{"n": 1}, {"n": 2}], ["n"])
    list(tally)
    list(tally)
    assert tally.written(2).sums == {"n": 3}


def test_the_sums_of_parts_are_added_only_if_each_part_has_the_sum() -> None:
    one, two, none = written([{"n": 1, "m": 1}], "n", "m"), written([{"n": 2, "m": 1.0}], "n", "m"), NOTHING_WRITTEN
    assert (one + two).sums == (one + none + two).sums == {"n": 3}
    assert (one + none).sums == (none + one).sums == {"n": 1, "m": 1}
    assert (one + Written(1, "0" * 16)).sums == {}
    assert read_as(Written, msgspec.to_builtins(one + two), "") == one + two
    assert read_as(Written, {"keys": 1, "digest": "0" * 16}, "") == Written(1, "0" * 16)


def test_columns_of_sums_and_counts_of_integers_have_totals() -> None:
    values: dict[str, Any] = {
        "n": Count(),
        "s": Sum(),
        "d": Sum("double"),
        "e": Sum("numeric"),
        "m": Max("bigint"),
        "a": Avg(),
    }
    assert set(Columns("s", ("k",), values, {}).added_up) == {"n", "s", *_counts()}


def _counts() -> set[str]:
    return {name for name, each in Avg().parts("a").items() if each.name == "count"}


# --- compared -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def books() -> Books:
    return Books(added=["n"]).run(5)


def compared(books: Books, totals: Any = None, **changes: Any) -> Verified:
    """What is said if state s0 has these totals."""
    one, two = books.evidence
    return verified(books.ledger, [replace(one, totals=TOTALS if totals is None else totals, **changes), two])


def test_unchanged_values_of_a_state_agree_with_the_receipts(books: Books) -> None:
    assert books.states[0].totals(["n"]) == TOTALS
    assert compared(books) == Verified(1, 5, (), ())


def test_verify_finds_a_value_that_was_changed_by_hand_in_the_total(books: Books) -> None:
    found = compared(books, {"n": 16})
    assert found.findings == ("state s0: its column n adds up to 16, and its receipts to 15",)
    assert found.notes == ()


def test_a_skipped_transaction_does_not_change_the_totals() -> None:
    books = Books(added=["n"]).run(2)
    books.skip()
    assert compared(books, {"n": 3}).findings == ()


def test_totals_are_not_compared_if_some_receipts_have_no_sums() -> None:
    books = Books().run(2)
    books.pipeline.added = ["n"]
    found = compared(books.run(3))
    assert found.findings == ()
    assert found.notes == ("state s0: 2 of its receipts do not say how much was added to n",)


def test_the_totals_of_a_state_that_is_being_written_are_not_compared(books: Books) -> None:
    fence = books.states[0].fence()
    assert fence is not None
    ahead = replace(fence.token, txid=6)
    for changed in (replace(fence, token=ahead), replace(fence, token=ahead, applied=False)):
        found = compared(books, {"n": 16}, fence=changed)
        assert (found.findings, found.notes) == ((), (not_compared("it was being written to"),))


def test_a_state_that_went_back_is_not_reported_as_being_written(books: Books) -> None:
    fence = books.states[0].fence()
    assert fence is not None
    found = compared(books, {"n": 10}, fence=replace(fence, token=replace(fence.token, txid=4)))
    assert found.notes == (not_compared("it lacks transactions"),)


def test_the_totals_of_a_state_that_may_be_incomplete_are_not_compared(books: Books) -> None:
    fence = books.states[0].fence()
    assert fence is not None
    assert compared(books, {"n": 16}, fence=replace(fence, applied=False)).notes == (
        not_compared("it was being written to"),
    )


def test_a_state_without_a_commit_must_have_no_values(books: Books) -> None:
    fence = books.states[0].fence()
    assert fence is not None
    new = StateEvidence("new", None, None)
    assert verified(books.ledger, [replace(new, totals={"n": 0})]).findings == ()
    found = verified(books.ledger, [replace(new, totals={"n": 3})])
    assert found.findings == ("state new: its column n adds up to 3, and its receipts to 0",)
    granted = replace(fence, token=replace(fence.token, txid=1))
    found = verified(books.ledger, [replace(new, totals={"n": 3}, fence=granted)])
    assert (found.findings, len(found.notes)) == ((), 1)
    assert found.notes[0].endswith("its values were not compared: it was being written to")


def test_a_receipt_without_keys_does_not_change_the_totals() -> None:
    assert _column_total("n", 3, [Written(1, "0" * 16, {"n": 3}), NOTHING_WRITTEN], []) == ColumnTotal("n", 3, 3)


def test_a_comparison_that_is_not_possible_is_noted_with_its_reason(books: Books) -> None:
    assert compared(books, {}).notes == (not_compared("it has no column that can be added up"),)
    assert not_compared("it has no fence, so a process may be writing to it") in compared(books, fence=None).notes
    short = replace(books.ledger, histories={5: books.ledger.histories[5]})
    states = [replace(StateEvidence("s0", books.states[0].fence(), None), totals={"n": 16})]
    assert not_compared("the receipts do not go back to transaction 1") in verified(short, states).notes


@pytest.mark.parametrize(
    ("what", "change", "why"),
    [
        ("state-lost", {"state": "s0", "txid": 6}, "a repair accepted its values, but it is not known which"),
        ("state-forgotten", {"state": "s0", "txid": 2}, "no record shows that it was empty before its first"),
        ("ledger-lost", {}, "the ledger was rebuilt after transaction 2"),
    ],
)
def test_values_after_a_repair_with_unknown_values_are_not_compared(
    books: Books, what: str, change: Any, why: str
) -> None:
    repair = RepairRecord(1, what, "ada", "then", "why", "", 1, "op", change=change)
    topology = replace(books.ledger.topology, accepted={}, rebuilt=2 if what == "ledger-lost" else 0)
    ledger = replace(books.ledger, repairs=[repair], topology=topology)
    states = [replace(each, totals={"n": 16}) for each in books.evidence[:1]]
    assert not_compared(why) in verified(ledger, states).notes[-1]


def test_values_after_an_accepted_loss_are_compared_if_the_repair_has_read_the_state(books: Books) -> None:
    change = {"state": "s0", "txid": 6, "found": 3}
    repair = RepairRecord(1, "state-lost", "ada", "then", "why", "", 9, "op", change=change)
    ledger = replace(books.ledger, repairs=[repair])
    sums = [books.receipt(txid).written["s0"].sums["n"] for txid in (1, 2, 3)]
    for total, found in ((sum(sums), 0), (sum(sums) + 1, 1)):
        states = [replace(each, totals={"n": total}) for each in books.evidence[:1]]
        assert len([each for each in verified(ledger, states).findings if "adds up" in each]) == found


@pytest.mark.parametrize("what", ["accept-loss", "rename"])
def test_a_repair_that_does_not_change_the_states_does_not_prevent_the_comparison(books: Books, what: str) -> None:
    repair = RepairRecord(1, what, "ada", "then", "why", "told", 1, "op")
    ledger = replace(books.ledger, repairs=[repair])
    states = [replace(each, totals={"n": 16}) for each in books.evidence[:1]]
    assert len(verified(ledger, states).findings) == 1


def test_a_map_that_cannot_list_its_keys_has_no_total() -> None:
    def state(*keys: str) -> TridentAggregate:
        return TridentAggregate(OpaqueMap(MemoryMap[Any]()), keys=keys, values={"n": Count()})

    assert state("word").totals(["n"]) == {}
    assert state().totals(["n"]) == {"n": 0}


def not_compared(why: str) -> str:
    return f"state s0: its values were not compared: {why}"
