"""The commit of a transaction in a lane: joined with the steps around it, if no other step can run between."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow_tx import compat
from airflow_tx.commit.case import CommitCase, CommitPorts, CommittingRun, Prepared
from airflow_tx.commit.commit import Commit, acquire_step, processed_step
from airflow_tx.coordinator.lane_plan import LanePlan
from airflow_tx.processing.outputs import RETURN_KEY
from airflow_tx.protocol.answers import Processed
from airflow_tx.protocol.joined import in_one_multi

if TYPE_CHECKING:
    from airflow_tx.protocol.answers import AlreadyCommitted, Begun, Committed, Done, Joined
    from airflow_tx.protocol.commit import AcquireAnswer
    from airflow_tx.protocol.joined import BoundStep

PROGRESS_EVERY = 5.0
"""Seconds between two lines of a lane that all goes well in."""


class LaneOutputs:
    """The results of the tasks of a transaction in a lane."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], Any] = {}

    def keep(self, task: str, values: Mapping[str, Any]) -> None:
        """Keep what a task has returned, by name."""
        self._stored.update(
            {
                (task, name): compat.as_xcom(each)
                for name, each in values.items()
                if each is not None
            }
        )

    def get(self, task: str, name: str) -> Any:
        """Give what a task has returned; a copy of its own for each who reads it.

        :raises LookupError: it has returned no such thing.
        """
        found = self._stored.get((task, name))
        if found is None and name != RETURN_KEY:
            raise LookupError(f"task {task} has returned no {name!r}")
        return None if found is None else compat.from_xcom(found)


def lane_run(plan: LanePlan, begun: Begun, task_try: str, outputs: LaneOutputs) -> CommittingRun:
    """Give the run of a transaction in a lane, in which everything before the commit has succeeded.

    :param task_try: of the lane.
    """
    return CommittingRun(
        begun.run_id,
        plan.committer,
        task_try,
        plan.dag_file,
        dag_version="",
        instance_states=lambda tasks, mapped: {(task, -1): "success" for task in tasks},
        output=lambda task, name, index: outputs.get(task, name),
    )


class LaneProgress:
    """Says now and then how far a lane is, in place of each step of each transaction.

    :ivar committed: how many transactions.
    """

    def __init__(self, topology: str, log: Any, clock: Callable[[], float]) -> None:
        self.committed = 0
        self._topology = topology
        self._log = log
        self._clock = clock
        self._said = (0, clock())

    def note(self, begun: Begun) -> None:
        """Count a transaction that is committed."""
        self.committed += 1
        said, at = self._said
        count = self.committed - said
        since = self._clock() - at
        if self.committed == 1 or since >= PROGRESS_EVERY:
            text = "Transaction %s of %s is committed; %s in the last %.1f s"
            self._log.info(text, begun.attempt, self._topology, count, since)
            self._said = (self.committed, self._clock())


@dataclass
class LaneTurn:
    """Whose turn it is, and who waits for it, as a lane knows without reading it.

    :param txid: the transaction whose turn it is at least.
    :param waiting: by txid, the commits of transactions that are processed, until one works on them.
    """

    txid: int = 0
    waiting: dict[int, LaneCommit] = field(default_factory=dict)


class LaneCommit:
    """The commit of a transaction in a lane, joined with the steps around it.

    The turn is taken with the ack of the last task, or with the mark of the transaction before, the later of both.

    :param case: with the run as `lane_run` gives it.
    :ivar commit: its steps, for a turn that is not taken yet.
    """

    def __init__(self, case: CommitCase, turn: LaneTurn) -> None:
        self.txid = case.begun.txid
        self.commit = Commit(
            case, ports=CommitPorts(self._mark, lambda _: nullcontext(), _nothing, _nothing)
        )
        self._turn = turn
        self._preparing = Lock()

    def processed(self, ack: BoundStep[Done]) -> None:
        """Run the ack of the last task, and with it what it completes."""
        case = self.commit.case
        states = case.run.instance_states(case.spec.tasks, case.spec.mapped)
        noted = partial(in_one_multi, first=ack, then=lambda _: processed_step(case, states, {}))

        def turn(
            answer: Joined[Done, Processed | AlreadyCommitted],
        ) -> BoundStep[AcquireAnswer] | None:
            self.commit.forget()
            if isinstance(answer.then, Processed):
                self.commit.processed = answer.then
                case.known.epoch = answer.then.epoch
            return self._acquire_step() if self._turn.txid == self.txid else None

        self.commit.take(case.ledger.run(in_one_multi, noted, turn).then)

    def commit_granted(self) -> bool:
        """Write and mark, if the turn is taken already. Raises as `Commit.commit`."""
        if self.commit.granted is None:
            return False
        self.commit.use()
        return True

    def _acquire_step(self) -> BoundStep[AcquireAnswer] | None:
        prepared = self.prepare_ahead()
        return None if prepared is None else acquire_step(self.commit.case, prepared)

    def prepare_ahead(self) -> Prepared | None:
        """Prepare the commit, in the thread of its tasks: the one that commits may work on an earlier transaction.

        :return: None: it cannot be prepared now.
        """
        # The mark of the transaction before may ask for it at the same time.
        with self._preparing:
            if self.commit.processed is None:
                return None
            try:
                return self.commit.prepare()
            except Exception:  # noqa: BLE001 - raised again when its turn has come, where it is noted
                return None

    def _mark(self, step: BoundStep[Committed]) -> Committed:
        """Mark, and let the commit that waits behind this one take its turn in the same multi."""
        following = self._turn.waiting.get(self.txid + 1)
        if following is None:
            return self.commit.case.ledger.run(step)
        answer: Joined[Committed, AcquireAnswer] = self.commit.case.ledger.run(
            in_one_multi, step, lambda _: following._acquire_step()
        )
        following.commit.take(answer.then)
        return answer.first


def _nothing(*_: object) -> None:
    """Do nothing: the lane tells of its progress, and cleans up now and then."""
