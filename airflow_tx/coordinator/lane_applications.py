"""The applications of a lane: each runs in a thread and a session of its own, so that nothing else waits for Spark."""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from airflow.sdk.exceptions import AirflowTaskTimeout

from airflow_tx.connections.spark import connect_url
from airflow_tx.coordinator.lane_plan import LaneApplication
from airflow_tx.errors import TxError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.spark.app import BatchApp
    from airflow_tx.spark.connect import ConnectApplication
    from airflow_tx.staging import Descriptor, Manifest

# At the end of a lane, for the sessions to end on their servers.
_PATIENCE = 5.0


class LaneApplications:
    """Runs the applications of a lane.

    Each file is executed once, and the address of a server is asked for once, as long as nothing fails.

    :param dag_file: beside it, too, applications find what they import.
    :param ended: is notified when one has ended.
    """

    def __init__(self, dag_file: str, ended: threading.Condition) -> None:
        self._dag_file = dag_file
        self._ended = ended
        self._loading = threading.Lock()
        self._loaded: dict[str, BatchApp] = {}
        self._urls: dict[str, str] = {}
        self._running: set[ApplicationRun] = set()

    def start(
        self, task: LaneApplication, descriptor: Descriptor, arguments: Sequence[Any], seconds: float
    ) -> ApplicationRun:
        """Let an application process a batch, for so many seconds at most.

        :param arguments: as `batch.args`.
        """
        run = ApplicationRun(self, task, descriptor, arguments, seconds)
        self._running.add(run)
        run.thread.start()
        return run

    def close(self) -> None:
        """Interrupt those that run."""
        threads = [run.interrupt() for run in tuple(self._running)]
        until = time.monotonic() + _PATIENCE
        for thread in threads:
            thread.join(max(until - time.monotonic(), 0.0))

    def process(self, run: ApplicationRun) -> Manifest:
        """Process a batch, in the thread of its run.

        :raises FailedBatch, ApplicationFailed, ConfigError, SparkUnreachable: it cannot be processed.
        """
        from airflow_tx.spark.connect import process, session

        operator = run.task.operator
        application = operator.found_from(self._dag_file, run.arguments)
        url = self._urls.get(operator.conn_id) or connect_url(operator.conn_id)
        try:
            with session(url, tag=str(run.descriptor), server=f"connection {operator.conn_id}") as spark:
                run.opened(spark)
                manifest = process(spark, application, run.descriptor, partial(self._load, application))
        except BaseException:
            self._urls.pop(operator.conn_id, None)
            raise
        self._urls[operator.conn_id] = url
        return manifest

    def over(self, run: ApplicationRun) -> None:
        """Tell that a run has ended."""
        self._running.discard(run)
        with self._ended:
            self._ended.notify_all()

    def _load(self, application: ConnectApplication) -> BatchApp:
        with self._loading:
            found = self._loaded.get(application.path)
            if found is None:
                # For good: it may import when it is called, and several are called at once.
                sys.path[:0] = [folder for folder in application.folders if folder not in sys.path]
                found = self._loaded[application.path] = application.load()
            return found


class ApplicationRun:
    """One application that processes one batch, in a thread of its own.

    :param seconds: it may take.
    """

    def __init__(
        self,
        shared: LaneApplications,
        task: LaneApplication,
        descriptor: Descriptor,
        arguments: Sequence[Any],
        seconds: float,
    ) -> None:
        self.task = task
        self.descriptor = descriptor
        self.arguments = arguments
        self.deadline = time.monotonic() + seconds
        self.thread = threading.Thread(target=self._run, name=f"airflow_tx {descriptor}", daemon=True)
        self._shared = shared
        self._outcome: Manifest | BaseException | None = None
        self._session: SparkSession | None = None
        self._interrupted = False
        self._lock = threading.Lock()

    @property
    def is_over(self) -> bool:
        """Whether it has ended, or takes too long."""
        return self._outcome is not None or time.monotonic() >= self.deadline

    def manifest(self) -> Manifest:
        """What it has left, once it is over.

        :raises AirflowTaskTimeout: it takes too long; it is interrupted.
        :raises Exception, SystemExit: whatever it raised.
        """
        outcome = self._outcome
        if outcome is None:
            self.interrupt()
            raise AirflowTaskTimeout(f"application of task {self.task.task_id} takes too long")
        if isinstance(outcome, BaseException):
            raise outcome
        return outcome

    def opened(self, session: SparkSession) -> None:
        """Tell which session it has.

        :raises TxError: it was interrupted by then.
        """
        with self._lock:
            self._session = session
            if self._interrupted:
                raise TxError(message=f"Application of task {self.task.task_id} is interrupted.")

    def interrupt(self) -> threading.Thread:
        """End what it runs on the server, and its session; the thread that does so: a server may not answer."""
        with self._lock:
            self._interrupted = True
            thread = threading.Thread(target=self._end, name=f"airflow_tx end {self.descriptor}", daemon=True)
        thread.start()
        return thread

    def _end(self) -> None:
        from airflow_tx.spark.connect import end

        if self._session is not None:
            end(self._session)

    def _run(self) -> None:
        try:
            self._outcome = self._shared.process(self)
        except BaseException as error:  # noqa: BLE001 - of the user's code; raised where the outcome is asked for
            self._outcome = error
        finally:
            self._shared.over(self)
