"""Where a lost ledger goes on, as the fences say, and what is made of the one that is found."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.base.errors import RepairRefused, UnreadableRecord
from airflow_tx.ledger.api import Create, Delete, Paths, Put
from airflow_tx.ledger.attempt import Token
from airflow_tx.ledger.audit.plan import HeldState, RebuildPlan, plan_rebuild
from airflow_tx.ledger.audit.rebuild import ledger_lost
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Deed, FenceBatch, Outcome, Replaced
from airflow_tx.ledger.records import Binding, BlockMark, Metadata, Skipped, Waiter, encode
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.state.api import Fence
from airflow_tx.state.fence import applied
from tests.finals import final_record
from tests.model.driver import Run, Topology

PATHS = Paths("/tx", "trace")
ADA = Audit("ada", "the disk is gone")
EARLY, LATE = "2012-12-31T00:00:00+00:00", "2013-06-01T00:00:00+00:00"


def held(
    state: str,
    txid: int,
    *,
    applied: bool = True,
    holds: bool = True,
    undoable: bool = True,
    life: str = "L",
    rank: tuple[int, int, int] = (1, 1, 1),
    birth: str = "b",
    **batch: Any,
) -> HeldState:
    """What the fence of a state holds of a transaction; rows and positions are named by its number."""
    generation, attempt, epoch = rank
    token = Token(generation, txid, attempt, epoch, "nonce", birth)
    own = {"key": f"r{txid}", "run_id": f"r{txid}", "granted": "2013", "skip": None}
    kept: dict[str, Any] = {"rows": f"rows {txid}", "position": txid, "prev": txid - 1, **own, **batch}
    return HeldState(state, undoable, holds, life, token, applied, FenceBatch(**kept))


def plan(*states: HeldState) -> RebuildPlan:
    return plan_rebuild(PATHS, states)


# --- a fence -----------------------------------------------------------------------------------------------------


def fence(batch: str) -> Fence:
    return Fence("L", Token(1, 7, 1, 1, "n"), True, batch)


def test_the_data_of_a_state_for_a_rebuild_is_read_from_its_fence() -> None:
    batch = held("s", 7).batch
    found = HeldState.of("s", undoable=False, fence=fence(batch.text))
    assert found == HeldState("s", False, True, "L", Token(1, 7, 1, 1, "n"), True, batch)
    assert found.batch == batch
    assert HeldState.of("s", undoable=False, fence=fence(batch.text), holds=lambda txid: txid != 7).holds is False


def test_a_fence_records_that_all_updates_were_applied() -> None:
    stored = Fence("L", Token(1, 7, 1, 1, "n"))
    assert (stored.applied, applied(stored)) == (False, replace(stored, applied=True))


@pytest.mark.parametrize("batch", ["", "null", "[]", "{}", '{"rows": 1, "position": 2, "prev": null}'])
def test_the_error_for_a_fence_without_a_batch_names_the_state(batch: str) -> None:
    with pytest.raises(UnreadableRecord, match="fence of state 's'"):
        HeldState.of("s", undoable=True, fence=fence(batch))


# --- the plan ----------------------------------------------------------------------------------------------------


def test_a_transaction_that_is_complete_in_every_state_becomes_the_last_transaction() -> None:
    found = plan(held("s", 7, rank=(3, 2, 5), granted="2013"), held("t", 7, granted="2012", rank=(3, 2, 4)))
    assert found == RebuildPlan(
        "L", 4, 8, Metadata(2, "rows 7", 7), {"s": 7, "t": 7}, {"s": "b", "t": "b"}, found.summary, "2012",
        last_run=found.last_run, ended=found.ended,
    )  # fmt: skip
    assert found.summary == "transaction 7 is complete in every state; 8 is next"


def test_the_plan_of_a_rebuild_reports_that_an_incomplete_restatement_does_not_count() -> None:
    found = plan(held("s", 7, applied=False, key="r3", replaces=Replaced(3, "2013-01-01/3-ab")))
    assert found.bound == {"r3": Binding(3, "2013-01-01/3-ab")}
    assert found.summary == (
        "transaction 7 is not complete in every state; it is next, from where transaction 6 ended; it restated "
        "transaction 3, which counts: what the states hold of it goes with the next commit"
    )


def test_a_rebuild_finds_the_run_of_the_last_transaction_if_the_fences_name_it() -> None:
    found = plan(held("s", 7, key="r7"))
    assert (found.last_run, found.ended[7].key) == ("r7", "r7")


@pytest.mark.parametrize(
    "states",
    [
        (held("s", 7), held("t", 7, applied=False)),
        (held("s", 7, applied=False), held("t", 6)),
        (held("s", 7), held("t", 7, birth="another")),
        (held("s", 7), held("t", 6)),
    ],
    ids=["half written", "not raised", "of two lives", "not everywhere"],
)
def test_a_transaction_that_is_not_complete_in_every_state_begins_again_after_a_rebuild(
    states: tuple[HeldState, ...],
) -> None:
    found = plan(*states)
    assert (found.current, found.meta, found.last) == (7, Metadata(1, None, 6), {"s": 6, "t": 6})
    assert (found.last_run, found.ended) == ("", {})
    assert found.births == {each.state: each.token.birth for each in states}
    assert "it is next, from where transaction 6 ended" in found.summary


def test_an_incomplete_first_transaction_begins_again_without_a_position() -> None:
    found = plan(held("s", 1, applied=False))
    assert (found.current, found.meta, found.last) == (1, None, {})
    second = plan(held("s", 2, applied=False))
    assert (second.current, second.meta, second.last) == (2, Metadata(1, None, 1), {"s": 1})


def test_a_rebuild_reads_the_batch_from_the_fence_with_the_newest_grant() -> None:
    newer = held("s", 7, rank=(1, 2, 3), rows="newer")
    assert plan(held("t", 7, rows="older"), newer).meta == Metadata(2, "newer", 7)
    again = plan(held("t", 7, applied=False, prev="older"), held("s", 7, rank=(1, 2, 3), prev="newer"))
    assert again.meta == Metadata(1, None, "newer")


@pytest.mark.parametrize(
    ("states", "granted"),
    [
        ((held("s", 7, granted="b"), held("t", 7, granted="a")), "a"),
        ((held("s", 7, granted="b"), held("t", 6, granted="a")), "b"),
    ],
    ids=["the first of them", "of this transaction"],
)
def test_a_rebuild_reads_the_time_of_the_newest_grant_from_its_fence(
    states: tuple[HeldState, ...], granted: str
) -> None:
    assert plan(*states).granted == granted


@pytest.mark.parametrize("behind", [held("t", 5), held("t", 6, applied=False)], ids=["by two", "by one, half written"])
def test_a_rebuild_is_refused_if_a_state_is_further_behind_than_one_commit(behind: HeldState) -> None:
    with pytest.raises(RepairRefused, match="state 't' is at transaction .*, but another state is at transaction 7"):
        plan(held("s", 7), behind)


def test_a_rebuild_is_refused_if_a_state_cannot_undo_an_incomplete_transaction() -> None:
    whole, half = held("s", 7, undoable=False), held("t", 7, undoable=False, applied=False)
    with pytest.raises(RepairRefused, match="complete in state 's', which cannot undo it, but not in all others"):
        plan(whole, held("t", 6))
    with pytest.raises(RepairRefused, match=r"half written in state 't', which cannot undo it\."):
        plan(held("s", 7), half)
    assert plan(replace(whole, holds=False), held("t", 6)).current == 7
    assert plan(held("s", 7), held("t", 6, undoable=False)).current == 7
    assert plan(whole).current == 8


def test_a_rebuild_is_refused_with_fences_of_two_ledgers_or_states_without_fences() -> None:
    with pytest.raises(RepairRefused, match="'s' of ledger L; 't' of ledger M"):
        plan(held("s", 7), held("t", 7, life="M"))
    with pytest.raises(RepairRefused, match="--reset"):
        plan()


# --- the step ----------------------------------------------------------------------------------------------------


def rebuilt(topology: Topology, found: RebuildPlan) -> Any:
    topology.store().ensure(topology.paths.root)
    return topology.ledger().run(ledger_lost, topology.request, found, audit=ADA)


def of(topology: Topology, found: RebuildPlan) -> RebuildPlan:
    """A plan by the states of this very ledger."""
    return replace(found, incarnation=topology.topology.incarnation)


def bound(topology: Topology, key: str) -> int | None:
    found = Reader(topology.store()).peek_if_any(Binding, topology.paths.run(key))
    return None if found is None else found.txid


def metas(topology: Topology) -> tuple[str, ...]:
    names: tuple[str, ...] = topology.store().children(topology.paths.metas).names
    return names


def test_a_missing_ledger_is_rebuilt_at_the_last_transaction_of_the_states(topology: Topology) -> None:
    done = rebuilt(topology, plan(held("s", 7, rank=(3, 1, 1), key="r7", run_id="run 7", skip=None)))
    record = topology.topology
    assert (done.generation, done.current, done.summary) == (
        4,
        8,
        "transaction 7 is complete in every state; 8 is next",
    )
    assert (record.incarnation, record.generation, record.dag_id) == ("L", 4, "trace")
    assert (record.states, record.births, record.rebuilt) == ({"s": 7}, {"s": "b"}, 7)
    assert (topology.current, topology.allocated, topology.position(7)) == (8, 7, 7)
    assert (bound(topology, "r7"), metas(topology)) == (7, ("7",))
    assert all(topology.store().get(path) is not None for path in topology.paths.folders)
    assert Run(topology, "r8").begin(2).txid == 8
    assert Run(topology, "r7").begin(2).txid == 7


def test_a_skipped_transaction_in_a_rebuilt_ledger_keeps_its_rows(topology: Topology) -> None:
    skip = Deed("bob", EARLY, "broken")
    rebuilt(topology, plan(held("s", 7, key="r7", run_id="run 7", skip=skip)))
    kept = Reader(topology.store()).peek(Skipped, topology.paths.skipped(7))
    assert (kept.key, kept.run_id, kept.rows, kept.skip) == ("r7", "run 7", "rows 7", skip)


def test_a_rebuild_before_the_first_commit_makes_no_transaction_final(topology: Topology) -> None:
    rebuilt(topology, plan(held("s", 1, applied=False)))
    assert (topology.current, topology.allocated, topology.topology.states, metas(topology)) == (1, 0, {}, ())
    assert topology.topology.births == {"s": "b"}


@pytest.fixture
def behind(topology: Topology) -> Topology:
    """A ledger that was put back: transaction 1 is committed, 2 and 3 are open, one of them to be skipped."""
    Run(topology, "r1").whole(2)
    for run_id in ("r2", "r3"):
        Run(topology, run_id).begin(2)
    topology.note_skip(3)
    return topology


def test_a_rebuild_removes_the_open_transactions_of_a_ledger_that_went_back(behind: Topology) -> None:
    before = behind.topology
    rebuilt(behind, of(behind, plan(held("s", 2, key="r2", run_id="r2", skip=None, granted=LATE))))
    after = behind.topology
    assert (behind.current, behind.allocated, behind.position(2)) == (3, 2, 2)
    assert (after.generation, after.skips, after.blocked, after.bid) == (before.generation + 1, [], None, None)
    assert [behind.record(txid) for txid in (1, 2, 3)] == [None, None, None]
    assert [bound(behind, key) for key in ("r1", "r2", "r3")] == [1, 2, None]
    assert metas(behind) == ("2",)
    assert behind.store().children(behind.paths.histories).names == ("1",)
    assert len(after.garbage) == 2
    assert all(each.startswith("coordinator/acks/") for each in after.garbage)


def test_a_run_that_began_after_the_newest_grant_of_the_states_begins_again(behind: Topology) -> None:
    """Another run has the number in the time that is lost."""
    rebuilt(behind, of(behind, plan(held("s", 2, granted=EARLY, key="lost"))))
    assert [bound(behind, key) for key in ("r1", "r2", "r3")] == [1, None, None]


@pytest.mark.parametrize("granted", [LATE, "2013-01-01T00:00:00.000+00:00"])
def test_a_run_that_began_before_the_newest_grant_counts_as_committed_in_the_lost_time(
    behind: Topology, granted: str
) -> None:
    rebuilt(behind, of(behind, plan(held("s", 2, granted=granted))))
    assert [bound(behind, key) for key in ("r1", "r2", "r3")] == [1, 2, None]


def test_the_last_transaction_of_the_states_keeps_the_binding_of_its_run(behind: Topology) -> None:
    record = behind.record(2)
    assert record is not None
    rebuilt(behind, of(behind, plan(held("s", 2, granted=EARLY, birth=record.birth))))
    assert bound(behind, "r2") == 2


def test_a_rebuild_keeps_a_binding_to_an_earlier_transaction(behind: Topology) -> None:
    store, paths = behind.store(), behind.paths
    store.multi([], [Put(paths.run("r3"), encode(Binding(1)))])
    rebuilt(behind, of(behind, plan(held("s", 2))))
    assert bound(behind, "r3") == 1


def test_a_rebuild_that_removes_a_readmission_makes_its_rows_available_again(topology: Topology) -> None:
    Run(topology, "r1").begin(2)
    topology.skip(1)
    topology.readmit(1)
    assert Run(topology, "r1").begin(2).txid == 2
    rebuilt(topology, of(topology, plan(held("s", 1))))
    kept = Reader(topology.store()).peek(Skipped, topology.paths.skipped(1))
    assert (kept.rows, kept.readmitted_as, kept.readmit is None) == ([0, 2], None, False)
    assert bound(topology, "r1") == 1
    history = topology.history(1)
    assert history is not None
    assert (history.final.outcome, history.final.readmitted_as) == (Outcome.SKIPPED, None)
    assert Run(topology, "r1").begin(2).metadata == [0, 2]


def test_a_rebuild_sets_a_generation_above_the_generations_of_the_states_and_the_ledger(behind: Topology) -> None:
    assert rebuilt(behind, of(behind, plan(held("s", 2, rank=(7, 1, 1))))).generation == 8
    assert rebuilt(behind, of(behind, plan(held("s", 2)))).generation == 9


def test_a_rebuild_keeps_the_records_of_other_states(behind: Topology) -> None:
    record = replace(
        behind.topology,
        states={"u": 1},
        births={"u": "x"},
        yields=3,
        blocked=BlockMark(2, 1, "", EARLY),
        bid=Waiter("r3", 3, "t", 2),
        receipt="hash",
    )
    behind.store().multi([], [Put(behind.paths.record, encode(record))])
    rebuilt(behind, of(behind, plan(held("s", 2))))
    after = behind.topology
    assert (after.states, after.births, after.yields) == ({"u": 1, "s": 2}, {"u": "x", "s": "b"}, 3)
    assert (after.blocked, after.bid, after.receipt) == (None, None, "")


def test_a_ledger_that_is_ahead_of_its_states_is_not_rebuilt(behind: Topology) -> None:
    with pytest.raises(RepairRefused, match=r"transaction 2, and the states say that 1 is next \(its states\)"):
        rebuilt(behind, of(behind, plan(held("s", 1, applied=False))))
    Run(behind, "r2").whole(1)
    with pytest.raises(RepairRefused, match=r"transaction 3, and the states say that 2 is next \(s\)"):
        rebuilt(behind, of(behind, plan(held("s", 1))))


def test_a_ledger_that_was_created_after_the_loss_is_replaced_unless_it_has_commits(topology: Topology) -> None:
    Run(topology, "r1").begin(2)
    rebuilt(topology, plan(held("s", 7)))
    assert (topology.topology.incarnation, topology.topology.generation, topology.current) == ("L", 2, 8)
    assert bound(topology, "r1") is None
    record = replace(topology.topology, incarnation="M")
    topology.store().multi([], [Put(topology.paths.record, encode(record))])
    with pytest.raises(RepairRefused, match="this is ledger M, which has committed transactions of its own"):
        rebuilt(topology, plan(held("s", 7)))


@pytest.mark.parametrize("own", ["a state", "a commit"])
def test_a_ledger_of_another_incarnation_with_commits_is_not_replaced(topology: Topology, own: str) -> None:
    Run(topology, "r1").begin(2)
    if own == "a state":
        record = replace(topology.topology, states={"s": 1})
        topology.store().multi([], [Put(topology.paths.record, encode(record))])
    else:
        topology.skip(1)
    with pytest.raises(RepairRefused, match="has committed transactions of its own"):
        rebuilt(topology, plan(held("s", 7)))


def test_a_rebuild_deletes_the_history_of_a_ledger_of_another_incarnation(topology: Topology) -> None:
    Run(topology, "r1").begin(2)
    old = final_record(
        txid=5,
        run_id="r5",
    )
    paths = topology.paths
    topology.store().multi([], [Create(paths.history(txid), encode(replace(old, txid=txid))) for txid in (1, 5)])
    rebuilt(topology, plan(held("s", 7)))
    assert topology.store().children(topology.paths.histories).names == ()


def test_a_rebuild_ignores_the_generation_of_a_ledger_of_another_incarnation(topology: Topology) -> None:
    Run(topology, "r1").begin(2)
    record = replace(topology.topology, generation=7)
    topology.store().multi([], [Put(topology.paths.record, encode(record))])
    assert rebuilt(topology, plan(held("s", 7))).generation == 2


def test_a_ledger_that_is_rebuilt_before_the_first_commit_lists_no_state(topology: Topology) -> None:
    Run(topology, "r1").begin(2)
    record = replace(topology.topology, states={"u": 1})
    topology.store().multi([], [Put(topology.paths.record, encode(record))])
    rebuilt(topology, of(topology, plan(held("s", 1, applied=False))))
    assert topology.topology.states == {}


def test_a_ledger_that_is_rebuilt_after_the_first_commit_lists_the_states_of_the_fences(topology: Topology) -> None:
    rebuilt(topology, plan(held("s", 1)))
    assert topology.topology.states == {"s": 1}


def test_a_rebuild_continues_if_the_binding_of_a_run_was_already_deleted(behind: Topology) -> None:
    behind.store().multi([], [Delete(behind.paths.run("r3"))])
    assert rebuilt(behind, of(behind, plan(held("s", 2)))).current == 3


def test_a_rebuild_keeps_a_skip_that_the_ledger_has_recorded(topology: Topology) -> None:
    Run(topology, "r1").begin(2)
    topology.skip(1)
    before = Reader(topology.store()).peek(Skipped, topology.paths.skipped(1))
    skip = Deed("bob", EARLY, "broken")
    rebuilt(topology, of(topology, plan(held("s", 1, key="r1", run_id="r1", skip=skip))))
    assert Reader(topology.store()).peek(Skipped, topology.paths.skipped(1)) == before
