"""What every `Store` must do, as tests: subclass `StoreSuite` and say how to make one.

class TestMyStore(StoreSuite):
    @pytest.fixture
    def store(self):
        return MyStore()
"""

from __future__ import annotations

import threading
import uuid
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

from airflow_tx.base.errors import RequirementFailed, TooMuchMetadata
from airflow_tx.ledger.api import ANY_VERSION, Absent, Create, Delete, Node, Put, Requirement, Store, Unchanged, Write

_SOON = 240.0  # far more than an answer takes, however busy the machine is


class StoreSuite:
    """The behaviour of a store. Override the fixture `store`, and `other` where a second client exists."""

    @pytest.fixture
    def store(self) -> Store:
        raise NotImplementedError("override the fixture `store`")

    @pytest.fixture
    def other(self, store: Store) -> Store:
        """Another client of the same records; by default the same object."""
        return store

    @pytest.fixture
    def root(self, store: Store) -> str:
        """An empty record that no other test uses."""
        path = f"/suite-{uuid.uuid4().hex[:12]}"
        store.ensure(path)
        return path

    # --- reading and versions ------------------------------------------------------------------------------------

    def test_a_record_that_is_not_there_is_none(self, store: Store, root: str) -> None:
        assert store.get(f"{root}/nothing") is None
        assert store.children(f"{root}/nothing") is None

    def test_a_new_record_has_version_0_and_every_put_adds_one(self, store: Store, root: str) -> None:
        store.multi([], [Create(f"{root}/a", b"one")])
        assert store.get(f"{root}/a") == Node(b"one", 0)
        store.multi([], [Put(f"{root}/a", b"two")])
        store.multi([], [Put(f"{root}/a", b"two")])
        assert store.get(f"{root}/a") == Node(b"two", 2)

    def test_a_record_says_when_it_was_last_written(self, store: Store, root: str) -> None:
        times = []
        for data in (b"one", b"two"):
            store.multi([], [Put(root, data)])
            node = store.get(root)
            assert node is not None
            assert node.modified is not None
            times.append(node.modified)
        assert times == sorted(times)

    def test_a_record_made_anew_starts_at_version_0(self, store: Store, root: str) -> None:
        store.multi([], [Create(f"{root}/a", b"one"), Put(f"{root}/a", b"two")])
        store.multi([], [Delete(f"{root}/a"), Create(f"{root}/a", b"")])
        assert store.get(f"{root}/a") == Node(b"", 0)

    def test_any_bytes_come_back_as_they_were(self, store: Store, root: str) -> None:
        for data in (b"", b"\0\xff", "…".encode(), b"x" * 100_000):
            store.multi([], [Put(root, data)])
            node = store.get(root)
            assert node is not None
            assert node.data == data

    def test_children_are_sorted_and_carry_the_version_of_their_parent(self, store: Store, root: str) -> None:
        store.multi([], [Create(f"{root}/{name}", b"") for name in ("b", "a", "c")])
        store.multi([], [Create(f"{root}/a/below", b""), Put(root, b"touched")])
        children = store.children(root)
        assert children is not None
        assert (children.names, children.version) == (("a", "b", "c"), 1)

    def test_a_child_does_not_change_the_version_of_its_parent(self, store: Store, root: str) -> None:
        store.multi([], [Create(f"{root}/a", b"")])
        children = store.children(root)
        assert children is not None
        assert children.version == 0

    def test_ensure_makes_parents_and_keeps_what_is_there(self, store: Store, root: str) -> None:
        store.ensure(f"{root}/a/b/c")
        store.multi([], [Put(f"{root}/a", b"kept")])
        store.ensure(f"{root}/a/b/c")
        assert store.get(f"{root}/a") == Node(b"kept", 1)
        assert store.get(f"{root}/a/b/c") == Node(b"", 0)

    def test_sync_lets_a_reader_see_what_was_answered_to_another(self, store: Store, other: Store, root: str) -> None:
        for number in range(20):
            store.multi([], [Put(root, str(number).encode())])
            other.sync()
            assert other.get(root) == Node(str(number).encode(), number + 1)

    # --- multi ---------------------------------------------------------------------------------------------------

    def test_a_multi_checks_versions(self, store: Store, root: str) -> None:
        store.multi([Unchanged(root, 0)], [Put(root, b"one")])
        with pytest.raises(RequirementFailed, match=root) as refusal:
            store.multi([Unchanged(root, 0)], [Put(root, b"two")])
        assert (refusal.value.path, refusal.value.expected) == (root, "version 0")
        assert store.get(root) == Node(b"one", 1)

    def test_any_version_asks_only_that_the_record_exists(self, store: Store, root: str) -> None:
        store.multi([], [Put(root, b"one")])
        store.multi([Unchanged(root, ANY_VERSION)], [Put(root, b"two")])
        with pytest.raises(RequirementFailed):
            store.multi([Unchanged(f"{root}/nothing", ANY_VERSION)], [Put(root, b"three")])
        assert store.get(root) == Node(b"two", 2)

    def test_a_requirement_sees_the_records_before_the_multi(self, store: Store, root: str) -> None:
        store.multi([Unchanged(root, 0), Unchanged(root, 0)], [Put(root, b"1"), Put(root, b"2")])
        assert store.get(root) == Node(b"2", 2)

    def test_absent_holds_for_a_record_that_the_multi_creates(self, store: Store, root: str) -> None:
        path = f"{root}/a"
        store.multi([Absent(path)], [Create(path, b"mine")])
        with pytest.raises(RequirementFailed) as refusal:
            store.multi([Absent(path)], [Create(path, b"yours")])
        assert (refusal.value.path, refusal.value.expected) == (path, "nothing")
        assert store.get(path) == Node(b"mine", 0)

    @pytest.mark.parametrize("fault", ["stale", "exists", "missing", "orphan", "children"])
    def test_a_refused_multi_writes_nothing(self, store: Store, root: str, fault: str) -> None:
        store.multi([], [Create(f"{root}/a", b""), Create(f"{root}/a/b", b"")])
        cases: dict[str, tuple[Requirement, Write]] = {
            "stale": (Unchanged(root, 7), Put(root, b"")),
            "exists": (Unchanged(root, 0), Create(f"{root}/a", b"")),
            "missing": (Unchanged(root, 0), Put(f"{root}/nothing", b"")),
            "orphan": (Unchanged(root, 0), Create(f"{root}/no/parent", b"")),
            "children": (Unchanged(root, 0), Delete(f"{root}/a")),
        }
        requirement, write = cases[fault]
        before: list[Write] = [Put(root, b"x"), Create(f"{root}/new", b"")]
        with pytest.raises(RequirementFailed):
            store.multi([requirement], [*before, write, Delete(f"{root}/a/b")])
        children = store.children(root)
        assert children is not None
        assert (children.names, children.version) == (("a",), 0)
        assert store.get(f"{root}/a/b") == Node(b"", 0)

    def test_a_refusal_says_where_what_was_expected_and_what_was_found(self, store: Store, root: str) -> None:
        store.multi([], [Create(f"{root}/a", b"")])
        cases: list[tuple[list[Requirement], list[Write], str, str, str]] = [
            ([], [Create(f"{root}/no/parent", b"")], f"{root}/no", "a record", "nothing"),
            ([], [Put(f"{root}/nothing", b"")], f"{root}/nothing", "a record", "nothing"),
            ([], [Delete(root)], root, "no children", "children"),
            ([Unchanged(f"{root}/nothing", 3)], [], f"{root}/nothing", "version 3", "nothing"),
        ]
        for requirements, writes, path, expected, found in cases:
            with pytest.raises(RequirementFailed) as refusal:
                store.multi(requirements, writes)
            error = refusal.value
            assert (error.path, error.expected, error.found) == (path, expected, found)

    def test_writes_are_made_in_order(self, store: Store, root: str) -> None:
        path = f"{root}/a"
        store.multi([], [Create(path, b""), Create(f"{path}/b", b""), Delete(f"{path}/b"), Delete(path)])
        assert store.get(path) is None

    def test_parents_may_be_deleted_after_their_children_only(self, store: Store, root: str) -> None:
        store.multi([], [Create(f"{root}/a", b""), Create(f"{root}/a/b", b"")])
        with pytest.raises(RequirementFailed):
            store.multi([], [Delete(f"{root}/a"), Delete(f"{root}/a/b")])
        store.multi([], [Delete(f"{root}/a/b"), Delete(f"{root}/a")])
        assert store.get(f"{root}/a") is None

    def test_of_many_multis_on_one_version_one_is_made(self, store: Store, other: Store, root: str) -> None:
        def compete(number: int) -> bool:
            try:
                (store, other)[number % 2].multi(
                    [Unchanged(root, 0)], [Put(root, b""), Create(f"{root}/{number}", b"")]
                )
            except RequirementFailed:
                return False
            return True

        with ThreadPoolExecutor(8) as pool:
            won = [number for number, made in enumerate(pool.map(compete, range(16))) if made]
        store.sync()
        children = store.children(root)
        assert children is not None
        assert [str(number) for number in won] == list(children.names)
        assert children.version == 1

    def test_no_increment_is_lost_among_writers_that_check(self, store: Store, other: Store, root: str) -> None:
        store.multi([], [Put(root, b"0")])

        def add(own: Store) -> None:
            for _ in range(10):
                while not _increment(own, root):
                    pass

        _together(lambda: add(store), lambda: add(other), lambda: add(store))
        store.sync()
        node = store.get(root)
        assert node is not None
        assert node.data == b"30"

    # --- sizes ---------------------------------------------------------------------------------------------------

    def test_a_record_that_is_too_large_is_refused_by_name_and_nothing_is_written(
        self, store: Store, root: str
    ) -> None:
        with pytest.raises(TooMuchMetadata, match=f"{root}/a") as refusal:
            store.multi([], [Put(root, b"x"), Create(f"{root}/a", b"x" * 1_100_000)])
        assert refusal.value.size == 1_100_000
        assert store.get(root) == Node(b"", 0)
        assert store.get(f"{root}/a") is None

    def test_records_that_are_too_large_together_are_refused(self, store: Store, root: str) -> None:
        with pytest.raises(TooMuchMetadata, match=root):
            store.multi([], [Put(root, b"x" * 400_000), *(Create(f"{root}/{n}", b"x" * 400_000) for n in "abc")])
        assert store.get(root) == Node(b"", 0)

    def test_a_record_of_almost_the_limit_is_taken(self, store: Store, root: str) -> None:
        data = b"x" * 1_048_000
        store.multi([Unchanged(root, 0)], [Put(root, data)])
        assert store.get(root) == Node(data, 1)

    # --- watches -------------------------------------------------------------------------------------------------

    def test_a_watch_wakes_on_creation_change_and_deletion(self, store: Store, other: Store, root: str) -> None:
        path = f"{root}/a"
        writes: list[Write] = [Create(path, b""), Put(path, b"x"), Delete(path)]
        for write in writes:
            with store.watch(path, f"{root}/b") as watch:
                assert not watch.wait(0)
                other.multi([], [write])
                assert watch.wait(_SOON)
                assert watch.wait(0), "a watch that has fired stays so"

    def test_a_watch_sleeps_through_what_happens_elsewhere(self, store: Store, other: Store, root: str) -> None:
        store.multi([], [Create(f"{root}/a", b"")])
        with store.watch(f"{root}/a") as watch:
            other.multi([], [Create(f"{root}/b", b""), Put(root, b"x"), Create(f"{root}/a/below", b"")])
            self.let_pass(store, other, root)
            assert not watch.wait(0)

    def test_what_happened_before_the_watch_does_not_wake_it(self, store: Store, other: Store, root: str) -> None:
        with store.watch(root):
            pass  # it never fired; the next one on the same path must not inherit it
        store.multi([], [Put(root, b"x")])
        with store.watch(root) as watch:
            self.let_pass(store, other, root)
            assert not watch.wait(0)

    def test_a_change_between_watch_and_read_is_not_missed(self, store: Store, other: Store, root: str) -> None:
        for number in range(1, 20):
            with store.watch(root) as watch:
                node = store.get(root)
                assert node is not None
                assert node.version == number - 1
                writer = threading.Thread(target=other.multi, args=([], [Put(root, b"x")]))
                writer.start()
                assert watch.wait(_SOON)
                writer.join()

    def test_every_watch_on_a_path_wakes(self, store: Store, other: Store, root: str) -> None:
        with store.watch(root) as one, store.watch(root) as two:
            other.multi([], [Put(root, b"x")])
            assert one.wait(_SOON)
            assert two.wait(_SOON)

    def test_a_refused_multi_wakes_nobody(self, store: Store, other: Store, root: str) -> None:
        with store.watch(root) as watch:
            with pytest.raises(RequirementFailed):
                store.multi([Unchanged(root, 9)], [Put(root, b"x")])
            self.let_pass(store, other, root)
            assert not watch.wait(0)

    def let_pass(self, store: Store, other: Store, root: str) -> None:
        """Wait until a later change elsewhere has woken its watch: a client is told of changes in their order."""
        with store.watch(f"{root}/later") as later:
            other.multi([], [Create(f"{root}/later", b"")])
            assert later.wait(_SOON)


def _increment(store: Store, path: str) -> bool:
    node = store.get(path)
    assert node is not None
    try:
        store.multi([Unchanged(path, node.version)], [Put(path, str(int(node.data) + 1).encode())])
    except RequirementFailed:
        return False
    return True


def _together(*work: Callable[[], None]) -> None:
    with ThreadPoolExecutor(len(work)) as pool:
        for future in [pool.submit(one) for one in work]:
            future.result()
