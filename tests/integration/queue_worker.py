"""Transactions over a queue in a process of its own, which a test kills: what a run's tasks do, one after the other."""

from __future__ import annotations

import json
import logging
import os
import sys
import uuid
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from airflow_tx.base import compat
from airflow_tx.base.failpoints import failpoint
from airflow_tx.ledger.answers import AlreadyCommitted, Begun
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.sources.rabbit import RabbitQueueSource
from airflow_tx.state import Count, SqlState
from airflow_tx.transaction.commit.handoff import note_committed
from airflow_tx.transaction.processing.begin import ask
from airflow_tx.transaction.spec import TransactionSpec
from tests.integration.pipeline import Pipeline
from tests.unit.bench import FakeTi, run_of

ROWS = 5


@dataclass(frozen=True)
class QueueSpec(TransactionSpec):
    """A transaction whose ledger is in the ZooKeeper of a test."""

    hosts: str = ""
    zookeeper_conn_id: str | None = "none"

    @contextmanager
    def store(self) -> Iterator[Any]:
        client = connect(ClientConfig(self.hosts))
        try:
            yield ZooKeeperStore(client)
        finally:
            disconnect(client)


def counts(conn_id: str = "counts") -> SqlState:
    """The state that counts each message."""
    return SqlState(conn_id, table="counts", keys=["message_id"], values={"n": Count()})


def run_all(spec: QueueSpec) -> None:
    """Run transactions until the source has no rows."""
    number = 1
    while run_one(spec, f"r{number}"):
        number += 1


def run_one(spec: QueueSpec, run_id: str) -> bool:
    """Run the transaction of a run, or what is left of it; False if there are no rows for it."""
    answer = ask(spec, FakeTi(spec.begin, run_id, id=uuid.uuid4()), run_of(run_id), retry=False)
    begun = Path(os.environ["AIRFLOW_HOME"], f"{run_id}.json")
    if isinstance(answer, AlreadyCommitted):
        # What the next try of its committer does, if the first one died.
        note_committed(spec, Begun.from_json(json.loads(begun.read_text())), log=logging.getLogger("task"))
        return True
    if not isinstance(answer, Begun):
        return False
    begun.write_text(json.dumps(answer.to_json()))
    source = spec.named_source
    rows: Any = source.emit_batch(answer.attempt, answer.metadata)
    with spec.store() as store:
        pipeline = Pipeline(store, str(spec.root), [counts()], topology=spec.topology, kind="transactional")
        processed = pipeline.process(answer)
        grant = pipeline.acquire(answer, processed)
        (state,) = pipeline.states
        state.raise_and_write(grant, [{"message_id": row["message_id"], "n": 1} for row in rows])
        failpoint("worker.before_mark", txid=answer.txid)
        pipeline.mark(grant)
    failpoint("worker.after_mark", txid=answer.txid)
    note_committed(spec, answer, log=logging.getLogger("task"))
    spec.source_of(answer.incarnation).cleanup_before(answer.txid)
    return True


def main(environment: Mapping[str, str], hosts: str, root: str, queue: str) -> None:
    """Work until the queue is empty, as a new process."""
    os.environ.update(environment)
    sys.stdout = sys.stderr = open(os.devnull, "w")
    compat.is_current_try = lambda task_try: True
    run_all(queue_spec(hosts, root, queue))


def queue_spec(hosts: str, root: str, queue: str) -> QueueSpec:
    source = RabbitQueueSource("rabbit", queue, max_rows_per_batch=ROWS)
    return QueueSpec("orders", "orders", source, tasks=("task0",), max_pending=3, root=root, hosts=hosts)
