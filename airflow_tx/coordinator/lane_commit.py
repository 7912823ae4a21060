"""The commit of a transaction in a lane: joined with the steps around it, where nothing can come between."""

from __future__ import annotations

from collections.abc import Callable, Collection
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from airflow_tx.commit.commit import Commit
from airflow_tx.commit.run import InstanceStates
from airflow_tx.coordinator.lane_plan import LanePlan
from airflow_tx.protocol.answers import Granted, Processed
from airflow_tx.protocol.joined import in_one_multi

if TYPE_CHECKING:
    from airflow_tx.protocol.answers import AlreadyCommitted, Begun, Committed, Done, Joined
    from airflow_tx.protocol.attempt import Grant
    from airflow_tx.protocol.commit import AcquireAnswer
    from airflow_tx.protocol.joined import BoundStep
    from airflow_tx.protocol.ledger import Ledger

PROGRESS_EVERY = 5.0
"""Seconds between two lines of a lane that all goes well in."""


class WorkInLane(Protocol):
    """What the commit of a `LaneTransaction` asks of it."""

    begun: Begun
    task_try: str

    def output(self, task: str, name: str) -> Any: ...


@dataclass(frozen=True)
class LaneRun:
    """What a commit asks of its run, answered for a transaction in a lane: everything before it has succeeded."""

    plan: LanePlan
    transaction: WorkInLane
    dag_version: str = ""

    @property
    def run_id(self) -> str:
        return self.transaction.begun.run_id

    @property
    def task_id(self) -> str:
        return self.plan.committer

    @property
    def task_try(self) -> str:
        return self.transaction.task_try

    @property
    def dag_file(self) -> str:
        return self.plan.dag_file

    def instance_states(self, tasks: Collection[str], mapped: Collection[str]) -> InstanceStates:
        return {(task, -1): "success" for task in tasks}

    def output(self, task: str, name: str, index: int) -> Any:
        return self.transaction.output(task, name)


class LaneProgress:
    """Says now and then how far a lane is, in place of each step of each transaction.

    :ivar committed: how many transactions.
    """

    def __init__(self, topology: str, log: Any, clock: Callable[[], float]) -> None:
        self.committed = 0
        self._topology, self._log, self._clock = topology, log, clock
        self._said = (0, clock())

    def note(self, begun: Begun) -> None:
        """Count a transaction that is committed."""
        self.committed += 1
        count, since = self.committed - self._said[0], self._clock() - self._said[1]
        if self.committed == 1 or since >= PROGRESS_EVERY:
            text = "Transaction %s of %s is committed; %s in the last %.1f s"
            self._log.info(text, begun.attempt, self._topology, count, since)
            self._said = (self.committed, self._clock())


class LaneTurn:
    """Whose turn it is, and who waits for it, as a lane knows without reading it.

    :ivar txid: the transaction whose turn it is at least.
    """

    def __init__(self) -> None:
        self.txid = 0
        self._waiting: dict[int, LaneCommit] = {}

    def wait(self, own: LaneCommit) -> None:
        """Let a commit wait: its transaction is processed."""
        self._waiting[own.begun.txid] = own

    def take(self, own: LaneCommit) -> None:
        """Let a commit wait no more: it is worked on."""
        self._waiting.pop(own.begun.txid, None)

    def after(self, txid: int) -> LaneCommit | None:
        """Return the commit that follows, if it waits."""
        return self._waiting.get(txid + 1)


class LaneCommit(Commit):
    """The commit of a transaction in a lane, joined with the steps around it.

    The turn is taken with the ack of the last task, or with the mark of the transaction before, whichever comes last.

    :ivar granted: what is to be committed at once; None: it has to take its turn first.
    """

    def __init__(
        self, plan: LanePlan, transaction: WorkInLane, ledger: Ledger, ti: Any, log: Any, turn: LaneTurn
    ) -> None:
        super().__init__(plan.spec, transaction.begun, plan.updates, ledger, ti, log)
        self.own_run = LaneRun(plan, transaction)
        self.granted: Granted | None = None
        self._turn = turn

    def processed(self, ack: BoundStep[Done]) -> None:
        """Run the ack of the last task, and with it what it completes."""
        states = self.own_run.instance_states(self.spec.tasks, self.spec.mapped)
        noted = partial(in_one_multi, first=ack, then=lambda done: self._processed_step(states))

        def turn(answer: Joined[Done, Processed | AlreadyCommitted]) -> BoundStep[AcquireAnswer] | None:
            self.forget()
            if isinstance(answer.then, Processed):
                self._processed, self.epoch = answer.then, answer.then.epoch
            return self._turn_step() if self._turn.txid == self.begun.txid else None

        answer = self.ledger.run(in_one_multi, noted, turn)
        self._keep(answer.then)

    def commit_granted(self) -> bool:
        """Write and mark, if the turn is taken already. Raises as `commit`."""
        if self.granted is None:
            return False
        assert self._processed is not None
        assert self._rows is not None
        self._granted(self.granted, self._processed, self._rows)
        return True

    def _turn_step(self) -> BoundStep[AcquireAnswer] | None:
        if self._processed is None:
            return None
        try:
            self.prepare()
        except Exception:  # noqa: BLE001 - raised again when its turn has come, where it is noted
            return None
        assert self._rows is not None
        return self._acquire_step(self._processed, self._rows)

    def _keep(self, answer: AcquireAnswer | None) -> None:
        if isinstance(answer, Granted):
            self.granted, self.epoch = answer, answer.grant.token.epoch

    def _run_mark(self, step: BoundStep[Committed]) -> Committed:
        following = self._turn.after(self.begun.txid)
        if following is None:
            return super()._run_mark(step)
        answer: Joined[Committed, AcquireAnswer] = self.ledger.run(
            in_one_multi, step, lambda done: following._turn_step()
        )
        following._keep(answer.then)
        return answer.first

    def _announced(self, grant: Grant) -> AbstractContextManager[None]:
        return nullcontext()  # the lane is shown as long as it lives

    def _log_step(self, text: str, *arguments: object) -> None:
        """Nothing: the lane tells of its progress."""

    def _clean_up(self) -> None:
        """Nothing: the lane does so now and then, and the coordinator sends what is open."""
