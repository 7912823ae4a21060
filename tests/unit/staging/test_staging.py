"""The staging area: what is written once is read whole or refused."""

from __future__ import annotations

import json
import os
from pathlib import Path

import fsspec  # type: ignore[import-untyped]
import pytest
from fsspec.implementations.memory import MemoryFileSystem  # type: ignore[import-untyped]

from airflow_tx.base.errors import ConfigError, StagingError, StagingUnavailable, StagingUnreachable
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import (
    OutputRef,
    StagingArea,
    TryDir,
    read_batches,
    read_descriptor,
    read_manifest,
    read_output,
    scan_output,
    write_descriptor,
    write_manifest,
    write_rows,
)
from airflow_tx.outputs.staging.descriptor import Descriptor

ROWS = [{"carrier": "UA", "flights": 3}, {"carrier": "AA", "flights": None}]
TRY = TaskTry("count", -1, "0190-aa")


@pytest.fixture(params=["local", "memory"])
def area(request: pytest.FixtureRequest, tmp_path: Path) -> StagingArea:
    """The same area on a folder and on an object store."""
    return StagingArea(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/staging")


@pytest.fixture
def local(tmp_path: Path) -> StagingArea:
    return StagingArea(f"file://{tmp_path}")


def try_dir(area: StagingArea, txid: int = 3, attempt: int = 2, task: TaskTry = TRY) -> TryDir:
    return area.try_dir("flights", TransactionAttempt(txid, attempt), task)


def emit(where: TryDir) -> OutputRef:
    return write_manifest(where, {"counts": write_rows(where, "counts", ROWS)}, consumed_rows=7)["counts"]


def test_staged_output_is_unchanged_when_it_is_read(area: StagingArea) -> None:
    ref = emit(try_dir(area))
    through_json = json.loads(json.dumps(ref.to_json()))
    assert list(read_output(area, through_json, columns=["carrier", "flights"])) == ROWS
    assert sum(batch.num_rows for batch in read_batches(area, ref)) == ref.rows == 2
    assert read_manifest(try_dir(area)).refs() == {"counts": ref}
    assert read_manifest(try_dir(area)).consumed_rows == 7


def test_a_scan_of_the_parquet_files_returns_the_output_that_was_written(area: StagingArea) -> None:
    where = try_dir(area)
    assert scan_output(where, "counts").files == ()
    assert write_rows(where, "counts", ROWS) == scan_output(where, "counts")


def test_an_output_without_a_manifest_is_incomplete(area: StagingArea) -> None:
    where = try_dir(area)
    ref = emit(try_dir(area, task=TaskTry("count", -1, "other")))
    write_rows(where, "counts", ROWS)
    lost = OutputRef.from_json({**ref.to_json(), "task_try": TRY.task_try})
    with pytest.raises(StagingError, match=r"'counts' of task count in transaction 3\.2 refused: it is incomplete"):
        read_output(area, lost)


def test_the_error_for_a_missing_or_shortened_file_names_it(local: StagingArea) -> None:
    ref = emit(try_dir(local))
    file = Path(local.root, ref.path, "part-0.parquet")
    content = file.read_bytes()
    file.write_bytes(content[:-1])
    with pytest.raises(StagingError, match=f"part-0.parquet has {len(content) - 1} bytes instead of {len(content)}"):
        read_output(local, ref)
    file.unlink()
    with pytest.raises(StagingError, match=r"part-0.parquet is missing. Clear task count"):
        read_output(local, ref)


def test_a_damaged_file_of_the_same_size_is_refused(local: StagingArea) -> None:
    ref = emit(try_dir(local))
    file = Path(local.root, ref.path, "part-0.parquet")
    file.write_bytes(b"x" * file.stat().st_size)
    with pytest.raises(StagingError, match="cannot be read"):
        list(read_output(local, ref))


def test_output_of_another_attempt_is_refused(area: StagingArea) -> None:
    ref = emit(try_dir(area))
    with pytest.raises(StagingError, match=r"it belongs to attempt 3\.2, but this is attempt 3\.3"):
        read_output(area, ref, attempt=TransactionAttempt(3, 3))
    assert list(read_output(area, ref, attempt=TransactionAttempt(3, 2))) == ROWS


def test_a_manifest_of_another_try_is_refused(local: StagingArea) -> None:
    ref = emit(try_dir(local))
    os.rename(try_dir(local).uri, try_dir(local, task=TaskTry("count", -1, "later")).uri)
    with pytest.raises(StagingError, match=r"its manifest is of flights 3\.2 .* try 0190-aa, not of .* try later"):
        read_output(local, {**ref.to_json(), "task_try": "later"})


def test_an_output_that_was_written_again_is_refused(area: StagingArea) -> None:
    ref = emit(try_dir(area))
    where = try_dir(area)
    write_manifest(where, {"counts": write_rows(where, "counts", ROWS[:1])})
    with pytest.raises(StagingError, match="is not the one that the reference names"):
        read_output(area, ref)


def test_the_error_for_an_unknown_output_lists_the_names_of_the_emitted_outputs(area: StagingArea) -> None:
    ref = emit(try_dir(area))
    with pytest.raises(StagingError, match=r"'totals' .* the task emitted 'counts'. Read one of these"):
        read_output(area, {**ref.to_json(), "name": "totals"})


def test_the_error_for_missing_columns_names_them(area: StagingArea) -> None:
    with pytest.raises(StagingError, match="it has columns carrier, flights, but lacks origin"):
        read_output(area, emit(try_dir(area)), columns=["carrier", "origin"])


def test_an_xcom_that_is_not_a_reference_is_refused(area: StagingArea) -> None:
    with pytest.raises(StagingError, match=r"is no reference to staged output. Pass the output of a processing task"):
        read_output(area, {"some": "value"})


@pytest.mark.parametrize("name", ["", "_hidden", ".hidden", "return_value"])
def test_an_invalid_output_name_is_refused(area: StagingArea, name: str) -> None:
    with pytest.raises(StagingError, match="this name is not allowed"):
        write_rows(try_dir(area), name, ROWS)


def test_rows_that_are_not_a_table_cannot_be_staged(area: StagingArea) -> None:
    with pytest.raises(StagingError, match="its rows do not form a table"):
        write_rows(try_dir(area), "counts", [{"a": 1}, {"a": "text"}])


def test_paths_for_names_of_any_kind_stay_inside_the_staging_area(local: StagingArea) -> None:
    where = local.try_dir("../up", TransactionAttempt(1, 1), TaskTry("a/b.c@d", 4, ".."))
    ref = write_manifest(where, {"größe/1": write_rows(where, "größe/1", ROWS)})["größe/1"]
    assert where.name == "..%2Fup/1/1/a%2Fb.c%40d@4/%2E%2E"
    assert Path(where.uri).resolve().is_relative_to(local.root)
    assert list(read_output(local, ref)) == ROWS


def test_a_cleanup_deletes_every_attempt_of_earlier_transactions_and_may_be_repeated(area: StagingArea) -> None:
    refs = [emit(try_dir(area, txid, attempt)) for txid in (3, 4) for attempt in (1, 2)]
    for _ in range(2):
        assert area.sweep("flights", 4) == []
    for ref in refs[:2]:
        with pytest.raises(StagingError, match=r"no output of its transaction is staged.*committed.*read the state"):
            read_output(area, ref)
    assert all(list(read_output(area, ref)) == ROWS for ref in refs[2:])


def test_a_cleanup_keeps_output_in_use_and_a_later_cleanup_deletes_it_and_late_output(area: StagingArea) -> None:
    for txid in (1, 2, 3, 10):
        emit(try_dir(area, txid))
    assert area.sweep("flights", 4, lambda txid: txid == 2) == [2]
    assert txids(area) == {"2", "10"}
    emit(try_dir(area, 1))
    assert area.sweep("another", 100) == []
    assert area.sweep("flights", 5) == []
    assert txids(area) == {"10"}
    assert read_manifest(try_dir(area, 10)).refs()


def txids(area: StagingArea) -> set[str]:
    return set(area.files.list("flights"))


def descriptor(area: StagingArea, rows: object) -> Descriptor:
    source = ("airflow_tx.sources.files.source.FileSource", {"path_glob": "/data/*.csv"})
    return Descriptor("flights", TransactionAttempt(3, 2), TRY, rows, source, area.root)


def test_a_descriptor_of_any_size_is_passed_as_a_short_reference(area: StagingArea) -> None:
    whole = descriptor(area, {"files": ["x" * 100] * 10_000})
    uri = write_descriptor(area, whole)
    assert len(uri) < 400
    assert read_descriptor(uri) == whole


def test_the_error_for_an_unreadable_descriptor_names_it(local: StagingArea) -> None:
    with pytest.raises(ConfigError, match="This file does not exist"):
        read_descriptor(local.root + "/_descriptor.json")
    uri = write_descriptor(local, descriptor(local, None))
    Path(uri).write_text(Path(uri).read_text().replace('"format": 1', '"format": 99'))
    with pytest.raises(ConfigError, match=r"format of the descriptor = 99 cannot be used\. This version"):
        read_descriptor(uri)
    Path(uri).write_text("{")
    with pytest.raises(ConfigError, match="Pass the URI"):
        read_descriptor(uri)


def test_the_staging_root_must_be_configured() -> None:
    with pytest.raises(ConfigError, match="staging"):
        StagingArea(" ")


def test_two_topologies_of_the_same_name_in_two_ledgers_do_not_delete_the_output_of_each_other(
    area: StagingArea,
) -> None:
    one, other = StagingArea(area.root, "one"), StagingArea(area.root, "other")
    ref = emit(try_dir(one))
    emit(try_dir(other))
    other.sweep("flights", 9)
    assert txids(other) == set()
    assert list(read_output(one, ref)) == ROWS
    assert list(read_output(StagingArea(one.root), ref)) == ROWS


def test_every_staging_path_begins_with_the_id_of_the_ledger(tmp_path: Path) -> None:
    assert StagingArea(f"{tmp_path}/", "a/b").root == StagingArea(str(tmp_path), "a/b").root == f"{tmp_path}/a%2Fb"
    assert StagingArea("/", "a").root == StagingArea("file:///", "a").root == "/a"


@pytest.mark.parametrize("root", ["{file}/staging", "nosuch://bucket/staging", "file://{file}"])
def test_the_error_for_an_unusable_staging_root_has_one_line_that_names_the_option(root: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    given = root.format(file=file)
    with pytest.raises(ConfigError) as error:
        StagingArea(given, "ledger").check()
    assert str(error.value).startswith(f"[tx] staging = {given!r} cannot be used. ")
    assert "AIRFLOW__TX__STAGING to a folder" in str(error.value)
    assert "\n" not in str(error.value)


def test_the_check_of_a_usable_staging_root_can_be_repeated(area: StagingArea) -> None:
    area.check()
    area.check()
    assert area.sweep("flights", 9) == []


def test_the_error_for_a_file_that_cannot_be_written_has_one_line_with_place_and_reason(tmp_path: Path) -> None:
    (tmp_path / "flights").write_text("a file where a folder is wanted")
    where = StagingArea(str(tmp_path)).try_dir("flights", TransactionAttempt(1, 1), TaskTry("count", -1, "1"))
    with pytest.raises(StagingUnavailable, match=rf"^{tmp_path}/flights/1/1/.* cannot be written: .*clear the task.$"):
        write_rows(where, "counts", [{"word": "a"}])


class Silent(MemoryFileSystem):  # type: ignore[misc]
    """A store whose client has errors of its own, as botocore has."""

    class NoAnswer(Exception):
        pass

    def _refuse(self, *arguments: object, **options: object) -> None:
        raise Silent.NoAnswer("Could not connect\nto the endpoint")

    cat_file = ls = pipe_file = rm = _open = _refuse


def test_the_error_for_an_unreachable_store_has_one_line_with_place_and_reason() -> None:
    fsspec.register_implementation("silent", Silent, clobber=True)
    files = StagingArea("silent://here").files
    for use in (files.read, files.open, files.list, files.remove_tree, lambda name: files.write(name, b"")):
        with pytest.raises(StagingUnreachable) as error:
            use("1/a")
        assert str(error.value).startswith(
            "silent://here/1/a cannot be reached: Could not connect to the endpoint. Nothing was changed;"
        )
