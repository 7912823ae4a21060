"""Exactly what `verify` says of ledger, receipts and fences that do not fit, or of which not all is left."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import pytest

from airflow_tx.ledger.audit.chain import Chain, LedgerEvidence, StateEvidence, in_short
from airflow_tx.ledger.audit.verification import Verified, verified
from airflow_tx.ledger.json_text import as_kept, replace
from airflow_tx.ledger.life import RENAMED, STATE_LOST
from airflow_tx.ledger.receipt import Deed, DeedOfAttempt, Outcome, Receipt, Written
from airflow_tx.ledger.records import BatchRows, RepairRecord, TransactionRecord
from airflow_tx.state.api import StoredReceipt
from tests.unit.protocol.books import Books

ALONE = "no longer keeps their receipts; only the ledger has them"
THEN = "2013-01-01T00:00:00+00:00"
AUDIT = Deed("ada", THEN, "bad rows")
IN_SHORT = '"when":"2013-01-01T00:00:00+00:00","who":"ada","why":"bad rows"'
ONE_ROW = Written(1, "0" * 16)
AGAIN = DeedOfAttempt("ada", THEN, "bad rows", 1)


@pytest.fixture(scope="module")
def books() -> Books:
    """Five transactions, of which every test changes copies alone."""
    return Books().run(5)


@pytest.fixture
def ledger(books: Books) -> LedgerEvidence:
    # What a test replaces here would not fit to what is open.
    return replace(books.ledger, decisive=None)


@pytest.fixture
def states(books: Books) -> list[StateEvidence]:
    return books.evidence


def said(found: Verified) -> tuple[list[str], list[str]]:
    return list(found.findings), list(found.notes)


def of(found: TransactionRecord) -> Receipt:
    assert found.receipt is not None
    return found.receipt


def history(ledger: LedgerEvidence, number: int, **changes: Any) -> LedgerEvidence:
    """A ledger with another history of one transaction."""
    own = ledger.histories[min(number, 5)]
    end = {name: changes.pop(name) for name in ("outcome", "readmitted_as") if name in changes}
    own = replace(own, end=replace(own.final, **end), **changes)
    return replace(ledger, histories={**ledger.histories, number: own})


def forgetting(ledger: LedgerEvidence, *txids: int) -> LedgerEvidence:
    return replace(ledger, histories={txid: each for txid, each in ledger.histories.items() if txid not in txids})


def holding(state: StateEvidence, txids: Collection[int], kept: int | None = None) -> StateEvidence:
    """A state that has the receipts of some transactions."""
    held = [each for each in state.receipts or () if each.txid in txids]
    return replace(state, receipts=held, receipts_kept=kept)


def held(state: StateEvidence, txid: int, **changes: Any) -> StateEvidence:
    """A state whose receipt of one transaction says something else, with a hash that fits."""
    own = list(state.receipts or ())
    made = Receipt.from_json(json.loads(own[txid - 1].text))
    own[txid - 1] = StoredReceipt.of(replace(made, **changes))
    return replace(state, receipts=own)


def rechained(ledger: LedgerEvidence, **changes: dict[str, Any]) -> LedgerEvidence:
    """Receipts that say something else, by `t` and their txid; all hashes fit, and there are no states."""
    histories, previous = dict[int, TransactionRecord](), ""
    for txid, each in ledger.histories.items():
        made = replace(of(each), previous=previous, written={})
        made = replace(made, **changes.get(f"t{txid}", {}))
        previous = made.hash
        told = {"lost": list(made.lost), "changed": list(made.changed)}
        histories[txid] = replace(each, receipt=made.hashed(), **told)  # type: ignore[arg-type]
    return replace(ledger, histories=histories, topology=replace(ledger.topology, receipt=previous, states={}))


def repaired(ledger: LedgerEvidence, what: str, told: str, generation: int, **how: Any) -> LedgerEvidence:
    return replace(ledger, repairs=[RepairRecord(1, what, "ada", "then", "restored", told, generation, "op", **how)])


# --- what a state keeps


@pytest.mark.parametrize(
    ("txids", "kept", "missing", "gone"),
    [
        ((1, 2, 3, 4, 5), None, [], ""),
        ((4, 5), None, [1, 2, 3], ""),
        ((4, 5), 2, [], "1 to 3"),
        ((4, 5), 3, [1, 2, 3], ""),
        ((2, 3, 5), 2, [4], "1 to 1"),
        ((2, 3, 5), 3, [4], "1 to 1"),
        ((), 0, [], "1 to 5"),
        ((), None, [1, 2, 3, 4, 5], ""),
    ],
)
def test_verify_reports_a_missing_receipt_unless_the_state_deletes_its_oldest_receipts(
    ledger: LedgerEvidence, states: Any, txids: Any, kept: int | None, missing: list[int], gone: str
) -> None:
    found = verified(ledger, [holding(states[0], txids, kept), states[1]])
    assert said(found) == (
        [f"transaction {txid}: its receipt in state s0 is missing" for txid in missing],
        [f"transactions {gone}: state s0 {ALONE}"] if gone else [],
    )


def test_the_note_about_deleted_receipts_names_only_the_compared_range(ledger: LedgerEvidence, states: Any) -> None:
    found = verified(ledger, [holding(states[0], (), 0), states[1]], first=2, last=4)
    assert said(found) == ([], [f"transactions 2 to 4: state s0 {ALONE}"])
    found = verified(ledger, [holding(states[0], {5}, 1), states[1]], first=2, last=3)
    assert said(found) == ([], [f"transactions 2 to 3: state s0 {ALONE}"])


@pytest.mark.parametrize(
    ("what", "state", "txid", "accepted"),
    [
        ("state-lost", "s0", 3, True),
        ("state-lost", "s0", 1, False),
        ("state-lost", "s01", 3, False),
        ("state-lost", "s0 and", 3, False),
        ("accept-loss", "s0", 3, False),
    ],
)
def test_verify_does_not_report_missing_receipts_after_an_accepted_loss_of_a_state(
    ledger: LedgerEvidence, states: Any, what: str, state: str, txid: int, accepted: bool
) -> None:
    evidence = [holding(states[0], (3, 4, 5)), states[1]]
    told = f"state {state} was at transaction {txid - 1}; what it holds now is accepted"
    lost = repaired(ledger, what, told, 2, change={"state": state, "txid": txid})
    findings, notes = said(verified(lost, evidence))
    assert len(findings) == (0 if accepted else 2)
    assert notes == ([f"transactions 1 to 2: state s0 {ALONE}"] if accepted else [])


def test_a_renamed_state_keeps_its_receipts_under_the_former_name(ledger: LedgerEvidence, states: Any) -> None:
    renamed = replace(ledger, topology=replace(ledger.topology, states={"new": 5, "s1": 5}))
    renamed = repaired(renamed, RENAMED, "told", 9, change={"state": "s0", "to": "new", "txid": 6})
    assert said(verified(renamed, [replace(states[0], name="new"), states[1]])) == ([], [])


@pytest.mark.parametrize(("txids", "missing"), [((3, 4, 5), 0), ((4, 5), 1)])
def test_a_state_that_reuses_the_former_name_of_another_state_has_only_its_own_receipts(
    ledger: LedgerEvidence, states: Any, txids: Any, missing: int
) -> None:
    renamed = repaired(ledger, RENAMED, "told", 9, change={"state": "s0", "to": "new", "txid": 3})
    findings, _ = said(verified(renamed, [holding(states[0], txids), states[1]]))
    assert len(findings) == missing


@pytest.mark.parametrize(("lost", "is_accepted"), [("redis.a", True), ("redis.a b", False)])
def test_a_loss_of_one_state_does_not_count_for_a_state_whose_name_starts_in_the_same_way(
    books: Books, lost: str, is_accepted: bool
) -> None:
    of_a = rechained(books.ledger, t3={"written": {"redis.a": ONE_ROW}})
    told = f"state {lost} was at transaction 3; what it holds now is accepted"
    repaired_since = repaired(of_a, STATE_LOST, told, 9, change={"state": lost, "txid": 4})
    missing = "state redis.a: transaction 3 was committed to it, but the ledger does not name it"
    assert (missing in verified(repaired_since, []).findings) is not is_accepted


def test_verify_finds_a_receipt_of_a_state_that_is_not_in_the_ledger(ledger: LedgerEvidence, states: Any) -> None:
    found = verified(ledger, [held(states[0], 3, written={"other": ONE_ROW}), states[1]])
    assert said(found) == (["transaction 3: its receipts in state s0 and in the ledger differ in written"], [])


def test_receipts_after_a_changed_receipt_are_still_compared(ledger: LedgerEvidence, states: Any) -> None:
    own = ledger.histories[3].receipt
    assert own is not None
    other = history(ledger, 3, receipt=replace(own, rows=9))
    findings, _ = said(verified(other, [holding(states[0], (1, 2, 3, 5)), states[1]]))
    assert findings[1:] == ["transaction 4: its receipt in state s0 is missing"]


def test_a_receipt_of_another_incarnation_is_ignored(ledger: LedgerEvidence, states: Any) -> None:
    found = verified(ledger, [states[0], held(states[1], 2, incarnation="another life")])
    assert said(found) == (["transaction 2: its receipt in state s1 is missing"], [])


def test_verify_names_a_receipt_that_only_a_state_contains(ledger: LedgerEvidence, states: Any) -> None:
    without = replace(ledger, histories={txid: each for txid, each in ledger.histories.items() if txid != 3})
    findings, notes = said(verified(without, states))
    missing = [f"transaction 3: state {name} has a receipt of it, but the ledger has none" for name in ("s0", "s1")]
    assert [each for each in findings if each in missing] == missing
    assert notes == []


def test_a_single_changed_receipt_is_reported_once(ledger: LedgerEvidence, states: Any) -> None:
    own = ledger.histories[3].receipt
    assert own is not None
    forged = replace(own, rows=9).hash[:16]
    found = verified(history(ledger, 3, receipt=replace(own, rows=9)), states)
    hashes = f"its hash is {forged}, but the hash stored with it is {own.hash[:16]}"
    assert said(found) == ([f"transaction 3: its receipt was changed: {hashes}"], [])
    kept = list(states[0].receipts)
    kept[2] = replace(kept[2], hash="0" * 64)
    findings, _ = said(verified(ledger, [replace(states[0], receipts=kept), states[1]]))
    assert [each.partition(": its hash")[0] for each in findings] == [
        "transaction 3: its receipt in state s0 was changed"
    ]


@pytest.mark.parametrize(
    ("change", "said_of_it"),
    [
        ({"attempt": 7}, "it is of 3.1, but it is stored as 3.7"),
        ({"text": "{}"}, "it is no Receipt: Object missing required field `txid` ({})"),
        ({"text": "nothing"}, 'it is no Receipt: Expected `object`, got `str` ("nothing")'),
    ],
)
def test_the_columns_next_to_a_receipt_in_a_state_must_agree_with_the_receipt(
    ledger: LedgerEvidence, states: Any, change: dict[str, Any], said_of_it: str
) -> None:
    kept = list(states[0].receipts)
    kept[2] = replace(kept[2], **change)
    findings, _ = said(verified(ledger, [replace(states[0], receipts=kept), states[1]]))
    assert findings == [f"transaction 3: its receipt in state s0 was changed: {said_of_it}"]


def test_verify_finds_a_receipt_that_a_state_stores_under_another_txid(ledger: LedgerEvidence, states: Any) -> None:
    kept = list(states[0].receipts)
    kept[2] = replace(kept[2], txid=2)
    findings, _ = said(verified(ledger, [replace(states[0], receipts=kept), states[1]]))
    assert findings[0].endswith("state s0 was changed: it is of 3.1, but it is stored as 2.1")
    assert findings[-1] == "transaction 3: its receipt in state s0 is missing"


# --- what the ledger has forgotten


def test_receipts_that_are_no_longer_in_the_ledger_are_built_from_the_states(
    ledger: LedgerEvidence, states: Any
) -> None:
    assert verified(forgetting(ledger, 1, 2), states) == Verified(1, 5, (), ())
    chain = Chain(forgetting(ledger, 1, 2), states, 1, 5)
    assert set(chain.receipts[1].written) == {"s0", "s1"}


def test_verify_reports_contradicting_receipts_of_two_states_and_does_not_use_them(
    ledger: LedgerEvidence, states: Any
) -> None:
    evidence = [states[0], held(states[1], 1, rows=7)]
    found = verified(forgetting(ledger, 1, 2), evidence)
    assert found == Verified(2, 5, ("transaction 1: the receipts of s0 and s1 contradict each other",), ())


@pytest.mark.parametrize(
    ("forgotten", "lost", "begins", "told"),
    [
        ((1, 2), (2,), 3, [2]),
        ((1, 2, 3), (2,), 3, [2]),
        ((1,), (), 1, []),
    ],
)
def test_a_receipt_is_not_compared_if_one_state_has_lost_its_part_of_the_receipt(
    ledger: LedgerEvidence, states: Any, forgotten: Any, lost: Any, begins: int, told: list[int]
) -> None:
    evidence = [holding(states[0], {1, 2, 3, 4, 5} - set(lost)), states[1]]
    found = verified(forgetting(ledger, *forgotten), evidence)
    assert found == Verified(
        begins,
        5,
        (),
        tuple(f"transaction {txid}: a part of its receipt is missing, so it cannot be compared" for txid in told),
    )


def test_receipts_that_all_states_have_changed_in_the_same_way_are_found_by_the_next_receipt(
    ledger: LedgerEvidence, states: Any, books: Books
) -> None:
    changed = [held(each, 1, rows=7) for each in states]
    findings, notes = said(verified(forgetting(ledger, 1, 2), changed))
    first, forged = books.receipt(1), replace(books.receipt(1), rows=7)
    follows = f"it follows receipt {first.hash[:16]}, and the receipt of transaction 1 is {forged.hash[:16]}"
    assert (findings, notes) == ([f"transaction 2: {follows}"], [])


# --- the chain


@pytest.mark.parametrize(
    ("name", "value", "kept"),
    [
        ("txid", 4, "txid 4, its receipt 3"),
        ("attempt", 2, "attempt 2, its receipt 1"),
        ("run_id", "x", 'run "x", its receipt "run 3"'),
        ("outcome", Outcome.SKIPPED, 'outcome "SKIPPED", its receipt "COMMITTED"'),
        ("counted", BatchRows(1, {"": "x"}), 'digest "x", its receipt ""'),
        ("lost", ["y"], 'lost rows ["y"], its receipt []'),
        ("changed", [AGAIN], f'changed rows [{{"attempt":1,{IN_SHORT}}}], its receipt []'),
        ("skip", AUDIT, f"skip {{{IN_SHORT}}}, its receipt null"),
    ],
)
def test_each_field_of_the_history_is_compared_with_its_receipt(
    ledger: LedgerEvidence, states: Any, name: str, value: Any, kept: str
) -> None:
    assert said(verified(history(ledger, 3, **{name: value}), states)) == (
        [f"transaction 3: the ledger says {kept}"],
        [],
    )


def test_verify_finds_the_history_record_of_another_incarnation(ledger: LedgerEvidence) -> None:
    other = replace(ledger, topology=replace(ledger.topology, incarnation="other"))
    findings, _ = said(verified(other, []))
    said_of_each = [each.partition(", its receipt")[0] for each in findings]
    assert said_of_each == [f'transaction {txid}: the ledger says incarnation "other"' for txid in range(1, 6)]


@pytest.mark.parametrize("txid", [6, 7])
def test_verify_finds_a_transaction_that_is_final_before_its_turn(
    ledger: LedgerEvidence, states: Any, txid: int
) -> None:
    found = said(verified(history(ledger, txid, receipt=None), states))
    assert found == ([f"transaction {txid}: it is final, but transaction 6 has the turn"], [])


def test_verify_finds_a_missing_history_record_of_a_final_transaction(ledger: LedgerEvidence, books: Books) -> None:
    two, three = (books.receipt(txid).hash[:16] for txid in (2, 3))
    assert said(verified(forgetting(ledger, 3), [])) == (
        [
            "transaction 3: it is final, but its record in the history is missing",
            f"transaction 4: it follows receipt {three}, and the receipt of transaction 2 is {two}",
        ],
        [],
    )


def test_verify_finds_a_broken_chain_of_receipts(ledger: LedgerEvidence, books: Books) -> None:
    other = rechained(ledger, t3={"previous": ""})
    findings, _ = said(verified(other, []))
    second = of(other.histories[2]).hash[:16]
    assert findings == [f"transaction 3: it follows receipt none, and the receipt of transaction 2 is {second}"]


def test_a_receipt_is_not_compared_with_a_changed_predecessor(
    ledger: LedgerEvidence,
) -> None:
    own = ledger.histories[2].receipt
    assert own is not None
    other = history(ledger, 2, receipt=replace(own, rows=9))
    findings, _ = said(verified(history(other, 3, receipt=None), []))
    whose = [each.partition(" was changed")[0] for each in findings]
    assert whose == ["transaction 2: its receipt", "transaction 3: its receipt"]


@pytest.mark.parametrize("txid", [1, 3, 5])
def test_verify_finds_a_receipt_that_was_removed_from_the_ledger(ledger: LedgerEvidence, txid: int) -> None:
    findings, _ = said(verified(history(ledger, txid, receipt=None), []))
    assert (
        findings[0]
        == f"transaction {txid}: its receipt was changed: it is no Receipt: Expected `object`, got `null` (null)"
    )


@pytest.mark.parametrize(
    ("forgotten", "rebuilt", "missing", "notes"), [((2, 3), 2, [3], [2]), ((2, 3), 3, [], [2, 3]), ((1, 2), 2, [], [])]
)
def test_verify_notes_missing_records_from_before_a_rebuild(
    ledger: LedgerEvidence, forgotten: Any, rebuilt: int, missing: list[int], notes: list[int]
) -> None:
    other = forgetting(ledger, *forgotten)
    found = said(verified(replace(other, topology=replace(ledger.topology, rebuilt=rebuilt)), []))
    assert [each for each in found[0] if "it follows" not in each] == [
        f"transaction {txid}: it is final, but its record in the history is missing" for txid in missing
    ]
    assert found[1] == [
        f"transaction {txid}: the ledger was rebuilt after it and has no record of it" for txid in notes
    ]


@pytest.mark.parametrize(("receipt", "named"), [("x" * 64, "x" * 16), ("", "none")])
def test_the_topology_record_must_contain_the_hash_of_the_last_receipt(
    ledger: LedgerEvidence, states: Any, books: Books, receipt: str, named: str
) -> None:
    other = replace(ledger, topology=replace(ledger.topology, receipt=receipt))
    last = f"the last receipt is of transaction 5 ({books.receipt(5).hash[:16]})"
    assert said(verified(other, states)) == ([f"ledger: {last}, and the topology record names {named}"], [])
    assert said(verified(other, states, last=4)) == ([], [])


def test_the_hash_of_the_last_receipt_is_not_compared_if_the_receipt_was_changed(ledger: LedgerEvidence) -> None:
    own = ledger.histories[5].receipt
    assert own is not None
    other = replace(ledger, topology=replace(ledger.topology, states={}))
    findings, _ = said(verified(history(other, 5, receipt=replace(own, rows=9)), []))
    assert len(findings) == 1


@pytest.mark.parametrize(
    ("what", "generation", "whole"), [("ledger-lost", 2, True), ("ledger-lost", 1, False), ("state-lost", 2, False)]
)
@pytest.mark.parametrize("began_again", [True, False])
def test_a_rebuilt_ledger_begins_a_new_chain_of_receipts(
    ledger: LedgerEvidence, what: str, generation: int, whole: bool, began_again: bool
) -> None:
    """With a receipt since then, or with none yet."""
    if began_again:
        later: dict[str, Any] = {"generation": 2}
        other = rechained(ledger, t4={**later, "previous": ""}, t5=later)
    else:
        other = rechained(ledger)
    named = other.topology.receipt if began_again else ""
    other = replace(other, topology=replace(other.topology, generation=2, receipt=named))
    found = verified(repaired(other, what, "it went back", generation), [])
    assert (not found.findings, found.first) == (whole, 4 if whole and began_again else 1)
    told = began_again and generation == 2
    assert list(found.notes) == ([f"transaction 4: before it, {what}: it went back (ada: restored)"] if told else [])


def test_the_first_receipt_of_a_rebuilt_ledger_must_not_contain_the_hash_of_another_receipt(
    ledger: LedgerEvidence,
) -> None:
    later: dict[str, Any] = {"generation": 2}
    other = rechained(ledger, t4={**later, "previous": "x" * 64}, t5=later)
    other = replace(other, topology=replace(other.topology, generation=2))
    third = of(other.histories[3]).hash[:16]
    findings, _ = said(verified(repaired(other, "ledger-lost", "it went back", 2), []))
    assert findings == [f"transaction 4: it follows receipt {'x' * 16}, and the receipt of transaction 3 is {third}"]


# --- positions


@pytest.mark.parametrize(
    ("changes", "finding"),
    [
        ({"t3": {"before": 7}}, "transaction 3: it begins at 7, and transaction 2 ended at 2"),
        ({"t2": {"before": 7}}, "transaction 2: it begins at 7, and transaction 1 ended at 1"),
        ({"t1": {"before": 7}}, "transaction 1: it begins at 7, and the source begins at null"),
        ({"t5": {"after": 7}}, "ledger: it continues at 5, and transaction 5 ended at 7"),
        ({"t5": {"before": 7}}, "transaction 5: it begins at 7, and transaction 4 ended at 4"),
    ],
)
def test_each_transaction_must_begin_at_the_position_where_its_predecessor_ended(
    ledger: LedgerEvidence, changes: Any, finding: str
) -> None:
    assert said(verified(rechained(ledger, **changes), [])) == ([finding], [])


def test_only_positions_of_the_compared_range_are_compared(ledger: LedgerEvidence) -> None:
    other = rechained(ledger, t2={"before": 7}, t4={"before": 9}, t5={"before": 8})
    findings, _ = said(verified(other, [], first=3, last=4))
    assert findings == ["transaction 4: it begins at 9, and transaction 3 ended at 3"]


def test_a_position_is_not_compared_if_the_adjacent_position_is_unknown(ledger: LedgerEvidence) -> None:
    other = history(rechained(ledger, t5={"before": 8}), 3, receipt=None)
    findings, _ = said(verified(other, []))
    assert [each for each in findings if "begins" in each] == [
        "transaction 5: it begins at 8, and transaction 4 ended at 4"
    ]


LONG = {"a": "x" * 100}


@pytest.mark.parametrize(
    ("one", "two", "apart"),
    [
        ({"a": 1}, {"a": 1}, []),
        (None, {"a": 1}, [("partition a: ", None, 1)]),
        ({"a": 1, "b": 2}, {"a": 1, "b": 3, "c": 4}, [("partition b: ", 2, 3), ("partition c: ", None, 4)]),
        ({"a": 1}, {"b": 1}, [("partition a: ", 1, None), ("partition b: ", None, 1)]),
        ({"a": 1}, None, [("", {"a": 1}, None)]),
        (5, {"a": 1}, [("", 5, {"a": 1})]),
        ({"a": 1}, 5, [("", {"a": 1}, 5)]),
        (as_kept(LONG, 9), LONG, []),
        (as_kept(LONG, 9), {"a": 1}, [("", as_kept(LONG, 9), {"a": 1})]),
        ({"a": 1}, as_kept(LONG, 9), [("", {"a": 1}, as_kept(LONG, 9))]),
    ],
)
def test_positions_are_compared_by_partition_if_both_are_stored_completely(
    ledger: LedgerEvidence, one: Any, two: Any, apart: Any
) -> None:
    partitioned = replace(ledger, topology=replace(ledger.topology, partitioned=True))
    assert list(Chain(partitioned, [], 1, 5).apart(one, two)) == apart
    whole = [("", one, two)] if apart else []
    assert list(Chain(ledger, [], 1, 5).apart(one, two)) == whole


# --- fences


def fence(state: StateEvidence, **token: Any) -> StateEvidence:
    assert state.fence is not None
    own: Any = state.fence
    return replace(state, fence=replace(own, token=replace(own.token, **token)))


def test_verify_reports_a_state_without_a_fence_and_without_receipts(ledger: LedgerEvidence, states: Any) -> None:
    own = StateEvidence("own", None, None)
    note = "state own: it keeps no fence and no receipts; only the ledger knows its commits"
    assert said(verified(ledger, [*states, own])) == ([], [note])
    assert said(verified(ledger, [*states, own], last=4)) == ([], [])


def test_verify_compares_the_fence_of_a_state_that_has_no_receipts(ledger: LedgerEvidence, states: Any) -> None:
    own = replace(fence(states[0], txid=4), receipts=None)
    finding = "state s0: its fence says transaction 4, and 5 was committed to it"
    assert said(verified(ledger, [own, states[1]])) == ([finding], [])


def test_a_state_without_commits_needs_no_fence(ledger: LedgerEvidence, states: Any) -> None:
    assert said(verified(ledger, [*states, StateEvidence("new", None, ())])) == ([], [])


@pytest.mark.parametrize(
    ("txid", "latest", "finding"),
    [
        (4, 0, "its fence says transaction 4, and 5 was committed to it"),
        (6, 0, ""),
        (7, 0, "its fence says transaction 7, and it is the turn of 6"),
        (7, 7, ""),
    ],
)
def test_the_txid_in_a_fence_is_the_last_commit_of_the_state_or_the_current_transaction(
    ledger: LedgerEvidence, states: Any, txid: int, latest: int, finding: str
) -> None:
    for topology in (ledger.topology, replace(ledger.topology, states={"s1": 5})):
        found = verified(replace(ledger, topology=topology, latest=latest), [fence(states[0], txid=txid), states[1]])
        expected = finding if txid > 5 or "s0" in topology.states else ""
        assert said(found) == ([f"state s0: {expected}"] if expected else [], [])


def test_a_fence_is_not_compared_with_a_missing_receipt(ledger: LedgerEvidence, states: Any) -> None:
    other = history(ledger, 5, receipt=None)
    findings, _ = said(verified(other, [holding(fence(states[0], epoch=9), ())]))
    assert not [each for each in findings if "its fence" in each]


def test_the_batch_in_a_fence_is_compared_with_the_receipt(ledger: LedgerEvidence, states: Any) -> None:
    own: Any = states[0].fence
    batch = replace(own.kept, rows=9, position=8, prev=7)
    other = replace(own, applied=False, batch=batch.text)
    findings, _ = said(verified(ledger, [replace(states[0], fence=other), states[1]]))
    assert findings == [
        "state s0: its fence says update complete: false, the receipt of transaction 5 true",
        "state s0: its fence says rows 9, the receipt of transaction 5 5",
        "state s0: its fence says position 8, the receipt of transaction 5 5",
        "state s0: its fence says prev 7, the receipt of transaction 5 4",
    ]


@pytest.mark.parametrize("batch", ["nothing", '{"rows":5}', "[]", "x" * 50])
def test_verify_finds_an_unreadable_batch_in_a_fence(ledger: LedgerEvidence, states: Any, batch: str) -> None:
    own: Any = states[0].fence
    findings, _ = said(verified(ledger, [replace(states[0], fence=replace(own, batch=batch)), states[1]]))
    said_of_it = f"state s0: its fence says batch {json.dumps(batch[:40])}, the receipt of transaction 5"
    assert findings[-1] == f'{said_of_it} "rows and positions"'


# --- the last transaction of each state


@pytest.mark.parametrize(
    ("last", "rebuilt", "is_found"), [(4, 0, True), (4, 4, False), (4, 3, True), (5, 0, False), (5, 5, False)]
)
def test_the_last_transaction_of_a_state_is_compared_unless_the_ledger_was_rebuilt_later(
    ledger: LedgerEvidence, states: Any, last: int, rebuilt: int, is_found: bool
) -> None:
    topology = replace(ledger.topology, states={"s0": last, "s1": 5}, rebuilt=rebuilt)
    findings, _ = said(verified(replace(ledger, topology=topology), [replace(states[0], fence=None), states[1]]))
    text = f"state s0: the ledger says that transaction {last} was its last one, the receipts 5"
    assert (text in findings) is is_found


def test_a_state_whose_receipts_are_no_longer_known_is_not_compared(ledger: LedgerEvidence, states: Any) -> None:
    topology = replace(ledger.topology, states={**ledger.topology.states, "old": 3})
    assert said(verified(replace(ledger, topology=topology), states)) == ([], [])


# --- what a person has to know


def test_verify_notes_accepted_losses_and_rows_that_were_decided_again(ledger: LedgerEvidence) -> None:
    other = rechained(ledger, t2={"lost": ["row 7"], "changed": [AGAIN]}, t3={"lost": ["row 9"]})
    notes = [
        "transaction 2: before it, accepted as lost: row 7",
        f"transaction 2: its rows were decided again: bad rows (ada, {THEN})",
        "transaction 3: before it, accepted as lost: row 9",
    ]
    assert said(verified(other, [])) == ([], notes)
    assert said(verified(other, [], last=2))[1] == notes[:2]
    assert said(verified(other, [], first=3))[1] == notes[2:]
    assert said(verified(other, [], first=2, last=2))[1] == notes[:2]


@pytest.mark.parametrize(("again", "after"), [(None, ""), (9, "; its rows are in transaction 9")])
def test_verify_notes_a_skip_and_says_where_its_rows_are_now(
    ledger: LedgerEvidence, again: int | None, after: str
) -> None:
    other = rechained(ledger, t2={"outcome": "SKIPPED", "skip": AUDIT})
    other = history(other, 2, outcome=Outcome.SKIPPED, skip=AUDIT, readmitted_as=again)
    assert said(verified(other, [])) == ([], [f"transaction 2: skipped: bad rows (ada, {THEN}){after}"])


def test_verify_reports_the_receipt_of_a_skip_without_a_person_and_does_not_only_note_it(
    ledger: LedgerEvidence,
) -> None:
    findings, notes = said(verified(rechained(ledger, t2={"outcome": "SKIPPED"}, t3={"skip": AUDIT}), []))
    assert findings[0] == 'transaction 2: the ledger says outcome "COMMITTED", its receipt "SKIPPED"'
    assert notes == []


def test_a_skip_that_is_no_longer_in_the_ledger_is_found_in_the_states(ledger: LedgerEvidence, states: Any) -> None:
    skipped: dict[str, Any] = {"outcome": "SKIPPED", "skip": AUDIT}
    found = verified(forgetting(ledger, 1, 2), [held(each, 1, **skipped) for each in states])
    assert f"transaction 1: skipped: bad rows (ada, {THEN})" in found.notes


def test_verify_notes_a_repair_before_the_first_transaction_after_it(ledger: LedgerEvidence) -> None:
    later = {"generation": 3}
    other = rechained(ledger, t4=later, t5=later)
    other = replace(other, topology=replace(other.topology, generation=3))
    for generation, told in ((1, False), (2, True), (3, True), (4, False)):
        found = verified(repaired(other, "state-lost", "state s0 was empty", generation), [])
        note = "transaction 4: before it, state-lost: state s0 was empty (ada: restored)"
        assert said(found) == ([], [note] if told else [])


# --- in all


def test_the_result_for_a_range_names_its_first_and_last_proven_transaction(
    ledger: LedgerEvidence, states: Any
) -> None:
    assert verified(ledger, states, first=3) == Verified(3, 5, (), ())
    assert verified(ledger, states, last=9) == Verified(1, 5, (), ())
    assert verified(ledger, states, last=2) == Verified(1, 2, (), ())


def test_no_transaction_before_the_first_receipt_is_proven(ledger: LedgerEvidence) -> None:
    older = forgetting(ledger, 1, 2)
    assert verified(older, [], last=2) == Verified(None, 2, (), ())
    assert verified(older, [], last=3) == Verified(3, 3, (), ())


def test_a_ledger_without_receipts_proves_no_transaction(ledger: LedgerEvidence) -> None:
    empty = replace(ledger, histories={}, current=1, position=None)
    empty = replace(empty, topology=replace(empty.topology, states={}, receipt=""))
    assert verified(empty, []) == Verified(None, 0, (), ())
    assert empty.oldest == 1


@pytest.mark.parametrize(("length", "shown"), [(78, 80), (79, 81)])
def test_a_long_value_is_shortened(length: int, shown: int) -> None:
    text = in_short("x" * length)
    assert len(text) == shown
    assert text.endswith("x…" if length > 78 else 'x"')
