"""The messages of an application; its descriptor says where the ackers are."""

from __future__ import annotations

from contextlib import closing
from typing import TYPE_CHECKING

from airflow_tx.acks.location import open_ackers
from airflow_tx.acks.task_emitter import TaskEmitter
from airflow_tx.staging import Ackers, Descriptor

if TYPE_CHECKING:
    from airflow_tx.acks.api import AckerStore


def emitter_of(descriptor: Descriptor) -> TaskEmitter:
    """Make the emitter of an application's messages; they are those of the try that runs it."""
    own, ackers = (descriptor.topology, descriptor.attempt, descriptor.task), descriptor.ackers
    if ackers is None:
        return TaskEmitter(*own, None, _nowhere)
    return TaskEmitter(*own, ackers.count, lambda: _connected(ackers), anchored=ackers.anchored)


def _connected(ackers: Ackers) -> closing[AckerStore]:
    return closing(open_ackers(ackers.conn_id, root=ackers.root))


def _nowhere() -> closing[AckerStore]:
    raise AssertionError("a transaction without ackers connects to none")
