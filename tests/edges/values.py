"""Texts at the edges of each type that a source may declare, as Hypothesis generates them."""

from __future__ import annotations

from decimal import Decimal, localcontext

from hypothesis import strategies as st

TYPES = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,18)", "DECIMAL(4,4)",
    "BOOLEAN", "STRING", "VARCHAR(3)", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ",
)  # fmt: skip
_BOUNDS = [2**bits + more for bits in (7, 8, 15, 16, 31, 32, 53, 63, 64) for more in (-1, 0, 1)]
EDGES = [
    *map(str, _BOUNDS), *(f"-{each}" for each in _BOUNDS), "0", "-0", "+0", "007", "1_0", "1e3", "0x10", "٣", "½",
    " 5 ", "\t5\n", "5\u00a0", "\u20035", "\x005", "5\x00", "\x7f5", "5 5", "", " ", "+", "-", ".", "+.", "1.", ".5",
    "-.5", "1.50", "0.1", "1.239", "12345678.99", "123456789.00", "1.000000000000000000000", "0.0001", "0.00001",
    "0.9999", "1e400", "-1e400", "1e-400", "5e-324", "3.4028235e38", "3.4028236e38", "1.5f", "1.5D", "1.5dd", "1e",
    "e1", "1e+", "nan", "NaN", "-NaN", "Inf", "+inf", "-Infinity", "infinit", "9" * 20, "9" * 38, "9" * 39, "0" * 50,
    "1" + "0" * 400, "true", "TRUE", "tRuE", "false", "yes", "t", "1.0", "on", " true", "truе", "2013-01-31",
    "2013-02-29", "2012-02-29", "2013-13-01", "2013-1-31", "13-01-31", "0000-01-01", "0001-01-01", "1582-10-10",
    "1900-02-29", "9999-12-31", "10000-01-01", "-2013-01-31", "+2013-01-31", "2013/01/31", "20130131", "2013-01",
    "2013", "2013-01-31Z", "2013-01-31 10:00", "2013-01-31T10:00+02:00", "2013-01-31T10:00", "2013-01-31t10:00",
    "2013-01-31 10:00:00", "2013-01-31  10:00:00", "2013-01-31T10:00:00.1", "2013-01-31T10:00:00.123456",
    "2013-01-31T10:00:00.1234567", "2013-01-31T10:00:00.", "2013-01-31T24:00:00", "2013-01-31T23:60:00",
    "2013-01-31T23:59:60", "2013-01-31T10", "2013-01-31T10:00:00Z", "2013-01-31T10:00:00z",
    "2013-01-31T10:00:00+02:00", "2013-01-31T10:00:00+0200", "2013-01-31T10:00:00+02", "2013-01-31T10:00:00-00:00",
    "2013-01-31T10:00:00+18:00", "2013-01-31T10:00:00+18:01", "2013-01-31T10:00:00 UTC",
    "2013-01-31T10:00:00 Europe/Paris", "9999-12-31T23:59:59.999999Z", "9999-12-31T23:59:59-01:00",
    "0001-01-01T00:00:00+01:00", "0001-01-01T00:00:00Z", "2013-03-31T02:30:00", "1847-11-30T00:00:00", "10:00:00",
    "T10:00:00", "now", "today", "epoch", "abc", "abcd", "ab\x00", "\U0001f600" * 3, "\U0001f600" * 4, "e\u0301", "é",
    "\ufeff1", "x" * 5000, "0" * 5000 + "7", "1.00000017881393432617187499", "1.00000017881393432617187501",
    "1.000000178813934326171875", "-1.00000017881393432617187499", "7.00649232162408535461864791644958e-46",
    "7.00649232162408535461864791644959e-46", "340282356779733661637539395458142568447",
    "340282356779733661637539395458142568448", "1.17549428075736423e-38", "16777217", "16777217.0000000000000001",
]  # fmt: skip


FLOATING = {"FLOAT": (23, -149, 0x7F7F_FFFF), "DOUBLE": (52, -1074, 0x7FEF_FFFF_FFFF_FFFF)}
"""Of a type: the bits of a fraction, the exponent of the least number, and the greatest number, as its bits."""


def beside_middle(kind: str, number: int, less: int) -> str:
    """Write a number beside the middle between a floating number and the next one.

    :param number: the floating number, as its bits.
    :param less: in the last of many digits.
    """
    bits, least, _ = FLOATING[kind]
    exponent, fraction = divmod(number, 2**bits)
    significant = fraction + (2**bits if exponent else 0)
    with localcontext() as context:
        context.prec = 1200
        middle = (2 * significant + 1) * Decimal(2) ** (least + max(exponent, 1) - 2)
        return str(middle - less * Decimal(10) ** (int(middle.as_tuple().exponent) - 3))


def _middles(kind: str) -> st.SearchStrategy[str]:
    numbers = st.integers(0, FLOATING[kind][2])
    beside = st.builds(beside_middle, st.just(kind), numbers, st.integers(-1, 1))
    return st.builds("{}{}".format, st.sampled_from(["", "-"]), beside)


MIDDLES = _middles("FLOAT") | _middles("DOUBLE")
TEXTS = (
    st.sampled_from(EDGES)
    | st.integers(-(2**70), 2**70).map(str)
    | st.floats().map(str)
    | MIDDLES
    | st.decimals(allow_nan=False, allow_infinity=False, places=3).map(str)
    | st.dates().map(str)
    | st.datetimes().map(str)
    | st.text("0123456789+-.eE", max_size=14)
    | st.text("0123456789-:T Z.+", max_size=30)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
)
