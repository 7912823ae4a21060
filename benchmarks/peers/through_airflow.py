"""What goes through an Airflow: plain DAGs, transactions as runs, and transactions through the lane.

They share one Airflow, whose metadata are in the same PostgreSQL. Each job of flights has a fresh Spark Connect server.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from datetime import timedelta
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from airflow_tx.base.errors import TxError
from airflow_tx.ledger.api import Paths
from airflow_tx.testing.airflow import LocalAirflow, connection
from airflow_tx.testing.servers.spark_connect import LocalSparkConnect
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from benchmarks import topology
from benchmarks.peers.jobs import BEGUN, FIRST, Job
from benchmarks.peers.place import Peer, Place
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER

if TYPE_CHECKING:
    from airflow_tx.ledger.store.zookeeper import ZooKeeperStore

DAGS = Path(__file__).with_name("dags")
_MODULES = "airflow_tx, pyspark.sql.connect.session"
# As the session of Structured Streaming has it, not as tests do.
_CONF = {"spark.driver.memory": "2g", "spark.driver.extraJavaOptions": ""}


@dataclass
class _ThroughAirflow:
    place: Place
    airflow: LocalAirflow
    spark: LocalSparkConnect
    store: ZooKeeperStore
    counts: ClassVar[Mapping[str, int]] = {"small": 12, "days": 12, "big": 12}

    @contextmanager
    def opened(self, job: Job, table: str) -> Iterator[Callable[[], bool]]:
        self.place.data.appear(job, self.place.folder / table, self.counts[job.name])
        with self.spark if job.files else nullcontext():
            self.prepare(job, table)
            begun: list[bool] = []

            def has_begun() -> bool:
                if not begun and self.has_begun(table):
                    begun.append(True)
                return bool(begun)

            yield has_begun
            self.check_runs(table, self.counts[job.name])

    def prepare(self, job: Job, dag_id: str) -> None:
        """Let the runs begin."""

    def has_begun(self, dag_id: str) -> bool:
        """Say whether the first batch has begun."""
        raise NotImplementedError

    def check_runs(self, dag_id: str, count: int) -> None:
        """Wait for the runs, and check how many there are.

        :raises TxError: the transactions did not go this way.
        """
        runs = self.airflow.runs(dag_id)
        for run in runs:
            self.airflow.wait_run(dag_id, run["dag_run_id"])
        if len(runs) != count:
            raise TxError(message=f"There are {len(runs)} runs of {dag_id}, not {count}")


class Plain(_ThroughAirflow):
    """Airflow without this provider."""

    key = "plain"
    title = "plain Airflow, a run a batch, 4 at a time"

    def prepare(self, job: Job, dag_id: str) -> None:
        self.place.make_table(dag_id)
        self.airflow.wait_dag(dag_id)
        self.airflow.pause(dag_id)
        for batch in range(self.counts[job.name]):
            self.airflow.trigger(dag_id, f"run{batch}", {"batch": batch}, FIRST + timedelta(days=batch))
        self.airflow.pause(dag_id, False)

    def has_begun(self, dag_id: str) -> bool:
        return (self.place.folder / dag_id / BEGUN).exists()


class Runs(_ThroughAirflow):
    """Transactions, each of which is a run that a coordinator starts."""

    key = "runs"
    title = "transactions as runs, 4 pending"

    def prepare(self, job: Job, dag_id: str) -> None:
        self.airflow.wait_dag(dag_id)
        self.airflow.pause(f"{dag_id}_coordinator", False)

    def has_begun(self, dag_id: str) -> bool:
        paths = Paths("/airflow_tx", dag_id)
        return any(self.store.get(path) is not None for path in (paths.transaction(1), paths.history(1)))

    def check_runs(self, dag_id: str, count: int) -> None:
        end_coordinator(self.airflow, dag_id)
        super().check_runs(dag_id, count)


def end_coordinator(airflow: LocalAirflow, dag_id: str) -> None:
    """Let the coordinator of a DAG start nothing more, and use no processor."""
    coordinator = f"{dag_id}_coordinator"
    airflow.pause(coordinator)
    for run in airflow.runs(coordinator):
        airflow.call("PATCH", f"dags/{coordinator}/dagRuns/{run['dag_run_id']}", json={"state": "failed"})


class Lane(Runs):
    """Transactions that the coordinator processes and commits itself."""

    key = "lane"
    title = "transactions through the lane, 4 pending"
    counts: ClassVar[Mapping[str, int]] = {"small": 1000, "days": 100, "big": 36}

    def check_runs(self, dag_id: str, count: int) -> None:
        super().check_runs(dag_id, 0)


@contextmanager
def started(place: Place) -> Iterator[list[Peer]]:
    """Start ZooKeeper and Airflow."""
    database, spark = place.postgres, LocalSparkConnect(place.folder / "spark", conf=_CONF)
    state = {"host": "127.0.0.1", "port": database.port, "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}
    with LocalZooKeeper() as zookeeper, topology.connected(zookeeper.hosts) as store:
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
            own = place, airflow, spark, store
            yield [Plain(*own), Runs(*own), Lane(*own)]
