"""What `begin` asks the source, and what it stores of a new transaction and of a replay."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import SkippedTransaction, UnknownTransaction
from airflow_tx.ledger.api import Delete
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside, TopologyRequest
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import Metadata, Skipped
from airflow_tx.ledger.store.memory import MemoryStore
from tests.model.driver import Run, Topology

START: Any = {"A": 3}


class Source:
    """Gives the same batch to every question, which it remembers."""

    def __init__(self, batch: Batch) -> None:
        self.batch = batch
        self.asked: list[tuple[TransactionAttempt, Any]] = []

    def __call__(self, attempt: TransactionAttempt, position: Any) -> Batch:
        self.asked.append((attempt, position))
        return self.batch


def begin(topology: Topology, source: Source, *, key: str | None = "r1", task_try: str = "t1", **given: Any) -> Any:
    request = BeginRequest(topology.request, key, key or "", task_try if key else "", False, {})
    return topology.ledger().begin(request, Outside(decide=source, run_state=lambda run_id: None, **given))


def stored(topology: Topology, txid: int = 1) -> Metadata:
    return Reader(topology.store()).peek(Metadata, topology.paths.meta(txid))


def record(topology: Topology, txid: int = 1) -> Any:
    return topology.record(txid)


def of_kind(kind: str, *, partitioned: bool) -> Topology:
    store = MemoryStore()
    return Topology(lambda: store, "/tx", [], source=kind, partitioned=partitioned)


def test_the_source_decides_each_attempt_and_the_ledger_records_the_attempt_of_the_batch(
    topology: Topology,
) -> None:
    source = Source(Batch([0, 1], 1))
    begin(topology, source)
    assert (source.asked, stored(topology).attempt, record(topology).attempt) == (
        [(TransactionAttempt(1, 1), None)],
        1,
        1,
    )
    begin(topology, source, task_try="t2")
    assert source.asked[1:] == [(TransactionAttempt(1, 2), None)]
    assert (stored(topology).attempt, record(topology).attempt, record(topology).epoch) == (2, 2, 2)
    assert [each.attempt for each, _ in source.asked] == [1, 2]


def test_every_attempt_has_its_own_folder_of_acks_in_the_ledger(topology: Topology) -> None:
    source, names = Source(Batch([0, 1], 1)), list[str]()
    for task_try in ("t1", "t2"):
        begin(topology, source, task_try=task_try)
        names.append(record(topology).acks)
        assert topology.store().children(topology.paths.all_acks).names == (names[-1],)
    assert [name.partition("-")[0] for name in names] == ["1.1", "1.2"]
    assert names[0].endswith(record(topology).birth[-8:])


@pytest.mark.parametrize(
    ("kind", "partitioned", "begins"),
    [("opaque", True, START), ("transactional", True, None), ("opaque", False, None)],
    ids=["opaque, by partition", "transactional: its replays have the same rows", "without partitions"],
)
def test_the_start_of_each_partition_is_stored_for_replays_of_an_opaque_source(
    kind: str, partitioned: bool, begins: Any
) -> None:
    topology = of_kind(kind, partitioned=partitioned)
    begin(topology, Source(Batch({"A": [3, 4]}, {"A": 4}, start=START)))
    assert stored(topology).begin == begins


def test_a_run_that_does_not_exist_yet_is_named_after_its_txid_unless_the_name_is_taken(topology: Topology) -> None:
    source = Source(Batch([0, 1], 1))
    for number, key in enumerate(("tx-2", None), 1):
        source.batch = Batch([0, number], number)
        begin(topology, source, key=key)
    assert [record(topology, txid).run_id for txid in (1, 2)] == ["tx-2", "tx-2-2"]


def test_a_third_run_with_the_same_name_gets_the_next_number(topology: Topology) -> None:
    source = Source(Batch([0, 1], 1))
    for number, key in enumerate(("tx-3", "tx-3-2", None), 1):
        source.batch = Batch([0, number], number)
        begin(topology, source, key=key)
    assert record(topology, 3).key == record(topology, 3).run_id == "tx-3-3"


def test_a_begin_is_refused_if_the_record_of_its_open_transaction_is_missing(topology: Topology) -> None:
    """Its record is damaged by hand: neither open, nor behind the turn, nor skipped."""
    begin(topology, Source(Batch([0, 1], 1)))
    topology.store().multi([], [Delete(topology.paths.transaction(1))])
    with pytest.raises(UnknownTransaction, match="record of transaction 1"):
        begin(topology, Source(Batch([0, 1], 1)))


# --- again as a new transaction ----------------------------------------------------------------------------------


@pytest.fixture
def skipped(topology: Topology) -> Topology:
    Run(topology, "r1").begin(2)
    topology.skip(1)
    return topology


def test_a_skipped_transaction_begins_again_after_a_readmission(skipped: Topology) -> None:
    with pytest.raises(SkippedTransaction):
        Run(skipped, "r1").begin(2)
    skipped.readmit(1)
    before = Reader(skipped.store()).peek(Skipped, skipped.paths.skipped(1))
    begun = Run(skipped, "r1").begin(2)
    after = Reader(skipped.store()).peek(Skipped, skipped.paths.skipped(1))
    assert (begun.txid, begun.metadata, before.rows) == (2, [0, 2], [0, 2])
    assert (after.rows, after.readmitted_as) == (None, 2)
    assert after.op != before.op
    made = record(skipped, 2)
    assert (made.pinned, made.lost, made.key) == (True, [], "r1")


def test_the_first_attempt_of_a_readmitted_transaction_decides_its_rows_again(skipped: Topology) -> None:
    skipped.readmit(1)
    asked: list[Any] = []

    def again(attempt: TransactionAttempt, metadata: Any) -> Any:
        asked.append((attempt, metadata))
        return metadata

    begin(skipped, Source(Batch([0, 1], 1)), decide_again=again)
    assert asked == [(TransactionAttempt(2, 1), [0, 2])]


def test_a_new_ledger_gets_the_requested_incarnation_or_a_random_one() -> None:
    assert TopologyRequest("d", "opaque", 4).made("op").incarnation == "op"
    assert TopologyRequest("d", "opaque", 4, partitioned=True).made("op", "life") == replace(
        TopologyRequest("d", "opaque", 4).made("op"), incarnation="life", partitioned=True
    )
