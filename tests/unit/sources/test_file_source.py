"""A source of files: every file in exactly one batch, and never another file than the one the batch was made of."""

from __future__ import annotations

import json
import logging
import os
import tempfile
from collections.abc import Iterable
from datetime import date
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from airflow_tx.base.errors import ConfigError, SourceError
from airflow_tx.base.rows.types import columns_of
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, rebuild
from airflow_tx.sources.files import rows as rows_of_files
from airflow_tx.sources.files.source import FileSource, FolderSource, PartitionedFileSource
from airflow_tx.sources.files.storage import Disk, FilesPosition, fingerprint, split_glob

ATTEMPT = TransactionAttempt(1, 1)


def put(folder: Path, *names: str, content: str = "carrier,delay\nUA,5\nAA,NA\n") -> None:
    for name in names:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text(content)


def take(source: FileSource, position: Any = None) -> Batch:
    batch = source.initialize_transaction(1, position)
    assert batch is not None
    return json_round_trip(batch)


def json_round_trip(batch: Batch) -> Batch:
    return Batch(json.loads(json.dumps(batch.metadata)), json.loads(json.dumps(batch.position)))


def names(batch: Batch) -> list[str]:
    assert isinstance(batch.metadata, dict)
    return [file["name"] for file in batch.metadata["files"]]  # type: ignore[union-attr, index, call-overload, misc]


def test_files_are_taken_in_name_order_until_no_file_is_left(tmp_path: Path) -> None:
    put(tmp_path, "b.csv", "a.csv", "c.csv", "note.txt")
    source = FileSource(f"{tmp_path}/*.csv", files_per_batch=2)
    first = take(source)
    second = take(source, first.position)
    assert (names(first), names(second)) == (["a.csv", "b.csv"], ["c.csv"])
    assert source.initialize_transaction(3, second.position) is None
    put(tmp_path, "d.csv")
    assert names(take(source, second.position)) == ["d.csv"]


def rows_of(source: FileSource, metadata: Any) -> list[Any]:
    return list(cast("Iterable[Any]", source.emit_batch(ATTEMPT, metadata)))


file_names = st.text("ab1-.é ", min_size=1, max_size=6).map(lambda stem: f"x{stem}.csv")


@settings(deadline=None)  # how long it takes is up to the machine
@given(arrivals=st.lists(st.sets(file_names, max_size=5), min_size=1, max_size=6), size=st.integers(1, 4))
def test_every_file_is_in_one_batch_or_is_reported_as_late(arrivals: list[set[str]], size: int) -> None:
    with tempfile.TemporaryDirectory() as name:
        folder, position, taken = Path(name), None, []
        source = FileSource(f"{folder}/*.csv", files_per_batch=size)
        put(folder, "0.csv")
        for arriving in [*arrivals, *[set[str]()] * 30]:
            put(folder, *arriving)
            batch = source.initialize_transaction(1, position)
            if batch is not None:
                batch = json_round_trip(batch)
                taken += names(batch)
                position = batch.position
        everything = {path.name for path in folder.iterdir()}
        late = source.late_files(position)
        assert len(taken) == len(set(taken))
        assert sorted(taken + late) == sorted(everything)


def test_a_file_that_is_too_late_is_reported_every_time(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    put(tmp_path, "2013-02.csv")
    source = FileSource(f"{tmp_path}/*.csv")
    position = take(source).position
    put(tmp_path, "2013-01.csv")
    for _ in range(2):
        caplog.clear()
        with caplog.at_level(logging.WARNING):
            assert source.initialize_transaction(2, position) is None
        assert "1 file(s) will not be read: they came after '2013-02.csv' was taken: 2013-01.csv." in caplog.text
    assert source.late_files(position) == ["2013-01.csv"]
    (tmp_path / "2013-02.csv").unlink()
    assert source.late_files(position) == ["2013-01.csv"]


def test_files_that_were_removed_are_deleted_from_the_position(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.csv")
    source = FileSource(f"{tmp_path}/*.csv")
    position = take(source).position
    (tmp_path / "a.csv").unlink()
    assert FilesPosition.from_json(take(source, position).position) == FilesPosition("b.csv", frozenset({"b.csv"}), 2)


def test_the_position_after_ten_thousand_dated_files_is_small() -> None:
    taken = frozenset(
        f"flights-{year}-{month:02}-{day:02}.csv" for year in range(30) for month in range(12) for day in range(28)
    )
    assert len(json.dumps(FilesPosition("z", taken, len(taken)).to_json())) < 5 * len(taken)


def test_the_rows_of_a_batch_are_the_rows_of_its_files(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.csv")
    source = FileSource(f"{tmp_path}/*.csv", 2, options={"nullValue": "NA"}, schema="carrier STRING, delay INT")
    rows = rows_of(source, take(source).metadata)
    assert rows == [{"carrier": "UA", "delay": 5}, {"carrier": "AA", "delay": None}] * 2


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda path: path.write_text("carrier,delay\nUA,6\nAA,NA\n"), r"is 25 bytes with content:\w+\."),
        (lambda path: path.write_text(""), "is 0 bytes"),
        (lambda path: path.unlink(), "is missing"),
    ],
)
def test_a_file_that_changed_after_its_batch_was_decided_is_refused(tmp_path: Path, change: Any, found: str) -> None:
    put(tmp_path, "a.csv")
    source = FileSource(f"{tmp_path}/*.csv")
    rows = take(source).metadata
    change(tmp_path / "a.csv")
    with pytest.raises(SourceError, match=rf"file {tmp_path}/a.csv was 25 bytes with content:\w+, but {found}"):
        rows_of(source, rows)


def test_a_file_that_changed_is_refused_before_its_last_rows_are_returned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rows_of_files, "BLOCK", 16)
    put(tmp_path, "a.csv")
    source = FileSource(f"{tmp_path}/*.csv")
    batch = take(source)
    (tmp_path / "a.csv").write_text("carrier,delay\nUA,5\nAA,NB\n")
    given = iter(source.emit_arrow(ATTEMPT, batch.metadata))
    taken: list[Any] = []
    with pytest.raises(SourceError, match=rf"file {tmp_path}/a.csv was 25 bytes with content:\w+, but is 25 bytes"):
        taken.extend(row for each in given for row in each.to_pylist())
    assert taken in ([], [{"carrier": "UA", "delay": "5"}])


@pytest.mark.parametrize("how", ["emit_batch", "emit_arrow"])
@pytest.mark.parametrize("form", ["text", "csv"])
def test_the_digest_of_a_file_is_calculated_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, how: str, form: str
) -> None:
    put(tmp_path, "a.csv")
    source = FileSource(f"{tmp_path}/*.csv", format=form)
    batch = take(source)
    digested: list[Any] = []
    found = FileSource._found

    def noted(*given: Any) -> Any:
        digested.append(given)
        return found(*given)

    monkeypatch.setattr(FileSource, "_found", noted)
    rows: Any = getattr(source, how)(ATTEMPT, batch.metadata)
    for _ in rows:
        pass
    source.check_read(ATTEMPT)
    assert len(digested) == (form == "text")  # of csv, the reader of the rows does it


@pytest.mark.parametrize("how", ["emit_batch", "emit_arrow"])
def test_a_file_that_changed_is_refused_even_if_it_was_not_read_to_its_end(tmp_path: Path, how: str) -> None:
    put(tmp_path, "a.csv")
    source = FileSource(f"{tmp_path}/*.csv")
    batch = take(source)
    (tmp_path / "a.csv").write_text("carrier,delay\nUA,6\nAA,NA\n")
    getattr(source, how)(ATTEMPT, batch.metadata)
    with pytest.raises(SourceError, match=r"was 25 bytes with content:\w+, but is 25 bytes"):
        source.check_read(ATTEMPT)


def test_the_error_for_a_changed_file_reports_the_change_and_not_the_invalid_value_in_it(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    source = FileSource(f"{tmp_path}/*.csv", schema="carrier STRING, delay STRING")
    batch = take(source)
    (tmp_path / "a.csv").write_text("carrier,delay\nUA,5,AA,N\n\n")
    with pytest.raises(SourceError, match=r"was 25 bytes with content:\w+, but is 25 bytes"):
        rows_of(source, batch.metadata)


def test_a_corrected_file_is_read_after_a_replay_with_changed_rows(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.csv")
    source = FileSource(f"{tmp_path}/*.csv", 2, schema="carrier STRING, delay INT").named("flights")
    batch = take(source)
    with pytest.raises(SourceError, match="Correct the file, then: airflow tx replay flights 1 --changed-rows --why"):
        rows_of(source, batch.metadata)
    put(tmp_path, "a.csv", "b.csv", content="carrier,delay\nUA,5\n")
    with pytest.raises(SourceError, match="or process its current content: airflow tx replay flights 1 --changed-rows"):
        rows_of(source, batch.metadata)
    again = source.decide_again(TransactionAttempt(1, 2), batch.metadata)
    assert rows_of(source, again) == [{"carrier": "UA", "delay": 5}] * 2


def test_a_missing_file_stops_its_batch_unless_an_empty_file_replaces_it(tmp_path: Path) -> None:
    put(tmp_path, "a.csv", "b.csv")
    source = FileSource(f"{tmp_path}/*.csv", 2).named("flights")
    batch = take(source)
    (tmp_path / "a.csv").unlink()
    with pytest.raises(SourceError, match="if the file is gone permanently: airflow tx skip flights 1 --why TEXT"):
        rows_of(source, batch.metadata)
    with pytest.raises(SourceError, match=r"a\.csv is missing or unreadable\. Put a file there, even one without rows"):
        source.decide_again(ATTEMPT, batch.metadata)
    put(tmp_path, "a.csv", content="")
    assert len(rows_of(source, source.decide_again(ATTEMPT, batch.metadata))) == 2


def test_a_file_with_a_new_modification_time_and_the_same_content_is_accepted(tmp_path: Path) -> None:
    put(tmp_path, "a.csv")
    source = FileSource(f"{tmp_path}/*.csv")
    rows = take(source).metadata
    os.utime(tmp_path / "a.csv", (1, 1))
    assert len(rows_of(source, rows)) == 2


def _replaced(path: Path, text: str) -> None:
    """Another file takes its place; it has the same time, as a copy that keeps times makes it."""
    times = os.stat(path)
    other = path.with_name(".other")
    other.write_text(text)
    os.utime(other, ns=(times.st_atime_ns, times.st_mtime_ns))
    os.replace(other, path)


@pytest.mark.parametrize(
    ("change", "found"),
    [
        (lambda path: path.write_text("carrier,delay\nUA,5\n"), "it had 25 bytes, but now has 19"),
        (
            lambda path: _replaced(path, "carrier,delay\nUA,6\nAA,NA\n"),
            "it still has 25 bytes, but was written again",
        ),
        (lambda path: path.unlink(), "it is missing or unreadable now"),
    ],
)
@pytest.mark.parametrize("source_class", [FileSource, PartitionedFileSource])
@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_a_file_that_is_replaced_while_it_is_read_is_refused(
    tmp_path: Path, source_class: type[FolderSource], kind: str, change: Any, found: str
) -> None:
    put(tmp_path, "eu/a.csv", "eu/b.csv")
    folders = "*" if source_class is PartitionedFileSource else "eu"
    source = source_class(f"{tmp_path}/{folders}/*.csv", 2, kind=kind).named("flights")
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    rows = iter(cast("Any", source.emit_batch(ATTEMPT, batch.metadata)))
    next(rows)
    source.check_read(ATTEMPT)
    change(tmp_path / "eu" / "a.csv")
    assert len(list(rows)) >= 2
    where = rf"file {tmp_path}/eu/a\.csv changed while it was read: {found}\. Restore its earlier content, then clear "
    with pytest.raises(SourceError, match=where):
        source.check_read(ATTEMPT)
    source.check_read(TransactionAttempt(1, 2))


def test_a_large_file_is_identified_by_a_digest_of_samples(tmp_path: Path) -> None:
    file = tmp_path / "a"
    file.write_bytes(bytes(range(250)) * 20_000)
    before = fingerprint(file, whole=1_000)
    assert before["digest"].startswith("sample:")
    assert fingerprint(file, whole=-1) == before
    os.utime(file, (1, 1))
    assert fingerprint(file, whole=1_000) != before


def test_a_missing_folder_is_an_error_and_so_is_a_glob_that_matches_no_file(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=rf"folder {tmp_path}/no does not exist. Make it"):
        FileSource(f"{tmp_path}/no/*.csv").initialize_transaction(1, None)
    with pytest.raises(SourceError, match=rf"no file matches {tmp_path}/\*\.csv. Correct the glob"):
        FileSource(f"{tmp_path}/*.csv").initialize_transaction(1, None)


def test_the_position_of_another_source_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match=r"42' is not the position of a source of files\. The topology had another"):
        FileSource(f"{tmp_path}/*.csv").initialize_transaction(1, 42)


@pytest.mark.parametrize(
    ("content", "schema", "options", "problem"),
    [
        ("a,b\n1,x\n", "a INT, b INT", {}, "a.csv: line 2: b = 'x' does not fit the schema"),
        ("a,b\n1\n", None, {}, "a.csv: line 2: 1 fields, and 2 columns"),
        ("b,a\n1,2\n", "a INT, b INT", {}, "a.csv: header b,a does not match the schema a,b"),
        ("a\n1\n", "a MAP<INT,INT>", {}, "has no type that rows without Spark can have"),
        ("a\n1\n", None, {"dateFormat": "y"}, "only Spark supports the option 'dateformat'"),
    ],
)
def test_the_error_for_unreadable_rows_names_their_place(
    tmp_path: Path, content: str, schema: str | None, options: dict[str, Any], problem: str
) -> None:
    put(tmp_path, "a.csv", content=content)
    source = FileSource(f"{tmp_path}/*.csv", options=options, schema=schema)
    with pytest.raises(SourceError) as caught:
        rows_of(source, take(source).metadata)
    assert problem in str(caught.value)


def test_a_relative_glob_is_resolved_in_base_or_the_data_folder_or_the_airflow_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("base", "data", "home"):
        put(tmp_path, f"{name}/in/{name}.csv")
    monkeypatch.setenv("AIRFLOW_HOME", f"{tmp_path}/home")
    monkeypatch.delenv("AIRFLOW_TX_DATA", raising=False)
    assert names(take(FileSource("in/*.csv"))) == ["home.csv"]
    monkeypatch.setenv("AIRFLOW_TX_DATA", f"{tmp_path}/data")
    assert names(take(FileSource("in/*.csv"))) == ["data.csv"]
    batch = take(FileSource("in/*.csv", base=f"{tmp_path}/base"))
    assert names(batch) == ["base.csv"]
    monkeypatch.delenv("AIRFLOW_HOME")
    monkeypatch.delenv("AIRFLOW_TX_DATA")
    # The folder travels with the batch: a Spark driver knows none of these variables.
    assert len(rows_of(FileSource("in/*.csv"), batch.metadata)) == 2
    with pytest.raises(SourceError, match=r"AIRFLOW_TX_DATA and AIRFLOW_HOME are not set\. Give an absolute path"):
        FileSource("in/*.csv").initialize_transaction(1, None)


def test_a_file_source_reads_json_rows_and_files_of_subfolders(tmp_path: Path) -> None:
    put(tmp_path, "2013/01/a.json", "2013/02/a.json", content='{"a": 1}\n\n{"a": 2}\n')
    source = FileSource(f"{tmp_path}/2013/*/*.json", 2, format="json")
    batch = take(source)
    assert names(batch) == ["01/a.json", "02/a.json"]
    assert rows_of(source, batch.metadata) == [{"a": 1}, {"a": 2}] * 2


def test_each_line_of_a_text_file_is_a_row_with_one_column(tmp_path: Path) -> None:
    put(tmp_path, "a.log", content="one\n\ntwo, three\r\nfour")
    for schema, column in ((None, "value"), ("line STRING", "line")):
        source = FileSource(f"{tmp_path}/*.log", format="text", schema=schema)
        lines = [row[column] for row in rows_of(source, take(source).metadata)]
        assert lines == ["one", "", "two, three", "four"]


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        ({"schema": "a STRING, b STRING"}, "text has one column, and the schema 2"),
        ({"options": {"wholetext": True}}, "only Spark supports the option 'wholetext'"),
    ],
)
def test_text_that_only_spark_could_read_is_refused(tmp_path: Path, arguments: Any, problem: str) -> None:
    put(tmp_path, "a.log")
    source = FileSource(f"{tmp_path}/*.log", format="text", **arguments)
    with pytest.raises(SourceError, match=problem):
        rows_of(source, take(source).metadata)


def test_a_file_source_is_unchanged_after_it_is_stored_as_json() -> None:
    source = FileSource("in/*.csv", 3, options={"sep": ";"}, schema="a INT")
    classpath, arguments = source.serialize()
    again = rebuild(classpath, json.loads(json.dumps(arguments)))
    assert again.serialize() == source.serialize()
    assert repr(source) == "FileSource('in/*.csv', files_per_batch=3)"


@pytest.mark.parametrize(("glob", "size"), [("", 1), (" ", 1), ("in/*.csv", 0), ("in/*.csv", "2")])
def test_invalid_arguments_of_a_file_source_are_refused_while_the_dag_is_parsed(glob: str, size: Any) -> None:
    with pytest.raises(ConfigError, match=r"of FileSource = .* cannot be used"):
        FileSource(glob, size)


def test_globs_are_split_before_the_first_wildcard() -> None:
    assert split_glob("/a/b/*.csv") == ("/a/b", "*.csv")
    assert split_glob("/a/[bc]/d/e.csv") == ("/a", "[bc]/d/e.csv")
    assert split_glob("/*.csv") == ("/", "*.csv")
    assert split_glob("only.csv") == (".", "only.csv")


def test_the_error_for_a_file_that_is_not_csv_names_the_file_and_the_remedy(tmp_path: Path) -> None:
    source = FileSource(f"{tmp_path}/*.csv")
    told = r"a\.csv: line {} is not csv: ',' expected after .* Correct the file, then: airflow tx replay TOPOLOGY 1 "
    told += r"--changed-rows --why TEXT; or correct the options and the schema of the source, then clear the task\."
    put(tmp_path, "a.csv", content='carrier,delay\nUA,5\n"x"y,6\n')
    batch = take(source)
    with pytest.raises(SourceError, match=told.format(3)):
        rows_of(source, batch.metadata)
    put(tmp_path, "a.csv", content='"x"y,delay\n')
    spark: Any = SimpleNamespace(read=FakeReader())
    source = FileSource(f"{tmp_path}/*.csv")
    with pytest.raises(SourceError, match=told.format(1)):
        source.emit_batch(ATTEMPT, take(source).metadata, spark)


class FakeReader:
    """Spark's reader up to the schema."""

    def format(self, name: str) -> FakeReader:
        return self

    def options(self, **options: Any) -> FakeReader:
        return self


def test_spark_treats_wildcards_in_file_names_as_ordinary_characters() -> None:
    assert Disk("/a/*.csv", None).for_spark("/a", "x[1]*.csv") == r"file:///a/x\[1\]\*.csv"


def test_a_schema_string_defines_the_names_and_conversions_of_columns() -> None:
    columns = columns_of("a INT NOT NULL, `b c` DECIMAL(10, 2), d DATE COMMENT 'x', e BOOLEAN")
    values = {name: columns[name].of_text(text) for name, text in [("a", "1"), ("d", "2013-01-02"), ("e", "True")]}
    assert values == {"a": 1, "d": date(2013, 1, 2), "e": True}
    assert list(columns) == ["a", "b c", "d", "e"]


@pytest.mark.parametrize(
    ("schema", "how", "match"),
    [
        ("id INT NOT NULL", {}, r"schema of FileSource = 'id INT NOT NULL' cannot be used. Leave out NOT NULL"),
        ("s STRUCT<x: INT not  null>", {"format": "json"}, "Leave out NOT NULL"),
        ("id INT, t VARCHAR(3)", {"format": "parquet"}, "checks the length of t in Parquet files. Make it STRING"),
    ],
)
def test_a_schema_with_a_constraint_that_no_reader_checks_is_refused(schema: str, how: Any, match: str) -> None:
    with pytest.raises(ConfigError, match=match):
        FileSource("/in/*", schema=schema, **how)


def test_a_name_or_a_comment_in_a_schema_may_contain_the_words_of_a_constraint() -> None:
    FileSource("/in/*.csv", schema="`a NOT NULL` INT, b INT COMMENT 'is not null'")
