"""What an earlier release leaves behind: `python earlier_release.py HOSTS ROOT URL`, with its tree on PYTHONPATH.

Two transactions are committed; the third is written and not marked, the fourth processed, the fifth begun. Only what
has had the same name in every release is used.
"""

from __future__ import annotations

import sys
from typing import Any

from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.state import SqlState, Sum
from tests.integration.pipeline import Pipeline


def leave(hosts: str, root: str, url: str) -> None:
    """Run them."""
    client = connect(ClientConfig(hosts))
    state: Any = SqlState.from_url(url, table="totals", keys=["key"], values={"n": Sum()})
    pipeline = Pipeline(ZooKeeperStore(client), root, [state])
    for run in ("r1", "r2"):
        pipeline.run(run)
    begun = pipeline.begin("r3")
    pipeline.write(pipeline.acquire(begun, pipeline.process(begun)), 3)
    pipeline.process(pipeline.begin("r4"))
    pipeline.begin("r5")
    disconnect(client)


if __name__ == "__main__":
    leave(*sys.argv[1:])
