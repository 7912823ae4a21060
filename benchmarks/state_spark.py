"""One update of many keys, written by Spark's executors into PostgreSQL: a fenced state, and Structured Streaming's
`foreachBatch` with an upsert by each partition.

Both read the same Parquet files, four writers each, in turn: new keys, then the same keys again. The upsert has neither
fence nor previous values, and counts a batch twice if it dies behind it. Usage: script/bench state spark [keys]
"""

from __future__ import annotations

import logging
import os
import statistics
import sys
import tempfile
import time
import uuid
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

from airflow_tx.ledger.attempt import Token
from airflow_tx.spark.writers import WriteJob, run_writers, seal, total, written_by
from airflow_tx.state import Grant
from benchmarks import topology
from benchmarks.figures import machine, quiet
from tests.servers.postgres import LocalPostgres

KEYS = 1_000_000
WRITERS = 4
ROUNDS = 3
COLUMNS = ("key", "n", "total")


class Ours:
    """Commits of a `SqlState` whose rows Spark writes."""

    def __init__(self, spark: Any, url: str, files: list[str], keys: int) -> None:
        self.spark, self.files, self.keys = spark, files, keys
        self.state = topology.state(url, "ours")
        self.incarnation, self.last = uuid.uuid4().hex, dict[str, int]()

    def batch(self, txid: int) -> int:
        """Raise the fence, let the executors write, and complete the grant; how many keys."""
        import pyarrow.parquet as pq  # type: ignore[import-untyped]

        grant = Grant("benchmark", self.incarnation, Token(1, txid, 1, txid, uuid.uuid4().hex), dict(self.last))
        job = WriteJob("benchmark", self.files, self.keys, COLUMNS, ["key"], WRITERS)
        copied = self.state.for_executors()
        assert copied is not None
        self.state.raise_fence(grant)
        answers = run_writers(self.spark, job, seal(copied, grant, pq.read_schema(self.files[0])))
        self.state.write(replace(grant, written=written_by(answers)), (), complete=True)
        self.last[self.state.name] = txid
        return total(answers)[0]


class Theirs:
    """A query of Structured Streaming that takes the same files once more with each batch."""

    def __init__(self, spark: Any, url: str, files: list[str], folder: Path) -> None:
        self.spark, self.url, self.files = spark, url, files
        self.incoming, self.checkpoint = folder / "incoming", folder / "checkpoint"
        self.incoming.mkdir()
        with _connected(url) as connection, connection.cursor() as cursor:
            cursor.execute("CREATE TABLE theirs (key TEXT PRIMARY KEY, n BIGINT, total BIGINT)")

    def batch(self, number: int) -> int:
        """Let the query take the files of one more batch."""
        for file in self.files:
            os.link(file, self.incoming / f"{number}-{Path(file).name}")
        rows = self.spark.readStream.schema("key STRING, n BIGINT, total BIGINT").parquet(str(self.incoming))
        stream = rows.writeStream.foreachBatch(self._upsert).option("checkpointLocation", str(self.checkpoint))
        query = stream.trigger(availableNow=True).start()
        query.awaitTermination()
        return sum(each["numInputRows"] for each in query.recentProgress)

    def _upsert(self, rows: Any, batch_id: int) -> None:
        url = self.url

        def write(partition: Iterable[Any]) -> None:
            from psycopg2.extras import execute_values  # type: ignore[import-untyped]

            with _connected(url) as connection, connection.cursor() as cursor:
                execute_values(
                    cursor,
                    "INSERT INTO theirs AS old VALUES %s ON CONFLICT (key) DO UPDATE SET n = old.n + excluded.n, "
                    "total = old.total + excluded.total",
                    map(tuple, partition),
                    page_size=1000,
                )

        rows.repartition(WRITERS, "key").foreachPartition(write)


def _connected(url: str) -> Any:
    from benchmarks.state import connected_postgres

    return connected_postgres(url)


def session() -> Any:
    """A Spark of this process, with a thread for each writer."""
    from pyspark.sql import SparkSession

    # Its workers import this module, too.
    os.environ["PYTHONPATH"] = str(Path(__file__).parents[1])
    os.environ["PYSPARK_PYTHON"] = sys.executable
    builder = SparkSession.builder.master(f"local[{WRITERS}]").config("spark.driver.memory", "3g")
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", str(WRITERS))
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def sums(url: str, table: str) -> tuple[int, ...]:
    """How many keys a table has, and the sums of its columns."""
    with _connected(url) as connection, connection.cursor() as cursor:
        cursor.execute(f"SELECT count(*), sum(n), sum(total) FROM {table}")
        return tuple(int(value) for value in cursor.fetchone())


def main(count: int = KEYS) -> None:
    """Measure and print."""
    quiet()
    logging.getLogger("py4j").setLevel(logging.WARNING)
    spark = session()
    with tempfile.TemporaryDirectory() as temporary, LocalPostgres(fsync=True) as postgres:
        folder, url = Path(temporary), postgres.url(postgres.new_database())
        rows = spark.range(count).selectExpr("concat('key', lpad(id, 8, '0')) AS key", "1L AS n", "id AS total")
        rows.repartition(WRITERS).write.parquet(str(folder / "rows"))
        files = [str(file) for file in sorted((folder / "rows").glob("*.parquet"))]
        ours, theirs = Ours(spark, url, files, count), Theirs(spark, url, files, folder)
        print(f"{count:,} keys by {WRITERS} writers on Spark into PostgreSQL; {machine()}")
        seconds: dict[str, list[float]] = {"ours": [], "theirs": []}
        for number in range(1, ROUNDS + 1):
            for name, way in (("theirs", theirs), ("ours", ours)):
                started = time.perf_counter()
                assert way.batch(number) == count
                seconds[name].append(time.perf_counter() - started)
            print(f"  batch {number}: a state {seconds['ours'][-1]:.1f} s, foreachBatch {seconds['theirs'][-1]:.1f} s")
        assert sums(url, "ours") == sums(url, "theirs") == (count, ROUNDS * count, ROUNDS * sum(range(count)))
        known = {name: statistics.median(each[1:]) for name, each in seconds.items()}
        print(f"  known keys: {known['ours'] / known['theirs']:.2f} times as long; both tables hold the same sums")
        spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
