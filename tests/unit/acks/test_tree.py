"""The trees of an acker: the figure of Storm's page, and random trees against a model that knows every message."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import AckersBehind
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.outputs.messages.tree import (
    Acker,
    Origin,
    Portion,
    Tree,
    TreeReport,
    emitter_text,
    emitter_try,
    new_id,
)

ORIGIN = Origin("words", 7, 2)
SPOUT = emitter_text(TaskTry("sentences", -1, "try 1"))


def applied(acker: Acker, stream: str, number: int, changes: dict[int, tuple[int, int]], emitter: str = "") -> Acker:
    after, refused = acker.take(ORIGIN, Portion(stream, number, changes, emitter))
    assert refused == []
    return after


def test_an_ack_of_message_c_replaces_c_in_the_tree_by_its_children_d_and_e_in_one_step() -> None:
    """The figure of Storm's page: D and E were made of C, and C is acked."""
    a, b, c, d, e = (new_id() for _ in range(5))
    acker = applied(Acker(), "spout", 1, {a: (a, 1)}, SPOUT)
    acker = applied(acker, "first", 1, {a: (b ^ c ^ a, 2 - 1)})
    acker = applied(acker, "second", 1, {a: (b, -1)})
    assert acker.trees[a] == Tree(c, 1, "spout")
    acker = applied(acker, "third", 1, {a: (d ^ e ^ c, 2 - 1)})
    assert acker.trees[a] == Tree(d ^ e, 2, "spout")
    acker = applied(acker, "fourth", 1, {a: (d, -1)})
    assert acker.trees[a] == Tree(e, 1, "spout")
    assert applied(acker, "fourth", 2, {a: (e, -1)}).trees == {}


def test_a_message_may_be_acked_before_its_emitter_has_reported_it() -> None:
    root, word = new_id(), new_id()
    acker = applied(Acker(), "spout", 1, {root: (root, 1)}, SPOUT)
    acker = applied(acker, "counter", 1, {root: (word, -1)})
    assert acker.trees[root].count == 0
    assert not acker.trees[root].acked_twice
    assert applied(acker, "splitter", 1, {root: (root ^ word, 0)}).trees == {}


def test_the_size_of_an_acker_does_not_grow_with_its_messages() -> None:
    root = new_id()
    small = applied(Acker(), "0" * 16, 1, {root: (root, 1)}, SPOUT)
    large = replace(small, trees={root: replace(small.trees[root], value=new_id(), count=999_999)})
    assert len(large.to_json()) - len(small.to_json()) == len("999999") - len("1")


def test_an_acker_is_unchanged_after_it_is_encoded_and_decoded() -> None:
    acker = applied(Acker(), "spout", 1, {1: (1, 1), 2**64 - 1: (2**64 - 1, 1)}, SPOUT)
    assert Acker.from_json(acker.to_json()) == acker
    assert Acker.from_json(b"") == Acker()


def test_an_acker_accepts_each_part_of_a_stream_once_and_in_order() -> None:
    acker = applied(Acker(), "spout", 1, {1: (1, 1)}, SPOUT)
    assert acker.take(ORIGIN, Portion("spout", 1, {1: (1, 1)}, SPOUT)) == (acker, [])
    for number in (0, 3):
        with pytest.raises(
            AckersBehind, match=r"transaction 7\.2 of topology 'words' it holds part 1 of a worker's messages"
        ):
            acker.take(ORIGIN, Portion("spout", number, {1: (1, 1)}, SPOUT))


def test_a_task_try_is_unchanged_after_it_is_encoded_and_decoded() -> None:
    for task in (TaskTry("a b@c/ü", 12, "0198-77"), TaskTry("split", -1, "")):
        assert emitter_try(emitter_text(task)) == task


def test_a_report_sums_the_trees_of_all_ackers() -> None:
    first = applied(Acker(), "one", 1, {2: (2, 1), 4: (4, 1)}, emitter_text(TaskTry("split", 0, "t")))
    second = applied(Acker(), "two", 1, {1: (1, 1)}, emitter_text(TaskTry("split", 0, "t")))
    second = applied(second, "worker", 1, {1: (1, -2)})
    report = TreeReport.of([first, second], None)
    assert report == TreeReport({TaskTry("split", 0, "t"): 3}, {"split[0]": 3}, {"split[0]": 1})


@st.composite
def programs(draw: st.DrawFn) -> list[tuple[int, int, list[int]]]:
    """Messages in the order in which they are acked: which one, by which worker, and how many are made of it."""
    size = draw(st.integers(0, 12))
    return [(draw(st.integers(0, 50)), draw(st.integers(0, 2)), [0] * draw(st.integers(0, 3))) for _ in range(size)]


@given(programs(), st.lists(st.integers(0, 2), max_size=30))
def test_a_tree_is_complete_if_and_only_if_all_its_messages_are_acked(
    program: list[tuple[int, int, list[int]]], flushes: list[int]
) -> None:
    """Whoever sends when: a tree is gone from its acker once all is acked and sent, and never before."""
    root = new_id()
    acker = applied(Acker(), "spout", 1, {root: (root, 1)}, SPOUT)
    left, sums, numbers = [root], dict.fromkeys(range(3), (0, 0)), dict.fromkeys(range(3), 0)

    def send(worker: int) -> None:
        nonlocal acker
        numbers[worker] += 1
        acker = applied(acker, str(worker), numbers[worker], {root: sums[worker]})
        sums[worker] = (0, 0)

    for which, worker, made in program:
        if not left:
            break
        message = left.pop(which % len(left))
        value, count = sums[worker]
        for child in [new_id() for _ in made]:
            value, count = value ^ child, count + 1
            left.append(child)
        sums[worker] = (value ^ message, count - 1)
        if flushes and left:
            send(flushes.pop())
        assert root in acker.trees
    for message in left:
        value, count = sums[0]
        sums[0] = (value ^ message, count - 1)
    for worker in [worker for worker in sums if sums[worker] != (0, 0)]:
        assert root in acker.trees
        send(worker)
    assert acker.trees == {}
