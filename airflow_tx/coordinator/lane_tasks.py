"""The tasks of a transaction, one after the other in the process of a lane, and its commit."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Collection, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_tx import compat
from airflow_tx.commit.commit import Commit
from airflow_tx.coordinator.lane_plan import LaneApplication, LanePlan, LaneTask
from airflow_tx.failpoints import failpoint
from airflow_tx.processing.application import ack_application, describe_batch, emitted_refs
from airflow_tx.processing.outputs import RETURN_KEY, returned
from airflow_tx.processing.task import Processing
from airflow_tx.protocol.answers import Begun
from airflow_tx.protocol.attempt import TaskTry

if TYPE_CHECKING:
    from airflow_tx.coordinator.lane_applications import ApplicationRun, LaneApplications
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
    :param applications: runs those of the plan; None: it has none.
    :ivar application: the one that it waits for.
    """

    def __init__(
        self,
        plan: LanePlan,
        begun: Begun,
        ledger: Ledger,
        task_try: str,
        applications: LaneApplications | None = None,
    ) -> None:
        self.begun = begun
        self.task_try = task_try
        self.application: ApplicationRun | None = None
        self._plan = plan
        self._left = deque(plan.tasks)
        self._applications = applications
        self._ledger = ledger
        self._deadline = time.monotonic() + plan.spec.timeout
        self._stored: dict[tuple[str, str], Any] = {}
        self._current: LaneProcessing | None = None
        batch = {"topology": plan.spec.topology, **begun.to_json()}
        self._keep(plan.spec.begin, {RETURN_KEY: batch})

    @property
    def is_ready(self) -> bool:
        """Whether it waits for no application, or for one that is over."""
        return self.application is None or self.application.is_over

    def process(self) -> bool:
        """Call the tasks, up to the next application; again, once that is over.

        :return: whether all of them are done.
        :raises Exception, SystemExit, AirflowTaskTimeout: whatever a task raises, or the ledger.
        """
        if self.application is not None:
            self._take_output(self.application)
        while self._left and self.application is None:
            task = self._left.popleft()
            if isinstance(task, LaneApplication):
                self._start(task)
            else:
                self._call(task)
        return self.application is None

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

    def _processing(self, task: LaneTask | LaneApplication) -> LaneProcessing:
        own = TaskTry(task.task_id, -1, self.task_try)
        self._current = LaneProcessing(self._plan.spec, self.begun, own, self._ledger)
        return self._current

    def _time_for(self, task: LaneTask | LaneApplication) -> float:
        left = max(self._deadline - time.monotonic(), 0.001)
        return left if task.timeout is None else min(left, task.timeout)

    def _start(self, task: LaneApplication) -> None:
        assert self._applications is not None
        processing = self._processing(task)
        processing.start()
        if self.begun.metadata is None:  # an empty batch: there is nothing to run
            processing.ack()
            self._current = None
            return
        inputs = compat.resolved(task.operator.inputs, self.output)
        arguments = compat.resolved(list(task.operator.application_args or ()), self.output)
        descriptor = describe_batch(processing, inputs)
        self.application = self._applications.start(task, descriptor, arguments, self._time_for(task))

    def _take_output(self, application: ApplicationRun) -> None:
        assert self._current is not None
        self.application = None
        manifest = application.manifest()
        self._keep(application.task.task_id, emitted_refs(manifest))
        ack_application(self._current, manifest, reliable=application.task.operator.reliable)
        self._current = None

    def _call(self, task: LaneTask) -> None:
        processing = self._processing(task)
        processing.code = task.code
        processing.start()
        with processing.as_current(), compat.without_context(), compat.time_limit(self._time_for(task)):
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
