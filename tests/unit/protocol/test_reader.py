"""What a step requires by what it reads, and what it may assume."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import UnreadableRecord
from airflow_tx.ledger.api import (
    ANY_VERSION,
    Absent,
    Children,
    Create,
    Delete,
    Node,
    Put,
    Requirement,
    Unchanged,
    Write,
)
from airflow_tx.ledger.reading import KnownRecords, Reader
from airflow_tx.ledger.records import Counter, encode
from airflow_tx.ledger.store.memory import MemoryStore

NONE: frozenset[str] = frozenset()


@pytest.fixture
def store() -> MemoryStore:
    """A record of version 1 in a folder of version 2."""
    made = MemoryStore()
    made.multi([], [Create("/a", b""), Create("/a/x", encode(Counter(1)))])
    made.multi([], [Put("/a", b""), Put("/a", b""), Put("/a/x", encode(Counter(2)))])
    return made


READS: list[tuple[Callable[[Reader], Any], list[Requirement]]] = [
    (lambda read: read.find(Counter, "/a/x"), [Unchanged("/a/x", 1)]),
    (lambda read: read.get(Counter, "/a/x"), [Unchanged("/a/x", 1)]),
    (lambda read: read.exists("/a"), [Unchanged("/a", 2)]),
    (lambda read: read.raw("/a/x"), [Unchanged("/a/x", 1)]),
    (lambda read: read.names("/a"), [Unchanged("/a", 2)]),
    (lambda read: read.names_if_any("/a"), [Unchanged("/a", 2)]),
    (lambda read: read.peek(Counter, "/a/x"), []),
    (lambda read: read.peek_if_any(Counter, "/a/x"), []),
    (lambda read: read.covered(Counter, "/a/x"), []),
]


@pytest.mark.parametrize(("read", "required"), READS)
def test_every_record_that_a_step_reads_becomes_a_requirement_of_its_multi_unless_it_is_a_peek(
    store: MemoryStore, read: Callable[[Reader], Any], required: list[Requirement]
) -> None:
    reader = Reader(store)
    assert read(reader)
    assert [*reader.requirements(NONE)] == required


def test_a_record_that_must_not_exist_becomes_a_requirement_only_if_the_multi_creates_it(store: MemoryStore) -> None:
    reader = Reader(store)
    assert (reader.find(Counter, "/a/y"), reader.exists("/a/z"), reader.raw("/a/w")) == (None, False, None)
    assert reader.names_if_any("/b") == ()
    assert reader.requirements(NONE) == ()
    assert set(reader.requirements(frozenset({"/a/y", "/a/w"}))) == {Absent("/a/y"), Absent("/a/w")}


@pytest.mark.parametrize("read", ["get", "peek", "covered", "names"])
def test_the_error_for_a_missing_required_record_names_its_path(store: MemoryStore, read: str) -> None:
    reader = Reader(store)
    with pytest.raises(UnreadableRecord, match="/a/y.*missing"):
        reader.names("/a/y") if read == "names" else getattr(reader, read)(Counter, "/a/y")


def test_a_cached_record_is_not_read_again_and_its_cached_version_becomes_a_requirement(store: MemoryStore) -> None:
    known = KnownRecords({"/a/x": Node(encode(Counter(7)), 5)}, {"/a": Children(("old",), 4)})
    reader = Reader(store, known)
    assert (reader.find(Counter, "/a/x"), reader.names("/a")) == (Counter(7), ("old",))
    assert set(reader.requirements(NONE)) == {Unchanged("/a/x", 5), Unchanged("/a", 4)}
    assert reader.covered(Counter, "/a/x") == Counter(2)


def test_a_reader_remembers_every_record_that_it_has_read(store: MemoryStore) -> None:
    reader = Reader(store)
    reader.names("/a")
    reader.peek(Counter, "/a/x")
    assert reader.seen.children == {"/a": Children(("x",), 2)}
    assert reader.seen.nodes == {"/a/x": Node(encode(Counter(2)), 1)}
    reader.seen.clear()
    assert reader.seen == KnownRecords()


@pytest.mark.parametrize("hasty", [True, False])
def test_a_hasty_pass_assumes_the_most_likely_records_without_a_read(store: MemoryStore, hasty: bool) -> None:
    reader = Reader(store, hasty=hasty)
    assert (reader.find(Counter, "/a/x", new=True) is None) is hasty
    assert reader.exists("/a/y", old=True) is hasty
    if hasty:
        assert reader.requirements(NONE) == (Unchanged("/a/y", ANY_VERSION),)


def test_a_hasty_pass_assumes_nothing_about_a_record_without_a_hint(store: MemoryStore) -> None:
    reader = Reader(store, hasty=True)
    assert reader.find(Counter, "/a/x") == Counter(2)
    assert reader.exists("/a/y") is False


def test_a_cached_record_takes_precedence_over_the_most_likely_one(store: MemoryStore) -> None:
    reader = Reader(store, KnownRecords({"/a/x": Node(encode(Counter(7)), 5), "/a/y": None}), hasty=True)
    assert reader.find(Counter, "/a/x", new=True) == Counter(7)
    assert reader.exists("/a/y", old=True) is False


def test_a_joined_step_reads_the_writes_of_the_step_before_it(store: MemoryStore) -> None:
    reader = Reader(store)
    assert reader.get(Counter, "/a/x") == Counter(2)
    reader.apply([Put("/a/x", encode(Counter(3))), Create("/b", b""), Create("/b/y", encode(Counter(4)))])
    reader.apply([Put("/b", b""), Create("/a/z", b""), Delete("/a/z")])
    assert (reader.get(Counter, "/a/x"), reader.peek(Counter, "/b/y")) == (Counter(3), Counter(4))
    assert (reader.covered(Counter, "/b/y"), reader.exists("/a/z"), reader.raw("/b")) == (Counter(4), False, b"")
    assert (reader.names("/b"), reader.names("/a")) == (("y",), ("x",))
    # Only of what was there before: the rest is what the multi itself makes.
    assert set(reader.requirements(frozenset({"/b", "/b/y"}))) == {Unchanged("/a/x", 1), Unchanged("/a", 2)}


def test_the_records_that_a_multi_has_written_are_cached_afterwards(store: MemoryStore) -> None:
    reader, known = Reader(store), KnownRecords()
    reader.get(Counter, "/a/x")
    reader.find(Counter, "/a/y")
    reader.names("/a")
    writes: list[Write] = [
        Put("/a/x", b"1"),
        Put("/a/x", b"2"),
        Create("/a/y", b""),
        Create("/a/y/z", b"3"),
        Put("/a/y", b""),
    ]
    writes += [Put("/a", b""), Create("/a/w", b"4"), Delete("/a/w"), Put("/unknown", b"")]
    store.ensure("/unknown")
    made = known.made_by(writes, reader.seen)
    store.multi([], writes)
    known.take(made, reader.seen)
    assert known.nodes.keys() == {"/a/x", "/a/y", "/a/y/z"}
    assert known.nodes == {path: store.get(path) for path in known.nodes}
    assert known.children == {path: store.children(path) for path in ("/a", "/a/y")}


def test_a_newer_cached_record_is_kept_and_a_missing_record_is_not_cached(store: MemoryStore) -> None:
    known = KnownRecords({"/a/x": Node(b"newer", 7), "/a/y": None}, {"/a": Children(("newer",), 9)})
    reader = Reader(store)
    reader.find(Counter, "/a/x")
    reader.find(Counter, "/a/y")
    reader.names("/a")
    known.take(known.made_by([], reader.seen), reader.seen)
    assert known == KnownRecords({"/a/x": Node(b"newer", 7)}, {"/a": Children(("newer",), 9)})


def test_a_long_running_process_caches_a_limited_number_of_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_tx.ledger.reading.MOST_KNOWN", 2)
    known = KnownRecords()
    for number in range(10):
        known.take(known.made_by([Create(f"/{number}", b"data")], KnownRecords()), KnownRecords())
    assert "/9" in known.nodes
    assert len(known.nodes) <= 3
