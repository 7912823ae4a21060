"""What is explored: how large a world is, what its source is like, and what may happen in it."""

from __future__ import annotations

from dataclasses import dataclass

from airflow_tx.ledger.api import Paths

PATHS = Paths("/tx", "model")
TASK = "p"


@dataclass(frozen=True)
class Shape:
    """One size of world.

    :param source: its kind, which is that of its states, too.
    :param states: 1: even and odd rows in one state; 2: one in each; 3: and all rows in a store of its own.
    :param budget: how many disruptions there are in all.
    :param clears_only: nobody crashes and no reply is lost.
    :param people: what else may happen. People "skip" (and re-admit at will) and "withdraw" skips; two
        "press" a button at once, as the board shows both a transaction; waiters "yield"; a
        task is marked success and fails "late"; the coordinator allocates "ahead" of the runs, or only "recovers"
        transactions whose run has failed, and a "lane" processes and commits some itself, without a coordinator those
        of runs that are there; the ledger is "set back" to before the first grant of the transaction whose turn it is,
        or somebody takes it for lost, and a "rebuild" takes its place from the fences.
    :param partitions: whether the source has partitions, of which other ones take part in a replay.
    :param rows: how many rows there are in all; None: always enough.
    :param shrinks: a replay of an opaque source finds one row less than the first attempt; by 2: none at all.
    :param window: `max_pending`; None: all runs fit.
    :param phase: two committers in a commit phase.
    :param varies: the output depends on the try that made it.
    :param lags: reads may be served by a follower that lags until it is told to catch up.
    :param replays: `max_replays` of the coordinator.
    :param together: the first two states are in one store, and a reader looks at them at any time.
    :param restates: how often, in all, a person wants a committed transaction restated; this costs no disruption.
    """

    source: str
    states: int
    runs: int
    budget: int
    clears_only: bool = False
    people: tuple[str, ...] = ()
    partitions: bool = False
    rows: int | None = None
    shrinks: int = 1
    window: int | None = None
    phase: bool = False
    varies: bool = False
    lags: bool = False
    replays: int = 3
    restates: int = 0
    together: bool = False

    @property
    def staggered(self) -> bool:
        """Whether the runs begin one after another; where few things happen, they begin all at once."""
        return self.runs > 2 or self.budget > 1

    @property
    def led(self) -> bool:
        """Whether a coordinator sees to the runs."""
        return "ahead" in self.people or "recovers" in self.people

    @property
    def tasks(self) -> tuple[str, ...]:
        """The tasks of a run, each after those that it depends on."""
        return ("begin", TASK, "acquire", "w0", "w1", "mark") if self.phase else ("begin", TASK, "commit")

    def __str__(self) -> str:
        what = "clears" if self.clears_only else "disruptions"
        also = [*self.people]
        also += ["partitions"] if self.partitions else []
        also += [f"{self.rows} rows in all"] if self.rows is not None else []
        also += ["empty replays"] if self.shrinks > 1 else []
        also += [f"window {self.window}"] if self.window is not None else []
        also += ["commit phases"] if self.phase else []
        also += ["output by try"] if self.varies else []
        also += ["lagging readers"] if self.lags else []
        also += [f"{self.replays} replays"] if self.replays != 3 else []
        also += [f"{self.restates} restatements"] if self.restates else []
        also += ["states of one store"] if self.together else []
        what += f" with {' and '.join(also)}" if also else ""
        return f"{self.source}, {self.states} state(s), {self.runs} transactions x {self.budget} {what}"


UPSTREAM = {
    "begin": (),
    TASK: ("begin",),
    "commit": (TASK,),
    "acquire": (TASK,),
    "w0": ("acquire",),
    "w1": ("acquire",),
    "mark": ("w0", "w1"),
}


def downstream(shape: Shape, task: str) -> tuple[str, ...]:
    """A task and all after it."""
    found = [task]
    for each in shape.tasks:
        if any(before in found for before in UPSTREAM[each]):
            found.append(each)
    return tuple(found)
