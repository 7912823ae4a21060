"""Alarms: once, again only if it is another one, and nobody who fails hinders the others."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import DAG
from airflow.sdk.bases.notifier import BaseNotifier
from airflow.sdk.exceptions import AirflowFailException

from airflow_tx import Alarm, AlarmKind, CommitOperator, Transaction, coordinator_dag
from airflow_tx.base.errors import RowsRefused, TransactionDefinitionError
from airflow_tx.coordinator.blocked import BlockedOperator
from airflow_tx.coordinator.monitor import BlockedRun, CoordinatorAlarms, Monitor
from airflow_tx.coordinator.plan import SnapshotReader
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.records import AlarmNote
from airflow_tx.ledger.steps import recovery
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.upstream.corrections import noted_corrections
from airflow_tx.sources.lag import Lag
from airflow_tx.sources.memory import MemorySource
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.transaction.alarms import AlarmCallbacks, AlarmLimits, AlarmTopology
from airflow_tx.transaction.processing.begin import allocate
from airflow_tx.transaction.processing.task import Processing
from tests.remedies import remedy_of
from tests.stage import begin_run
from tests.unit.bench import FakeTi, Numbers
from tests.unit.coordinator.lane_world import LONG, PATHS, Bounded, LaneWorld
from tests.unit.protocol.chains import Chain

NOW = datetime(2026, 1, 1, tzinfo=timezone.utc)
PER_RUN = DataIntervalSource("tests.contract.interval_reader.read")
DAG_ID = "numbers_coordinator_blocked"


class ReadsOrders(Numbers):
    upstream = "orders"


class Called:
    """Who is called: keeps what for."""

    def __init__(self, error: Exception | None = None) -> None:
        self.alarms: list[Alarm] = []
        self.error = error

    def __call__(self, context: Mapping[str, Any]) -> None:
        self.alarms.append(context["alarm"])
        if self.error is not None:
            raise self.error


class Notifier(BaseNotifier):
    template_fields = ("text",)

    def __init__(self, text: str, sent: list[str]) -> None:
        super().__init__()
        self.text = text
        self.sent = sent

    def notify(self, context: Any) -> None:
        self.sent.append(self.text)


class AsyncNotifier(BaseNotifier):
    """As one that Airflow's triggerer awaits: it has no `notify`."""

    template_fields = ("text",)

    def __init__(self, text: str, sent: list[str]) -> None:
        super().__init__()
        self.text = text
        self.sent = sent

    async def async_notify(self, context: Any) -> None:
        await asyncio.sleep(0)
        self.sent.append(f"{self.text}, {context['alarm'].kind.value}")


@pytest.fixture
def world(make: Any, log: Any) -> LaneWorld:
    log.exception = lambda text, *arguments: log.lines.append(text % arguments)
    made: LaneWorld = make(source=Bounded(3))
    return made


def ledger(world: LaneWorld) -> Any:
    return world.spec.ledger(world.store)


def block(world: LaneWorld, txid: int, attempt: int = 1) -> None:
    """Let the coordinator give a transaction up."""
    request = ReplayRequest(TransactionAttempt(txid, attempt), "task count: it broke", counts=True, limit=0)
    ledger(world).run(recovery.note_replay, request)


def alarms(
    world: LaneWorld,
    callbacks: AlarmCallbacks,
    limits: AlarmLimits | None = None,
    run: BlockedRun | None = None,
) -> CoordinatorAlarms:
    """Those of a coordinator that has just started."""
    spec = replace(world.spec, callbacks=callbacks, limits=limits or AlarmLimits())
    monitor = Monitor(spec.alarm_topology, PATHS, None)
    return CoordinatorAlarms(spec, monitor, ledger(world), run or BlockedRun(DAG_ID), context={}, log=world.log)


def show_block(world: LaneWorld, dag_id: str, of: str | None) -> None:
    """Execute the task that is red while the topology is blocked.

    :param of: the attempt that its run was started for; None: a person started it.
    """
    with DAG(dag_id, schedule=None):
        operator = BlockedOperator(task_id="blocked", transaction=world.spec)
    conf = {} if of is None else {"of": of}
    operator.execute({"dag_run": type("Run", (), {"conf": conf})})  # type: ignore[typeddict-item]


def step(found: CoordinatorAlarms, world: LaneWorld, later: float = 0.0) -> None:
    """Look so many seconds after the first open transaction was allocated, if there is one."""
    look = SnapshotReader(world.store, PATHS).look()
    assert look is not None
    now = min((datetime.fromisoformat(record.created) for record in look.opened.values()), default=look.now)
    found.step(replace(look, now=now + timedelta(seconds=later)))


def test_a_callback_is_called_once_per_blocked_attempt_and_again_for_the_next_blocked_attempt(
    world: LaneWorld,
) -> None:
    called = Called()
    callbacks = AlarmCallbacks(on_blocked=(called,))
    allocate(world.spec, ledger(world))
    block(world, 1)
    for _ in range(3):
        step(alarms(world, callbacks), world)  # another process each
    assert [(alarm.kind, alarm.txid, alarm.attempt) for alarm in called.alarms] == [(AlarmKind.BLOCKED, 1, 1)]
    (alarm,) = called.alarms
    assert (
        alarm.reason == "Transaction 1.1 of numbers is blocked, and no later transaction commits: task count: it broke"
    )
    assert "airflow tx replay numbers 1" in alarm.remedy
    assert world.others == [(DAG_ID, "blocked-1.1", False, True)]

    begin_run(world.spec, "tx-1")
    begin_run(world.spec, "tx-1")  # it was cleared: the next attempt
    step(alarms(world, callbacks), world)
    assert world.others[1:] == [(DAG_ID, "blocked-1.1", True, False)]
    record = world.record(1)
    assert record is not None
    block(world, 1, record.attempt)
    step(alarms(world, callbacks), world)
    assert [alarm.attempt for alarm in called.alarms] == [1, record.attempt]
    assert world.others[2:] == [(DAG_ID, f"blocked-1.{record.attempt}", False, True)]


def test_if_two_coordinators_find_a_blocked_transaction_only_one_of_them_keeps_a_failed_run(world: LaneWorld) -> None:
    """The run that the ledger names stays red. The other coordinator clears its own run, which then succeeds."""
    called = Called()
    callbacks = AlarmCallbacks(on_blocked=(called,))
    allocate(world.spec, ledger(world))
    block(world, 1)

    class Overtaken(BlockedRun):
        def start(self, alarm: Alarm) -> AlarmNote:
            step(alarms(world, callbacks), world)
            return super().start(alarm)

    other = alarms(world, callbacks, run=Overtaken("twin_blocked"))
    step(other, world)
    assert world.others == [
        (DAG_ID, "blocked-1.1", False, True),
        ("twin_blocked", "blocked-1.1", False, True),
        ("twin_blocked", "blocked-1.1", True, False),
    ]
    assert len(called.alarms) == 1

    show_block(world, "twin_blocked", "1.1")
    with pytest.raises(AirflowFailException, match=r"Transaction 1\.1 of numbers is blocked"):
        show_block(world, DAG_ID, "1.1")


def test_a_late_alert_is_raised_once_and_is_raised_again_after_the_topology_was_on_time(world: LaneWorld) -> None:
    called = Called()
    own = alarms(world, AlarmCallbacks(on_late=(called,)), AlarmLimits(late_after=3600.0))
    step(own, world)
    allocate(world.spec, ledger(world))
    for later in (3599.0, 3700.0, 3800.0):
        step(own, world, later)
    assert len(called.alarms) == 1
    assert called.alarms[0].reason.startswith("Transaction 1.1 of numbers has been open for 1:01:")
    assert called.alarms[0].reason.endswith("longer than late_after = 1:00:00.")
    step(own, world)
    step(own, world, 3700.0)
    assert len(called.alarms) == 2
    assert world.others == []


def test_a_lag_above_its_limit_raises_an_alert_and_an_unknown_lag_does_not_end_the_alert(world: LaneWorld) -> None:
    topology = AlarmTopology("numbers", "numbers", AlarmLimits(max_lag=10))
    assert topology.find({}, blocked=None, now=NOW, lag=Lag(10, "rows")) == []
    (alarm,) = topology.find({}, blocked=None, now=NOW, lag=Lag(11, "rows"))
    assert alarm.reason == "The source of numbers is 11 rows ahead, more than max_lag = 10."

    allocate(world.spec, ledger(world))
    rows, look = [{"n": n} for n in range(11)], SnapshotReader(world.store, PATHS).look()
    assert look is not None
    monitor = Monitor(topology, PATHS, lambda: MemorySource({"a": rows}), patience=LONG)
    called = Called()
    spec = replace(world.spec, callbacks=AlarmCallbacks(on_late=(called,)), limits=topology.limits)
    CoordinatorAlarms(spec, monitor, ledger(world), BlockedRun(DAG_ID), context={}, log=world.log).step(look)
    assert len(called.alarms) == 1
    assert Monitor(topology, PATHS, None).observe(world.store, look) == []
    del rows[:]
    (over,) = Monitor(topology, PATHS, lambda: MemorySource({"a": rows}), patience=LONG).observe(world.store, look)
    assert (over.kind, over.alarm) == (AlarmKind.LATE, None)


def test_a_callback_that_fails_does_not_stop_the_other_callbacks(world: LaneWorld) -> None:
    sent: list[str] = []
    fails, called = Called(ValueError("away")), Called()
    notifier = Notifier("{{ alarm.topology }}: {{ alarm.txid }}", sent)
    allocate(world.spec, ledger(world))
    block(world, 1)
    step(alarms(world, AlarmCallbacks(on_blocked=(fails, notifier, called))), world)
    assert (len(called.alarms), sent) == (1, ["numbers: 1"])
    assert any("failed. The alert was: Transaction 1.1" in line for line in world.log.lines)


def test_asynchronous_notifiers_and_coroutine_functions_are_awaited(world: LaneWorld) -> None:
    sent: list[str] = []

    async def called(context: Any) -> None:
        await asyncio.sleep(0)
        sent.append(context["alarm"].topology)

    async def fails(context: Any) -> None:
        raise ValueError("away")

    notifier = AsyncNotifier("{{ alarm.topology }}: {{ alarm.txid }}", sent)
    allocate(world.spec, ledger(world))
    block(world, 1)
    step(alarms(world, AlarmCallbacks(on_blocked=(fails, notifier, called))), world)
    assert sent == ["numbers: 1, blocked", "numbers"]
    assert any("failed. The alert was: Transaction 1.1" in line for line in world.log.lines)


@pytest.mark.parametrize("kind", [Notifier, AsyncNotifier])
def test_a_notifier_that_is_called_again_renders_the_new_alert(kind: Any) -> None:
    sent: list[str] = []
    callbacks = AlarmCallbacks(on_late=(kind("{{ alarm.txid }}", sent),))
    for txid in (1, 2):
        callbacks.call(Alarm(AlarmKind.LATE, "numbers", "numbers", "why", "what", txid), {}, logging.getLogger())
    assert [text[0] for text in sent] == ["1", "2"]


def test_a_coordinator_raises_alerts_while_it_works(world: LaneWorld) -> None:
    called = Called()
    own = alarms(world, AlarmCallbacks(on_blocked=(called,)))
    allocate(world.spec, ledger(world))
    world.runs["tx-1"] = "failed"
    block(world, 1)
    world.coordinate(world.lane(patience=0.1), alarms=own)
    assert [alarm.txid for alarm in called.alarms] == [1]


def test_the_blocked_task_of_a_topology_fails_until_the_transaction_is_replayed(world: LaneWorld) -> None:
    allocate(world.spec, ledger(world))
    show_block(world, DAG_ID, None)
    block(world, 1)
    with pytest.raises(AirflowFailException, match=r"Transaction 1\.1 of numbers is blocked.*tx replay numbers 1"):
        show_block(world, DAG_ID, "1.1")
    show_block(world, DAG_ID, "1.2")


# --- without a coordinator


def test_without_a_coordinator_a_task_of_a_later_run_notices_that_an_earlier_run_has_failed(world: LaneWorld) -> None:
    called = Called()
    spec = replace(world.spec, callbacks=AlarmCallbacks(on_blocked=(called,)))
    begun = begin_run(spec, "r1")
    context = {"ti": FakeTi("begin", "r2")}
    world.runs["r1"] = "running"
    spec.raise_own_alarms(context, world.log)
    assert called.alarms == []
    processing = Processing(spec, begun, TaskTry("count", -1, "t"), anchored=True)
    processing.start()
    processing.fail("it broke")
    world.runs["r1"] = "failed"
    for _ in range(2):
        spec.raise_own_alarms(context, world.log)
    reason = "Transaction 1.1 of numbers is blocked, and no later transaction commits: its run r1 is failed (it broke)"
    assert [alarm.reason for alarm in called.alarms] == [reason]
    replace(spec, coordinated=True).raise_own_alarms(context, world.log)
    assert len(called.alarms) == 1
    assert ReadOnlyLedger(world.store, PATHS).open_records()[1].attempt == 1


def test_the_alert_about_a_refusal_contains_its_complete_remedy_once(world: LaneWorld) -> None:
    called = Called()
    spec = replace(world.spec, callbacks=AlarmCallbacks(on_blocked=(called,)))
    begun = begin_run(spec, "r1")
    processing = Processing(spec, begun, TaskTry("count", -1, "t"), anchored=True)
    processing.start()
    remedy = remedy_of("Restore it, or repair: <airflow tx repair {topology} --state-lost t>", topology="numbers")
    refusal = RowsRefused(source="S()", problem="the table went back", remedy=remedy)
    processing.fail(f"the table has {'another column, ' * 300} and went back.", refusal)
    world.runs["r1"] = "failed"
    spec.raise_own_alarms({"ti": FakeTi("begin", "r2")}, world.log)
    (alarm,) = called.alarms
    then = "Then: airflow tx replay numbers 1, or airflow tx skip numbers 1 --why TEXT"
    assert alarm.remedy == f"{remedy}. {then}"
    assert alarm.text.count(str(remedy)) == 1
    assert alarm.reason.endswith("and went back.)")
    assert " ... " in alarm.reason


# --- in the DAG file


def define(source: Any = None, **options: Any) -> Any:
    with (
        DAG("alarmed", schedule=None, max_active_runs=8),
        Transaction(source=source or MemorySource({"a": []}), **options) as made,
    ):
        CommitOperator(task_id="commit")
    return made


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"on_blocked": "me"}, "on_blocked='me' is not callable. Give a function of one argument, or a notifier."),
        ({"on_late": [print, 1], "late_after": timedelta(1)}, "on_late=1 is not callable"),
        (
            {"on_late": print},
            r"it has an on_late callback, but no limit. Add late_after=timedelta\(hours=1\), or max_lag=100_000.",
        ),
        ({"late_after": timedelta(1)}, "it has late_after, but no on_late callback. Add callbacks"),
        ({"max_lag": 1}, "it has max_lag, but no on_late callback"),
        ({"on_late": print, "late_after": 60}, "late_after=60. Give a timedelta above 0"),
        ({"on_late": print, "late_after": timedelta(0)}, "Give a timedelta above 0"),
        ({"on_late": print, "max_lag": "1"}, "max_lag='1'. Give a whole number"),
        ({"on_late": print, "max_lag": 1, "source": Numbers()}, "it has max_lag=1, but source Numbers has no lag"),
        (
            {"on_late": print, "max_lag": 1, "source": PER_RUN},
            "has no lag. Use late_after",
        ),
    ],
)
def test_alert_options_that_can_never_raise_an_alert_are_refused_while_the_dag_is_parsed(
    options: dict[str, Any], text: str
) -> None:
    with pytest.raises(TransactionDefinitionError, match=text):
        define(**options)


def test_a_coordinator_uses_the_alert_options_of_its_transaction() -> None:
    made = define(on_blocked=print, on_late=[print, print], late_after=timedelta(hours=1), max_lag=5)
    spec = made.begin.transaction
    assert spec.callbacks == AlarmCallbacks((print,), (print, print))
    assert spec.limits == AlarmLimits(3600.0, 5)
    assert not spec.coordinated
    dag = coordinator_dag("alarmed")
    assert made.begin.transaction.coordinated
    assert dag.task_dict["coordinate"].transaction.limits == spec.limits  # type: ignore[union-attr]


def test_every_field_of_an_alert_is_documented() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs/alarms.md").read_text()
    assert {name for name in Alarm.__dataclass_fields__ if f"`{name}`" not in text} == set()


# --- behind -------------------------------------------------------------------------------------------------------


def behind(chain: Chain) -> Alarm | None:
    """The alarm of a topology that lacks corrections."""
    ledger = chain.totals.ledger
    found = AlarmTopology("totals", "totals").find(
        {}, blocked=None, now=NOW, behind=noted_corrections(ledger, ledger.noted_behind())
    )
    return next(iter(found), None)


def test_a_correction_raises_an_alert_only_if_no_restatement_for_it_is_requested_or_open() -> None:
    chain = Chain().run(1).take(1)
    chain.correct(1)
    chain.request()
    assert behind(chain) is None
    begun = chain.totals.begin("t1")
    assert behind(chain) is None
    chain.totals.skip(begun.txid)
    found = behind(chain)
    assert found is not None
    assert (found.kind, found.txid) == (AlarmKind.BEHIND, 1)
    assert found.reason == (
        "Transaction 1 of totals is behind a correction of orders 1: its restatement was skipped or withdrawn."
    )
    assert "airflow tx show totals 1" in found.remedy
    assert found.remedy.endswith("airflow tx restate totals --follow")


def test_a_transaction_that_is_behind_another_correction_raises_another_alert() -> None:
    chain = Chain().run(2)
    chain.totals.journals = False
    chain.take(2)
    end = chain.correct(1)
    chain.request()
    first = behind(chain)
    chain.correct(2)
    chain.request()
    second = behind(chain)
    chain.correct(end, key=1)
    chain.request()
    third = behind(chain)
    assert first is not None
    assert second is not None
    assert third is not None
    assert len({first.of, second.of, third.of}) == 3
    assert second.reason.endswith(" 1 more is behind.")


def test_the_callback_for_late_topologies_is_called_for_a_topology_that_is_behind() -> None:
    called = Called()
    alarm = Alarm(AlarmKind.BEHIND, "totals", "totals", "It is behind.", "See it.")
    AlarmCallbacks(on_late=(called,)).call(alarm, {}, logging.getLogger())
    assert called.alarms == [alarm]


def test_the_callback_for_late_topologies_needs_no_limit_if_the_source_reads_another_topology() -> None:
    with DAG("totals", schedule=None):
        transaction = Transaction(source=ReadsOrders(), on_late=Called())
    assert transaction._spec.callbacks.on_late
