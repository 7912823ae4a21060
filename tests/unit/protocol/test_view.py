"""The read model while the ledger goes on: a record is shown as it was or as it is; one that has gone stops nothing."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

import pytest

from airflow_tx.base.errors import TooMuchContention, UnknownTransaction, UnreadableRecord
from airflow_tx.ledger.api import Children, Create, Delete, Node, Paths, Put, topologies
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.records import Counter, Metadata, encode
from airflow_tx.ledger.steps import processing
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import LedgerView, TopologyView, topology_view, transaction_details
from tests.model.driver import Run, Topology


class Meddled(MemoryStore):
    """Once a record has been read, or its children listed, something else happens.

    :ivar after: what, by path; each once.
    """

    def __init__(self) -> None:
        super().__init__()
        self.after: dict[str, Callable[[], object]] = {}
        self.also: dict[str, tuple[str, ...]] = {}
        """Names that are listed as well, by path: of records that go before they are read."""

    def get(self, path: str) -> Node | None:
        found = super().get(path)
        self._meddle(path)
        return found

    def children(self, path: str) -> Children | None:
        found = super().children(path)
        self._meddle(path)
        also = self.also.get(path, ())
        return Children((*found.names, *also), found.version) if found is not None else None

    def _meddle(self, path: str) -> None:
        if path in self.after:
            self.after.pop(path)()


@pytest.fixture
def store() -> Meddled:
    return Meddled()


@pytest.fixture
def topology(store: Meddled) -> Topology:
    return Topology(lambda: store, "/tx", [])


@pytest.fixture
def runs(topology: Topology) -> list[Run]:
    """Transaction 1 is committed, 2 and 3 are open."""
    made = [Run(topology, f"r{number}") for number in (1, 2, 3)]
    for run in made:
        run.processed(2, {})
    made[0].commit()
    return made


def view(topology: Topology, **how: int) -> TopologyView:
    return topology_view(topology.store(), topology.paths, **how)


def shown(topology: Topology, **how: int) -> dict[int, str]:
    return {each.txid: each.status for each in view(topology, **how).transactions}


class Counting(MemoryStore):
    """Refuses to be asked without end.

    :ivar asked: which records were asked for.
    """

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[str] = []

    def get(self, path: str) -> Node | None:
        self.asked.append(path)
        assert len(self.asked) < 1000, "it reads without end"
        return super().get(path)


@pytest.mark.parametrize("txid", [4, 99_999_999, 10**30, 0, -1])
def test_a_txid_that_was_never_allocated_is_refused_after_a_fixed_number_of_reads(txid: int) -> None:
    store = Counting()
    topology = Topology(lambda: store, "/tx", [])
    for number in (1, 2, 3):
        Run(topology, f"r{number}").processed(2, {})
    store.asked.clear()
    with pytest.raises(UnknownTransaction, match=f"transaction {txid} of"):
        transaction_details(store, topology.paths, txid)
    paths = topology.paths
    opened = [paths.transaction(each) for each in (1, 2, 3)]
    assert set(store.asked) <= {paths.record, paths.current, paths.allocated, *opened}


def test_the_view_of_a_transaction_reads_only_its_record_and_the_records_of_earlier_open_ones() -> None:
    store = Counting()
    topology = Topology(lambda: store, "/tx", [])
    runs = [Run(topology, f"r{number}") for number in (1, 2, 3, 4)]
    for run in runs:
        run.processed(2, {})
    runs[0].commit()
    store.asked.clear()
    assert transaction_details(store, topology.paths, 3).transaction.txid == 3
    records = {path for path in store.asked if path.startswith(f"{topology.paths.transactions}/")}
    assert records == {topology.paths.transaction(txid) for txid in (2, 3)}


def test_topologies_directly_below_the_zookeeper_root_are_found() -> None:
    class Rooted(MemoryStore):
        """Has a root, as ZooKeeper does."""

        def children(self, path: str) -> Children | None:
            return Children(("flights", "other"), 0) if path == "/" else super().children(path)

    store = Rooted()
    store.ensure(Paths("/", "flights").record)
    assert topologies(store, "/") == ("flights",)


def test_the_error_for_the_view_of_a_missing_topology_names_it(store: Meddled, topology: Topology) -> None:
    with pytest.raises(UnknownTransaction, match="'trace'"):
        view(topology)


@pytest.mark.parametrize("name", ["9", "junk"])
def test_a_record_that_is_deleted_between_listing_and_reading_is_omitted(
    store: Meddled, topology: Topology, runs: list[Run], name: str
) -> None:
    paths = topology.paths
    for folder in (paths.transactions, paths.histories, paths.all_skipped, paths.repairs):
        store.also[folder] = (name,)
    store.ensure(paths.repairs)
    assert shown(topology) == {1: "COMMITTED", 2: "PROCESSING", 3: "PROCESSING"}
    assert LedgerView(store, paths).repairs() == ()


def test_an_ack_that_is_deleted_before_it_is_read_is_omitted(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    record = topology.record(2)
    assert record is not None
    store.also[topology.paths.acks(record.acks)] = ("other@-1",)
    assert set(transaction_details(store, topology.paths, 2).acks) == {("p", -1)}


def test_a_transaction_that_becomes_final_during_the_read_is_shown_once_beyond_the_limit(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    store.after[topology.paths.all_skipped] = runs[1].commit
    assert shown(topology, recent=1) == {1: "COMMITTED", 2: "PROCESSING", 3: "PROCESSING"}
    assert shown(topology, recent=1) == {2: "COMMITTED", 3: "PROCESSING"}


def test_no_transaction_is_shown_as_stale_when_the_turn_moves_during_the_read(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    store.after[topology.paths.current] = runs[1].commit
    assert shown(topology) == {1: "COMMITTED", 2: "COMMITTED", 3: "PROCESSING"}
    assert not any(each.stale for each in view(topology).transactions)


def test_a_transaction_is_not_shown_as_stale_when_its_predecessor_ends_during_the_read(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    store.after[topology.paths.transaction(3)] = runs[1].commit
    found = view(topology).transactions
    assert [(each.txid, each.stale) for each in found] == [(3, False), (2, False), (1, False)]


@pytest.mark.parametrize("damage", [True, False])
def test_the_path_of_a_needed_position_that_cannot_be_read_is_reported(
    store: Meddled, topology: Topology, runs: list[Run], damage: bool
) -> None:
    meta = topology.paths.meta(1)
    store.multi([], [Put(meta, b"?") if damage else Delete(meta)])
    found = view(topology)
    assert [meta in each for each in found.unreadable] == [True]
    assert shown(topology) == {1: "COMMITTED", 2: "UNREADABLE", 3: "PROCESSING"}


def test_an_open_transaction_whose_record_is_missing_is_reported(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    path = topology.paths.transaction(2)
    store.multi([], [Delete(path)])
    found = view(topology)
    assert [path in each for each in found.unreadable] == [True]
    assert [(each.txid, each.status, each.stale) for each in found.opened] == [
        (2, "UNREADABLE", False),
        (3, "PROCESSING", False),
    ]


def test_a_view_fails_if_the_ledger_changes_during_each_of_fifty_reads(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    """Each time its counter is read, the turn has moved on."""
    turn = iter(range(1000))

    def move() -> None:
        store.after[topology.paths.current] = move
        store.multi([], [Put(topology.paths.current, encode(Counter(-next(turn))))])

    move()
    with pytest.raises(TooMuchContention, match="50 times"):
        view(topology)


# --- one transaction


def test_the_batch_of_an_open_transaction_may_be_deleted_during_the_read(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    meta = topology.paths.meta(3)
    assert transaction_details(store, topology.paths, 3).batch == Metadata(1, [4, 6], 6)
    store.after[meta] = lambda: store.multi([], [Delete(meta)])
    assert transaction_details(store, topology.paths, 3).batch is None
    assert transaction_details(store, topology.paths, 3).batch is None


def test_the_path_of_a_damaged_batch_is_reported(store: Meddled, topology: Topology, runs: list[Run]) -> None:
    store.multi([], [Put(topology.paths.meta(3), b"?")])
    with pytest.raises(UnreadableRecord, match=topology.paths.meta(3)):
        transaction_details(store, topology.paths, 3)


def test_the_rows_of_a_skipped_transaction_are_shown_until_its_readmission(topology: Topology, runs: list[Run]) -> None:
    topology.skip(2)
    details = transaction_details(topology.store(), topology.paths, 2)
    assert details.batch == Metadata(0, [2, 4], None)
    assert (details.transaction.document.attempt, details.transaction.began) == (
        1,
        datetime(2013, 1, 1, tzinfo=timezone.utc),
    )
    topology.readmit(2)
    runs[1].begin(2)
    assert runs[1].attempt.txid == 4
    runs[2].commit()
    runs[1].process({})
    runs[1].commit()
    assert transaction_details(topology.store(), topology.paths, 2).batch is None


def test_the_view_of_open_and_final_transactions_shows_whether_the_batch_has_partitions(store: Meddled) -> None:
    topology = Topology(lambda: store, "/tx", [], partitioned=True)
    first, second = (Run(topology, f"r{number}") for number in (1, 2))
    first.whole({"a": 2})
    second.begin({"a": 2})
    assert [transaction_details(store, topology.paths, txid).partitioned for txid in (1, 2)] == [True, True]


def test_the_acks_of_mapped_instances_are_shown_with_their_index(topology: Topology) -> None:
    run = Run(topology, "r1")
    run.begin(1)
    ledger = topology.ledger()
    for index in (0, 1):
        instance = TaskTry("p", index, f"t{index}")
        ledger.start(run.attempt, instance)
        ledger.run(processing.ack, run.attempt, instance)
    assert set(transaction_details(topology.store(), topology.paths, 1).acks) == {("p", 0), ("p", 1)}


def test_only_the_owner_of_the_current_grant_is_shown(store: Meddled, topology: Topology, runs: list[Run]) -> None:
    store.multi([], [Create(topology.paths.owner(""), b'{"run_id":"nobody"}')])
    assert view(topology).owner is None
    runs[1].written()
    record = topology.record(2)
    assert record is not None
    store.multi([], [Create(topology.paths.owner(record.nonce), b'{"run_id":"r2"}')])
    assert view(topology).owner == {"run_id": "r2"}


# --- what `verify` reads


def test_the_evidence_of_a_ledger_is_consistent_although_the_turn_moves_during_the_read(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    store.after[topology.paths.histories] = runs[1].commit
    found = ledger_evidence(store, topology.paths)
    assert (found.current, set(found.histories), found.position) == (2, {1}, 2)


def test_verify_names_a_needed_position_that_cannot_be_read(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    store.multi([], [Delete(topology.paths.meta(1))])
    with pytest.raises(UnreadableRecord, match=topology.paths.meta(1)):
        ledger_evidence(store, topology.paths)


def test_a_history_record_that_is_deleted_while_verify_reads_is_omitted(
    store: Meddled, topology: Topology, runs: list[Run]
) -> None:
    store.also[topology.paths.histories] = ("9",)
    found: Any = ledger_evidence(store, topology.paths)
    assert (set(found.histories), found.oldest) == ({1}, 1)
    assert ledger_evidence(store, topology.paths).name == "trace"
