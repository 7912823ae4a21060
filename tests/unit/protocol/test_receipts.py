"""Receipts, their chain, and what `verify` finds when one stored thing is another one."""

from __future__ import annotations

import json
import marshal
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import structs
from xxhash import xxh3_64_intdigest

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.api import Create, Delete, Put
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.verification import Verified, verified
from airflow_tx.ledger.json_text import as_kept, digest_of, is_shortened, replace
from airflow_tx.ledger.receipt import (
    METADATA_KEPT,
    NOTHING_WRITTEN,
    Code,
    Deed,
    DeedOfAttempt,
    Receipt,
    Replayed,
    TaskRows,
    Written,
    hash_of,
)
from airflow_tx.ledger.records import Ack, Counter, Metadata, RepairRecord, TransactionRecord, encode
from airflow_tx.ledger.steps.processing import code_of, tasks_of
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.state import Sum
from airflow_tx.state.api import StoredReceipt
from airflow_tx.state.arrow import RowTally
from airflow_tx.state.memory import MemoryState
from tests.finals import plain_receipt
from tests.integration.pipeline import Pipeline
from tests.unit.protocol.books import Books

WHEN = "2026-01-01T00:00:00+00:00"
ROWS = st.lists(st.fixed_dictionaries({"key": st.text(max_size=3), "n": st.integers(0, 3)}), max_size=6)


# --- a receipt ---------------------------------------------------------------------------------------------------


def digest(rows: list[dict[str, Any]]) -> str:
    tally = RowTally(rows)
    return tally.written(len(list(tally))).digest


@given(ROWS, st.randoms())
def test_a_digest_does_not_depend_on_the_order_of_rows_and_columns(rows: list[dict[str, Any]], random: Any) -> None:
    others = [dict(reversed(row.items())) for row in rows]
    random.shuffle(others)
    assert digest(others) == digest(rows)


@given(ROWS.filter(bool))
def test_a_repeated_row_changes_the_digest(rows: list[dict[str, Any]]) -> None:
    assert len({digest(rows), digest([*rows, rows[0]]), digest([*rows, rows[0], rows[0]])}) == 3


@given(ROWS, ROWS)
def test_the_digests_of_parts_add_up_to_the_digest_of_all_rows(
    one: list[dict[str, Any]], two: list[dict[str, Any]]
) -> None:
    parts = Written(len(one), digest(one)) + Written(len(two), digest(two))
    assert parts == Written(len(one) + len(two), digest([*one, *two]))


def test_the_digest_of_a_row_is_the_hash_of_its_values_in_the_order_of_column_names() -> None:
    rows = [{"n": 2, "key": "a"}, {"n": 3, "key": "b", "at": None}]
    values = {("key", "n"): ("a", 2), ("at", "key", "n"): (None, "b", 3)}
    hashes = (
        xxh3_64_intdigest(marshal.dumps(row, 2), xxh3_64_intdigest(marshal.dumps(names, 2)))
        for names, row in values.items()
    )
    assert digest(rows) == f"{sum(hashes) % 2**64:016x}"
    assert len({digest([{"a": one, "b": two}]) for one in (1, 2) for two in (1, 2, "1")}) == 6


def test_rows_that_were_never_read_count_as_no_written_rows() -> None:
    assert RowTally([{"n": 1}]).written(0) == NOTHING_WRITTEN == Written(0, "0" * 16)


def test_rows_that_are_read_twice_are_counted_once() -> None:
    tally = RowTally([{"n": 1}, {"n": 2}])
    assert (list(tally), list(tally)) == ([{"n": 1}, {"n": 2}],) * 2
    assert tally.written(2).digest == digest([{"n": 2}, {"n": 1}])


def test_a_second_reading_of_rows_from_an_iterator_raises_an_error() -> None:
    tally = RowTally(iter([{"n": 1}]))
    assert list(tally) == [{"n": 1}]
    with pytest.raises(TypeError, match="can be read only once: pass a list"):
        next(tally.portions(10))


def receipt(**changes: Any) -> Receipt:
    own: dict[str, Any] = {"metadata": [0, 5], "before": 0, "after": 5, "previous": ""}
    who = {"topology": "flights", "key": "key", "run_id": "run", "attempt": 2, "epoch": 3, "nonce": "nonce"}
    return plain_receipt(**{**who, **own, "birth": "birth", "granted": WHEN, **changes})


NAMES = [each.name for each in structs.fields(Receipt) if each.name != "stored_hash"]


def changed(value: Any, **changes: Any) -> Any:
    return replace(value, **changes)


def test_a_receipt_is_unchanged_after_it_is_stored_as_json_and_its_hash_depends_on_every_field() -> None:
    made = receipt(rows=5, tasks={"p": TaskRows(1, 5, {})}, lost=["row 7"], replays=[Replayed(1, WHEN, "ü")])
    again = Receipt.from_json(json.loads(json.dumps(made.to_json())))
    assert (again.text, again.hash, hash_of(made.text)) == (made.text, made.hash, made.hash)
    assert again.differences(made) == []
    others = [changed(made, **{name: "another one"}) for name in NAMES]
    assert len({made.hash, *(each.hash for each in others)}) == len(NAMES) + 1
    assert [each.differences(made) for each in others] == [[name] for name in NAMES]


@pytest.mark.parametrize(
    "other",
    [
        {"txid": "1"}, {"txid": True}, {"epoch": None}, {"run_id": 5}, {"previous": None},
        {"written": {"s0": 5}}, {"changed": [5]}, {"replays": ["x"]},
        {"written": []}, {"tasks": []}, {"code": []}, {"skip": [1]}, {"changed": {}}, {"replays": {}},
        {"lost": "row 7"}, {"another": 1}, {"format": 2},
    ],
)  # fmt: skip
def test_a_receipt_with_a_wrong_field_is_refused(other: dict[str, Any]) -> None:
    whole = receipt(
        skip=Deed("ada", WHEN, "why"),
        written={"s0": NOTHING_WRITTEN},
        changed=[DeedOfAttempt("ada", WHEN, "why", 1)],
        replays=[Replayed(1, WHEN, "why")],
        lost=["row 7"],
    ).to_json()
    assert Receipt.from_json(whole).lost == ["row 7"]
    with pytest.raises(UnreadableRecord, match="here"):
        Receipt.from_json({**whole, **other}, path="here")


@pytest.mark.parametrize("value", [None, 5, "text", [], {}])
def test_a_value_that_is_not_an_object_is_refused_as_a_receipt(value: Any) -> None:
    with pytest.raises(UnreadableRecord, match="it is no Receipt"):
        Receipt.from_json(value)


def test_a_receipt_contains_only_the_digest_of_long_metadata() -> None:
    long = list(range(METADATA_KEPT))
    kept = as_kept(long, METADATA_KEPT)
    assert is_shortened(kept)
    assert len(json.dumps(kept)) < 100
    assert digest_of(kept) == digest_of(long) != digest_of(long[1:])
    assert as_kept([1, 2], METADATA_KEPT) == [1, 2]
    assert [is_shortened(as_kept("x" * 8, most)) for most in (9, 10)] == [True, False]


def test_the_receipt_of_a_task_with_one_counting_instance_shows_the_rows_of_that_instance() -> None:
    read = [{"rows": 5, "digest": "python:0000000000000001", "outputs": [], "at_least": False}]
    of_output = [{"rows": 9, "digest": "python:0000000000000007", "outputs": [["a", -1, "x"]], "at_least": False}]
    other = [{"rows": 2, "digest": "xxh64-1:0000000000000001", "outputs": [], "at_least": False}]
    acks = {
        ("count", 0): Ack("try", "op", done=True, rows=5, read=[*read, *of_output]),
        ("count", 1): Ack("try", "op", done=True),
        ("audit", 0): Ack("try", "op", done=True, rows=5, read=[*read, *of_output]),
        ("audit", 1): Ack("try", "op", done=True, rows=2, read=other),
    }
    assert tasks_of(acks) == {
        "audit": TaskRows(2, 7, {}),
        "count": TaskRows(2, 5, {}, {"": "python:0000000000000001"}),
    }


HASHED = {"name": "counts", "rows": 2, "row_digest": "python:0000000000000001"}


@pytest.mark.parametrize(
    ("other", "digests"),
    [({"name": "counts", "rows": 5}, None), ({"name": "counts", "rows": 0}, "1"), ({"name": "counts"}, "1")],
)
def test_an_output_has_no_digest_if_one_of_its_mapped_instances_has_no_digest(
    other: dict[str, Any], digests: str | None
) -> None:
    acks = {("count", index): Ack("try", "op", outputs=[each]) for index, each in enumerate((HASHED, other))}
    expected = {} if digests is None else {"counts": f"python:{digests:0>16}"}
    assert tasks_of(acks)["count"].digests == expected


def test_the_receipt_of_a_mapped_task_shows_the_sums_over_its_instances() -> None:
    def ack(rows: int | None, *outputs: dict[str, Any]) -> Ack:
        return Ack("try", "op", done=True, rows=rows, outputs=list(outputs))

    acks = {
        ("count", 0): ack(5, {"name": "counts", "rows": 2, "row_digest": "python:0000000000000001"}),
        ("count", 1): ack(7, {"name": "counts", "rows": 3, "row_digest": "python:0000000000000002"}),
        ("plain", -1): ack(None, {"name": "return_value", "digest": "d"}),
    }
    assert tasks_of(acks) == {
        "count": TaskRows(2, 12, {"counts": 5}, {"counts": "python:0000000000000003"}),
        "plain": TaskRows(1, None, {"return_value": None}),
    }


def test_a_receipt_contains_the_code_that_the_instances_of_each_task_ran() -> None:
    def ack(code: str = "") -> Ack:
        return Ack("try", "op", done=True, code=code)

    acks = {
        ("count", 0): ack("b"), ("count", 1): ack("b"), ("count", 2): ack(), ("plain", -1): ack(),
        ("deployed", 0): ack("b"), ("deployed", 1): ack("a"),
    }  # fmt: skip
    assert code_of(acks, "v1") == Code("v1", {"count": "b", "deployed": "a b"})
    assert code_of({("plain", -1): ack()}, "v1") == Code("v1")


# --- a ledger and its states -------------------------------------------------------------------------------------


@pytest.fixture
def books() -> Books:
    return Books().run(5)


def test_verify_has_no_finding_for_an_unchanged_ledger(books: Books) -> None:
    assert books.verify() == Verified(1, 5, (), ())


def test_each_receipt_contains_the_previous_hash_and_the_rows_that_were_written_to_each_state(books: Books) -> None:
    found = [books.receipt(txid) for txid in range(1, 6)]
    assert [each.previous for each in found] == ["", *(each.hash for each in found[:-1])]
    assert [(each.before, each.after) for each in found] == [(None, 1), (1, 2), (2, 3), (3, 4), (4, 5)]
    assert found[2].written == dict.fromkeys(("s0", "s1"), Written(1, digest([{"key": "total", "n": 3}])))
    assert books.pipeline.ledger.topology().receipt == found[-1].hash


def test_a_receipt_lists_the_earlier_attempts_with_the_reason_of_each_replay(books: Books) -> None:
    pipeline = books.pipeline
    begun = pipeline.begin("again")
    grant = pipeline.acquire(begun, pipeline.process(begun))
    pipeline.write(grant, 6)  # and it dies before its mark
    begun = pipeline.begin("again")
    grant = pipeline.acquire(begun, pipeline.process(begun))
    pipeline.write(grant, 6)
    pipeline.mark(grant)
    found = books.receipt(6)
    assert (found.attempt, [(each.attempt, each.why) for each in found.replays]) == (
        2,
        [(1, "its run was cleared")],
    )
    assert [[each.txid for each in state.receipts()] for state in books.states] == [[1, 2, 3, 4, 5, 6]] * 2
    assert books.verify().findings == ()


def test_a_skip_is_part_of_the_chain_of_receipts_and_is_listed_in_a_note(books: Books) -> None:
    books.skip()
    books.run(2)
    assert (books.receipt(6).outcome, books.receipt(6).skip) == ("SKIPPED", books.receipt(6).skip)
    found = books.verify()
    assert found.findings == ()
    assert len(found.notes) == 1
    assert found.notes[0].startswith("transaction 6: skipped: why (ada, ")


def test_a_receipt_that_is_no_longer_in_the_ledger_is_built_from_the_states() -> None:
    books = Books(history=3).run(8)
    assert books.verify() == Verified(1, 8, (), ())
    books.states[0].database.receipts.pop(2)
    found = books.verify()
    assert (found.first, found.findings) == (4, ())
    assert found.notes == ("transaction 3: a part of its receipt is missing, so it cannot be compared",)


def test_verify_can_compare_a_range_of_transactions(books: Books) -> None:
    books.change(books.history(2), lambda value: value.update(rows=7))
    books.change(books.history(5), lambda value: value.update(run_id="another"))
    assert len(books.verify().findings) == 2
    assert [each[:14] for each in books.verify(last=4).findings] == ["transaction 2:"]


# --- what is changed is found -------------------------------------------------------------------------------------


def updates(**changes: Any) -> Callable[[dict[str, Any]], Any]:
    """Other fields of a record."""
    return lambda value: value.update(changes)


def forged(books: Books, txid: int, **changes: Any) -> Callable[[dict[str, Any]], Any]:
    """A receipt with a hash that fits."""
    made = replace(books.receipt(txid), **changes)
    return lambda value: value.update(receipt=made.to_json())


@pytest.mark.parametrize(
    ("name", "value"),
    [("run_id", "x"), ("attempt", 2), ("birth", "x"), ("outcome", "SKIPPED"), ("txid", 4)],
)
def test_verify_finds_a_changed_number_in_the_history(books: Books, name: str, value: Any) -> None:
    books.change(
        books.history(3), lambda record: (record["end"] if name in record["end"] else record).update({name: value})
    )
    (finding,) = books.verify().findings
    assert finding.startswith("transaction 3: the ledger says ")


@pytest.mark.parametrize("name", [name for name in NAMES if name != "format"])
def test_verify_finds_a_changed_field_of_a_receipt(books: Books, name: str) -> None:
    books.change(books.history(3), lambda value: value["receipt"].update({name: {"s0": {"keys": 9}}}))
    (finding,) = books.verify().findings
    assert (
        "its receipt was changed" in finding or "its record cannot be read: its field receipt does not fit" in finding
    )


@pytest.mark.parametrize("name", ["rows", "granted", "tasks", "after", "before", "metadata", "written", "code"])
@pytest.mark.parametrize("txid", [1, 3, 5])
def test_verify_finds_a_forged_receipt_although_its_own_hash_is_correct(books: Books, txid: int, name: str) -> None:
    other: dict[str, Any] = {"rows": 9, "granted": "another time", "written": {"s0": Written(9, "0" * 16)}}
    other |= {"tasks": {"count": TaskRows(9, None, {})}, "code": Code("v9")}
    books.change(books.history(txid), forged(books, txid, **{name: other.get(name, {"s0": 9})}))
    assert books.verify().findings


def test_verify_finds_a_completely_forged_chain_by_the_receipts_in_the_states(books: Books) -> None:
    previous = books.receipt(2).hash
    for txid in (3, 4, 5):
        made = replace(books.receipt(txid), rows=2 if txid == 3 else 1, previous=previous)
        previous = made.hash
        books.change(books.history(txid), updates(receipt=made.to_json()))
    books.change(books.pipeline.paths.record, lambda value: value.update(receipt=previous))
    assert [each for each in books.verify().findings if "differ in rows" in each]


@pytest.mark.parametrize("txid", [2, 5])
def test_verify_finds_a_deleted_history_record(books: Books, txid: int) -> None:
    books.store.multi([], [Delete(books.history(txid))])
    assert f"transaction {txid}: it is final, but its record in the history is missing" in books.verify().findings


def test_verify_finds_a_receipt_that_was_removed_from_the_history(books: Books) -> None:
    books.change(books.history(3), lambda value: value.update(receipt=None))
    assert [each for each in books.verify().findings if each.startswith("transaction 3: its receipt was changed")]


def test_verify_finds_a_changed_last_receipt_in_the_topology_record(books: Books) -> None:
    books.change(books.pipeline.paths.record, lambda value: value.update(receipt="0" * 64))
    (finding,) = books.verify().findings
    assert finding.startswith("ledger: the last receipt is of transaction 5")


def test_verify_finds_a_changed_last_transaction_of_a_state_in_the_topology_record(books: Books) -> None:
    books.change(books.pipeline.paths.record, lambda value: value["states"].update(s0=4))
    assert "state s0: the ledger says that transaction 4 was its last one, the receipts 5" in books.verify().findings


@pytest.mark.parametrize("turn", [5, 7])
def test_verify_finds_a_changed_turn(books: Books, turn: int) -> None:
    paths = books.pipeline.paths
    if turn == 7:
        books.store.multi([], [Put(paths.allocated, encode(Counter(6)))])
        books.store.multi([], [Create(paths.meta(6), encode(Metadata(1, 6, 6)))])
    else:
        books.store.multi([], [Create(paths.meta(4), encode(Metadata(1, 4, 4)))])
    books.change(paths.current, lambda value: value.update(txid=turn))
    assert books.verify().findings


def test_verify_finds_a_changed_position(books: Books) -> None:
    books.change(books.pipeline.paths.meta(5), lambda value: value.update(position=4))
    assert books.verify().findings == ("ledger: it continues at 4, and transaction 5 ended at 5",)


@pytest.mark.parametrize("name", ["generation", "txid", "attempt", "epoch", "nonce", "birth"])
def test_verify_finds_a_changed_token_in_a_fence(books: Books, name: str) -> None:
    database = books.states[1].database
    assert database.fence is not None
    value = "another" if name in ("nonce", "birth") else 4 if name == "txid" else 9
    database.fence = replace(database.fence, token=changed(database.fence.token, **{name: value}))
    (finding,) = books.verify().findings
    assert finding.startswith("state s1: its fence says ")


@pytest.mark.parametrize("change", [{"applied": False}, {"incarnation": "another"}, {"batch": '{"rows":1}'}])
def test_verify_finds_a_changed_fence(books: Books, change: dict[str, Any]) -> None:
    database = books.states[1].database
    assert database.fence is not None
    database.fence = replace(database.fence, **change)
    assert all(each.startswith("state s1: its fence") for each in books.verify().findings)
    assert books.verify().findings


def test_verify_finds_a_missing_fence(books: Books) -> None:
    books.states[0].database.fence = None
    assert books.verify().findings == ("state s0: it has no fence, but transaction 5 was committed to it",)


@pytest.mark.parametrize("txid", [1, 3, 5])
def test_verify_finds_a_receipt_that_is_missing_in_a_state(books: Books, txid: int) -> None:
    database = books.states[0].database
    database.receipts = [each for each in database.receipts if each.txid != txid]
    assert books.verify().findings == (f"transaction {txid}: its receipt in state s0 is missing",)


@pytest.mark.parametrize(
    "change", [{"txid": 2}, {"attempt": 7}, {"hash": "0" * 64}, {"text": "{}"}, {"text": "nothing"}]
)
def test_verify_finds_a_changed_receipt_in_a_state(books: Books, change: dict[str, Any]) -> None:
    database = books.states[0].database
    database.receipts[2] = replace(database.receipts[2], **change)
    assert books.verify().findings


def test_verify_finds_a_forged_receipt_in_a_state(books: Books) -> None:
    database = books.states[0].database
    own = Receipt.from_json(json.loads(database.receipts[2].text))
    database.receipts[2] = StoredReceipt.of(replace(own, written={"s0": Written(9, "0" * 16)}))
    assert books.verify().findings == ("transaction 3: its receipts in state s0 and in the ledger differ in written",)


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_verify_finds_a_change_of_any_stored_value_of_a_receipt(data: Any) -> None:
    books = Books().run(3)
    txid = data.draw(st.integers(1, 3))
    leaves = list(_leaves(books.receipt(txid).to_json()))
    path = data.draw(st.sampled_from(leaves))

    def change(value: dict[str, Any]) -> None:
        inside: Any = value["receipt"]
        for step in path[:-1]:
            inside = inside[step]
        inside[path[-1]] = "another one" if inside[path[-1]] != "another one" else 0

    books.change(books.history(txid), change)
    assert books.verify().findings, path


def own_receipt(history: TransactionRecord) -> Receipt:
    assert history.receipt is not None
    return history.receipt


def _leaves(value: Any, path: tuple[Any, ...] = ()) -> Any:
    if isinstance(value, dict) and value:
        for name, item in value.items():
            yield from _leaves(item, (*path, name))
    else:
        yield path


# --- positions ----------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(1, 3), min_size=1), min_size=2, max_size=6), st.data()
)
def test_verify_finds_a_moved_position_of_a_partition(taken: list[dict[str, int]], data: Any) -> None:
    store, state = MemoryStore(), MemoryState("s", values={"n": Sum()})
    pipeline = Pipeline(store, "/tx", [state])
    store.ensure("/tx")
    for number in range(len(taken)):
        pipeline.run(f"run {number}")
    evidence = ledger_evidence(store, pipeline.paths)
    histories, position, previous = {}, dict[str, int](), ""
    for txid, part in enumerate(taken, 1):
        after = {**position, **{name: position.get(name, 0) + count for name, count in part.items()}}
        own = own_receipt(evidence.histories[txid])
        made = replace(own, before=position or None, after=after, previous=previous, written={})
        histories[txid] = replace(evidence.histories[txid], receipt=made.hashed())
        position, previous = after, made.hash
    topology = replace(evidence.topology, partitioned=True, receipt=previous, states={})
    evidence = replace(evidence, histories=histories, position=position, topology=topology)
    assert verified(evidence, []).findings == ()
    txid = data.draw(st.integers(1, len(taken)))
    name = data.draw(st.sampled_from(sorted(taken[txid - 1])))
    moved = own_receipt(histories[txid])
    moved = replace(moved, after={**moved.after, name: moved.after[name] + 1})
    histories[txid] = replace(histories[txid], receipt=moved.hashed())
    assert any(f"partition {name}: " in each for each in verified(evidence, []).findings)


def test_verify_lists_repairs_and_accepts_the_new_chain_of_a_rebuilt_ledger(books: Books) -> None:
    evidence = ledger_evidence(books.store, books.pipeline.paths)
    histories = dict(evidence.histories)
    previous = ""
    for txid in (4, 5):
        own = own_receipt(histories[txid])
        made = replace(own, generation=2, previous=previous)
        previous = made.hash
        histories[txid] = replace(histories[txid], receipt=made.hashed())
    repair = RepairRecord(1, "ledger-lost", "ada", "then", "restored", "transaction 4 is next", 2, "op")
    topology = replace(evidence.topology, generation=2, receipt=previous, states={})
    rebuilt = replace(evidence, histories=histories, topology=topology, repairs=[repair], decisive=None)
    found = verified(rebuilt, [])
    assert (found.first, found.findings) == (4, ())
    assert found.notes == ("transaction 4: before it, ledger-lost: transaction 4 is next (ada: restored)",)
    assert verified(replace(rebuilt, repairs=[]), []).findings
