"""The messages of one try of a task, also of the Spark application that does its work."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.reference import Lineage, Origin, Reference, new_id
from airflow_tx.acks.root_emitter import RootEmitter
from airflow_tx.errors import TransactionDefinitionError
from airflow_tx.protocol.attempt import TaskTry


class TaskEmitter:
    """Emits messages, connected to the ackers from the first one on.

    :param ackers: among which the trees are divided; 0: they are not tracked; None: the transaction has no messages.
    :param connect: to the ackers, as long as the block.
    :param anchored: whether the transaction waits for the task.
    """

    def __init__(
        self,
        origin: Origin,
        task: TaskTry,
        ackers: int | None,
        connect: Callable[[], AbstractContextManager[AckerStore]],
        *,
        anchored: bool = True,
    ) -> None:
        self._origin = origin
        self._task = task
        self._ackers = ackers
        self._connect = connect
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
        :raises MessageError: they are refused, and would be in another try; the run is to be replayed.
        :raises AckersUnavailable: the ackers cannot be reached.
        """
        if not tracked or self._ackers == 0:
            lineage = Lineage(self._origin)
            return [str(Reference(lineage, new_id())) for _ in range(count)]
        if self._ackers is None:
            raise self._untracked(
                f"task {self._task} emits messages", "Write Transaction(..., ackers=1)"
            )
        if not self._anchored:
            problem = f"task {self._task} emits messages, and is not upstream of the committer, which would not wait"
            raise self._untracked(problem, "Put it upstream of the committer")
        if self._roots is None:
            store = self._connected.enter_context(self._connect())
            self._roots = RootEmitter(store, self._origin, self._ackers, self._task)
        return self._roots.emit(count)

    def close(self) -> None:
        """Give back the connection."""
        self._connected.close()

    def _untracked(self, problem: str, remedy: str) -> TransactionDefinitionError:
        remedy = f"{remedy}, or emit(tracked=False) if nothing has to wait for them."
        topology = self._origin.topology
        return TransactionDefinitionError(topology=topology, problem=problem, remedy=remedy)
