"""What a committer applies to which state. Source: trident-state seed (persistentAggregate)."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from airflow_tx.errors import ConfigError, StateError
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
    :param writers: "worker", "spark", or "auto"; a number of rows: as "auto", and large from there on.
    :param spark: by which Spark; None: by the one that the task of `input` uses.
    """

    input: Any
    state: FencedState
    writers: str | int = "auto"
    spark: str | None = None

    def __repr__(self) -> str:
        source = getattr(self.input, "operator", None)
        name = f"{source.task_id}[{self.input.key!r}]" if source is not None else type(self.input).__name__
        return f"persistent_aggregate({name}, state={self.state!r})"


def persistent_aggregate(input: Any, *, state: Any, writers: str | int = "auto", spark: str | None = None) -> Update:
    """Add the output of a task to a state when the transaction commits (Trident's persistentAggregate).

    :param input: such as ``partial.output["counts"]`` of a SparkBatchOperator, or what a ``@task`` call gives: a list
        of dicts with the key columns and the deltas of the state; of a mapped task, those of all its instances.
    :param state: such as `SqlState`.
    :param writers: who writes: "worker", the process of the commit task; "spark", executors of Spark, each its own
        keys; "auto", Spark from 500,000 rows or 256 MiB on, if the output is staged by one task, the state takes
        parallel writers (SQLite does not) and there is a Spark. A number: as "auto", from that many rows on.
    :param spark: a connection of type spark or spark_connect, a master such as "local[4]" or "spark://host:7077", or
        "sc://host:port"; by default the connection of the task that emitted the output.
    :raises ConfigError: `writers` or `spark` cannot be used.
    """
    known = writers in ("auto", "worker", "spark") if isinstance(writers, str) else writers > 0
    if not known:
        remedy = 'Use "auto", "worker", "spark", or the number of rows from which on Spark writes.'
        raise ConfigError(option="persistent_aggregate(writers=)", value=writers, remedy=remedy)
    if spark is not None and ";" in spark:
        remedy = "Parameters may be secret, and a DAG file is not: make a connection of type spark_connect of it."
        raise ConfigError(option="persistent_aggregate(spark=)", value=spark.partition(";")[0], remedy=remedy)
    return Update(input, state, writers, spark)


def partition_persist(input: Any, *, state: Any, updater: Any = None, kind: str | None = None) -> Update:
    """Hand a task's output to a state as it is, when the transaction commits (Trident's partitionPersist).

    :param input: see `persistent_aggregate`.
    :param state: with an updater, a state of one's own (`begin_commit`, `commit`); without one, a state that takes rows
        as they are, such as `SqlGuard`.
    :param updater: a `StateUpdater`.
    :param kind: what a state of one's own promises; default: its attribute `kind`, else non-transactional.
    :raises ConfigError: the state cannot take them.
    """
    from airflow_tx.state.persisted import as_fenced

    return Update(input, as_fenced(state, updater, kind), "worker")


def combined(rows: Iterable[Mapping[str, Any]], state: FencedState) -> Iterator[dict[str, Any]]:
    """One row a key: the deltas of rows with the same key are combined by the aggregators of the state. A state without
    columns gets the rows as they are.

    :raises StateError: a row without key, or with deltas that cannot be combined. Nothing else is checked here, the
        state itself does it.
    """
    columns = getattr(state, "columns", None)
    if columns is None:  # it takes rows as they are
        yield from (dict(row) for row in rows)
        return
    kept: dict[tuple[Hashable, ...], dict[str, Any]] = {}
    for number, row in enumerate(rows):
        try:
            key = tuple(row[name] for name in columns.keys)
            if key not in kept:
                kept[key] = dict(columns.expanded(row))
                continue
            row = columns.expanded(row)
            first = kept[key]
            for name, aggregator in columns.values.items():
                first[name] = aggregator.combine(first[name], row[name])
        except (KeyError, TypeError, ValueError, ArithmeticError) as error:
            raise _misfit(state, number, row, error) from None
    yield from kept.values()


def _misfit(state: Any, number: int, row: Any, error: Exception) -> StateError:
    columns = [*state.columns.keys, *state.columns.values]
    return StateError(
        state=state.name,
        problem=f"row {number} = {str(row)[:200]} cannot be used ({type(error).__name__}: {error})",
        remedy=f"Return rows as dicts with the columns {', '.join(columns)}.",
    )
