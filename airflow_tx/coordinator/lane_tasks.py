"""Run the tasks of a transaction one after the other in the process of a lane, then commit the transaction."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import AbstractContextManager, closing, contextmanager, nullcontext
from dataclasses import dataclass, field
from threading import Lock
from typing import TYPE_CHECKING, Any

from airflow_tx.base import compat
from airflow_tx.base.errors import SourceNotSettled, TxError
from airflow_tx.base.remedy import Remedy
from airflow_tx.coordinator.lane_plan import LaneApplication, LanePlan, LaneTask, TimeLimit
from airflow_tx.ledger import (
    AcquireAnswer,
    AlreadyCommitted,
    Begun,
    BoundStep,
    Committed,
    Done,
    Grant,
    Joined,
    Ledger,
    Processed,
    TaskTry,
)
from airflow_tx.transaction import (
    RETURN_KEY,
    Commit,
    InstanceStates,
    Processing,
    TransactionSpec,
    ack_application,
    check_returned,
    describe_batch,
    emitted_refs,
    problem_of,
    returned,
    with_files,
)

if TYPE_CHECKING:
    from airflow_tx.coordinator.lane_applications import ApplicationRun, LaneApplications


# --- lane commit --------------------------------------------------------------------------------------------------
# The commit of a transaction in a lane. Steps run in one multi if no other step can run in between.


UNSETTLED_PAUSE = 1.0
"""The seconds until the lane calls a task again whose rows are not settled."""
PROGRESS_EVERY = 5.0
"""The seconds between two log lines about a lane's progress."""


class LaneOutputs:
    """The results of the tasks of a transaction in a lane."""

    def __init__(self) -> None:
        self._stored: dict[tuple[str, str], Any] = {}

    def keep(self, task: str, values: Mapping[str, Any]) -> None:
        """Store the values that a task has returned, by name."""
        self._stored.update(
            {
                (task, name): compat.as_xcom(each)
                for name, each in values.items()
                if each is not None
            }
        )

    def get(self, task: str, name: str) -> Any:
        """Return a copy of a value that a task has returned.

        :raises LookupError: the task has returned no value with this name.
        """
        found = self._stored.get((task, name))
        if found is None and name != RETURN_KEY:
            raise LookupError(f"task {task} has not returned a value named {name!r}")
        return None if found is None else compat.from_xcom(found)


class LaneProgress:
    """Logs the progress of a lane every few seconds. The steps of each transaction are not logged.

    :ivar committed: the number of committed transactions.
    """

    def __init__(self, topology: str, log: Any, clock: Callable[[], float]) -> None:
        self.committed = 0
        self._topology = topology
        self._log = log
        self._clock = clock
        self._said = (0, clock())

    def note(self, begun: Begun) -> None:
        """Count a committed transaction. Log the progress if a log line is due."""
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
    """The lane's own record of the turn, which saves reading the turn from the ledger.

    :param txid: a txid that has the turn, or had it before.
    :param waiting: commits of processed transactions by txid, until the committing thread takes them.
    """

    txid: int = 0
    waiting: dict[int, LaneCommit] = field(default_factory=dict)


class LaneCommit(Commit):
    """The commit of a transaction in a lane. If possible, its steps run in one multi with the steps before and after.

    The commit takes its turn in one multi with the ack of its last task, or with the mark of the previous transaction.
    It uses the later of these two steps. The commit does not log its progress and deletes no data, since the lane does
    both.

    :param outputs: the results of the transaction's tasks.
    :param turn: the lane's record of the turn.
    """

    def __init__(
        self,
        plan: LanePlan,
        begun: Begun,
        ledger: Ledger,
        ti: Any,
        log: Any,
        *,
        outputs: LaneOutputs,
        turn: LaneTurn,
    ) -> None:
        super().__init__(plan.spec, begun, plan.updates, ledger, ti, log, checks=plan.checks)
        self._plan = plan
        self._outputs = outputs
        self._turn = turn
        self._preparing = Lock()

    # --- its run ----------------------------------------------------------------------------------------------------

    @property
    def run_id(self) -> str:
        return self.begun.run_id

    @property
    def task_id(self) -> str:
        return self._plan.committer

    @property
    def dag_file(self) -> str:
        return self._plan.dag_file

    @property
    def dag_version(self) -> str:
        return ""

    def instance_states(self, tasks: Collection[str], mapped: Collection[str]) -> InstanceStates:
        return {(task, -1): "success" for task in tasks}

    @property
    def output(self) -> Callable[[str, str, int], Any]:
        return lambda task, name, map_index: self._outputs.get(task, name)

    # --- its steps --------------------------------------------------------------------------------------------------

    def note_processed(self, ack: BoundStep[Done]) -> None:
        """Run the ack of the last task in one multi with the steps that it makes possible."""
        states = self.instance_states(self.spec.tasks, self.spec.mapped)
        noted = self.ledger.joined(ack, lambda _: self.processed_step(states))

        def turn(
            answer: Joined[Done, Processed | AlreadyCommitted],
        ) -> BoundStep[AcquireAnswer] | None:
            self.forget()
            if isinstance(answer.then, Processed):
                self.processed = answer.then
                self.epoch = answer.then.epoch
            return self._acquire_ahead() if self._turn.txid == self.begun.txid else None

        self.take(self.ledger.run(self.ledger.joined(noted, turn)).then)

    def commit_granted(self) -> bool:
        """Write and mark if this commit already has the turn. Raise the errors of `try_to_commit`.

        :return: whether the commit had the turn.
        """
        if self.granted is None:
            return False
        self.use()
        return True

    def _acquire_ahead(self) -> BoundStep[AcquireAnswer] | None:
        return self.acquire_step() if self.prepare_ahead() else None

    def prepare_ahead(self) -> bool:
        """Prepare the commit in the thread of the tasks. The other thread may be committing an earlier transaction.

        :return: whether the commit is prepared.
        """
        # The other thread may call this method at the same time, when it marks the previous
        # transaction.
        with self._preparing:
            if self.processed is None:
                return False
            try:
                self.prepare()
            except Exception:  # noqa: BLE001 - raised again, and noted, at its turn
                return False
            return True

    def show(self, grant: Grant) -> AbstractContextManager[None]:
        return nullcontext()

    def tell(self, text: str, *arguments: object) -> None:
        pass

    def mark(self, step: BoundStep[Committed]) -> Committed:
        """Mark the transaction as committed.

        If the next one is waiting for its turn, it takes the turn in the same multi.
        """
        following = self._turn.waiting.get(self.begun.txid + 1)
        if following is None:
            return super().mark(step)
        answer = self.ledger.run(self.ledger.joined(step, lambda _: following._acquire_ahead()))
        following.take(answer.then)
        return answer.first

    def clean_up(self) -> None:
        pass


# --- lane tasks ---------------------------------------------------------------------------------------------------


class LaneProcessing(Processing):
    """One task in a lane. It runs the same steps as in a run, on the ledger connection of the lane.

    :param ledger: the lane's ledger.
    :param ack: a function that runs the ack of the task in one multi with the next step.
    :param started: whether the task was started in one multi with an earlier step.
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

    @contextmanager
    def settling(self) -> Iterator[None]:
        # The lane itself calls the task again later.
        yield

    def _is_current(self) -> bool:
        # A lane starts each task of an attempt once. A different try is the try of a run that has
        # taken over the attempt.
        return False

    def _is_replaced(self) -> bool:
        return False


class LaneTransaction:
    """One transaction in a lane.

    :param plan: the plan of the lane.
    :param begun: the transaction.
    :param ledger: the lane's ledger.
    :param task_try: the lane's try.
    :param outputs: the object that keeps the results of the tasks.
    :param commit: the commit that runs in one multi with the ack of the last task, or None to run the ack alone.
    :param applications: the object that runs the plan's applications, or None if the plan has no applications.
    :param started: the task that was started in one multi with begin.
    :ivar application: the application that the transaction waits for.
    :ivar again_at: when to call a task again whose rows are not settled, by the monotonic clock.
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
        self.again_at = 0.0
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
        """Return whether the transaction can continue: its application has ended, and it does not wait for rows."""
        waits = self.application is not None and not self.application.is_over
        return not waits and time.monotonic() >= self.again_at

    def process(self) -> bool:
        """Call the tasks until a task must wait for its application or for rows. Call this method again to continue.

        :return: whether all tasks are done.
        :raises Exception, SystemExit, AirflowTaskTimeout: the error of a task or of the ledger.
        """
        if self.application is not None:
            with self._settling(self.application.task):
                self._take_output(self.application)
        while self._left and self.is_ready and self.application is None:
            task = self._left.popleft()
            with self._settling(task):
                if isinstance(task, LaneApplication):
                    self._start(task)
                else:
                    self._call(task)
        return self.application is None and not self._left

    @contextmanager
    def _settling(self, task: LaneTask | LaneApplication) -> Iterator[None]:
        """Schedule another call of the current task if the rows of its `with` block are not settled.

        :raises TxError: the transaction needs another attempt, or a user must act.
        """
        try:
            yield
        except SourceNotSettled as error:
            assert self._current is not None
            outcome = self._current.unsettled(error)
            if outcome is not error or time.monotonic() >= self._deadline:
                raise outcome from error
            self._left.appendleft(task)
            self.again_at = time.monotonic() + UNSETTLED_PAUSE

    def fail(self, reason: str, refusal: TxError | None = None) -> str:
        """Record in the ledger that the current task has failed. Return the reason with the name of the task.

        :param refusal: the error if it is a `TxError`, or None for an error of another kind.
        :raises Refused: another attempt has replaced this one.
        """
        if self._current is None:
            return reason
        task = self._current.task.task_id
        if self._current.started:
            if refusal is not None and refusal.for_good:
                self._current.fail(problem_of(refusal), refusal)
            else:
                self._current.fail(reason, refusal, failed_task=task)
        return Remedy.behind(reason, task=task)

    def _processing(self, task: LaneTask | LaneApplication) -> LaneProcessing:
        own = TaskTry(task.task_id, -1, self.task_try)
        started = own == self._started
        self._current = LaneProcessing(
            self._plan.spec, self.begun, own, self._ledger, self._ack, started=started
        )
        return self._current

    def _ack(self, ack: BoundStep[Done]) -> None:
        """Run an ack in one multi with the start of the next task, or with the steps of the commit."""
        if self._left:
            task = TaskTry(self._left[0].task_id, -1, self.task_try)
            start = self._ledger.start.bind(self.begun.attempt, task, is_current=lambda: False)
            answer = self._ledger.run(self._ledger.joined(ack, lambda done: start))
            self._started = task if isinstance(answer.then, Done) else None
        elif self.commit is not None:
            self.commit.note_processed(ack)
        else:
            self._ledger.run(ack)

    def _limit_of(self, task: LaneTask | LaneApplication) -> TimeLimit:
        left = max(self._deadline - time.monotonic(), 0.001)
        if task.timeout is not None and task.timeout < left:
            return TimeLimit(
                task.timeout, f"it takes longer than its execution_timeout of {task.timeout:g} s"
            )
        return TimeLimit(
            left, f"it takes longer than the processing_timeout of {self._plan.spec.timeout:g} s"
        )

    def _start(self, task: LaneApplication) -> None:
        assert self._applications is not None
        own = self._processing(task)
        own.start()
        if self.begun.metadata is None:  # The batch is empty.
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
        """Return the dates in a run's context for the batch's data interval, or {} if it has none."""
        dated = self._plan.spec.source.dated
        return (
            {} if dated is None else compat.interval_context(*dated.interval(self.begun.metadata))
        )
