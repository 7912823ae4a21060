"""The updates that a committer applies to states. Source: trident-state seed (persistentAggregate)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_tx.base.errors import ConfigError
from airflow_tx.state import FencedState, QueryableState, StateUpdate, sharing_a_store


@dataclass(frozen=True, repr=False)
class Update(StateUpdate):
    """An update that adds the output of a task to a state.

    You can pass the update to `state_query` in place of the state.

    :param input: the XComArg of the output. For each mapped instance, its value is a reference to staged rows, a list
        of dicts, or a single dict. None means the rows that all tasks have rejected.
    :param state: the state to write.
    :param writers: "worker", "spark", or "auto".
    :param spark_from_rows: with "auto", the number of rows from which Spark writes, or None for the default.
    :param spark: the connection id or master of the Spark that writes, or None for the Spark of the task that emits
        `input`.
    :param new_values: the name under which the committer outputs the new values, or None if no task reads them.
    :param allow_empty: whether a task that returns nothing counts as zero rows. Otherwise the commit is refused.
    :param together: whether one database transaction writes this update and all other updates with this mark.
    """

    input: Any
    state: FencedState
    writers: str = "auto"
    spark_from_rows: int | None = None
    spark: str | None = None
    new_values: str | None = None
    allow_empty: bool = False
    together: bool = False

    def __repr__(self) -> str:
        source = getattr(self.input, "operator", None)
        name = (
            f"{source.task_id}[{self.input.key!r}]"
            if source is not None
            else type(self.input).__name__
        )
        return f"{self.verb}({name}, state={self.state!r})"

    @property
    def verb(self) -> str:
        """Return the name of the function that creates such an update."""
        if _is_table(self.state):
            return "append"
        takes_rows = isinstance(self.state, FencedState) and self.state.columns is None
        return "partition_persist" if takes_rows else "persistent_aggregate"


def persistent_aggregate(
    input: Any,
    *,
    state: Any,
    keys: Sequence[str] | None = None,
    values: Mapping[str, Any] | None = None,
    kind: str | None = None,
    writers: str = "auto",
    spark_from_rows: int | None = None,
    spark: str | None = None,
    new_values: str | None = None,
    allow_empty: bool = False,
) -> Update:
    """Add the output of a task to a state when the transaction commits (Trident's persistentAggregate).

    :param input: the output of a task, such as ``partial.output["counts"]`` of a SparkBatchOperator, or the result of a
        ``@task`` call. Each row has the key columns and the deltas of the state. A ``@task`` returns a list of dicts.
        The output of a mapped task consists of the rows of all instances. For a state with a reducer, a key may have
        several rows, in order.
    :param state: a state with columns, such as `SqlState`, or without columns. A state without columns is a Trident map
        such as `OpaqueMap`, a Snapshottable, or a StateFactory such as `MemcachedState.opaque(["cache:11211"])`. This
        function opens no state.
    :param keys: for a state without columns, the key columns of the rows; [] keeps one value.
    :param values: for a state without columns, the aggregator of each value column.
    :param kind: the guarantee of your own map or factory; default: its attribute `kind`, otherwise non-transactional.
    :param writers: with "worker", the process of the commit task writes. With "spark", Spark executors write, each for
        a part of the keys. With "auto", Spark writes if one task has staged a large output, the state supports parallel
        writers (SQLite does not), and Spark is configured.
    :param spark_from_rows: the number of rows from which an output is large; default: 500,000 rows, or 256 MiB.
    :param spark: a connection of type spark or spark_connect, a master such as "local[4]" or "spark://host:7077", or
        "sc://host:port". Default: the connection of the task that emitted the output.
    :param new_values: the name of an output, ``commit.output["name"]``, that has the keys of the batch and their values
        after the commit (Trident's newValuesStream).
    :param allow_empty: whether a task that returns None, or emits nothing, counts as zero rows. By default its commit
        is refused unless the batch is empty, since a forgotten ``return`` would lose rows. ``[]`` is always zero rows.
    :raises ConfigError: an argument cannot be used.
    """
    from airflow_tx.state import as_aggregate

    _refuse_table("persistent_aggregate", state)
    state = as_aggregate(state, keys, values, kind)
    if writers not in ("auto", "worker", "spark"):
        remedy = 'Use "auto", "worker" or "spark". With "auto", Spark writes from spark_from_rows= rows on.'
        raise ConfigError(option="persistent_aggregate(writers=)", value=writers, remedy=remedy)
    if spark_from_rows is not None and (spark_from_rows < 1 or writers != "auto"):
        remedy = 'Use a number of rows from 1, with writers="auto".'
        raise ConfigError(
            option="persistent_aggregate(spark_from_rows=)", value=spark_from_rows, remedy=remedy
        )
    if spark is not None and ";" in spark:
        remedy = "Parameters may contain secrets: create a connection of type spark_connect, and pass its id."
        raise ConfigError(
            option="persistent_aggregate(spark=)", value=spark.partition(";")[0], remedy=remedy
        )
    if new_values is not None:
        _check_name(new_values, "persistent_aggregate")
        if not isinstance(state, QueryableState):
            remedy = (
                f"{type(state).__name__} cannot return the values of keys: leave new_values= out."
            )
            raise ConfigError(
                option="persistent_aggregate(new_values=)", value=new_values, remedy=remedy
            )
    return Update(input, state, writers, spark_from_rows, spark, new_values, allow_empty)


def append(input: Any, *, state: Any, allow_empty: bool = False) -> Update:
    """Append the output of a task to a table of a lake or of a database when the transaction commits.

        updates=[append(enriched.output["orders"], state=DeltaTable("s3://lake/orders", partition_by=["day"]))]
        updates=[append(enriched.output["orders"], state=SqlTable("warehouse", table="orders"))]

    Rows of a DeltaTable are written to files in the table's folder before the turn, and the commit publishes these
    files. Spark executors write the rows of ``batch.emit("orders", df)``, and the committer writes the rows that a
    ``@task`` returns. Rows of a SqlTable are inserted by the committer in its turn.

    :param input: the output of a task, such as ``enriched.output["orders"]`` of a SparkBatchOperator, or the result of
        a ``@task`` call. The output of a mapped task consists of the rows of all instances.
    :param state: a `DeltaTable` or a `SqlTable`.
    :param allow_empty: see `persistent_aggregate`.
    :raises ConfigError: the state is not a table.
    """
    if not _is_table(state):
        remedy = "Give a DeltaTable or a SqlTable; for values by key use persistent_aggregate(...)."
        raise ConfigError(option="append(state=)", value=type(state).__name__, remedy=remedy)
    return Update(input, state, "worker", allow_empty=allow_empty)


def rejected_update(state: Any) -> Update:
    """Append the rows that the tasks of a transaction have rejected to a table when the transaction commits.

    :raises ConfigError: the state is not a table.
    """
    try:
        return append(None, state=state)
    except ConfigError:
        remedy = "Give a table that takes rows: rejected=DeltaTable(...)."
        found = getattr(state, "name", None) or type(state).__name__
        raise ConfigError(option="Transaction(rejected=)", value=found, remedy=remedy) from None


def partition_persist(
    input: Any,
    *,
    state: Any,
    updater: Any = None,
    kind: str | None = None,
    partitions: int = 1,
    partition_by: Sequence[str] = (),
    conf: Mapping[str, Any] | None = None,
    new_values: str | None = None,
    allow_empty: bool = False,
) -> Update:
    """Pass a task's output unchanged to a state when the transaction commits (Trident's partitionPersist).

    :param input: the output of a task, see `persistent_aggregate`.
    :param state: with an updater, your own state (`begin_commit`, `commit`), a map, or a StateFactory. Without an
        updater, a state that accepts rows unchanged, such as `SqlGuard`.
    :param updater: a `StateUpdater`, which several writers call concurrently.
    :param kind: the guarantee of your own state; default: its attribute `kind`, otherwise non-transactional.
    :param partitions: the number of writers, which are threads of the committer. A StateFactory creates a state for
        each writer: ``make_state(conf, partition_index, num_partitions)``. Change the number only while no transaction
        is open.
    :param partition_by: the fields of a row that choose its writer. In all transactions, rows with equal fields have
        the same writer (Trident's partitionBy).
    :param conf: the `conf` of ``make_state``; default: empty.
    :param new_values: the name of an output, ``commit.output["name"]``, that has the rows that the updater returns
        (Trident's newValuesStream).
    :param allow_empty: see `persistent_aggregate`.
    :raises ConfigError: an argument cannot be used, or `new_values` is given without an updater.
    """
    from airflow_tx.state import Writers, as_fenced

    _refuse_table("partition_persist", state)
    if new_values is not None:
        _check_name(new_values, "partition_persist")
        if updater is None:
            remedy = "Only an updater emits new values: set updater=."
            raise ConfigError(
                option="partition_persist(new_values=)", value=new_values, remedy=remedy
            )
    if isinstance(partition_by, str):
        remedy = f"Give a list: [{partition_by!r}]."
        raise ConfigError(
            option="partition_persist(partition_by=)", value=partition_by, remedy=remedy
        )
    made = as_fenced(state, updater, kind, Writers(partitions, tuple(partition_by), conf))
    return Update(input, made, "worker", new_values=new_values, allow_empty=allow_empty)


def checked_updates(updates: Iterable[Update]) -> tuple[Update, ...]:
    """Check the list of updates of a committer. The `Transaction` block checks each single update.

    :raises ConfigError: the updates are not a list, or two updates output new values under the same name.
    """
    if not isinstance(updates, Iterable):
        raise ConfigError(
            option="CommitOperator(updates=)", value=updates, remedy="Give a list: updates=[...]."
        )
    found = tuple(updates)
    names = [name for update in found if (name := getattr(update, "new_values", None)) is not None]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            option="new_values",
            value=twice[0],
            remedy="Use different names for the new values of two updates.",
        )
    return found


class DagStates(dict[str, FencedState]):
    """The states that the committers of a DAG update, by name.

    :param dag: the DAG, as parsed from its file.
    """

    def __init__(self, dag: Any) -> None:
        super().__init__(
            (update.state.name, update.state)
            for task in dag.tasks
            for update in getattr(task, "updates", ())
        )
        self.dag = dag


def states_of(dag: Any) -> DagStates:
    """Return the states that the committers of a DAG update, by name."""
    return DagStates(dag)


def written_together(updates: Sequence[Update]) -> tuple[Update, ...]:
    """Mark all updates of one database, so that one database transaction writes them regardless of their size.

    :raises ConfigError: no two updates share a database, two databases have several updates each, or an update uses
        Spark.
    """
    groups = [group for group in sharing_a_store(each.state for each in updates) if len(group) > 1]
    names = [", ".join(state.name for state in group) for group in groups]
    if not groups:
        found = ", ".join(each.state.name for each in updates)
        remedy = "No two of these states are in one SQL database"
        raise _not_together(found, f"{remedy}: set the same conn_id for two states")
    if len(groups) > 1:
        found = " and ".join(names)
        raise _not_together(
            found, "together= works for one database: set the same conn_id for all states"
        )
    for each in updates:
        by_spark = each.writers == "spark" or (each.spark_from_rows or each.spark) is not None
        if each.state in groups[0] and by_spark:
            problem = (
                "The commit task writes this state: leave writers=, spark= and spark_from_rows= out"
            )
            raise _not_together(each.state.name, problem)
    return tuple(
        replace(each, writers="worker", together=True) if each.state in groups[0] else each
        for each in updates
    )


def _not_together(states: str, remedy: str) -> ConfigError:
    option = "CommitOperator(together=True), states"
    return ConfigError(option=option, value=states, remedy=f"{remedy}. Or leave together= out.")


def _is_table(state: Any) -> bool:
    return isinstance(state, FencedState) and state.takes_back_by_txid


def _refuse_table(what: str, state: Any) -> None:
    if _is_table(state):
        remedy = "A table takes rows unchanged: append(output, state=...)."
        raise ConfigError(option=f"{what}(state=)", value=type(state).__name__, remedy=remedy)


def _check_name(name: str, what: str) -> None:
    if not name or name[0] in "_." or name == "return_value":
        remedy = "Use a name that begins with a letter. Airflow reserves `return_value`."
        raise ConfigError(option=f"{what}(new_values=)", value=name, remedy=remedy)
