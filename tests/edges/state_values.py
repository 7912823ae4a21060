"""Values at the edges of each column type, and what a state holds of them by arithmetic."""

from __future__ import annotations

import datetime as dt
import itertools
import math
from collections.abc import Callable, Mapping
from decimal import Context, Decimal
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

from hypothesis import strategies as st

from airflow_tx.base.errors import StagingError, StateError
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.staging.area import StagingArea, with_content, write_manifest, write_rows
from airflow_tx.state import First, Max, Min, Sum
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit.write import rows_to_write
from tests.stage import update

BERLIN, UTC = ZoneInfo("Europe/Berlin"), dt.timezone.utc
NIGHT = dt.datetime(2024, 10, 27, 2, 30, tzinfo=BERLIN)
NUMBERS: list[Any] = [
    0, 1, -1, 2**31, 2**53, 2**53 + 1, 2**63 - 1, 2**63, -(2**63), -(2**63) - 1, 10**40,
    0.0, -0.0, 0.5, 1.0, 1e300, 5e-324, float(2**60), math.nan, math.inf, -math.inf,
    Decimal("0.1"), Decimal("1.0"), Decimal("1E+3"), Decimal("1E-9"), Decimal("NaN"), True, False,
]  # fmt: skip
OTHERS: list[Any] = [
    "", "1", "007", "1.5", "true", "None", "é", "e\u0301", "a\x00b", "\ud800", "x" * 1100, b"", b"\x00\xff",
    dt.date(1, 1, 1), dt.date(1582, 10, 10), dt.date(9999, 12, 31), dt.datetime(1, 1, 1), dt.datetime(1500, 2, 3, 4),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999), dt.datetime(2024, 1, 1, 0, 0, 0, 1),
    dt.datetime(1, 1, 1, tzinfo=UTC), NIGHT, NIGHT.replace(fold=1), NIGHT.astimezone(UTC),
    dt.datetime(9999, 12, 31, 23, 59, 59, 999999, tzinfo=UTC),
    dt.datetime(1, 1, 1, tzinfo=dt.timezone(dt.timedelta(hours=14))),
]  # fmt: skip
KEYS: list[list[Any]] = [["a", "b"], ["é", "e\u0301"], [1, 1.0, 2], [1, True], [NIGHT, NIGHT.replace(fold=1)]]
EXACT = Context(prec=200)
CLASSES: dict[str, tuple[type, ...]] = {
    "bigint": (int, float),
    "double": (int, float),
    "numeric": (int, Decimal),
    "text": (str,),
    "boolean": (bool,),
    "date": (dt.date,),
    "timestamp": (dt.datetime,),
    "timestamptz": (dt.datetime,),
    "bytes": (bytes,),
}
AGGREGATORS: dict[str, list[Callable[[str], Any]]] = {kind: [First, Max, Min] for kind in CLASSES}
for each in ("bigint", "double", "numeric"):
    AGGREGATORS[each] = [Sum, *AGGREGATORS[each]]


def plain(value: Any) -> Any:
    """Write a value as a person compares it: numbers by their size, moments in UTC."""
    if isinstance(value, bool) or value is None:
        return ("is", value)
    if isinstance(value, (int, float, Decimal)):
        return ("number", EXACT.add(Decimal(value), 0))
    if isinstance(value, dt.datetime) and value.tzinfo is not None:
        return ("moment", value.astimezone(UTC).replace(tzinfo=None))
    return (type(value).__name__, value)


TABLE_VALUES = st.sampled_from([None, *NUMBERS, *OTHERS, dt.time(1, 2), [1, 2], [1.5], [], {"x": 1}, {"x": None}, {}])
TABLE_BATCHES = st.lists(
    st.lists(st.dictionaries(st.sampled_from("ab"), TABLE_VALUES, min_size=1), min_size=1, max_size=3), max_size=3
)
"""The rows of some transactions that append them to a table."""


def spelled(row: Mapping[str, Any]) -> list[str]:
    """Spell the values of a row of a table: a table has no NULL that a row has not."""
    return sorted(f"{name} {_one(row[name])}" for name in row if not name.startswith("tx_") and row[name] is not None)


def _one(value: Any) -> str:
    if isinstance(value, dict):  # a field that it lacks is NULL
        value = {name: each for name, each in value.items() if each is not None}
    kind, found = plain(value)
    return f"{kind} {found.normalize(EXACT) if kind == 'number' else found!r}"


def total(aggregator: Any, kind: str, values: list[Any]) -> Any:
    """Say what the state holds of these values; their class fits the column."""
    present = [value for value in values if value is not None]
    if not present:
        return plain(None)
    if isinstance(aggregator, First):
        return plain(present[0])
    if not isinstance(aggregator, Sum):
        return plain((max if isinstance(aggregator, Max) else min)(present, key=lambda value: plain(value)[1]))
    if kind == "double":
        return plain(sum(map(float, present)))
    found = Decimal(0)
    for value in present:
        found = EXACT.add(found, Decimal(value))
    return plain(found)


def fits(kind: str, value: Any) -> bool:
    return value is None or type(value) in CLASSES[kind]


@st.composite
def batches(draw: st.DrawFn) -> tuple[str, Any, list[list[dict[str, Any]]]]:
    """A column type, an aggregator, and rows of several tasks: mostly of classes that fit, and of another one."""
    kind = draw(st.sampled_from(sorted(CLASSES)))
    aggregator = draw(st.sampled_from(AGGREGATORS[kind]))(kind)
    fitting = [value for value in [None, *NUMBERS, *OTHERS] if fits(kind, value)]
    values = st.sampled_from(fitting) | st.sampled_from(fitting) | st.sampled_from([*NUMBERS, *OTHERS])
    keys = st.sampled_from(draw(st.sampled_from(KEYS)))
    row = st.fixed_dictionaries({"k": keys}, optional={"n": values})
    rows = draw(st.lists(row, min_size=1, max_size=5))
    rows[-1].setdefault("n", None)
    return kind, aggregator, [rows, draw(st.sampled_from([[], rows]))]


def check_values(
    batch: tuple[str, Any, list[list[dict[str, Any]]]], state: Any, folder: Path, *, is_staged: bool
) -> None:
    """Commit a batch, and compare what the state holds with what arithmetic says, unless the rows are refused."""
    kind, aggregator, parts = batch
    area, attempt = StagingArea(str(folder)), TransactionAttempt(1, 1)
    values: list[Any] = [[{"n": None, **row} for row in rows] for rows in parts]
    try:
        if is_staged:
            values = []
            for index, rows in enumerate(filter(None, parts)):
                where = area.try_dir("t", attempt, TaskTry("count", index, "1"))
                output = with_content(where, "rows", write_rows(where, "rows", rows))
                values.append(write_manifest(where, {"rows": output})["rows"].to_json())
            values = values if len(values) > 1 else [*values, []]
        Grants().commit_rows(1, state, rows_to_write(update(state), values, area, attempt))
    except (StagingError, StateError):
        return
    given_of: dict[Any, list[Any]] = {}
    for row in itertools.chain(*parts):
        assert fits(kind, row.get("n")), f"a {kind} has taken {row}"
        given_of.setdefault(plain(row["k"]), []).append(row.get("n"))
    expected = {key: total(aggregator, kind, values) for key, values in given_of.items()}
    assert {plain(row["k"]): plain(row["n"]) for row in state.read()} == expected
