"""Rows per second from Kafka through Spark into PostgreSQL, against Structured Streaming on the same topic.

Ours: `begin`, an application that sums per key, the commit to a fenced state, with the ledger in a real ZooKeeper; one
transaction after the other. Theirs: `foreachBatch` with the same sums and a plain upsert, which counts a batch twice if
it dies behind the upsert. Both read batches of the same size in one Spark session, in turn. Then the rows that the
adaptive mode takes, of a backlog and of a trickle. Usage: script/bench kafka [rows of a batch] [rows of the backlog]
"""

from __future__ import annotations

import json
import logging
import os
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from airflow_tx.sources.kafka.source import KafkaSource
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks import topology
from benchmarks.figures import machine, quiet
from tests.servers.jars import kafka_connector_jars
from tests.servers.kafka import LocalKafka
from tests.servers.postgres import LocalPostgres

BATCH = 1_000_000
BACKLOG = 10_000_000
KEYS = 10_000
BATCHES = 4
TARGET = 10.0
TRICKLE = 5_000
_CONNECTION = "AIRFLOW_CONN_BENCHMARK_KAFKA"


def sums(rows: Any) -> Any:
    """What both do with the rows of a batch: how many there are of a key, and their sum."""
    from pyspark.sql import functions as F

    number = F.col("value").cast("string").cast("bigint")
    return rows.groupBy(F.col("key").cast("string").alias("key")).agg(
        F.count("*").alias("n"), F.sum(number).alias("total")
    )


class Ours:
    """Transactions, through the code of the operators.

    :param source: of the topic.
    """

    def __init__(self, name: str, source: KafkaSource, spark: Any, hosts: str, url: str, folder: Path) -> None:
        from airflow_tx.spark.app import BatchApp

        self.spark = spark
        self.spec = topology.DirectSpec(
            name, "benchmark", source, max_pending=1, tasks=("count",), hosts=hosts, folder=str(folder / name)
        )
        self.table = name
        self.update = topology.update("count", topology.state(url, name))
        self.update.input.key = "counts"
        self.app = BatchApp(lambda spark, batch: batch.emit("counts", sums(batch.read())))

    def transaction(self, number: int) -> tuple[int, float]:
        """One transaction: its rows, and how many seconds it took from `begin` to the end of the commit."""
        started = time.monotonic()
        run_id = f"run{number}"
        begun = topology.begin(self.spec, run_id)
        self._commit(begun, run_id, self._process(begun))
        return sum(each["to"] - each["from"] for each in begun.metadata.values()), time.monotonic() - started

    def _process(self, begun: Any) -> Any:
        from airflow_tx.ledger.attempt import TaskTry
        from airflow_tx.outputs.staging.descriptor import Descriptor
        from airflow_tx.spark.batch import Batch
        from airflow_tx.transaction.processing.task import Processing

        task = TaskTry("count", -1, topology.TaskInstance("count", "").id)
        processing = Processing(self.spec, begun, task, anchored=True)
        processing.start()
        source = self.spec.source.serialize()
        where = Descriptor(
            topology=self.spec.topology,
            attempt=processing.attempt,
            task=task,
            metadata=begun.metadata,
            source=source,
            root=self.spec.staging().root,
        )
        output = self.app.run(self.spark, Batch(where, self.spark))["counts"].to_json()
        processing.ack([output])
        return output

    def _commit(self, begun: Any, run_id: str, output: Any) -> None:
        from airflow_tx.transaction.commit.committer import Commit
        from airflow_tx.transaction.commit.turn import commit_in_turn

        ti = topology.TaskInstance("commit", run_id, xcom=output)
        with self.spec.store() as store:
            commit = Commit(self.spec, begun, [self.update], self.spec.ledger(store), ti, logging.getLogger("silent"))
            commit_in_turn(commit, store, patience=0)


class Theirs:
    """A query of Structured Streaming that upserts each batch."""

    def __init__(self, kafka: LocalKafka, spark: Any, url: str, folder: Path, batch: int) -> None:
        self.spark, self.url, self.folder, self.batch, self.kafka = spark, url, folder, batch, kafka
        self.table = "streamed"
        with self._connect() as connection, connection.cursor() as cursor:
            cursor.execute(f"CREATE TABLE {self.table} (key TEXT PRIMARY KEY, n BIGINT, total BIGINT)")

    def batches(self, topic: str, count: int) -> list[tuple[int, float]]:
        """Rows and seconds of the next batches, as the query's own progress has them."""
        options = {"subscribe": topic, "startingOffsets": "earliest", "maxOffsetsPerTrigger": str(self.batch)}
        rows = self.spark.readStream.format("kafka").option("kafka.bootstrap.servers", self.kafka.bootstrap)
        stream = rows.options(**options).load().writeStream.foreachBatch(self._upsert)
        query = stream.option("checkpointLocation", str(self.folder / "checkpoint")).start()
        found: list[Any] = []
        while len(found) < count:
            if (error := query.exception()) is not None:
                raise error
            time.sleep(0.1)
            found = [each for each in query.recentProgress if each["numInputRows"]]
        query.stop()
        return [(each["numInputRows"], each["durationMs"]["triggerExecution"] / 1000) for each in found]

    def _upsert(self, rows: Any, batch_id: int) -> None:
        from psycopg2.extras import execute_values  # type: ignore[import-untyped]

        with self._connect() as connection, connection.cursor() as cursor:
            execute_values(
                cursor,
                f"INSERT INTO {self.table} AS old VALUES %s ON CONFLICT (key) DO UPDATE SET n = old.n + excluded.n, "
                "total = old.total + excluded.total",
                [tuple(row) for row in sums(rows).collect()],
                page_size=1000,
            )

    def _connect(self) -> Any:
        from benchmarks.state import connected_postgres

        return connected_postgres(self.url)


def session() -> Any:
    """A Spark of this process with the connector."""
    from pyspark.sql import SparkSession

    builder = SparkSession.builder.master("local[2]").config("spark.driver.memory", "3g")
    builder = builder.config("spark.jars", ",".join(map(str, kafka_connector_jars())))
    builder = builder.config("spark.ui.enabled", "false").config("spark.ui.showConsoleProgress", "false")
    builder = builder.config("spark.driver.host", "127.0.0.1").config("spark.sql.shuffle.partitions", "4")
    spark = builder.getOrCreate()
    spark.sparkContext.setLogLevel("OFF")
    return spark


def write(spark: Any, kafka: LocalKafka, topic: str, count: int) -> None:
    """Rows with one of KEYS keys and a number."""
    rows = spark.range(count).selectExpr(f"CAST(id % {KEYS} AS STRING) AS key", "CAST(id AS STRING) AS value")
    rows.write.format("kafka").option("kafka.bootstrap.servers", kafka.bootstrap).option("topic", topic).save()


def rate(found: list[tuple[int, float]]) -> str:
    """In words; the first batch of each is left out, it warms up."""
    each = [rows / seconds for rows, seconds in found[1:]]
    told = ", ".join(f"{seconds:.1f}" for _, seconds in found)
    return f"{statistics.median(each):10,.0f} rows/s (seconds of each batch: {told})"


def compared(spark: Any, kafka: LocalKafka, hosts: str, url: str, folder: Path, batch: int) -> None:
    """Ours and theirs, in turn."""
    kafka.create_topic("compared", 4)
    write(spark, kafka, "compared", batch * BATCHES)
    source = KafkaSource("benchmark_kafka", topic="compared", max_rows_per_batch=batch)
    ours = Ours("compared", source, spark, hosts, url, folder)
    theirs = Theirs(kafka, spark, url, folder, batch)
    first = [ours.transaction(number) for number in range(BATCHES // 2)]
    streamed = theirs.batches("compared", BATCHES)
    first += [ours.transaction(number) for number in range(BATCHES // 2, BATCHES)]
    print(f"Kafka to PostgreSQL, batches of {batch:,} rows with {KEYS:,} keys; {machine()}")
    print(f"  transactions, fenced state:        {rate(first)}")
    print(f"  Structured Streaming, foreachBatch:{rate(streamed)}")
    mine, other = (statistics.median(rows / seconds for rows, seconds in found[1:]) for found in (first, streamed))
    print(f"  transactions have {mine / other:.2f} times the rows per second; {same(url, ours.table, theirs.table)}")


def same(url: str, *tables: str) -> str:
    """Whether both tables hold the same sums."""
    from benchmarks.state import connected_postgres

    with connected_postgres(url) as connection, connection.cursor() as cursor:
        found = []
        for table in tables:
            cursor.execute(f"SELECT sum(n), sum(total) FROM {table}")
            found.append(tuple(int(value) for value in cursor.fetchone()))
    return f"both hold the same sums of {found[0][0]:,} rows" if found[0] == found[1] else f"THEY DIFFER: {found}"


def adaptive(spark: Any, kafka: LocalKafka, hosts: str, url: str, folder: Path, backlog: int) -> None:
    """The rows of each transaction under a backlog, then under a trickle."""
    kafka.create_topic("adaptive", 4)
    write(spark, kafka, "adaptive", backlog)
    source = KafkaSource("benchmark_kafka", topic="adaptive", target_seconds=TARGET)
    ours = Ours("adaptive", source, spark, hosts, url, folder)
    print(f"target_seconds={TARGET:g}, a backlog of {backlog:,} rows; {machine()}")
    taken, number = 0, 0
    while taken < backlog:
        rows, seconds = ours.transaction(number)
        taken, number = taken + rows, number + 1
        print(f"  transaction {number}: {rows:,} rows in {seconds:.1f} s", flush=True)
    print(f"  a trickle: {TRICKLE:,} rows between two transactions")
    for later in range(number, number + 3):
        write(spark, kafka, "adaptive", TRICKLE)
        rows, seconds = ours.transaction(later)
        print(f"  transaction {later + 1}: {rows:,} rows in {seconds:.1f} s", flush=True)


def main(batch: int = BATCH, backlog: int = BACKLOG) -> None:
    """Measure and print."""
    quiet()
    for name in ("silent", "py4j"):
        logging.getLogger(name).setLevel(logging.WARNING)
    spark = session()
    with (
        tempfile.TemporaryDirectory() as temporary,
        LocalKafka() as kafka,
        LocalPostgres() as postgres,
        LocalZooKeeper() as zookeeper,
    ):
        os.environ[_CONNECTION] = json.dumps({"conn_type": "kafka", "extra": json.dumps(kafka.client_config())})
        folder = Path(temporary)
        compared(spark, kafka, zookeeper.hosts, postgres.url(), folder, batch)
        adaptive(spark, kafka, zookeeper.hosts, postgres.url(), folder, backlog)
        spark.stop()


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
