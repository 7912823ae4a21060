"""The rows that a committer writes: exactly the acked output of this attempt."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import StagingError
from airflow_tx.operators.acked import Acks, acked, fingerprint, is_ref
from airflow_tx.operators.updates import Update
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.state.backing.arrow_rows import from_arrow, types_of
from airflow_tx.state.grouping import combined
from airflow_tx.state.reducers import has_reducers, reducers_of

if TYPE_CHECKING:
    from airflow_tx.staging import StagingArea

Rows = Iterable[Mapping[str, Any]]
Pull = Callable[[str, str, int], Any]


def values_of(update: Update, acks: Acks, attempt: TransactionAttempt, pull: Pull, *, empty: bool = False) -> list[Any]:
    """The output of every task instance that has one, read anew and compared with what the instance acked.

    :param pull: asked for (task id, name, map index).
    :param empty: the batch has no rows, so that an instance need not give any.
    :raises StagingError: it is of an earlier try or of another attempt, was pushed by hand, or is not there; or an
        instance gave nothing, and the update does not allow that.
    """
    task, name = update.input.operator.task_id, update.input.key
    given = acked(acks, task, name)
    found = {index: pull(task, name, index) for index in given}
    wrong = [index for index, expected in given.items() if fingerprint(found[index]) != expected]
    emitted = sorted({entry["name"] for (of, _), ack in acks.items() if of == task for entry in ack.outputs})
    silent = sorted(index for (of, index), ack in acks.items() if of == task and not ack.outputs)
    if wrong:
        problem, remedy = "its XCom is not what the task acked", f"Clear task {task}."
    elif emitted and not found:
        problem = f"the task gave {', '.join(map(repr, emitted))}"
        remedy = "Name one of these; only what a task returns, or an application emits, can be committed."
    else:
        if silent and not empty:
            check_empty(update, attempt, silent[0])
        return list(found.values())
    raise StagingError(
        output=name, task=task, txid=attempt.txid, attempt=attempt.attempt, problem=problem, remedy=remedy
    )


def check_empty(update: Update, attempt: TransactionAttempt, map_index: int = -1) -> None:
    """Refuse a task that gave nothing: a forgotten `return` would lose the rows, and nobody would know.

    :raises StagingError: its update does not allow that.
    """
    if update.allow_empty:
        return
    task, name = update.input.operator.task_id, update.input.key
    raise StagingError(
        output=name,
        task=task if map_index < 0 else f"{task}[{map_index}]",
        txid=attempt.txid,
        attempt=attempt.attempt,
        problem="the task gave nothing",
        remedy=f"Let it return its rows, [] if there are none, then clear {task}; or, if nothing means no rows, say "
        f"persistent_aggregate(..., allow_empty=True).",
    )


def rows_of(update: Update, values: list[Any], area: StagingArea, attempt: TransactionAttempt) -> Rows:
    """The rows of an update: one per key, or, if the state has a reducer, all of them in their order.

    That is the order of the map indexes, of the files of an output, and of the rows in each of these. The output of a
    single application is already aggregated (the state refuses it otherwise) and is streamed; anything else is combined
    in memory.

    :raises StagingError: a reference whose files are not there whole.
    :raises StateError: rows that do not fit the state.
    """
    if len(values) == 1 and is_ref(values[0]):
        return _read(values[0], update, area, attempt)
    rows = chain.from_iterable(_rows(value, update, area, attempt) for value in values)
    return rows if has_reducers(update.state) else combined(rows, update.state)


def wanted_columns(state: Any, present: tuple[str, ...]) -> list[str]:
    """The columns that a state takes; of a composite its parts, or the one column that they come as. A reducer takes
    whole rows.
    """
    columns = getattr(state, "columns", None)
    if columns is None:
        return list(present)
    found, reducers = list(columns.keys), reducers_of(columns)
    for name, aggregator in columns.aggregators.items():
        parts = list(aggregator.parts(name)) if name in columns.composites else [name]
        if name not in reducers:
            found += [name] if name in present and not set(parts) & set(present) else parts
    return [*found, *(name for name in present if name not in found)] if reducers else found


def _rows(value: Any, update: Update, area: StagingArea, attempt: TransactionAttempt) -> Iterator[Mapping[str, Any]]:
    if is_ref(value):
        yield from _read(value, update, area, attempt)
    elif isinstance(value, Mapping):
        yield value
    else:
        yield from value or ()


def _read(ref: Any, update: Update, area: StagingArea, attempt: TransactionAttempt) -> Iterator[Mapping[str, Any]]:
    from airflow_tx.staging import read_batches
    from airflow_tx.staging.manifest import open_output

    present = open_output(area, ref, attempt=attempt)[1].columns
    for batch in read_batches(area, ref, columns=wanted_columns(update.state, present), attempt=attempt):
        yield from from_arrow(batch, types_of(batch.schema))
