"""The schema of a csv source: found in its first files, kept by the positions, and held against every later file."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import date, datetime
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from airflow_tx.base.errors import ConfigError, SourceError
from airflow_tx.base.rows.types import ddl_of
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.sources.api import Source
from airflow_tx.sources.files.schema import find_schema, packed, unpacked
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from tests.stage import begin_run
from tests.unit.bench import MemorySpec

TYPED = {"inferSchema": True, "nullValue": "NA"}


def put(folder: Path, name: str, content: str) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content)
    return path


class Book:
    """The positions of a source, as the ledger keeps them."""

    def __init__(self, source: Source) -> None:
        self.source, self.position, self.txid = source, cast("Any", None), 0

    def take(self) -> Any:
        """Take the next batch; returns its metadata."""
        self.txid += 1
        batch = self.source.decide(TransactionAttempt(self.txid, 1), self.position)
        assert batch is not None
        after = json.loads(json.dumps(batch.position))
        self.position = {**(self.position or {}), **after} if self.source.partitioned else after
        return json.loads(json.dumps(batch.metadata))

    def rows(self, metadata: Any) -> list[Any]:
        return list(cast("Iterable[Any]", self.source.emit_batch(TransactionAttempt(self.txid, 1), metadata)))


@pytest.mark.parametrize(
    ("content", "options", "schema"),
    [
        ("a,b_1\n1,2\n", {}, "`a` STRING, `b_1` STRING"),
        ("a;b c\n", {"sep": ";"}, "`a` STRING, `b c` STRING"),
        ("1,2\n", {"header": False}, "`_c0` STRING, `_c1` STRING"),
        ("1,x\n2,y\n", {"header": False, "inferSchema": True}, "`_c0` BIGINT, `_c1` STRING"),
        ("a,b,c,d\n1,1,NA,true\n-2,2.5e3,,FALSE\n", TYPED, "`a` BIGINT, `b` DOUBLE, `c` STRING, `d` BOOLEAN"),
        ("a,b\n2013-01-02,2013-01-02\n2013-01-03,2013-01-02 10:11:12\n", TYPED, "`a` DATE, `b` TIMESTAMP_NTZ"),
        ("a,b\n1,2013-01-02\nx,1\n", TYPED, "`a` STRING, `b` STRING"),
        ("a\n12345678901234567890\n", TYPED, "`a` DOUBLE"),
    ],
)
def test_a_schema_is_inferred_from_the_header_and_the_values_are_used_if_inference_is_enabled(
    tmp_path: Path, content: str, options: Any, schema: str
) -> None:
    assert find_schema([put(tmp_path, "a.csv", content)], {"header": True, **options}) == schema


@pytest.mark.parametrize(
    ("content", "schema"),
    [
        ("a,\n", "`a` STRING, `_c1` STRING"),
        ("\ufeffa,b\n", "`a` STRING, `b` STRING"),
        ("a,`b`\n", "`a` STRING, ```b``` STRING"),
        ("a, \n", None),
        ("", None),
    ],
)
def test_columns_have_the_names_that_spark_would_give_them(tmp_path: Path, content: str, schema: str | None) -> None:
    assert find_schema([put(tmp_path, "a.csv", content)], {"header": True}) == schema


@pytest.mark.parametrize("content", ["a,a\n", "a,A\n"])
def test_a_header_with_a_duplicate_name_is_refused(tmp_path: Path, content: str) -> None:
    with pytest.raises(ValueError, match="occurs twice in the header"):
        find_schema([put(tmp_path, "a.csv", content)], {"header": True})


def test_spark_infers_the_schema_if_the_source_has_options_that_only_spark_supports(tmp_path: Path) -> None:
    assert find_schema([put(tmp_path, "a.csv", "a,b\n")], {"header": True, "dateFormat": "y"}) is None


def test_all_files_of_the_first_batch_except_empty_files_decide_the_schema(tmp_path: Path) -> None:
    files = [put(tmp_path, f"{n}.csv", text) for n, text in enumerate(["", "n,v\n1,1\n", "n,v\n2,1.5\n"])]
    assert find_schema(files, {"header": True, "inferSchema": True}) == "`n` BIGINT, `v` DOUBLE"


def test_later_batches_are_read_with_the_schema_of_the_first_batch(tmp_path: Path) -> None:
    put(tmp_path, "1.csv", "day,n,word\n2013-01-02,1,a\n")
    put(tmp_path, "2.csv", "day,n,word\n2013-01-03,NA,7\n")
    book = Book(FileSource(f"{tmp_path}/*.csv", options=TYPED))
    first, second = book.take(), book.take()
    assert first["schema"] == second["schema"] == "`day` DATE, `n` BIGINT, `word` STRING"
    assert book.rows(first) == [{"day": date(2013, 1, 2), "n": 1, "word": "a"}]
    assert book.rows(second) == [{"day": date(2013, 1, 3), "n": None, "word": "7"}]


def test_times_are_parsed_in_every_format_in_which_they_were_found(tmp_path: Path) -> None:
    put(tmp_path, "1.csv", "at\n2013-01-02T10:00:00\n2013-01-02 10:00:00.250\n2013-01-02\n")
    book = Book(FileSource(f"{tmp_path}/*.csv", options=TYPED))
    found = [row["at"] for row in book.rows(book.take())]
    assert found == [datetime(2013, 1, 2, 10), datetime(2013, 1, 2, 10, 0, 0, 250_000), datetime(2013, 1, 2)]


CORRECT = r"Correct the file, then: airflow tx replay TOPOLOGY 2 --changed-rows --why TEXT; or give the source "
FOUND = "`n` BIGINT, `word` STRING"
TEXTS = "`n` STRING, `word` STRING"
NULL = "missing_columns='null'"


@pytest.mark.parametrize(
    ("content", "problem", "declared"),
    [
        ("n,other\n1,a\n", "column 2 is 'other' instead of 'word'", f"schema={FOUND + ', `other` STRING'!r}, {NULL}"),
        ("n,word,more\n1,a,2\n", "column 'more' is new", f"schema={FOUND + ', `more` BIGINT'!r}, {NULL}"),
        ("n\n1\n", "column 'word' is missing", f"schema={FOUND!r}, {NULL}"),
        ("word,n\na,1\n", "column 1 is 'word' instead of 'n'", f"schema={FOUND!r}, {NULL}"),
        ("n,word\n1,a\nx,b\n", "line 3: n = 'x' does not fit the schema (n BIGINT)", f"schema={TEXTS!r}"),
    ],
)  # fmt: skip
def test_the_remedy_for_a_file_that_does_not_fit_the_schema_also_works_for_earlier_files(
    tmp_path: Path, content: str, problem: str, declared: str
) -> None:
    put(tmp_path, "1.csv", "n,word\n1,a\n")
    put(tmp_path, "2.csv", content)
    book = Book(FileSource(f"{tmp_path}/*.csv", options=TYPED))
    before = book.take()
    metadata = book.take()
    with pytest.raises(SourceError) as caught:
        book.rows(metadata)
    told = str(caught.value)
    assert f"{tmp_path}/2.csv: " in told
    assert problem in told
    assert re.search(CORRECT, told)
    assert f"give the source {declared}, then clear the task." in told
    book.source = FileSource(f"{tmp_path}/*.csv", options=TYPED, **eval(f"dict({declared})"))
    assert book.rows(metadata)
    assert book.rows(before)


@pytest.mark.parametrize(
    ("content", "declared", "remedy"),
    [
        ("n\n1\n", {}, NULL),
        ("word,n\na,1\n", {}, NULL),
        ("n,word,more\n1,a,2\n", {}, f"schema='n INT, word VARCHAR(3), `more` STRING', {NULL}"),
        (
            "n,more\n1,2\n",
            {"missing_columns": "null"},
            f"schema='n INT, word VARCHAR(3), `more` STRING', {NULL}",
        ),
    ],
)
def test_a_file_that_does_not_fit_a_declared_schema_is_read_with_the_arguments_in_the_error(
    tmp_path: Path, content: str, declared: Any, remedy: str
) -> None:
    put(tmp_path, "1.csv", "n,word\n1,a\n")
    put(tmp_path, "2.csv", content)
    schema = "n INT, word VARCHAR(3)"
    book = Book(FileSource(f"{tmp_path}/*.csv", schema=schema, **declared))
    before, metadata = book.take(), book.take()
    with pytest.raises(SourceError) as caught:
        book.rows(metadata)
    assert f"give the source {remedy}, then clear the task." in str(caught.value)
    again: Any = {"schema": schema, **eval(f"dict({remedy})")}
    book.source = FileSource(f"{tmp_path}/*.csv", **again)
    assert book.rows(before)[0]["n"] == book.rows(metadata)[0]["n"] == 1


def test_the_error_for_a_file_with_many_columns_is_short(tmp_path: Path) -> None:
    names = [f"measurement_{number}" for number in range(5_000)]
    put(tmp_path, "1.csv", ",".join(names) + "\n")
    put(tmp_path, "2.csv", ",".join([*names, "more"]) + "\n")
    book = Book(FileSource(f"{tmp_path}/*.csv"))
    book.take()
    with pytest.raises(
        SourceError, match=r"\.\.\. \(5001 columns\) .* column 'more' is new\..* with all 5001"
    ) as caught:
        book.rows(book.take())
    assert len(str(caught.value)) < 5_000


def wide(folder: Path, names: list[str]) -> Book:
    for number in (1, 2):
        put(folder, f"{number}.csv", ",".join(names) + "\n" + ",".join("1" for _ in names) + "\n")
    return Book(FileSource(f"{folder}/*.csv"))


def test_the_ledger_stores_the_schema_of_a_file_with_many_columns_in_packed_form(tmp_path: Path) -> None:
    names = [f"measurement_{number}" for number in range(20_000)]
    book = wide(tmp_path, names)
    for _ in range(2):
        metadata = book.take()
        assert len(json.dumps([metadata, book.position])) < 200_000
        assert book.rows(metadata) == [dict.fromkeys(names, "1")]


def test_a_file_with_more_columns_than_the_ledger_can_store_needs_a_declared_schema(tmp_path: Path) -> None:
    names = [sha256(b"%d" % number).hexdigest() for number in range(10_000)]
    book = wide(tmp_path, names)
    with pytest.raises(
        SourceError, match=r"column names need \d+ bytes, but the ledger keeps at most 250000\. .* by schema=\.$"
    ):
        book.take()
    book.source = FileSource(f"{tmp_path}/*.csv", schema=", ".join(f"`{name}` INT" for name in names))
    assert book.rows(book.take()) == [dict.fromkeys(names, 1)]


@pytest.mark.parametrize("count", [1, 500, 5_000])
@pytest.mark.parametrize("name", ["a", "\0", "zlib:"])
def test_a_packed_schema_is_unpacked_unchanged(name: str, count: int) -> None:
    schema = ddl_of({f"{name}{number}": "STRING" for number in range(count)})
    assert unpacked(packed(schema)) == schema


@pytest.mark.parametrize(
    ("arguments", "remedy"),
    [
        ({"missing_columns": "zero", "schema": "a INT"}, "Use 'refuse' or 'null'"),
        ({"schema": None}, "Declare the columns, such as schema='day INT, carrier STRING'"),
        ({"options": {"header": False}}, "Leave it out: the files have no header"),
        ({"options": {"dateFormat": "y"}}, "Leave it out: only Spark supports the option 'dateformat'"),
        ({"schema": "a MAP<INT,INT>"}, "Leave it out: column 'a MAP<INT,INT>' of the schema has no type that rows"),
        ({"format": "json"}, "Leave it out: with a schema, a field that a JSON object lacks is NULL"),
        ({"format": "parquet"}, "Leave it out: it is for csv files"),
    ],
)
@pytest.mark.parametrize("source", [FileSource, PartitionedFileSource])
def test_missing_columns_are_allowed_only_in_csv_files_with_a_header_and_a_schema(
    source: type[FileSource | PartitionedFileSource], arguments: Any, remedy: str
) -> None:
    with pytest.raises(ConfigError, match=rf"missing_columns of \w+ = \S+ cannot be used\. {re.escape(remedy)}"):
        source("in/*/*.csv", **{"missing_columns": "null", "schema": "a INT", **arguments})


def test_the_error_for_a_damaged_file_that_does_not_fit_the_schema_reports_only_the_misfit(tmp_path: Path) -> None:
    put(tmp_path, "1.csv", "n\n1\n")
    put(tmp_path, "2.csv", 'n,m\n1,"x\n')
    book = Book(FileSource(f"{tmp_path}/*.csv", options=TYPED))
    metadata = [book.take(), book.take()][1]
    with pytest.raises(SourceError, match=r"column 'm' is new\. .* correct the options and the schema of the source"):
        book.rows({**metadata, "schema": "n BIGINT"})


def test_columns_that_are_missing_in_some_folders_are_null(tmp_path: Path) -> None:
    put(tmp_path, "day=1/1.csv", "n\n1\n")
    put(tmp_path, "day=2/1.csv", "m,n\nx,2\n")
    book = Book(PartitionedFileSource(f"{tmp_path}/*/*.csv", schema="n INT, m STRING", missing_columns="null"))
    assert book.rows(book.take()) == [{"n": 1, "m": None, "day": "1"}, {"n": 2, "m": "x", "day": "2"}]


def test_spark_does_not_read_a_file_with_other_columns(tmp_path: Path) -> None:
    put(tmp_path, "1.csv", "n,word\n1,a\n")
    put(tmp_path, "2.csv", "n,word,more\n1,a,2\n")
    book = Book(FileSource(f"{tmp_path}/*.csv"))
    book.take()
    spark: Any = SimpleNamespace()
    with pytest.raises(SourceError, match=r"2\.csv: header n,word,more .* column 'more' is new\. Correct"):
        book.source.emit_batch(TransactionAttempt(2, 1), book.take(), spark)


def test_a_declared_schema_replaces_the_inferred_one_until_the_declaration_is_removed(tmp_path: Path) -> None:
    for name, content in {"1.csv": "n\n1\n", "2.csv": "n,m\n2,3\n", "3.csv": "a\nx\n"}.items():
        put(tmp_path, name, content)
    book = Book(FileSource(f"{tmp_path}/*.csv"))
    assert book.take()["schema"] == "`n` STRING"
    book.source = FileSource(f"{tmp_path}/*.csv", schema="n INT, m INT")
    metadata = book.take()
    assert "schema" not in metadata
    assert "schema" not in book.position
    assert book.rows(metadata) == [{"n": 2, "m": 3}]
    book.source = FileSource(f"{tmp_path}/*.csv")
    assert book.take()["schema"] == "`a` STRING"


def test_a_source_with_other_options_infers_another_schema(tmp_path: Path) -> None:
    put(tmp_path, "1.csv", "n\n1\n")
    put(tmp_path, "2.csv", "n\n2\n")
    book = Book(FileSource(f"{tmp_path}/*.csv"))
    book.take()
    book.source = FileSource(f"{tmp_path}/*.csv", options={"inferSchema": True})
    assert book.take()["schema"] == "`n` BIGINT"


def test_rows_of_a_corrected_file_are_read_with_the_schema_of_their_batch(tmp_path: Path) -> None:
    put(tmp_path, "1.csv", "n\n1\n")
    book = Book(FileSource(f"{tmp_path}/*.csv", options=TYPED))
    metadata = book.take()
    put(tmp_path, "1.csv", "n\n1\n2\n")
    again = book.source.decide_again(TransactionAttempt(1, 2), metadata)
    assert book.rows(again) == [{"n": 1}, {"n": 2}]


def test_a_batch_without_a_stored_schema_is_read_by_its_own_header(tmp_path: Path) -> None:
    put(tmp_path, "1.csv", "n\n1\n")
    put(tmp_path, "2.csv", "m\n2\n")
    book = Book(FileSource(f"{tmp_path}/*.csv"))
    book.take()
    del book.position["schema"]
    metadata = book.take()
    assert metadata.pop("schema") == "`m` STRING"
    assert book.rows(metadata) == [{"m": "2"}]


@pytest.mark.parametrize("kind", ["transactional", "opaque"])
def test_all_folders_share_one_schema_that_is_stored_once(tmp_path: Path, kind: str) -> None:
    for folder in ("b", "c"):
        put(tmp_path, f"{folder}/1.csv", "n\n1\n")
        put(tmp_path, f"{folder}/2.csv", "n\n2\n")
    book = Book(PartitionedFileSource(f"{tmp_path}/*/*.csv", options=TYPED, kind=kind))
    first = book.take()
    put(tmp_path, "a/1.csv", "n\nx\n")  # a folder that comes before the one that keeps it
    second = book.take()
    for metadata in (first, second):
        assert [each["schema"] for each in metadata.values() if "schema" in each] == ["`n` BIGINT"]
    assert [name for name, each in book.position.items() if "schema" in each] == ["b"]
    assert book.rows(first) == [{"n": 1}, {"n": 1}]
    with pytest.raises(SourceError, match=r"a/1\.csv: line 2: n = 'x' does not fit the schema \(n BIGINT\)"):
        book.rows(second)


def test_the_ledger_stores_the_schema_for_replays_and_later_transactions(tmp_path: Path) -> None:
    put(tmp_path, "1.csv", "n\n1\n")
    source = FileSource(f"{tmp_path}/*.csv", options=TYPED)
    spec = MemorySpec("files", "files", source, max_pending=4, tasks=("count",), memory=MemoryStore())

    def begin(run: str) -> Begun:
        answer = begin_run(spec, run)
        assert isinstance(answer, Begun)
        return answer

    first = begin("one")
    put(tmp_path, "2.csv", "n\nNA\n")
    again, second = begin("one"), begin("two")
    assert again.attempt.attempt == 2
    assert [each.metadata["schema"] for each in (first, again, second)] == ["`n` BIGINT"] * 3
