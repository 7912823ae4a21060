"""The messages that a task emits: the roots of trees that the committer waits for."""

from __future__ import annotations

from contextlib import ExitStack
from typing import TYPE_CHECKING

from airflow.sdk.exceptions import AirflowFailException

from airflow_tx.errors import AckersUnavailable, MessageError, TransactionDefinitionError

if TYPE_CHECKING:
    from airflow_tx.acks.root_emitter import RootEmitter
    from airflow_tx.protocol.attempt import TaskTry, TransactionAttempt
    from airflow_tx.spec import TransactionSpec


class TaskMessages:
    """The messages of one try of a task; connected from the first one until its ack.

    :param anchored: whether its transaction waits for its ack.
    """

    def __init__(self, spec: TransactionSpec, attempt: TransactionAttempt, task: TaskTry, *, anchored: bool) -> None:
        self._spec = spec
        self._attempt = attempt
        self._task = task
        self._anchored = anchored
        self._connected = ExitStack()
        self._roots: RootEmitter | None = None

    @property
    def trees(self) -> int:
        """How many trees it has begun."""
        return 0 if self._roots is None else self._roots.count

    def emit(self, count: int, *, tracked: bool) -> list[str]:
        """Make messages; their references.

        :raises TransactionDefinitionError: nothing would wait for them.
        :raises AirflowFailException: they are refused, and would be in another try; the run is to be replayed.
        :raises AckersUnavailable: the ackers cannot be reached.
        """
        from airflow_tx.acks.reference import Lineage, Origin, Reference, new_id

        if not tracked or self._spec.ackers == 0:
            lineage = Lineage(Origin(self._spec.topology, self._attempt.txid, self._attempt.attempt))
            return [str(Reference(lineage, new_id())) for _ in range(count)]
        try:
            return self._emitter().emit(count)
        except AckersUnavailable:
            raise
        except MessageError as error:
            raise AirflowFailException(str(error)) from None

    def close(self) -> None:
        """Give back the connection."""
        self._connected.close()

    def _emitter(self) -> RootEmitter:
        from airflow_tx.acks.root_emitter import RootEmitter

        if self._spec.ackers is None:
            raise self._untracked(f"task {self._task} emits messages", "Write Transaction(..., ackers=1)")
        if not self._anchored:
            problem = f"task {self._task} emits messages, and is not upstream of the committer, which would not wait"
            raise self._untracked(problem, "Put it upstream of the committer")
        if self._roots is None:
            store = self._connected.enter_context(self._spec.store())
            ackers = self._connected.enter_context(self._spec.open_ackers(store))
            self._roots = RootEmitter(ackers, self._spec.topology, self._attempt, self._spec.ackers, self._task)
        return self._roots

    def _untracked(self, problem: str, remedy: str) -> TransactionDefinitionError:
        remedy = f"{remedy}, or emit(tracked=False) if nothing has to wait for them."
        return TransactionDefinitionError(topology=self._spec.topology, problem=problem, remedy=remedy)
