"""What is checked before a transaction is allocated."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.compat import RunInfo
from airflow_tx.base.errors import ConfigError, RunHeld, SourceError
from airflow_tx.ledger.answers import AlreadyCommitted, Begun
from airflow_tx.ledger.json_text import replace
from airflow_tx.sources.api import Source
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.sources.run.partition import RunPartitionSource
from airflow_tx.state import MemoryState, Sum
from airflow_tx.transaction.processing.begin import allocate, ask, conf_of, key_of
from tests.stage import Stage, StageRun, begin_run, update
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers, run_of

FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
Begin = Callable[[MemorySpec], Any]


def by_run(spec: MemorySpec) -> Any:
    return begin_run(spec, "r1")


def by_coordinator(spec: MemorySpec) -> Any:
    return allocate(spec, spec.ledger(spec.memory))


@pytest.mark.parametrize("begin", [by_run, by_coordinator])
def test_no_transaction_is_allocated_while_the_staging_area_is_unusable(
    begin: Begin, tmp_path: Path, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("AIRFLOW__TX__STAGING", f"{file}/staging")
    spec = MemorySpec("numbers", "numbers", Numbers(), memory=store, stages=True)
    with pytest.raises(ConfigError, match=r"\[tx\] staging = '.*/file/staging' cannot be used\. NotADirectoryError"):
        begin(spec)
    file.unlink()
    assert begin(spec).attempt.txid == 1


def test_a_transaction_that_stages_nothing_needs_no_staging_area(
    tmp_path: Path, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").touch()
    monkeypatch.setenv("AIRFLOW__TX__STAGING", f"{tmp_path}/file/staging")
    assert by_run(MemorySpec("numbers", "numbers", Numbers(), memory=store)).attempt.txid == 1


@pytest.mark.parametrize(
    ("source", "run"),
    [
        (DataIntervalSource, {"interval_start": FIRST, "interval_end": FIRST + timedelta(days=1)}),
        (RunPartitionSource, {"partition_date": FIRST}),
        (RunPartitionSource, {"partition_key": "eu|2026"}),
    ],
    ids=["interval", "partition date", "partition key"],
)
@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_run_that_was_deleted_and_created_again_gets_the_batch_of_its_run_key(
    source: Callable[..., Source], run: dict[str, Any], kind: str, store: CountingStore
) -> None:
    spec = MemorySpec("sales", "sales", source("package.reader", kind=kind), memory=store)
    deleted = replace(run_of("r1"), **run)
    first = ask(spec, FakeTi("begin", "r1"), deleted, retry=False)
    # Whoever starts it knows no dates.
    anew = RunInfo("r1", "manual", None, None, None, None, None, conf_of(key_of(spec, deleted)))
    again = ask(spec, FakeTi("begin", "r1"), anew, retry=False)
    assert isinstance(first, Begun)
    assert isinstance(again, Begun)
    assert (again.metadata, again.position, str(again.attempt)) == (first.metadata, first.position, "1.2")


def _interval(run_id: str, start: datetime, length: timedelta) -> RunInfo:
    return replace(run_of(run_id), interval_start=start, interval_end=start + length)


DAY = timedelta(days=1)
OF_BACKFILLS = {
    "interval": (DataIntervalSource, _interval("first", FIRST, DAY), _interval("second", FIRST, DAY)),
    "partition": (
        RunPartitionSource,
        replace(run_of("first"), partition_date=FIRST),
        replace(run_of("second"), partition_date=FIRST),
    ),
}


@pytest.mark.parametrize("case", OF_BACKFILLS)
def test_a_second_backfill_run_of_the_same_batch_is_refused_until_the_first_run_has_failed(
    case: str, store: CountingStore
) -> None:
    source, first, second = OF_BACKFILLS[case]
    spec = MemorySpec("sales", "sales", source("package.reader"), max_pending=3, memory=store)
    begun = ask(spec, FakeTi("begin", "first"), first, retry=False)
    with pytest.raises(RunHeld, match="begin of run second refused: transaction 1 belongs to run first, .* running"):
        ask(spec, FakeTi("begin", "second", runs={"first": "running"}), second, retry=False)
    again = ask(spec, FakeTi("begin", "second", runs={"first": "failed"}), second, retry=False)
    assert isinstance(begun, Begun)
    assert isinstance(again, Begun)
    assert (again.metadata, str(again.attempt)) == (begun.metadata, "1.2")


@pytest.mark.parametrize("case", OF_BACKFILLS)
def test_a_second_run_of_a_committed_interval_or_partition_gets_no_txid_and_counts_no_row(
    case: str, store: CountingStore
) -> None:
    source, first, second = OF_BACKFILLS[case]
    stage = Stage(store, source("package.reader"), name="sales")
    state = MemoryState("sales", keys=["shop"], values={"n": Sum()})
    run = StageRun(stage.spec, "first")
    run.begin(info=first)
    run.end(run.start(), [{"shop": "berlin", "n": 1}])
    commit = run.commit_of([update(state)])
    commit.complete()
    assert commit.try_to_commit()
    allocated = store.get(stage.spec.paths.allocated)
    for info in (second, first):
        assert begin_run(stage.spec, info.run_id, info=info) == AlreadyCommitted(1)
    assert store.get(stage.spec.paths.allocated) == allocated
    assert [row["n"] for row in state.read()] == [1]


@pytest.mark.parametrize(
    ("run", "refusal"),
    [
        (_interval("half", FIRST + DAY / 2, DAY), "overlaps 2026-01-01T00:00:00.00:00/2026-01-02T00:00:00.00:00"),
        (_interval("empty", FIRST + DAY, 0 * DAY), "run empty has the empty data interval .*CronDataIntervalTimetable"),
        (run_of("none"), "run none has no data interval.*CronDataIntervalTimetable"),
    ],
    ids=["half", "empty", "none"],
)
def test_a_run_without_an_interval_or_with_an_overlapping_interval_is_refused_and_gets_no_txid(
    run: RunInfo, refusal: str, store: CountingStore
) -> None:
    spec = MemorySpec("sales", "sales", DataIntervalSource("package.reader"), max_pending=3, memory=store)
    ask(spec, FakeTi("begin", "first"), _interval("first", FIRST, DAY), retry=False)
    allocated = store.get(spec.paths.allocated)
    with pytest.raises(SourceError, match=refusal):
        ask(spec, FakeTi("begin", run.run_id), run, retry=False)
    assert store.get(spec.paths.allocated) == allocated


def test_the_ledger_records_the_time_zone_of_the_schedule_at_each_begin(
    store: CountingStore,
) -> None:
    zones = []
    for number, zone in enumerate(("", "Europe/Berlin", "Africa/Cairo", "")):
        stage = Stage(store, zone=zone)
        stage.begun(f"r{number}")
        zones.append(stage.spec.ledger(store).topology().zone)
    assert zones == ["", "Europe/Berlin", "Africa/Cairo", ""]
