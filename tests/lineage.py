"""The graph that events of OpenLineage draw: datasets, and the jobs that read and write them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

Place: TypeAlias = "tuple[str, str]"


@dataclass(frozen=True)
class Graph:
    """What each job reads and writes, as namespace and name."""

    inputs: Mapping[str, set[Place]]
    outputs: Mapping[str, set[Place]]

    @classmethod
    def of(cls, events: Iterable[Mapping[str, Any]]) -> Graph:
        inputs: dict[str, set[Place]] = {}
        outputs: dict[str, set[Place]] = {}
        for event in events:
            for name, found in (("inputs", inputs), ("outputs", outputs)):
                places = {(each["namespace"], each["name"]) for each in event.get(name, ())}
                found.setdefault(event["job"]["name"], set()).update(places)
        return cls(inputs, outputs)

    def reached_from(self, start: Place) -> set[Place]:
        """Follow jobs from what they read to what they write."""
        reached: set[Place] = set()
        new = {start}
        while new:
            reached |= new
            after = (self.outputs[job] for job, read in self.inputs.items() if read & new)
            new = set().union(*after) - reached
        return reached
