"""The record of a run: a line for each fault, each rest and each finding, from which the run goes on and is told."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any


@dataclass
class Fault:
    """One thing that was done to the world.

    :param victim: what was hit; `how`: kill, freeze, cut, lost replies, failed writes.
    :param moment: where it was by then: a failpoint, or the task and the phase of its transaction.
    :param topologies: which of them it may have stopped.
    :param at: seconds since the run, or its part, began.
    :param recovered: seconds from its end until each of these had committed again; None: not before the rest.
    """

    number: int
    victim: str
    how: str
    moment: str
    topologies: list[str]
    at: float
    ended: float = 0.0
    recovered: float | None = None


@dataclass
class Rest:
    """The world at rest after `faults` of them, and what the judge found there.

    :param stuck: topologies that did not come to rest; `wrong`: what is not as it has to be.
    :param numbers: how many were counted; `transactions`: how many were committed, `attempts`: in how many attempts.
    :param restated: how many of these have replaced an earlier one.
    """

    faults: int
    seconds: float
    numbers: int
    transactions: int
    attempts: int
    skipped: int
    restated: int = 0
    stuck: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)


class Record:
    """A file of lines; what a part of the run did after its last rest counts for nothing when it goes on.

    :param path: made if it is missing.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()

    def add(self, kind: str, told: Any) -> None:
        """Write a line."""
        line = {"kind": kind, **(told if isinstance(told, dict) else asdict(told))}
        with self.path.open("a") as file:
            file.write(json.dumps(line) + "\n")

    def lines(self, kind: str) -> Iterator[dict[str, Any]]:
        """Read the lines of a kind."""
        for text in self.path.read_text().splitlines():
            line = json.loads(text)
            if line.pop("kind") == kind:
                yield line

    def faults(self) -> list[Fault]:
        """Those that a rest came after."""
        rested = self.rested
        found = {line["number"]: Fault(**line) for line in self.lines("fault")}
        return [fault for number, fault in sorted(found.items()) if number <= rested]

    def rests(self) -> list[Rest]:
        return [Rest(**line) for line in self.lines("rest")]

    @property
    def rested(self) -> int:
        """After how many faults the world was last at rest, and as it has to be."""
        return max((rest.faults for rest in self.rests() if not rest.stuck and not rest.wrong), default=0)

    def last(self, count: int) -> str:
        """The newest lines, for a failure."""
        return "\n".join(self.path.read_text().splitlines()[-count:])
