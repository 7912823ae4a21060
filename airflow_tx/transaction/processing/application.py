"""The work of a task before and after its Spark application: it describes the batch, and acks the output."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from airflow_tx.outputs import (
    Ackers,
    AppendTo,
    Descriptor,
    Manifest,
    Output,
    refuse,
    with_content,
    write_manifest,
    write_rows,
)
from airflow_tx.state import Misfit
from airflow_tx.transaction.processing.batch import inputs_of

if TYPE_CHECKING:
    from airflow.sdk import Context

    from airflow_tx.transaction.processing.task import Processing
    from airflow_tx.transaction.spec import TransactionSpec


# --- appended -----------------------------------------------------------------------------------------------------
# This section is for outputs that the commit appends to a table. The task lists the files that its
# application has written to the table's folder.


def appended_by(spec: TransactionSpec, task_id: str) -> dict[str, AppendTo]:
    """Return the tables that the outputs of a task are appended to, by output name."""
    return {
        name: AppendTo(table.uri, table.partition_by)
        for (task, name), table in spec.tables.items()
        if task == task_id
    }


def with_files(processing: Processing, manifest: Manifest) -> Manifest:
    """Add to the manifest the files of each output that the application has written to a table's folder.

    The task lists the files, since the application may not have the committer's access to the table.

    :raises StagingError: the files are incomplete, or cannot be files of a Delta table.
    """
    outputs = {name: _listed(processing, manifest, name) for name in manifest.outputs}
    if outputs == manifest.outputs:
        return manifest
    found = replace(manifest, outputs=outputs)
    write_manifest(
        found.where,
        found.outputs,
        consumed_rows=found.consumed_rows,
        read=found.read,
        code=found.code,
        trees=found.trees,
        unproven=found.unproven,
    )
    return found


def _listed(processing: Processing, manifest: Manifest, name: str) -> Output:
    output = manifest.outputs[name]
    appended = output.appended
    if appended is None or appended.listed:
        return output
    where = manifest.where
    table = processing.spec.tables.get((processing.task.task_id, name))
    if table is None or table.uri != appended.uri:
        problem = f"it was written for table {appended.uri}, but the DAG does not append this output to that table"
        raise refuse(where, name, problem, f"Clear task {where.task}.")
    try:
        entries = table.list_staged(appended.folder, appended.partition)
    except Misfit as error:
        remedy = error.remedy or "Change its rows before batch.emit."
        raise refuse(where, name, str(error), remedy) from None
    rows = sum(each["rows"] for each in entries)
    if rows != appended.rows:
        # If the executors write to their own disks, this folder is empty, although Spark reports
        # success.
        problem = f"Spark wrote {appended.rows} rows, but only {rows} are in {table.uri}/{appended.folder}"
        remedy = "The table must be on storage that the task, the driver and all executors share."
        raise refuse(where, name, problem, remedy)
    return _staged(manifest, name, output, entries)


def _staged(
    manifest: Manifest, name: str, output: Output, entries: Sequence[Mapping[str, Any]]
) -> Output:
    assert output.appended is not None
    found = write_rows(manifest.where, name, entries) if entries else Output((), ())
    found = with_content(manifest.where, name, found)
    listed = replace(output.appended, listed=True)
    return replace(found, reliable=output.reliable, appended=listed)


# --- application --------------------------------------------------------------------------------------------------


def describe_batch(processing: Processing, inputs: Mapping[str, Any]) -> Descriptor:
    """Describe the batch of a task for its Spark application.

    :param inputs: references to the inputs, by name.
    :raises StagingError: an input is incomplete or changed.
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
        keeps_rejected=processing.keeps_rejected,
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
    """Push a reference to each output of an application as an XCom. Then ack the outputs, the readings and the code.

    :param reliable: whether the commit requires that the application has read the whole batch.
    """
    manifest = with_files(processing, manifest)
    refs = emitted_refs(manifest)
    for name, ref in refs.items():
        context["ti"].xcom_push(key=name, value=ref)
    ack_application(processing, manifest, reliable=reliable)


def emitted_refs(manifest: Manifest) -> dict[str, dict[str, Any]]:
    """Return the XComs of an application's outputs, by name."""
    return {name: ref.to_json() for name, ref in manifest.refs().items()}


def ack_application(processing: Processing, manifest: Manifest, *, reliable: bool) -> None:
    """Ack the outputs of an application, what it has read, and its code. See `acknowledge`."""
    if reliable:
        processing.read.extend(manifest.read)
        processing.unproven.extend(manifest.unproven)
    processing.code = manifest.code
    processing.messages.add_application(manifest.trees, manifest.where.task)
    processing.ack(list(emitted_refs(manifest).values()), manifest.consumed_rows)
