"""The points in the code at which faults wait for the first process of a topology that comes by."""

from __future__ import annotations

from tests.chaos.topology import LANED, STORES, UPSTREAM

POINTS = (
    "begin.before_note",
    "process.after_start",
    "process.before_ack",
    "process.after_ack",
    "commit.before_journal",
    "commit.after_journal",
    "commit.before_acquire",
    "commit.after_acquire",
    "commit.before_mark",
    "commit.after_mark",
)
TASK_AT = {"begin": "begin", "process": "count", "commit": "commit"}
"""Which task comes by a point, by the first part of its name."""
# Whoever goes on much too late here does what another one has done meanwhile.
_LATE = ("process.before_ack", "commit.before_acquire", "commit.after_acquire", "commit.before_mark")
_LANE = ("lane.after_begin", "lane.after_process")
_COORDINATOR = ("coordinator.after_allocate", "coordinator.after_note", "coordinator.before_restate")
_READER = ("follow.after_wish",)


def killing_points(topology: str) -> tuple[str, ...]:
    """Name the points at which a process of a topology may be killed."""
    own = () if topology == "files" else _LANE if topology in LANED else _COORDINATOR
    reading = _READER if topology in UPSTREAM else ()
    return (*POINTS, *_between_writes(topology), *own, *reading)


def standing_points(topology: str) -> tuple[str, ...]:
    """Name the points at which one may stand still until it is late."""
    return (*_LATE, *_between_writes(topology))


def victim_at(point: str, topology: str) -> str:
    """Say what comes by a point."""
    first = point.partition(".")[0]
    return "lane" if topology in LANED else "coordinator" if first == "coordinator" else TASK_AT[first]


def _between_writes(topology: str) -> tuple[str, ...]:
    return ("commit.before_write",) if len(STORES[topology]) > 1 else ()
