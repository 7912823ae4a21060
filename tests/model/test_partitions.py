"""Sources with partitions: each has a place of its own, whatever becomes of transactions (TRACES.md: 15)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import StaleBatch
from tests.model.conftest import counts
from tests.model.driver import Run, Topology


def test_a_partition_without_rows_for_ten_transactions_keeps_its_position(partitioned: Topology) -> None:
    Run(partitioned, "r1").whole({"A": 1, "B": 5})
    for number in range(2, 12):
        Run(partitioned, f"r{number}").whole({"A": 1})
    last = Run(partitioned, "r12")
    assert last.whole({"A": 1, "B": 2}).metadata == {"A": [11, 12], "B": [5, 7]}
    assert last.begun is not None
    assert last.begun.position == {"A": 12, "B": 7}
    assert partitioned.position(12) == {"A": 12, "B": 7}


def test_a_partition_can_be_added_to_a_running_topology(partitioned: Topology) -> None:
    Run(partitioned, "r1").whole({"A": 1})
    assert Run(partitioned, "r2").whole({"A": 1, "B": 3}).metadata == {"A": [1, 2], "B": [0, 3]}
    assert Run(partitioned, "r3").whole({"B": 1}).position == {"A": 2, "B": 4}


def test_a_partition_name_may_contain_any_characters(partitioned: Topology) -> None:
    Run(partitioned, "r1").whole({"a/b.c": 1, "ü %": 2, "..": 3})
    assert Run(partitioned, "r2").whole({"..": 1}).position == {"a/b.c": 1, "ü %": 2, "..": 4}


def test_a_transactional_replay_keeps_its_partitions_rows_and_positions(store: Callable[[], Any], root: str) -> None:
    topology = Topology(store, root, [counts("s0")], source="transactional", partitioned=True)
    first, second = Run(topology, "r1"), Run(topology, "r2")
    first.begin({"A": 1, "B": 2})
    second.begin({"A": 1})
    assert first.begin({"C": 9}).metadata == {"A": [0, 1], "B": [0, 2]}
    assert topology.broken() == []
    first.process({})
    first.commit()
    second.process({})
    second.commit()
    assert Run(topology, "r3").begin({"B": 1}).metadata == {"B": [2, 3]}


class TestReplayWithOtherPartitions:
    """The replay of an opaque source has other partitions than the attempt before it."""

    def test_a_new_partition_that_is_missing_in_a_replay_returns_later_at_its_position(
        self, partitioned: Topology
    ) -> None:
        first, second, third = (Run(partitioned, name) for name in ("r1", "r2", "r3"))
        first.begin({"A": 1, "B": 5})
        second.begin({"A": 1})
        third.begin({"A": 1})
        first.begin({"A": 1})
        first.process({})
        first.commit()
        second.process({})
        with pytest.raises(StaleBatch):
            second.commit()
        assert second.whole({"A": 1}).position == {"A": 2}
        assert third.whole({"A": 1, "B": 2}).metadata == {"A": [2, 3], "B": [0, 2]}

    def test_a_partition_that_is_missing_in_a_replay_continues_from_its_earlier_position(
        self, partitioned: Topology
    ) -> None:
        Run(partitioned, "r1").whole({"A": 1, "B": 5})
        second, third = Run(partitioned, "r2"), Run(partitioned, "r3")
        second.begin({"A": 1, "B": 5})
        third.begin({"A": 1})
        second.begin({"A": 1})
        second.process({})
        second.commit()
        assert third.whole({"B": 1}).metadata == {"B": [5, 6]}

    def test_a_partition_that_joins_in_a_replay_continues_from_its_position_in_the_replay(
        self, partitioned: Topology
    ) -> None:
        Run(partitioned, "r1").whole({"A": 1, "B": 5})
        second, third, fourth = (Run(partitioned, name) for name in ("r2", "r3", "r4"))
        second.begin({"A": 1})
        third.begin({"A": 1})
        fourth.begin({"A": 1})
        second.begin({"A": 1, "B": 2})
        second.process({})
        second.commit()
        assert third.whole({"B": 1}).metadata == {"B": [7, 8]}
        assert fourth.whole({"A": 1, "B": 1}).metadata == {"A": [2, 3], "B": [8, 9]}

    def test_a_replay_without_rows_leaves_every_position_unchanged(self, partitioned: Topology) -> None:
        first, second = Run(partitioned, "r1"), Run(partitioned, "r2")
        first.begin({"A": 1, "B": 1})
        second.begin({"B": 1})
        assert first.whole({}).metadata is None
        assert partitioned.position(1) is None
        assert second.whole({"B": 2}).metadata == {"B": [0, 2]}

    def test_a_transaction_allocated_during_a_replay_starts_at_the_final_positions_of_partitions(
        self, partitioned: Topology
    ) -> None:
        """Between the reads of the replay and its multi another run begins."""
        first, second, third = (Run(partitioned, name) for name in ("r1", "r2", "r3"))
        first.begin({"A": 1, "B": 5})
        second.begin({"A": 1})
        store, plain = partitioned.store, partitioned.store()

        class Late:
            def __getattr__(self, name: str) -> Any:
                return getattr(plain, name)

            def multi(self, requirements: Any, writes: Any) -> None:
                partitioned.store = store
                if third.begun is None and writes:
                    third.begin({"A": 1})
                plain.multi(requirements, writes)

        partitioned.store = Late
        first.begin({"A": 1})
        assert third.begun is not None
        assert first.whole({"A": 1}).metadata == {"A": [0, 1]}
        assert second.whole({"A": 1}).position == {"A": 2}
        assert third.whole({"A": 1, "B": 1}).metadata == {"A": [2, 3], "B": [0, 1]}

    def test_a_later_batch_is_stale_only_if_one_of_its_own_partitions_moved(self, partitioned: Topology) -> None:
        first, second = Run(partitioned, "r1"), Run(partitioned, "r2")
        first.begin({"A": 1, "B": 1})
        second.begin({"A": 1})
        first.begin({"A": 1, "B": 1})
        assert partitioned.broken() == []
        first.begin({"A": 1, "B": 2})
        assert partitioned.broken() == [2]


class TestSkippedPartitions:
    """Skip and re-admission of a batch with partitions."""

    def test_a_skip_keeps_all_positions_and_a_readmission_takes_the_rows_of_all_partitions(
        self, partitioned: Topology
    ) -> None:
        first = Run(partitioned, "r1")
        first.begin({"A": 1, "B": 2})
        partitioned.skip(1)
        assert Run(partitioned, "r2").whole({"A": 1, "C": 1}).metadata == {"A": [1, 2], "C": [0, 1]}
        partitioned.readmit(1)
        again = first.whole({"A": 99})
        assert (again.metadata, again.position) == ({"A": [0, 1], "B": [0, 2]}, {"A": 2, "B": 2, "C": 1})
        assert Run(partitioned, "r4").whole({"A": 1, "B": 1}).metadata == {"A": [2, 3], "B": [2, 3]}

    def test_a_readmitted_batch_keeps_its_rows_if_an_earlier_batch_loses_a_partition(
        self, partitioned: Topology
    ) -> None:
        first, second, fourth = (Run(partitioned, name) for name in ("r1", "r2", "r4"))
        first.begin({"A": 1, "B": 2})
        partitioned.skip(1)
        second.begin({"A": 1, "B": 1})
        partitioned.readmit(1)
        first.begin({})
        fourth.begin({"B": 1})
        second.begin({"A": 1})
        second.process({})
        second.commit()
        assert first.whole({}).metadata == {"A": [0, 1], "B": [0, 2]}
        assert fourth.whole({"B": 1}).metadata == {"B": [2, 3]}


def kinds(tree: list[str], topology: Topology) -> list[str]:
    """The records of a tree that must not grow, without their txids."""
    base = topology.paths.base
    growing = [f"{base}/{folder}/" for folder in ("runs", "skipped", "history")]
    kept = [path for path in tree if not any(path.startswith(folder) for folder in growing)]
    return sorted(path.rstrip("0123456789") for path in kept)


@pytest.mark.parametrize("partitions", [True, False], ids=["partitions", "no partitions"])
def test_thirty_transactions_with_skips_and_replays_leave_as_many_records_as_three(
    store: Callable[[], Any], root: str, partitions: bool
) -> None:
    topology = Topology(store, root, [counts("s0")], partitioned=partitions, history=4)

    def rows(number: int) -> Any:
        if not partitions:
            return 1
        return {"A": 1, **({"B": 2} if number % 2 else {}), **({"C": 1} if number % 5 == 0 else {})}

    def three(start: int) -> None:
        skipped, replayed = Run(topology, f"r{start}"), Run(topology, f"r{start + 1}")
        skipped.begin(rows(start))
        replayed.begin({"A": 2, "B": 1, "C": 1} if partitions else 2)
        topology.skip(topology.current)
        topology.readmit(topology.current - 1)
        skipped.begin(rows(start))
        replayed.whole({"C": 1} if partitions else 1, {"a": 1})
        skipped.whole(rows(start), {"b": 1})

    three(1)
    before = kinds(topology.tree(), topology)
    for start in range(4, 31, 3):
        three(start)
    assert topology.current == 31
    assert kinds(topology.tree(), topology) == before
    histories = [path for path in topology.tree() if path.startswith(topology.paths.histories + "/")]
    assert len(histories) == 4
    assert topology.totals() == {"a": 10, "b": 10}
