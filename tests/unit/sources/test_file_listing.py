"""A listing is whole or refused: what sorts behind a folder that cannot be listed would be taken before it."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, cast

import pytest
from airflow.sdk.io import attach
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from airflow_tx.errors import SourceError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.files.base import FolderSource
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource

ATTEMPT = TransactionAttempt(1, 1)
NOBODY = 65534


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder that anybody reaches, with files in three folders."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o755)
    for name in ("a/1.csv", "b/2.csv", "c/3.csv"):
        (made / name).parent.mkdir()
        (made / name).write_text("n\n1\n")
    yield made
    for name in ("a", "b", "c"):
        (made / name).chmod(0o755)
    shutil.rmtree(made)


@contextmanager
def powerless() -> Iterator[None]:
    """Be somebody for whom permissions count."""
    if os.geteuid():
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


def names(source: FolderSource) -> list[str]:
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    return [file["name"] for file in cast("Any", batch.metadata)["files"]]


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("scheme", ["", "file://"])
@pytest.mark.parametrize("pattern", ["*/*.csv", "**/*.csv", "[a-c]/?.csv"])
@pytest.mark.parametrize("mode", [0o000, 0o444])
def test_files_behind_a_folder_that_cannot_be_listed_are_not_taken_before_its_own(
    folder: Path, kind: str, scheme: str, pattern: str, mode: int
) -> None:
    source = FileSource(f"{scheme}{folder}/{pattern}", 10, kind=kind)
    assert names(source) == ["a/1.csv", "b/2.csv", "c/3.csv"]
    (folder / "b").chmod(mode)
    with powerless():
        if mode == 0o444 and not scheme:  # its names can be listed, and its file is found to be one; it cannot be read
            with pytest.raises(SourceError, match=rf"file {folder}/b/2\.csv cannot be read \(Permission denied\)"):
                source.decide(ATTEMPT, None)
            return
        with pytest.raises(SourceError, match=rf"folder {folder}/b\S* cannot be listed \(Permission denied\)"):
            source.decide(ATTEMPT, None)
        with pytest.raises(SourceError, match=r"cannot be listed \(Permission denied\)\. Nothing was taken\. Let "):
            source.backlog(None)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_root_that_cannot_be_listed_has_not_no_files(folder: Path, scheme: str) -> None:
    source = FileSource(f"{scheme}{folder}/b/*.csv", kind="opaque")
    assert names(source) == ["2.csv"]
    (folder / "b").chmod(0o000)
    with powerless(), pytest.raises(SourceError, match=rf"folder {folder}/b cannot be listed \(Permission denied\)"):
        source.decide(ATTEMPT, None)
    (folder / "b").chmod(0o755)
    folder.chmod(0o000)
    with powerless(), pytest.raises(SourceError, match=rf"folder {folder}/b cannot be listed \(Permission denied\)"):
        source.decide(ATTEMPT, None)
    folder.chmod(0o755)


@pytest.mark.parametrize("scheme", ["", "file://"])
def test_a_partition_that_cannot_be_listed_stops_a_transactional_source_and_is_left_out_by_an_opaque_one(
    folder: Path, scheme: str, caplog: pytest.LogCaptureFixture
) -> None:
    strict, lenient = (
        PartitionedFileSource(f"{scheme}{folder}/*/*.csv", kind=kind) for kind in ("transactional", "opaque")
    )
    for source in (strict, lenient):
        assert source.decide(ATTEMPT, None) is not None
    (folder / "b").chmod(0o000)
    with powerless():
        with pytest.raises(SourceError, match=r"partition b cannot be reached: folder \S+/b cannot be listed \(Perm"):
            strict.decide(ATTEMPT, None)
        with caplog.at_level(logging.WARNING):
            batch = lenient.decide(ATTEMPT, None)
    assert batch is not None
    assert sorted(cast("Any", batch.metadata)) == ["a", "c"]
    assert "cannot be listed (Permission denied)" in caplog.text


def test_a_link_that_leads_in_a_circle_is_named_and_one_that_leads_nowhere_is_no_file(folder: Path) -> None:
    source = FileSource(f"{folder}/*/*.csv", 10)
    (folder / "b" / "away.csv").symlink_to(folder / "nothing")
    assert names(source) == ["a/1.csv", "b/2.csv", "c/3.csv"]
    (folder / "b" / "loop").symlink_to(folder / "b" / "loop")
    with pytest.raises(SourceError, match=rf"folder {folder}/b/loop cannot be listed \(Too many levels of symbolic"):
        source.decide(ATTEMPT, None)


class FailingFileSystem(MemoryFileSystem):  # type: ignore[misc]
    """A store that does not answer for one of its folders."""

    store: ClassVar[dict[str, Any]] = {}
    pseudo_dirs: ClassVar[list[str]] = [""]
    fails: ClassVar[dict[str, int]] = {}

    def ls(self, path: str, detail: bool = True, **kwargs: Any) -> Any:
        for name, number in self.fails.items():
            if path.rstrip("/").endswith(name):
                raise OSError(number, os.strerror(number), path)
        return super().ls(path, detail, **kwargs)


@pytest.mark.parametrize("number", [errno.EIO, errno.ESTALE, errno.EACCES])
@pytest.mark.parametrize("pattern", ["*/*.csv", "**/*.csv"])
def test_an_object_storage_that_does_not_answer_for_a_folder_has_not_no_files(
    number: int, pattern: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = FailingFileSystem()
    attach("memory", conn_id="failing", fs=store)
    for name in ("a/1.csv", "b/2.csv", "c/3.csv"):
        store.pipe(f"/box/{name}", b"n\n1\n")
    source = FileSource(f"memory://box/{pattern}", 10, conn_id="failing")
    assert names(source) == ["a/1.csv", "b/2.csv", "c/3.csv"]
    monkeypatch.setitem(FailingFileSystem.fails, "/b", number)
    with pytest.raises(SourceError, match=rf"folder \S*box/b cannot be listed \({os.strerror(number)}\)"):
        source.decide(ATTEMPT, None)
