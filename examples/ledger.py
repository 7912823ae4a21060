"""Facts about a topology's committed transactions, from the ledger and Airflow."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

from airflow_tx.ledger import Metadata, Outcome, TransactionRecord, decode
from airflow_tx.ledger.api import Paths, Store
from airflow_tx.testing.airflow_client import AirflowClient
from examples.report import Transaction


@contextmanager
def opened(hosts: str) -> Iterator[Store]:
    """Connect to the store of the ledger, on a ZooKeeper without a login."""
    from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
    from airflow_tx.ledger.store.zookeeper import ZooKeeperStore

    client = connect(ClientConfig(hosts))
    try:
        yield ZooKeeperStore(client, hosts=hosts)
    finally:
        disconnect(client)


def history(store: Store, paths: Paths) -> list[TransactionRecord]:
    """Return the final transactions, in the order of their txids."""
    children = store.children(paths.histories)
    return sorted(_entries(store, paths, children.names if children else ()), key=lambda entry: entry.txid)


def _entries(store: Store, paths: Paths, names: tuple[str, ...]) -> Iterator[TransactionRecord]:
    for name in names:
        path = paths.history(int(name))
        node = store.get(path)
        if node is not None:
            yield decode(TransactionRecord, path, node.data)


def batches(store: Store, paths: Paths) -> dict[str, str]:
    """Return the file names of open transactions, by run_id.

    The ledger does not keep the names of final transactions.
    """
    children = store.children(paths.transactions)
    found = {}
    for txid in map(int, children.names if children else ()):
        own, meta = store.get(path := paths.transaction(txid)), store.get(paths.meta(txid))
        if own is not None and meta is not None:  # Otherwise the transaction has just become final.
            rows = decode(Metadata, paths.meta(txid), meta.data).rows
            run_id = decode(TransactionRecord, path, own.data).run_id
            found[run_id] = " ".join(file["name"] for file in rows["files"]) if rows else "no rows"
    return found


def transactions(
    airflow: AirflowClient, dag_id: str, entries: list[TransactionRecord], batches: Mapping[str, str]
) -> list[Transaction]:
    """Return the committed transactions with their batches and their task tries.

    :param batches: the file names by run_id, as `batches` returns them.
    """
    tries: dict[str, dict[str, int]] = {}
    for task in airflow.task_instances(dag_id, "~"):
        tries.setdefault(task["dag_run_id"], {})[task["task_id"]] = task["try_number"]
    return [
        Transaction(
            txid=entry.txid,
            run_id=entry.run_id,
            batch=batches.get(entry.run_id, "?"),
            attempts=entry.attempt,
            tries=tries.get(entry.run_id, {}),
            began=datetime.fromisoformat(entry.began),
            processed=datetime.fromisoformat(entry.processed or entry.final.when),
            granted=datetime.fromisoformat(entry.granted_at or entry.final.when),
            ended=datetime.fromisoformat(entry.final.when),
        )
        for entry in entries
        if entry.final.outcome is Outcome.COMMITTED
    ]
