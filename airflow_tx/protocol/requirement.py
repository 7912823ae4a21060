"""Preconditions and writes as objects: a step is (requirements, writes), sent as one multi."""

from __future__ import annotations

from dataclasses import dataclass

ANY_VERSION = -1


@dataclass(frozen=True)
class Unchanged:
    """The record at `path` exists and has this version (`ANY_VERSION`: it exists)."""

    path: str
    version: int


@dataclass(frozen=True)
class Absent:
    """There is no record at `path`. ZooKeeper checks this only by creating it: the same multi must `Create` it."""

    path: str


@dataclass(frozen=True)
class Create:
    """Make a new record; its parent exists or is made earlier in the same multi."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Put:
    """Replace the bytes of an existing record, and so raise its version by one."""

    path: str
    data: bytes


@dataclass(frozen=True)
class Delete:
    """Remove an existing record without children."""

    path: str


Requirement = Unchanged | Absent
Write = Create | Put | Delete
