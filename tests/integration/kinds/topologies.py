"""The list of kinds: a topology for each public source, state, way and fate. A new kind is one entry of `KINDS`.

A source or state is named as a DAG file names it; `{name}` is the topology, `{home}` the folder of its data.
"""

from __future__ import annotations

from dataclasses import dataclass

FILES = 'FileSource("{home}/{name}/*.csv", files_per_batch=1)'
SQL = 'SqlState("tx_state", table="{name}", keys=["key"], values={{"n": Sum()}})'
COLUMNS = 'keys=["key"], values={{"n": Sum()}}'
TABLE = 'SqlTable("tx_state", table="{name}")'
GUARD = 'SqlGuard("tx_state", name="{name}", statements=["INSERT INTO guarded VALUES (:key, :n)"])'
REJECTED = ", rejected=" + TABLE.replace("{name}", "{name}_rejected")
REDIS_MAP = 'RedisMap("redis", prefix="{name}")'


@dataclass(frozen=True)
class Kind:
    """A topology of one kind, and the DAG of the same name.

    :param source: the source, as the DAG file names it.
    :param state: the state likewise; `columns`: what `persistent_aggregate` is told of a state without columns.
    :param verb: the function that makes the update.
    :param options: further arguments of the `Transaction` block.
    :param dag_options: further arguments of the DAG.
    :param way: how its transactions go: a run each, in the lane, in the order of dates, through a commit phase, or
        into several states of one database together.
    :param guard: whether a guard stands behind these states.
    :param fate: what happens to its transactions: the name of a function in `fates.py`.
    :param trickles: whether a row arrives just before a run begins; otherwise there are some from the beginning.
    :param finds: what `find` and the search are asked for.
    """

    name: str
    source: str = FILES
    state: str = SQL
    columns: str = ""
    verb: str = "persistent_aggregate"
    options: str = ""
    dag_options: str = ""
    way: str = "run"
    guard: bool = False
    fate: str = "usual"
    trickles: bool = False
    finds: str = "01.csv"

    @property
    def row(self) -> dict[str, str]:
        """What its task returns beside the number of rows: the key, unless the state has one value."""
        return {} if "keys=[]" in self.columns else {"key": "all"}

    @property
    def dag_file(self) -> str:
        """The text of its DAG file, without the folder of its data."""
        update = f"{self.verb}(counted, state={self.state}{', ' if self.columns else ''}{self.columns})"
        more = "together=True, " if self.way == "moment" else ""
        updates = [update, *self._beside] if self.way == "moment" else [update]
        commit = f'CommitOperator(task_id="commit", {more}updates=[{", ".join(updates)}])'
        block = f"        {commit}\n"
        if self.way == "phase":
            second = self.state.replace("{name}", "{name}_second")
            more = f'CommitOperator(task_id="second", updates=[{self.verb}(counted, state={second})])'
            block = f"        with commit_phase():\n            {commit}\n            {more}\n"
        coordinator = 'coordinator_dag("{name}", lane=True)\n' if self.way == "lane" else ""
        fields = {"dag_options": self.dag_options or "schedule=None", "source": self.source, "options": self.options}
        return _DAG_FILE.format(**fields, commit=block, row=f"{{{self.row}}}") + coordinator

    @property
    def _beside(self) -> tuple[str, ...]:
        """The updates of the other states that its commit writes together with the first."""
        table, guard = TABLE.replace("{name}", "{name}_rows"), GUARD.replace("{name}", "{name}_guard")
        append = f"append(counted, state={table})"
        return (append, f"partition_persist(counted, state={guard})") if self.guard else (append,)

    def text(self, home: str) -> str:
        """The text of its DAG file."""
        return self.dag_file.format(name=self.name, home=home)


_DAG_FILE = """\
from datetime import datetime, timedelta, timezone

from airflow.sdk import DAG, task
from airflow_tx import *
from airflow_tx.state import *
from tests.integration.kinds.own import *

with DAG("{{name}}", {dag_options}, max_active_runs=16) as dag:
    with Transaction(source={source}, max_pending=8{options}) as tx:
        @task
        def count(batch):
            return [{{{{**{row}, "n": len(list(current_batch().read()))}}}}]
        counted = count(tx.batch)
{commit}
"""
_DAILY = 'schedule="@daily", start_date=datetime(2026, 1, 1, tzinfo=timezone.utc), catchup=False'

SOURCES = (
    Kind("files"),
    Kind("files_opaque", 'FileSource("{home}/{name}/*.csv", kind="opaque", target_seconds=60.0)', trickles=True),
    Kind(
        "files_partitioned",
        'PartitionedFileSource("{home}/{name}/*/*.csv", kind="opaque", files_per_batch=1)',
        finds="day=0/01.csv",
    ),
    Kind("memory_rows", "MemorySource(ROWS, per_batch=1, schema='n INT')", finds="a:0"),
    Kind("memory_rows_opaque", "MemorySource(ROWS, per_batch=1, kind='opaque')", finds="a:0"),
    Kind("own_numbers", "OwnNumbers()", finds="0"),
    Kind("own_partitions", "OwnPartitions()", finds="a:0"),
    Kind("own_partitions_opaque", "OwnOpaquePartitions()", finds="a:0"),
    Kind("days", "DataIntervalSource(rows_of_interval)", dag_options=_DAILY, finds="2026-01-02"),
    Kind("parts", "RunPartitionSource(rows_of_partition)", finds="p1"),
    Kind("sql_rows", 'SqlSource("tx_state", "{name}_in", max_rows_per_batch=2)', finds="1"),
    Kind(
        "sql_rows_adaptive",
        'SqlSource("tx_state", "{name}_in", kind="opaque", target_seconds=60.0)',
        trickles=True,
        finds="1",
    ),
    Kind(
        "sql_shards",
        'PartitionedSqlSource("tx_state", ["{name}_in", "{name}_more"], max_rows_per_batch=2)',
        finds="tx_state.{name}_in:1",
    ),
    Kind("redis_list", 'RedisListSource("redis", lists="{name}_in", max_rows_per_batch=1)', finds="redis:{name}_in:0"),
    Kind("redis_stream", 'RedisStreamSource("redis", "{name}_in", max_rows_per_batch=1)', finds="redis:{name}_in:1-1"),
    Kind(
        "redis_numbered",
        'RedisNumberedSource("redis", prefix="{name}_in:", max_rows_per_batch=1)',
        finds="redis:{name}_in::1",
    ),
    Kind("table_read", state=TABLE, verb="append", fate="long_committed"),
    Kind(
        "table_reading",
        'UpstreamSource(SqlTable("tx_state", table="table_read"), topology="table_read", max_transactions=1)',
        fate="reading",
        finds="table_read:1",
    ),
)
"""A topology for each way to read; one reads the table of the one before it."""

STATES = (
    Kind("sql_transactional", fate="brief", state=SQL[:-1] + ', kind="transactional")'),
    Kind(
        "sql_guard",
        state=GUARD,
        verb="partition_persist",
        fate="brief_without_restatement",
    ),
    Kind("redis_values", fate="brief", state=f'RedisState("redis", prefix="{{name}}", {COLUMNS})'),
    Kind(
        "redis_guard",
        state='RedisGuard("redis", prefix="{name}", commands=commands)',
        verb="partition_persist",
        fate="brief_without_restatement",
    ),
    Kind("memcached_values", fate="brief", state='MemcachedState.opaque("cache", prefix="{name}")', columns=COLUMNS),
    Kind("memory_values", fate="brief", state=f'MemoryState("{{name}}", {COLUMNS}, database=DATABASE)'),
    Kind("memory_map", fate="brief", state='OpaqueMap(MemoryMap(MEMORY), name="{name}")', columns=COLUMNS),
    Kind("opaque_map", fate="brief", state=f'OpaqueMap(CachedMap({REDIS_MAP}), name="{{name}}")', columns=COLUMNS),
    Kind("transactional_map", fate="brief", state=f'TransactionalMap({REDIS_MAP}, name="{{name}}")', columns=COLUMNS),
    Kind(
        "non_transactional_map",
        fate="brief",
        state=f'NonTransactionalMap({REDIS_MAP}, name="{{name}}")',
        columns=COLUMNS,
        options=", at_least_once=True",
    ),
    Kind("roll_back_map", fate="brief", state=f'RollBackMap(OpaqueMap({REDIS_MAP}, name="{{name}}"))', columns=COLUMNS),
    Kind(
        "snapshot_map",
        fate="brief",
        state='SnapshottableMap(OpaqueMap(MemcachedMap(CACHES, prefix="{name}"), name="{name}"))',
        columns='keys=[], values={{"n": Sum()}}',
    ),
    Kind("delta_table", fate="brief", state='DeltaTable("{home}/{name}_table")', verb="append"),
    Kind("sql_table", fate="brief", state=TABLE, verb="append"),
)
"""A topology for each way to keep values."""

WAYS = (
    Kind("in_lane", way="lane", fate="laned"),
    Kind(
        "in_order",
        "DataIntervalSource(rows_of_interval, in_order=True)",
        dag_options=_DAILY,
        way="order",
        finds="2026-01-02",
    ),
    Kind("in_phase", way="phase"),
    Kind("rejecting", options=', rejected=DeltaTable("{home}/{name}_rejected")'),
    Kind("in_moment", way="moment", options=REJECTED),
    Kind("half_moment", way="moment", options=REJECTED, guard=True, fate="half_committed"),
)
"""A topology for each way of a transaction."""

FATES = (
    Kind("fresh", fate="fresh"),
    Kind("half_committed", fate="half_committed"),
    Kind("blocked", fate="blocked"),
    Kind("late", fate="late"),
    Kind("with_messages", options=", ackers=2", fate="with_messages"),
    Kind("without_journal", options=", journal=timedelta(0)", fate="fresh"),
    Kind("lossy", "Lossy()", fate="lossy", finds="0"),
    Kind("waiting", fate="waiting"),
    Kind("to_be_restated", fate="to_be_restated"),
    Kind("to_be_skipped", fate="to_be_skipped"),
    Kind("changed_rows", 'FileSource("{home}/{name}/*.csv", files_per_batch=1, kind="opaque")', fate="changed_rows"),
    Kind("yielded", fate="yielded"),
    Kind("rebuilt", fate="rebuilt"),
    Kind("state_lost", fate="state_lost"),
    Kind("emptied", fate="emptied"),
    Kind("unreadable", fate="unreadable"),
    Kind("without_dag", fate="without_dag"),
    Kind("all_committed", fate="all_committed"),
)
"""A topology for each thing that happens to transactions, beside the usual ones."""

KINDS = SOURCES + STATES + WAYS + FATES

LONG_KINDS = (
    Kind(
        "rabbit_queue",
        'RabbitQueueSource("rabbit", "{name}_in", max_rows_per_batch=1)',
        fate="brief_without_restatement",  # a queue gives a message once
        finds="m1",
    ),
    Kind("kafka_topic", 'KafkaSource("kafka", topic="{name}", max_rows_per_batch=1)', finds="{name}-0:0"),
)
"""Topologies whose server takes longer to start than all other topologies together."""
