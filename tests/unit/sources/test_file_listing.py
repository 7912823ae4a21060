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

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.files.source import FileSource, FolderSource, PartitionedFileSource

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
def test_a_folder_that_cannot_be_listed_stops_the_source_before_it_takes_later_files(
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
def test_a_root_folder_that_cannot_be_listed_does_not_count_as_empty(folder: Path, scheme: str) -> None:
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
def test_a_partition_that_cannot_be_listed_stops_a_transactional_source_and_not_an_opaque_one(
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


def test_the_error_for_a_circular_link_names_the_link(folder: Path) -> None:
    source = FileSource(f"{folder}/*/*.csv", 10)
    (folder / "b" / "loop").symlink_to(folder / "b" / "loop")
    with pytest.raises(SourceError, match=rf"folder {folder}/b/loop cannot be listed \(Too many levels of symbolic"):
        source.decide(ATTEMPT, None)


def test_a_dangling_link_is_refused_and_not_ignored(folder: Path) -> None:
    source = FileSource(f"{folder}/*/*.csv", 10)
    link = folder / "b" / "away.csv"
    link.symlink_to(folder / "nothing")
    with pytest.raises(SourceError, match=rf"file {link} cannot be read \(No such file"):
        source.decide(ATTEMPT, None)
    link.unlink()
    (folder / "d").symlink_to(folder / "nothing")
    with pytest.raises(SourceError, match=rf"folder {folder}/d cannot be listed \(No such file"):
        source.decide(ATTEMPT, None)
    (folder / "nothing").mkdir()
    (folder / "e").symlink_to(folder / "a" / "1.csv")  # a file has no files in it
    assert names(source) == ["a/1.csv", "b/2.csv", "c/3.csv"]


def test_a_folder_that_a_link_also_points_to_returns_its_files_once(folder: Path) -> None:
    (folder / "Latest").symlink_to(folder / "a")
    for glob in ("**/*.csv", "*/*.csv", "[!x]*/*"):
        assert names(FileSource(f"{folder}/{glob}", 10)) == ["a/1.csv", "b/2.csv", "c/3.csv"]
    batch = PartitionedFileSource(f"{folder}/*/*.csv").decide(ATTEMPT, None)
    assert batch is not None
    assert sorted(cast("Any", batch.metadata)) == ["a", "b", "c"]


def test_a_file_that_a_link_also_points_to_is_taken_once(folder: Path) -> None:
    (folder / "a" / "0.csv").symlink_to(folder / "a" / "1.csv")
    (folder / "a" / "2.csv").symlink_to("1.csv")
    assert names(FileSource(f"{folder}/a/*.csv", 10)) == ["1.csv"]
    assert names(FileSource(f"{folder}/a/[02].csv", 10)) == ["0.csv"]


def test_links_outside_the_folder_of_the_glob_are_followed(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    (elsewhere / "4.csv").write_text("n\n1\n")
    (folder / ".store").mkdir()
    (folder / ".store" / "5.csv").write_text("n\n1\n")
    (folder / "d").symlink_to(elsewhere)
    (folder / "e").symlink_to(folder / ".store")
    (folder / "f").symlink_to(elsewhere)
    assert names(FileSource(f"{folder}/*/*.csv", 10)) == ["a/1.csv", "b/2.csv", "c/3.csv", "d/4.csv", "e/5.csv"]


@pytest.mark.parametrize("name", ["_late.csv", "x.csv._COPYING_", "_temporary/0/part.csv", "_airflow_tx/part.csv"])
def test_a_file_whose_name_spark_ignores_is_not_part_of_a_batch(folder: Path, name: str) -> None:
    (folder / name).parent.mkdir(parents=True, exist_ok=True)
    (folder / name).write_text("n\n1\n")
    assert names(FileSource(f"{folder}/**/*.csv*", 10)) == ["a/1.csv", "b/2.csv", "c/3.csv"]


def test_a_partition_folder_whose_name_begins_with_an_underscore_is_not_hidden(folder: Path) -> None:
    (folder / "_day=1").mkdir()
    (folder / "_day=1" / "4.csv").write_text("n\n1\n")
    assert "_day=1/4.csv" in names(FileSource(f"{folder}/*/*.csv", 10))


@pytest.mark.parametrize(
    ("name", "problem"),
    [(b"\xe9.csv", "has a name that is not UTF-8"), (b"10:00.csv", "has a colon in its name, which Spark cannot read")],
)
def test_a_file_name_that_spark_or_the_ledger_cannot_write_is_refused_before_the_file_is_taken(
    folder: Path, name: bytes, problem: str
) -> None:
    path = os.path.join(os.fsencode(folder / "a"), name)
    with open(path, "w") as file:
        file.write("n\n1\n")
    source = FileSource(f"{folder}/a/*.csv", 10)
    with pytest.raises(SourceError, match=f"{problem}. Rename it, then clear the task"):
        source.decide(ATTEMPT, None)
    os.rename(path, folder / "a" / "9.csv")
    assert names(source) == ["1.csv", "9.csv"]


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
@pytest.mark.parametrize("source_class", [FileSource, PartitionedFileSource])
@pytest.mark.parametrize("scheme", ["", "file://", "memory://box"])
def test_a_folder_that_matches_the_glob_is_refused_and_not_ignored(
    folder: Path, source_class: type[FolderSource], kind: str, scheme: str
) -> None:
    store = MemoryFileSystem()
    store.store.clear()
    attach("memory", fs=store)

    def put(name: str) -> None:
        if scheme == "memory://box":
            store.pipe(f"/box{folder}/{name}", b"n\n1\n")
            return
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("n\n1\n")

    for name in ("a/1.csv", "a/2.csv/part-0.csv", "a/3.csv"):
        put(name)
    source = source_class(f"{scheme}{folder}/*/*.csv", 10, kind=kind)
    told = r"folder \S*/a/2\.csv matches the glob, but the glob must match only files\. "
    told += r"Nothing was taken\. Move the folder\. If "
    with pytest.raises(
        SourceError, match=rf"{told}every match is a folder, let the glob match their files: '\S+/\*\.csv/\*'\. Then"
    ):
        source.decide(ATTEMPT, None)
    with pytest.raises(SourceError, match=told):
        source.backlog(None)
    assert source_class(f"{scheme}{folder}/*/*.csv/*", 10, kind=kind).decide(ATTEMPT, None) is not None
    if scheme == "memory://box":
        store.rm(f"/box{folder}/a/2.csv", recursive=True)
    else:
        shutil.rmtree(folder / "a" / "2.csv")
    assert source.decide(ATTEMPT, None) is not None


def test_a_double_star_glob_finds_files_in_a_folder_that_matches_the_glob(folder: Path) -> None:
    (folder / "b" / "0.csv").mkdir()
    (folder / "b" / "0.csv" / "part.csv").write_text("n\n1\n")
    assert names(FileSource(f"{folder}/**/*.csv", 10)) == ["a/1.csv", "b/0.csv/part.csv", "b/2.csv", "c/3.csv"]
    assert PartitionedFileSource(f"{folder}/**/*.csv", 10).backlog(None) == 4


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
def test_a_failed_listing_of_a_folder_in_object_storage_does_not_count_as_empty(
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
