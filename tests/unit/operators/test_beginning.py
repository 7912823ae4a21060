"""What is checked before a transaction is allocated."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.errors import ConfigError
from airflow_tx.operators.beginning import allocate, ask
from tests.unit.operators.bench import CountingStore, FakeTi, MemorySpec, Numbers, run_of

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
