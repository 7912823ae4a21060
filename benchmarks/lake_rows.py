"""One transaction of many rows into a Delta table: ours through spark-submit, Structured Streaming, a plain write.

Each is a spark-submit of its own, with the same settings, and reads the same Parquet files. The clock runs from the
start of spark-submit to the end of the commit; a second figure leaves the start of the session out. As a program of
spark-submit: stream | plain INPUT TABLE NOTE.
"""

from __future__ import annotations

import os
import shutil
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from airflow_tx.testing.airflow import connection
from benchmarks.peers.stopwatch import Took, adopt_orphans, measured
from tests.servers.jars import DELTA, delta_jars

FILES = 8
TITLES = {
    "ours": "ours, spark-submit and commit",
    "stream": "Structured Streaming, Delta sink",
    "plain": "df.write, txnAppId and txnVersion",
}
_COLUMNS = (
    "id",
    "concat('C', id % 16) AS carrier",
    "concat('D', id % 105) AS dest",
    "concat('N', id % 4043) AS tailnum",
    "CAST(id % 4983 AS INT) AS distance",
    "CAST(id % 180 - 20 AS INT) AS dep_delay",
    "timestamp_seconds(1356998400 + id) AS at",
)
_LATE = "dep_delay > 15 AS late"
_APP = """
import time
from pathlib import Path
from airflow_tx.spark import batch_app

@batch_app
def main(spark, batch):
    source, note = batch.args
    Path(note).write_text(str(time.time()))
    batch.emit("flights", spark.read.parquet(source).selectExpr("*", "{late}"))
"""


@dataclass(frozen=True)
class Written:
    """What one write took.

    :param session: when its session was up, in seconds since 1970.
    """

    took: Took
    session: float
    ended: float

    @property
    def work(self) -> float:
        """The seconds without the start of the session."""
        return self.ended - self.session


def compared(folder: Path, count: int, rounds: int) -> Iterator[str]:
    """Write so many rows by each way in turns, and tell medians."""
    adopt_orphans()
    source = folder / "input"
    make_input(source, count)
    conf = settings(folder)
    found = dict[str, list[Written]]()
    for number in range(rounds):
        for how in TITLES:
            table = folder / f"{how}{number}"
            write = partial(ours, table) if how == "ours" else partial(theirs, how, table)
            found.setdefault(how, []).append(write(source, conf))
            shutil.rmtree(table)
    for how, each in found.items():
        whole = statistics.median(one.took.seconds for one in each)
        work = statistics.median(one.work for one in each)
        processor = statistics.median(one.took.processor for one in each)
        rates = (
            f"{count / whole:10,.0f} rows/s ({whole:.1f} s)   {count / work:10,.0f} without the session ({work:.1f} s)"
        )
        yield f"{TITLES[how]:34}: {rates}   processor {processor:.1f} s   load {each[-1].took.load:.1f}"


def make_input(source: Path, count: int) -> None:
    """Write the rows that all read."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false")
    spark = builder.config("spark.ui.showConsoleProgress", "false").getOrCreate()
    spark.sparkContext.setLogLevel("ERROR")
    frame = spark.range(count, numPartitions=FILES).selectExpr(*_COLUMNS)
    frame.write.option("spark.sql.parquet.outputTimestampType", "TIMESTAMP_MICROS").parquet(str(source))
    spark.stop()


def settings(folder: Path) -> dict[str, str]:
    """The settings of every session."""
    return {
        **DELTA,
        "spark.jars": ",".join(map(str, delta_jars())),
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
        "spark.driver.host": "127.0.0.1",
        "spark.ui.showConsoleProgress": "false",
        "spark.local.dir": str(folder / "local"),
    }


# --- ours ---------------------------------------------------------------------------------------------------------


def ours(folder: Path, source: Path, conf: dict[str, str]) -> Written:
    """Begin a transaction, submit its application, and commit to a new table."""
    from airflow_tx import SparkBatchOperator
    from airflow_tx.state import DeltaTable
    from tests.integration.spark_runs import Topology, update
    from tests.unit.bench import Numbers

    folder.mkdir()
    os.environ["AIRFLOW_HOME"] = str(folder)
    os.environ["AIRFLOW_CONN_SPARK_DEFAULT"] = connection("spark", host="local[2]")
    (folder / "app.py").write_text(_APP.format(late=_LATE))
    table = DeltaTable(folder / "table")
    topology = Topology(Numbers(), folder, str(folder / "dag.py"))
    topology.spec = type(topology.spec)(**{**vars(topology.spec), "tables": {("count", "flights"): table}})
    note = folder / "note"

    def write() -> None:
        run = topology.begin("r1")
        arguments = [str(source), str(note)]
        operator = SparkBatchOperator(
            task_id="count", application="app.py", application_args=arguments, reliable=False, conf=conf
        )
        with _silent():
            run.execute(operator)
            assert run.commit(update(table, "flights", writers="worker")) is None

    return _measured(write, note)


@contextmanager
def _silent() -> Iterator[None]:
    """Drop what the operator repeats of Spark's log."""
    kept = os.dup(1)
    with open(os.devnull, "w") as nowhere:
        os.dup2(nowhere.fileno(), 1)
    try:
        yield
    finally:
        os.dup2(kept, 1)
        os.close(kept)


# --- the others ---------------------------------------------------------------------------------------------------


def theirs(how: str, table: Path, source: Path, conf: dict[str, str]) -> Written:
    """Submit a program that writes with delta-spark."""
    note = Path(f"{table}.note")
    command = ["spark-submit", "--master", "local[2]"]
    for name, value in conf.items():
        command += ["--conf", f"{name}={value}"]
    command += [__file__, how, str(source), str(table), str(note)]
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}

    def write() -> None:
        done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]

    return _measured(write, note)


def _measured(write: Callable[[], None], note: Path) -> Written:
    took = measured(write)
    return Written(took, float(note.read_text()), time.time())


def main(how: str, source: str, table: str, note: str) -> None:
    """Write the rows, in a program of spark-submit."""
    from pyspark.sql import SparkSession

    spark: Any = SparkSession.builder.getOrCreate()
    Path(note).write_text(str(time.time()))
    if how == "stream":
        schema = spark.read.parquet(source).schema
        stream = spark.readStream.schema(schema).parquet(source).selectExpr("*", _LATE)
        writer = stream.writeStream.format("delta").option("checkpointLocation", f"{table}.checkpoint")
        writer.trigger(availableNow=True).start(table).awaitTermination()
    else:
        frame = spark.read.parquet(source).selectExpr("*", _LATE)
        once = {"txnAppId": "flights", "txnVersion": 1}
        frame.write.format("delta").options(**once).mode("append").save(table)
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
