"""The updates that a committer applies to states. Source: trident-state seed (persistentAggregate)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from airflow_tx.base.errors import ConfigError
from airflow_tx.state import FencedState, QueryableState, StateUpdate, sharing_a_store


@dataclass(frozen=True, repr=False)
class Update(StateUpdate):
    """The output of a task, added to a state; `state_query` may be given it in place of that state.

    :param input: XComArg of a reference to staged output, of rows (dicts), of a row, or of these per mapped instance;
        None: the rows that all tasks have rejected.
    :param writers: "worker", "spark", or "auto".
    :param spark_from_rows: from how many rows on "auto" means Spark; None: what the package takes for large.
    :param spark: by which Spark; None: by the one that the task of `input` uses.
    :param new_values: the output of the committer that its new values become; None: no task reads them.
    :param allow_empty: a task that gives nothing has no rows; without it, it has forgotten to give them.
    :param together: whether it is written in one transaction of the database with all other such updates.
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
        """Name the function that has made it."""
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

    :param input: such as ``partial.output["counts"]`` of a SparkBatchOperator, or what a ``@task`` call gives: a list
        of dicts with the key columns and the deltas of the state; of a mapped task, of all its instances. For a
        state with a reducer, rows: several a key, in their order.
    :param state: such as `SqlState`; or one without columns: a map of Trident's, such as `OpaqueMap`, a Snapshottable,
        or a StateFactory, such as `MemcachedState.opaque(["cache:11211"])`. None is opened here.
    :param keys: of a state without columns: the key columns of the rows; [] keeps one value.
    :param values: of a state without columns: the aggregator of each value column.
    :param kind: what a map or a factory of one's own promises; default: its attribute `kind`, else non-transactional.
    :param writers: who writes: "worker", the process of the commit task; "spark", executors of Spark, each its own
        keys; "auto", Spark if the output is large and staged by one task, the state takes parallel writers (SQLite
        does not) and there is a Spark.
    :param spark_from_rows: from how many rows on the output is large; None: from 500,000 rows or 256 MiB on.
    :param spark: a connection of type spark or spark_connect, a master such as "local[4]" or "spark://host:7077", or
        "sc://host:port"; by default the connection of the task that emitted the output.
    :param new_values: a name: the keys of the batch, with the values that they have after the commit, become an output
        of the committer, ``commit.output["name"]`` (Trident's newValuesStream).
    :param allow_empty: take a task that returns None, or emits nothing, for one that has no rows. Otherwise its commit
        is refused, unless the batch itself is empty: a forgotten ``return`` would lose rows. ``[]`` is no rows, too.
    :raises ConfigError: `keys`, `values`, `kind`, `writers`, `spark_from_rows`, `spark` or `new_values` cannot be used.
    """
    from airflow_tx.state import as_aggregate

    _refuse_table("persistent_aggregate", state)
    state = as_aggregate(state, keys, values, kind)
    if writers not in ("auto", "worker", "spark"):
        remedy = 'Use "auto", "worker", "spark"; from how many rows on Spark writes, spark_from_rows= says.'
        raise ConfigError(option="persistent_aggregate(writers=)", value=writers, remedy=remedy)
    if spark_from_rows is not None and (spark_from_rows < 1 or writers != "auto"):
        remedy = 'Use a number of rows from 1, with writers="auto".'
        raise ConfigError(
            option="persistent_aggregate(spark_from_rows=)", value=spark_from_rows, remedy=remedy
        )
    if spark is not None and ";" in spark:
        remedy = "Parameters may be secret, and a DAG file is not: make a connection of type spark_connect of it."
        raise ConfigError(
            option="persistent_aggregate(spark=)", value=spark.partition(";")[0], remedy=remedy
        )
    if new_values is not None:
        _check_name(new_values, "persistent_aggregate")
        if not isinstance(state, QueryableState):
            remedy = f"{type(state).__name__} cannot be asked for the values of keys, so it has none to give."
            raise ConfigError(
                option="persistent_aggregate(new_values=)", value=new_values, remedy=remedy
            )
    return Update(input, state, writers, spark_from_rows, spark, new_values, allow_empty)


def append(input: Any, *, state: Any, allow_empty: bool = False) -> Update:
    """Append the output of a task to a table of a lake or of a database, row by row, when the transaction commits.

        updates=[append(enriched.output["orders"], state=DeltaTable("s3://lake/orders", partition_by=["day"]))]
        updates=[append(enriched.output["orders"], state=SqlTable("warehouse", table="orders"))]

    Tasks write the rows of a DeltaTable into its folder beforehand: of ``batch.emit("orders", df)`` Spark's executors
    do, of rows that a ``@task`` returns the committer does, before its turn. The commit publishes these files. The rows
    of a SqlTable the committer inserts in its turn.

    :param input: such as ``enriched.output["orders"]`` of a SparkBatchOperator, or what a ``@task`` call gives; of a
        mapped task, the rows of all its instances.
    :param state: a `DeltaTable` or a `SqlTable`.
    :param allow_empty: see `persistent_aggregate`.
    :raises ConfigError: the state is no table.
    """
    if not _is_table(state):
        remedy = "Give a DeltaTable or a SqlTable; for values by key use persistent_aggregate(...)."
        raise ConfigError(option="append(state=)", value=type(state).__name__, remedy=remedy)
    return Update(input, state, "worker", allow_empty=allow_empty)


def rejected_update(state: Any) -> Update:
    """Append the rows that the tasks of a transaction reject to a table.

    :raises ConfigError: the state is no table.
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
    """Give a task's output unchanged to a state, when the transaction commits (Trident's partitionPersist).

    :param input: see `persistent_aggregate`.
    :param state: with an updater, a state of one's own (`begin_commit`, `commit`), a map, or a StateFactory; without
        one, a state that takes rows unchanged, such as `SqlGuard`.
    :param updater: a `StateUpdater`; several writers use it at once.
    :param partitions: how many writers there are, in threads of the committer. A StateFactory makes a state for each:
        ``make_state(conf, partition_index, num_partitions)``. Change the number only while no transaction is open.
    :param partition_by: the fields of a row that choose its writer: rows that are equal in them have the same one, in
        every transaction (Trident's partitionBy).
    :param conf: the `conf` of ``make_state``; default: empty.
    :param kind: what a state of one's own promises; default: its attribute `kind`, else non-transactional.
    :param new_values: a name: the rows that the updater returns become an output of the committer,
        ``commit.output["name"]`` (Trident's newValuesStream).
    :param allow_empty: see `persistent_aggregate`.
    :raises ConfigError: the state cannot take them, or there is no updater that could return rows.
    """
    from airflow_tx.state import Writers, as_fenced

    _refuse_table("partition_persist", state)
    if new_values is not None:
        _check_name(new_values, "partition_persist")
        if updater is None:
            remedy = "Only an updater emits new values: give updater=."
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
    """Check the updates of a committer; what each of them is, the block checks.

    :raises ConfigError: they are no list, or two of them leave new values of one name.
    """
    if not isinstance(updates, Iterable):
        raise ConfigError(
            option="CommitOperator(updates=)", value=updates, remedy="Give a list: updates=[...]."
        )
    found = tuple(updates)
    names = [name for update in found if (name := getattr(update, "new_values", None)) is not None]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(
            option="new_values", value=twice[0], remedy="Two updates of a committer need two names."
        )
    return found


class DagStates(dict[str, FencedState]):
    """The states that the committers of a DAG update, by name.

    :param dag: as its file makes it.
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
    """Let one transaction of their database write all updates that share one, of any size.

    :raises ConfigError: no two share one, two databases have two each, or Spark is to write one of them.
    """
    groups = [group for group in sharing_a_store(each.state for each in updates) if len(group) > 1]
    names = [", ".join(state.name for state in group) for group in groups]
    if not groups:
        found = ", ".join(each.state.name for each in updates)
        remedy = "No two of these states are in one SQL database"
        raise _not_together(found, f"{remedy}: give them one conn_id")
    if len(groups) > 1:
        found = " and ".join(names)
        raise _not_together(found, "One database can be together: give all one conn_id")
    for each in updates:
        by_spark = each.writers == "spark" or (each.spark_from_rows or each.spark) is not None
        if each.state in groups[0] and by_spark:
            problem = "The commit task writes it: leave writers=, spark= and spark_from_rows= out"
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
        remedy = "Begin it with a letter; `return_value` is Airflow's own."
        raise ConfigError(option=f"{what}(new_values=)", value=name, remedy=remedy)
