"""What a run of the tests cost, and how it is told."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

from tests.costs import SECOND, SLOWEST, Costs, read, slowest, summary, sums, table


def test_the_slowest_tests_of_all_parts_are_listed_with_their_justification() -> None:
    first = Costs({"tests/a.py::test_one": 3.0, "tests/a.py::test_two": 9.0}, {"tests/a.py::test_two": "it is all"})
    second = Costs({"tests/b.py::test_three": 5.0})
    found = slowest([first, second])
    assert [test.rpartition("::")[2] for _, test, _ in found] == ["test_two", "test_three", "test_one"]
    assert table(found).splitlines()[2:4] == ["| 9 | `a.py test_two` | it is all |", "| 5 | `b.py test_three` | – |"]


def test_the_list_of_the_slowest_tests_has_a_maximum_length() -> None:
    many = Costs({f"tests/a.py::test_{number}": float(number) for number in range(100)})
    assert len(slowest([many])) == SLOWEST


def test_the_total_time_covers_all_parts_and_processor_times_are_summed(
    tmp_path: Path,
) -> None:
    first = Costs({"t": 1.0}, wall=60.0, processor=90.0, began=1000.0)
    second = Costs({"u": 1.0}, wall=100.0, processor=30.0, whole=True, began=1030.0)
    for name, costs in (("a", first), ("b", second)):
        (tmp_path / f"{name}.json").write_text(json.dumps(asdict(costs)))
    *_, together, warning = sums(read(tmp_path))
    assert together.split() == ["together", "|", "130", "s", "2.0", "processor-minutes", "2", "tests"]
    assert "lacks servers" in warning


def test_repeated_tests_are_counted_and_listed() -> None:
    parts = {"others": Costs({"tests/a.py::test_one": 1.0}), SECOND: Costs({"tests/a.py::test_late": 1.0})}
    assert "1 tests had a second chance: tests/a.py::test_late" in summary(parts)
