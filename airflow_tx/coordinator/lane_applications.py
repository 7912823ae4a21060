"""Run the applications of a lane. Each has a thread and a Spark session, so that the lane does not wait for it.

A session is used again if its last application has left no changes in it. In a new session, the server compiles all
code again. A session runs one batch at a time. A lane prepares sessions before it has a batch.
"""

from __future__ import annotations

import queue
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_tx.base import compat
from airflow_tx.base.connections import connect_url
from airflow_tx.base.errors import TxError
from airflow_tx.coordinator.lane_plan import LaneApplication, TimeLimit

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.outputs import Descriptor, Manifest, TryDir
    from airflow_tx.spark import BatchApp, ConnectApplication

# The seconds that a lane waits at its end for its sessions to end on their servers.
_PATIENCE = 5.0
_TAG = "airflow_tx lane"
# The number of sessions to prepare at the same time. More would compete for the processors.
_PREPARED = 4
# The seconds before a rehearsal starts. A batch that arrives in this time compiles the same code as
# the rehearsal.
_FIRST_LOOK = 1.0
# Maximum number of seconds that other batches wait for the first batch on a server. The first batch
# compiles the code for all batches.
_HEAD_START = 60.0


class LaneApplications:
    """Runs the applications of a lane. Each application's file is executed once.

    :param dag_file: the path of the DAG file. Applications can import modules from its folder.
    :param ended: a condition that is notified when an application has ended.
    :param log: the log of the coordinator.
    """

    def __init__(self, dag_file: str, ended: threading.Condition, log: Any) -> None:
        self._dag_file = dag_file
        self._ended = ended
        self._log = log
        self._lock = threading.Lock()
        self._loading = threading.Lock()
        self._loaded: dict[str, BatchApp] = {}
        self._open: set[_SessionThread] = set()
        self._idle: dict[str, list[_SessionThread]] = {}
        self._unprepared: set[str] = set()
        self._warm: dict[str, threading.Event] = {}
        self._has_batches = threading.Event()

    def prepare(
        self, tasks: Sequence[LaneApplication], count: int, where: Callable[[], TryDir]
    ) -> None:
        """Open sessions in new threads before there is a batch. `start` uses them even if they are not ready.

        One session on each connection rehearses a batch, since the server compiles most code once for all sessions.

        :param tasks: the applications of the plan.
        :param count: the number of batches that may run at the same time. Each connection gets this number of sessions,
            at most 4.
        :param where: a function that returns the folder for a rehearsal. The rehearsal removes the folder.
        """
        count = min(count, _PREPARED)
        for conn_id in dict.fromkeys(task.operator.conn_id for task in tasks):
            own = tuple(task for task in tasks if task.operator.conn_id == conn_id)
            folders = [where(), *[None] * (count - 1)]  # A batch takes the last thread of the list.
            threads = [_SessionThread(self, conn_id, _Preparation(own, each)) for each in folders]
            with self._lock:
                self._open.update(threads)
                self._idle.setdefault(conn_id, []).extend(threads)
            for thread in reversed(threads):
                thread.start()

    def start(
        self,
        task: LaneApplication,
        descriptor: Descriptor,
        arguments: Sequence[Any],
        limit: TimeLimit,
    ) -> ApplicationRun:
        """Start an application on a batch, with a time limit.

        :param descriptor: the batch and its inputs.
        :param arguments: the `batch.args` of the application.
        """
        conn_id = task.operator.conn_id
        self._has_batches.set()
        with self._lock:
            idle = self._idle.get(conn_id)
            thread = idle.pop() if idle else None
            if thread is None:
                thread = _SessionThread(self, conn_id)
                self._open.add(thread)
                thread.start()
        run = ApplicationRun(task, descriptor, arguments, limit, thread)
        thread.runs.put(run)
        return run

    def close(self) -> None:
        """Interrupt running applications, and end all sessions."""
        with self._lock:
            threads = [thread.end() for thread in self._open]
        # From here on, no thread starts another batch.
        for thread in threads:
            thread.start()
        until = time.monotonic() + _PATIENCE
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))

    # --- in the thread of a session

    def prepare_in(
        self, thread: _SessionThread, session: SparkSession, preparation: _Preparation
    ) -> None:
        """Load the applications, and do the rehearsal of this session, if it has one. Skip both if a batch is waiting.

        :raises Exception, SystemExit: the error that the file of an application raises.
        """
        from airflow_tx.spark import rehearse

        for task in preparation.tasks:
            if not self._has_batches.is_set():
                self._load(task.operator.found_from(self._dag_file))
        where = preparation.where
        if where is not None and not self._has_batches.wait(_FIRST_LOOK):
            rehearse(session, where)
            self._head_start(thread.conn_id, 0.0).set()
        with self._lock:
            idle = self._idle[thread.conn_id]
            # `start` takes the last thread in the list. Prefer this one to threads that are not
            # ready.
            if thread in idle:
                idle.remove(thread)
                idle.append(thread)

    def give_up(self, thread: _SessionThread, error: BaseException) -> bool:
        """Drop a session that could not be prepared.

        :return: whether a batch already waits in the thread, so that the thread must open another session.
        """
        with self._lock:
            idle = self._idle[thread.conn_id]
            if thread not in idle:
                return True
            idle.remove(thread)
            self._open.discard(thread)
            is_told = thread.is_ending or thread.conn_id in self._unprepared
            self._unprepared.add(thread.conn_id)
        if not is_told:
            text = "A session on connection %s could not be prepared (%s). The next batch opens another session."
            self._log.warning(text, thread.conn_id, compat.masked(str(error)))
        return False

    def process(
        self, thread: _SessionThread, run: ApplicationRun, session: SparkSession
    ) -> Manifest:
        """Process a batch in the session.

        :raises FailedBatch, ApplicationFailed, ConfigError, TxError: the application cannot process it.
        """
        from airflow_tx.spark import process

        application = run.task.operator.found_from(self._dag_file, run.arguments)
        # The wait takes at most half of the batch's remaining time.
        left = run.deadline - time.monotonic()
        warm = self._head_start(run.task.operator.conn_id, min(_HEAD_START, left / 2))
        try:
            thread.check_open()
            return process(session, application, run.descriptor, partial(self._load, application))
        finally:
            warm.set()

    def over(
        self,
        thread: _SessionThread,
        run: ApplicationRun,
        outcome: Manifest | BaseException,
        *,
        traces: bool,
    ) -> None:
        """Store the outcome of an execution. Keep the session for the next batch, or drop it.

        :param outcome: the manifest of the output, or the error.
        :param traces: whether the application has left changes in its session.
        """
        failed = isinstance(outcome, BaseException)
        with self._lock:
            idle = self._idle.setdefault(thread.conn_id, [])
            if not failed and not traces:
                idle.append(thread)
            else:
                # The application may have failed because its server has ended. Then the idle
                # sessions are lost, too.
                dropped = [thread, *(idle if failed else ())]
                self._idle[thread.conn_id] = [each for each in idle if each not in dropped]
                for each in dropped:
                    self._open.discard(each)
                    each.runs.put(None)
        with self._ended:
            run.outcome = outcome
            self._ended.notify_all()

    def _head_start(self, conn_id: str, seconds: float) -> threading.Event:
        """Wait until a batch has run on the server, except for the first batch.

        Return the event that this batch must set.
        """
        with self._lock:
            is_first = conn_id not in self._warm
            warm = self._warm.setdefault(conn_id, threading.Event())
        if not is_first:
            warm.wait(seconds)
        return warm

    def _load(self, application: ConnectApplication) -> BatchApp:
        with self._loading:
            found = self._loaded.get(application.path)
            if found is None:
                # Never remove these folders. Several applications run at the same time, and may
                # import modules while they run.
                sys.path[:0] = [folder for folder in application.folders if folder not in sys.path]
                found = self._loaded[application.path] = application.load()
            return found


class ApplicationRun:
    """One execution of an application on one batch.

    :param limit: the time limit of the application.
    :param thread: the thread that runs the application.
    :ivar outcome: the manifest of the output or the error, or None until the application has ended.
    """

    def __init__(
        self,
        task: LaneApplication,
        descriptor: Descriptor,
        arguments: Sequence[Any],
        limit: TimeLimit,
        thread: _SessionThread,
    ) -> None:
        self.task = task
        self.descriptor = descriptor
        self.arguments = arguments
        self.deadline = time.monotonic() + limit.seconds
        self._limit = limit
        self.outcome: Manifest | BaseException | None = None
        self._thread = thread

    @property
    def is_over(self) -> bool:
        """Return whether the application has ended or has exceeded its time limit."""
        return self.outcome is not None or time.monotonic() >= self.deadline

    def manifest(self) -> Manifest:
        """Return the manifest of the application's output.

        The application must have ended, or have exceeded its time limit.

        :raises AirflowTaskTimeout: the application exceeded its time limit and was interrupted.
        :raises Exception, SystemExit: the application's error.
        """
        outcome = self.outcome
        if outcome is None:
            self._thread.end().start()
            raise AirflowTaskTimeout(self._limit.reason)
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome


@dataclass(frozen=True)
class _Preparation:
    """The work of a session before its first batch.

    :param tasks: the applications to load.
    :param where: the output folder of the rehearsal, or None if another session does the rehearsal.
    """

    tasks: tuple[LaneApplication, ...]
    where: TryDir | None


class _SessionThread(threading.Thread):
    """A thread with its own Spark session. PySpark returns this session to all code in the thread.

    :param preparation: the work before the first batch, or None if the thread begins with a batch.
    :ivar runs: the queue of batches to process. None ends the thread.
    """

    def __init__(
        self, shared: LaneApplications, conn_id: str, preparation: _Preparation | None = None
    ) -> None:
        super().__init__(name=f"airflow_tx-lane {conn_id}", daemon=True)
        self.conn_id = conn_id
        self._preparation = preparation
        self.runs: queue.SimpleQueue[ApplicationRun | None] = queue.SimpleQueue()
        self._shared = shared
        self._session: SparkSession | None = None
        self._ending = False
        self._state = threading.Lock()

    @property
    def is_ending(self) -> bool:
        """Return whether `end` was called."""
        return self._ending

    def run(self) -> None:
        if self._preparation is not None and not self._serve(None, self._preparation):
            return
        run = self.runs.get()
        if run is not None:
            self._serve(run)

    def _serve(self, run: ApplicationRun | None, preparation: _Preparation | None = None) -> bool:
        """Open a session, and process the queued batches in it.

        :param run: the first batch, or None to prepare the session first.
        :param preparation: the work before the first batch.
        :return: whether the session could not be prepared, although a batch waits for it.
        """
        from airflow_tx.spark import SERVER_PATIENCE, SessionTraces, session

        is_prepared = preparation is None
        traces = SessionTraces()
        try:
            with session(
                connect_url(self.conn_id),
                tag=_TAG,
                server=f"connection {self.conn_id}",
                patience=SERVER_PATIENCE if is_prepared else 0.0,
                traces=traces,
            ) as opened:
                self._opened(opened)
                if preparation is not None:
                    self._shared.prepare_in(self, opened, preparation)
                    is_prepared = True
                    run = self.runs.get()
                while run is not None:
                    opened.clearTags()
                    opened.addTag(str(run.descriptor).replace(",", " "))
                    manifest = self._shared.process(self, run, opened)
                    self._shared.over(self, run, manifest, traces=traces.found)
                    run = self.runs.get()
        except BaseException as error:  # noqa: BLE001 - of the user's code; `manifest` raises it
            if run is not None:
                self._shared.over(self, run, error, traces=True)
            elif not is_prepared:
                return self._shared.give_up(self, error)
        return False

    def end(self) -> threading.Thread:
        """Refuse further batches. Return a thread that ends the session on the server, which may not respond."""
        with self._state:
            self._ending = True
        self.runs.put(None)
        return threading.Thread(target=self._end, name=f"{self.name} ends", daemon=True)

    def _end(self) -> None:
        from airflow_tx.spark import end

        if self._session is not None:
            end(self._session)

    def _opened(self, session: SparkSession) -> None:
        with self._state:
            self._session = session
            self.check_open()

    def check_open(self) -> None:
        """Raise an error if `end` was called before.

        :raises TxError: `end` was called.
        """
        if self._ending:
            raise TxError(
                message=f"The session on {self.conn_id} was closed before the batch began."
            )
