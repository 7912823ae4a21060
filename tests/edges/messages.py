"""Messages that are JSON, each with the values that every reader takes from it, or refused by all of them."""

from __future__ import annotations

import datetime as dt
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, Literal

REFUSED: Literal["refused"] = "refused"
UTC = dt.timezone.utc
_TYPES = (
    "TINYINT", "SMALLINT", "INT", "BIGINT", "FLOAT", "DOUBLE", "DECIMAL(10,2)", "DECIMAL(38,18)", "BOOLEAN", "STRING",
    "VARCHAR(3)", "DATE", "TIMESTAMP", "TIMESTAMP_NTZ", "ARRAY<BIGINT>", "MAP<STRING, DECIMAL(10,2)>",
    "STRUCT<x: TINYINT, y: ARRAY<STRUCT<z: STRING>>>",
)  # fmt: skip
COLUMNS = {kind: f"c{number}" for number, kind in enumerate(_TYPES)}
SCHEMA = ", ".join(f"{name} {kind}" for kind, name in COLUMNS.items())


@dataclass(frozen=True)
class Message:
    """One message.

    :param values: of the columns that have some; `REFUSED`: its batch is refused.
    """

    content: bytes
    values: dict[str, Any] | Literal["refused"] = field(hash=False)

    @property
    def row(self) -> Any:
        return self.values if self.values == REFUSED else {name: self.values.get(name) for name in COLUMNS.values()}

    def __str__(self) -> str:
        return repr(self.content[:60])


def one(kind: str, text: str, value: Any) -> Message:
    """Make a message with one value of a column of a type."""
    name = COLUMNS[kind]
    return Message(f'{{"{name}": {text}}}'.encode(), REFUSED if value == REFUSED else {name: value})


def whole(content: bytes | str, values: Any = REFUSED) -> Message:
    """Make a message; values are of the BIGINT column, which is called N in its content, or of the STRING column S."""
    content = content.encode() if isinstance(content, str) else content
    names = {"N": COLUMNS["BIGINT"], "S": COLUMNS["STRING"]}
    for letter, name in names.items():
        content = content.replace(f'"{letter}"'.encode(), f'"{name}"'.encode())
    return Message(content, values if values == REFUSED else {names[key]: each for key, each in values.items()})


OBJECTS = [
    whole('{"N":1}', {"N": 1}),
    whole(' \t\r\n{"N":1}\n', {"N": 1}),
    whole("{}", {}),
    whole('{"N":null,"more":{"x":[1.5e3,null]}}', {}),
    whole('{"n":1}', {}),
    # Several objects in one message, as a producer that batches lines writes them.
    whole('{"N":1}{"N":2}'), whole('{"N":1}\n{"N":2}'), whole('{"N":1},{"N":2}'), whole('{"N":1} x'),
    # The rest of an array that was cut apart.
    whole('{"N":1}]'), whole('{"N":1}}'), whole('{"N":1},'), whole('[{"N":1}'),
    whole('[{"N":1}]'), whole("7"), whole("null"), whole('"x"'), whole("true"), whole(""), whole(" "),
    whole('{"N":1,"N":2}'), whole('{"more":{"x":1,"x":1}}'), whole('{"N":1,"\\u0063":1,"c":2}'),
    whole('{"N":NaN}'), whole('{"more":NaN}'), whole('{"more":Infinity}'), whole('{"more":-Infinity}'),
    whole("{'N':1}"), whole('{N:1}'), whole('{"N":1,}'), whole('{"N":01}'), whole('{"N":+1}'), whole('{"N":.5}'),
    whole('{"N":1.}'), whole('{"N":0x10}'), whole('{"N":1 /* one */}'), whole('{"N":1} // one'), whole('{"N":True}'),
    whole(b'\xef\xbb\xbf{"N":1}'), whole('{"N":1}\x00'), whole('\x0b{"N":1}'), whole(b'\xc2\xa0{"N":1}'),
    whole(b'{"S":"\xff"}'), whole(b'{"S":"\xed\xa0\x80"}'), whole(b'{"more":"\xff"}'),
    whole('{"N":1}'.encode("utf-16")),
    whole('{"S":"\\ud800"}'), whole('{"S":"\\udc00\\ud800"}'), whole('{"more":"\\ud800"}'), whole('{"\\ud800":1}'),
    whole('{"S":"\\ud83d\\ude00"}', {"S": "😀"}), whole('{"S":"\\\\ud800"}', {"S": "\\ud800"}),
    whole('{"S":"a\nb"}'), whole('{"S":"\\x"}'), whole('{"S":"a\\nb"}', {"S": "a\nb"}),
    whole('{"S":"\\u0000\\u0001\\u0002\\u0003"}', {"S": "\0\1\2\3"}), whole('{"S":""}', {"S": ""}),
    whole('{"S":"e\u0301 é"}', {"S": "e\u0301 é"}), whole('{"S":"s1"}', {"S": "s1"}), whole('{"S":"n1"}', {"S": "n1"}),
    whole('{"S":"say \\"1, 2\\" \\\\"}', {"S": 'say "1, 2" \\'}), whole('{"S":"\\\\\\\\\\""}', {"S": '\\\\"'}),
    whole(b'{"S":"' + b"x" * 140_000 + b'"}', {"S": "x" * 140_000}),
    whole(b'{"S":"' + b"\\n\\\"" * 20_000 + b'"}', {"S": '\n"' * 20_000}),
    whole(b'{"more":' + b"[" * 100 + b"]" * 100 + b"}", {}), whole(b'{"more":' + b"[" * 5000 + b"]" * 5000 + b"}"),
]  # fmt: skip
_F32 = 0.10000000149011612
VALUES = [
    one("TINYINT", "127", 127), one("TINYINT", "-128", -128), one("TINYINT", "128", REFUSED),
    one("TINYINT", "200", REFUSED), one("SMALLINT", "32768", REFUSED), one("SMALLINT", "2.9", REFUSED),
    one("INT", "2147483647", 2**31 - 1), one("INT", "2147483648", REFUSED), one("INT", "-0", 0),
    one("BIGINT", "9223372036854775807", 2**63 - 1), one("BIGINT", "9223372036854775808", REFUSED),
    one("BIGINT", "19.99", REFUSED), one("BIGINT", "1.0", REFUSED), one("BIGINT", "1e3", REFUSED),
    one("BIGINT", "1E400", REFUSED), one("BIGINT", '"7"', REFUSED), one("BIGINT", "true", REFUSED),
    one("BIGINT", '""', REFUSED), one("BIGINT", "{}", REFUSED), one("BIGINT", "[]", REFUSED),
    one("FLOAT", "0.1", _F32), one("FLOAT", "1e300", REFUSED), one("FLOAT", "16777217", 16777216.0),
    one("FLOAT", "3.4e38", 3.3999999521443642e38), one("FLOAT", "true", REFUSED),
    one("DOUBLE", "0.1", 0.1), one("DOUBLE", "5", 5.0), one("DOUBLE", "1e400", REFUSED), one("DOUBLE", "-0.0", -0.0),
    one("DOUBLE", "9007199254740993", 9007199254740992.0), one("DOUBLE", "1e-400", 0.0), one("DOUBLE", "true", REFUSED),
    one("DOUBLE", '"1.5"', REFUSED), one("DOUBLE", '"NaN"', REFUSED), one("DOUBLE", '"Infinity"', REFUSED),
    one("DOUBLE", "1" + "0" * 400, REFUSED),
    one("DECIMAL(10,2)", "19.99", Decimal("19.99")), one("DECIMAL(10,2)", "5", Decimal("5.00")),
    one("DECIMAL(10,2)", "1.2300", Decimal("1.23")), one("DECIMAL(10,2)", "1.239", REFUSED),
    one("DECIMAL(10,2)", '"1.20"', Decimal("1.20")), one("DECIMAL(10,2)", '"1.239"', REFUSED),
    one("DECIMAL(10,2)", "123456789", REFUSED), one("DECIMAL(10,2)", "1e2", REFUSED),
    one("DECIMAL(10,2)", '"much"', REFUSED), one("DECIMAL(10,2)", "true", REFUSED),
    one("DECIMAL(10,2)", '" 1"', REFUSED),
    one("DECIMAL(10,2)", "1.0000000000000000000000000000000000000000001", REFUSED),
    one("DECIMAL(38,18)", "1234567890123456789.123456789012345678", Decimal("1234567890123456789.123456789012345678")),
    one("BOOLEAN", "true", True), one("BOOLEAN", "false", False), one("BOOLEAN", '"true"', REFUSED),
    one("BOOLEAN", "1", REFUSED), one("BOOLEAN", "0.0", REFUSED), one("BOOLEAN", '""', REFUSED),
    one("STRING", "5", "5"), one("STRING", "1.50", "1.50"), one("STRING", "1e3", "1e3"), one("STRING", "true", "true"),
    one("STRING", '{"x": [1, 2.50, "a b", {"y": null}]}', '{"x":[1,2.50,"a b",{"y":null}]}'),
    one("STRING", '["n1", "s1", "\\"", "\\\\", "é"]', '["n1","s1","\\"","\\\\","é"]'),
    one("STRING", "0.1234567890123456789", "0.1234567890123456789"),
    one("VARCHAR(3)", '"abc"', "abc"), one("VARCHAR(3)", '"abcd"', REFUSED), one("VARCHAR(3)", '"😀😀😀"', "😀😀😀"),
    one("DATE", '"2013-01-31"', dt.date(2013, 1, 31)), one("DATE", '"2013-02-30"', REFUSED),
    one("DATE", '"2013-1-31"', REFUSED), one("DATE", '"31.01.2013"', REFUSED), one("DATE", "20130131", REFUSED),
    one("DATE", '"1500-01-01"', dt.date(1500, 1, 1)), one("DATE", '"10000-01-01"', REFUSED),
    one("DATE", '"soon"', REFUSED),
    one("DATE", '"2013-01-31T00:00:00"', REFUSED),
    one("TIMESTAMP", '"2013-01-31T23:59:59Z"', dt.datetime(2013, 1, 31, 23, 59, 59, tzinfo=UTC)),
    one("TIMESTAMP", '"2013-01-31 23:59:59.123456+02:00"', dt.datetime(2013, 1, 31, 21, 59, 59, 123456, UTC)),
    one("TIMESTAMP", '"2013-01-31T23:59:59"', dt.datetime(2013, 1, 31, 23, 59, 59, tzinfo=UTC)),
    one("TIMESTAMP", '"2013-01-31T23:59:59.1234567Z"', REFUSED), one("TIMESTAMP", "1359676799", REFUSED),
    one("TIMESTAMP", '"2013-02-30T00:00:00Z"', REFUSED), one("TIMESTAMP", '"01/31/2013 23:59"', REFUSED),
    one("TIMESTAMP", '"0001-01-01T00:00:00+01:00"', REFUSED),
    one("TIMESTAMP_NTZ", '"2013-01-31T23:59:59"', dt.datetime(2013, 1, 31, 23, 59, 59)),
    one("TIMESTAMP_NTZ", '"2013-01-31T23:59:59Z"', REFUSED),
    one("ARRAY<BIGINT>", "[1, null, 3]", [1, None, 3]), one("ARRAY<BIGINT>", "[]", []),
    one("ARRAY<BIGINT>", "[1, 1.5]", REFUSED), one("ARRAY<BIGINT>", "[true]", REFUSED),
    one("ARRAY<BIGINT>", "{}", REFUSED),
    one("ARRAY<BIGINT>", '"ab"', REFUSED), one("ARRAY<BIGINT>", "5", REFUSED),
    one("MAP<STRING, DECIMAL(10,2)>", '{"a": 1.5, "n1": "2"}', {"a": Decimal("1.50"), "n1": Decimal("2.00")}),
    one("MAP<STRING, DECIMAL(10,2)>", '{"a": 1.239}', REFUSED), one("MAP<STRING, DECIMAL(10,2)>", "[]", REFUSED),
    one(_TYPES[-1], '{"x": 1, "y": [{"z": "s"}, null], "more": 2}', {"x": 1, "y": [{"z": "s"}, None]}),
    one(_TYPES[-1], '{"x": 200}', REFUSED), one(_TYPES[-1], "[]", REFUSED), one(_TYPES[-1], '{"y": {}}', REFUSED),
    one(_TYPES[-1], "{}", {"x": None, "y": None}),
]  # fmt: skip
MESSAGES = [*OBJECTS, *VALUES]
TAKEN = [each for each in MESSAGES if each.values != REFUSED]
LEFT = [each for each in MESSAGES if each.values == REFUSED]
