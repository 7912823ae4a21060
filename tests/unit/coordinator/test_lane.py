"""The lane on the ledger in memory: what goes well never becomes a run, and what does not becomes one, exactly."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd  # type: ignore[import-untyped]
import polars as pl
import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from airflow.sdk import get_current_context, task

from airflow_tx import FailedBatch, check, current_batch
from airflow_tx.base.errors import SourceNotSettled, StagingUnavailable
from airflow_tx.coordinator import lane as lane_module
from airflow_tx.coordinator import lane_tasks, worker
from airflow_tx.coordinator.lane import Lane
from airflow_tx.coordinator.lane_tasks import LaneOutputs, LaneTransaction
from airflow_tx.coordinator.plan import SnapshotReader
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.api import Put, Watch
from airflow_tx.ledger.attempt import TaskTry, Token
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import CheckNote, Replaced
from airflow_tx.ledger.records import Phase, TopologyRecord, decode, encode
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.ledger.steps.replay import WishRequest, want, wishes
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.sources.files.source import FileSource
from airflow_tx.state import Fence
from airflow_tx.testing.eventually import Hopeless, eventually
from airflow_tx.transaction.processing.begin import allocate
from airflow_tx.transaction.processing.task import Processing
from tests.stage import StageRun
from tests.unit.bench import Lending, run_of
from tests.unit.coordinator.lane_world import (
    LONG,
    PATHS,
    RULES,
    Bounded,
    LaneWorld,
    LongerWorld,
    LossyStore,
    OpaqueBounded,
    killed_lanes,
    requests_of,
    rows_of,
)


def ask_for(world: LaneWorld, run_id: str) -> None:
    """Let a run take the next transaction."""
    StageRun(world.spec, run_id, world.log).begin(info=run_of(run_id), dag=world.dag)


def begun_by_lane(world: LaneWorld, lane: Lane) -> Begun:
    """The next transaction, as the lane begins it."""
    begun = allocate(world.spec, world.spec.ledger(world.store), lane.task_try)
    assert isinstance(begun, Begun)
    return begun


class Fails:
    """What a task does with its batch: it fails for some transactions."""

    def __init__(self, *txids: int, error: BaseException | None = None) -> None:
        self.txids = txids
        self.error = error or FailedBatch("not this one")

    def __call__(self, batch: Any) -> None:
        if batch.txid in self.txids:
            raise self.error


def test_successful_transactions_of_the_lane_are_committed_in_order_without_a_run(make: Any) -> None:
    world = make(source=Bounded(5))
    world.coordinate()
    world.assert_exact(5)
    assert world.runs == {}
    assert [entry.run_id for entry in world.history.values()] == [f"tx-{txid}" for txid in range(1, 6)]
    assert {entry.attempt for entry in world.history.values()} == {1}
    assert all(entry.receipt is not None for entry in world.history.values())
    assert world.store.shown == {}


def entries_of(world: LaneWorld) -> dict[int, Any]:
    """The journal entries that receipts name, by txid."""
    journal = JournalArea(world.spec.staging(), world.spec.ledger(world.store).incarnation())
    receipts = {txid: entry.receipt for txid, entry in world.history.items()}
    return {txid: journal.read(receipt.journal) for txid, receipt in receipts.items() if receipt and receipt.journal}


def test_each_transaction_of_the_lane_writes_an_entry_to_the_journal(make: Any) -> None:
    world = make(source=Bounded(5))
    world.coordinate()
    found = entries_of(world)
    assert {txid: entry.metadata for txid, entry in found.items()} == {
        txid: [10 * txid - 10, 10 * txid] for txid in range(1, 6)
    }
    assert [list(entry.contributions["totals"].rows()) for entry in found.values()] == [
        rows_of(range(10 * txid - 10, 10 * txid)) for txid in found
    ]


def test_a_lane_transaction_whose_journal_entry_cannot_be_written_becomes_a_run(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = JournalArea.write

    def full(self: JournalArea, entry: Any) -> str:
        if (entry.txid, entry.attempt) == (2, 1):
            raise StagingUnavailable(uri="/staging", reason="No space left on device")
        return write(self, entry)

    monkeypatch.setattr(JournalArea, "write", full)
    world = make(source=Bounded(4))
    with world.executing():
        world.settle()
    world.assert_exact(4)
    assert world.runs == {"tx-2": "success"}
    assert [entry.attempt for entry in entries_of(world).values()] == [1, 2, 1, 1]
    assert any("No space left on device" in line for line in world.log.lines)


class Framed(LaneWorld):
    """One topology whose task returns a frame."""

    def counted(self) -> Any:
        @task
        def count() -> Any:
            self.on_batch(current_batch())
            return pl.DataFrame(rows_of([row["number"] for row in current_batch().read()]))

        return count()


class FramedTwice(LaneWorld):
    """One topology whose task returns two frames by name, of which a later task reads one."""

    def counted(self) -> Any:
        @task(multiple_outputs=True)
        def read() -> dict[str, Any]:
            numbers = [row["number"] for row in current_batch().read()]
            return {"numbers": pa.table({"number": numbers}), "other": pd.DataFrame({"n": [1]})}

        @task
        def count(ref: Any) -> Any:
            numbers = [row["number"] for row in current_batch().read_output(ref)]
            return pl.DataFrame(rows_of(numbers))

        found: Any = read()
        return count(found["numbers"])


@pytest.mark.parametrize("kind", [Framed, FramedTwice])
def test_a_data_frame_that_a_task_of_the_lane_returns_is_staged(make: Any, kind: Any) -> None:
    world = make(kind, source=Bounded(3))
    world.coordinate()
    world.assert_exact(3)
    assert world.runs == {}


def test_a_lane_works_with_a_window_of_one_transaction(make: Any) -> None:
    world = make(options={"max_pending": 1})
    world.coordinate(rules=replace(RULES, max_pending=1))
    world.assert_exact(3)


@pytest.mark.parametrize(("kind", "each"), [(LaneWorld, 3), (LongerWorld, 5)])
def test_a_lane_sends_one_request_for_several_consecutive_steps(make: Any, kind: Any, each: int) -> None:
    """The ack of an earlier task is read again by the step `processed`."""
    world = make(kind, source=Bounded(30), options={"max_pending": 1})
    lane = world.lane()
    with lane.opened():
        lane.work(LONG)
        while lane.working:
            lane.wait(0.1)
        requests = world.store.requests
    world.assert_exact(30)
    assert requests <= each * 30 + 20


@pytest.mark.parametrize("error", [FailedBatch("not this one"), ValueError("?"), SystemExit(3)])
@pytest.mark.parametrize("source", [Bounded, OpaqueBounded])
def test_a_failed_lane_transaction_becomes_a_run_and_the_others_commit_in_order(
    make: Any, source: Any, error: Any
) -> None:
    world = make(source=source(5), on_batch=Fails(2, error=error))
    with world.executing():
        world.settle()
    world.assert_exact(5)
    assert world.runs == {"tx-2": "success"}
    assert world.conf["tx-2"] == {"airflow_tx": {"key": "tx-2"}}
    assert [entry.attempt for entry in world.history.values()] == [1, 2, 1, 1, 1]
    (why,) = [line for line in world.log.lines if "is replayed" in line]
    assert "not counted" in why
    assert f"task count: {type(error).__name__}" in why


class BoundedLending(Lending, Bounded):
    """So many transactions of numbers that come over a connection."""

    def __init__(self, count: int) -> None:
        Lending.__init__(self)
        self.count = count


def test_files_that_a_source_opens_for_a_lane_task_are_closed_when_the_task_ends_or_fails(make: Any) -> None:
    held: list[Any] = []

    def reads(batch: Any) -> None:
        assert "open" not in world.source.lent
        held.append(batch.read())
        next(held[-1])
        Fails(2)(batch)

    world = make(source=BoundedLending(4), on_batch=reads)
    with world.executing():
        world.settle()
    world.assert_exact(4)
    assert world.runs == {"tx-2": "success"}
    assert world.source.lent == ["closed"] * 7


class ReadsFirst(LaneWorld):
    """One topology whose task has read its batch before anything happens."""

    def counted(self) -> Any:
        @task
        def count() -> list[dict[str, Any]]:
            numbers = [row["number"] for row in current_batch().read()]
            self.on_batch(current_batch())
            return rows_of(numbers)

        return count()


def test_a_file_that_is_replaced_while_a_lane_task_reads_it_is_not_counted(make: Any, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text("number\n1\n")

    def replaces(batch: Any) -> None:
        file.write_text("number\n1\n2\n")

    world = make(ReadsFirst, source=FileSource(f"{tmp_path}/*.csv", schema="number INT"), on_batch=replaces)
    world.coordinate()
    (why,) = [line for line in world.log.lines if "is replayed" in line]
    assert "task count: SourceError: Source FileSource(" in why
    assert world.history == {}
    assert world.totals == (0, 0)


def test_a_lane_batch_that_is_refused_because_of_its_rows_does_not_become_a_run(make: Any, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("number\nten\n")
    source = FileSource(f"{tmp_path}/*.csv", schema="number INT")
    world = make(ReadsFirst, source=source)
    world.coordinate()
    assert world.runs == {}
    blocked = decode(TopologyRecord, PATHS.record, world.store.get(PATHS.record).data).blocked
    assert blocked is not None
    assert f"{tmp_path}/a.csv: line 2: number has an unusable value, which is in the log of the task" in blocked.reason
    assert any(f"{tmp_path}/a.csv: line 2: number = 'ten' does not fit the schema" in str(e) for e in world.log.shown)
    assert any("it stays failed until a person acts" in line for line in world.log.lines)


def test_a_lane_reads_a_backlog_of_small_files_in_batches_of_growing_size(make: Any, tmp_path: Path) -> None:
    for number in range(3_300):
        (tmp_path / f"{number:04}.csv").write_text(f"number\n{number}\n")
    source = FileSource(f"{tmp_path}/*.csv", schema="number INT", target_seconds=600)
    world = make(ReadsFirst, source=source, options={"max_pending": 1})
    world.coordinate(rules=replace(RULES, max_pending=1))
    sizes = [entry.size and entry.size["files"] for entry in world.history.values()]
    assert sizes == [100, 1_000, 2_000, 200]
    assert world.totals == (3_300, sum(range(3_300)))


def test_a_failed_lane_transaction_has_the_same_record_as_a_transaction_whose_run_failed(make: Any) -> None:
    world = make(on_batch=Fails(1))
    lane = world.lane()
    with lane.opened():
        lane.work(0.0)
        assert lane.working == frozenset()
    record = world.record(1)
    assert record is not None
    assert record.phase is Phase.FAILED
    assert record.error == "FailedBatch: not this one" or "FailedBatch" in str(record.error)
    assert record.run_id == "tx-1"


def test_a_lane_commit_that_is_refused_permanently_does_not_become_a_run(make: Any) -> None:
    world = make(source=Bounded(2))
    world.state.database.fence = Fence("another ledger", Token(1, 1, 1, 1, "nonce"), applied=True)
    world.coordinate(world.lane(patience=0.1))
    assert world.runs.keys() <= {"tx-2"}
    assert world.history == {}
    blocked = decode(TopologyRecord, PATHS.record, world.store.get(PATHS.record).data).blocked
    assert blocked is not None
    assert blocked.reason.startswith("State 'totals' refused: its fence belongs to ledger another ledger")
    assert any("it stays failed until a person acts" in line for line in world.log.lines)


class Checked(LaneWorld):
    """A topology whose second batch has too large a sum."""

    def checks_of(self, counted: Any) -> list[Any]:
        return [check("small", counted, rows="sum < 100"), check("some", counted, value="count(*) > 0")]


def test_a_lane_output_that_fails_a_check_does_not_become_a_run_and_can_be_accepted(make: Any) -> None:
    world = make(Checked, source=Bounded(2))
    world.coordinate(world.lane(patience=0.1))
    assert world.runs.keys() <= {"tx-2"}
    assert list(world.history) == [1]
    assert world.history[1].receipt.checks == {"small": CheckNote(True), "some": CheckNote(True)}
    record = world.record(2)
    assert (record.for_good, list(record.checks)) == (1, ["small"])
    assert "airflow tx accept-check numbers 2 small --why TEXT" in str(record.remedy)
    blocked = decode(TopologyRecord, PATHS.record, world.store.get(PATHS.record).data).blocked
    assert blocked is not None
    assert blocked.reason.startswith("Commit of transaction 2.1 refused: check 'small' failed: sum < 100 does not")
    accepted = {"small": record.checks["small"].digest}
    world.spec.ledger(world.store).accept_checks(2, accepted, audit=Audit("ada", "a large day"))
    world.start_run("numbers", "tx-2", reset=True)  # as a replay by a person does
    assert world.execute("tx-2").attempt.attempt == 2
    world.assert_exact(2)
    assert world.history[2].receipt.checks["small"].accepted.who == "ada"


def test_a_task_that_reads_the_context_of_its_run_leaves_the_lane(make: Any) -> None:
    def asks(batch: Any) -> None:
        get_current_context()["dag_run"]

    world = make(source=Bounded(1), on_batch=asks)
    with world.executing():
        world.settle()
    world.assert_exact(1)
    assert world.runs == {"tx-1": "success"}


def test_a_task_that_takes_too_long_leaves_the_lane(make: Any) -> None:
    def hangs(batch: Any) -> None:
        threading.Event().wait(60)

    world = make(source=Bounded(1), on_batch=hangs, options={"message_timeout": 0.2})
    with world.executing():
        world.settle()
    world.assert_exact(1)
    assert world.history[1].attempt == 2
    assert any(
        "AirflowTaskTimeout: it takes longer than the processing_timeout of 0.2 s" in line for line in world.log.lines
    )


def test_after_several_failures_in_a_row_a_lane_creates_runs_instead(make: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(lane_module, "LEFT_IN_A_ROW", 2)
    world = make(source=Bounded(6), on_batch=Fails(1, 2, 3, 4, 5, 6))
    with world.executing():
        world.settle()
    world.assert_exact(6)
    assert [entry.attempt for entry in world.history.values()] == [2, 2, 1, 1, 1, 1]
    assert "2 transactions in a row have left the lane. The next transactions become runs." in world.log.lines


def test_a_lane_transaction_that_waits_too_long_for_an_earlier_run_becomes_a_run(make: Any) -> None:
    world = make(source=Bounded(3), on_batch=Fails(1))
    lane = world.lane(patience=0.1)
    with lane.opened():
        lane.work(0.0)
        lane.work(0.0)
        while lane.working:
            lane.wait(0.1)
    record = world.record(2)
    assert record is not None
    assert record.phase is Phase.PROCESSED
    assert "it did not get the turn within 0.1 s, because transaction 1 has it" in str(record.error)
    with world.executing():
        world.settle()
    world.assert_exact(3)
    assert world.runs == {"tx-1": "success", "tx-2": "success"}


def restating(world: LaneWorld, txid: int, *, restates: bool) -> None:
    """Let an open transaction be one that restates an earlier one, or not."""
    found = world.record(txid)
    assert found is not None
    changed = replace(found, replaces=Replaced(0, "") if restates else None)
    world.store.multi((), (Put(PATHS.transaction(txid), encode(changed)),))


class Hours:
    """The time of a lane: an hour passes whenever it waits for its turn, until time stands.

    :ivar waits: how often it has waited.
    """

    def __init__(self, world: LaneWorld, monkeypatch: pytest.MonkeyPatch) -> None:
        self.waits = 0
        self.stands = False
        self._seconds = 0.0
        self._watch = world.store.watch
        monkeypatch.setattr(lane_module, "_POLL", 0.01)
        monkeypatch.setattr(world.store, "watch", self.watch)

    def clock(self) -> float:
        return self._seconds

    @contextmanager
    def watch(self, *paths: str) -> Iterator[Watch]:
        with self._watch(*paths) as found:
            yield found
        self._seconds += 0 if self.stands else 3600
        self.waits += 1

    def await_some(self, lane: Lane) -> None:
        """Wait until it has waited some more."""
        before = self.waits

        def has_waited() -> bool:
            if not lane.working:
                raise Hopeless("it waits no more")
            return self.waits > before + 3

        eventually(has_waited, LONG, "the lane has waited for its turn", interval=0.01)


def test_a_lane_transaction_waits_for_a_restatement_without_a_time_limit(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = make(source=Bounded(3))
    world.conf["by-hand"] = {}
    ask_for(world, "by-hand")
    restating(world, 1, restates=True)
    hours = Hours(world, monkeypatch)
    lane = world.lane(patience=60.0, clock=hours.clock)
    with lane.opened():
        lane.work(0.0)
        hours.await_some(lane)
        assert lane.working == {2}
        hours.stands = True
        hours.await_some(lane)
        restating(world, 1, restates=False)
        world.execute("by-hand")
        while lane.working:
            lane.wait(0.1)
    world.assert_exact(2)
    assert not lane.rests


def test_a_lane_continues_during_five_restatements_and_counts_every_row_once(make: Any) -> None:
    world = make(source=Bounded(5))
    world.coordinate()
    world.assert_exact(5)
    ledger = world.spec.ledger(world.store)
    for txid in range(1, 6):
        ledger.run(want, WishRequest(txid, f"tx-{txid}", f"tx-{txid}"), Audit("ada", "a bug in the job"))
    world.source.count = 10
    with world.executing():
        world.settle_all(15)
    assert wishes(world.store, PATHS) == ()
    restated = {entry.restates for entry in world.history.values()} - {None}
    assert restated == {1, 2, 3, 4, 5}
    by_lane = [txid for txid, entry in world.history.items() if txid > 5 and entry.restates is None]
    assert [world.history[txid].run_id for txid in by_lane] == [f"tx-{txid}" for txid in by_lane]
    assert {run_id for run_id, state in world.runs.items() if state == "success"} == {
        f"tx-{txid}" for txid in range(1, 6)
    }
    assert world.totals == (100, sum(range(100)))


def test_a_lane_that_ends_while_it_waits_for_a_restatement_records_no_failure(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_module, "LEFT_IN_A_ROW", 1)
    world = make(source=Bounded(3))
    ask_for(world, "by-hand")
    restating(world, 1, restates=True)
    hours = Hours(world, monkeypatch)
    lane = world.lane(patience=60.0, clock=hours.clock)
    with lane.opened():
        lane.work(0.0)
        hours.await_some(lane)
    assert not lane.rests
    record = world.record(2)
    assert record is not None
    assert "because transaction 1 has it" in str(record.error)


@pytest.mark.parametrize("dag_id", ["numbers", "numbers_coordinator"])
def test_a_paused_lane_begins_no_transaction_and_commits_the_transactions_that_it_has_begun(
    make: Any, dag_id: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worker, "LOOK_EVERY", 0.0)
    world = make(source=Bounded(9))
    pausing = threading.Event()

    def pauses(batch: Any) -> None:
        if batch.txid == 3:
            world.paused = dag_id
            pausing.set()

    world.on_batch = pauses
    world.coordinate(poll=0.0001)
    assert pausing.is_set()
    assert 3 <= len(world.history) < 9
    world.assert_exact(len(world.history))
    world.paused = ""
    world.coordinate()
    world.assert_exact(9)


def test_after_a_change_of_the_dag_file_the_lane_ends_between_two_transactions(make: Any, monkeypatch: Any) -> None:
    world = make(source=Bounded(9))
    version = [1.0, 1]
    monkeypatch.setattr(lane_module, "_version", lambda file: tuple(version))

    def changes(batch: Any) -> None:
        if batch.txid == 3:
            version[0] = 2.0

    world.on_batch = changes
    world.coordinate(poll=0.0001)
    assert 3 <= len(world.history) < 9
    world.assert_exact(len(world.history))


def test_runs_are_committed_while_the_lane_works(make: Any) -> None:
    world = make(source=Bounded(6))
    world.conf["by-hand"] = {}

    def takes_the_next(batch: Any) -> None:
        if batch.txid == 2:
            threading.Thread(target=world.execute, args=("by-hand",)).start()
            while world.store.get(PATHS.run("by-hand")) is None:
                threading.Event().wait(0.01)

    world.on_batch = takes_the_next
    world.coordinate()
    world.assert_exact(6)
    assert world.history[3].run_id == "by-hand"


def test_a_skip_is_executed_in_the_lane_when_its_transaction_has_the_turn(make: Any) -> None:
    world = make(source=Bounded(4))

    def is_not_wanted(batch: Any) -> None:
        if batch.txid == 2:
            world.spec.ledger(world.store).run(note_skip, 2, Audit("ada", "not wanted"))

    world.on_batch = is_not_wanted
    world.coordinate()
    outcomes = [entry.status for entry in world.history.values()]
    assert outcomes == ["COMMITTED", "SKIPPED", "COMMITTED", "COMMITTED"]
    assert world.totals == (30, sum(range(40)) - sum(range(10, 20)))
    assert world.runs == {}


def test_two_lanes_share_the_transactions_of_a_topology(make: Any) -> None:
    world = make(source=Bounded(12))
    world.coordinate_by_two()
    world.assert_exact(12)
    assert world.runs == {}


def test_a_transaction_of_a_running_lane_is_not_replayed(make: Any) -> None:
    world = make(source=Bounded(1), options={"max_pending": 1})
    lane = world.lane()
    with lane.opened():
        begun = begun_by_lane(world, lane)
        look = SnapshotReader(world.store, PATHS).look()
        assert look is not None
        assert look.lane == {1}
        world.coordinate()
        assert world.runs == {}
    with world.executing():
        world.settle()
    world.assert_exact(1)
    assert world.runs == {begun.run_id: "success"}


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize(
    ("kind", "source", "pending"),
    [(LaneWorld, Bounded, 4), (LaneWorld, Bounded, 1), (LaneWorld, OpaqueBounded, 4), (LongerWorld, OpaqueBounded, 4)],
)
def test_a_lane_that_is_killed_at_any_request_counts_every_row_once(
    make: Any, kind: Any, source: Any, pending: int, arrives: bool
) -> None:
    living = partial(make, kind, source=source(3), options={"max_pending": pending})
    for world in killed_lanes(living, arrives=arrives, linger=0.0, rules=replace(RULES, max_pending=pending)):
        world.assert_exact(3)
        assert len(world.runs) <= 3


@pytest.mark.parametrize("arrives", [False, True])
@pytest.mark.parametrize("pending", [1, 4])
def test_a_lane_continues_without_a_run_after_any_reply_is_lost(make: Any, pending: int, arrives: bool) -> None:
    pace = {"linger": 0.0, "rules": replace(RULES, max_pending=pending)}
    living = partial(make, source=Bounded(3))
    for kind, number in requests_of(living, LossyStore, **pace):
        world = living()
        world.settle(store=LossyStore(world.store, number, kind, arrives=arrives), **pace)
        world.assert_exact(3)
        assert world.runs == {}
        assert {entry.attempt for entry in world.history.values()} == {1}


def test_a_lane_writes_no_value_of_a_transaction_that_a_run_has_taken_over(make: Any) -> None:
    world = make(source=Bounded(1))

    def is_taken_over(batch: Any) -> None:
        world.conf["tx-1"] = {"airflow_tx": {"key": "tx-1"}}
        assert world.execute("tx-1").attempt.attempt == 2

    world.on_batch = is_taken_over
    world.coordinate()
    world.assert_exact(1)
    assert world.history[1].attempt == 2


def test_a_committer_logs_that_it_waits_for_a_transaction_of_a_lane(make: Any) -> None:
    world = make(source=Bounded(2))
    begun_by_lane(world, world.lane())
    world.conf["by-hand"] = {}
    with pytest.raises(TimeoutError):
        world.execute("by-hand", seconds=0.0)
    assert world.log.lines[-1] == (
        "Transaction 2 of numbers waits for transaction 1 (PROCESSING), in the lane of its coordinator. "
        "There is nothing to do: a transaction that leaves the lane becomes a run."
    )


def test_a_lane_writes_no_value_of_a_transaction_after_a_run_has_started_one_of_its_tasks(make: Any) -> None:
    """A retried `begin` of the run goes on with the attempt of the lane, if it has not started any task."""
    world = make(source=Bounded(1))
    lane = world.lane()
    begun = begun_by_lane(world, lane)
    Processing(world.spec, begun, TaskTry("count", -1, "of a run"), anchored=True).start()
    transaction = LaneTransaction(lane.plan, begun, world.spec.ledger(world.store), lane.task_try, LaneOutputs())
    with pytest.raises(Exception, match="count"):
        transaction.process()


class Settling(Bounded):
    """Gives the rows of its second transaction only when it is asked for the third time.

    :param for_good: whether that attempt never gets them.
    """

    def __init__(self, count: int, *, for_good: bool = False) -> None:
        super().__init__(count)
        self.for_good = for_good
        self.asked: list[int] = []  # a task reads from a copy

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Any:
        if attempt.txid == 2 and attempt.attempt == 1:
            self.asked.append(attempt.txid)
            if len(self.asked) < 3:
                raise SourceNotSettled(source="settling", problem="rows are missing")
        return super().emit_batch(attempt, metadata, spark)

    def unsettled(self, metadata: Any, error: SourceNotSettled) -> Any:
        return FailedBatch("another transaction counts since this attempt began") if self.for_good else error


def test_a_transaction_whose_rows_can_still_change_stays_in_the_lane_and_is_tried_again(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_tasks, "UNSETTLED_PAUSE", 0.01)
    world = make(source=Settling(4))
    with world.executing():
        world.settle()
    world.assert_exact(4)
    assert (world.runs, world.source.asked) == ({}, [2, 2, 2])
    assert [entry.attempt for entry in world.history.values()] == [1, 1, 1, 1]


def test_a_transaction_of_the_lane_that_needs_another_attempt_becomes_a_run(make: Any) -> None:
    world = make(source=Settling(4, for_good=True))
    with world.executing():
        world.settle()
    world.assert_exact(4)
    assert world.runs == {"tx-2": "success"}
    assert [entry.attempt for entry in world.history.values()] == [1, 2, 1, 1]
