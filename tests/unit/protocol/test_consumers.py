"""What tasks read is compared with the source, with each other, with what was emitted, and with the first attempt."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import RowsDiffer
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Ack, BatchRows
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.ledger.steps.processing import OutputName, RowsRead, check_rows, consumed, digest_text, unproven_rows

ATTEMPT = TransactionAttempt(7, 2)
ALL = RowsDigest(10, 5, "xxh64-1")
OF_A = OutputName("a", -1, "counts")


def ack(*read: RowsRead, **outputs: RowsDigest) -> Ack:
    refs = [{"name": name, "rows": each.rows, "row_digest": each.text} for name, each in outputs.items()]
    return Ack("try", "op", done=True, outputs=refs, read=[each.to_json() for each in read])


def check(acks: dict[Any, Ack], size: Any = None, first: BatchRows | None = None) -> BatchRows | None:
    found = {key if isinstance(key, tuple) else (key, -1): each for key, each in acks.items()}
    return check_rows("flights", ATTEMPT, found, size, first)


def test_consumers_that_agree_define_the_rows_and_digests_of_the_batch() -> None:
    python = RowsDigest(10, 9, "python")
    batch = check({"a": ack(RowsRead(ALL)), "b": ack(RowsRead(python)), "c": ack()}, {"rows": 10, "why": ""})
    assert batch == BatchRows(10, {"xxh64-1": ALL.text, "python": python.text})
    assert digest_text(batch) == f"{python.text} {ALL.text}"


def test_rows_that_are_read_from_an_output_do_not_count_as_rows_of_the_batch() -> None:
    of_output = RowsRead(RowsDigest(20, 7, "python"), outputs=(OF_A,))
    assert consumed([RowsRead(ALL), of_output]) == 10
    assert consumed([of_output]) is None


def test_consumers_without_row_counts_are_not_compared() -> None:
    assert check({"a": ack(), "b": Ack("try", "op", done=True, outputs=[{"name": "x", "digest": "y"}])}) is None


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (RowsDigest(5, 5, "xxh64-1"), "10 rows, digest 0000000000000005 of the batch, but task b read 5 rows"),
        (RowsDigest(20, 10, "xxh64-1"), "task b read 20 rows"),
        (RowsDigest(10, 6, "xxh64-1"), "task b read 10 rows, digest 0000000000000006"),
        (RowsDigest(9, 1, "python"), "task b read 9 rows"),
    ],
)
def test_the_error_for_consumers_that_disagree_names_them(other: RowsDigest, named: str) -> None:
    with pytest.raises(RowsDiffer, match=r"Nothing was written.*reliable=False") as refused:
        check({"a": ack(RowsRead(ALL)), "b": ack(RowsRead(other))})
    assert named in str(refused.value)
    assert str(refused.value).startswith("Rows of transaction 7.2 differ:")


@pytest.mark.parametrize("rows", [0, 5, 20])
def test_the_error_names_a_consumer_that_has_not_read_the_number_of_rows_of_its_source(rows: int) -> None:
    with pytest.raises(RowsDiffer, match=f"task a\\[3\\] read {rows} rows of the batch, but its source counted 10"):
        check({("a", 3): ack(RowsRead(RowsDigest(rows)))}, {"rows": 10, "why": ""})


def test_a_consumer_of_a_batch_of_offsets_may_read_fewer_rows_than_offsets_and_never_more() -> None:
    offsets = {"rows": 10, "why": "", "at_most": True}
    assert check({"a": ack(RowsRead(RowsDigest(8)))}, offsets) == BatchRows(8)
    with pytest.raises(RowsDiffer, match="its source counted at most 10"):
        check({"a": ack(RowsRead(RowsDigest(11)))}, offsets)


def test_a_replay_without_counts_is_not_compared_with_the_first_attempt() -> None:
    assert check({"a": ack()}, first=BatchRows(10, {"xxh64-1": ALL.text})) is None


def test_source_counts_in_another_unit_than_rows_are_not_compared() -> None:
    assert check({"a": ack(RowsRead(RowsDigest(8)))}, {"files": 1, "why": ""}) == BatchRows(8)


@pytest.mark.parametrize("other", [RowsDigest(10, 6, "xxh64-1"), RowsDigest(11, 5, "xxh64-1")])
def test_a_replay_with_other_rows_is_refused(other: RowsDigest) -> None:
    first = BatchRows(10, {"xxh64-1": ALL.text})
    assert check({"a": ack(RowsRead(ALL))}, first=first) == first
    assert check({"a": ack(RowsRead(RowsDigest(10, 1, "python")))}, first=first) is not None
    with pytest.raises(RowsDiffer, match=r"an earlier one 10 .* --changed-rows"):
        check({"a": ack(RowsRead(other))}, first=first)


@pytest.mark.parametrize(
    "read", [RowsDigest(5, 2, "xxh64-1"), RowsDigest(20, 10, "xxh64-1"), RowsDigest(10, 6, "xxh64-1")]
)
def test_the_error_names_a_task_that_has_read_an_output_with_other_rows_than_were_emitted(read: RowsDigest) -> None:
    assert check({"a": ack(counts=ALL), "b": ack(RowsRead(ALL, (OF_A,)))}) is None
    with pytest.raises(RowsDiffer, match=r"task b read .* of output 'counts' of task a, which emitted 10 rows"):
        check({"a": ack(counts=ALL), "b": ack(RowsRead(read, (OF_A,)))})


def test_a_reading_is_compared_with_the_output_of_the_same_name() -> None:
    both = ack(other=RowsDigest(3), counts=ALL)
    assert check({"a": both, "b": ack(RowsRead(ALL, (OF_A,)))}) is None
    assert check({"a": both, "b": ack(RowsRead(RowsDigest(3), (OutputName("a", -1, "missing"),)))}) is None


def test_an_output_without_a_row_count_is_not_compared() -> None:
    returned = Ack("try", "op", done=True, outputs=[{"name": "counts", "digest": "d"}])
    assert check({"a": returned, "b": ack(RowsRead(ALL, (OF_A,)))}) is None


def test_the_error_names_an_output_that_was_replaced_after_it_was_read() -> None:
    parts = {"a": ack(counts=ALL), "b": ack(RowsRead(RowsDigest(10), (OF_A._replace(content=ALL.text),)))}
    check(parts)
    again = {**parts, "a": ack(counts=RowsDigest(10, 6, "xxh64-1"))}
    with pytest.raises(RowsDiffer, match="task b read output 'counts' of task a, which ran again since .* Clear b, so"):
        check(again)
    unreliable = Ack("2", "op", done=True, outputs=[{"name": "counts", "rows": 10, "task_try": "2", "reliable": False}])
    check({**parts, "a": unreliable})


def test_rows_of_an_output_without_a_hash_are_identified_by_their_task_try() -> None:
    entry = {"name": "counts", "rows": 10, "row_digest": "", "task_try": "first"}
    read = RowsRead(RowsDigest(10), (OF_A._replace(content="first"),))
    assert RowsRead.from_json(read.to_json()) == read
    check({"a": Ack("try", "op", done=True, outputs=[entry]), "b": ack(read)})
    with pytest.raises(RowsDiffer, match="ran again since"):
        check({"a": Ack("try", "op", done=True, outputs=[{**entry, "task_try": "2"}]), "b": ack(read)})


def test_the_error_names_a_mapped_instance_with_its_index() -> None:
    with pytest.raises(RowsDiffer, match=r"task a read 10 rows.*, but task b\[0\] read 9 rows"):
        check({"a": ack(RowsRead(ALL)), ("b", 0): ack(RowsRead(RowsDigest(9)))})


def test_the_outputs_of_all_mapped_instances_are_compared_as_one_output() -> None:
    parts = {("a", index): ack(counts=RowsDigest(2, index, "xxh64-1")) for index in range(3)}
    outputs = tuple(OutputName("a", index, "counts") for index in range(3))
    check({**parts, "b": ack(RowsRead(RowsDigest(6, 3, "xxh64-1"), outputs))})
    with pytest.raises(RowsDiffer, match="which emitted 6 rows"):
        check({**parts, "b": ack(RowsRead(RowsDigest(4, 3, "xxh64-1"), outputs))})


def test_an_output_that_is_passed_twice_is_compared_with_two_readings_of_it() -> None:
    twice = RowsRead(ALL + ALL, (OF_A, OF_A))
    with pytest.raises(RowsDiffer, match="task b read 20 rows"):
        check({"a": ack(counts=ALL), "b": ack(twice)})


def test_an_output_that_is_declared_unreliable_may_be_read_partly() -> None:
    loose = Ack("try", "op", done=True, outputs=[{"name": "counts", "rows": 10, "row_digest": "", "reliable": False}])
    assert check({"a": loose, "b": ack(RowsRead(RowsDigest(1), (OF_A,)))}) is None


def test_an_output_whose_rows_have_no_digest_is_compared_by_the_number_of_rows() -> None:
    old = Ack("try", "op", done=True, outputs=[{"name": "counts", "rows": 10}])
    assert check({"a": old, "b": ack(RowsRead(ALL, (OF_A,)))}) is None
    with pytest.raises(RowsDiffer, match="emitted 10 rows"):
        check({"a": old, "b": ack(RowsRead(RowsDigest(3), (OF_A,)))})


def test_a_partial_reading_may_have_fewer_rows_and_never_more() -> None:
    few, many = (RowsRead(RowsDigest(rows), at_least=True) for rows in (0, 11))
    assert check({"a": ack(few), "b": ack(RowsRead(ALL))}, {"rows": 10, "why": ""}) == BatchRows(
        10, {ALL.form: ALL.text}
    )
    assert check({"a": ack(few)}, {"rows": 10, "why": ""}) is None
    for acks in ({"a": ack(many)}, {"a": ack(many), "b": ack(RowsRead(ALL))}):
        with pytest.raises(RowsDiffer):
            check(acks, {"rows": 10, "why": ""})


def test_a_partial_reading_is_compared_with_a_complete_reading_in_any_order() -> None:
    many, other = (RowsRead(RowsDigest(rows, 6, ALL.form), at_least=True) for rows in (11, 10))
    for acks in ({"a": ack(many), "b": ack(RowsRead(ALL))}, {"a": ack(other), "b": ack(RowsRead(ALL))}):
        with pytest.raises(RowsDiffer, match="b read 10 rows, digest 0000000000000005 of the batch, but task a read 1"):
            check(acks)


# --- what is proven -----------------------------------------------------------------------------------------------

SIZE = {"rows": 10, "why": ""}
AT_LEAST, STOPPED = RowsRead(RowsDigest(10), at_least=True), RowsRead(RowsDigest(10), stopped=True)


def unproven(acks: dict[Any, Ack], size: Any = None) -> tuple[str, ...]:
    return unproven_rows({key if isinstance(key, tuple) else (key, -1): each for key, each in acks.items()}, size)


@pytest.mark.parametrize(
    ("acks", "size"),
    [
        ({"a": ack(RowsRead(ALL))}, None),
        ({"a": ack(RowsRead(ALL)), "b": ack()}, None),
        ({"a": ack(AT_LEAST)}, SIZE),
        ({"a": ack(STOPPED)}, SIZE),
        ({"a": ack(STOPPED), "b": ack(RowsRead(ALL))}, None),
        ({"a": ack()}, {"rows": 0, "why": ""}),
        ({"a": ack(RowsRead(ALL), counts=ALL), "b": ack(RowsRead(RowsDigest(10), (OF_A,), at_least=True))}, None),
    ],
)
def test_a_complete_reading_and_a_reading_of_a_known_number_of_rows_are_proven(acks: dict[Any, Ack], size: Any) -> None:
    assert unproven(acks, size) == ()


@pytest.mark.parametrize(
    ("acks", "size", "said"),
    [
        ({"a": ack()}, SIZE, "no task has counted the rows of the batch"),
        ({"a": ack(AT_LEAST)}, None, "task a: it read 10 rows of the batch or more: Spark may stop early"),
        ({"a": ack(AT_LEAST)}, {**SIZE, "at_most": True}, "task a: it read 10 rows of the batch or more"),
        ({("a", 3): ack(STOPPED)}, {"files": 2, "why": ""}, "task a[3]: it stopped after 10 rows of the batch"),
        ({"a": replace(ack(), unproven=["a sort"])}, SIZE, "task a: a sort"),
        ({"a": replace(ack(RowsRead(ALL)), unproven=["a sort"])}, SIZE, "task a: a sort"),
        (
            {"a": ack(RowsRead(ALL), counts=ALL), "b": ack(RowsRead(RowsDigest(7), (OF_A,), stopped=True))},
            None,
            "task b: it stopped after 7 rows of output 'counts' of task a",
        ),
    ],
)
def test_a_reading_that_is_not_proven_is_reported_with_its_task(acks: dict[Any, Ack], size: Any, said: str) -> None:
    (found,) = unproven(acks, size)
    assert found.startswith(said)


def test_a_partial_reading_is_unchanged_after_it_is_written_as_json_and_read() -> None:
    assert RowsRead.from_json(STOPPED.to_json()) == STOPPED
