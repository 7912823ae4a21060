"""Actors: real protocol code driven by re-execution. A process is its program and the replies it has had so far.

A program calls the store and the states as always; where its recorded replies end, it is stopped and tells which call
comes next. Equal programs with equal replies are run once, and two histories that left a program at the same line with
the same variables are one place: what was read and forgotten does not tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass
from datetime import datetime, timezone
from functools import partial
from types import FunctionType, TracebackType
from typing import Any

from airflow_tx.errors import RequirementFailed, TxError
from airflow_tx.protocol.ledger import Ledger
from airflow_tx.protocol.reading import Memory, Reader

EPOCH = datetime(2013, 1, 1, tzinfo=timezone.utc)


class _Stop(BaseException):
    """The recorded replies are used up."""


@dataclass(frozen=True)
class Reply:
    """What a call gave: a value, or the error it raised."""

    value: Any = None
    error: tuple[type[TxError], tuple[tuple[str, Any], ...]] | None = None

    @classmethod
    def of_error(cls, error: TxError) -> Reply:
        return cls(error=(type(error), tuple(sorted(error.fields.items()))))

    def refused_by(self, error: type[TxError]) -> bool:
        return self.error is not None and self.error[0] is error

    def give(self) -> Any:
        if self.error is not None:
            raise self.error[0](**dict(self.error[1]))
        return self.value


@dataclass(frozen=True)
class Outcome:
    """How a program ended."""

    result: Any = None
    error: type[TxError] | None = None


class Env:
    """What a program sees of the world: a store, states, a clock and ids, all replayed."""

    def __init__(self, label: str, replies: tuple[Reply, ...]) -> None:
        self._replies = replies
        self._next = 0
        self._label = label
        self._written = 0
        self._drawn = 0
        self.call: tuple[Any, ...] | None = None

    def ask(self, *call: Any) -> Any:
        if self._next == len(self._replies):
            self.call = call
            raise _Stop
        reply = self._replies[self._next]
        self._next += 1
        if call[0] == "multi" and not (reply.error and reply.error[0] is RequirementFailed):
            self._written += 1
        if call[0] in ("multi", "turn"):
            self._drawn = 0
        return reply.give()

    # Store, Clock and Ids of the protocol
    def get(self, path: str) -> Any:
        return self.ask("get", path)

    def children(self, path: str) -> Any:
        return self.ask("children", path)

    def multi(self, requirements: Any, writes: Any) -> None:
        self.ask("multi", tuple(requirements), tuple(writes))

    def sync(self) -> None:
        """One store, no followers: nothing to wait for."""

    def ensure(self, path: str) -> None:
        raise AssertionError("the ledger exists before the exploration begins")

    def watch(self, *paths: str) -> Any:
        raise AssertionError("waiting is the explorer's")

    def now(self) -> datetime:
        return EPOCH

    def nonce(self) -> str:
        """Unique among what was written: a refused multi has left nothing, so its ids may come again."""
        self._drawn += 1
        return f"{self._label}.{self._written}.{self._drawn}"

    def message_id(self) -> int:
        return 1

    @property
    def ids(self) -> tuple[int, int]:
        return self._written, self._drawn


Program = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """Where a process stands: its next call, or how it ended."""

    ident: int
    call: tuple[Any, ...] | None
    outcome: Outcome | None


class Machine:
    """Runs programs up to their next call, each distinct history once."""

    def __init__(self, programs: dict[str, Program]) -> None:
        self._programs = programs
        self._places: dict[Hashable, Place] = {}
        self._by_variables: dict[Hashable, Place] = {}
        self._histories: list[tuple[tuple[Any, ...], tuple[Reply, ...]]] = []

    def spawn(self, spec: tuple[Any, ...]) -> Place:
        """A new process. `spec` = (name of the program, label, arguments…)."""
        return self._place(("spawn", spec), spec, ())

    def resume(self, place: Place, reply: Reply) -> Place:
        """The process after its call has had this reply."""
        key = (place.ident, reply)
        found = self._places.get(key)
        if found is not None:
            return found
        spec, replies = self._histories[place.ident]
        return self._place(key, spec, (*replies, reply))

    def spec(self, place: Place) -> tuple[Any, ...]:
        return self._histories[place.ident][0]

    def _place(self, key: Hashable, spec: tuple[Any, ...], replies: tuple[Reply, ...]) -> Place:
        found = self._places.get(key)
        if found is not None:
            return found
        name, label, *arguments = spec
        env = Env(label, replies)
        outcome: Outcome | None = None
        local: Hashable = None
        try:
            outcome = Outcome(self._programs[name](env, *arguments))
        except _Stop as stop:
            local = (spec, _variables(stop.__traceback__))
        except TxError as error:
            outcome = Outcome(error=type(error))
        if outcome is None and local in self._by_variables:
            place = self._by_variables[local]
        else:
            place = Place(len(self._histories), env.call if outcome is None else None, outcome)
            self._histories.append((spec, replies))
            self._by_variables[local] = place
        self._places[key] = place
        return place


def _variables(traceback: TracebackType | None) -> tuple[Hashable, ...]:
    """Where each function of a stopped program stands, and its variables."""
    found: list[Hashable] = []
    while traceback is not None:
        frame = traceback.tb_frame
        if not frame.f_code.co_filename == __file__:
            names = sorted(name for name in frame.f_locals if name != "_" and not name.startswith("."))
            values = tuple((name, _shown(frame.f_locals[name])) for name in names)
            found.append((frame.f_code.co_name, traceback.tb_lineno, values))
        traceback = traceback.tb_next
    return tuple(found)


def _shown(value: Any) -> Hashable:
    if isinstance(value, Env):
        return value.ids
    if isinstance(value, Ledger):
        return _shown(value._known)
    if isinstance(value, Reader):
        return (_shown(value._known), _shown(value.seen), _shown(value._versions), value.guessed, value.hasty)
    if isinstance(value, Memory):
        return (_shown(value.nodes), _shown(value.children))
    if isinstance(value, dict):
        return tuple((key, _shown(item)) for key, item in sorted(value.items()))
    if isinstance(value, partial):
        return (value.func.__name__, _shown(value.keywords))
    if isinstance(value, FunctionType):
        return value.__name__
    return repr(value)
