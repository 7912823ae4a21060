"""Prints the measures of the package on one screen. Usage: script/house"""

from __future__ import annotations

import logging

from tests.imports.rulers import RULERS, rooms
from tests.imports.walk import walks


def main() -> None:
    """Measure and print."""
    logging.disable(logging.INFO)
    measured = rooms()
    print(f"{'room':<16}{'statements':>11}{'lines':>8}{'files':>7}")
    for room in measured:
        print(f"{room.name:<16}{room.statements:>11,}{room.lines:>8,}{room.files:>7}")
    total = [
        sum(values) for values in zip(*((each.statements, each.lines, each.files) for each in measured), strict=True)
    ]
    print(f"{'all':<16}{total[0]:>11,}{total[1]:>8,}{total[2]:>7}")
    print(f"\n{'ruler, without testing':<52}{'now':>8}{'aim':>8}")
    for ruler in RULERS:
        print(f"{ruler.name:<52}{ruler.measure():>8,}{ruler.aim:>8,}")
    print("\nthe walk of one transaction in memory: functions, files, calls into a higher layer")
    for name, walk in walks().items():
        print(f"{name:<16}{walk}")


if __name__ == "__main__":
    main()
