"""What a person does to a ledger: a state is accepted, renamed, or everything begins again."""

from __future__ import annotations

import json
from typing import Any

import pytest

from airflow_tx.base.errors import RenameRefused, RepairRefused, StateUnavailable, UnreadableRecord
from airflow_tx.ledger.answers import Repaired
from airflow_tx.ledger.api import Create, Paths, Put
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.audit import rebuild
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs, ResetIncomplete, reason_of
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.life import RENAMED, RESET, STATE_LOST
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import FenceBatch
from airflow_tx.ledger.records import RepairRecord, TopologyRecord, encode
from airflow_tx.ledger.steps import commit
from airflow_tx.ledger.steps.commit import AcquireRequest
from airflow_tx.ledger.steps.step import Audit
from tests.model.driver import Run, Topology

ADA = Audit("ada", "the disk is gone")
NOW = "2013-01-01T00:00:00.000+00:00"


@pytest.fixture
def committed(topology: Topology) -> Topology:
    """Transaction 1 is committed to s and t; transaction 2 is about to write to s and u."""
    grant(topology, "r1", "s", "t")
    topology.ledger().run(commit.commit, token(topology, 1), states=("s", "t"))
    record = replace(topology.topology, states={"s": 1})
    topology.store().multi([], [Put(topology.paths.record, encode(record))])
    grant(topology, "r2", "s", "u", outputs={"s": "of s", "u": "of u"})
    record = replace(topology.topology, states={"s": 1, "t": 1})
    topology.store().multi([], [Put(topology.paths.record, encode(record))])
    return topology


def grant(topology: Topology, run_id: str, *states: str, outputs: Any = None) -> None:
    run = Run(topology, run_id)
    begun = run.processed(1, {})
    run.committer().processed()
    request = AcquireRequest(run.attempt, 1, begun.rows_digest, outputs or {}, states)
    topology.ledger().run(commit.acquire, request)


def token(topology: Topology, txid: int) -> Token:
    record, generation = topology.record(txid), topology.topology.generation
    assert record is not None
    return Token(generation, txid, record.attempt, record.epoch, record.nonce, record.birth)


def noted(topology: Topology, number: int) -> RepairRecord:
    return Reader(topology.store()).peek(RepairRecord, topology.paths.repair(number))


def lost(topology: Topology, state: str) -> Any:
    return topology.ledger().run(rebuild.state_lost, state, ADA)


def renamed(topology: Topology, old: str, new: str) -> Any:
    return topology.ledger().run(rebuild.rename_state, old, new, audit=ADA)


# --- a state that went back --------------------------------------------------------------------------------------


def test_an_accepted_loss_of_a_state_raises_the_generation_and_forgets_its_transactions(committed: Topology) -> None:
    before = committed.topology
    done = lost(committed, "t")
    after = committed.topology
    assert done == Repaired(2, 2, "state t was at transaction 1; what it holds now is accepted")
    assert (after.generation, after.states) == (before.generation + 1, {"s": 1})
    assert (set(before.births), set(after.births)) == ({"s", "t"}, {"s"})
    assert noted(committed, 1) == RepairRecord(
        1,
        STATE_LOST,
        "ada",
        NOW,
        "the disk is gone",
        done.summary,
        2,
        noted(committed, 1).op,
        change={"state": "t", "txid": 2},
    )


def test_the_loss_of_a_state_before_its_first_commit_can_be_accepted(committed: Topology) -> None:
    assert lost(committed, "u").summary == "state u was at transaction 0; what it holds now is accepted"
    assert committed.topology.states == {"s": 1, "t": 1}


def test_repairs_have_consecutive_numbers(committed: Topology) -> None:
    for state in ("t", "s"):
        lost(committed, state)
    assert [noted(committed, number).generation for number in (1, 2)] == [2, 3]


def test_a_loss_is_refused_for_a_state_that_is_not_in_the_ledger(committed: Topology) -> None:
    with pytest.raises(RepairRefused, match="no committed transaction of state 'x'.* Known states: s, t"):
        lost(committed, "x")


def test_a_loss_is_refused_while_the_ledger_lists_no_state(topology: Topology) -> None:
    Run(topology, "r1").begin(1)
    for txid in (1, 2):
        with pytest.raises(RepairRefused, match="Known states: none"):
            lost(topology, "x")
        if txid == 1:
            topology.skip(1)


# --- a state with another name -----------------------------------------------------------------------------------


def test_a_renamed_state_keeps_its_records_under_the_new_name(committed: Topology) -> None:
    before = committed.topology
    done = renamed(committed, "s", "z")
    after, opened = committed.topology, committed.record(2)
    assert opened is not None
    assert done == Repaired(2, 2, "state s, at transaction 1, is called z now")
    assert (after.generation, after.states) == (2, {"z": 1, "t": 1})
    assert after.births == {"z": before.births["s"], "t": before.births["t"]}
    assert (opened.fenced, opened.outputs) == (["u", "z"], {"z": "of s", "u": "of u"})
    assert noted(committed, 1).what == RENAMED


def test_renaming_a_state_does_not_change_an_open_transaction_that_does_not_write_the_state(
    committed: Topology,
) -> None:
    before = committed.record(2)
    renamed(committed, "t", "z")
    assert committed.topology.states == {"s": 1, "z": 1}
    assert committed.record(2) == before


def test_a_state_without_a_final_transaction_is_renamed_in_the_open_transaction(committed: Topology) -> None:
    assert renamed(committed, "u", "z").summary == "state u, at transaction 0, is called z now"
    opened = committed.record(2)
    assert opened is not None
    assert opened.fenced == ["s", "z"]
    assert committed.topology.states == {"s": 1, "t": 1}


def test_a_state_can_be_renamed_while_no_transaction_is_open(committed: Topology) -> None:
    committed.ledger().run(commit.commit, token(committed, 2), states=("s", "u"))
    renamed(committed, "s", "z")
    assert committed.topology.states == {"z": 2, "t": 1, "u": 2}


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        ("x", "z", "has no state 'x'"),
        ("s", "t", "already has state 't'"),
        ("s", "u", "already has state 'u'"),
        ("x", "t", "already has state 't'"),
    ],
)
def test_a_rename_of_an_unknown_state_or_to_a_used_name_is_refused(
    committed: Topology, old: str, new: str, problem: str
) -> None:
    with pytest.raises(RenameRefused, match=f"{problem}.*Known states: s, t, u"):
        renamed(committed, old, new)


def test_a_rename_is_refused_while_the_ledger_lists_no_state(topology: Topology) -> None:
    topology.ledger().open(topology.request)
    with pytest.raises(RenameRefused, match="Known states: none"):
        renamed(topology, "s", "z")


# --- everything again --------------------------------------------------------------------------------------------


def reset(topology: Topology, clear: Any = lambda: None) -> Repaired:
    return Repairs(topology.ledger()).reset(topology.request, ADA, clear=clear)


def test_a_reset_creates_a_new_ledger_and_keeps_the_records_of_repairs(committed: Topology) -> None:
    before = committed.topology
    lost(committed, "t")
    done = reset(committed)
    after = committed.topology
    assert done == Repaired(1, 1, "the ledger and its states were emptied; transaction 1 is next")
    assert (committed.current, committed.allocated) == (1, 0)
    assert after.incarnation != before.incarnation
    assert (after.states, after.generation, after.dag_id) == ({}, 1, "trace")
    assert [noted(committed, number).what for number in (1, 2)] == [STATE_LOST, RESET]
    folders = {*committed.paths.folders, committed.paths.repairs, committed.paths.record}
    assert set(committed.tree()) - folders == {
        committed.paths.current,
        committed.paths.allocated,
        *(committed.paths.repair(number) for number in (1, 2)),
    }
    assert Run(committed, "r1").begin(3).txid == 1


def test_a_reset_creates_a_missing_ledger(topology: Topology) -> None:
    assert reset(topology).current == 1
    assert Run(topology, "r1").begin(3).txid == 1


def test_a_topology_that_is_being_reset_refuses_every_use_and_names_the_command_to_complete_it(
    committed: Topology,
) -> None:
    def clear() -> None:
        node = committed.store().get(committed.paths.record)
        assert rebuild.is_being_reset(node.data)
        with pytest.raises(UnreadableRecord, match="being reset: airflow tx repair trace --reset"):
            Run(committed, "r3").begin(1)
        raise StateUnavailable(state="s", where="somewhere", reason="refused")

    with pytest.raises(ResetIncomplete, match=r"is not complete: state 's': refused\."):
        reset(committed, clear)
    with pytest.raises(UnreadableRecord, match="being reset"):
        Run(committed, "r3").begin(1)
    with pytest.raises(ResetIncomplete, match=r"is not complete: no disk\."):
        reset(committed, lambda: (_ for _ in ()).throw(OSError("no disk")))
    reset(committed)
    assert Run(committed, "r3").begin(1).txid == 1


def test_a_reset_that_is_repeated_still_finds_the_incarnation_whose_journal_it_must_delete(committed: Topology) -> None:
    first = committed.topology.incarnation
    for _ in range(2):
        with pytest.raises(ResetIncomplete):
            reset(committed, lambda: (_ for _ in ()).throw(OSError("no disk")))
        assert rebuild.incarnation_of(Reader(committed.store()), committed.paths) == first
    reset(committed)
    assert rebuild.incarnation_of(Reader(committed.store()), committed.paths) == committed.topology.incarnation != first


def test_the_incarnation_in_a_lost_or_damaged_record_is_unknown(committed: Topology) -> None:
    for damaged in (b"", b"[]", b"no json"):
        committed.store().multi((), (Put(committed.paths.record, damaged),))
        assert rebuild.incarnation_of(Reader(committed.store()), committed.paths) == ""


def test_the_reason_in_an_error_does_not_contain_its_remedy() -> None:
    assert reason_of(StateUnavailable(state="s", where="somewhere", reason="refused")) == "refused"
    assert reason_of(RepairRefused(what="w", topology="t", problem="too late", remedy="none")) == "too late"
    assert [reason_of(OSError("no disk")), reason_of(OSError())] == ["no disk", "OSError"]


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (json.dumps({"format": "being reset: x"}).encode(), True),
        (json.dumps({"format": 1}).encode(), False),
        (json.dumps({"format": "closed for a reset: x"}).encode(), True),
        (json.dumps({"format": "being reset: x", "moving": "y"}).encode(), False),
        (b"{}", False),
        (b"[]", False),
        (b"", False),
    ],
)
def test_the_mark_of_a_reset_is_recognized(data: bytes, expected: bool) -> None:
    assert rebuild.is_being_reset(data) is expected


# --- a lost ledger -----------------------------------------------------------------------------------------------


def of_ledger(life: str) -> HeldState:
    batch = FenceBatch("r7", "r7", "2013", None, rows=1, position=2, prev=None)
    return HeldState("s", True, True, life, Token(1, 7, 1, 1, "n", "b"), True, batch)


def recovered(topology: Topology, life: str) -> Repaired:
    return Repairs(topology.ledger()).ledger_lost([of_ledger(life)], topology.request, ADA)


def other(topology: Topology, name: str, data: bytes) -> None:
    path = Paths(topology.paths.root, name).record
    topology.store().ensure(path.rpartition("/")[0])
    topology.store().multi([], [Create(path, data)])


def test_a_ledger_is_rebuilt_even_if_its_root_is_missing(topology: Topology) -> None:
    assert recovered(topology, "L").current == 8
    assert topology.current == 8


def test_a_rebuild_immediately_deletes_the_records_that_it_replaces(topology: Topology) -> None:
    Run(topology, "r1").begin(1)
    recovered(topology, topology.topology.incarnation)
    assert topology.topology.garbage == []
    assert topology.store().children(topology.paths.all_acks).names == ()


def test_a_rebuild_that_reads_states_is_refused_for_a_healthy_topology(topology: Topology) -> None:
    other(topology, "a", b'{"format":"being reset: airflow tx repair a --reset"}')
    other(topology, "b", encode(TopologyRecord("L", "b", "opaque", 4)))
    with pytest.raises(RepairRefused, match="its states belong to topology 'b'.*airflow tx rename b trace"):
        recovered(topology, "L")
    assert recovered(topology, "M").current == 8


def test_a_rebuild_is_refused_while_the_record_of_another_topology_is_unreadable(topology: Topology) -> None:
    other(topology, "b", b"nonsense")
    with pytest.raises(UnreadableRecord, match="/tx/b/topology"):
        recovered(topology, "L")


def test_a_rebuild_does_not_need_to_read_its_own_topology_record(topology: Topology) -> None:
    Run(topology, "r1").begin(1)
    assert recovered(topology, topology.topology.incarnation).current == 8
