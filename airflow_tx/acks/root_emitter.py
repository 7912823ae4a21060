"""The task of a transaction as a spout: its messages are the roots of trees, registered before they leave."""

from __future__ import annotations

from airflow_tx.acks.api import AckerStore
from airflow_tx.acks.reference import Lineage, Origin, Reference, new_id
from airflow_tx.acks.stream import Stream
from airflow_tx.acks.tree import emitter_text
from airflow_tx.errors import EmittedBefore
from airflow_tx.protocol.attempt import TaskTry


class RootEmitter:
    """Emits the messages of one try of a task.

    :param ackers: among which the trees are divided.
    :ivar count: how many trees it has registered.
    """

    def __init__(
        self,
        store: AckerStore,
        origin: Origin,
        ackers: int,
        task: TaskTry,
    ) -> None:
        self.count = 0
        self._origin = origin
        self._store = store
        self._task = task
        emitter = emitter_text(task)
        self._streams = [
            Stream(store, self._origin, acker, emitter=emitter) for acker in range(ackers)
        ]

    def emit(self, count: int) -> list[str]:
        """Make messages, each the root of a tree. No reference leaves before every acker knows its tree.

        :raises EmittedBefore: an earlier try of the task has emitted messages in this attempt.
        :raises MessageError: they cannot be registered; the task is to fail.
        """
        if not self.count:
            self._refuse_second_try()
        roots = [new_id() for _ in range(count)]
        for root in roots:
            self._streams[root % len(self._streams)].add(root, root, 1)
        for stream in self._streams:
            stream.send()
        self.count += count
        return [
            str(Reference(Lineage(self._origin, ((root % len(self._streams), root),)), root))
            for root in roots
        ]

    def _refuse_second_try(self) -> None:
        for other in self._store.report(self._origin).emitted:
            same = (other.task_id, other.map_index) == (self._task.task_id, self._task.map_index)
            if same and other.task_try != self._task.task_try:
                raise EmittedBefore(task=str(self._task), **self._origin.words)
