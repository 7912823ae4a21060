"""What is checked before a transaction is allocated."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.compat import RunInfo
from airflow_tx.errors import ConfigError
from airflow_tx.processing.begin import allocate, ask, conf_of, key_of
from airflow_tx.protocol.answers import Begun
from airflow_tx.sources.api import Source
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.sources.run.partition import RunPartitionSource
from tests.unit.bench import CountingStore, FakeTi, MemorySpec, Numbers, run_of

FIRST = datetime(2026, 1, 1, tzinfo=timezone.utc)
Begin = Callable[[MemorySpec], Any]


def by_run(spec: MemorySpec) -> Any:
    return ask(spec, FakeTi("begin", "r1"), run_of("r1"), retry=False)


def by_coordinator(spec: MemorySpec) -> Any:
    return allocate(spec, spec.ledger(spec.memory))


@pytest.mark.parametrize("begin", [by_run, by_coordinator])
def test_nothing_is_allocated_while_what_the_tasks_stage_could_not_be_written(
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
def test_a_run_that_was_deleted_and_made_anew_has_the_batch_of_its_key(
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
