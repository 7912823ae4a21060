"""What goes through an Airflow: plain DAGs, transactions as runs, and transactions through the lane.

They share one Airflow, whose metadata are in the same PostgreSQL, and a warm Spark Connect server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime, timedelta, timezone
from functools import partial
from pathlib import Path

from airflow_tx.errors import TxError
from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks.peers.jobs import Job, Span
from benchmarks.peers.place import Peer, Place
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER

DAGS = Path(__file__).with_name("dags")
FIRST = datetime(2013, 1, 1, tzinfo=timezone.utc)
PATIENCE = 900.0
_MODULES = "airflow_tx, pyspark.sql.connect.session"
# As the session of Structured Streaming has it, not as tests do.
_CONF = {"spark.driver.memory": "2g", "spark.driver.extraJavaOptions": ""}


class _ThroughAirflow:
    spans: Mapping[str, Span] = {"small": Span(2, 12), "days": Span(2, 12), "big": Span(2, 12)}

    def __init__(self, place: Place, airflow: LocalAirflow) -> None:
        self._place = place
        self._airflow = airflow


class Plain(_ThroughAirflow):
    """Airflow without this provider."""

    key = "plain"
    title = "plain Airflow, a run a batch, 4 at a time"

    @contextmanager
    def opened(self, job: Job, table: str) -> Iterator[Callable[[], None]]:
        span = self.spans[job.name]
        self._place.make_table(table)
        self._place.data.appear(job, self._place.folder / table, 0, span.all)
        self._airflow.wait_dag(table)
        self._run(table, 0, span.warm)
        yield partial(self._run, table, span.warm, span.all)

    def _run(self, dag_id: str, first: int, end: int) -> None:
        for batch in range(first, end):
            self._airflow.trigger(dag_id, f"run{batch}", {"batch": batch}, FIRST + timedelta(days=batch))
        for batch in range(first, end):
            self._airflow.wait_run(dag_id, f"run{batch}", timeout=PATIENCE)


class Runs(_ThroughAirflow):
    """Transactions, each of which is a run that a coordinator starts."""

    key = "runs"
    title = "transactions as runs, 4 pending"

    @contextmanager
    def opened(self, job: Job, table: str) -> Iterator[Callable[[], None]]:
        span = self.spans[job.name]
        coordinator = f"{table}_coordinator"
        self._airflow.wait_dag(table)
        self._appear(job, table, 0, span.warm)
        self._airflow.pause(coordinator, False)
        self._reach(job, table, span.warm)

        def finish() -> None:
            self._appear(job, table, span.warm, span.all)
            self._reach(job, table, span.all)

        yield finish
        self._airflow.pause(coordinator)
        for run in self._airflow.runs(coordinator):
            path = f"dags/{coordinator}/dagRuns/{run['dag_run_id']}"
            self._airflow.call("PATCH", path, json={"state": "failed"})
        self.check_runs(table, span)

    def check_runs(self, dag_id: str, span: Span) -> None:
        """Check that the transactions went this way.

        :raises TxError: they did not.
        """
        for run in self._airflow.runs(dag_id):
            self._airflow.wait_run(dag_id, run["dag_run_id"], timeout=PATIENCE)
        self._expect(dag_id, span.all)

    def _expect(self, dag_id: str, count: int) -> None:
        runs = self._airflow.runs(dag_id)
        if len(runs) != count:
            raise TxError(message=f"There are {len(runs)} runs of {dag_id}, not {count}")

    def _appear(self, job: Job, dag_id: str, first: int, end: int) -> None:
        self._place.data.appear(job, self._place.folder / dag_id, first, end)

    def _reach(self, job: Job, table: str, batches: int) -> None:
        rows = sum(n for n, _ in self._place.data.totals(job, batches).values())

        def there() -> bool:
            return sum(n for n, _ in self._place.totals(table).values()) >= rows

        def explained() -> str:
            runs = [run["dag_run_id"] for run in self._airflow.runs(table) if run["state"] == "failed"]
            return "\n".join(self._airflow.describe_run(table, run_id) for run_id in runs[:2])

        eventually(there, PATIENCE, f"{batches} batches are in {table}", interval=0.05, explain=explained)


class Lane(Runs):
    """Transactions that the coordinator processes and commits itself."""

    key = "lane"
    title = "transactions through the lane, 4 pending"
    spans: Mapping[str, Span] = {"small": Span(100, 1000), "days": Span(20, 100), "big": Span(2, 12)}

    def check_runs(self, dag_id: str, span: Span) -> None:
        self._expect(dag_id, 0)


@contextmanager
def started(place: Place) -> Iterator[list[Peer]]:
    """Start ZooKeeper, Spark Connect and Airflow."""
    database = place.postgres
    state = {"host": "127.0.0.1", "port": database.port, "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
    with LocalZooKeeper() as zookeeper, LocalSparkConnect(conf=_CONF) as spark:
        env = {
            "AIRFLOW_CONN_ZOOKEEPER_DEFAULT": connection("zookeeper", host=zookeeper.hosts),
            "AIRFLOW_CONN_TX_STATE": connection("postgres", schema=place.database, **state),
            "AIRFLOW_CONN_SPARK_CONNECT_DEFAULT": connection("spark_connect", host="127.0.0.1", port=spark.port),
            "AIRFLOW__DATABASE__SQL_ALCHEMY_CONN": database.url(database.new_database()),
            "AIRFLOW__TX__STAGING": (place.folder / "staging").as_uri(),
            "AIRFLOW__TX__PRELOAD": _MODULES,
            "AIRFLOW_TX_DATA": str(place.folder),
            "AIRFLOW__CORE__PARALLELISM": "16",
        }
        with LocalAirflow(place.folder / "airflow", DAGS, env) as airflow:
            yield [Plain(place, airflow), Runs(place, airflow), Lane(place, airflow)]
