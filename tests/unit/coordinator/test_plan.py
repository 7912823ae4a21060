"""The coordinator: every rule of its plan, and what it does in its worker, on the ledger in memory."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta, timezone
from threading import Thread
from typing import Any

import pytest
from airflow.sdk.exceptions import TaskDeferred
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx import coordinator_dag
from airflow_tx.base import compat
from airflow_tx.base.errors import FenceForeign, SourceError, StoreUnavailable, TransactionDefinitionError
from airflow_tx.coordinator.dag import CoordinateOperator, known
from airflow_tx.coordinator.lane import AnyLane, NoLane
from airflow_tx.coordinator.plan import (
    LONGEST_BACKOFF,
    Action,
    Allocate,
    CameBack,
    CoordinatorMemory,
    Examine,
    Finding,
    Follow,
    LedgerSnapshot,
    Plan,
    Replay,
    RestartDead,
    Restate,
    Return,
    Rules,
    SnapshotReader,
    Start,
    Unblock,
    plan,
)
from airflow_tx.coordinator.worker import LOOK_EVERY, PAUSED, STATES_EVERY, Coordination, Pace
from airflow_tx.ledger.answers import NoData as NothingNew
from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.json_text import digest, replace
from airflow_tx.ledger.receipt import Deed, Replaced
from airflow_tx.ledger.records import BlockMark, Phase, ReplayNote, TopologyRecord, TransactionRecord, Wish, Yield
from airflow_tx.ledger.steps import commit, processing
from airflow_tx.ledger.views.view import topology_view
from airflow_tx.sources.api import Batch
from airflow_tx.testing.eventually import eventually
from airflow_tx.transaction.processing.begin import ask
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers, OpaqueNumbers, run_of
from tests.unit.commit.run import Run

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
RULES = Rules(max_pending=4, max_replays=3, backoff=10.0, message_timeout=1000.0, silence=10.0)
TOPOLOGY = TopologyRecord("i", "numbers", "opaque", 4)
ENDED = ("failed", "success", "skipped")


def record(txid: int, **more: Any) -> TransactionRecord:
    """A healthy open transaction which starts where its predecessor ends."""
    fields: dict[str, Any] = {
        "txid": txid,
        "key": f"r{txid}",
        "run_id": f"r{txid}",
        "request": "try",
        "attempt": 1,
        "epoch": 1,
        "op": f"op{txid}",
        "phase": Phase.PROCESSING,
        "base": f"d{txid - 1}",
        "ended": f"d{txid}",
        "rows_digest": "",
        "tasks": {},
        "created": NOW.isoformat(),
        "began": NOW.isoformat(),
    }
    return TransactionRecord(**{**fields, **more})


def look(*records: TransactionRecord, current: int = 1, **more: Any) -> LedgerSnapshot:
    opened = dict(enumerate(records, start=current))
    fields: dict[str, Any] = {
        "now": NOW,
        "current": current,
        "allocated": current + len(records) - 1,
        "base": f"d{current - 1}",
        "topology": TOPOLOGY,
        "opened": opened,
    }
    return LedgerSnapshot(**{**fields, **more})


def note(attempt: int, count: int = 1) -> ReplayNote:
    return ReplayNote(attempt, count, NOW.isoformat(), "")


def planned(
    seen: LedgerSnapshot,
    states: Mapping[str, str | None],
    *ages: float,
    memory: CoordinatorMemory | None = None,
    **more: Any,
) -> Plan:
    """The plan after `ages` of the same."""
    options: dict[str, Any] = {"rules": RULES, "ready": False, **more}
    found = plan(seen, states, memory or CoordinatorMemory(), elapsed=0.0, **options)
    for age in ages:
        found = plan(seen, states, found.memory, elapsed=age, **options)
    return found


def due(seen: LedgerSnapshot, states: Mapping[str, str | None], *ages: float, **more: Any) -> tuple[Action, ...]:
    return planned(seen, states, *ages, **more).actions


# --- restatements


def wish(txid: int) -> Wish:
    return Wish(txid, f"r{txid}", f"r{txid}", "ada", NOW.isoformat(), "a bug in the job", f"op{txid}")


def wanted(*txids: int) -> dict[str, Any]:
    """A ledger whose transactions 1 to 9 are committed, and some of them wanted restated."""
    return {"current": 10, "allocated": 9, "base": "d9", "wishes": tuple(map(wish, txids))}


ALL_ENDED = {f"r{txid}": "success" for txid in range(1, 10)}


def restated(*txids: int) -> tuple[Restate, ...]:
    return tuple(Restate(txid, f"r{txid}", f"r{txid}") for txid in txids)


def test_requested_restatements_start_until_one_place_of_the_window_is_left_to_other_batches() -> None:
    assert due(look(**wanted(1, 2, 3, 4)), ALL_ENDED) == restated(1, 2, 3)
    assert due(look(**wanted(2, 3, 4, 5)), {**ALL_ENDED, "r2": "running"}) == restated(3, 4)
    open_one = record(10, base="d9", replaces=Replaced(1, ""), run_id="r1")
    seen = look(**{**wanted(2, 3, 4), "allocated": 10, "opened": {10: open_one}})
    assert due(seen, {**ALL_ENDED, "r1": "running"}) == restated(2, 3)
    assert due(look(**wanted(1, 2)), ALL_ENDED, rules=replace(RULES, max_pending=1)) == restated(1)


def test_a_deleted_run_of_a_request_is_created_and_a_run_with_an_unknown_state_is_ignored() -> None:
    assert due(look(**wanted(1)), {}) == ()
    assert due(look(**wanted(1)), {"r1": None}) == restated(1)


def test_a_request_whose_run_ends_without_a_commit_is_retried_with_growing_waits_up_to_a_limit() -> None:
    seen = look(**wanted(1))
    memory = planned(seen, ALL_ENDED).memory
    for wait in (10.0, 20.0, 40.0):
        memory = CoordinatorMemory.from_json(memory.tried(1).to_json())
        assert due(seen, ALL_ENDED, wait - 1, memory=memory) == ()
        assert due(seen, ALL_ENDED, wait, memory=memory) == restated(1)
    assert due(seen, ALL_ENDED, 10_000.0, memory=memory.tried(1)) == ()


def test_a_run_that_is_about_to_restate_occupies_a_place_of_the_window() -> None:
    running = {**ALL_ENDED, "r1": "running"}
    opened = {10: record(10), 11: record(11), 12: record(12)}
    full = {"allocated": 12, "opened": opened}
    states = {**running, **{f"r{txid}": "running" for txid in opened}}
    assert due(look(current=10, base="d9", **full), states, ready=True) == (Allocate(),)
    assert due(look(**{**wanted(1), **full}), states, ready=True) == ()
    assert due(look(**wanted(1)), running, ready=True) == (Allocate(),)


def test_a_lane_begins_no_transaction_while_another_one_is_restated() -> None:
    rules = replace(RULES, lane=True)
    replacing = {10: record(10, base="d9", run_id="r1", replaces=Replaced(1, ""))}
    seen: dict[str, Any] = {"current": 10, "allocated": 10, "base": "d9", "opened": replacing}
    states = {**ALL_ENDED, "r1": "running"}
    assert due(look(**seen), states, ready=True, rules=rules) == ()
    assert due(look(**seen), states, ready=True) == (Allocate(),)
    assert due(look(**wanted(1)), states, ready=True, rules=rules) == ()
    assert due(look(**wanted()), ALL_ENDED, ready=True, rules=rules) == (Allocate(),)


# --- allocation


def test_the_first_transaction_is_allocated_before_a_ledger_exists() -> None:
    assert due(LedgerSnapshot(now=NOW), {}, ready=True) == (Allocate(),)


@pytest.mark.parametrize(("opened", "allocates"), [(0, True), (3, True), (4, False)])
def test_the_number_of_open_transactions_never_exceeds_the_window(opened: int, allocates: bool) -> None:
    records = [record(txid) for txid in range(1, opened + 1)]
    found = due(look(*records), {each.run_id: "running" for each in records}, ready=True)
    assert found == ((Allocate(),) if allocates else ())


def test_no_transaction_is_allocated_while_the_source_has_no_data() -> None:
    assert due(look(), {}) == ()


# --- recovery goes by records


def test_a_transaction_whose_run_is_queued_or_running_is_not_replayed() -> None:
    for state in ("queued", "running"):
        for phase in Phase:
            found = due(look(record(1, phase=phase)), {"r1": state}, 100.0)
            assert found == (), (state, phase)


def test_a_run_that_was_never_created_is_created() -> None:
    assert due(look(record(1, request="")), {"r1": None}) == (Start(1, "r1", "r1"),)


@pytest.mark.parametrize("state", ENDED)
@pytest.mark.parametrize("phase", list(Phase))
def test_a_run_that_ended_without_a_commit_is_replayed_in_every_end_state(state: str, phase: Phase) -> None:
    seen = look(record(1, phase=phase, attempt=2))
    assert due(seen, {"r1": state}, 9.9) == ()
    (action,) = due(seen, {"r1": state}, 10.0)
    assert isinstance(action, Replay)
    assert (action.txid, action.attempt, action.run_id, action.counts, action.noted) == (1, 2, "r1", True, False)


def test_a_permanently_refused_transaction_is_replayed_without_a_wait_and_then_blocked() -> None:
    seen = look(record(1, phase=Phase.COMMITTING, error="State 's' refused: it is another one.", for_good=1))
    (action,) = due(seen, {"r1": "failed"})
    assert isinstance(action, Replay)
    assert action.reason == "State 's' refused: it is another one."


def test_a_deleted_run_is_created_again_immediately_and_is_not_counted_as_a_failure() -> None:
    (action,) = due(look(record(1, key="interval:x")), {"r1": None})
    assert isinstance(action, Replay)
    assert (action.key, action.counts, action.reason) == ("interval:x", False, Finding.GONE.value)


@pytest.mark.parametrize("phase", list(Phase))
def test_a_transaction_that_left_a_lane_becomes_a_run_immediately_and_counts_no_failure(phase: Phase) -> None:
    seen = look(record(1, request="lane-1", phase=phase, error="task count: it broke"))
    (action,) = due(seen, {"r1": None})
    assert isinstance(action, Replay)
    assert (action.txid, action.counts, action.reason) == (1, False, "task count: it broke")


def test_a_transaction_whose_lane_no_longer_exists_is_replayed_with_a_general_reason() -> None:
    (action,) = due(look(record(1, request="lane-1")), {"r1": None})
    assert isinstance(action, Replay)
    assert action.reason == Finding.LEFT.value


@pytest.mark.parametrize("phase", list(Phase))
def test_a_transaction_in_a_lane_is_not_replayed_unless_it_takes_too_long(phase: Phase) -> None:
    seen = look(record(1, request="lane-1", phase=phase), lane=frozenset({1}))
    assert due(seen, {"r1": None}, 100.0, 899.0) == ()
    late = due(seen, {"r1": None}, 1000.0)
    assert [type(each) for each in late] == ([Replay] if phase in (Phase.PROCESSING, Phase.FAILED) else [])


def test_a_run_that_has_taken_over_a_lane_transaction_is_replayed_like_any_other_run() -> None:
    assert due(look(record(1, request="lane-1"), lane=frozenset({1})), {"r1": "running"}) == ()
    (action,) = due(look(record(1, request="try", error="no")), {"r1": "failed"}, 10.0)
    assert isinstance(action, Replay)
    assert action.counts


def test_a_replay_gets_the_reason_of_the_failure() -> None:
    (action,) = due(look(record(1, phase=Phase.FAILED, error="task a: ValueError: no")), {"r1": "failed"}, 10.0)
    assert isinstance(action, Replay)
    assert action.reason == "task a: ValueError: no"


def test_a_failed_transaction_is_replayed_only_after_its_run_has_ended() -> None:
    seen = look(record(1, phase=Phase.FAILED))
    assert due(seen, {"r1": "running"}, 500.0) == ()
    assert due(seen, {"r1": "failed"}, 10.0) != ()


def test_the_wait_before_a_replay_doubles_after_each_replay_up_to_a_limit() -> None:
    for count, wait in ((1, 20.0), (2, 40.0), (3, 80.0), (50, LONGEST_BACKOFF)):
        seen = look(record(1, attempt=7, replay=note(6, count)))
        assert due(seen, {"r1": "failed"}, wait - 0.1) == ()
        assert len(due(seen, {"r1": "failed"}, wait)) == 1


def test_the_count_of_replays_starts_again_after_a_replay_by_a_person() -> None:
    seen = look(record(1, attempt=7, replay=note(5, 3)))
    assert len(due(seen, {"r1": "failed"}, 10.0)) == 1


def test_the_wait_before_a_replay_starts_at_the_failure_and_ends_when_the_run_recovers() -> None:
    seen = look(record(1))
    found = planned(seen, {"r1": "failed"}, 9.0)
    found = planned(seen, {"r1": "running"}, 5.0, memory=found.memory)
    assert due(seen, {"r1": "failed"}, 9.0, memory=found.memory) == ()
    assert found.memory.health[1].finding is Finding.NOTHING


def test_the_plan_returns_the_wait_until_the_next_action() -> None:
    assert planned(look(record(1)), {"r1": "failed"}, 4.0).wait == 6.0
    assert planned(look(record(1)), {"r1": "running"}, 4.0).wait is None


def test_a_run_with_an_unknown_state_is_not_replayed_and_its_wait_continues() -> None:
    seen = look(record(1))
    found = planned(seen, {"r1": "failed"}, 4.0)
    found = planned(seen, {}, 4.0, 4.0, memory=found.memory)
    assert found.actions == ()
    assert len(due(seen, {"r1": "failed"}, memory=found.memory)) == 1


def test_a_replay_that_was_already_requested_is_repeated_only_after_it_had_no_effect() -> None:
    seen = look(record(1, replay=note(1)))
    assert due(seen, {"r1": "failed"}, 59.0) == ()
    (action,) = due(seen, {"r1": "failed"}, 60.0)
    assert isinstance(action, Replay)
    assert (action.noted, action.counts) == (True, False)
    tried = planned(seen, {"r1": "failed"}, 60.0).memory.tried(1).tried(1)
    assert due(seen, {"r1": "failed"}, 60.0, memory=tried) == ()
    assert len(due(seen, {"r1": "failed"}, 120.0, memory=tried)) == 1


# --- time-out


def test_a_transaction_that_is_processing_for_too_long_is_replayed_although_its_run_is_running() -> None:
    for phase in (Phase.PROCESSING, Phase.FAILED):
        seen = look(record(1, phase=phase))
        assert due(seen, {"r1": "running"}, 999.0) == ()
        (action,) = due(seen, {"r1": "running"}, 1000.0)
        assert isinstance(action, Replay)
        assert (action.counts, action.reason) == (True, Finding.LATE.value)
    assert due(look(record(1, phase=Phase.PROCESSED)), {"r1": "running"}, 5000.0) == ()
    assert due(look(record(1)), {"r1": "queued"}, 5000.0) == ()


def test_a_run_that_has_not_begun_is_never_late() -> None:
    seen = look(record(1, request=""))
    found = planned(seen, {"r1": "running"}, 5000.0)
    assert found.actions == ()
    assert due(look(record(1)), {"r1": "running"}, 999.0, memory=found.memory) == ()


def test_the_time_before_a_transaction_was_first_seen_counts_and_later_clock_changes_do_not() -> None:
    seen = look(record(1, began=(NOW - timedelta(seconds=900)).isoformat()))
    assert len(due(seen, {"r1": "running"}, 100.0)) == 1
    for jump in (timedelta(days=-1000), timedelta(days=1000)):
        found = planned(look(record(1)), {"r1": "running"}, 1.0)
        assert due(look(record(1), now=NOW + jump), {"r1": "running"}, 1.0, memory=found.memory) == ()
    future = look(record(1, began=(NOW + timedelta(days=1)).isoformat()))
    assert len(due(future, {"r1": "running"}, 1000.0)) == 1


def test_a_late_transaction_whose_replay_was_requested_gets_the_complete_time_limit_again() -> None:
    seen = look(record(1, replay=note(1)))
    assert due(seen, {"r1": "running"}, 1000.0, 999.0) == ()
    assert len(due(seen, {"r1": "running"}, 1000.0, 1000.0)) == 1


# --- a predecessor that moved


def moved(**first: Any) -> LedgerSnapshot:
    return look(record(1, ended="elsewhere", **first), record(2), record(3))


def test_a_batch_with_an_outdated_base_is_replayed_immediately_and_not_counted_as_a_failure() -> None:
    for state in ("running", *ENDED):
        found = due(moved(), {"r1": "running", "r2": state, "r3": "running"})
        assert [(each.txid, each.counts) for each in found if isinstance(each, Replay)] == [(2, False)], state
    assert due(moved(), {"r1": "running", "r2": "queued", "r3": "running"}) == ()


def test_a_batch_with_an_outdated_base_is_replayed_only_after_its_predecessor_is_decided() -> None:
    states = {"r1": "running", "r2": "running", "r3": "running"}
    for first in ({"phase": Phase.FAILED}, {"replay": note(1)}):
        assert due(moved(**first), states) == (), first
    for state in ("queued", *ENDED):
        found = due(moved(), {**states, "r1": state}, 1.0)
        assert not [each for each in found if isinstance(each, Replay) and each.txid == 2], state
    assert len(due(moved(request=""), {**states, "r1": "queued"})) == 1


def test_a_failed_transaction_waits_for_an_earlier_failed_transaction() -> None:
    seen = look(record(1, base="gone"), record(2, base="gone"), base="d0")
    states = {"r1": "failed", "r2": "failed"}
    assert [each.txid for each in due(seen, states, 100.0) if isinstance(each, Replay)] == [1]


# --- skips, yields, blocks


SKIP = Deed("me", "", "")


def test_a_requested_skip_starts_the_run_when_its_transaction_has_the_turn() -> None:
    for state in (None, *ENDED):
        (action,) = due(look(record(1, skip=SKIP)), {"r1": state})
        assert isinstance(action, Replay)
        assert not action.counts
    states = {"r1": "running", "r2": "failed"}
    assert due(look(record(1), record(2, skip=SKIP)), states, 1000.0 - 1) == ()
    assert due(look(record(1, skip=SKIP)), {"r1": "running"}, 999.0) == ()


def yielded(**runs: int | None) -> TopologyRecord:
    return replace(TOPOLOGY, yielded={run: Yield(1, txid, "") for run, txid in runs.items()})


@pytest.mark.parametrize(("first", "back"), [("running", True), ("queued", False), ("failed", False), (None, False)])
def test_a_run_that_yielded_is_started_again_when_the_first_run_is_running(first: str | None, back: bool) -> None:
    seen = look(record(1), record(2, yielded=1), topology=yielded(r2=2, r9=None))
    found = [each for each in due(seen, {"r1": first, "r2": "failed", "r9": "failed"}) if isinstance(each, Return)]
    assert found == ([Return("r2", 2), Return("r9", None)] if back else [])


def test_a_run_that_yielded_is_started_again_at_its_turn_and_when_no_transaction_is_open() -> None:
    assert due(look(record(2, yielded=1), current=2, topology=yielded(r2=2)), {"r2": "failed"}) == (Return("r2", 2),)
    assert due(look(topology=yielded(r9=None)), {"r9": "failed"}) == (Return("r9", None),)


def test_a_run_that_is_about_to_end_because_it_yields_is_not_replayed() -> None:
    seen = look(record(1), record(2, yielded=1), topology=yielded(r2=2, r9=None))
    assert due(seen, {"r1": "queued", "r2": "running", "r9": "running"}, 100.0) == ()


def test_a_yielded_run_that_no_longer_needs_a_start_is_removed_from_the_list() -> None:
    seen = look(record(1), record(2), topology=yielded(r2=2, r7=7, r8=None, r9=None))
    states = {"r1": "running", "r2": "running", "r8": "success", "r9": None}
    assert due(seen, states) == (CameBack("r2"), CameBack("r7"), CameBack("r8"), CameBack("r9"))


def test_a_yielded_run_that_got_its_transaction_in_the_meantime_is_replayed_once() -> None:
    seen = look(record(1), topology=yielded(r1=None))
    assert due(seen, {"r1": "failed"}, 10.0) == (
        Replay(1, 1, "r1", "r1", Finding.ENDED.value, True),
        CameBack("r1"),
    )


BLOCKED = replace(TOPOLOGY, blocked=BlockMark(1, 1, "", ""))


def test_a_blocked_transaction_is_left_to_a_person_and_other_transactions_continue() -> None:
    seen = look(record(1), record(2), topology=BLOCKED)
    found = due(seen, {"r1": "failed", "r2": "failed"}, 700.0, ready=True)
    assert [getattr(each, "txid", None) for each in found] == [2, None]


def test_a_transaction_is_no_longer_blocked_after_a_person_has_replayed_or_skipped_it() -> None:
    for record_ in (record(1, attempt=2), record(1, skip=SKIP)):
        assert Unblock(1) in due(look(record_, topology=BLOCKED), {"r1": "running"})
    assert due(look(current=2, topology=BLOCKED), {}) == (Unblock(1),)
    assert due(look(record(1), topology=BLOCKED), {"r1": "queued"}) == ()


def test_a_second_blocked_transaction_is_not_noted_until_the_first_one_is_resolved() -> None:
    runs = {"r1": "failed", "r2": "failed"}
    seen = look(record(1), record(2), topology=BLOCKED)
    memory = planned(seen, runs).memory.blocked(2)
    assert due(seen, runs, 900.0, memory=memory) == ()

    free = look(record(2), current=2)
    assert due(free, runs, 0.0, memory=memory) == (Replay(2, 1, "r2", "r2", Finding.ENDED.value, True),)
    again = look(record(2, attempt=2), current=2)
    assert due(again, runs, 9.0, memory=memory) == ()
    assert len(due(again, runs, 10.0, memory=memory)) == 1


# --- a dead committer


def committing(**more: Any) -> LedgerSnapshot:
    return look(record(1, phase=Phase.COMMITTING), **{"owner": False, "busy": True, **more})


def test_a_missing_committer_that_airflow_lists_as_running_is_replaced() -> None:
    assert due(committing(), {"r1": "running"}, 9.0) == ()
    (action,) = due(committing(), {"r1": "running"}, 10.0)
    assert isinstance(action, RestartDead)
    assert action.counts


def test_a_missing_committer_wakes_the_coordinator_task_if_the_trigger_cannot_query_airflow() -> None:
    suspect = committing(busy=None)
    assert due(suspect, {"r1": "running"}, 2.9) == ()
    found = planned(suspect, {"r1": "running"}, 50.0)
    assert found.actions == (Examine(1),)
    assert due(committing(), {"r1": "running"}, 9.0, memory=found.memory) == ()
    assert len(due(committing(), {"r1": "running"}, 10.0, memory=found.memory)) == 1


def test_a_committer_that_is_present_or_whose_presence_is_unknown_is_not_replaced() -> None:
    assert due(committing(owner=True), {"r1": "running"}, 100.0) == ()
    assert due(committing(owner=None), {"r1": "running"}, 100.0) == ()


def test_a_committer_that_returns_in_a_new_session_is_not_replaced_and_its_wait_starts_again() -> None:
    silent = planned(committing(), {"r1": "running"}, 9.0)
    shown = planned(committing(owner=True), {"r1": "running"}, 1.0, memory=silent.memory)
    assert shown.actions == ()
    assert due(committing(), {"r1": "running"}, 9.0, memory=shown.memory) == ()
    assert len(due(committing(), {"r1": "running"}, 10.0, memory=shown.memory)) == 1


def test_a_committer_that_airflow_retries_is_not_replaced_until_it_has_taken_the_turn() -> None:
    found = planned(committing(busy=False), {"r1": "running"})
    found = planned(committing(), {"r1": "running"}, 100.0, memory=found.memory)
    assert found.actions == ()
    seen = look(record(1, phase=Phase.COMMITTING, op="of the next grant"), owner=False, busy=True)
    assert len(due(seen, {"r1": "running"}, 10.0, memory=found.memory)) == 1


# --- memory


def test_the_memory_of_a_coordinator_is_stored_as_plain_json() -> None:
    memory = planned(look(record(1), record(2)), {"r1": "failed", "r2": "running"}, 3.0).memory.failed(1.0).tried(1)
    assert CoordinatorMemory.from_json(json.loads(json.dumps(memory.to_json()))) == memory
    for other in (None, {}, {"seen": {"1": {"of": "a later version"}}}, "text"):
        assert CoordinatorMemory.from_json(other) == CoordinatorMemory()


def test_the_memory_of_a_coordinator_omits_final_transactions() -> None:
    found = planned(look(record(1), record(2)), {"r1": "failed", "r2": "running"})
    assert set(planned(look(record(2), current=2), {"r2": "running"}, memory=found.memory).memory.health) == {2}


def test_a_failing_source_is_queried_at_growing_intervals() -> None:
    memory, waits = CoordinatorMemory(), []
    for _ in range(9):
        memory = memory.failed(1.0)
        waits.append(memory.source_wait)
    assert waits == [2, 4, 8, 16, 32, 60, 60, 60, 60]
    assert memory.answered(1.0) == CoordinatorMemory(source_wait=1.0)


# --- whatever the ledger and Airflow say

STATES = st.sampled_from(["queued", "running", "failed", "success", None, "?"])
AGES = st.floats(0, 2000)


@st.composite
def worlds(draw: st.DrawFn) -> tuple[LedgerSnapshot, dict[str, str | None]]:
    current, count = draw(st.integers(1, 3)), draw(st.integers(0, 4))
    records = [
        record(
            txid,
            request=draw(st.sampled_from(["", "try"])),
            attempt=draw(st.integers(1, 3)),
            phase=draw(st.sampled_from(list(Phase))),
            base=draw(st.sampled_from([f"d{txid - 1}", "moved"])),
            replay=draw(st.sampled_from([None, note(1), note(2, 3)])),
            skip=draw(st.sampled_from([None, SKIP])),
            yielded=draw(st.sampled_from([None, 1])),
        )
        for txid in range(current, current + count)
    ]
    topology = draw(st.sampled_from([TOPOLOGY, BLOCKED, yielded(r1=1, r2=None, r9=None)]))
    seen = look(*records, current=current, topology=topology)
    seen = replace(
        seen, owner=draw(st.sampled_from([None, True, False])), busy=draw(st.sampled_from([None, True, False]))
    )
    states = {run_id: draw(STATES) for run_id in seen.run_ids}
    return seen, {run_id: state for run_id, state in states.items() if state != "?"}


@given(st.lists(st.tuples(worlds(), AGES, st.booleans()), max_size=6))
def test_no_transaction_gets_two_actions_and_no_running_run_is_replayed(
    steps: list[tuple[tuple[LedgerSnapshot, dict[str, str | None]], float, bool]],
) -> None:
    memory, working = CoordinatorMemory(), 0.0
    for (seen, states), age, ready in steps:
        found = plan(seen, states, memory, elapsed=age, rules=RULES, ready=ready)
        working += age
        txids = [each.txid for each in found.actions if not isinstance(each, (Allocate, CameBack, Unblock, Follow))]
        assert len(txids) - txids.count(None) == len(set(txids) - {None})
        runs = [each.run_id for each in found.actions if isinstance(each, (Start, Replay, Return))]
        assert len(runs) == len(set(runs))
        assert all(run in states for run in runs)
        assert not [each for each in found.actions if isinstance(each, Allocate) and not seen.room(RULES.max_pending)]
        for each in found.actions:
            if isinstance(each, Start):
                assert states[each.run_id] is None
            if isinstance(each, Return):
                assert states[each.run_id] not in ("queued", "running")
            if isinstance(each, Replay) and states[each.run_id] in ("queued", "running"):
                assert states[each.run_id] == "running"
                one = seen.opened[each.txid]
                late = working >= RULES.message_timeout
                broken = one.base == "moved" and not each.counts
                dead = one.phase is Phase.COMMITTING and seen.owner is False and each.txid == seen.current
                assert late or broken or dead
        memory = CoordinatorMemory.from_json(json.loads(json.dumps(found.memory.to_json())))


@given(worlds())
def test_two_plans_at_the_same_time_are_equal(
    world: tuple[LedgerSnapshot, dict[str, str | None]],
) -> None:
    seen, states = world
    first = planned(seen, states)
    again = plan(seen, states, first.memory, elapsed=0.0, rules=RULES, ready=False)
    assert again.actions == first.actions


# --- what it does, on the ledger in memory


@dataclass
class Airflow:
    """The runs of a DAG, for two coordinators or more."""

    runs: dict[str, str] = field(default_factory=dict)
    conf: dict[str, Any] = field(default_factory=dict)
    starts: list[tuple[str, bool]] = field(default_factory=list)
    dead: list[str] = field(default_factory=list)
    paused: set[str] = field(default_factory=set)
    refuses: bool = False
    forbids: bool = False

    def start_run(
        self, dag_id: str, run_id: str, *, conf: Any = None, reset: bool = False, interval: Any = None
    ) -> bool:
        if self.refuses:
            why = {"status": 404, "reason": "there is no such DAG", "forbidden": self.forbids}
            raise compat.RunNotStarted(dag_id=dag_id, run_id=run_id, **why)
        if run_id in self.runs and not reset:
            return False
        self.starts.append((run_id, reset))
        self.conf.setdefault(run_id, conf)
        self.runs[run_id] = "queued"
        return True

    def restart_dead(self, dag_id: str, run_id: str) -> bool:
        self.dead.append(run_id)
        return True


class Ti(FakeTi):
    """A coordinator's task instance."""

    def get_task_states(self, *, dag_id: str, run_ids: list[str], task_ids: Any = None) -> dict[str, Any]:
        return {run_ids[0]: self.states}


class Finite(Numbers):
    """Three transactions, and a fourth one that is broken."""

    def initialize_transaction(self, txid: int, position: Any) -> Any:
        if txid > 3:
            raise SourceError(source="Finite", problem="it is broken", remedy="Mend it.")
        return super().initialize_transaction(txid, position)


class NoData(Numbers):
    def initialize_transaction(self, txid: int, position: Any) -> Batch:
        return None  # type: ignore[return-value]


@dataclass
class World:
    """A topology, its runs, and a clock that only `pass_` moves."""

    store: CountingStore
    airflow: Airflow
    log: Any
    source: Any = field(default_factory=Numbers)
    time: float = 0.0

    def __post_init__(self) -> None:
        self.spec = MemorySpec("numbers", "numbers", self.source, max_pending=4, memory=self.store, tasks=("count",))

    def coordination(
        self, memory: CoordinatorMemory | None = None, lane: AnyLane | None = None, sleeps: bool = True, **pace: Any
    ) -> Coordination:
        fields: dict[str, Any] = {"rules": RULES, "poll": 1.0, "linger": 5.0, "hold": 2.0, **pace}
        return Coordination(
            self.spec,
            Pace(**fields),
            self.store,
            Ti("coordinate", "c", dag_id="numbers_coordinator", states={"commit": "running"}),
            self.log,
            memory=memory or CoordinatorMemory(),
            clock=lambda: self.time,
            sleep=self.pass_ if sleeps else None,
            lane=lane,
        )

    def pass_(self, seconds: float) -> None:
        self.time += seconds

    def begin(self, run_id: str) -> Any:
        return ask(self.spec, FakeTi("begin", run_id), run_of(run_id), retry=False)

    def fail(self, run_id: str, txid: int, attempt: int) -> None:
        self.begin(run_id)
        store: Any = self.store
        ledger, task = self.spec.ledger(store), TaskTry("count", -1, "try")
        ledger.start(TransactionAttempt(txid, attempt), task)
        ledger.run(processing.fail, TransactionAttempt(txid, attempt), task, reason="no")
        self.airflow.runs[run_id] = "failed"

    @property
    def seen(self) -> LedgerSnapshot:
        found = SnapshotReader(self.store, Paths("/airflow_tx", "numbers")).look()
        assert found is not None
        return found


class Flowing(NoLane):
    """A lane that commits forty transactions, four a second.

    :param then: called after each, with how many there are.
    """

    rests = False

    def __init__(self, world: World, then: Callable[[int], None] = lambda begun: None) -> None:
        self.world = world
        self.then = then

    def work(self, seconds: float) -> Any:
        if self.begun == 40:
            return NothingNew(41)
        self.begun += 1
        self.world.pass_(0.25)
        self.then(self.begun)
        return None


@pytest.fixture
def world(store: CountingStore, log: Any, monkeypatch: pytest.MonkeyPatch) -> World:
    airflow = Airflow()
    log.error = log.warning
    monkeypatch.setattr(compat, "start_run", airflow.start_run)
    monkeypatch.setattr(compat, "restart_dead", airflow.restart_dead)
    monkeypatch.setattr(compat, "is_paused", lambda dag_id: dag_id in airflow.paused)
    monkeypatch.setattr(compat, "run_state", lambda ti, dag_id, run_id: airflow.runs.get(run_id))
    return World(store, airflow, log)


def test_a_coordinator_does_not_query_the_state_of_a_run_that_it_has_just_created(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    starts_before: list[int] = []

    def run_state(ti: Any, dag_id: str, run_id: str) -> str | None:
        starts_before.append(len(world.airflow.starts))
        return world.airflow.runs.get(run_id)

    monkeypatch.setattr(compat, "run_state", run_state)
    world.coordination().work_until_idle()
    assert set(starts_before) == {4}


def test_a_commit_wakes_a_coordinator_with_a_full_window(world: World) -> None:
    def commit_run(run_id: str) -> None:
        run = Run(world.spec, run_id, [], logging.getLogger())
        run.begin()
        run.work()
        run.commit_now()

    worker = world.coordination(sleeps=False, poll=3600.0, linger=3600.0)
    thread = Thread(target=worker.work_until_idle, daemon=True)
    thread.start()
    eventually(lambda: len(world.airflow.starts) == 4, 60, "four runs are started", interval=0.01)
    commit_run("tx-1")
    eventually(lambda: world.airflow.starts[4:] == [("tx-5", False)], 60, "the fifth run is started", interval=0.01)
    world.airflow.paused = {"numbers"}
    world.time += LOOK_EVERY
    commit_run("tx-2")
    thread.join(60)
    assert not thread.is_alive()
    assert len(world.airflow.starts) == 5


def test_a_coordinator_allocates_transactions_until_the_window_is_full_and_creates_their_runs(world: World) -> None:
    world.coordination().work_until_idle()
    assert world.airflow.starts == [(f"tx-{txid}", False) for txid in (1, 2, 3, 4)]
    assert world.airflow.conf["tx-1"] == {"airflow_tx": {"key": "tx-1"}}
    assert world.seen.allocated == 4
    assert world.time == 5.0


def test_a_batch_that_the_trigger_has_found_is_allocated_without_another_wait_for_the_source(world: World) -> None:
    event = {"due": ["Allocate"], "memory": CoordinatorMemory(source_wait=30.0).to_json()}
    world.coordination(known(event)).work_until_idle()
    assert world.seen.allocated == 4
    assert known({**event, "due": ["Replay"]}).source_wait == 30.0


def test_a_run_that_a_person_starts_gets_its_own_batch_between_the_batches_of_other_runs(world: World) -> None:
    coordination = world.coordination()
    coordination.step()
    assert world.begin("by hand").attempt == TransactionAttempt(2, 1)
    world.airflow.runs["by hand"] = "running"
    coordination.work_until_idle()
    assert [each.run_id for each in world.seen.opened.values()] == ["tx-1", "by hand", "tx-3", "tx-4"]


def test_a_coordinator_that_was_killed_before_it_created_a_run_creates_the_run_later(world: World) -> None:
    world.airflow.refuses = True
    world.coordination().step()
    assert world.seen.allocated == 1
    assert world.airflow.runs == {}
    world.airflow.refuses = False
    world.coordination().work_until_idle()
    assert world.airflow.starts[0] == ("tx-1", False)
    assert world.seen.allocated == 4


def test_a_run_that_cannot_be_created_is_logged_once_and_retried_with_growing_waits(world: World) -> None:
    world.airflow.refuses = True
    coordination = world.coordination(rules=replace(RULES, max_pending=1))
    for _ in range(100):
        coordination.step()
        world.pass_(1.0)
    told = [line for line in world.log.lines if "was not started" in line]
    assert len(told) == 1
    assert coordination.memory.health[1].tries == 4
    assert world.seen.topology is not None
    assert world.seen.topology.blocked is None  # the DAG may come back


def test_a_run_that_its_dag_does_not_allow_is_blocked_after_max_replays_with_the_reason(world: World) -> None:
    world.airflow.refuses = world.airflow.forbids = True
    coordination = world.coordination(rules=replace(RULES, max_pending=1, max_replays=2))
    coordination.step()
    (waiting,) = topology_view(world.store, world.spec.paths).opened
    reason = "Run 'tx-1' of DAG 'numbers' was not started: there is no such DAG"
    assert waiting.waiting_for == f"its run, which does not exist yet: {reason}"
    for _ in range(100):
        coordination.step()
        world.pass_(1.0)
    assert world.seen.topology is not None
    assert world.seen.topology.blocked is not None
    assert world.seen.topology.blocked.reason == reason
    assert coordination.memory.health[1].tries == 2

    world.begin("tx-1")  # a person has mended the DAG, and replays it
    world.airflow.runs["tx-1"] = "running"
    coordination.step()
    assert world.seen.topology.blocked is None
    (begun,) = topology_view(world.store, world.spec.paths).opened
    assert (begun.document.attempt, begun.waiting_for) == (2, "an ack of count")


def test_a_deleted_run_that_its_dag_forbids_is_blocked_after_max_replays_with_the_reason(world: World) -> None:
    coordination = world.coordination(rules=replace(RULES, max_pending=1, max_replays=2))
    coordination.work_until_idle()
    world.begin("tx-1")
    del world.airflow.runs["tx-1"]
    world.airflow.refuses = world.airflow.forbids = True
    for _ in range(1000):
        coordination.step()
        world.pass_(1.0)
    assert world.seen.topology is not None
    assert world.seen.topology.blocked is not None
    assert "was not started: there is no such DAG" in world.seen.topology.blocked.reason


def test_a_transaction_that_fails_repeatedly_is_replayed_with_waits_and_finally_blocked(world: World) -> None:
    coordination = world.coordination(rules=replace(RULES, max_replays=2))
    coordination.work_until_idle()
    for attempt in (1, 2, 3):
        world.fail("tx-1", 1, attempt)
        for _ in range(100):
            coordination.step()
            world.pass_(1.0)
    assert world.airflow.starts[4:] == [("tx-1", True), ("tx-1", True)]
    assert world.seen.topology is not None
    assert world.seen.topology.blocked is not None
    assert world.seen.topology.blocked.attempt == 3
    assert len([line for line in world.log.lines if "no longer replayed" in line]) == 1

    world.begin("tx-1")  # a person has cleared it
    world.airflow.runs["tx-1"] = "running"
    coordination.step()
    assert world.seen.topology.blocked is None


def test_a_second_blocked_transaction_is_noted_after_a_person_has_resolved_the_first_one(world: World) -> None:
    coordination = world.coordination(rules=replace(RULES, max_replays=0))
    coordination.work_until_idle()
    world.fail("tx-2", 2, 1)
    for _ in range(100):
        coordination.step()
        world.pass_(1.0)
    assert world.seen.topology is not None
    assert world.seen.topology.blocked is not None
    assert world.seen.topology.blocked.txid == 2
    world.fail("tx-1", 1, 1)
    for _ in range(100):
        coordination.step()
        world.pass_(1.0)
    assert world.seen.topology.blocked.txid == 1

    world.begin("tx-1")  # a person has cleared it
    world.airflow.runs["tx-1"] = "running"
    coordination.step()
    coordination.step()
    assert world.seen.topology.blocked is not None
    assert world.seen.topology.blocked.txid == 2


def test_a_permanently_refused_commit_is_blocked_immediately_with_the_text_of_the_refusal(world: World) -> None:
    coordination = world.coordination()
    coordination.work_until_idle()
    begun = world.begin("tx-1")
    store: Any = world.store
    ledger, task = world.spec.ledger(store), TaskTry("count", -1, "try")
    ledger.start(begun.attempt, task)
    ledger.run(processing.ack, begun.attempt, task)
    done: Any = ledger.run(processing.processed, begun.attempt, rows_digest=begun.rows_digest)
    refusal = FenceForeign(state="s", topology="numbers", found="one", expected="two")
    ledger.run(commit.note_commit_failed, begun.attempt, done.epoch, reason=str(refusal), for_good=refusal.for_good)
    world.airflow.runs["tx-1"] = "failed"
    starts = len(world.airflow.starts)
    for _ in range(2):  # before a replay of what may help would be due
        world.pass_(STATES_EVERY)
        coordination.step()
    assert len(world.airflow.starts) == starts
    assert world.seen.topology is not None
    assert world.seen.topology.blocked is not None
    assert world.seen.topology.blocked.reason == str(refusal)
    (told,) = [line for line in world.log.lines if "no longer replayed" in line]
    assert str(refusal) in told


def test_two_coordinators_replay_a_transaction_only_once(world: World) -> None:
    one, other = world.coordination(), world.coordination()
    one.work_until_idle()
    world.fail("tx-1", 1, 1)
    for _ in range(20):
        one.step()
        other.step()
        world.pass_(1.0)
    assert world.airflow.starts[4:] == [("tx-1", True)]
    assert world.seen.opened[1].replay is not None


def test_two_simultaneous_coordinators_allocate_each_transaction_once_and_in_order(world: World) -> None:
    one, other = world.coordination(), world.coordination()
    for _ in range(3):
        one.step()
        other.step()
    assert sorted(world.airflow.starts) == [(f"tx-{txid}", False) for txid in (1, 2, 3, 4)]


def test_a_replay_whose_coordinator_was_killed_is_continued_by_another_coordinator(world: World) -> None:
    world.coordination().work_until_idle()
    world.fail("tx-1", 1, 1)
    world.airflow.refuses = True
    first = world.coordination()
    for _ in range(12):
        first.step()
        world.pass_(1.0)
    assert world.seen.opened[1].replay is not None
    world.airflow.refuses = False
    other = world.coordination()
    for _ in range(70):
        other.step()
        world.pass_(1.0)
    assert world.airflow.starts[4:] == [("tx-1", True)]


def test_a_failing_source_does_not_stop_replays_and_is_logged_once(world: World) -> None:
    world.spec = replace(world.spec, source=Finite())
    coordination = world.coordination()
    coordination.work_until_idle()
    world.fail("tx-1", 1, 1)
    for _ in range(60):
        coordination.step()
        world.pass_(1.0)
    assert ("tx-1", True) in world.airflow.starts
    assert len([line for line in world.log.lines if "it is broken" in line]) == 1
    assert coordination.memory.source_failures < 10


def test_a_coordinator_frees_its_worker_if_the_source_has_no_data(world: World) -> None:
    world.spec = replace(world.spec, source=NoData())
    world.coordination().work_until_idle()
    assert world.time == 5.0
    assert world.airflow.starts == []


def test_runs_of_a_source_with_one_batch_per_run_are_replayed_but_not_started(world: World) -> None:
    world.begin("r1")
    source = Numbers()
    source.per_run = True  # type: ignore[misc]
    world.spec = replace(world.spec, source=source)
    world.coordination().work_until_idle()
    assert world.airflow.starts == [("r1", True)]
    assert world.seen.allocated == 1


@pytest.mark.parametrize("dag_id", ["numbers", "numbers_coordinator"])
def test_no_run_is_started_while_the_dag_or_the_coordinator_is_paused(world: World, dag_id: str) -> None:
    world.airflow.paused = {dag_id}
    assert world.coordination().work_until_idle() == PAUSED
    assert world.airflow.starts == []
    assert [line for line in world.log.lines if f"DAG {dag_id} is paused" in line]


@pytest.mark.parametrize("dag_id", ["numbers", "numbers_coordinator"])
def test_a_working_coordinator_stops_within_two_seconds_of_a_pause(
    world: World, monkeypatch: pytest.MonkeyPatch, dag_id: str
) -> None:
    def pauses_after_the_first(*arguments: Any, **options: Any) -> bool:
        world.airflow.paused = {dag_id}
        world.time += LOOK_EVERY
        return world.airflow.start_run(*arguments, **options)

    monkeypatch.setattr(compat, "start_run", pauses_after_the_first)
    assert world.coordination().work_until_idle() == PAUSED
    assert (world.seen.allocated, len(world.airflow.starts)) == (1, 1)
    world.airflow.paused = set()
    monkeypatch.setattr(compat, "start_run", world.airflow.start_run)
    world.coordination().work_until_idle()
    assert world.seen.allocated == 4


def test_a_missing_committer_is_replaced_only_once(world: World) -> None:
    from airflow_tx.ledger.api import Put
    from airflow_tx.ledger.records import encode

    world.begin("r1")
    world.airflow.runs["r1"] = "running"
    seen = replace(world.seen.opened[1], phase=Phase.COMMITTING, op="grant")
    world.store.multi([], [Put(Paths("/airflow_tx", "numbers").transaction(1), encode(seen))])
    world.spec = replace(world.spec, max_pending=1)
    one, other = (world.coordination(rules=replace(RULES, max_pending=1)) for _ in range(2))
    for _ in range(15):
        one.step()
        other.step()
        world.pass_(1.0)
    assert world.airflow.dead == ["r1"]


def test_a_batch_with_an_outdated_base_is_replayed_after_its_predecessor_is_decided(world: World) -> None:
    class Growing(OpaqueNumbers):
        size = 10

        def initialize_transaction(self, txid: int, position: Any) -> Batch:
            first = position or 0
            return Batch([first, first + self.size], first + self.size)

    world.spec = replace(world.spec, source=Growing())
    coordination = world.coordination(rules=replace(RULES, max_pending=2))
    coordination.work_until_idle()
    Growing.size = 7
    for run_id in ("tx-1", "tx-2"):
        world.begin(run_id)
        world.airflow.runs[run_id] = "running"
    world.begin("tx-1")
    assert world.seen.opened[1].ended == digest(7)
    coordination.work_until_idle()
    assert world.airflow.starts[2:] == [("tx-2", True)]
    assert any("not counted" in line for line in world.log.lines)


def test_a_deferred_coordinator_resumes_with_its_stored_memory(world: World) -> None:
    operator = CoordinateOperator(task_id="coordinate", transaction=world.spec, linger=0, poll=0.01)
    ti = Ti("coordinate", "c")
    with pytest.raises(TaskDeferred) as first:
        operator.execute({"ti": ti})  # type: ignore[typeddict-item]
    kwargs = first.value.trigger.serialize()[1]
    assert json.loads(json.dumps(kwargs))["rules"]["max_pending"] == 4
    world.fail("tx-1", 1, 1)
    memory = CoordinatorMemory.from_json(kwargs["memory"]).to_json()
    with pytest.raises(TaskDeferred) as second:
        operator.go_on({"ti": ti}, {"due": ["Replay"], "memory": memory})  # type: ignore[typeddict-item]
    seen = CoordinatorMemory.from_json(second.value.trigger.serialize()[1]["memory"])
    assert [line for line in world.log.lines if "was not started" in line] == []
    assert set(seen.health) == {1, 2, 3, 4}


def test_a_coordinator_with_an_unreachable_ledger_is_deferred_to_its_trigger(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(path: str) -> Any:
        raise StoreUnavailable(hosts="h", connection="c", reason="none")

    monkeypatch.setattr(world.store, "get", unreachable)
    operator = CoordinateOperator(task_id="coordinate", transaction=world.spec)
    with pytest.raises(TaskDeferred):
        operator.execute({"ti": Ti("coordinate", "c")})  # type: ignore[typeddict-item]


def test_a_coordinator_without_a_transaction_is_refused_with_a_one_line_error() -> None:
    with pytest.raises(TransactionDefinitionError, match="after the DAG in its file"):
        coordinator_dag("never_defined")


@pytest.mark.parametrize(("leaves", "looked"), [(0, [0, 8, 16, 24, 32]), (3, [0, 3, 11, 19, 27, 35])])
def test_a_lane_reads_the_ledger_rarely_and_reads_it_when_a_transaction_leaves_the_lane(
    world: World, monkeypatch: pytest.MonkeyPatch, leaves: int, looked: list[int]
) -> None:
    found = list[int]()
    look = SnapshotReader.look

    def noted(reader: SnapshotReader) -> LedgerSnapshot | None:
        found.append(lane.begun)
        return look(reader)

    def leave(begun: int) -> None:
        lane.left += begun == leaves

    lane = Flowing(world, leave)
    monkeypatch.setattr(SnapshotReader, "look", noted)
    world.coordination(lane=lane).work_until_idle()
    assert [begun for begun in found if begun < 40] == looked


def test_a_lane_stops_beginning_transactions_soon_after_its_dag_is_paused(world: World) -> None:
    def pause(begun: int) -> None:
        world.airflow.paused |= {"numbers"} if begun == 12 else set()

    lane = Flowing(world, pause)
    assert world.coordination(lane=lane).work_until_idle() == PAUSED
    assert lane.begun <= 12 + LOOK_EVERY / 0.25
