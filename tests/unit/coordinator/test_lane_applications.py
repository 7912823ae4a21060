"""Applications in the lane, on a server that is this process: one that fails, hangs, or loses its session."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.sdk import get_current_context

from airflow_tx import FailedBatch, SparkConnectBatchOperator
from airflow_tx.coordinator import lane as lane_module
from airflow_tx.coordinator import lane_applications, lane_tasks
from airflow_tx.ledger.answers import NoData
from airflow_tx.ledger.row_digest import RowsDigest
from airflow_tx.ledger.steps.processing import RowsRead
from airflow_tx.outputs.staging.area import (
    Manifest,
    StagingArea,
    TryDir,
    dir_of,
    read_manifest,
    write_manifest,
    write_rows,
)
from airflow_tx.spark import connect
from airflow_tx.spark.connect import SessionTraces
from airflow_tx.testing.eventually import eventually
from tests.unit.coordinator.lane_world import LONG, TASK, Bounded, LaneWorld, OpaqueBounded, rows_of

OUTPUT = "counts"


class Session:
    """Whoever works in it can be interrupted."""

    def __init__(self, traces: SessionTraces) -> None:
        self.traces = traces
        self.interrupted = threading.Event()
        self.tags = set[str]()

    def interruptAll(self) -> None:
        self.interrupted.set()

    def stop(self) -> None:
        self.interrupted.set()

    def clearTags(self) -> None:
        self.tags = set[str]()

    def addTag(self, tag: str) -> None:
        self.tags.add(tag)


class Server:
    """Processes batches in sessions.

    :ivar on_batch: called with session and descriptor.
    :ivar at: called with the name of each step that prepares a session.
    :ivar prepared: sessions that have rehearsed a batch.
    """

    def __init__(self) -> None:
        self.on_batch: Callable[[Session, Any], None] = lambda session, descriptor: None
        self.at: Callable[[str], None] = lambda step: None
        self.prepared = 0
        self.is_down = False
        self._counting = threading.Lock()
        self.opened = 0
        self.open: set[Session] = set()
        self.most = 0
        self.urls: list[str] = []

    @contextmanager
    def session(self, url: str, *, tag: str, server: str, patience: float, traces: SessionTraces) -> Iterator[Session]:
        if patience == 0:
            self.at("session")
        if self.is_down:
            raise connect.SparkUnreachable(server=server, reason="it is down")
        made = Session(traces)
        with self._counting:
            self.opened += 1
            self.open.add(made)
            self.most = max(self.most, len(self.open))
        try:
            yield made
        finally:
            with self._counting:
                self.open.discard(made)

    def load(self) -> None:
        self.at("load")

    def rehearse(self, session: Session, where: TryDir) -> None:
        self.at("rehearse")
        self.prepared += 1

    def process(self, session: Session, application: Any, descriptor: Any, load: Any) -> Manifest:
        self.on_batch(session, descriptor)
        where = dir_of(StagingArea(descriptor.root), descriptor)
        output = write_rows(where, OUTPUT, rows_of(range(*descriptor.metadata)))
        write_manifest(where, {OUTPUT: output}, read=[RowsRead(RowsDigest(10))], code="c0de")
        return read_manifest(where)

    def url(self, conn_id: str) -> str:
        self.urls.append(conn_id)
        return f"sc://{conn_id}"


class Applied(LaneWorld):
    """A topology whose task is an application."""

    def counted(self) -> Any:
        self.key = OUTPUT
        timeout = self.options.pop("execution_timeout", None)
        return SparkConnectBatchOperator(task_id=TASK, application=__file__, execution_timeout=timeout).output[OUTPUT]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Server:
    made = Server()
    monkeypatch.setattr(connect, "session", made.session)
    monkeypatch.setattr(connect, "process", made.process)
    monkeypatch.setattr(connect, "rehearse", made.rehearse)
    monkeypatch.setattr(connect.ConnectApplication, "load", made.load)
    monkeypatch.setattr(lane_applications, "connect_url", made.url)
    monkeypatch.setattr(lane_applications, "_FIRST_LOOK", 0.0)
    monkeypatch.setattr(lane_applications, "_HEAD_START", 0.0)
    return made


@pytest.fixture
def make(make: Any, server: Server) -> Any:
    return partial(make, Applied)


def test_spark_applications_of_a_lane_commit_in_order_in_sessions_that_run_one_batch_at_a_time(
    make: Any, server: Server
) -> None:
    world, at_work, tags = make(source=Bounded(12)), set[Session](), list[str]()

    def alone(session: Session, descriptor: Any) -> None:
        assert session not in at_work
        at_work.add(session)
        tags.extend(session.tags)
        threading.Event().wait(0.01)
        at_work.discard(session)

    server.on_batch = alone
    world.coordinate()
    world.assert_exact(12)
    assert world.runs == {}
    assert {entry.attempt for entry in world.history.values()} == {1}
    assert server.opened <= 4
    # A session that no batch has needed may still be on its way when the lane has ended.
    eventually(lambda: len(server.urls) == server.opened, LONG, "each address that was asked for is that of a session")
    assert set(server.urls) == {"spark_connect_default"}
    assert len(tags) == len(set(tags)) == 12
    assert all(entry.rows == 10 for entry in world.history.values())


def test_a_spark_session_is_not_reused_if_a_batch_has_left_state_in_it(make: Any, server: Server) -> None:
    def leaves_something(session: Session, descriptor: Any) -> None:
        assert not session.traces.found
        session.traces.found = True

    world, server.on_batch = make(source=Bounded(5)), leaves_something
    world.coordinate()
    world.assert_exact(5)
    assert server.opened == 5
    assert world.runs == {}


def test_later_batches_are_processed_at_the_same_time_as_the_first_batch_and_commit_after_it(
    make: Any, server: Server
) -> None:
    world, others = make(source=Bounded(4)), threading.Barrier(4)

    def waits_for_the_others(session: Session, descriptor: Any) -> None:
        if descriptor.attempt.txid == 1:
            others.wait(LONG)
            assert world.history == {}
        else:
            others.wait(LONG)

    server.on_batch = waits_for_the_others
    world.coordinate()
    world.assert_exact(4)
    assert world.runs == {}
    assert server.most == 4


@pytest.mark.parametrize("fails", [False, True])
def test_the_first_batch_on_a_new_spark_server_runs_alone(
    make: Any, server: Server, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    monkeypatch.setattr(lane_applications, "_HEAD_START", LONG)
    world, begun, at_once = make(source=Bounded(4)), list[int](), list[int]()

    def cannot(at: str) -> None:
        raise RuntimeError(f"no {at} ahead of a batch")

    def notes(session: Session, descriptor: Any) -> None:
        begun.append(descriptor.attempt.txid)
        if len(begun) == 1:
            eventually(lambda: len(server.open) == 4, LONG, "the other batches have sessions", interval=0.01)
            threading.Event().wait(0.1)  # so that one which does not wait begins
            at_once.append(len(begun))
            if fails:
                raise FailedBatch("not this one")

    server.at = cannot
    server.on_batch = notes
    with world.executing():
        world.settle()
    world.assert_exact(4)
    assert at_once == [1]


def test_a_slow_first_batch_leaves_half_of_the_time_limit_to_the_other_batches(
    make: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_applications, "_HEAD_START", LONG)
    world, others = make(source=Bounded(4), options={"execution_timeout": timedelta(seconds=1)}), threading.Barrier(4)
    at_once = threading.Event()

    def cannot(at: str) -> None:
        raise RuntimeError(f"no {at} ahead of a batch")

    def waits_for_the_others(session: Session, descriptor: Any) -> None:
        others.wait(LONG)
        at_once.set()

    server.at = cannot
    server.on_batch = waits_for_the_others
    lane = world.lane()
    with lane.opened():
        for _ in range(4):
            lane.work(0.0)
        assert at_once.wait(LONG)


def test_a_batch_that_waits_for_the_first_batch_does_not_begin_after_the_lane_has_ended(
    make: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_applications, "_HEAD_START", LONG)
    world, begun, waiting = make(source=Bounded(2)), list[int](), threading.Event()

    def cannot(at: str) -> None:
        raise RuntimeError(f"no {at} ahead of a batch")

    def hangs(session: Session, descriptor: Any) -> None:
        begun.append(descriptor.attempt.txid)
        waiting.set()
        session.interrupted.wait(LONG)

    server.at = cannot
    server.on_batch = hangs
    lane = world.lane()
    with lane.opened():
        lane.work(0.0)
        assert waiting.wait(LONG)
        lane.work(0.0)
        eventually(lambda: len(lane.working) == 2, LONG, "both are on their way")
    eventually(lambda: not server.open, LONG, "no session is left")
    assert begun == [1]


@pytest.mark.parametrize("source", [Bounded, OpaqueBounded])
@pytest.mark.parametrize("error", [FailedBatch("not this one"), RuntimeError("session is lost"), SystemExit(3)])
def test_a_failed_spark_application_becomes_a_run_and_the_next_batches_get_new_sessions(
    make: Any, server: Server, source: Any, error: BaseException
) -> None:
    world = make(source=source(5))

    def fails(session: Session, descriptor: Any) -> None:
        if descriptor.attempt.txid == 2:
            raise error

    server.on_batch = fails
    with world.executing():
        world.settle()
    world.assert_exact(5)
    assert world.runs == {"tx-2": "success"}
    assert [entry.attempt for entry in world.history.values()] == [1, 2, 1, 1, 1]
    assert server.opened >= 2
    assert any(f"task count: {type(error).__name__}" in line for line in world.log.lines)


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("processing_timeout", {"message_timeout": 600.0}),
        ("execution_timeout", {"execution_timeout": timedelta(minutes=10)}),
    ],
)
def test_a_spark_application_that_hangs_is_interrupted_at_its_time_limit_and_becomes_a_run(
    make: Any, server: Server, monkeypatch: pytest.MonkeyPatch, name: str, options: Any
) -> None:
    interrupted, ahead = threading.Event(), [0.0]
    clock = SimpleNamespace(monotonic=lambda: time.monotonic() + sum(ahead))
    for module in (lane_module, lane_applications, lane_tasks):
        monkeypatch.setattr(module, "time", clock)

    def hangs(session: Session, descriptor: Any) -> None:
        ahead.append(600.0)
        session.interrupted.wait(LONG)
        interrupted.set()
        raise RuntimeError("interrupted")

    world = make(source=Bounded(1), options=options)
    server.on_batch = hangs
    with world.executing():
        world.settle()
    world.assert_exact(1)
    assert world.history[1].attempt == 2
    assert interrupted.wait(LONG)
    told = rf"count: AirflowTaskTimeout: it takes longer than (its|the) {name} of 600 s"
    assert any(re.search(told, line) for line in world.log.lines)


def test_transactions_become_runs_immediately_after_some_failures_on_an_unreachable_server(
    make: Any, server: Server, monkeypatch: Any
) -> None:
    monkeypatch.setattr(lane_module, "LEFT_IN_A_ROW", 1)
    world, server.is_down = make(source=Bounded(4), options={"max_pending": 1}), True
    with world.executing():
        world.settle()
    world.assert_exact(4)
    assert [entry.attempt for entry in world.history.values()] == [2, 1, 1, 1]


def test_a_lane_that_ends_interrupts_its_applications_on_the_spark_server(make: Any, server: Server) -> None:
    world, started, interrupted = make(source=Bounded(1)), threading.Event(), threading.Event()

    def hangs(session: Session, descriptor: Any) -> None:
        started.set()
        session.interrupted.wait(LONG)
        interrupted.set()

    server.on_batch = hangs
    lane = world.lane()
    with lane.opened():
        lane.work(0.0)
        assert lane.working == {1}
        assert started.wait(LONG)
    assert interrupted.wait(LONG)
    server.on_batch = lambda session, descriptor: None
    with world.executing():
        world.settle()
    world.assert_exact(1)


def test_a_spark_application_in_a_lane_that_reads_the_context_of_a_run_becomes_a_run(make: Any, server: Server) -> None:
    world = make(source=Bounded(1))

    def asks(session: Session, descriptor: Any) -> None:
        get_current_context()["ti"]

    server.on_batch = asks
    with world.executing():
        world.settle()
    assert any("it belongs to the context of a DAG run, and there is no run" in line for line in world.log.lines)
    assert world.history[1].attempt == 2


# --- before the first batch

STEPS = ("session", "load", "rehearse")


def test_spark_sessions_are_prepared_before_the_first_batch_and_used_by_the_first_batches(
    make: Any, server: Server
) -> None:
    world = make(source=Bounded(0))
    lane = world.lane()
    before = world.store.requests
    with lane.opened():
        eventually(
            lambda: server.prepared == 1 and server.opened == 4, LONG, "four sessions are open, one has rehearsed"
        )
        assert world.store.requests == before
        assert isinstance(lane.work(0.0), NoData)
        world.source.count = 4
        while len(world.history) < 4:
            lane.work(0.0)
            lane.wait(0.1)
    world.assert_exact(4)
    assert server.opened == 4
    assert server.prepared == 1


def test_a_lane_that_finds_data_immediately_prepares_no_spark_session(
    make: Any, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lane_applications, "_FIRST_LOOK", LONG)
    world, loaded = make(source=Bounded(3)), threading.Event()
    server.at = lambda at: loaded.set() if at == "load" else None
    lane = world.lane()
    with lane.opened():
        assert loaded.wait(LONG)
        while len(world.history) < 3:
            lane.work(0.0)
            lane.wait(0.1)
    world.assert_exact(3)
    assert server.prepared == 0


def test_a_lane_without_spark_applications_opens_no_session(make: Any, server: Server) -> None:
    world = make.func(LaneWorld)
    world.coordinate()
    world.assert_exact(3)
    assert server.opened == 0


@pytest.mark.parametrize("step", STEPS)
@pytest.mark.parametrize("error", [RuntimeError("not now"), SystemExit(3)])
def test_a_spark_session_that_cannot_be_prepared_is_logged_once_and_delays_no_batch(
    make: Any, server: Server, step: str, error: BaseException
) -> None:
    world, has_failed, told = (
        make(source=Bounded(6)),
        threading.Event(),
        "A session on connection spark_connect_default could not be prepared",
    )

    def fails(at: str) -> None:
        if at == step:
            has_failed.set()
            raise error

    server.at = fails
    lane = world.lane()
    with lane.opened():
        assert has_failed.wait(LONG)
        eventually(lambda: any(told in line for line in world.log.lines), LONG, "the log says so")
        server.at = lambda at: None
        while len(world.history) < 6:
            lane.work(0.0)
            lane.wait(0.1)
    world.assert_exact(6)
    assert {entry.attempt for entry in world.history.values()} == {1}
    assert sum(told in line for line in world.log.lines) == 1


@pytest.mark.parametrize("step", STEPS)
def test_a_batch_that_waits_for_a_spark_session_that_cannot_be_prepared_uses_another_one(
    make: Any, server: Server, step: str
) -> None:
    world, begun = make(source=Bounded(4)), threading.Event()

    def fails_late(at: str) -> None:
        if at == step:
            assert begun.wait(LONG)
            raise RuntimeError("not prepared")

    def waits(session: Session, descriptor: Any) -> None:
        # A session that took two batches would leave another one without any.
        assert begun.wait(LONG)

    server.at, server.on_batch = fails_late, waits
    lane = world.lane()
    with lane.opened():
        while lane.begun < 4:
            lane.work(0.0)
        begun.set()
        while lane.working:
            lane.wait(1.0)
    world.assert_exact(4)
    assert {entry.attempt for entry in world.history.values()} == {1}
    assert not any("could not be prepared" in line for line in world.log.lines)


def test_no_spark_session_is_prepared_after_the_first_batch_has_begun(make: Any, server: Server) -> None:
    world, begun = make(source=Bounded(1)), threading.Event()

    def waits(at: str) -> None:
        if at == "session":
            assert begun.wait(LONG)

    server.at = waits
    lane = world.lane()
    with lane.opened():
        lane.work(0.0)
        begun.set()
        while lane.working:
            lane.wait(1.0)
    world.assert_exact(1)
    assert server.prepared == 0


@pytest.mark.parametrize("step", STEPS)
def test_a_lane_that_ends_during_its_preparation_leaves_no_spark_session_and_no_ledger_record(
    make: Any, server: Server, step: str
) -> None:
    world, stands, goes_on = make(source=Bounded(0)), threading.Event(), threading.Event()

    def stops(at: str) -> None:
        if at == step:
            stands.set()
            goes_on.wait(LONG)

    server.at = stops
    lane = world.lane()
    before, threads = world.store.requests, {*threading.enumerate()}
    with lane.opened():
        assert stands.wait(LONG)
    goes_on.set()
    eventually(lambda: {*threading.enumerate()} <= threads, LONG, "the threads of the sessions have ended")
    assert not server.open
    assert world.store.requests == before
    assert world.log.lines == []
    world.source.count = 3
    world.coordinate()
    world.assert_exact(3)


def test_a_spark_session_that_is_dropped_during_its_preparation_is_closed(make: Any, server: Server) -> None:
    world, rehearses, failed = make(source=Bounded(1)), threading.Event(), threading.Event()

    def stands(at: str) -> None:
        # A batch takes one of the sessions that are ready.
        if at == "rehearse":
            rehearses.set()
            assert failed.wait(LONG)
            raise RuntimeError("its server is lost")

    def fails(session: Session, descriptor: Any) -> None:
        failed.set()
        raise RuntimeError("the server is lost")

    server.at, server.on_batch = stands, fails
    lane = world.lane()
    with lane.opened():
        eventually(lambda: rehearses.is_set() and len(server.open) == 4, LONG, "one of four sessions rehearses")
        lane.work(0.0)
        while lane.working:
            lane.wait(1.0)
        eventually(lambda: not server.open, LONG, "no session is open")
    assert server.opened == 4
    assert not any("could not be prepared" in line for line in world.log.lines)
