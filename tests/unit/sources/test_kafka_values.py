"""Values that are JSON, without Spark, as Spark has them."""

from __future__ import annotations

from datetime import date
from decimal import Decimal

import pytest

from airflow_tx.sources.kafka.rows import Values


def test_columns_have_the_types_of_the_schema() -> None:
    values = Values("a INT, b DOUBLE, c STRING, d DECIMAL(9,2), e DATE, f BOOLEAN, g INT")
    text = b'{"a": 1, "b": 2, "c": {"x": [1]}, "d": 1.25, "e": "2026-01-02", "f": true, "more": 1}'
    assert values.read(text) == {
        "a": 1, "b": 2.0, "c": '{"x":[1]}', "d": Decimal("1.25"), "e": date(2026, 1, 2), "f": True, "g": None,
    }  # fmt: skip
    assert values.read(None) is None


@pytest.mark.parametrize(
    "text",
    [b"", b"no json", b"[1]", b"7", b'{"a": "1"}', b'{"a": 1.5}', b'{"a": true}', b'{"e": "soon"}', b'{"e": 3}',
     b'{"f": "true"}', b'{"f": 1}', b'{"d": "much"}', b'{"d": true}', b"\xff"],
)  # fmt: skip
def test_a_value_that_does_not_fit_is_an_error(text: bytes) -> None:
    with pytest.raises(ValueError, match=r"\w"):
        Values("a INT, d DECIMAL(9,2), e DATE, f BOOLEAN").read(text)


def test_a_type_that_only_spark_has_is_refused() -> None:
    with pytest.raises(ValueError, match="no type"):
        Values("a ARRAY<INT>")
