"""The messages that a task emits: the roots of trees that the committer waits for."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from airflow_tx.errors import AckersUnavailable, EmittedBefore, MessageError

if TYPE_CHECKING:
    from airflow_tx.acks.api import AckerStore
    from airflow_tx.acks.task_emitter import TaskEmitter
    from airflow_tx.protocol.answers import Begun
    from airflow_tx.protocol.attempt import TaskTry
    from airflow_tx.spec import TransactionSpec


class TaskMessages:
    """The messages of one try of a task; connected from the first one until its ack.

    :param anchored: whether its transaction waits for its ack.
    """

    def __init__(
        self, spec: TransactionSpec, begun: Begun, task: TaskTry, *, anchored: bool
    ) -> None:
        self._spec = spec
        self._begun = begun
        self._task = task
        self._anchored = anchored
        self._emitter: TaskEmitter | None = None
        self._by_application = 0

    @property
    def trees(self) -> int:
        """How many trees it has begun, itself and in its application."""
        return self._by_application + (0 if self._emitter is None else self._emitter.trees)

    def emit(self, count: int, *, tracked: bool) -> list[str]:
        """Make messages; their references.

        :raises TransactionDefinitionError: nothing would wait for them.
        :raises AirflowFailException: they are refused, and would be in another try; the run is to be replayed.
        :raises AckersUnavailable: the ackers cannot be reached.
        """
        from airflow_tx.acks.reference import origin_of
        from airflow_tx.acks.task_emitter import TaskEmitter

        if self._emitter is None:
            begun = self._begun
            self._emitter = TaskEmitter(
                origin_of(self._spec.topology, begun.attempt, begun.incarnation),
                self._task,
                self._spec.ackers,
                self._ackers,
                anchored=self._anchored,
            )
        try:
            return self._emitter.emit(count, tracked=tracked)
        except AckersUnavailable:
            raise
        except MessageError as error:
            raise AirflowFailException(str(error)) from None

    def add_application(self, trees: int, emitter: TaskTry) -> None:
        """Take over what its application has emitted.

        :param emitter: the try that it worked for.
        :raises AirflowFailException: it is another one, whose application this try has taken up.
        """
        if trees and emitter != self._task:
            own = self._begun.attempt
            topology = self._spec.topology
            error = EmittedBefore(
                task=str(self._task), topology=topology, txid=own.txid, attempt=own.attempt
            )
            raise AirflowFailException(str(error))
        self._by_application = trees

    def close(self) -> None:
        """Give back the connection."""
        if self._emitter is not None:
            self._emitter.close()

    @contextmanager
    def _ackers(self) -> Iterator[AckerStore]:
        with self._spec.store() as store, self._spec.open_ackers(store) as ackers:
            yield ackers
