"""What a task returns comes out of XCom unchanged, or is refused in the task by row, column and value."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from typing import Any
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd  # type: ignore[import-untyped]
import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import StagingError
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.transaction.processing.outputs import check_returned
from airflow_tx.transaction.spec import TransactionSpec
from tests.unit.bench import Numbers

AUTUMN = dt.datetime(2024, 10, 27, 2, 30, tzinfo=ZoneInfo("Europe/Berlin"))
FRAME = pd.DataFrame({"n": [1]})


def check(value: Any, *, committed: bool = False) -> None:
    spec = TransactionSpec("t", "t", Numbers(), committed=frozenset({"count"} if committed else ()))
    check_returned(value, spec, TaskTry("count", -1, "1"), TransactionAttempt(7, 2))


@pytest.mark.parametrize(
    "value",
    [
        None,
        [{"k": "é\x00", "n": 2**63}, {"k": None, "n": -0.0}],
        {"words": [(1, 2)], "on": True},
        [{"day": dt.date(1, 1, 1), "price": Decimal("1.10"), "n": np.int64(3), "x": np.float32(0.5)}],
        [{"at": AUTUMN}, {"at": AUTUMN.replace(fold=1)}, {"at": dt.datetime(2024, 1, 1, 0, 0, 0, 1)}],
        FRAME,
    ],
    ids=str,
)
def test_a_value_that_xcom_returns_unchanged_is_passed_to_the_next_task(value: Any) -> None:
    check(value)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        (float("nan"), "nan is not finite"),
        (float("-inf"), "-inf is not finite"),
        (np.float32("nan"), "nan is not finite"),
        (2**64, "18446744073709551616 has more than 64 bits"),
        ("\ud800", r"'\\ud800' holds half a surrogate pair"),
        (Decimal("0.1234567890123456789"), r"would become Decimal\('0.12345678901234568'\) in an XCom"),
        (Decimal("NaN"), r"would become Decimal\('NaN'\) in an XCom"),
        (dt.datetime(8999, 1, 1, 0, 0, 0, 1), "would become datetime.datetime"),
        (b"x", r"b'x' cannot become an XCom \([cC]annot serialize object of type <class 'bytes'>\)"),
        (pd.NaT, r"NaT cannot become an XCom"),
    ],
)
def test_the_error_for_a_value_that_xcom_refuses_or_changes_names_its_row_and_column(value: Any, problem: str) -> None:
    where = r"^Output 'return_value' of task count in transaction 7\.2 refused: "
    with pytest.raises(StagingError, match=rf"{where}row 1: n .*{problem}") as refused:
        check([{"n": 1}, {"n": value}])
    assert "\n" not in str(refused.value)
    with pytest.raises(StagingError, match=rf"{where}its value\['rows'\]\[0\]\['n'\] .*{problem}"):
        check({"rows": [{"n": value}]})


@pytest.mark.parametrize("frame", [FRAME, pa.table({"n": [1]})], ids=["pandas", "pyarrow"])
def test_a_data_frame_for_a_committer_is_refused_with_the_call_that_stages_it(frame: Any) -> None:
    with pytest.raises(
        StagingError, match=r"its value is a (pandas|pyarrow)\.\w+, .*current_batch\(\)\.stage\(frame\)"
    ):
        check(frame, committed=True)


def test_a_data_frame_that_xcom_cannot_store_is_refused() -> None:
    with pytest.raises(StagingError, match=r"is a pyarrow\.Table, which an XCom cannot contain"):
        check(pa.table({"n": [1]}))
