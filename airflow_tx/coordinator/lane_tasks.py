"""The tasks of a transaction, one after the other in the process of a lane."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import closing, contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow_tx import compat
from airflow_tx.coordinator.lane_plan import LaneApplication, LanePlan, LaneTask, TimeLimit
from airflow_tx.errors import TxError
from airflow_tx.processing.appended import with_files
from airflow_tx.processing.application import ack_application, describe_batch, emitted_refs
from airflow_tx.processing.outputs import RETURN_KEY, returned
from airflow_tx.processing.passed_on import check_returned
from airflow_tx.processing.task import Processing
from airflow_tx.protocol import processing
from airflow_tx.protocol.answers import Begun, Done
from airflow_tx.protocol.attempt import TaskTry
from airflow_tx.protocol.joined import in_one_multi

if TYPE_CHECKING:
    from airflow_tx.coordinator.lane_applications import ApplicationRun, LaneApplications
    from airflow_tx.coordinator.lane_commit import LaneCommit, LaneOutputs
    from airflow_tx.protocol.joined import BoundStep
    from airflow_tx.protocol.ledger import Ledger
    from airflow_tx.spec import TransactionSpec


class LaneProcessing(Processing):
    """One task in a lane: the same steps, on the connection of the lane.

    :param ack: runs its ack, joined with what follows it.
    :param started: its start was joined with the step before it.
    """

    def __init__(
        self,
        spec: TransactionSpec,
        begun: Begun,
        task: TaskTry,
        ledger: Ledger,
        ack: Callable[[BoundStep[Done]], None],
        *,
        started: bool,
    ) -> None:
        super().__init__(spec, begun, task, anchored=True)
        self.started = started
        self._lane = ledger
        self._run_ack = ack

    @contextmanager
    def _connected(self) -> Iterator[Ledger]:
        yield self._lane

    def _note_ack(self, ledger: Ledger, step: BoundStep[Done]) -> None:
        self._run_ack(step)

    def _is_current(self) -> bool:
        # A lane starts each task of an attempt once: another try belongs to a run that has taken the attempt over.
        return False

    def _is_replaced(self) -> bool:
        return False


class LaneTransaction:
    """One transaction in a lane.

    :param ledger: of the lane.
    :param task_try: of the lane.
    :param outputs: takes what its tasks return.
    :param commit: what the ack of its last task is joined with; None: nothing.
    :param applications: runs the applications of the plan; None: it has none.
    :param started: the task that was started with its begin.
    :ivar application: the one that it waits for.
    """

    def __init__(
        self,
        plan: LanePlan,
        begun: Begun,
        ledger: Ledger,
        task_try: str,
        outputs: LaneOutputs,
        *,
        commit: LaneCommit | None = None,
        applications: LaneApplications | None = None,
        started: TaskTry | None = None,
    ) -> None:
        self.begun = begun
        self.task_try = task_try
        self.application: ApplicationRun | None = None
        self.commit = commit
        self.outputs = outputs
        self._plan = plan
        self._left = deque(plan.tasks)
        self._applications = applications
        self._ledger = ledger
        self._started = started
        self._deadline = time.monotonic() + plan.spec.timeout
        self._current: LaneProcessing | None = None
        batch = {"topology": plan.spec.topology, **begun.to_json()}
        outputs.keep(plan.spec.begin, {RETURN_KEY: batch})

    @property
    def is_ready(self) -> bool:
        """Whether it waits for no application, or for one that is over."""
        return self.application is None or self.application.is_over

    def process(self) -> bool:
        """Call the tasks, up to the next application; again, once that is over.

        :return: whether all of them are done.
        :raises Exception, SystemExit, AirflowTaskTimeout: the error of a task, or of the ledger.
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

    def fail(self, reason: str, refusal: TxError | None = None) -> str:
        """Note that the task under way has failed; gives the reason with its name.

        :param refusal: what only a person can end; None: another error.
        :raises Refused: another attempt has replaced this one.
        """
        if self._current is None:
            return reason
        reason = f"task {self._current.task.task_id}: {reason}"
        if self._current.started:
            self._current.fail(str(refusal) if refusal else reason, refusal)
        return reason

    def _processing(self, task: LaneTask | LaneApplication) -> LaneProcessing:
        own = TaskTry(task.task_id, -1, self.task_try)
        started = own == self._started
        self._current = LaneProcessing(
            self._plan.spec, self.begun, own, self._ledger, self._ack, started=started
        )
        return self._current

    def _ack(self, ack: BoundStep[Done]) -> None:
        """Run an ack, joined with what follows it: the start of the next task, or what it completes."""
        if self._left:
            task = TaskTry(self._left[0].task_id, -1, self.task_try)
            start = partial(
                processing.start, attempt=self.begun.attempt, task=task, is_current=lambda: False
            )
            answer = self._ledger.run(in_one_multi, ack, lambda done: start)
            self._started = task if isinstance(answer.then, Done) else None
        elif self.commit is not None:
            self.commit.processed(ack)
        else:
            self._ledger.run(ack)

    def _limit_of(self, task: LaneTask | LaneApplication) -> TimeLimit:
        left = max(self._deadline - time.monotonic(), 0.001)
        if task.timeout is not None and task.timeout < left:
            return TimeLimit(
                task.timeout, f"it takes longer than execution_timeout, {task.timeout:g} s"
            )
        return TimeLimit(
            left, f"it takes longer than message_timeout, {self._plan.spec.timeout:g} s"
        )

    def _start(self, task: LaneApplication) -> None:
        assert self._applications is not None
        own = self._processing(task)
        own.start()
        if self.begun.metadata is None:  # an empty batch: there is nothing to run
            own.ack()
            self._current = None
            return
        inputs = compat.resolved(task.operator.inputs, self.outputs.get)
        arguments = compat.resolved(list(task.operator.application_args or ()), self.outputs.get)
        descriptor = describe_batch(own, inputs)
        self.application = self._applications.start(
            task, descriptor, arguments, self._limit_of(task)
        )

    def _take_output(self, application: ApplicationRun) -> None:
        assert self._current is not None
        self.application = None
        manifest = with_files(self._current, application.manifest())
        self.outputs.keep(application.task.task_id, emitted_refs(manifest))
        ack_application(self._current, manifest, reliable=application.task.operator.reliable)
        self._current = None

    def _call(self, task: LaneTask) -> None:
        own = self._processing(task)
        own.code = task.code
        own.start()
        dates = self._dates()
        limit = self._limit_of(task)
        with closing(own):
            with (
                own.as_current(),
                compat.without_context(dates),
                compat.time_limit(limit.seconds, limit.reason),
            ):
                arguments, named = compat.resolved(task.call.arguments, self.outputs.get)
                value = task.call.function(
                    *arguments, **named, **{key: dates[key] for key in task.call.dates}
                )
            outputs = list[dict[str, str]]()
            if task.call.pushes:
                check_returned(value, own.spec, own.task, own.attempt)
                outputs = returned(value, multiple=task.call.multiple)
            several = value if task.call.multiple and isinstance(value, Mapping) else {}
            self.outputs.keep(
                task.task_id, {**several, RETURN_KEY: value} if task.call.pushes else {}
            )
            own.ack(outputs)
        self._current = None

    def _dates(self) -> dict[str, Any]:
        """The data interval in the context of its run, if the batch is one."""
        dated = self._plan.spec.source.dated
        return (
            {} if dated is None else compat.interval_context(*dated.interval(self.begun.metadata))
        )
