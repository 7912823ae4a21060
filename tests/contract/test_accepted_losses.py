"""Rows that a source lost and a person accepted as lost, over every store: it goes on behind them, on the record."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_tx.base.errors import LossRefused, SourceError, UnreadableRecord
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Create, Paths, Put, Store
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import (
    RECORD_FORMAT,
    Loss,
    Metadata,
    RepairRecord,
    TopologyRecord,
    TransactionRecord,
    decode,
    encode,
)
from airflow_tx.ledger.steps.loss import start_after
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import topology_view, transaction_details
from tests.contract.losses import AUDIT, Log, Topology

WHEN = "2013-01-01T00:00:00+00:00"


@pytest.fixture(params=["transactional", "opaque"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_the_next_transaction_begins_after_the_lost_rows_and_records_the_loss(
    each_store: Store, zookeeper_root: str, kind: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), kind)
    topology.finish(topology.begin("r1"))
    topology.log.there[""] = range(25, 1000)
    with pytest.raises(SourceError, match="rows 10 to 24 of it are lost"):
        topology.begin("r2")
    assert topology.accept(10) == "lost, and in no batch: rows 10 to 24 of it"

    second = topology.begin("r2")
    assert (second.metadata, second.position) == ([25, 35], 35)
    assert second.lost == ("rows 10 to 24 of it",)
    third = topology.begin("r3")
    assert (third.metadata, third.lost) == ([35, 45], ())
    topology.finish(second)
    topology.finish(third)
    shown = transaction_details(topology.store, topology.paths, 2).transaction
    assert (shown.document.size, shown.document.lost) == ({"rows": 10, "why": "ten of each"}, ["rows 10 to 24 of it"])


def test_the_base_of_a_batch_after_a_loss_is_the_end_of_the_previous_batch(
    each_store: Store, zookeeper_root: str, kind: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), kind)
    topology.begin("r1")
    topology.log.there[""] = range(25, 1000)
    topology.accept(10)
    topology.begin("r2")
    assert topology.record(2).base == digest(10) == topology.record(1).ended
    view = topology_view(topology.store, topology.paths)
    assert not any(each.stale for each in view.transactions)


def test_one_partition_resumes_after_its_loss_and_the_others_resume_at_their_positions(
    each_store: Store, zookeeper_root: str, kind: str
) -> None:
    log = Log(a=range(100), b=range(100))
    topology = Topology(each_store, zookeeper_root, log, kind)
    topology.finish(topology.begin("r1"))
    log.there["b"] = range(40, 100)
    with pytest.raises(SourceError, match="rows 10 to 39 of b are lost"):
        topology.begin("r2")
    topology.accept({"a": 10, "b": 10})
    second = topology.begin("r2")
    assert second.metadata == {"a": [10, 20], "b": [40, 50]}
    assert second.position == {"a": 20, "b": 50}
    assert second.lost == ("rows 10 to 39 of b",)
    assert topology.record(2).base == digest({"a": 10, "b": 10})


def test_the_next_transaction_with_rows_of_the_partition_records_the_loss_of_the_partition(
    each_store: Store, zookeeper_root: str
) -> None:
    log = Log(a=range(100), b=range(10))
    topology = Topology(each_store, zookeeper_root, log, "opaque")
    topology.finish(topology.begin("r1"))
    log.there["b"] = range(40, 40)
    topology.accept({"a": 10, "b": 10})
    second = topology.begin("r2")
    assert (second.metadata, second.position, second.lost) == ({"a": [10, 20]}, {"a": 20, "b": 10}, ())
    log.there["b"] = range(40, 41)
    third = topology.begin("r3")
    assert (third.metadata["b"], third.lost) == ([40, 41], ("rows 10 to 39 of b",))


def test_an_opaque_replay_takes_the_rows_after_an_accepted_loss(each_store: Store, zookeeper_root: str) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "opaque")
    topology.finish(topology.begin("r1"))
    topology.begin("r2")
    topology.begin("r3")
    topology.log.there[""] = range(15, 1000)  # half of the second one's rows
    with pytest.raises(SourceError, match="rows 10 to 14"):
        topology.begin("r2")
    topology.accept(10)
    again = topology.begin("r2")
    assert (again.metadata, again.lost, again.attempt.attempt) == ([15, 25], ("rows 10 to 14 of it",), 2)
    assert [each.stale for each in topology_view(topology.store, topology.paths).transactions] == [True, False, False]
    assert topology.begin("r3").metadata == [25, 35]
    assert topology.begin("r2").metadata == [15, 25]


def test_an_opaque_replay_without_rows_keeps_its_position_before_the_loss(
    each_store: Store, zookeeper_root: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "opaque")
    topology.finish(topology.begin("r1"))
    topology.begin("r2")
    topology.log.there[""] = range(15, 15)
    topology.accept(10)
    empty = topology.begin("r2")
    assert (empty.metadata, empty.position, empty.lost) == (None, 10, ())
    topology.log.there[""] = range(15, 20)
    third = topology.begin("r3")
    assert (third.metadata, third.lost) == ([15, 20], ("rows 10 to 14 of it",))


def test_a_replay_of_a_transactional_batch_keeps_its_rows_and_its_recorded_loss(
    each_store: Store, zookeeper_root: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "transactional")
    topology.finish(topology.begin("r1"))
    topology.log.there[""] = range(25, 1000)
    topology.accept(10)
    topology.begin("r2")
    topology.log.there[""] = range(30, 1000)
    again = topology.begin("r2")
    assert (again.metadata, again.lost, again.size) == (
        [25, 35],
        ("rows 10 to 24 of it",),
        {"rows": 10, "why": "ten of each"},
    )


def test_a_second_loss_right_after_an_accepted_loss_can_also_be_accepted(
    each_store: Store, zookeeper_root: str, kind: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), kind)
    topology.finish(topology.begin("r1"))
    topology.log.there[""] = range(25, 1000)
    topology.accept(10)
    topology.log.there[""] = range(50, 1000)
    with pytest.raises(SourceError, match="rows 25 to 49"):
        topology.begin("r2")
    topology.accept(25)
    second = topology.begin("r2")
    assert second.metadata == [50, 60]
    assert second.lost == ("rows 10 to 24 of it", "rows 25 to 49 of it")


def test_accepting_the_same_loss_twice_counts_once(each_store: Store, zookeeper_root: str) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "opaque")
    topology.finish(topology.begin("r1"))
    topology.log.there[""] = range(25, 1000)
    topology.accept(10)
    topology.log.there[""] = range(50, 1000)
    topology.accept(25)
    topology.accept(10)
    second = topology.begin("r2")
    assert (second.metadata, second.lost) == ([50, 60], ("rows 10 to 49 of it",))
    losses = [each for repair in topology_view(topology.store, topology.paths).repairs for each in repair.losses]
    assert [(each.position, each.resume_at) for each in losses] == [(10, 25), (25, 50), (10, 50)]


def test_accepted_losses_that_refer_to_each_other_are_followed_only_once(
    each_store: Store, zookeeper_root: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "opaque")
    topology.finish(topology.begin("r1"))
    topology.ledger.accept_loss([Loss("", 10, 20, "one"), Loss("", 20, 10, "two")], AUDIT)
    begun = topology.begin("r2")
    assert (begun.metadata, begun.lost) == ([10, 20], ("one", "two"))


def test_a_batch_that_was_decided_before_the_loss_was_accepted_is_decided_again(
    each_store: Store, zookeeper_root: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "transactional")
    topology.finish(topology.begin("r1"))

    def decide(attempt: TransactionAttempt, position: Any) -> Batch | None:
        answer = topology.log.decide(attempt, position)
        if position == 10:
            # Whoever allocates meanwhile lets the first pass of the step fail.
            topology.log.there[""] = range(25, 1000)
            topology.accept(10)
            current = topology.store.get(topology.paths.allocated)
            assert current is not None
            topology.store.multi([], [Put(topology.paths.allocated, current.data)])
        return answer

    request = BeginRequest(topology.request, "r2", "r2", "900000", False, {})
    begun = topology.ledger.begin(request, Outside(decide=decide, run_state=lambda run_id: None))
    assert isinstance(begun, Begun)
    assert (begun.metadata, begun.lost) == ([25, 35], ("rows 10 to 24 of it",))


def test_accept_loss_is_refused_if_no_row_is_lost(each_store: Store, zookeeper_root: str) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "opaque")
    topology.begin("r1")
    before = topology.store.get(topology.paths.record)
    with pytest.raises(LossRefused, match="Topology 'flights' has lost nothing"):
        topology.accept(10)
    assert topology.store.get(topology.paths.record) == before
    assert topology_view(topology.store, topology.paths).repairs == ()


def test_the_repair_record_of_an_accepted_loss_names_the_person_the_time_and_the_reason(
    each_store: Store, zookeeper_root: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "opaque")
    topology.begin("r1")
    topology.log.there[""] = range(25, 1000)
    topology.accept(10)
    view = topology_view(topology.store, topology.paths)
    (repair,) = view.repairs
    assert (repair.what, repair.who, repair.why) == ("accept-loss", AUDIT.who, AUDIT.why)
    assert (repair.told, repair.generation) == ("lost, and in no batch: rows 10 to 24 of it", 1)
    assert repair.losses == [Loss("", 10, 25, "rows 10 to 24 of it")]
    assert (view.record.losses, view.record.accepted) == ([1], {})


def test_older_records_without_the_fields_for_sizes_and_losses_can_be_read(
    each_store: Store, zookeeper_root: str
) -> None:
    topology = Topology(each_store, zookeeper_root, Log(), "opaque")
    topology.finish(topology.begin("r1"))
    topology.begin("r2")
    paths, store = topology.paths, topology.store
    for path, new in (
        (paths.record, ("pace", "accepted", "losses")),
        (paths.transaction(2), ("size", "lost")),
        (paths.history(1), ("size", "lost")),
    ):
        node = store.get(path)
        assert node is not None
        old = {name: value for name, value in json.loads(node.data).items() if name not in new}
        store.multi([], [Put(path, json.dumps(old).encode())])
    view = topology_view(store, paths)
    assert (view.record.pace, view.record.accepted) == ([], {})
    assert [(each.document.size, each.document.lost) for each in view.transactions] == [(None, []), (None, [])]
    topology.finish(topology.begin("r2"))
    assert topology.begin("r3").metadata == [20, 30]


def test_an_accepted_loss_is_dropped_once_all_final_positions_are_after_it(
    each_store: Store, zookeeper_root: str, kind: str
) -> None:
    log = Log(a=range(100), b=range(100))
    topology = Topology(each_store, zookeeper_root, log, kind)
    first = topology.begin("r1")
    log.there = {"a": range(20, 100), "b": range(40, 40)}
    topology.accept({"a": 10, "b": 10})

    def kept() -> int:
        return len(topology_view(topology.store, topology.paths).record.losses)

    topology.finish(first)
    assert kept() == 1
    topology.finish(topology.begin("r2"))
    assert kept() == 1, "b has taken no part"
    log.there["b"] = range(40, 100)
    third, fourth = topology.begin("r3"), topology.begin("r4")
    assert (third.metadata["b"], third.lost) == ([40, 50], ("rows 10 to 39 of b",))
    topology.finish(third)
    assert kept() == 0
    topology.finish(fourth)
    assert topology.begin("r5").metadata == {"a": [50, 60], "b": [60, 70]}
    assert topology_view(topology.store, topology.paths).repairs[0].why == AUDIT.why


def test_losses_of_thousands_of_partitions_can_be_accepted_one_after_another(
    each_store: Store, zookeeper_root: str
) -> None:
    names = [f"orders-of-the-whole-shop-{number}" for number in range(3000)]
    log = Log(**{name: range(1000) for name in names})
    topology = Topology(each_store, zookeeper_root, log, "opaque")
    topology.finish(topology.begin("r1"))
    place = 10
    for start in (100, 200, 300):
        log.there = {name: range(start, 1000) for name in names}
        told = topology.accept(dict.fromkeys(names, place))
        assert told.endswith("; and 480 more")
        place = start
    second = topology.begin("r2")
    assert second.metadata[names[-1]] == [300, 310]
    assert (len(second.lost), second.lost[-1]) == (21, "and 8980 more")
    assert len(topology_view(topology.store, topology.paths).record.losses) == 18
    topology.finish(second)
    assert topology_view(topology.store, topology.paths).record.losses == []


def test_the_start_position_of_a_batch_does_not_change_without_a_matching_loss() -> None:
    store, paths = MemoryStore(), Paths("/", "t")
    read = Reader(store)
    none = TopologyRecord("i", "dag", "opaque", 1)
    assert start_after(read, paths, none, 10).position == 10
    assert start_after(read, paths, none, 10).passed(20) == []
    losses = [Loss("", None, 5, "rows")]
    store.ensure(paths.repairs)
    repair = RepairRecord(1, "accept-loss", "ada", "2013-01-01T00:00:00+00:00", "gone", "lost", 1, "op", losses)
    store.multi([], [Create(paths.repair(1), encode(repair))])
    record = replace(none, losses=[1])
    assert start_after(read, paths, record, None).position is None


def test_a_repair_record_with_losses_is_decoded_unchanged() -> None:
    losses = [Loss("a", {"x": [1]}, 5, "r")]
    record = RepairRecord(1, "accept-loss", "ada", "2013-01-01T00:00:00+00:00", "gone", "lost", 1, "op", losses)
    assert decode(RepairRecord, "", encode(record)) == record
    with pytest.raises(UnreadableRecord):
        decode(TransactionRecord, "", encode(Metadata(RECORD_FORMAT, None, None)))
