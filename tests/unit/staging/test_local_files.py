"""Files of a disk: a listing is whole, and a file that is written is on the disk before it has its name."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from airflow_tx.outputs.staging.files import LocalFiles


def test_a_missing_folder_counts_as_empty_in_a_listing_and_is_an_error_if_it_is_the_root(tmp_path: Path) -> None:
    files = LocalFiles(str(tmp_path / "in"))
    with pytest.raises(FileNotFoundError):
        files.entries("")
    assert files.list("") == {}
    files.write("eu/1.csv", b"n")
    assert list(files.entries("")) == ["eu"]
    assert files.entries("us") == files.entries("eu/1.csv/deeper") == {}


def test_a_written_file_is_synced_to_the_disk_before_it_gets_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    steps: list[str] = []
    synced = os.fsync
    named = os.replace

    def sync(file: int) -> None:
        steps.append("disk")
        synced(file)

    def name(partial: Path, path: Path) -> None:
        steps.append("name")
        named(partial, path)

    monkeypatch.setattr(os, "fsync", sync)
    monkeypatch.setattr(os, "replace", name)
    LocalFiles(str(tmp_path)).write("a", b"1")
    assert steps == ["disk", "name"]
    assert os.listdir(tmp_path) == ["a"]
