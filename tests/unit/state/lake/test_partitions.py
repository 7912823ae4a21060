"""Partition columns of a table of a lake, and rows that cannot become files of one."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.state.api import Misfit
from airflow_tx.state.lake.schema import check_columns, folder_of, text_of, values_in

NAMES = st.text(st.characters(blacklist_categories=["Cs"]), min_size=1)
TEXTS = NAMES.filter(lambda text: text != "__HIVE_DEFAULT_PARTITION__")


def fields(**kinds: Any) -> list[dict[str, Any]]:
    return [{"name": name, "type": kind, "nullable": True, "metadata": {}} for name, kind in kinds.items()]


@given(st.dictionaries(NAMES, st.none() | TEXTS, max_size=3))
def test_the_values_of_a_partition_are_read_from_the_names_of_its_folders(partition: dict[str, str | None]) -> None:
    assert values_in(folder_of(partition)) == partition


def test_partition_folders_are_named_in_the_same_way_as_by_spark() -> None:
    assert folder_of({"p": "a b/:=%é 0", "day": None}) == "p=a b%2F%3A%3D%25é 0/day=__HIVE_DEFAULT_PARTITION__/"
    assert folder_of({}) == ""


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, None),
        ("", None),
        ("a", "a"),
        (True, "true"),
        (-7, "-7"),
        (date(2026, 1, 1), "2026-01-01"),
        (Decimal("1E+2"), "100"),
        (Decimal("1.50"), "1.50"),
    ],
)
def test_a_partition_value_is_written_in_the_same_form_as_in_the_log_of_the_table(value: Any, text: str | None) -> None:
    assert text_of(value) == text


@pytest.mark.parametrize(
    ("rows", "partition_by", "problem"),
    [
        (fields(n="long", day="date"), ["day"], None),
        (fields(n="long", d="decimal(9,2)"), ["d"], None),
        (fields(n="long"), ["day"], "the rows lack partition column day; they have n"),
        (fields(n="long", at="timestamp"), ["at"], "partition column at has the type timestamp"),
        (fields(day="date"), ["day"], "every column is a partition column"),
        (fields(Tx_txid="long"), [], "column Tx_txid has a reserved name"),
        (fields(**{"a b": "long"}), [], "column 'a b' has a name that a Delta table cannot have"),
        (fields(n="long", N="long"), [], "column N differs from column n by case alone"),
        (fields(n="interval day to second"), [], "column n has the type interval day to second"),
        (fields(n="void"), [], "column n has the type void"),
    ],
)
def test_rows_that_cannot_be_files_of_a_table_are_refused_with_a_one_line_error(
    rows: list[dict[str, Any]], partition_by: list[str], problem: str | None
) -> None:
    if problem is None:
        check_columns(rows, partition_by)
        return
    with pytest.raises(Misfit) as refused:
        check_columns(rows, partition_by)
    assert str(refused.value).startswith(problem)
