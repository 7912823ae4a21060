"""What a task reads of the tasks before it: their staged output, or the new values that a committer has left."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import StagingError
from airflow_tx.processing.outputs import is_ref
from airflow_tx.spark.new_values import are_new_values, newest_of
from airflow_tx.staging.descriptor import Input

if TYPE_CHECKING:
    from airflow_tx.protocol.attempt import TransactionAttempt
    from airflow_tx.spec import TransactionSpec
    from airflow_tx.staging import StagingArea


def located(
    spec: TransactionSpec, ref: Any, attempt: TransactionAttempt
) -> tuple[StagingArea, Mapping[str, Any], TransactionAttempt | None]:
    """Where the output that a reference names lies, the reference to what counts, and of which attempt it must be.

    A committer may have written again since it told of its new values: then the newest ones count, of any attempt.

    :param attempt: the one that the reader works on.
    :raises StagingError: it is no reference, or the new values are not kept any more.
    """
    area = spec.staging()
    if not is_ref(ref):
        raise _refused(ref, attempt, "?", "?", "it is no reference", 'Pass the output of a task: task.output["name"].')
    if not are_new_values(ref):
        return area, ref, attempt
    found = newest_of(area.kept, ref)
    if found is None:
        remedy = "Ask the state itself; [tx] keep_new_values says for how many transactions they are kept."
        raise _refused(ref, attempt, ref["name"], ref["task_id"], "they are not kept any more", remedy)
    return area.kept, found.to_json(), None


def rows_of_output(spec: TransactionSpec, ref: Any, attempt: TransactionAttempt) -> Iterator[dict[str, Any]]:
    """The rows of an output, or of new values, as dicts; it is checked before the first one.

    :raises StagingError: exactly this output is not there whole.
    """
    from airflow_tx.staging import read_batches
    from airflow_tx.state.arrow import from_arrow, types_of

    area, found, of = located(spec, ref, attempt)
    batches = read_batches(area, found, attempt=of)
    return (row for batch in batches for row in from_arrow(batch, types_of(batch.schema)))


def inputs_of(spec: TransactionSpec, inputs: Mapping[str, Any], attempt: TransactionAttempt) -> dict[str, Input]:
    """What an application reads as inputs, by name; checked here, where a refusal is the task's own.

    :param inputs: references; of a mapped task, those of all its instances.
    :raises StagingError: exactly these outputs are not there whole.
    """
    return {name: _input(spec, _refs(value), attempt) for name, value in inputs.items()}


def _input(spec: TransactionSpec, refs: list[Any], attempt: TransactionAttempt) -> Input:
    from airflow_tx.staging.manifest import open_output

    files, columns = list[str](), tuple[str, ...]()
    for ref in refs:
        area, found, of = located(spec, ref, attempt)
        where, output = open_output(area, found, attempt=of)
        columns = columns or output.columns
        files += [where.files.spark_uri(f"{found['path']}/{file.name}") for file in output.files]
    return Input(tuple(files), columns)


def _refs(value: Any) -> list[Any]:
    if isinstance(value, (str, Mapping)) or not isinstance(value, Iterable):
        return [value]
    return list(value)


def _refused(ref: Any, attempt: TransactionAttempt, output: str, task: str, problem: str, remedy: str) -> StagingError:
    shown = "" if is_ref(ref) else f" ({str(ref)[:120]})"
    return StagingError(
        output=output,
        task=task,
        txid=attempt.txid,
        attempt=attempt.attempt,
        problem=f"{problem}{shown}",
        remedy=remedy,
    )
