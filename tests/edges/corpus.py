"""Small files, each with the rows that every reader takes from it, or refused by all of them.

Each is of a kind that people met in public, with a content of our own.
"""

from __future__ import annotations

import bz2
import datetime as dt
import gzip
import io
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

REFUSED: Literal["refused"] = "refused"
UTC = dt.timezone.utc


@dataclass(frozen=True)
class Case:
    """One batch of files.

    :param files: their names and contents.
    :param rows: what every reader takes; `REFUSED`: none reads the batch.
    """

    name: str
    files: Mapping[str, bytes] = field(hash=False)
    rows: Sequence[Mapping[str, Any]] | Literal["refused"] = field(hash=False)
    format: str = "csv"
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    schema: str | None = None
    missing_columns: str = "refuse"


def csv(name: str, content: bytes | str, rows: Any, schema: str | None = None, **options: Any) -> Case:
    """Make a case of one csv file; rows are tuples of the columns a, b, …"""
    content = content.encode() if isinstance(content, str) else content
    if rows != REFUSED:
        rows = [dict(zip("abcdefg", row, strict=False)) for row in rows]
    return Case(f"csv: {name}", {"a.csv": content}, rows, options=options, schema=schema)


def one(kind: str, text: str, value: Any) -> Case:
    """Make a case of one value in a column of a type."""
    rows: Any = REFUSED if value is REFUSED else [(value, "x")]
    return csv(f"{text!r} as {kind}", f'a,b\n"{text}",x\n', rows, f"a {kind}, b STRING")


def bare(kind: str, text: str, value: Any) -> Case:
    """Make a case of one value without quotes in a column of a type."""
    rows: Any = REFUSED if value is REFUSED else [(value, "x")]
    return csv(f"{text!r} as {kind}, without quotes", f"a,b\n{text},x\n", rows, f"a {kind}, b STRING")


def _torn(content: bytes) -> bytes:
    half = len(content) // 2
    return content[:half] + bytes(each ^ 255 for each in content[half : half + 9]) + content[half + 9 :]


AB = "a STRING, b STRING"
TEXTS = [
    csv("plain", "a,b\n1,x\n", [("1", "x")]),
    csv("a new line within quotes", 'a,b\n1,"x\ny"\n2,z\n', REFUSED),
    csv("several lines, as the option says", 'a,b\n1,"x\ny"\n2,z\n', [("1", "x\ny"), ("2", "z")], multiLine=True),
    csv("doubled quotes", 'a,b\n1,"W. ""Bud"" B"\n2,"""q"""\n', [("1", 'W. "Bud" B'), ("2", '"q"')]),
    csv("a comma within doubled quotes", 'a,b\n1,"x"",y"\n', [("1", 'x",y')]),
    csv("a quote that is not closed at the end", 'a,b\n1,x\n2,"y\n', REFUSED),
    csv("a quote that is not closed", 'a,b\n1,"x\n2,y\n3,z\n', REFUSED),
    csv("a quote that is not closed, with several lines", 'a,b\n1,"x\n2,y\n3,z\n', REFUSED, multiLine=True),
    csv("text behind a quote", 'a,b\n1,"x"y\n2,z\n', REFUSED),
    csv("spaces behind a quote", 'a,b\n1,"x" \n2,z\n', REFUSED),
    csv("spaces behind a quote and a separator", 'a,b\n"1," ,x\n', REFUSED),
    csv("spaces behind an empty value in quotes", 'a,b\n"" ,x\n', REFUSED),
    csv("a space in quotes", 'a,b\n" "," "\n', [(" ", " ")]),
    csv("a space, and a sign, behind an opening quote", 'a,b\n1," (x)"\n2," -"\n', [("1", " (x)"), ("2", " -")]),
    csv("a doubled quote and a space", 'a,b\n1,"x"" ,y"\n', [("1", 'x" ,y')]),
    csv("quotes between tabs", 'a\tb\n"1"\t"x"\n"2"\t" "\n', [("1", "x"), ("2", " ")], sep="\t"),
    csv("quotes between spaces", 'a b\n"1" "x y"\n', [("1", "x y")], sep=" "),
    csv("a quote within a value", 'a,b\n1,x"y"z\n', [("1", 'x"y"z')]),
    csv("a backslash", 'a,b\n1,"x\\"\n2,\\N\n', [("1", "x\\"), ("2", "\\N")]),
    csv("bytes of Latin-1", b"a,b\n1,\xe9\n", REFUSED),
    csv("bytes of Latin-1, with a schema", b"a,b\n1,\xe9\n", REFUSED, AB),
    csv("bytes of Latin-1 far behind", b"a,b\n" + b"1,x\n" * 9000 + b"1,\xe9\n", REFUSED),
    csv("the character for unknown bytes", "a,b\n1,\ufffd\n", [("1", "\ufffd")]),
    csv("Latin-1, as the option says", b"a,b\n1,\xe9\n", [("1", "é")], encoding="ISO-8859-1"),
    csv("blank lines", "\na,b\n\n1,x\n   \n2,y\n", [("1", "x"), ("2", "y")]),
    csv("a byte order mark", b"\xef\xbb\xbfa,b\n1,x\n", [("1", "x")]),
    csv("empty and quoted empty", 'a,b\n1,""\n2,\n', [("1", None), ("2", None)]),
    csv("the text of no value", 'a,b\n1,NA\n2,""\n3,"NA"\n', [("1", None), ("2", None), ("3", None)], nullValue="NA"),
    csv("Windows lines", "a,b\r\n1,x\r\n", [("1", "x")]),
    csv("old Mac lines", "a,b\r1,x\r", [("1", "x")]),
    csv("no last new line", "a,b\n1,x", [("1", "x")]),
    csv("a torn line", "a,b\n1,x\n2\n", REFUSED),
    csv("one field too many", "a,b\n1,x,9\n", REFUSED),
    csv("one field too many, with a schema", "a,b\n1,x,9\n", REFUSED, AB),
    csv("a header alone", "a,b\n", []),
    csv("a header with a name twice", "a,b,a\n1,x,2\n", REFUSED),
    csv("a header with a name twice in other letters", "a,b,A\n1,x,2\n", REFUSED),
    csv("another header than the schema", "a,c\n1,x\n", REFUSED, AB),
    csv("a header in other letters than the schema", "A,b\n1,x\n", REFUSED, AB),
    csv("a separator", "a;b\n1;x,y\n", [("1", "x,y")], sep=";"),
    csv("no quotes", 'a,b\n1,"x\n', [("1", '"x')], quote=""),
    csv("other quotes", "a,b\n1,'x,y'\n", [("1", "x,y")], quote="'"),
    csv("a long value", "a,b\n1," + "x" * 140_000 + "\n", [("1", "x" * 140_000)]),
    csv("a comment sign", "a,b\n#1,x\n", [("#1", "x")]),
    csv("Windows lines within quotes, with several lines", 'a,b\r\n1,"x\r\ny\rz"\r\n2,w\r\n',
        [("1", "x\r\ny\rz"), ("2", "w")], multiLine=True),
    csv("a blank line within quotes, with several lines", 'a,b\n1,"x\n\n y"\n', [("1", "x\n\n y")], multiLine=True),
    csv("ends of lines of three systems", "a,b\r\n1,x\n2,y\r3,z", [("1", "x"), ("2", "y"), ("3", "z")]),
    csv("blank Windows lines", "a,b\r\n\r\n1,x\r\n\r\n", [("1", "x")]),
    csv("other ends of lines of Unicode", "a,b\n1,x\u2028y\x85z\x0bv\x0cw\x1c\n",
        [("1", "x\u2028y\x85z\x0bv\x0cw\x1c")]),
    csv("spaces around values", "a,b\n 1 ,\tx \n  ,\n", [(" 1 ", "\tx "), ("  ", None)]),
    csv("a quote behind a space", 'a,b\n1, "x"\n', [("1", ' "x"')]),
    csv("a separator in quotes behind a space", 'a,b\n1, "x,y"\n', REFUSED),
    csv("quotes alone", 'a,b\n"""",""""""\n', [('"', '""')]),
    csv("three quotes", 'a,b\n1,"""\n', REFUSED),
    csv("a quote behind a backslash", 'a,b\n1,"x\\"y"\n', REFUSED),
    csv("a backslash before a separator", "a,b\nx\\,y\n", [("x\\", "y")]),
    csv("a line of separators", "a,b\n,\n1,x\n", [(None, None), ("1", "x")]),
    csv("no last value and no last new line", "a,b\n1,", [("1", None)]),
    csv("a separator behind each line", "a,b\n1,x,\n", REFUSED),
    csv("the end of a file of CP/M", "a,b\n1,x\n\x1a", REFUSED),
    csv("a line of one sign without a form", "a\n1\n\x01\n", [("1",), ("\x01",)]),
    csv("a line of one tab between values", "a\tb\n\t\n1\tx\n", [(None, None), ("1", "x")], sep="\t"),
    csv("a line of one space between values", "a b\n \n1 x\n", [(None, None), ("1", "x")], sep=" "),
    csv("a blank line between values in tabs", "a\tb\n  \n1\tx\n\n", [("1", "x")], sep="\t"),
    csv("the header once more", "a,b\n1,x\na,b\n2,y\n", [("1", "x"), ("a", "b"), ("2", "y")]),
    csv("a header without a new line", "a,b", []),
    csv("one column with a blank and an empty line", 'a\n1\n\n""\n \n2\n', [("1",), (None,), ("2",)]),
    csv("spaces around the names of a header", "a, b\n1,x\n", REFUSED, AB),
    csv("an empty file, with a schema", "", [], AB),
    csv("blank lines alone, with a schema", "\n \r\n\n", [], AB),
    csv("a byte order mark before a quote", b'\xef\xbb\xbf"a",b\n1,x\n', [("1", "x")], AB),
    csv("a byte order mark before a number", b"\xef\xbb\xbf5,x\n", [(5, "x")], "a INT, b STRING", header=False),
    csv("a byte order mark alone", b"\xef\xbb\xbf", [], AB),
    csv("a byte order mark in the second line", "a,b\n\ufeff1,x\n", [("\ufeff1", "x")]),
    csv("a byte order mark of UTF-16", "a,b\n1,x\n".encode("utf-16"), REFUSED, AB),
    csv("bytes of half a surrogate pair", b"a,b\n1,\xed\xa0\x80\n", REFUSED),
    csv("bytes of too long a form", b"a,b\n1,\xc0\xaf\n", REFUSED),
    csv("half a character at the end", b"a,b\n1,x\xc3", REFUSED),
    csv("a character that is none, but has a code", "a,b\n1,\uffff\U0010ffff\n", [("1", "\uffff\U0010ffff")]),
    csv("another text of no value in a number", "a,b\n0,x\n00,y\n", [(None, "x"), (0, "y")], "a INT, b STRING",
        nullValue="0"),
    csv("a separator of several bytes", "a§b\n1§x,y\n", [("1", "x,y")], sep="§"),
    csv("a quote of several bytes", "a,b\n1,«x,y«\n", [("1", "x,y")], quote="«"),
    csv("a value longer than a block", "a,b\n1," + "x" * 9 * 2**20 + "\n2,y\n",
        [("1", "x" * 9 * 2**20), ("2", "y")]),
    csv("new lines within quotes from one block to the next", 'a,b\n1,"' + "\n" * 9 * 2**20 + '"\n2,y\n',
        [("1", "\n" * 9 * 2**20), ("2", "y")], multiLine=True),
    csv("a value that does not fit behind a block", "a,b\n" + f"{'x' * 4095},1\n" * 2049 + "y,z\n", REFUSED,
        "a STRING, b INT"),
    csv("types as they are found", "a,b\n1,1.5\n2,2\n", [(1, 1.5), (2, 2.0)], inferSchema=True),
    Case("csv: no header", {"a.csv": b"1,x\n2,y\n"}, [{"_c0": "1", "_c1": "x"}, {"_c0": "2", "_c1": "y"}],
         options={"header": False}),
    Case("csv: a header without a name", {"a.csv": b",b\n1,x\n"}, [{"_c0": "1", "b": "x"}]),
    Case("csv: a name with a comma", {"a.csv": b'"a,(b",`c\n1,x\n'}, [{"a,(b": "1", "`c": "x"}]),
    Case("csv: gzip", {"a.csv.gz": gzip.compress(b"a,b\n1,x\n")}, [{"a": "1", "b": "x"}]),
    Case("csv: bzip2", {"a.csv.bz2": bz2.compress(b"a,b\n1,x\n")}, [{"a": "1", "b": "x"}]),
    Case("csv: a separator behind each line and the header", {"a.csv": b"a,b,\n1,x,\n"},
         [{"a": "1", "b": "x", "_c2": None}]),
    Case("csv: doubled quotes in the header", {"a.csv": b'"a ""q""",b\n1,x\n'}, [{'a "q"': "1", "b": "x"}]),
    Case("csv: gzip in two parts", {"a.csv.gz": gzip.compress(b"a,b\n1,x\n2") + gzip.compress(b",y\n")},
         [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]),
    Case("csv: bzip2 in two parts", {"a.csv.bz2": bz2.compress(b"a,b\n1,x\n2") + bz2.compress(b",y\n")},
         [{"a": "1", "b": "x"}, {"a": "2", "b": "y"}]),
    Case("csv: gzip, cut", {"a.csv.gz": gzip.compress(b"a,b\n1,x\n")[:-4]}, REFUSED),
    Case("csv: gzip with another sum", {"a.csv.gz": gzip.compress(b"a,b\n1,x\n")[:-8] + bytes(8)}, REFUSED),
    Case("csv: no gzip", {"a.csv.gz": b"a,b\n1,x\n"}, REFUSED),
    Case("csv: gzip with a torn middle",
         {"a.csv.gz": _torn(gzip.compress(random.Random(1).randbytes(999).hex().encode()))}, REFUSED),
    Case("csv: gzip with more behind it", {"a.csv.gz": gzip.compress(b"a,b\n1,x\n") + b"more"}, REFUSED),
    Case("csv: an empty file that should be gzip", {"a.csv.gz": b""}, REFUSED, schema=AB),
    Case("csv: an empty file that should be bzip2", {"a.csv.bz2": b""}, REFUSED, schema=AB),
    Case("csv: bzip2 with a torn middle",
         {"a.csv.bz2": _torn(bz2.compress(random.Random(1).randbytes(999).hex().encode()))}, REFUSED),
    Case("csv: gzip without its suffix", {"a.csv": gzip.compress(b"a,b\n1,x\n")}, REFUSED),
    Case("csv: a suffix in large letters", {"a.csv.GZ": gzip.compress(b"a,b\n1,x\n")}, [{"a": "1", "b": "x"}]),
    Case("csv: a thousand columns", {"a.csv": ",".join(map("c{}".format, range(1000))).encode() + b"\n" + b"," * 999},
         [{f"c{number}": None for number in range(1000)}]),
    Case("csv: another header in the second file", {"a.csv": b"a,b\n1,x\n", "b.csv": b"a,b,c\n1,x,y\n"}, REFUSED),
]  # fmt: skip
_F32 = 0.10000000149011612


def named(name: str, rows: Any, schema: str, *contents: str, **options: Any) -> Case:
    """Make a case of csv files whose columns are found by their names; a column that a file lacks is NULL."""
    files = {f"{number}.csv": content.encode() for number, content in enumerate(contents)}
    if rows != REFUSED:
        rows = [dict(zip("abcdefg", row, strict=False)) for row in rows]
    return Case(f"csv by name: {name}", files, rows, options=options, schema=schema, missing_columns="null")


ABC = "a STRING, b STRING, c STRING"
BY_NAME = [
    named("a column is new in the second file", [("1", "x", None), ("2", "y", "z")], ABC, "a,b\n1,x\n",
          "a,b,c\n2,y,z\n"),
    named("a column is gone in the second file", [("1", "x", "z"), ("2", None, "y")], ABC, "a,b,c\n1,x,z\n",
          "a,c\n2,y\n"),
    named("columns in another order", [("1", "x", "z"), ("2", "y", "w")], ABC, "a,b,c\n1,x,z\n", "b,c,a\ny,w,2\n"),
    named("typed", [(1, None, None), (2, 1.5, dt.date(2013, 1, 31))], "a INT, b DOUBLE, c DATE", "a\n1\n",
          "c,b,a\n2013-01-31,1.5,2\n"),
    named("a value that does not fit", REFUSED, "a INT, b DOUBLE, c INT", "a\n1\n", "c,a\nx,2\n"),
    named("a file without a line", [("1", None, None)], ABC, "a\n1\n", ""),
    named("only files without a line", [], ABC, "", ""),
    named("a header alone", [("1", None, None)], ABC, "a\n1\n", "c,b\n"),
    named("a column that the schema lacks", REFUSED, ABC, "a,b\n1,x\n", "a,b,d\n2,y,z\n"),
    named("a name in other letters", REFUSED, ABC, "a,B\n1,x\n"),
    named("a name twice", REFUSED, ABC, "a,b,a\n1,x,2\n"),
    named("a torn line", REFUSED, ABC, "a,b\n1,x\n", "a,b,c\n2,y\n"),
    named("one field too many", REFUSED, ABC, "a,b\n1,x,9\n"),
    named("a quote that is not closed", REFUSED, ABC, 'a,b\n1,"x\n', "a,b,c\n2,y,z\n"),
    named("no value", [("1", None, None)], ABC, "b,a\nNA,1\n", nullValue="NA"),
    Case("csv: a column is missing", {"a.csv": b"a,b\n1,x\n"}, REFUSED, schema=ABC),
]  # fmt: skip
VALUES = [
    one("TINYINT", "127", 127), one("TINYINT", "128", REFUSED), one("TINYINT", "-128", -128),
    one("SMALLINT", "32768", REFUSED), one("INT", "2147483647", 2**31 - 1), one("INT", "2147483648", REFUSED),
    one("BIGINT", "9223372036854775807", 2**63 - 1), one("BIGINT", "9223372036854775808", REFUSED),
    one("INT", "+5", 5), one("INT", " 5 ", 5), one("INT", "1_0", REFUSED), one("INT", "5.0", REFUSED),
    one("INT", "1e3", REFUSED), one("INT", "-", REFUSED), one("INT", "٣", REFUSED), one("INT", "0x10", REFUSED),
    one("DOUBLE", "1.5", 1.5), one("DOUBLE", ".5", 0.5), one("DOUBLE", "5.", 5.0), one("DOUBLE", "1e3", 1000.0),
    one("DOUBLE", "1e400", REFUSED), one("DOUBLE", "-1e400", REFUSED), one("DOUBLE", "1_0", REFUSED),
    one("DOUBLE", "0x1p3", REFUSED), one("DOUBLE", "1.5f", REFUSED), one("FLOAT", "5D\t", REFUSED),
    one("DOUBLE", "Infinity", float("inf")), one("DOUBLE", "5.d", REFUSED), one("DOUBLE", "1e3D", REFUSED),
    one("DOUBLE", "true", REFUSED), one("DOUBLE", "1,5", REFUSED), one("DOUBLE", "-0.0", -0.0),
    one("FLOAT", "1.00000017881393432617187499", 1.0000001192092896),
    bare("FLOAT", "1.00000017881393432617187499", 1.0000001192092896),
    one("BIGINT", "0" * 5000 + "7", 7),
    one("FLOAT", "0.1", _F32), one("FLOAT", "1e300", REFUSED), one("FLOAT", "3.4e38", 3.3999999521443642e38),
    one("DECIMAL(10,2)", "1.23", Decimal("1.23")), one("DECIMAL(10,2)", "1.239", REFUSED),
    one("DECIMAL(10,2)", "1.2300", Decimal("1.23")), one("DECIMAL(10,2)", "-.5", Decimal("-0.50")),
    one("DECIMAL(10,2)", "123456789", REFUSED), one("DECIMAL(10,2)", "0012345678.9", Decimal("12345678.90")),
    one("INT", "1,000", REFUSED), one("INT", "５", REFUSED), one("INT", "\u22125", REFUSED),
    one("INT", "5\u00a0", REFUSED), one("INT", "--5", REFUSED), one("INT", "+ 5", REFUSED),
    one("INT", "5\x00", REFUSED), one("INT", "\x1c5", REFUSED), one("DOUBLE", "\x0b5", REFUSED),
    one("DOUBLE", "1e-400", 0.0), one("DOUBLE", "-0", -0.0), one("DOUBLE", "5e-324", 5e-324),
    one("DOUBLE", "2.4e-324", 0.0), one("DOUBLE", "1.7976931348623159e308", REFUSED), one("DOUBLE", "٣", REFUSED),
    one("DOUBLE", "inf", float("inf")), one("DOUBLE", "1e", REFUSED), one("DOUBLE", "--1", REFUSED),
    one("DOUBLE", "infinit", REFUSED), one("DOUBLE", "nan(1)", REFUSED), one("DOUBLE", "$1", REFUSED),
    one("DECIMAL(10,2)", "+1.5", Decimal("1.50")), one("DECIMAL(10,2)", "-0.00", Decimal("0.00")),
    one("DECIMAL(10,2)", "1.", Decimal("1.00")), one("DECIMAL(10,2)", " 1.5", REFUSED),
    one("DECIMAL(10,2)", "٣", REFUSED), one("DECIMAL(38,0)", "1" + "0" * 38, REFUSED),
    one("DECIMAL(10,2)", "1e2", REFUSED), one("DECIMAL(10,2)", "NaN", REFUSED), one("DECIMAL(10,2)", ".", REFUSED),
    one("DECIMAL", "1.5", REFUSED), one("DECIMAL(38,0)", "9" * 38, Decimal("9" * 38)),
    one("BOOLEAN", "TRUE", True), one("BOOLEAN", "false", False), one("BOOLEAN", "1", REFUSED),
    one("BOOLEAN", "yes", REFUSED), one("BOOLEAN", "t", REFUSED),
    one("DATE", "2013-01-31", dt.date(2013, 1, 31)), one("DATE", "2013-02-30", REFUSED),
    one("DATE", "2013-1-31", REFUSED), one("DATE", "20130131", REFUSED), one("DATE", "2013", REFUSED),
    one("DATE", "1500-01-01", dt.date(1500, 1, 1)), one("DATE", "0000-01-01", REFUSED),
    one("DATE", "10000-01-01", REFUSED), one("DATE", "2013-01-31 10:00:00", REFUSED),
    one("DATE", " 2013-01-31", REFUSED), one("DATE", "2013-W01-1", REFUSED),
    one("TIMESTAMP", "2013-01-31 10:00:00", dt.datetime(2013, 1, 31, 10, tzinfo=UTC)),
    one("TIMESTAMP", "2013-01-31T10:00:00.123456", dt.datetime(2013, 1, 31, 10, 0, 0, 123456, tzinfo=UTC)),
    one("TIMESTAMP", "2013-01-31T10:00:00.1234567", REFUSED),
    one("TIMESTAMP", "2013-01-31T10:00:00+02:00", dt.datetime(2013, 1, 31, 8, tzinfo=UTC)),
    one("TIMESTAMP", "2013-01-31T10:00:00Z", dt.datetime(2013, 1, 31, 10, tzinfo=UTC)),
    one("TIMESTAMP", "2013-01-31", dt.datetime(2013, 1, 31, tzinfo=UTC)),
    one("TIMESTAMP", "2013-01-31T24:00:00", REFUSED), one("TIMESTAMP", "2013-01-31T10", REFUSED),
    one("TIMESTAMP", "9999-12-31T23:59:59-01:00", REFUSED), one("TIMESTAMP", "10:00:00", REFUSED),
    one("TIMESTAMP", "2013-01-31T10:00:00+18:30", REFUSED), one("TIMESTAMP", "2013-01-31Z", REFUSED),
    one("TIMESTAMP", "2013-01-31T10:00:00 Europe/Paris", REFUSED),
    one("TIMESTAMP", "2013-01-31 10:00:00.5Z", dt.datetime(2013, 1, 31, 10, 0, 0, 500_000, tzinfo=UTC)),
    one("TIMESTAMP", "2013-01-31 10:00:00,5", REFUSED), one("TIMESTAMP", "2013-01-31T10:00:00z", REFUSED),
    one("TIMESTAMP", "2013-01-31T23:59:60Z", REFUSED), one("TIMESTAMP", "2013-01-31T10:00:00+0200", REFUSED),
    one("TIMESTAMP", "1359626400", REFUSED), one("DATE", "2013-01-31 ", REFUSED), one("DATE", "-2013-01-31", REFUSED),
    one("DATE", "٢٠١٣-01-31", REFUSED), one("DATE", "2012-02-29", dt.date(2012, 2, 29)),
    one("DATE", "1900-02-29", REFUSED), one("DATE", "1582-10-10", dt.date(1582, 10, 10)),
    one("TIMESTAMP_NTZ", "2013-01-31 10:00:00", dt.datetime(2013, 1, 31, 10)),
    one("TIMESTAMP_NTZ", "2013-01-31 10:00:00Z", REFUSED), one("TIMESTAMP_NTZ", "1500-01-01", dt.datetime(1500, 1, 1)),
    one("VARCHAR(3)", "abc", "abc"), one("VARCHAR(3)", "abcd", REFUSED), one("STRING", " x ", " x "),
    one("STRING", "e\u0301", "e\u0301"), one("STRING", "\U0001f600", "\U0001f600"),
]  # fmt: skip
# Spark's own reader takes the whole numbers of a file that has no quotes.
BARE = [
    bare("TINYINT", "127", 127), bare("TINYINT", "128", REFUSED), bare("TINYINT", "-128", -128),
    bare("SMALLINT", "32768", REFUSED), bare("INT", "2147483647", 2**31 - 1), bare("INT", "2147483648", REFUSED),
    bare("BIGINT", "-9223372036854775808", -(2**63)), bare("BIGINT", "9223372036854775808", REFUSED),
    bare("INT", "+5", 5), bare("INT", "007", 7), bare("INT", "-0", 0), bare("INT", "", None),
    bare("INT", "NA", REFUSED), bare("INT", " 5", 5), bare("INT", "5 ", 5), bare("INT", "\t5", 5),
    bare("INT", "5\x7f", REFUSED),
    bare("INT", "1_0", REFUSED), bare("INT", "5.0", REFUSED), bare("INT", "1e3", REFUSED), bare("INT", "-", REFUSED),
    bare("INT", "٣", REFUSED), bare("INT", "5L", REFUSED), bare("INT", "1 0", REFUSED), bare("INT", "0x10", REFUSED),
    csv("a space behind the last number", "a,b\nx,5 ", [("x", 5)], "a STRING, b INT"),
    csv("no value of a whole number", "a,b\nNA,x\n", [(None, "x")], "a INT, b STRING", nullValue="NA"),
    csv("whole numbers between tabs", "a\tb\n5\tx\n", [(5, "x")], "a INT, b STRING", sep="\t"),
    csv("whole numbers between spaces", "a b\n5 x\n", [(5, "x")], "a INT, b STRING", sep=" "),
    csv("whole numbers without a header", "5,x\n6,y\n", [(5, "x"), (6, "y")], "a INT, b STRING", header=False),
    csv("whole numbers in Windows lines", "a,b\r\n5,6\r\n", [(5, 6)], "a INT, b INT"),
    csv("whole numbers in a torn line", "a,b\n5,6\n7\n", REFUSED, "a INT, b INT"),
    csv("one whole number too many", "a,b\n5,6,7\n", REFUSED, "a INT, b INT"),
    csv("whole numbers beside a time", "a,b\n5,2013-01-31 10:00:00\n", [(5, dt.datetime(2013, 1, 31, 10))],
        "a INT, b TIMESTAMP_NTZ"),
    csv("whole numbers beside no time", "a,b\n5,2013-01-32 10:00:00\n", REFUSED, "a INT, b TIMESTAMP_NTZ"),
]  # fmt: skip
OTHERS = [
    Case("text: plain", {"a.txt": "a\n é\n\nb".encode()}, [{"value": v} for v in ("a", " é", "", "b")], format="text"),
    Case("text: bytes of Latin-1", {"a.txt": b"a\n\xe9\n"}, REFUSED, format="text"),
    Case("text: a byte order mark", {"a.txt": b"\xef\xbb\xbfa\n"}, [{"value": "a"}], format="text"),
    Case(
        "text: ends of lines of three systems",
        {"a.txt": b"a\r\nb\rc\n\r\n"},
        [{"value": v} for v in ("a", "b", "c", "")],
        format="text",
    ),
    Case(
        "text: other ends of lines of Unicode",
        {"a.txt": "a\u2028b\x85c\x0bd\x0ce\x1cf\x00".encode()},
        [{"value": "a\u2028b\x85c\x0bd\x0ce\x1cf\x00"}],
        format="text",
    ),
    Case("text: an empty file", {"a.txt": b""}, [], format="text"),
    Case("text: half a character at the end", {"a.txt": b"a\xc3"}, REFUSED, format="text"),
    Case(
        "text: gzip in two parts",
        {"a.txt.gz": gzip.compress(b"a\nb") + gzip.compress(b"c\n")},
        [{"value": "a"}, {"value": "bc"}],
        format="text",
    ),
    Case("text: gzip", {"a.txt.gz": gzip.compress(b"a\nb\n")}, [{"value": "a"}, {"value": "b"}], format="text"),
]


def json(name: str, content: bytes | str, rows: Any, schema: str | None = None, **options: Any) -> Case:
    """Make a case of one file of JSON objects, one a line."""
    content = content.encode() if isinstance(content, str) else content
    return Case(f"json: {name}", {"a.json": content}, rows, format="json", options=options, schema=schema)


N = "n BIGINT"
JSON = [
    json("plain", '{"n": 1, "s": "é"}\n{"n": null, "s": "b"}\n', [{"n": 1, "s": "é"}, {"n": None, "s": "b"}]),
    json("blank lines", '\n{"n": 1}\n  \t\n\r\n{"n": 2}', [{"n": 1}, {"n": 2}]),
    json("a byte order mark", b'\xef\xbb\xbf{"n": 1}\n', [{"n": 1}]),
    json("an empty file", "", [], N),
    Case("json: gzip", {"a.json.gz": gzip.compress(b'{"n": 1}\n')}, [{"n": 1}], format="json"),
    json("two objects in a line", '{"n": 1}{"n": 2}\n', REFUSED),
    json("two objects in a line, with a schema", '{"n": 1} {"n": 2}\n', REFUSED, N),
    json("an array", '[{"n": 1}, {"n": 2}]\n', REFUSED),
    json("an array, with a schema", '[{"n": 1}]\n', REFUSED, N),
    json("an object of several lines", '{"n":\n1}\n', REFUSED, N),
    json("the rest of a torn line", '{"n": 1}\n{"n": 2', REFUSED, N),
    json("the rest of an object", '{"n": 1}}\n', REFUSED, N),
    json("no object", "7\n", REFUSED, N),
    json("a key twice", '{"n": 1, "n": 2}\n', REFUSED, N),
    json("NaN", '{"n": 1, "x": NaN}\n', REFUSED, N),
    json("bytes of Latin-1", b'{"s": "\xe9"}\n', REFUSED, "s STRING"),
    json("half a surrogate pair", '{"s": "\\ud800"}\n', REFUSED, "s STRING"),
    json("a fraction of a whole number", '{"n": 19.99}\n', REFUSED, N),
    json("a whole number with a point", '{"n": 1.0}\n', REFUSED, N),
    json("digits in quotes", '{"n": "7"}\n', REFUSED, N),
    json("true for a number", '{"n": true}\n', REFUSED, N),
    json("a number beyond its type", '{"n": 200}\n', REFUSED, "n TINYINT"),
    json("too many places", '{"n": 1.239}\n', REFUSED, "n DECIMAL(10,2)"),
    json("places that fit", '{"n": 1.2300}\n{"n": "5"}\n', [{"n": Decimal("1.23")}, {"n": Decimal("5.00")}],
         "n DECIMAL(10,2)"),
    json("a number beyond a FLOAT", '{"n": 1e300}\n', REFUSED, "n FLOAT"),
    json("a number as a text, by the schema", '{"s": 1.50}\n', [{"s": "1.50"}], "s STRING"),
    json("a number beside the middle between two FLOATs", '{"n": 1.00000017881393432617187499}\n',
         [{"n": 1.0000001192092896}], "n FLOAT"),
    json("a whole number beside the middle between two FLOATs", '{"n": 1152921573326323713}\n',
         [{"n": 1152921642045800448.0}], "n FLOAT"),
    json("a number below the middle behind the greatest FLOAT",
         '{"n": 340282356779733661637539395458142568447.9}\n', [{"n": 3.4028234663852886e38}], "n FLOAT"),
    json("a number in the middle behind the greatest FLOAT", '{"n": 340282356779733661637539395458142568448}\n',
         REFUSED, "n FLOAT"),
    json("Windows lines", '{"n": 1}\r\n\r\n{"n": 2}\r\n', [{"n": 1}, {"n": 2}], N),
    json("old Mac lines", '{"n": 1}\r{"n": 2}\r', [{"n": 1}, {"n": 2}], N),
    json("spaces around an object", ' \t{"n" : 1 } \t\n', [{"n": 1}], N),
    json("other spaces around an object", '\u00a0{"n": 1}\n', REFUSED, N),
    json("a comma too many", '{"n": 1,}\n', REFUSED, N),
    json("a comma behind an object", '{"n": 1},\n{"n": 2}\n', REFUSED, N),
    json("single quotes", "{'n': 1}\n", REFUSED, N),
    json("a key without quotes", "{n: 1}\n", REFUSED, N),
    json("a comment", '{"n": 1} // one\n', REFUSED, N),
    json("a null for an object", "null\n", REFUSED, N),
    json("an empty object", "{}\n", [{"n": None}], N),
    json("a leading zero", '{"n": 01}\n', REFUSED, N),
    json("a plus sign", '{"n": +1}\n', REFUSED, N),
    json("a number without digits before the point", '{"n": .5}\n', REFUSED, "n DOUBLE"),
    json("a number without digits behind the point", '{"n": 5.}\n', REFUSED, "n DOUBLE"),
    json("a number in hexadecimal digits", '{"n": 0x10}\n', REFUSED, N),
    json("Infinity", '{"n": Infinity}\n', REFUSED, "n DOUBLE"),
    json("NaN in a text", '{"n": "NaN"}\n', REFUSED, "n DOUBLE"),
    json("a number beyond a DOUBLE", '{"n": 1e400}\n', REFUSED, "n DOUBLE"),
    json("a whole number beyond its type", '{"n": 9223372036854775808}\n', REFUSED, N),
    json("a whole number that a DOUBLE rounds", '{"n": 9007199254740993}\n', [{"n": 9007199254740992.0}], "n DOUBLE"),
    json("an exponent of a whole number", '{"n": 1e3}\n', REFUSED, N),
    json("an exponent of a number with decimals", '{"n": 1e2}\n', REFUSED, "n DECIMAL(10,2)"),
    json("digits of which a DOUBLE has fewer", '{"n": 12345678901234567890.123456789012345678}\n',
         [{"n": Decimal("12345678901234567890.123456789012345678")}], "n DECIMAL(38,18)"),
    json("a day as a number", '{"d": 15736}\n', REFUSED, "d DATE"),
    json("a moment as a number", '{"d": 1359626400}\n', REFUSED, "d TIMESTAMP"),
    json("a truth in quotes", '{"t": "true"}\n', REFUSED, "t BOOLEAN"),
    json("a truth as a number", '{"t": 1}\n', REFUSED, "t BOOLEAN"),
    json("a new line in a text", '{"s": "x\ny"}\n', REFUSED, "s STRING"),
    json("a tab in a text", '{"s": "x\ty"}\n', REFUSED, "s STRING"),
    json("another escape", '{"s": "x\\y"}\n', REFUSED, "s STRING"),
    json("all escapes", '{"s": "\\"\\\\\\/\\b\\f\\n\\r\\t\\u00e9\\ud83d\\ude00"}\n',
         [{"s": '"\\/\b\f\n\r\té\U0001f600'}], "s STRING"),
    json("a NUL in a text", '{"s": "x\\u0000y"}\n', [{"s": "x\x00y"}], "s STRING"),
    json("other ends of lines of Unicode", '{"s": "x\u2028y\x85z"}\n', [{"s": "x\u2028y\x85z"}], "s STRING"),
    json("a NUL between objects", b'{"n": 1}\n\x00\n', REFUSED, N),
    json("a NUL behind an object", b'{"n": 1}\x00\n', REFUSED, N),
    json("a byte order mark in the second line", '{"n": 1}\n\ufeff{"n": 2}\n', REFUSED, N),
    json("UTF-16", '{"n": 1}\n'.encode("utf-16"), REFUSED, N),
    json("bytes of half a surrogate pair", b'{"s": "\xed\xa0\x80"}\n', REFUSED, "s STRING"),
    json("a key twice, once with an escape", '{"n": 1, "\\u006e": 2}\n', REFUSED, N),
    json("a key twice in an object within", '{"o": {"x": 1, "x": 2}}\n', REFUSED, "o STRUCT<x: INT>"),
    json("a key twice that no column has", '{"n": 1, "x": 2, "x": 3}\n', REFUSED, N),
    json("a key once more in other letters", '{"n": 1, "N": 2}\n', [{"n": 1}], N),
    json("a key with an escape", '{"\\u006e": 1}\n', [{"n": 1}], N),
    json("an empty key", '{"": 2, "n": 1}\n', [{"n": 1}], N),
    json("a key with a point", '{"a.b": 1, "a": {"b": 2}}\n', [{"a.b": 1}], "`a.b` BIGINT"),
    json("a text for an array", '{"a": "[1]"}\n', REFUSED, "a ARRAY<INT>"),
    json("an object for an array", '{"a": {"0": 1}}\n', REFUSED, "a ARRAY<INT>"),
    json("an array for an object", '{"o": [1]}\n', REFUSED, "o STRUCT<x: INT>"),
    json("an empty array and an empty object", '{"a": [], "o": {}}\n', [{"a": [], "o": {"x": None}}],
         "a ARRAY<INT>, o STRUCT<x: INT>"),
    json("a value longer than a block", '{"s": "' + "x" * 9 * 2**20 + '"}\n{"s": "y"}\n',
         [{"s": "x" * 9 * 2**20}, {"s": "y"}], "s STRING"),
    json("a value that does not fit behind a block", f'{{"s": "{"x" * 4095}", "n": 1}}\n' * 2049 + '{"n": "y"}\n',
         REFUSED, "s STRING, n INT"),
    json("spaces alone", " \n\t\r\n", [], N),
    json("a column that a line lacks", '{"n": 1}\n{}\n', [{"n": 1}, {"n": None}], N),
    json("a column that the schema lacks", '{"n": 1, "m": 2}\n', [{"n": 1}], N),
    json("a name in other letters", '{"N": 1}\n', [{"n": None}], N),
    json("nested", '{"a": [1, null], "o": {"x": "y"}}\n', [{"a": [1, None], "o": {"x": "y"}}]),
    json("nested, with a schema", '{"a": [1, null], "o": {"x": "y"}}\n', [{"a": [1, None], "o": {"x": "y"}}],
         "a ARRAY<INT>, o STRUCT<x: STRING>"),
    json("a nested value that does not fit", '{"a": [1, 2.5]}\n', REFUSED, "a ARRAY<INT>"),
    json("a moment", '{"at": "2013-01-31T10:00:00+02:00"}\n', [{"at": dt.datetime(2013, 1, 31, 8, tzinfo=UTC)}],
         "at TIMESTAMP"),
]  # fmt: skip


def _parquet(table: Mapping[str, Any], **options: Any) -> bytes:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    sink = io.BytesIO()
    pq.write_table(pa.table(dict(table)), sink, **options)
    return sink.getvalue()


def _moments(unit: str, *values: int) -> Any:
    import pyarrow as pa

    return pa.array(values, pa.timestamp(unit, tz="UTC"))


def _narrow() -> dict[str, Any]:
    import pyarrow as pa

    return {"a": pa.array([1], pa.int8()), "b": pa.array([0.5], pa.float32())}


def _of_libraries() -> dict[str, Any]:
    """Make columns of types that one library has, and that others keep as another one in memory."""
    import pyarrow as pa

    return {
        "code": pa.array(["x", None, "x"]).dictionary_encode(),
        "id": pa.array([1, None, 2**32 - 1], pa.uint32()),
        "small": pa.array([200, None, 0], pa.uint8()),
        "text": pa.array(["a", None, ""], pa.large_string()),
        "view": pa.array(["a", None, ""], pa.string_view()),
        "raw": pa.array([b"a", None, b""], pa.large_binary()),
        "tags": pa.array([["a", None], None, []], pa.large_list(pa.large_string())),
        "day": pa.array([dt.date(1, 1, 1), None, dt.date(9999, 12, 31)]),
        "at": pa.array([dt.datetime(2013, 1, 31, 10), None, None], pa.timestamp("ms")),
    }


LIBRARIES = [
    {"code": "x", "id": 1, "small": 200, "text": "a", "view": "a", "raw": b"a", "tags": ["a", None],
     "day": dt.date(1, 1, 1), "at": dt.datetime(2013, 1, 31, 10)},
    dict.fromkeys(_of_libraries()),
    {"code": "x", "id": 2**32 - 1, "small": 0, "text": "", "view": "", "raw": b"", "tags": [],
     "day": dt.date(9999, 12, 31), "at": None},
]  # fmt: skip
UNKNOWN_TO_ONE: Mapping[str, list[Any]] = {
    "uuid": [bytes(16)], "time32[ms]": [1000], "decimal256(50, 2)": [Decimal(1)], "duration[us]": [1], "bool8": [1],
    "halffloat": [1.5], "list of duration[us]": [[1]],
}  # fmt: skip
"""Types that Spark lacks, or takes for numbers."""


def _of_type(kind: str, values: list[Any]) -> bytes:
    import pyarrow as pa

    made = {"uuid": pa.uuid, "bool8": pa.bool8, "decimal256(50, 2)": lambda: pa.decimal256(50, 2)}.get(kind)
    of_list = kind.removeprefix("list of ")
    found = made() if made else pa.type_for_alias(of_list)
    number = pa.int32() if of_list == "date32[day]" else None
    if of_list != kind:
        return _parquet({"a": pa.array(values, number and pa.list_(number)).cast(pa.list_(found))})
    return _parquet({"a": pa.array(values, number).cast(found) if number else pa.array(values, found)})


BEYOND = {
    "date32[day]": (-719_163, 2_932_897),
    "timestamp[ms]": (-62_135_596_800_001, 253_402_300_800_000),
    "timestamp[us]": (-62_135_596_800_000_001, 253_402_300_800_000_000),
}
"""The last value before the year 1, and the first one after the year 9999."""
YEARS = [
    (dt.date.min, dt.date.max),
    (dt.datetime.min, dt.datetime.max.replace(microsecond=999_000)),
    (dt.datetime.min, dt.datetime.max),
]
YEAR_1500, YEAR_9999 = -14831769600, 253402214400
FAR = [{"a": dt.datetime(year, month, day, tzinfo=UTC)} for year, month, day in [(1500, 1, 1), (9999, 12, 31)]]
PARQUET = [
    Case("parquet: plain", {"a.parquet": _parquet({"a": [1, None], "b": ["x", "é"]})},
         [{"a": 1, "b": "x"}, {"a": None, "b": "é"}], format="parquet"),
    Case("parquet: types of polars, pandas and Arrow", {"a.parquet": _parquet(_of_libraries())}, LIBRARIES,
         format="parquet"),
    Case("parquet: the columns of the second file in another order",
         {"a.parquet": _parquet({"a": [1], "b": ["x"]}), "b.parquet": _parquet({"b": ["y"], "a": [2]})},
         [{"a": 1, "b": "x"}, {"a": 2, "b": "y"}], format="parquet"),
    Case("parquet: no rows", {"a.parquet": _parquet({"a": _moments("us")})}, [], format="parquet"),
    Case("parquet: INT96 beyond the years that nanoseconds have",
         {"a.parquet": _parquet({"a": _moments("s", YEAR_1500, YEAR_9999)}, use_deprecated_int96_timestamps=True)},
         FAR, format="parquet"),
    Case("parquet: microseconds beyond these years",
         {"a.parquet": _parquet({"a": _moments("us", YEAR_1500 * 10**6, YEAR_9999 * 10**6)})}, FAR, format="parquet"),
    Case("parquet: nanoseconds", {"a.parquet": _parquet({"a": _moments("ns", 1)}, version="2.6")}, REFUSED,
         format="parquet"),
    *(Case(f"parquet: {kind}", {"a.parquet": _of_type(kind, values)}, REFUSED, format="parquet")
      for kind, values in UNKNOWN_TO_ONE.items()),
    Case("parquet: times of day of a time zone",
         {"a.parquet": _parquet({"a": [dt.time(10)]}, write_time_adjusted_to_utc=True)}, REFUSED, format="parquet"),
    *(Case(f"parquet: {name} of {kind}", {"a.parquet": _of_type(kind, values)}, REFUSED, format="parquet")
      for kind, (lower, upper) in BEYOND.items()
      for name, values in (("before the year 1", [0, lower]), ("after the year 9999", [upper, 0]))),
    *(Case(f"parquet: the first and the last one of the years 1 to 9999 of {kind}",
           {"a.parquet": _of_type(kind, [lower + 1, upper - 1])}, [{"a": low}, {"a": high}], format="parquet")
      for (kind, (lower, upper)), (low, high) in zip(BEYOND.items(), YEARS, strict=True)),
    Case("parquet: a list with a day after the year 9999",
         {"a.parquet": _of_type("list of date32[day]", [[0], [0, 2_932_897]])}, REFUSED, format="parquet"),
    Case("parquet: a day after the year 9999, in a column that is not declared",
         {"a.parquet": _of_type("date32[day]", [2_932_897])}, [{"b": None}], format="parquet", schema="b INT"),
    Case("parquet: a name twice in other letters", {"a.parquet": _parquet({"a": [1], "A": [2]})}, REFUSED,
         format="parquet"),
    Case("parquet: a renamed column in the second file",
         {"a.parquet": _parquet({"a": [1]}), "b.parquet": _parquet({"b": [2]})}, REFUSED, format="parquet"),
    Case("parquet: another type in the second file",
         {"a.parquet": _parquet({"a": [1]}), "b.parquet": _parquet({"a": [2.5]})}, REFUSED, format="parquet"),
    Case("parquet: declared columns, of which a file lacks one and has another",
         {"a.parquet": _parquet({"x": [7], "a": [1]}), "b.parquet": _parquet({"b": ["y"], "a": [2]})},
         [{"a": 1, "b": None}, {"a": 2, "b": "y"}], format="parquet", schema="a BIGINT, b STRING"),
    Case("parquet: a declared type that has the values, too", {"a.parquet": _parquet(_narrow())},
         [{"a": 1, "b": 0.5}], format="parquet", schema="a BIGINT, b DOUBLE"),
    Case("parquet: a declared type that is too small", {"a.parquet": _parquet({"a": [1]})}, REFUSED, format="parquet",
         schema="a INT"),
    Case("parquet: a text that is declared a number", {"a.parquet": _parquet({"a": ["1"]})}, REFUSED, format="parquet",
         schema="a INT"),
    Case("parquet: a declared name in other letters", {"a.parquet": _parquet({"A": [1]})}, REFUSED, format="parquet",
         schema="a BIGINT"),
    Case("parquet: decimals as they are declared", {"a.parquet": _parquet({"a": [Decimal("1.50")]})},
         [{"a": Decimal("1.50")}], format="parquet", schema="a DECIMAL(3,2)"),
    Case("parquet: decimals that are declared shorter", {"a.parquet": _parquet({"a": [Decimal("1.50")]})}, REFUSED,
         format="parquet", schema="a DECIMAL(3,1)"),
    Case("parquet: INT96, declared",
         {"a.parquet": _parquet({"a": _moments("s", YEAR_1500, YEAR_9999)}, use_deprecated_int96_timestamps=True)},
         FAR, format="parquet", schema="a TIMESTAMP"),
    Case("parquet: nanoseconds, declared", {"a.parquet": _parquet({"a": _moments("ns", 1)}, version="2.6")}, REFUSED,
         format="parquet", schema="a TIMESTAMP"),
]  # fmt: skip
CASES = [*TEXTS, *BY_NAME, *VALUES, *BARE, *OTHERS, *JSON, *PARQUET]
