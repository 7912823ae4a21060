"""The tasks of a transaction, called one after the other in the process of a lane, and its commit."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_tx import compat
from airflow_tx.commit.commit import Commit
from airflow_tx.coordinator.lane_plan import LanePlan, LaneTask
from airflow_tx.failpoints import failpoint
from airflow_tx.processing.outputs import RETURN_KEY, returned
from airflow_tx.processing.task import Processing
from airflow_tx.protocol.answers import Begun
from airflow_tx.protocol.attempt import TaskTry

if TYPE_CHECKING:
    from airflow_tx.protocol.attempt import Grant
    from airflow_tx.protocol.ledger import Ledger
    from airflow_tx.spec import TransactionSpec


class LaneProcessing(Processing):
    """One task in a lane: the same steps, on the connection of the lane."""

    def __init__(self, spec: TransactionSpec, begun: Begun, task: TaskTry, ledger: Ledger) -> None:
        super().__init__(spec, begun, task, anchored=True)
        self._lane = ledger

    @contextmanager
    def _connected(self) -> Iterator[Ledger]:
        yield self._lane

    def _is_current(self) -> bool:
        # A lane starts each task of an attempt once: another try is that of a run which has taken it over.
        return False

    def _is_replaced(self) -> bool:
        return False


class LaneTransaction:
    """One transaction in a lane, with what its tasks have returned.

    :param ledger: of the lane.
    :param task_try: of the lane.
    """

    def __init__(self, plan: LanePlan, begun: Begun, ledger: Ledger, task_try: str) -> None:
        self.begun = begun
        self.task_try = task_try
        self._plan = plan
        self._ledger = ledger
        self._deadline = time.monotonic() + plan.spec.timeout
        self._stored: dict[tuple[str, str], Any] = {}
        self._current: LaneProcessing | None = None
        batch = {"topology": plan.spec.topology, **begun.to_json()}
        self._keep(plan.spec.begin, {RETURN_KEY: batch})

    def process(self) -> None:
        """Call the tasks.

        :raises Exception, SystemExit, AirflowTaskTimeout: whatever a task raises, or the ledger.
        """
        for task in self._plan.tasks:
            self._process(task)

    def fail(self, reason: str) -> str:
        """Note that the task under way has failed; gives the reason with its name.

        :raises Refused: another attempt has replaced this one.
        """
        if self._current is None:
            return reason
        reason = f"task {self._current.task.task_id}: {reason}"
        if self._current.started:
            self._current.fail(reason)
        return reason

    def output(self, task: str, name: str) -> Any:
        """What a task has returned; a copy of its own for each who reads it.

        :raises LookupError: it has returned no such thing.
        """
        found = self._stored.get((task, name))
        if found is None and name != RETURN_KEY:
            raise LookupError(f"task {task} has returned no {name!r}")
        return None if found is None else compat.from_xcom(found)

    def _process(self, task: LaneTask) -> None:
        own = TaskTry(task.task_id, -1, self.task_try)
        self._current = processing = LaneProcessing(self._plan.spec, self.begun, own, self._ledger)
        processing.code = task.code
        processing.start()
        left = max(self._deadline - time.monotonic(), 0.001)
        limit = left if task.call.timeout is None else min(left, task.call.timeout)
        with processing.as_current(), compat.without_context(), compat.time_limit(limit):
            arguments, named = compat.resolved(task.call.arguments, self.output)
            value = task.call.function(*arguments, **named)
        outputs = returned(value, multiple=task.call.multiple) if task.call.pushes else []
        several = value if task.call.multiple and isinstance(value, Mapping) else {}
        self._keep(task.task_id, {**several, RETURN_KEY: value} if task.call.pushes else {})
        processing.ack(outputs)
        self._current = None

    def _keep(self, task: str, values: Mapping[str, Any]) -> None:
        self._stored.update({(task, name): compat.as_xcom(each) for name, each in values.items() if each is not None})


@dataclass(frozen=True)
class LaneRun:
    """What a commit asks of its run, answered for a transaction in a lane: everything before it has succeeded."""

    plan: LanePlan
    transaction: LaneTransaction
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

    def instance_states(self, tasks: Collection[str], mapped: Collection[str]) -> Mapping[tuple[str, int], str | None]:
        return {(task, -1): "success" for task in tasks}

    def output(self, task: str, name: str, index: int) -> Any:
        return self.transaction.output(task, name)


class LaneCommit(Commit):
    """The commit of a transaction in a lane."""

    def __init__(self, plan: LanePlan, transaction: LaneTransaction, ledger: Ledger, ti: Any, log: Any) -> None:
        super().__init__(plan.spec, transaction.begun, plan.updates, ledger, ti, log)
        self.own_run = LaneRun(plan, transaction)

    def _announced(self, grant: Grant) -> AbstractContextManager[None]:
        return nullcontext()  # the lane is shown as long as it lives

    def _clean_up(self) -> None:
        """Nothing: the lane does so now and then."""


def lane_failpoint(name: str, begun: Begun, topology: str) -> None:
    """A failpoint of a lane."""
    failpoint(name, topology=topology, txid=begun.txid, attempt=begun.attempt.attempt)
