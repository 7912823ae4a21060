"""Tables of rejected rows: the engine of each kind counts them by task and reason, and reads some."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from airflow_tx.state import RejectedCounts, RejectedFilter, SqlTable
from airflow_tx.state.api import REJECTED_COLUMNS
from airflow_tx.state.upstream import RejectedCount
from tests.contract.committed import KINDS, Filled, opened

ALL = RejectedFilter(1, 99)
ODD = 'it\'s 100% \\odd\\, "x" %% :n\nof two lines é'


@pytest.fixture(params=[*(each for each in KINDS if each != "partitioned"), pytest.param("s3", marks=pytest.mark.long)])
def filled(request: pytest.FixtureRequest, tmp_path: Path) -> Filled:
    return opened(request, request.param, tmp_path)


def rows(task: str, reason: str, *contents: str, where: str = "") -> list[dict[str, str]]:
    return [dict(zip(REJECTED_COLUMNS, (task, reason, where, each), strict=True)) for each in contents]


def counts(filled: Filled, wanted: RejectedFilter = ALL, most: int = 10) -> RejectedCounts:
    return filled.table.rejected_counts(wanted, most=most)


def lines(filled: Filled, **wanted: Any) -> list[tuple[str, str, int]]:
    found = counts(filled, RejectedFilter(**{"first": 1, "last": 99, **wanted}))
    return [(each.task, each.reason, each.rows) for each in found.counts]


def contents(filled: Filled, wanted: RejectedFilter, most: int = 10) -> list[str]:
    return [row["tx_content"] for row in filled.table.rejected_rows(wanted, most=most)]


def test_rejected_rows_are_counted_by_task_and_reason_and_the_largest_group_comes_first(filled: Filled) -> None:
    filled.commit(1, [*rows("load", "late", "a"), *rows("", "no number", "b", where="x.csv:2")])
    filled.commit(2, rows("load", "late", "c", "d"))
    filled.commit(3, rows("", "no number", "e"))
    assert counts(filled) == RejectedCounts(
        (RejectedCount("load", "late", 3, 2, 1, 2), RejectedCount("", "no number", 2, 2, 1, 3)), rows=5
    )


def test_groups_beyond_the_limit_are_counted_as_others(filled: Filled) -> None:
    filled.commit(1, [row for each in ("a", "b", "c") for row in rows("load", each, "x", *"yz" * (each == "b"))])
    found = counts(filled, most=1)
    assert [each.reason for each in found.counts] == ["b"]
    assert (found.others, found.rows) == (2, 5)


def test_only_rows_of_the_requested_transactions_are_counted(filled: Filled) -> None:
    for txid in (1, 2, 3):
        filled.commit(txid, rows("load", f"reason {txid}", "x"))
    assert lines(filled, first=2, last=2) == [("load", "reason 2", 1)]
    assert contents(filled, RejectedFilter(4, 9)) == []


@pytest.mark.parametrize("reason", [ODD, "plain", "Plain", "plain "])
def test_a_filter_by_reason_matches_the_whole_text_only(filled: Filled, reason: str) -> None:
    filled.commit(
        1, [row for each in (ODD, "plain", "Plain", "plain ", "plain too") for row in rows("load", each, each)]
    )
    assert lines(filled, reason=reason) == [("load", reason, 1)]
    assert contents(filled, RejectedFilter(1, 1, reason=reason)) == [reason]


def test_a_filter_by_task_matches_all_of_its_map_indexes(filled: Filled) -> None:
    names = ("load", "load[0]", "load[11]", "loads", "")
    filled.commit(1, [row for each in names for row in rows(each, "late", f"of {each}")])
    assert [task for task, _, _ in lines(filled, task="load")] == ["load", "load[0]", "load[11]"]
    assert [task for task, _, _ in lines(filled, task="load[0]")] == ["load[0]"]
    assert contents(filled, RejectedFilter(1, 1, task="")) == ["of "]


def test_rejected_rows_are_read_in_the_same_order_each_time(filled: Filled) -> None:
    filled.commit(1, rows("load", "late", *(f"{number:03}" for number in range(200))))
    wanted = RejectedFilter(1, 1)
    assert contents(filled, wanted, most=3) == ["000", "001", "002"]
    assert len(contents(filled, wanted, most=500)) == 200


def test_a_rejected_row_is_read_back_unchanged(filled: Filled) -> None:
    filled.commit(1, rows("", ODD, ODD, where="a b.csv:7"))
    (found,) = filled.table.rejected_rows(RejectedFilter(1, 1), most=20)
    assert found == {"tx_task": "", "tx_reason": ODD, "tx_where": "a b.csv:7", "tx_content": ODD}


def test_a_restatement_removes_the_rejected_rows_of_the_restated_transaction(filled: Filled) -> None:
    filled.commit(1, rows("load", "late", "a"))
    filled.commit(2, rows("load", "late", "b"))
    filled.commit(3, rows("load", "mended", "c"), restates=1)
    assert counts(filled).counts == (
        RejectedCount("load", "late", 1, 1, 2, 2),
        RejectedCount("load", "mended", 1, 1, 3, 3),
    )


def test_rejected_rows_of_a_released_topology_are_not_counted(filled: Filled) -> None:
    filled.commit(1, rows("load", "late", "a"))
    filled.table.release()
    assert counts(filled) == RejectedCounts()


def test_a_missing_table_has_no_rejected_rows(filled: Filled) -> None:
    assert counts(filled) == RejectedCounts()
    assert contents(filled, ALL) == []


def test_a_table_without_a_rejected_row_reports_zero_rejected_rows(filled: Filled) -> None:
    filled.commit(1, [])
    assert counts(filled) == RejectedCounts()


def test_a_table_with_other_columns_reports_zero_rejected_rows(filled: Filled) -> None:
    filled.commit(1, [{"id": 1}])
    assert counts(filled) == RejectedCounts()


def test_a_million_rejected_rows_are_counted_by_the_database(tmp_path: Path) -> None:
    import sqlite3
    import tracemalloc

    table = SqlTable.from_url(f"sqlite:///{tmp_path}/many.db", table="many")
    filled = Filled("sqlite", lambda: table)
    filled.commit(1, rows("load", "late", "a"))
    with sqlite3.connect(tmp_path / "many.db") as database:
        series = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) "
        made = "SELECT 'load', 'reason ' || i % 5, '', 'x', 2, i FROM n"
        names = f"{', '.join(REJECTED_COLUMNS)}, tx_txid, tx_row"
        database.execute(f"INSERT INTO many ({names}) {series}{made}")
    tracemalloc.start()
    assert counts(filled).rows == 1_000_001
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 2_000_000
