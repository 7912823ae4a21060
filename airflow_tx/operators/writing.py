"""How the rows of an update get into its state: by this process, or by Spark's executors; in flat memory either way."""

from __future__ import annotations

import copy
import hashlib
import json
import math
import os
import re
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import suppress
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import ConfigError, StateError, TxError
from airflow_tx.operators.acked import is_ref
from airflow_tx.operators.outputs import Rows, rows_of, wanted_columns
from airflow_tx.operators.updates import Update
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.protocol.records import digest
from airflow_tx.state.api import FencedState, Grant, StateKind

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]

    from airflow_tx.spark.persist import WriteJob
    from airflow_tx.staging import StagingArea

# From here on `writers="auto"` means Spark, if there is one.
LARGE_ROWS = 500_000
LARGE_BYTES = 256 * 2**20
# A state remembers the keys of one write, to find those that come twice: that many.
ROWS_A_WRITE = 100_000
ROWS_A_WRITER = 100_000
MOST_WRITERS = 200
_MASTER = re.compile(r"local(\[.*\])?$|yarn(-client)?$|(spark|k8s|mesos)://")
_OWN_CONNECTION = "airflow_tx_writers"


class StagedRows:
    """The rows of one staged output: read anew whenever somebody goes through them, and counted beforehand.

    :raises StagingError: exactly this output is not there whole.
    """

    def __init__(self, area: StagingArea, ref: Mapping[str, Any], state: Any, attempt: TransactionAttempt) -> None:
        from airflow_tx.staging.manifest import open_output

        self._area, self._ref, self._attempt = area, ref, attempt
        self.where, self.output = open_output(area, ref, attempt=attempt)
        self.columns = wanted_columns(state, self.output.columns)
        # Once more, for the columns: the error names those that are missing.
        open_output(area, ref, columns=self.columns, attempt=attempt)

    def __iter__(self) -> Iterator[dict[str, Any]]:
        from airflow_tx.staging import read_output

        return read_output(self._area, self._ref, columns=self.columns, attempt=self._attempt)

    def __len__(self) -> int:
        return self.output.rows

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for file in self.output.files)

    @property
    def files(self) -> list[str]:
        """Its files, as Spark's readers take them: with wildcards in their names taken literally."""
        return [
            re.sub(r"([*?\[\]{}\\])", r"\\\1", self.where.files.spark_uri(f"{self._ref['path']}/{file.name}"))
            for file in self.output.files
            if file.rows
        ]

    def schema(self) -> pa.Schema:
        """The columns and their types, as pyarrow reads them."""
        import pyarrow as pa
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        file = next(file for file in self.output.files if file.rows)
        with self.where.files.open(f"{self._ref['path']}/{file.name}") as opened:
            found = pq.ParquetFile(opened).schema_arrow
        return pa.schema([pa.field(name, found.field(name).type) for name in self.columns])


def rows_to_write(update: Update, values: list[Any], area: StagingArea, attempt: TransactionAttempt) -> Rows:
    """The rows of an update, as `rows_of` gives them; those of a transactional state can be gone through twice.

    :raises StagingError, StateError: see `rows_of`.
    """
    if len(values) == 1 and is_ref(values[0]):
        return StagedRows(area, values[0], update.state, attempt)
    rows = rows_of(update, values, area, attempt)
    return list(rows) if update.state.kind is StateKind.TRANSACTIONAL else rows


def output_digest(rows: Rows, update: Update) -> str:
    """Digest of keys and deltas, whatever their order: a transactional state needs the same on every replay.

    It is a sum of one digest a row, so no row is kept.
    """
    # A composite comes as one column or as its parts: then whatever is there.
    columns = getattr(update.state, "columns", None)
    names = [*columns.keys, *columns.values] if columns is not None and not columns.composites else []
    count = summed = 0
    for row in rows:
        text = repr([row.get(name) for name in names] if names else sorted(row.items()))
        summed += int.from_bytes(hashlib.blake2b(text.encode(), digest_size=16).digest(), "big")
        count += 1
    return digest([count, f"{summed % 2**128:032x}"])


def fits_one_write(update: Update, rows: Rows) -> bool:
    """Whether these rows go into the state at once, by this process."""
    return not _in_portions(update, rows) and spark_of(update, rows) is None


def write_update(update: Update, grant: Grant, rows: Rows, *, dag_file: str, log: Any) -> int:
    """Write under a fence that the grant has raised on every state; how many keys.

    :param dag_file: beside it lie modules that a driver on this machine may import.
    :raises StateError, StateUnavailable: what is written counts once, when the commit is tried again.
    :raises WritersFailed: the Spark job ended without an answer; likewise.
    """
    spark = spark_of(update, rows)
    if spark is not None:
        assert isinstance(rows, StagedRows)
        log.info("State %s: %d rows are written by Spark (%s)", update.state.name, len(rows), _shown(spark))
        return _by_spark(update.state, grant, rows, spark, dag_file, log)
    if _in_portions(update, rows):
        return _in_turns(update.state, grant, rows)
    return update.state.write(grant, rows)


# --- the choice ---------------------------------------------------------------------------------------------------


def spark_of(update: Update, rows: Rows) -> str | None:
    """By which Spark the rows are written; None: by this process.

    :raises ConfigError: it has to be Spark, and cannot be.
    """
    forced = update.writers == "spark"
    if update.writers == "worker" or (isinstance(rows, list) and not rows):
        return None
    if not forced and not (isinstance(rows, StagedRows) and _is_large(update, rows)):
        return None
    spark = update.spark or getattr(getattr(update.input, "operator", None), "conn_id", None)
    problem = ""
    if not isinstance(rows, StagedRows):
        problem = "Spark writes the staged output of one task; rows that tasks return are combined here"
    elif not len(rows):
        return None
    elif not spark:
        problem = 'there is no Spark: the output is of no Spark task; say which one by spark="spark_default"'
    elif portable(update.state) is None:
        problem = f"state {update.state.name!r} takes one writer at a time, as SQLite does"
    if problem and forced:
        raise ConfigError(
            option="persistent_aggregate(writers=)", value="spark", remedy=f"{problem[0].upper()}{problem[1:]}."
        )
    return None if problem else spark


def portable(state: Any) -> FencedState | None:
    """A copy of a state that executors can use, where there is no Airflow: with its address and password.

    :return: None: the state takes no parallel writers, or none that are elsewhere.
    """
    if hasattr(state, "for_executors"):
        made: FencedState | None = state.for_executors()
        return made
    from airflow_tx.state.backing.sql import SqlState
    from airflow_tx.state.backing.sql_connection import parsed_url, url_of_connection

    if not isinstance(state, SqlState):
        return None
    own = state.__getstate__()["_url"]
    url = parsed_url(own) if own is not None else url_of_connection(state.conn_id)
    if url.get_backend_name() == "sqlite":
        return None
    copied = copy.copy(state)
    copied._url = url.render_as_string(hide_password=False)
    return copied


def _is_large(update: Update, rows: StagedRows) -> bool:
    if isinstance(update.writers, int):
        return len(rows) >= update.writers
    return len(rows) >= LARGE_ROWS or rows.size >= LARGE_BYTES


def _in_portions(update: Update, rows: Rows) -> bool:
    return isinstance(rows, StagedRows) and len(rows) > ROWS_A_WRITE and bool(getattr(update.state, "columns", None))


def _shown(spark: str) -> str:
    return spark.partition(";")[0]


# --- by this process ----------------------------------------------------------------------------------------------


def _in_turns(state: FencedState, grant: Grant, rows: Rows) -> int:
    """One chunk after another, each in a store transaction of its own: memory, locks and undo stay small."""
    iterator, written, chunk = iter(rows), 0, 0
    for first in iterator:
        portion = chain([first], islice(iterator, ROWS_A_WRITE - 1))
        written += state.write(grant, portion, chunk=chunk, complete=False)
        chunk += 1
    state.write(grant, (), complete=True)
    return written


# --- by Spark -----------------------------------------------------------------------------------------------------


def _by_spark(state: Any, grant: Grant, rows: StagedRows, spark: str, dag_file: str, log: Any) -> int:
    from airflow_tx.spark.persist import WriteJob, seal, total

    copied = portable(state)
    assert copied is not None
    keys = list(state.columns.keys)
    partitions = min(max(2, math.ceil(len(rows) / ROWS_A_WRITER)), MOST_WRITERS) if keys else 1
    name = f"{grant.topology} {grant.token.txid}.{grant.token.attempt} {state.name}"
    job = WriteJob(name, rows.files, rows.columns, keys, partitions)
    sealed = seal(copied, grant, rows.schema())
    url = _connect_url(spark)
    told = _on_server(url, spark, job, sealed) if url else _by_driver(spark, job, sealed, dag_file, state, grant)
    written = total(told)
    if written != len(rows):
        problem = f"Spark's executors wrote {written} of {len(rows)} rows"
        raise StateError(state=state.name, problem=problem, remedy="Clear the whole run.")
    state.write(grant, (), complete=True)
    return written


def _connect_url(spark: str) -> str | None:
    """The address of a Spark Connect server, if it is one."""
    if spark.startswith("sc://"):
        return spark
    if _MASTER.match(spark):
        return None
    from airflow_tx.operators.connect import connect_url
    from airflow_tx.operators.process import _connection

    return connect_url(spark) if _connection(spark).conn_type == "spark_connect" else None


def _on_server(url: str, spark: str, job: WriteJob, sealed: bytes) -> list[dict[str, Any]]:
    from airflow_tx.spark.connect import session
    from airflow_tx.spark.persist import run

    with session(url, tag=job.name, server=_shown(spark)) as connected:
        return run(connected, job, sealed)


def _by_driver(
    spark: str, job: WriteJob, sealed: bytes, dag_file: str, state: FencedState, grant: Grant
) -> list[dict[str, Any]]:
    from airflow.providers.apache.spark.hooks.spark_submit import SparkSubmitHook

    from airflow_tx.operators.process import _connection
    from airflow_tx.spark import persist
    from airflow_tx.spark.submit import driver_environment

    conn_id = spark
    if _MASTER.match(spark):
        conn_id = _OWN_CONNECTION
        # This process belongs to the one task.
        os.environ[f"AIRFLOW_CONN_{conn_id.upper()}"] = json.dumps({"conn_type": "spark", "host": spark})
    connection = _connection(conn_id)
    binary = connection.extra_dejson.get("spark-binary") or "spark-submit"
    local = (connection.host or "").startswith("local")
    os.environ.update(driver_environment(os.environ, dag_file=dag_file, binary=binary, local=local))
    with tempfile.TemporaryDirectory(prefix="airflow-tx-writers-") as folder:
        persist.write_job(f"{folder}/job", job)
        # Where the driver is on another machine, the pipe would not reach it.
        hook = SparkSubmitHook(conn_id=conn_id, name=job.name, application_args=[folder], deploy_mode="client")
        with persist.handed_over(f"{folder}/pipe", sealed):
            try:
                hook.submit(str(Path(persist.__file__)))
                return list(json.loads(Path(folder, "told").read_text()))
            except TxError:
                raise
            except Exception as error:
                reason = str(error).strip().splitlines()
                told = reason[0] if reason else type(error).__name__
                raise persist.WritersFailed(state=state.name, txid=grant.txid, reason=told) from error
            finally:
                with suppress(Exception):
                    hook.on_kill()
