"""What a table of a lake keeps beside its rows: the text of a fence, and what a task says of a file."""

from __future__ import annotations

from airflow_tx.ledger.attempt import Token, TransactionAttempt
from airflow_tx.state.api import Fence, staged_folder
from airflow_tx.state.lake.delta import TableFile
from airflow_tx.state.lake.fence import RaisedFence
from tests.golden.written import check_golden


def test_the_serialized_fence_and_files_of_a_table_match_the_golden_file() -> None:
    fence = Fence("life", Token(1, 7, 2, 5, "nonce", "birth"), False, '{"rows": 1}', "delta./orders")
    raised = RaisedFence(fence, 12, True, 3, False)
    path = "_airflow_tx/7.2.0123456789abcdef/day=2026-01-01/a.parquet"
    file = TableFile(path, 1000, 10, {"day": "2026-01-01", "kind": None}, '{"numRecords": 10}', '{"type": "struct"}')
    check_golden(
        "table",
        {
            "fence": raised.text,
            "file": file.to_row(),
            "folder": staged_folder(TransactionAttempt(7, 2, "birth"), "id.1"),
        },
    )
    assert RaisedFence.of(raised.text, 11) == raised
    assert TableFile.from_row(file.to_row()) == file
