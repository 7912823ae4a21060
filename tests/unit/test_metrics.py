"""Every metric that the table names is sent, and no other; by runs, by a lane, and by a coordinator."""

from __future__ import annotations

import re
from collections import Counter
from contextlib import nullcontext
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.base.errors import FailedBatch
from airflow_tx.coordinator.monitor import Monitor
from airflow_tx.coordinator.plan import SnapshotReader
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import Phase, TransactionRecord
from airflow_tx.ledger.steps import processing
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operators.commit import BeginTransactionOperator
from airflow_tx.outputs.messages.stores import ZnodeAckers
from airflow_tx.outputs.messages.tree import Origin
from airflow_tx.sources.memory import MemorySource
from airflow_tx.state import DeltaTable
from airflow_tx.transaction.alarms import AlarmTopology
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.metrics import Cadence, Metric, oldest_seconds, send_commit, send_failure, send_open_of
from airflow_tx.transaction.processing.begin import allocate
from tests.stage import begin_run
from tests.suites.acker_case import opened
from tests.unit.bench import CountingStore, MemorySpec
from tests.unit.coordinator.conftest import make as make_world
from tests.unit.coordinator.lane_world import LONG, PATHS, Bounded, LaneWorld
from tests.unit.protocol.books import Books
from tests.unit.protocol.chains import Chain
from tests.unit.statsd import StatsD

TABLE = Path(__file__).resolve().parents[2] / "docs/metrics.md"
SENT = re.compile(r"^airflow\.airflow_tx\.(?P<name>\w+):(?P<value>[^|]+)\|(?P<kind>\w+)$")
KINDS = {"c": "counter", "g": "gauge", "ms": "timer"}
make = make_world


def sent(server: StatsD) -> list[tuple[str, str, float]]:
    """Name, kind and value of what was sent since the last time, those without a topology in their name."""
    found = [match for each in server.received() if (match := SENT.match(each))]
    return [(each["name"], KINDS[each["kind"]], float(each["value"])) for each in found]


def names(server: StatsD) -> Counter[str]:
    return Counter(name for name, _, _ in sent(server))


def test_the_table_of_metrics_lists_every_metric_and_its_kind() -> None:
    rows = re.findall(r"^\| `airflow_tx\.(\w+)` \| (\w+) \|", TABLE.read_text(), flags=re.M)
    assert rows == [(each.suffix, each.kind.value) for each in Metric]


@dataclass
class RejectingWorld(LaneWorld):
    """A topology with a table of rejected rows."""

    folder: str = ""

    def block_options(self) -> dict[str, Any]:
        return {"rejected": DeltaTable(Path(self.folder, "rejected"))}


def test_every_metric_is_sent(make: Any, statsd: StatsD, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    found: set[tuple[str, str]] = set()

    def fails(batch: Any) -> None:
        if batch.txid == 2:
            raise FailedBatch("not this one")

        batch.reject("a row", "odd")

    world: LaneWorld = make(RejectingWorld, source=Bounded(4), on_batch=fails, folder=str(tmp_path))
    with world.executing():
        world.settle()  # 2 leaves the lane, and becomes a run
    own = sent(statsd)
    found |= {(name, kind) for name, kind, _ in own}
    assert Counter(name for name, _, _ in own)["committed"] == 4
    assert sum(value for name, _, value in own if name == "rejected_rows") == 3
    assert sum(value for name, _, value in own if name == "rows") == 30  # an attempt that another one ran counted none
    assert Counter(name for name, _, _ in own)["failed"] == 1

    world.source.count = 5
    allocate(world.spec, world.spec.ledger(world.store))
    ledger: Any = world.spec.ledger(world.store)
    monitor = Monitor(
        AlarmTopology("numbers", "numbers"), PATHS, lambda: MemorySource({"a": [{"n": 1}]}), patience=LONG
    )
    look = SnapshotReader(world.store, PATHS).look()
    assert look is not None
    (opened_at,) = [datetime.fromisoformat(record.created) for record in look.opened.values()]
    monitor.observe(world.store, replace(look, now=opened_at + timedelta(seconds=90)))
    values = {name: value for name, _, value in sent(statsd)}
    open_ones = {"open": 1, "waiting": 0, "blocked": 0, "oldest_seconds": 90}
    assert {name: values[name] for name in open_ones} == open_ones
    found |= {(name, "gauge") for name in values}

    ackers = ZnodeAckers(world.store, PATHS.root)
    opened(ackers, Origin("numbers", 5, 1, ledger.incarnation())).emit(3)
    monitor = Monitor(AlarmTopology("numbers", "numbers"), PATHS, None, ackers=lambda store: nullcontext(ackers))
    monitor._gauges = Cadence(0.0)
    for _ in range(3):  # the answer to the question before is sent
        monitor.observe(world.store, look)
        assert monitor._acker_watch.wait(LONG)
    values = {name: value for name, _, value in sent(statsd)}
    assert (values["open_trees"], values["acks_per_second"]) == (3, 0)
    found |= {(name, "gauge") for name in values}

    begin = BeginTransactionOperator(task_id="begin", transaction=world.spec)
    begun = begin_run(world.spec, "tx-5")
    begun = begin_run(world.spec, "tx-5")
    begin._begun({}, begun)
    ledger.run(note_skip, 5, Audit("me", "no"))
    take_skip(ledger, 5, {each.state.name: each.state for each in world.plan().updates}, log=world.log)
    found |= {(name, kind) for name, kind, _ in sent(statsd)}

    books = Books(journals=True).run(1)
    books.pipeline.restate(1, "run 1", 1)
    send_commit(books.pipeline.ledger, 2)
    own = sent(statsd)
    assert "restated" in {name for name, _, _ in own}
    assert "rows" not in {name for name, _, _ in own}, "they were counted before"
    found |= {(name, kind) for name, kind, _ in own}

    chain = Chain().run(3)
    chain.totals.journals = False
    chain.take(1).correct(1)
    chain.request()
    send_open_of(chain.totals.ledger)
    values = {name: value for name, _, value in sent(statsd)}
    assert (values["behind"], values["corrections_left"]) == (2, 1), "a restatement is never taken"
    found |= {("behind", "gauge"), ("corrections_left", "gauge")}

    store = CountingStore()
    spec = MemorySpec("n", "n", MemorySource({"a": [{"n": 1}]}), max_pending=2, memory=store, tasks=("first",))
    begin_run(spec, "r1")
    found |= {(name, kind) for name, kind, _ in sent(statsd)}
    assert found == {(each.suffix, each.kind.value) for each in Metric}


def test_the_age_of_open_transactions_is_the_age_of_the_lowest_txid_and_is_never_negative() -> None:
    first = datetime(2026, 1, 1, tzinfo=timezone.utc)

    def begun(later: float) -> TransactionRecord:
        created = (first + timedelta(seconds=later)).isoformat()
        return TransactionRecord(
            txid=1,
            key="k",
            run_id="r",
            request="t",
            attempt=1,
            epoch=1,
            op="o",
            phase=Phase.PROCESSING,
            base="b",
            ended="e",
            rows_digest="d",
            tasks={},
            created=created,
            began=created,
        )

    opened = {3: begun(60), 2: begun(10)}
    assert oldest_seconds(opened, first + timedelta(seconds=70)) == 60
    assert oldest_seconds(opened, first) == 0, "the clocks of two hosts may differ"
    assert oldest_seconds({}, first) == 0


def test_a_metrics_server_that_supports_tags_receives_the_topology_as_a_tag(
    make: Any, statsd: StatsD, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__METRICS__STATSD_INFLUXDB_ENABLED", "True")
    monkeypatch.setenv("AIRFLOW__METRICS__LEGACY_NAMES_ON", "False")
    compat.prepare_metrics()
    make(source=Bounded(1)).coordinate()
    received = statsd.received()
    assert "airflow.airflow_tx.committed,topology=numbers,root=/airflow_tx:1|c" in received
    assert all(",topology=numbers,root=/airflow_tx" in each for each in received)


def test_no_record_is_read_for_metrics_if_metrics_are_disabled(make: Any) -> None:
    world: LaneWorld = make(source=Bounded(2))
    world.coordinate()
    before = world.store.requests
    ledger: Any = world.spec.ledger(world.store)
    send_commit(ledger, 2)
    send_open_of(ledger)
    assert world.store.requests == before


def test_an_attempt_counts_as_failed_once_no_matter_how_many_of_its_parallel_tasks_fail(statsd: StatsD) -> None:
    tasks = ("first", "second")
    spec = MemorySpec("n", "n", MemorySource({"a": [{"n": 1}]}), max_pending=2, memory=CountingStore(), tasks=tasks)
    begun = begin_run(spec, "r1")
    assert isinstance(begun, Begun)
    sent(statsd)
    ledger, tries = spec.ledger(spec.memory), [TaskTry(task, -1, f"try-of-{task}") for task in tasks]
    for own in tries:
        ledger.start(begun.attempt, own)
    for own in tries:
        send_failure(spec.paths, ledger.run(processing.fail, begun.attempt, own, reason="of memory"))
    assert names(statsd) == {"failed": 1}
