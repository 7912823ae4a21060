"""Rows of Python tasks as files in the folder of a table."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import StateDiffers, StateError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.state import DeltaTable
from airflow_tx.state.api import Misfit
from airflow_tx.state.lake.delta import Folder, TableFile, txid_of
from airflow_tx.state.lake.files import as_arrow, staged_files, write_python_rows
from airflow_tx.state.lake.schema import of_arrow

ATTEMPT = TransactionAttempt(3, 2)
DAY = dt.date(2026, 1, 1)


@dataclass
class Table:
    """A table that is not there yet, or has a schema."""

    uri: str
    partition_by: tuple[str, ...] = ()
    schema: Mapping[str, Any] | None = None
    name: str = "orders"

    def options(self) -> dict[str, str]:
        return {}

    def table_schema(self) -> Mapping[str, Any] | None:
        return self.schema


def schema(**kinds: Any) -> dict[str, Any]:
    fields = [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]
    return {"type": "struct", "fields": fields}


def types(rows: list[dict[str, Any]], known: Mapping[str, Any] | None = None) -> dict[str, Any]:
    return {each["name"]: each["type"] for each in of_arrow(as_arrow(rows, known).schema)["fields"]}


def test_rows_are_written_as_one_file_for_each_partition_with_their_txid(tmp_path: Path) -> None:
    table = Table(str(tmp_path), ("day",))
    rows = [{"n": number, "day": None if number == 3 else DAY + dt.timedelta(number % 2)} for number in range(4)]
    entries = [TableFile.from_row(each) for each in write_python_rows(table, rows, ATTEMPT)]
    found = {each.partition["day"]: pq.ParquetFile(tmp_path / each.path).read().to_pylist() for each in entries}
    assert found == {
        "2026-01-01": [{"n": 0, "tx_txid": 3}, {"n": 2, "tx_txid": 3}],
        "2026-01-02": [{"n": 1, "tx_txid": 3}],
        None: [{"n": 3, "tx_txid": 3}],
    }
    assert {txid_of(each.path) for each in entries} == {3}
    # A reader of the folder finds what the writer has told.
    folder = "/".join(entries[0].path.split("/")[:2])
    partition = [{"name": "day", "type": "date", "nullable": True, "metadata": {}}]
    listed = staged_files(Folder(table.uri, {}), folder, partition)
    assert sorted(listed, key=str) == sorted(entries, key=str)


def test_two_tries_write_into_two_folders(tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    paths = [write_python_rows(table, [{"n": 1}], ATTEMPT)[0]["path"].split("/")[1] for _ in range(2)]
    assert paths[0] != paths[1]


def test_without_a_table_the_columns_have_the_types_that_spark_uses_for_python_values() -> None:
    rows: list[dict[str, Any]] = [
        {"n": 1, "x": 0.5, "d": Decimal("1.5"), "at": dt.datetime(2026, 1, 1), "t": "a", "day": DAY, "none": None},
        {"n": None, "l": [1], "b": b"x", "ok": True, "z": dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)},
    ]
    array = {"type": "array", "elementType": "long", "containsNull": True}
    assert types(rows) == {
        "n": "long", "x": "double", "d": "decimal(38,18)", "at": "timestamp_ntz", "t": "string", "day": "date",
        "l": array, "b": "binary", "ok": "boolean", "z": "timestamp",
    }  # fmt: skip


def test_with_a_table_the_columns_have_the_types_of_the_table() -> None:
    known = schema(n="integer", d="decimal(9,2)", x="double", t="string")
    assert types([{"n": 1, "d": Decimal("1.5"), "x": 1, "t": None}], known) == {
        "n": "integer", "d": "decimal(9,2)", "x": "double", "t": "string",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("float", 0.1),
        ("double", 1),
        ("timestamp", dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)),
        ({"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}, {"a": 1}),
        (schema(x="long", y="string"), {"x": 1, "y": None}),
        (schema(x="long", y="string"), {"x": 1}),
    ],
)
def test_a_value_that_fits_the_type_of_its_column_is_accepted(kind: Any, value: Any) -> None:
    assert len(as_arrow([{"n": value}, {"n": None}], schema(n=kind))) == 2


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        ("integer", 2**40),
        ("decimal(9,2)", Decimal("0.123")),
        ("long", "a"),
        ("long", 1.5),
        ("date", dt.datetime(2026, 1, 1, 10)),
        ("timestamp", dt.datetime(2026, 1, 1)),
        ("double", 2**60 + 1),
        ("double", "1.5"),
        ("double", b"1"),
        ("double", True),
        ("double", Decimal("0.1")),
        ("float", 1e300),
        ({"type": "array", "elementType": "double", "containsNull": True}, [1.5, True]),
        ({"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}, [("a", 1), ("a", 2)]),
        ({"type": "array", "elementType": "long", "containsNull": True}, [1.5]),
        ({"type": "map", "keyType": "string", "valueType": "long", "valueContainsNull": True}, {"a": 1.5}),
        (schema(x="long"), {"x": 1, "z": 2}),
    ],
)
def test_a_value_that_the_type_of_its_column_would_change_is_refused(kind: Any, value: Any) -> None:
    with pytest.raises(Misfit, match=r"row 1: n = .* is not a value of type "):
        as_arrow([{"n": None}, {"n": value}], schema(n=kind))


@pytest.mark.parametrize(
    ("values", "kind"),
    [([None, 1], "long"), ([1, 1.5], "double"), ([1.5, None, 1], "double"), ([1, Decimal("1.5")], "decimal(38,18)")],
)
def test_the_first_values_do_not_limit_the_type_of_their_column(values: list[Any], kind: str) -> None:
    rows = [{"n": value} for value in values]
    assert types(rows) == {"n": kind}
    assert as_arrow(rows, None).column("n").to_pylist() == values


@pytest.mark.parametrize(
    "values",
    [
        [2**53 + 1, 1.5],
        [1.5, True],
        [True, 1],
        [1, True],
        [[1.5, True]],
        [{"a": 1.5}, {"a": True}],
        [1.5, Decimal("1.5")],
        ["a", b"a"],
        [DAY, dt.datetime(2026, 1, 1)],
        [dt.datetime(2026, 1, 1), dt.datetime(2026, 1, 1, tzinfo=dt.timezone.utc)],
        [Decimal("0.1234567890123456789")],
        [2**63],
    ],
    ids=str,
)
def test_values_that_no_single_type_represents_exactly_are_refused(values: list[Any]) -> None:
    with pytest.raises(Misfit, match=rf"row {len(values) - 1}: n = .* (does not have the|has no) type"):
        as_arrow([{"n": value} for value in values], None)


def test_the_error_for_values_of_two_types_has_one_line_that_names_the_state_and_the_column(tmp_path: Path) -> None:
    with pytest.raises(StateError) as refused:
        write_python_rows(Table(str(tmp_path)), [{"n": 1}, {"n": "a"}], ATTEMPT)
    assert "State 'orders' refused: row 1: n = 'a' does not have the type of the rows above, long" in str(refused.value)
    assert "\n" not in str(refused.value)
    assert not list(tmp_path.iterdir())


def test_no_rows_create_no_files_even_before_the_table_exists(tmp_path: Path) -> None:
    assert write_python_rows(Table(str(tmp_path), ("day",)), [], ATTEMPT) == []


def test_rows_without_any_value_are_refused_with_an_explanation(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="no column of the rows has a value"):
        write_python_rows(Table(str(tmp_path)), [{"n": None}], ATTEMPT)


@pytest.mark.parametrize("text", ["x" * 300, "日" * 85, "/" * 90])
def test_a_partition_value_that_cannot_be_a_folder_name_is_refused_permanently(tmp_path: Path, text: str) -> None:
    with pytest.raises(StateError, match="partition column p has the value .* bytes, more than 255") as refused:
        write_python_rows(Table(str(tmp_path), ("p",)), [{"p": "a", "n": 1}, {"p": text, "n": 2}], ATTEMPT)
    assert type(refused.value) is StateError
    assert not list(tmp_path.iterdir())


def test_files_without_rows_and_files_of_unfinished_jobs_are_omitted(tmp_path: Path) -> None:
    table = Table(str(tmp_path))
    (entry,) = write_python_rows(table, [{"n": 1}], ATTEMPT)
    folder = Path(entry["path"]).parent
    unfinished = tmp_path / folder / "_temporary" / "0"
    unfinished.mkdir(parents=True)
    content = (tmp_path / entry["path"]).read_bytes()
    (unfinished / "part-1.parquet").write_bytes(content)
    (tmp_path / folder / ".part-2.parquet.crc").write_bytes(b"x")
    pq.write_table(pq.read_table(tmp_path / entry["path"]).slice(0, 0), tmp_path / folder / "part-3.parquet")
    assert [each.path for each in staged_files(Folder(table.uri, {}), str(folder), ())] == [entry["path"]]


def test_staged_rows_are_read_as_a_reader_of_the_table_sees_them(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "orders", partition_by=["kind", "day"])
    at = dt.datetime(2026, 1, 1, 10, 0, 0, 5, dt.timezone.utc)
    rows: list[dict[str, Any]] = [
        {"id": 1, "kind": "a/b", "day": DAY, "at": at, "amount": Decimal("1.50")},
        {"id": 2, "kind": None, "day": None, "at": None, "amount": None},
    ]
    listed = table.stage(rows, ATTEMPT)
    schema = table.staged_schema(listed)
    assert schema.names == ["id", "at", "amount", "kind", "day"]  # without tx_txid
    found = [row for batch in table.staged_rows(listed, schema.names) for row in batch.to_pylist()]
    assert sorted(found, key=lambda row: row["id"]) == rows
    some = [batch.to_pydict() for batch in table.staged_rows(listed, ["day", "id"])]
    assert sorted(each["id"][0] for each in some) == [1, 2]
    assert {name for each in some for name in each} == {"day", "id"}


def test_a_missing_staged_file_is_permanently_refused(tmp_path: Path) -> None:
    table = DeltaTable(tmp_path / "orders")
    listed = table.stage([{"id": 1}], ATTEMPT)
    (tmp_path / "orders" / listed[0]["path"]).unlink()
    with pytest.raises(StateDiffers):
        list(table.staged_rows(listed, ["id"]))
