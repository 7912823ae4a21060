"""Files that may come late, vanish and change, and files in folders of their own."""

from __future__ import annotations

import json
import logging
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.base.errors import ConfigError, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.sources.files.storage import FilesPosition

ATTEMPT = TransactionAttempt(1, 1)


def put(folder: Path, *names: str, content: str = "n\n1\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def opaque(folder: Path, size: int = 1) -> FileSource:
    return FileSource(f"{folder}/*.csv", size, kind="opaque")


def names(batch: Batch | None) -> list[str]:
    rows: Any = batch.metadata if batch is not None else {"files": []}
    return [file["name"] for file in rows["files"]]


def rows_of(source: FileSource | PartitionedFileSource, metadata: Any) -> list[Any]:
    return list(cast("Iterable[Any]", source.emit_batch(ATTEMPT, metadata)))


def test_a_file_whose_name_sorts_before_earlier_files_is_taken_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    put(tmp_path, "b.csv")
    source = opaque(tmp_path, 2)
    first = source.initialize_transaction(1, None)
    put(tmp_path, "a.csv", "c.csv", "d.csv")
    assert first is not None
    with caplog.at_level(logging.WARNING):
        second = source.initialize_transaction(2, first.position)
    assert second is not None
    third = source.initialize_transaction(3, second.position)
    assert third is not None
    assert [names(batch) for batch in (first, second, third)] == [["b.csv"], ["a.csv", "c.csv"], ["d.csv"]]
    assert source.initialize_transaction(4, third.position) is None
    assert source.late_files(first.position) == []
    assert not caplog.text


def test_a_file_that_was_taken_and_deleted_and_created_again_is_not_taken_twice(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    source = opaque(tmp_path)
    first = source.initialize_transaction(1, None)
    (tmp_path / "a.csv").unlink()
    put(tmp_path, "b.csv")
    assert first is not None
    second = source.initialize_transaction(2, first.position)
    put(tmp_path, "a.csv", content="n\n2\n")
    assert second is not None
    assert source.initialize_transaction(3, second.position) is None
    assert FilesPosition.from_json(second.position).taken == {"a.csv", "b.csv"}


def test_a_replay_of_an_opaque_source_takes_the_files_that_exist_at_that_time(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.csv", "c.csv")
    source = opaque(tmp_path, 2)
    assert names(source.initialize_transaction(1, None)) == ["a.csv", "b.csv"]
    (tmp_path / "a.csv").unlink()
    put(tmp_path, "b.csv", content="n\n2\n")
    again = source.initialize_transaction(1, None)
    assert again is not None
    assert names(again) == ["b.csv", "c.csv"]
    assert rows_of(source, again.metadata) == [{"n": "2"}, {"n": "1"}]
    put(tmp_path, "a.csv")
    assert names(source.initialize_transaction(2, again.position)) == ["a.csv"]


def test_within_one_attempt_the_files_of_an_opaque_source_cannot_change(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    source = opaque(tmp_path)
    batch = source.initialize_transaction(1, None)
    put(tmp_path, "a.csv", content="n\n2\n")
    assert batch is not None
    with pytest.raises(SourceError, match=r"a\.csv was 4 bytes with content:\w+, but is 4 bytes with content"):
        rows_of(source, batch.metadata)


def test_an_opaque_source_may_find_no_file_at_first_and_refuses_a_missing_folder(tmp_path: Path) -> None:
    assert opaque(tmp_path).initialize_transaction(1, None) is None
    with pytest.raises(SourceError, match=r"folder .*/no does not exist"):
        opaque(tmp_path / "no").initialize_transaction(1, None)


def test_a_source_can_change_from_files_in_name_order_to_files_with_names_in_any_order(tmp_path: Path) -> None:
    put(tmp_path, "b.csv")
    batch = FileSource(f"{tmp_path}/*.csv").initialize_transaction(1, None)
    put(tmp_path, "a.csv")
    assert batch is not None
    assert names(opaque(tmp_path).initialize_transaction(2, batch.position)) == ["a.csv"]


file_names = st.sampled_from([f"{letter}.csv" for letter in "abcdef"])
steps = st.lists(st.tuples(st.sampled_from(["put", "unlink", "take", "replay"]), file_names), max_size=25)


@given(steps=steps, size=st.integers(1, 3))
def test_every_file_name_is_taken_exactly_once_no_matter_which_files_come_and_go(
    steps: list[tuple[str, str]], size: int
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        source, places, taken = opaque(Path(folder), size), [None], list[list[str]]()
        for what, name in [*steps, *[("take", "")] * 8]:
            if what == "put":
                put(Path(folder), name)
            elif what == "unlink":
                Path(folder, name).unlink(missing_ok=True)
            elif what == "replay" and taken:
                del places[-1], taken[-1]
            batch = source.initialize_transaction(1, places[-1]) if what in ("take", "replay") else None
            if batch is not None:
                places.append(json.loads(json.dumps(batch.position)))
                taken.append(names(batch))
        every = [name for batch_names in taken for name in batch_names]
        assert len(every) == len(set(every))
        assert {path.name for path in Path(folder).iterdir()} <= set(every)


# --- folders -----------------------------------------------------------------------------------------------------


def test_every_folder_has_its_own_position_in_name_order(tmp_path: Path) -> None:
    put(tmp_path, "eu/1.csv", "eu/2.csv", "us/9.csv", "top.csv")
    source = PartitionedFileSource(f"{tmp_path}/*/*.csv")
    first = source.decide(ATTEMPT, None)
    assert first is not None
    put(tmp_path, "asia/1.csv")
    second = source.decide(ATTEMPT, first.position)
    assert second is not None
    rows: Any = [first.metadata, second.metadata]
    found = [{folder: [file["name"] for file in part["files"]] for folder, part in each.items()} for each in rows]
    assert found == [{"eu": ["1.csv"], "us": ["9.csv"]}, {"asia": ["1.csv"], "eu": ["2.csv"]}]


def test_a_folder_that_was_deleted_stops_a_transactional_source_with_the_reason(tmp_path: Path) -> None:
    put(tmp_path, "eu/1.csv", "us/1.csv", "us/2.csv")
    glob = f"{tmp_path}/*/*.csv"
    batch = PartitionedFileSource(glob).decide(ATTEMPT, None)
    assert batch is not None
    (tmp_path / "us").rename(tmp_path.parent / f"{tmp_path.name}-us")
    with pytest.raises(SourceError, match=r"partition us was in earlier batches and is gone\. Nothing was allocated"):
        PartitionedFileSource(glob).decide(ATTEMPT, batch.position)
    assert PartitionedFileSource(glob, kind="opaque").decide(ATTEMPT, batch.position) is None


def test_nested_folders_are_partitions_that_are_named_by_their_path(tmp_path: Path) -> None:
    put(tmp_path, "2026/01/a.csv", "2026/02/a.csv", "2025/12/a.csv")
    assert PartitionedFileSource(f"{tmp_path}/*/*/*.csv").partitions() == ["2025/12", "2026/01", "2026/02"]
    assert PartitionedFileSource(f"{tmp_path}/2026/*/*.csv").partitions() == ["01", "02"]
    every = [".", "2025", "2025/12", "2026", "2026/01", "2026/02"]
    assert PartitionedFileSource(f"{tmp_path}/**/*.csv").partitions() == every


def test_folder_names_in_hive_style_become_columns(tmp_path: Path) -> None:
    put(tmp_path, "region=eu/day=1%2F2/a.csv", "region=__HIVE_DEFAULT_PARTITION__/day=2/a.csv")
    source = PartitionedFileSource(f"{tmp_path}/*/*/*.csv")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    assert rows_of(source, batch.metadata) == [
        {"n": "1", "region": None, "day": "2"},
        {"n": "1", "region": "eu", "day": "1/2"},
    ]


def test_the_error_for_a_glob_of_the_wrong_file_source_names_the_other_file_source(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"path_glob of PartitionedFileSource = 'in/\*\.csv' .* or use FileSource"):
        PartitionedFileSource("in/*.csv")
    with pytest.raises(ConfigError, match=r"kind of FileSource = 'late' cannot be used\. Give \"transactional\""):
        FileSource("in/*.csv", kind="late")
