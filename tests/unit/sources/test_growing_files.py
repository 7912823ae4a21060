"""Files that other programs still write when a source lists them."""

from __future__ import annotations

import logging
import os
import time
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from airflow_tx.base.errors import ConfigError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.steps import end
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.sources.api import Batch
from airflow_tx.sources.files import storage
from airflow_tx.sources.files.source import FileSource, FolderSource, PartitionedFileSource
from airflow_tx.state import MemoryState, Sum
from airflow_tx.transaction.commit.turn import commit_in_turn
from tests.stage import Stage, StageRun, begin_run, update

ATTEMPT = TransactionAttempt(1, 1)
HOUR = 3600


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files do not grow older while a test looks at them."""
    now = time.time()
    monkeypatch.setattr(time, "time", lambda: now)


def put(folder: Path, name: str, *, age: float = 0) -> None:
    """Write a file that changed so many seconds ago."""
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("n\n1\n")
    changed = time.time() - age
    os.utime(path, (changed, changed))


def names(batch: Batch | None) -> list[str]:
    rows: Any = {"files": []} if batch is None else batch.metadata
    return [file["name"] for file in rows["files"]]


def test_a_source_in_name_order_waits_for_a_file_that_changed_recently(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name, age in {"1.csv": HOUR, "2.csv": 60, "3.csv": HOUR}.items():
        put(tmp_path, name, age=age)
    source = FileSource(f"{tmp_path}/*.csv", 10, min_age=600)
    with caplog.at_level(logging.INFO):
        first = source.initialize_transaction(1, None)
    assert names(first) == ["1.csv"]
    assert "1 file(s) are younger than min_age=600 and wait: 2.csv (60 s)." in caplog.text
    assert first is not None
    assert first.reason == "1 of 3 files: files_per_batch=10, min_age=600"
    assert source.initialize_transaction(2, first.position) is None
    assert source.backlog(first.position) == 2
    put(tmp_path, "2.csv", age=HOUR)
    assert names(source.initialize_transaction(2, first.position)) == ["2.csv", "3.csv"]


def test_an_opaque_source_omits_only_the_file_that_changed_recently(tmp_path: Path) -> None:
    for name, age in {"1.csv": HOUR, "2.csv": 60, "3.csv": HOUR}.items():
        put(tmp_path, name, age=age)
    source = FileSource(f"{tmp_path}/*.csv", 2, kind="opaque", min_age=600)
    first = source.initialize_transaction(1, None)
    assert names(first) == ["1.csv", "3.csv"]
    assert first is not None
    put(tmp_path, "2.csv", age=HOUR)
    assert names(source.initialize_transaction(2, first.position)) == ["2.csv"]


def test_a_partition_folder_does_not_wait_for_the_files_of_another_folder(tmp_path: Path) -> None:
    for name, age in {"a/1.csv": 60, "a/2.csv": HOUR, "b/1.csv": HOUR}.items():
        put(tmp_path, name, age=age)
    batch: Any = PartitionedFileSource(f"{tmp_path}/*/*.csv", 10, min_age=600).decide(ATTEMPT, None)
    assert list(batch.metadata) == ["b"]


def test_a_source_waits_for_a_file_with_a_modification_time_in_the_future_and_logs_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "1.csv", age=-HOUR)
    with caplog.at_level(logging.WARNING):
        assert FileSource(f"{tmp_path}/*.csv", min_age=1).initialize_transaction(1, None) is None
    assert "1 file(s) are younger than min_age=1 and wait: 1.csv (-3600 s)" in caplog.text
    assert names(FileSource(f"{tmp_path}/*.csv").initialize_transaction(1, None)) == ["1.csv"]


def test_the_age_of_an_object_is_calculated_from_the_time_that_its_storage_reports() -> None:
    store = MemoryFileSystem()
    store.store.clear()
    attach("memory", conn_id="aged", fs=store)
    for name in ("1.csv", "2.csv"):
        store.pipe(f"/aged/{name}", b"n\n1\n")
    source = FileSource("memory://aged/*.csv", 10, conn_id="aged", min_age=600)
    assert source.initialize_transaction(1, None) is None
    store.store["/aged/1.csv"].modified = datetime(2026, 1, 1, tzinfo=timezone.utc)
    assert names(source.initialize_transaction(1, None)) == ["1.csv"]


@pytest.mark.parametrize("value", [-1, float("inf"), float("nan"), True, "60", None])
def test_the_minimum_age_must_be_a_number_of_seconds(value: Any) -> None:
    with pytest.raises(ConfigError, match=r"min_age of FileSource = .* cannot be used. Give seconds, such as 60"):
        FileSource("in/*.csv", min_age=value)


# --- a file that changes after its batch --------------------------------------------------------------------------


def begun_with(folder: Path, source_class: type[FolderSource] = FileSource, kind: str = "transactional") -> Stage:
    """Begin the transaction of `eu/1.csv`, which holds 1."""
    put(folder, "eu/1.csv")
    glob = "*/*.csv" if source_class is PartitionedFileSource else "eu/*.csv"
    stage = Stage(source=source_class(f"{folder}/{glob}", kind=kind), name="flights")
    stage.begun("r1")
    return stage


def rewrite(path: Path, content: str) -> None:
    """Write a file at a later time by its disk, which may count in steps of some milliseconds."""
    before = path.stat().st_ctime_ns
    while path.stat().st_ctime_ns <= before:
        path.write_text(content)


def commit(stage: Stage, run_id: str) -> None:
    run = StageRun(stage.spec, run_id)
    run.begin()
    run.end(run.start(), [{"key": "all", "n": 1}])
    state = MemoryState("totals", values={"n": Sum()})
    assert commit_in_turn(run.commit_of([update(state)]), stage.store, patience=1) is None


def warnings(stage: Stage, run_id: str, caplog: pytest.LogCaptureFixture) -> list[str]:
    """Begin a run, and return what it warns of."""
    caplog.clear()
    with caplog.at_level(logging.WARNING):
        begin_run(stage.spec, run_id)
    return caplog.messages


@pytest.mark.parametrize("source_class", [FileSource, PartitionedFileSource])
@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize(
    ("content", "change"),
    [
        ("n\n1\n2\n", "it had 4 bytes, but now has 6"),
        ("n\n7\n", "it still has 4 bytes, but was written again"),
    ],
)
def test_a_file_that_changed_after_its_commit_is_reported_by_the_next_begin_with_the_command(
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    source_class: type[FolderSource],
    kind: str,
    content: str,
    change: str,
) -> None:
    stage = begun_with(tmp_path, source_class, kind)
    commit(stage, "r1")
    rewrite(tmp_path / "eu/1.csv", content)
    told = f"{stage.spec.source!r}: after transaction 1 had taken its rows, 1 file(s) changed: "
    told += f"{tmp_path}/eu/1.csv: {change}. To "
    told += "process the current rows: airflow tx restate flights 1 --changed-rows --why TEXT"
    assert warnings(stage, "r2", caplog) == [told]
    put(tmp_path, "eu/2.csv")
    assert warnings(stage, "r2", caplog) == [told]
    assert warnings(stage, "r3", caplog) == []


def test_begin_reports_a_file_that_changed_before_its_commit_and_the_command_to_replay_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = begun_with(tmp_path)
    put(tmp_path, "eu/2.csv")
    (tmp_path / "eu/1.csv").write_text("n\n1\n2\n")
    (told,) = warnings(stage, "r2", caplog)
    assert told.endswith("To process the current rows: airflow tx replay flights 1 --changed-rows --why TEXT")


def test_a_file_that_was_touched_or_linked_or_removed_does_not_count_as_changed(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = begun_with(tmp_path)
    commit(stage, "r1")
    file = tmp_path / "eu/1.csv"
    os.utime(file, (1, 1))
    assert warnings(stage, "r2", caplog) == []
    (tmp_path / "kept").hardlink_to(file)
    assert warnings(stage, "r2", caplog) == []
    file.unlink()
    assert warnings(stage, "r2", caplog) == []


def test_a_changed_file_of_a_skipped_transaction_is_not_reported(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stage = begun_with(tmp_path)
    ledger = stage.spec.ledger(stage.store)
    ledger.run(end.note_skip, 1, Audit("ada", "broken"))
    granted: Any = ledger.run(end.grant_skip, 1, {})
    ledger.run(end.commit_skip, granted.grant.token, states=())
    (tmp_path / "eu/1.csv").write_text("n\n1\n2\n")
    assert warnings(stage, "r2", caplog) == []


def test_a_file_that_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stage = begun_with(tmp_path)
    commit(stage, "r1")
    read = list[Path]()
    monkeypatch.setattr(storage, "fingerprint", lambda path, **more: read.append(path))
    begin_run(stage.spec, "r2")
    assert read == []


def test_a_corrected_file_is_not_reported_after_its_rows_were_decided_again(tmp_path: Path) -> None:
    source = begun_with(tmp_path).spec.source
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    (tmp_path / "eu/1.csv").write_text("n\n1\n2\n")
    assert source.changed_since(batch.metadata) is not None
    again = source.decide_again(ATTEMPT, batch.metadata)
    assert not isinstance(again, Batch)
    assert source.changed_since(again) is None


def test_a_replaced_object_in_object_storage_is_reported_as_changed() -> None:
    store = MemoryFileSystem()
    store.store.clear()
    attach("memory", conn_id="grown", fs=store)
    store.pipe("/grown/1.csv", b"n\n1\n")
    source = FileSource("memory://grown/*.csv", conn_id="grown")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    assert source.changed_since(batch.metadata) is None
    store.pipe("/grown/1.csv", b"n\n1\n2\n")
    told = "1 file(s) changed: memory://grown/1.csv: it had 4 bytes, but now has 6"
    assert source.changed_since(batch.metadata) == told
