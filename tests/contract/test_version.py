"""Two people act on what both were shown, over every store: one does it, the other is refused."""

from __future__ import annotations

import pytest

from airflow_tx.errors import PreviewOutdated
from airflow_tx.protocol.api import Store
from airflow_tx.protocol.reader import Reader
from airflow_tx.protocol.records import TransactionRecord
from airflow_tx.protocol.version import note_action, version_of
from tests.integration.pipeline import Pipeline


@pytest.fixture
def pipeline(each_store: Store, zookeeper_root: str) -> Pipeline:
    return Pipeline(each_store, zookeeper_root)


def version(pipeline: Pipeline, *txids: int) -> str:
    return version_of(Reader(pipeline.store), pipeline.paths, txids)


def test_the_second_one_to_act_on_a_version_is_refused(pipeline: Pipeline) -> None:
    for run in ("r1", "r2", "r3"):
        pipeline.begin(run)
    shown = version(pipeline, 1, 2)
    before = [pipeline.ledger.status(txid) for txid in (1, 2, 3)]
    pipeline.ledger.run(note_action, [2, 1], shown)
    with pytest.raises(PreviewOutdated) as refused:
        pipeline.ledger.run(note_action, [1, 2], shown)
    assert str(refused.value) == (
        "Transaction 1, 2 of topology 'flights' has changed since. Nothing was done; have another look, then repeat."
    )
    # Nothing else has changed, and others not at all.
    after = [pipeline.ledger.status(txid) for txid in (1, 2, 3)]
    assert after[2] == before[2]
    assert [without_op(each) for each in after] == [without_op(each) for each in before]


def test_a_transaction_that_went_on_is_of_another_version(pipeline: Pipeline) -> None:
    begun = pipeline.begin("r1")
    shown = version(pipeline, 1)
    pipeline.mark(pipeline.acquire(begun, pipeline.process(begun)))
    assert version(pipeline, 1) != shown
    with pytest.raises(PreviewOutdated):
        pipeline.ledger.run(note_action, [1], shown)


def without_op(record: TransactionRecord | None) -> dict[str, object]:
    assert record is not None
    return {name: value for name, value in vars(record).items() if name != "op"}
