"""The demo says which files a run took: runs are named in another order than they begin in."""

from __future__ import annotations

from airflow_tx.ledger.api import Put
from airflow_tx.ledger.store.memory import MemoryStore
from examples.ledger import batches
from tests.integration.pipeline import Pipeline


def test_the_demo_lists_the_files_of_each_open_run() -> None:
    pipeline = Pipeline(MemoryStore(), "/root")
    assert batches(pipeline.store, pipeline.paths) == {}
    pipeline.run("r1")
    for run_id in ("r3", "r2"):
        txid = pipeline.begin(run_id).attempt.txid
        meta = pipeline.paths.meta(txid)
        rows = f'{{"files":[{{"name":"{txid:02}.csv"}}]}}'
        pipeline.store.multi([], [Put(meta, f'{{"attempt":1,"format":1,"position":null,"rows":{rows}}}'.encode())])
    assert batches(pipeline.store, pipeline.paths) == {"r3": "02.csv", "r2": "03.csv"}
