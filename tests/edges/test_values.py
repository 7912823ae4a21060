"""A text as a value of a type: what arithmetic says, or refused; the same for a task and for Spark."""

from __future__ import annotations

import datetime as dt
from decimal import Decimal
from fractions import Fraction
from typing import TYPE_CHECKING, Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from airflow_tx.base.rows.arrow import reader_of_dicts
from airflow_tx.base.rows.blocks import typed_column
from airflow_tx.base.rows.types import JsonNumber, arrow_types_of, batch_rows, columns_of
from tests.edges.values import EDGES, FLOATING, MIDDLES, TEXTS, TYPES, beside_middle
from tests.imports.doc_pages import hook

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

KINDS = {name: columns_of(f"c {name}")["c"] for name in TYPES}
REFUSED = "refused"
*_, GREATEST = FLOATING["FLOAT"]


def taken(kind: str, text: str) -> Any:
    try:
        return KINDS[kind].of_text(text)
    except ValueError:
        return REFUSED


@given(kind=st.sampled_from([name for name in TYPES if name not in ("FLOAT", "DOUBLE", "STRING")]), text=TEXTS)
def test_an_accepted_text_keeps_its_value_when_it_is_written_and_parsed_again(kind: str, text: str) -> None:
    value = taken(kind, text)
    if value is REFUSED:
        return
    if isinstance(value, (int, Decimal)) and not isinstance(value, bool):
        assert Fraction(value) == Fraction(text.strip())
    elif isinstance(value, dt.datetime):
        given_text = text.replace("T", " ")
        assert given_text.startswith(str(value)[:10]) or kind == "TIMESTAMP"
        assert taken(kind, str(value)) == value
    else:
        assert str(value).lower() == text.lower()


def nearest(kind: str, exact: Fraction) -> Any:
    """Round a number to the nearest one of a type by arithmetic alone; of two in the same distance, to the even one."""
    bits, least, _ = FLOATING[kind]
    two = Fraction(2)
    highest = exact.numerator.bit_length() - exact.denominator.bit_length()
    if two**highest > abs(exact):
        highest -= 1
    unit = two ** max(highest - bits, least)
    found = round(exact / unit) * unit
    return REFUSED if abs(found) >= two ** {"FLOAT": 128, "DOUBLE": 1024}[kind] else float(found)


@given(
    kind=st.sampled_from(["FLOAT", "DOUBLE"]), text=MIDDLES | st.floats(allow_nan=False, allow_infinity=False).map(str)
)
@example(kind="FLOAT", text="1.00000017881393432617187499")
@example(kind="FLOAT", text=beside_middle("FLOAT", 0, 1))
@example(kind="FLOAT", text=beside_middle("FLOAT", 1, -1))
@example(kind="FLOAT", text=beside_middle("FLOAT", GREATEST, 1))
@example(kind="FLOAT", text=beside_middle("FLOAT", GREATEST, 0))
def test_a_number_in_a_text_becomes_the_nearest_value_of_its_type_or_is_refused(kind: str, text: str) -> None:
    expected = nearest(kind, Fraction(text))
    assert taken(kind, text) == expected
    try:
        in_json = KINDS[kind].of_json(JsonNumber(text))
    except ValueError:
        in_json = REFUSED
    assert in_json == expected


@given(kind=st.sampled_from(["FLOAT", "DOUBLE"]), value=st.integers() | st.integers(2**53, 2**130))
@example(kind="FLOAT", value=2**60 + 2**36 + 1)
@example(kind="DOUBLE", value=2**1024)
def test_a_json_integer_becomes_the_nearest_float_or_is_refused(kind: str, value: int) -> None:
    try:
        found = KINDS[kind].of_json(value)
    except ValueError:
        found = REFUSED
    assert found == nearest(kind, Fraction(value))


@pytest.mark.parametrize("kind", TYPES)
def test_a_column_that_repeats_one_text_contains_the_parsed_value_of_this_text(kind: str) -> None:
    (to,) = arrow_types_of({"c": KINDS[kind]}).values()
    for text in EDGES:
        texts = pa.array([text, None, text], pa.string())
        if (value := taken(kind, text)) is REFUSED:
            with pytest.raises(ValueError, match=r"\w"):
                typed_column(texts, KINDS[kind], to)
            continue
        made = pa.RecordBatch.from_arrays([typed_column(texts, KINDS[kind], to)], ["c"])
        assert repr([row["c"] for row in batch_rows(made)]) == repr([value, None, value])


@given(texts=st.lists(TEXTS, min_size=1))
def test_a_column_of_several_texts_contains_the_parsed_value_of_each_text(texts: list[str]) -> None:
    for name, kind in KINDS.items():
        fine = [text for text in texts if taken(name, text) is not REFUSED]
        (to,) = arrow_types_of({"c": kind}).values()
        made = pa.RecordBatch.from_arrays([typed_column(pa.array(fine, pa.string()), kind, to)], ["c"])
        found = [row["c"] for row in batch_rows(made)]
        assert list(map(repr, found)) == [repr(taken(name, text)) for text in fine]
        if len(fine) < len(texts):
            with pytest.raises(ValueError, match=r"\w"):
                typed_column(pa.array(texts, pa.string()), kind, to)


@pytest.mark.parametrize("kind", TYPES)
def test_a_record_batch_contains_each_accepted_value_unchanged(kind: str) -> None:
    values = [value for text in EDGES if (value := taken(kind, text)) is not REFUSED]
    reader = reader_of_dicts(({"c": value} for value in [*values, None]), arrow_types_of({"c": KINDS[kind]}))
    found = [row["c"] for batch in reader for row in batch.to_pylist()]
    in_utc = [each.astimezone(dt.timezone.utc) if getattr(each, "tzinfo", None) else each for each in found]
    assert list(map(repr, in_utc)) == list(map(repr, [*values, None]))


@given(value=st.integers(-(2**63), 2**63 - 1))
def test_an_integer_is_accepted_if_it_is_in_the_range_of_its_type(value: int) -> None:
    for name, bits in (("TINYINT", 8), ("SMALLINT", 16), ("INT", 32), ("BIGINT", 64)):
        fits = -(2 ** (bits - 1)) <= value < 2 ** (bits - 1)
        assert taken(name, str(value)) == (value if fits else REFUSED)


@given(value=st.decimals(-(10**8) + 1, 10**8 - 1, places=2))
def test_a_decimal_is_accepted_if_it_is_in_the_range_of_its_type(value: Decimal) -> None:
    assert taken("DECIMAL(10,2)", f"{value:f}") == value


@given(value=st.datetimes())
def test_a_time_is_accepted_if_it_is_in_the_range_of_its_type(value: dt.datetime) -> None:
    assert taken("TIMESTAMP_NTZ", str(value)) == value
    assert taken("TIMESTAMP", str(value)) == value.replace(tzinfo=dt.timezone.utc)
    assert taken("DATE", str(value.date())) == value.date()


@pytest.mark.spark
@pytest.mark.parametrize("form", ["csv", "json"])
def test_the_values_page_shows_the_result_of_spark_for_each_example(form: str, spark: SparkSession) -> None:
    from pyspark.sql import functions as F

    pages: Any = hook("value_pages")
    examples = [(kind, text, told) for kind, texts in _EXAMPLES[form](pages).items() for text, told in texts.items()]
    columns = []
    for number, (kind, text, _) in enumerate(examples):
        if form == "csv":
            made = F.from_csv(F.lit(f'"{text}"'), f"c {kind}", {"timeZone": "UTC"})
        else:
            made = F.from_json(F.lit(f'{{"c": {text}}}'), f"c {kind}")
        columns.append(made.getField("c").alias(f"c{number}"))
    (found,) = spark.range(1).select(*columns).toArrow().to_pylist()
    differ = [
        (kind, text, told, pages.shown(found[f"c{number}"]))
        for number, (kind, text, told) in enumerate(examples)
        if pages.shown(_plain(found[f"c{number}"])) != told
    ]
    assert differ == []


_EXAMPLES: dict[str, Any] = {"csv": lambda pages: pages.TEXTS, "json": lambda pages: pages.VALUES}


def _plain(value: Any) -> Any:
    return value.astimezone(dt.timezone.utc) if getattr(value, "tzinfo", None) is not None else value
