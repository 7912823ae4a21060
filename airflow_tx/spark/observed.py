"""Count and digest rows with Spark observations, in the jobs that read or write the rows.

An observation counts the rows that pass a place in a plan in one execution. This module reports only exact counts. It
reports no count if rows may pass the place twice, in a repeated stage or in the sample before a sort. It also reports
no count if a plan contains the place twice, or if the optimizer removes the place. Only executions that write an output
are counted. A preview of some rows is not counted.

A Spark Connect server does not report repeated stages. If the number of rows is known, a count that differs shows a
repeated stage, see "Rows" in docs/protocol.md. Otherwise each row gets a number.
"""

from __future__ import annotations

import json
import re
import threading
import uuid
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_tx.base.rows import COLUMN_TYPES
from airflow_tx.ledger import (
    COUNT,
    OutputName,
    RowsDigest,
    RowsRead,
    column_marks,
    form_of_columns,
    in_words,
)

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from pyspark.sql import Column, DataFrame
    from pyspark.sql.types import DataType

Metrics = Mapping[str, Any]

_ID = "airflow_tx_row_id"
# The number of bits in Spark's row id for the number of the row in its partition.
_ROW_BITS = 33
# The maximum number of partitions for which a repeated partition can be detected.
_PARTITIONS = 128
_LOW = 0xFFFFFFFF
_MARKS = {each.ddl.lower(): each.hashed for each in COLUMN_TYPES.values()}
# If an executed plan contains one of these words, rows may be counted twice. Spark samples rows
# before a sort, and may compute cached rows again.
_REPEATED = ("rangepartitioning", "InMemoryTableScan")
# If a plan of Spark or of a client contains one of these words, Spark may read fewer rows. A join
# with an empty side needs no rows of the other side. SQL text may contain joins, and only the
# server parses it.
_JOINS = (
    "Join ",
    "Intersect",
    "Except",
    "exists#",
    " IN (list#",
    "join {",
    "TYPE_EXCEPT",
    "TYPE_INTERSECT",
    "subquery",
    "sql",
)
# If a plan or SQL text contains one of these words in lower case, Spark may stop reading early. In
# a client's plan, the line ends of SQL text are escaped.
_LIMITS = re.compile(r"limit(?:[\s{(/]|\\[nrt])|tablesample")
# Nodes of a client's plan that decide whether a limit leaves out rows of a place. The nearest such
# node above the place decides.
_DECIDES = ("aggregate", "limit", "with_relations")
# Texts in a client's plan. Only SQL texts and names of observations are needed.
_TEXTS = re.compile(r'(query: )?"(airflow_tx_)?(?:[^"\\]|\\.)*"')
# The maximum size of a client's plan that is searched, in bytes. A larger plan contains rows.
_LARGEST_PLAN = 2**20
# The node of a client's plan that defines relations which may be used in several places.
_NAMED = "with_relations {"
_MANY = "SQL text or a subquery on Spark Connect may have used rows more than once from"
_TWICE = "one output contains the rows of two reads of"
_INEXACT = "a sort, a cache or a repeated stage may have processed rows twice, or never, from"
_LIMITED = "Spark Connect may have repeated a stage with a limit, unseen, for rows from"
_UNSEEN = "Spark did not count the rows that one output used from"
# Spark writes INT96 by default, which has no time zone.
_MOMENTS = ("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS")
# Maximum number of seconds to wait for the report of an ended execution.
_PATIENCE = 10.0


@dataclass(frozen=True)
class _Place:
    """A place in a plan where rows are counted.

    :param name: the name of the observation.
    :param outputs: the names of the outputs that are read at this place, or () for the batch.
    :param form: the form of the digest.
    :param rows: the number of rows to read, or None if it is unknown.
    :param hidden: whether only the number of rows can show that a stage was repeated.
    """

    name: str
    outputs: tuple[OutputName, ...]
    form: str
    rows: int | None = None
    hidden: bool = False

    def judge(self, metrics: Metrics, plan: str) -> RowsRead | str:
        """Return the reading of an execution at this place, or the reason if its count is not exact."""
        limited = _is_limited(plan)
        at_least = _may_stop(plan)
        if not _is_exact(metrics):
            return _INEXACT
        found = _digest(metrics, self.form)
        if self.hidden and self.rows is not None and found.rows > self.rows:
            return _INEXACT
        fewer = self.rows is not None and found.rows < self.rows
        # The limit may have left out the same number of rows as a repeated stage has added.
        if self.hidden and limited and found.rows and not fewer and not self._is_aggregated(plan):
            return _LIMITED
        left_out = fewer and (limited or not at_least)
        stopped = left_out or (limited and self.rows is None)
        # If one side of a join is empty, Spark reads no rows of the other side, even without a
        # limit.
        stopped = stopped and not (at_least and not found.rows)
        return RowsRead(found, self.outputs, at_least, stopped, more=stopped and fewer)

    def _is_aggregated(self, plan: str) -> bool:
        """Return whether an aggregation reads all rows before a limit is applied.

        If an aggregation only groups rows, Spark may apply a limit of one row before it.
        """
        depth = len(plan)
        for line in reversed(plan[: plan.find(self.name)].splitlines()):
            indent = len(line) - len(line.lstrip())
            if indent < depth:
                depth = indent
                if (above := line.strip(" {")) in _DECIDES:
                    return above == "aggregate" and "limit: 1\n" not in plan
        return False


class RowsObserver:
    """Observes the rows that an application reads and writes."""

    def __init__(self) -> None:
        self._places: dict[str, _Place] = {}
        self._fullest: dict[tuple[OutputName, ...], RowsRead] = {}
        self._unproven: dict[tuple[OutputName, ...], str] = {}
        self._executions: _Executions | None = None

    def reading(
        self,
        df: DataFrame,
        outputs: tuple[OutputName, ...] = (),
        *,
        columns: Sequence[str] | None = None,
        rows: int | None = None,
    ) -> DataFrame:
        """Observe rows that the application reads. If it reads them several times, the longest reading counts.

        :param df: the rows.
        :param outputs: the names of the outputs that are read as one input, or () for the batch.
        :param columns: the columns to hash, or None for all columns. Spark reads these columns even if the application
            does not use them.
        :param rows: the exact number of rows of `df`, or None. If the application reads fewer, the commit is
            refused.
        """
        name = f"airflow_tx_read_{uuid.uuid4().hex}"
        hashed = df.columns if columns is None else columns
        form, sums = _sums(df, hashed)
        hidden = is_connect(df)
        self._places[name] = _Place(name, outputs, form, rows, hidden and rows is not None)
        return _marked(df, name, sums) if hidden and rows is None else df.observe(name, *sums)

    def write(self, df: DataFrame, uri: str) -> RowsDigest:
        """Write rows as Parquet in one Spark job. Record which of the observed rows the job has read.

        :return: the number and the digest of the written rows, according to Spark.
        """

        def write(rows: DataFrame) -> None:
            rows.write.mode("overwrite").option(*_MOMENTS).parquet(uri)

        return self.save(df, df.columns, write)

    def save(
        self, df: DataFrame, columns: Sequence[str], write: Callable[[DataFrame], None]
    ) -> RowsDigest:
        """Call a function that writes rows in one Spark job. Record which of the observed rows the job has read.

        :param columns: the columns to hash.
        :param write: a function that writes the rows of a DataFrame in one Spark job.
        """
        return self._executed(df, columns, write)[0]

    def fetch(self, df: DataFrame) -> tuple[RowsDigest, pa.Table]:
        """Fetch rows from a server in one Spark job. Record which of the observed rows the job has read.

        :return: the number and the digest of the rows according to Spark, and the rows.
        """
        return self._executed(df, df.columns, lambda observed: observed.toArrow())

    def read(self) -> list[RowsRead]:
        """Return the readings whose rows were counted exactly."""
        return list(self._fullest.values())

    def unproven(self) -> dict[tuple[OutputName, ...], str]:
        """Return the reasons why rows were not counted exactly, by the outputs that were read, or () for the batch."""
        outputs_read = [place.outputs for place in self._places.values()]
        unseen = {outputs: _UNSEEN for outputs in outputs_read if outputs not in self._fullest}
        return {
            outputs: f"{why} {in_words(outputs)}"
            for outputs, why in {**unseen, **self._unproven}.items()
        }

    def close(self) -> None:
        """Remove the listener from the session."""
        if self._executions is not None:
            self._executions.close()

    def _executed(
        self, df: DataFrame, columns: Sequence[str], execute: Callable[[DataFrame], Any]
    ) -> tuple[RowsDigest, Any]:
        from pyspark.sql import Observation

        form, sums = _sums(df, columns)
        name = f"airflow_tx_written_{uuid.uuid4().hex}"
        # On a server, an `Observation` would need another request, so only its name is used.
        observation = None if is_connect(df) else Observation(name)
        observed = df.observe(name if observation is None else observation, *sums)
        plan = _plan(observed)
        once = [each for each in self._places if plan.count(each) == 1]
        if once and self._executions is None and observation is not None:
            self._executions = _Executions.of(observed)
        before = _jobs(observed)
        result = execute(observed)
        reports: Mapping[str, Metrics] = {}
        if observation is None:
            execution = observed.executionInfo
            reports = {} if execution is None else dict(execution.flows)
        elif once and self._executions is not None and _ran_once(observed, before):
            reports = self._executions.with_metric(name)
        for each in once:
            self._note(each, reports.get(each, {}), plan)
        self._note_places(plan)
        return _digest(reports[name] if observation is None else observation.get, form), result

    def _note(self, name: str, metrics: Metrics, plan: str) -> None:
        place = self._places[name]
        read = place.judge(metrics, plan)
        if isinstance(read, str):
            self._unproven[place.outputs] = read
            return
        before = self._fullest.get(place.outputs)
        if before is None or (before.found.rows, not before.at_least) < (
            read.found.rows,
            not read.at_least,
        ):
            self._fullest[place.outputs] = read

    def _note_places(self, plan: str) -> None:
        """Record readings that occur twice in the plan of one output, whose rows may be in the output twice."""
        places = Counter[tuple[OutputName, ...]]()
        for name, place in self._places.items():
            places[place.outputs] += plan.count(name)
        if _NAMED in plan:
            self._unproven |= {outputs: _MANY for outputs, count in places.items() if count}
        self._unproven |= {outputs: _TWICE for outputs, count in places.items() if count > 1}


def observed_once(
    df: DataFrame, columns: Sequence[str], rows: int
) -> tuple[DataFrame, Callable[[], RowsDigest | None]]:
    """Observe the rows that one action reads. The plan must have no limit and no join.

    :param df: the rows.
    :param columns: the columns to hash.
    :param rows: the number of rows of `df`.
    :return: the DataFrame to read, and a function that returns the rows read after the action, or None if they are
        unknown.
    """
    from pyspark.sql import Observation

    observation = Observation(f"airflow_tx_read_{uuid.uuid4().hex}")
    form, sums = _sums(df, columns)

    def found() -> RowsDigest | None:
        read = _Place("", (), form, rows, hidden=True).judge(observation.get, "")
        return read.found if isinstance(read, RowsRead) else None

    return df.observe(observation, *sums), found


def _marked(df: DataFrame, name: str, sums: Sequence[Column]) -> DataFrame:
    """Observe rows whose number is unknown. Their row numbers show whether a partition was repeated.

    This function is used if Spark does not report repeated stages. It is slower than all other observations.
    """
    from pyspark.sql import functions as F

    # Count the partitions that were started, and the distinct ones. If a partition was computed
    # again, the first number is larger.
    first = f"({_ID} & {(1 << _ROW_BITS) - 1}L) = 0"
    bit = f"shiftleft(1L, CAST(shiftright({_ID}, {_ROW_BITS}) AS INT))"
    words = (
        f"bit_count(coalesce(bit_or(IF({first} AND shiftright({_ID}, {_ROW_BITS + 6}) = {word}, {bit}, NULL)), 0L))"
        for word in range(_PARTITIONS // 64)
    )
    exact = (
        F.expr(f"count_if({first})").alias("begun"),
        F.expr(" + ".join(words)).alias("partitions"),
    )
    numbered = df.withColumn(_ID, F.monotonically_increasing_id())
    return numbered.observe(name, *sums, *exact).drop(_ID)


def _is_exact(metrics: Metrics) -> bool:
    return "rows" in metrics and metrics.get("begun") == metrics.get("partitions")


class _Executions:
    """A listener that stores the observations of all executions of a classic session.

    An `Observation` stores only the first.
    """

    def __init__(self, manager: Any) -> None:
        self._manager = manager
        self._heard: list[dict[str, Metrics]] = []
        self._news = threading.Condition()

    @classmethod
    def of(cls, df: DataFrame) -> _Executions | None:
        """If the JVM cannot call Python functions, rows are not counted, with no other effect."""
        # If the JVM cannot call Python functions, rows are not counted. There is no other effect.
        with suppress(Exception):
            from pyspark.java_gateway import ensure_callback_server_started

            session: Any = df.sparkSession
            start: Any = ensure_callback_server_started
            start(session.sparkContext._gateway)
            made = cls(session._jsparkSession.listenerManager())
            made._manager.register(made)
            return made
        return None

    def with_metric(self, name: str) -> Mapping[str, Metrics]:
        """Return all metrics of the execution with the metric `name`. They arrive shortly after its end."""
        with self._news:
            self._news.wait_for(lambda: any(name in heard for heard in self._heard), _PATIENCE)
            return next((heard for heard in self._heard if name in heard), {})

    def close(self) -> None:
        with suppress(Exception):
            self._manager.unregister(self)

    # The JVM calls these methods.

    def onSuccess(self, function: str, execution: Any, nanoseconds: int) -> None:
        metrics = execution.observedMetrics().iterator()
        found = {}
        while metrics.hasNext():
            named = metrics.next()
            found[str(named._1())] = json.loads(named._2().json())
        plan = execution.executedPlan().toString()
        with self._news:
            self._heard.append(
                {name: {} for name in found} if any(word in plan for word in _REPEATED) else found
            )
            self._news.notify_all()

    def onFailure(self, function: str, execution: Any, error: Any) -> None:
        pass

    class Java:
        implements = ("org.apache.spark.sql.util.QueryExecutionListener",)


def _sums(df: DataFrame, columns: Sequence[str]) -> tuple[str, Sequence[Column]]:
    """Return columns that count the rows of a DataFrame and add up their hashes.

    The hashes are split, so no sum overflows.
    """
    from pyspark.sql import functions as F

    count = F.count(F.lit(1)).alias("rows")
    names = sorted(columns)
    known = [name.lower() for name in df.columns]
    hashed_types = all(_is_hashed(field.dataType) for field in df.schema if field.name in columns)
    if not names or len(set(known)) < len(known) or not hashed_types:
        return COUNT, [count]
    types = {field.name.lower(): field.dataType for field in df.schema}
    parts: list[Column] = []
    for name in names:
        column = F.col("`" + name.replace("`", "``") + "`")
        marks = [
            F.lit(mark).cast("bigint") for mark in column_marks(name, _hashed(types[name.lower()]))
        ]
        parts += [F.when(column.isNull(), marks[1]).otherwise(marks[0]), column]
    hashed = F.xxhash64(*parts)
    low = hashed.bitwiseAND(F.lit(_LOW))
    high = F.shiftrightunsigned(hashed, 32)
    return form_of_columns(names), [
        count,
        F.try_sum(low).alias("low"),
        F.try_sum(high).alias("high"),
    ]


def _hashed(kind: DataType) -> str:
    """Return the type name for `column_marks`. Types that readers may see for the same column have the same name."""
    name = kind.simpleString()
    if name.startswith("decimal("):
        return f"decimal {name.rstrip(')').partition(',')[2]}"
    return _MARKS.get(name, name.partition("<")[0])


def _is_hashed(kind: DataType) -> bool:
    from pyspark.sql.types import ArrayType, StructType

    if isinstance(kind, ArrayType):
        return _is_hashed(kind.elementType)
    if isinstance(kind, StructType):
        return all(_is_hashed(field.dataType) for field in kind)
    name = kind.simpleString()
    return name in _MARKS or name.startswith("decimal(")


def _digest(metrics: Metrics, form: str) -> RowsDigest:
    rows = metrics["rows"]
    low = metrics.get("low")
    high = metrics.get("high")
    if form == COUNT or (rows and (low is None or high is None)):
        return RowsDigest(rows)
    return RowsDigest(rows, ((high or 0) * 2**32 + (low or 0)) % 2**64, form)


def _jobs(df: DataFrame) -> set[int]:
    """Return the jobs of this thread's group. The result is empty on Spark Connect, which does not expose jobs."""
    if is_connect(df):
        return set()
    context = df.sparkSession.sparkContext
    return set(
        context.statusTracker().getJobIdsForGroup(context.getLocalProperty("spark.jobGroup.id"))
    )


def _ran_once(df: DataFrame, before: set[int]) -> bool:
    """Return whether Spark has not repeated any stage or task in the jobs after `before`.

    :param before: the jobs to ignore.
    """
    tracker = df.sparkSession.sparkContext.statusTracker()
    jobs = (tracker.getJobInfo(job) for job in _jobs(df) - before)
    stages = [
        tracker.getStageInfo(stage) for job in jobs if job is not None for stage in job.stageIds
    ]
    return not any(
        stage.currentAttemptId or stage.numFailedTasks for stage in stages if stage is not None
    )


def _may_stop(plan: str) -> bool:
    """Return whether a plan has an operation, such as a join, for which Spark may skip rows."""
    return any(word in plan for word in _JOINS)


def _is_limited(plan: str) -> bool:
    return _LIMITS.search(plan.lower()) is not None


def _plan(df: DataFrame) -> str:
    found: Any = df
    if is_connect(df):
        message = found._plan.to_proto(found.sparkSession.client)
        if message.ByteSize() > _LARGEST_PLAN:
            return ""
        return _TEXTS.sub(lambda text: text[0] if text[1] or text[2] else "", str(message))
    return str(found._jdf.queryExecution().analyzed().toString())


def is_connect(df: DataFrame) -> bool:
    return type(df).__module__.startswith("pyspark.sql.connect.")
