"""A topology whose runs go through the code of the operators in plain processes, without Airflow's servers."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from airflow_tx.base.compat import RunInfo
from airflow_tx.sources.api import Batch, Json, TransactionalSource
from airflow_tx.state import CombinerAggregator, Count, SqlState, Sum
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.spec import TransactionSpec

if TYPE_CHECKING:
    from airflow_tx.ledger.answers import Begun
    from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
    from airflow_tx.outputs.staging.area import StagingArea

KEYS = 10


class Numbers(TransactionalSource):
    """The numbers 0, 1, 2 and so on, KEYS of them a transaction, without end."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """It has no arguments."""
        return "benchmarks.topology.Numbers", {}

    def initialize_transaction(self, txid: int, position: Json) -> Batch:
        """The next numbers."""
        first = position if isinstance(position, int) else 0
        return Batch(metadata=[first, first + KEYS], position=first + KEYS)

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Iterator[Mapping[str, Any]]:
        """The numbers."""
        return ({"number": number} for number in range(*metadata))


def output(begun: Begun) -> list[dict[str, Any]]:
    """What the task of a run returns: one row for each of KEYS keys."""
    return [{"key": str(number % KEYS), "n": 1, "total": number} for number in range(*begun.metadata)]


def state(url: str, table: str = "totals") -> SqlState:
    """The state that the transactions are committed to."""
    values: dict[str, CombinerAggregator] = {"n": Count(), "total": Sum()}
    return SqlState.from_url(url, table=table, keys=["key"], values=values, kind="opaque")


def update(task: str, target: SqlState) -> Update:
    """What `persistent_aggregate(task(...), state=target)` makes in a DAG file."""
    return Update(SimpleNamespace(operator=SimpleNamespace(task_id=task), key="return_value"), target)


@dataclass
class TaskInstance:
    """What a task instance tells and asks."""

    task_id: str
    run_id: str
    xcom: Any = None
    map_index: int = -1
    dag_id: str = "benchmark"
    try_number: int = 1
    max_tries: int = 0
    dag_version_id: str = "v1"
    # Later tries are greater.
    id: str = field(default_factory=lambda: f"{time.time_ns():020}-{uuid.uuid4().hex}")

    def xcom_pull(self, *, task_ids: str, key: str, map_indexes: int | None) -> Any:
        """What the processing task returned."""
        return self.xcom

    def get_task_states(self, *, dag_id: str, task_ids: list[str], run_ids: list[str]) -> dict[str, dict[str, str]]:
        """Every task has succeeded."""
        return {run_id: dict.fromkeys(task_ids, "success") for run_id in run_ids}

    def get_dagrun_state(self, *, dag_id: str, run_id: str) -> str:
        """Every run runs."""
        return "running"


@dataclass(frozen=True)
class DirectSpec(TransactionSpec):
    """A transaction whose ledger is found by address, not by an Airflow connection.

    :param folder: the staging area.
    :param stores: every store that it has opened, for counting.
    :param kept: a store that is used instead of opening one.
    """

    hosts: str = ""
    folder: str = ""
    root: str | None = "/benchmark"
    zookeeper_conn_id: str | None = "none"
    stores: list[ZooKeeperStore] = field(default_factory=list)
    kept: ZooKeeperStore | None = None

    @contextmanager
    def store(self) -> Iterator[ZooKeeperStore]:
        """Connected as long as the block, as by `ZooKeeperHook`."""
        if self.kept is not None:
            yield self.kept
            return
        with connected(self.hosts) as store:
            self.stores.append(store)
            yield store

    def staging(self) -> StagingArea:
        """An area of its own."""
        from airflow_tx.outputs.staging.area import StagingArea

        return StagingArea(self.folder)


@contextmanager
def connected(hosts: str) -> Iterator[ZooKeeperStore]:
    """A store on a client of its own."""
    from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
    from airflow_tx.ledger.store.zookeeper import ZooKeeperStore

    client = connect(ClientConfig(hosts))
    try:
        yield ZooKeeperStore(client)
    finally:
        disconnect(client)


def begin(spec: TransactionSpec, run_id: str) -> Begun:
    """What the task `begin` does."""
    from airflow_tx.ledger.answers import Begun
    from airflow_tx.transaction.processing.begin import ask

    begun = ask(
        spec, TaskInstance(spec.begin, run_id), RunInfo(run_id, "manual", None, None, None, None, None, {}), retry=False
    )
    assert isinstance(begun, Begun), begun
    return begun


def process(spec: TransactionSpec, begun: Begun, task: str) -> None:
    """What is done around a `@task` function that has returned `output(begun)`."""
    from airflow_tx.ledger.attempt import TaskTry
    from airflow_tx.transaction.processing.outputs import returned
    from airflow_tx.transaction.processing.task import Processing

    task_try = TaskTry(task, -1, TaskInstance(task, "").id)
    processing = Processing(spec, begun, task_try, anchored=True)
    processing.start()
    processing.ack(returned(output(begun), multiple=False))
