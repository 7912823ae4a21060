"""What the DAGs of these tests share: a source of numbers, a task that counts them, and a state per topology.

A run's conf says how its `count` behaves: `hold` = a file it waits for, `fail_while` = a file that makes it fail as
long as it exists.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, get_current_context, task

from airflow_tx import CommitOperator, Transaction, persistent_aggregate
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources import Batch, Json, TransactionalSource
from airflow_tx.state import Count, SqlState, Sum

SIZE = 10


class Numbers(TransactionalSource):
    """The numbers 0, 1, 2 and so on, `size` of them a transaction, without end."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "counting.Numbers", {"size": self.size}

    def initialize_transaction(self, txid: int, position: Json) -> Batch:
        first = position if isinstance(position, int) else 0
        return Batch(metadata=[first, first + self.size], position=first + self.size)

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: object = None
    ) -> Iterator[Mapping[str, Any]]:
        assert isinstance(metadata, list)
        return ({"number": number} for number in range(*metadata))


def state(table: str, conn_id: str = "tx_state", kind: str = "opaque") -> SqlState:
    """How many even and odd numbers were counted, and their sums."""
    return SqlState(conn_id, table=table, keys=["parity"], values={"numbers": Count(), "total": Sum()}, kind=kind)


def misbehave() -> None:
    """Do what the run's conf asks for."""
    conf = get_current_context()["dag_run"].conf or {}
    if "fail_while" in conf and Path(conf["fail_while"]).exists():
        raise RuntimeError(f"told to fail as long as {conf['fail_while']} exists")
    while "hold" in conf and not Path(conf["hold"]).exists():
        time.sleep(0.1)


def counted(numbers: Sequence[int]) -> list[dict[str, Any]]:
    """The rows of the update for these numbers: one a parity."""
    parts = {name: [n for n in numbers if n % 2 == rest] for name, rest in (("even", 0), ("odd", 1))}
    return [{"parity": name, "numbers": len(part), "total": sum(part)} for name, part in parts.items() if part]


@task
def count(batch: dict[str, Any]) -> list[dict[str, Any]]:
    """Count the numbers of the batch."""
    misbehave()
    return counted(range(*batch["rows"]))


def counting_dag(
    dag_id: str,
    *,
    conn_id: str = "tx_state",
    table: str | None = None,
    params: Mapping[str, str] | None = None,
    **transaction: Any,
) -> DAG:
    """A DAG `begin >> count >> commit`.

    :param params: the conf of a run for which nothing else is said.
    :param transaction: further arguments of `Transaction`.
    """
    settings = {"max_pending": 4, **transaction}
    with DAG(dag_id, schedule=None, max_active_runs=16, params=dict(params or {})) as dag:
        with Transaction(source=Numbers(), **settings) as tx:
            updates = [persistent_aggregate(count(tx.batch), state=state(table or dag_id, conn_id))]
            CommitOperator(task_id="commit", updates=updates)
    return dag
