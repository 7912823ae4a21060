"""The work of a task for an application that processes its batch: it describes the batch, and acks the output."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.processing.appended import appended_by, with_files
from airflow_tx.processing.batch import inputs_of
from airflow_tx.staging import Ackers, Descriptor

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.processing.task import Processing
    from airflow_tx.staging import Manifest


def describe_batch(processing: Processing, inputs: Mapping[str, Any]) -> Descriptor:
    """Describe the batch of a task for its application.

    :param inputs: references by name.
    :raises StagingError: one of these outputs is not there whole.
    """
    return Descriptor(
        topology=processing.topology,
        attempt=processing.attempt,
        task=processing.task,
        metadata=processing.metadata,
        source=processing.source.serialize(),
        root=processing.staging.root,
        incarnation=processing.begun.incarnation,
        inputs=inputs_of(processing.spec, inputs, processing.begun) if inputs else {},
        ackers=_ackers(processing),
        appended=appended_by(processing.spec, processing.task.task_id),
    )


def _ackers(processing: Processing) -> Ackers | None:
    spec = processing.spec
    if spec.ackers is None:
        return None
    return Ackers(
        spec.ackers, spec.acker_store or spec.conn_id, spec.paths.root, processing.anchored
    )


def acknowledge(
    context: Context, processing: Processing, manifest: Manifest, *, reliable: bool
) -> None:
    """Push references to what an application emitted, one XCom each; ack them, what it read, and its code.

    :param reliable: whether it must have read the whole batch.
    """
    manifest = with_files(processing, manifest)
    refs = emitted_refs(manifest)
    for name, ref in refs.items():
        context["ti"].xcom_push(key=name, value=ref)
    ack_application(processing, manifest, reliable=reliable)


def emitted_refs(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Give the XComs that an application's output becomes, by name."""
    return {name: ref.to_json() for name, ref in manifest.refs().items()}


def ack_application(processing: Processing, manifest: Manifest, *, reliable: bool) -> None:
    """Ack what an application emitted, what it read, and its code; as `acknowledge`."""
    if reliable:
        processing.read.extend(manifest.read)
        processing.unproven.extend(manifest.unproven)
    processing.code = manifest.code
    processing.messages.add_application(manifest.trees, manifest.where.task)
    processing.ack(list(emitted_refs(manifest).values()), manifest.consumed_rows)
