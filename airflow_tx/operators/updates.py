"""What a committer applies to which state. Source: trident-state seed (persistentAggregate)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_tx.errors import StateError
from airflow_tx.state.api import FencedState

if TYPE_CHECKING:
    from airflow_tx.state.columns import Columns


@runtime_checkable
class KeyedState(FencedState, Protocol):
    """A fenced state with key and value columns."""

    columns: Columns


@dataclass(frozen=True, repr=False)
class Update:
    """The output of a task, added to a state.

    :param input: XComArg of a reference to staged output, of rows (dicts), of a row, or of these per mapped instance.
    """

    input: Any
    state: KeyedState

    def __repr__(self) -> str:
        source = getattr(self.input, "operator", None)
        name = f"{source.task_id}[{self.input.key!r}]" if source is not None else type(self.input).__name__
        return f"persistent_aggregate({name}, state={self.state!r})"


def persistent_aggregate(input: Any, *, state: Any) -> Update:
    """Add the output of a task to a state when the transaction commits (Trident's persistentAggregate).

    :param input: such as ``partial.output["counts"]`` of a SparkBatchOperator, or what a ``@task`` call gives: a list
        of dicts with the key columns and the deltas of the state; of a mapped task, those of all its instances.
    :param state: such as `SqlState`.
    """
    return Update(input, state)


def combined(rows: Iterable[Mapping[str, Any]], state: KeyedState) -> Iterator[dict[str, Any]]:
    """One row a key: the deltas of rows with the same key are combined by the aggregators of the state.

    :raises StateError: a row without key, or with deltas that cannot be combined. Nothing else is checked here, the
        state itself does it.
    """
    columns = state.columns
    kept: dict[tuple[Hashable, ...], dict[str, Any]] = {}
    for number, row in enumerate(rows):
        try:
            key = tuple(row[name] for name in columns.keys)
            if key not in kept:
                kept[key] = dict(row)
                continue
            first = kept[key]
            for name, aggregator in columns.values.items():
                first[name] = aggregator.combine(first[name], row[name])
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise _misfit(state, number, row, error) from None
    return iter(kept.values())


def _misfit(state: KeyedState, number: int, row: Any, error: Exception) -> StateError:
    columns = [*state.columns.keys, *state.columns.values]
    return StateError(
        state=state.name,
        problem=f"row {number} = {str(row)[:200]} cannot be used ({type(error).__name__}: {error})",
        remedy=f"Return rows as dicts with the columns {', '.join(columns)}.",
    )
