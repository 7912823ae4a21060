"""Actors: real code driven by re-execution. A process is its program and the replies it has had so far.

A program calls the store, the states and Airflow as always; where its recorded replies end, it is stopped and tells
which call comes next. Equal programs with equal replies are run once, and two histories that left a program at the same
line with the same variables are one place: what was read and forgotten does not tell them apart.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from datetime import datetime, timezone
from typing import Any

from airflow.sdk.exceptions import AirflowException

from airflow_tx.base.errors import RequirementFailed, TxError
from tests.model.showing import shown, variables

READS = (
    "get",
    "children",
    "versions",
    "sync",
    "fence",
    "holds",
    "multi_get",
    "xcom",
    "tasks",
    "run",
    "lost",
    "current",
)
EPOCH = datetime(2013, 1, 1, tzinfo=timezone.utc)


def only_reads(call: tuple[Any, ...]) -> bool:
    """Whether a call changes nothing."""
    return call[0] in READS or (call[0] == "multi" and not call[2])


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


Answer = Callable[[tuple[Any, ...]], Reply]


@dataclass(frozen=True)
class Outcome:
    """How a program ended.

    :param error: what it raised; `cause`: of what kind it was before it was told to Airflow.
    """

    result: Any = None
    error: type[Exception] | None = None
    cause: type[BaseException] | None = None


class Env:
    """What a program sees of the world: a store, a clock and ids, and whatever else it asks; all replayed."""

    shown = "env"
    where = "memory"

    def __init__(self, label: str, replies: tuple[Reply, ...], answer: Answer | None = None) -> None:
        self._replies = list(replies)
        self._answer = answer
        self.reads: list[tuple[tuple[Any, ...], Reply]] = []
        self._next = 0
        self._label = label
        self._written = 0
        self._drawn = 0
        self.syncs = False
        self.call: tuple[Any, ...] | None = None

    def ask(self, *call: Any) -> Any:
        if self._next == len(self._replies):
            if self._answer is None or not only_reads(call):
                self.call = call
                raise _Stop
            given = self._answer(call)
            self.reads.append((call, given))
            self._replies.append(given)
        reply = self._replies[self._next]
        self._next += 1
        if call[0] == "multi" and not (reply.error and reply.error[0] is RequirementFailed):
            self._written += 1
        if call[0] in ("multi", "wait"):
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
        """Where no follower lags, there is nothing to wait for."""
        if self.syncs:
            self.ask("sync")

    def ensure(self, path: str) -> None:
        """The ledger exists before the exploration begins."""

    @contextmanager
    def watch(self, *paths: str) -> Iterator[Watch]:
        yield Watch(self, paths, self.ask("versions", paths))

    def announce(self, path: str, data: bytes) -> AbstractContextManager[None]:
        """No program reads it."""
        return nullcontext()

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


class Watch:
    """Records as they were when the watch was set; the wait ends when one of them is another."""

    def __init__(self, env: Env, paths: tuple[str, ...], seen: tuple[Any, ...]) -> None:
        self.env = env
        self.paths = paths
        self.seen = seen

    def wait(self, timeout: float) -> bool:
        self.env.ask("wait", self.paths, self.seen)
        return True


Program = Callable[..., Any]


@dataclass(frozen=True)
class Place:
    """Where a process stands: its next call, or how it ended."""

    ident: int
    call: tuple[Any, ...] | None
    outcome: Outcome | None
    wrote: bool = False


@dataclass(frozen=True)
class _Reading:
    """A read on the way from one place to the next: asked again, it may lead elsewhere."""

    ident: int
    call: tuple[Any, ...]
    spec: tuple[Any, ...]
    replies: tuple[Reply, ...]


class Machine:
    """Runs programs up to their next call, each distinct history once.

    :param running: is told of each process that is about to run.
    """

    def __init__(self, programs: dict[str, Program], running: Callable[[Env], None]) -> None:
        self._programs = programs
        self._running = running
        self._places: dict[Hashable, Place | _Reading] = {}
        self._readings = 0
        self._by_variables: dict[Hashable, Place] = {}
        self._histories: list[tuple[tuple[Any, ...], tuple[Reply, ...]]] = []

    def spawn(self, spec: tuple[Any, ...], answer: Answer | None = None) -> Place:
        """A new process. `spec` = (name of the program, label, arguments…).

        :param answer: gives replies to reads, so that the process goes on to its first call that is none.
        """
        return self._go(("spawn", spec), spec, (), answer)

    def resume(self, place: Place, reply: Reply, answer: Answer | None = None) -> Place:
        """The process after its call has had this reply."""
        spec, replies = self._histories[place.ident]
        return self._go((place.ident, reply), spec, (*replies, reply), answer)

    def spec(self, place: Place) -> tuple[Any, ...]:
        return self._histories[place.ident][0]

    def _go(self, key: Hashable, spec: tuple[Any, ...], replies: tuple[Reply, ...], answer: Answer | None) -> Place:
        while (found := self._places.get(key)) is not None:
            if isinstance(found, Place):
                return found
            assert answer is not None
            reply = answer(found.call)
            key, spec, replies = (found.ident, reply), found.spec, (*found.replies, reply)
        env = Env(spec[1], replies, answer)
        place = self._run(env, spec, replies)
        for call, reply in env.reads:
            self._readings -= 1
            self._places[key] = _Reading(self._readings, call, spec, replies)
            key, replies = (self._readings, reply), (*replies, reply)
        self._places[key] = place
        return place

    def _run(self, env: Env, spec: tuple[Any, ...], replies: tuple[Reply, ...]) -> Place:
        name, _, *arguments = spec
        outcome: Outcome | None = None
        local: Hashable = None
        try:
            self._running(env)
            outcome = Outcome(self._programs[name](env, *arguments))
        except _Stop as stop:
            local = hash((spec, shown(env.call), variables(stop.__traceback__, skip=__file__)))
        except TxError as error:
            outcome = Outcome(error=type(error), cause=type(error))
        except AirflowException as error:
            outcome = Outcome(error=type(error), cause=type(error.__context__ or error))
        if outcome is None and local in self._by_variables:
            return self._by_variables[local]
        replies = (*replies, *(reply for _, reply in env.reads))
        place = Place(len(self._histories), env.call if outcome is None else None, outcome, env.ids[0] > 0)
        self._histories.append((spec, replies))
        if outcome is None:
            self._by_variables[local] = place
        return place
