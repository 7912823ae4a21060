"""The types of columns in Spark's DDL, and the values that each type accepts exactly."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from itertools import repeat
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow_tx.base.lazy_names import LazyModule

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    import pyarrow.compute as pc  # type: ignore[import-untyped]
else:
    pa = LazyModule("pyarrow")
    pc = LazyModule("pyarrow.compute")


# --- types --------------------------------------------------------------------------------------------------------
# The types of columns that a source declares in Spark's DDL, and the values that each type accepts
# exactly. A text, a JSON value or a Python value is converted to a value of the type, or is
# refused. Values are never rounded, truncated or wrapped.


DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
MOMENT = rf"({DATE})(?:[T ]([0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?))?"
ZONE = r"(Z|[+-][0-9]{2}:[0-9]{2})"
DECIMAL = r"[+-]?([0-9]*)(?:\.([0-9]*?)0*)?"
"""A number as digits: the part before the decimal point, and the part after it without trailing zeros."""
INFINITE = frozenset({"inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_WHOLE = re.compile("([+-]?)0*([0-9]+)")
_LONGEST = len(str(2**63))
_BROKEN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
_DATE = re.compile(DATE)
BLANKS = " \t\r\n"
"""The characters that may surround a number, or fill a blank line."""


class JsonNumber(float):
    """A JSON number with a fraction or an exponent, and its original text.

    :ivar text: text of the number in the file or message.
    """

    text: str

    def __new__(cls, text: str) -> JsonNumber:
        """Create the number from its text. `json.loads` calls this as its ``parse_float``."""
        number = super().__new__(cls, text)
        number.text = text
        return number


@dataclass(frozen=True)
class ColumnType:
    """A type of Spark's DDL.

    :param ddl: name of the type in Spark, such as ``DECIMAL(10,2)``.
    """

    ddl: str

    def of_text(self, text: str) -> Any:
        """Read a value from its text, such as a field of a CSV file.

        :raises ValueError: the text is not a value of the type. The message gives the reason.
        """
        raise NotImplementedError

    def of_json(self, value: Any) -> Any:
        """Read a value from JSON that was parsed with `JsonNumber`.

        :raises ValueError: the value does not fit the type. The message gives the reason.
        """
        if isinstance(value, str):
            return self.of_text(value)
        raise ValueError(f"a JSON {_json_name(value)} is no {self.ddl}")

    def arrow_type(self) -> pa.DataType:
        """Return the Arrow type of a column of this type."""
        raise NotImplementedError

    @staticmethod
    def named(name: str) -> PlainType:
        """Find a type by its name in Spark's DDL or in Delta.

        :raises ValueError: the type is nested, or this package supports it only with Spark.
        """
        (found,) = columns_of(f"c {name}").values()
        return found

    @staticmethod
    def of_value(value: Any) -> PlainType:
        """Find a type that holds a Python value exactly."""
        if isinstance(value, datetime):
            return COLUMN_TYPES["TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"]
        if isinstance(value, Decimal):
            return DecimalType.of(38, max(0, -int(value.as_tuple().exponent)))
        kinds = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", date: "DATE"}
        return COLUMN_TYPES[kinds.get(type(value), "STRING")]

    @staticmethod
    def of_arrow(kind: pa.DataType) -> PlainType | None:
        """Find the type of an Arrow column.

        Return None if the type is nested, or no type holds its values unchanged.
        """
        if pa.types.is_decimal128(kind):
            return DecimalType.of(kind.precision, kind.scale)
        if pa.types.is_timestamp(kind) and kind.unit == "us":
            return COLUMN_TYPES["TIMESTAMP" if kind.tz else "TIMESTAMP_NTZ"]
        return _OF_ARROW.get(str(kind).removeprefix("large_").removesuffix("_view"))


@dataclass(frozen=True)
class PlainType(ColumnType):
    """A type that is not nested. It is an entry in `COLUMN_TYPES`, and has a name in each library.

    :param arrow: name of the type in Arrow, such as ``int64``.
    :param delta: name of the type in Delta and in Spark's JSON schemas, such as ``long``.
    :param hashed: text that `column_marks` hashes before a value, or "". Types with the same text produce the same
        hashes for equal values.
    :param takes: other Arrow types of Parquet columns whose values all fit this type
    """

    arrow: str
    delta: str
    hashed: str
    takes: tuple[str, ...] = ()

    def arrow_type(self) -> pa.DataType:
        return pa.type_for_alias(self.arrow)


@dataclass(frozen=True)
class IntegerType(PlainType):
    """The types TINYINT, SMALLINT, INT and BIGINT.

    :param bits: size in bits.
    """

    bits: int = 64

    def of_text(self, text: str) -> int:
        found = _WHOLE.fullmatch(text.strip(BLANKS))
        if found is None:
            raise ValueError("it is no whole number in digits")
        digits = found[2][: _LONGEST + 1]  # Python refuses to parse more than 4,300 digits
        return self._within(int(found[1] + digits))

    def of_json(self, value: Any) -> int:
        if isinstance(value, JsonNumber):
            raise ValueError("it is no whole number in digits")
        if type(value) is int:
            return self._within(value)
        raise ValueError(f"a JSON {_json_name(value)} is no {self.ddl}")

    def _within(self, number: int) -> int:
        if not -(2 ** (self.bits - 1)) <= number < 2 ** (self.bits - 1):
            raise ValueError(f"it does not fit into {self.bits} bits")
        return number


@dataclass(frozen=True)
class FloatType(PlainType):
    """The types FLOAT and DOUBLE. A value becomes the nearest number of the type.

    :param single: whether the type has 32 bits.
    """

    single: bool = False

    def of_text(self, text: str) -> float:
        trimmed = text.strip(BLANKS)
        if _BROKEN.fullmatch(trimmed):
            return self._nearest(trimmed)
        word = trimmed.lower()
        if word == "nan" or word in INFINITE:
            return float(word)
        raise ValueError("it is no number")

    def of_json(self, value: Any) -> float:
        if type(value) in (int, JsonNumber):
            return self._nearest(value.text if isinstance(value, JsonNumber) else value)
        raise ValueError(f"a JSON {_json_name(value)} is no {self.ddl}")

    def _nearest(self, exact: str | int) -> float:
        number = _float(exact)
        if self.single and number and math.isfinite(number):
            number = _single(number, Decimal(exact))
        if math.isinf(number):
            raise ValueError(f"it is too great for {self.ddl}")
        return number


@dataclass(frozen=True)
class DecimalType(PlainType):
    """The type DECIMAL with `precision` digits, `scale` of them after the decimal point."""

    precision: int = 10
    scale: int = 0

    @classmethod
    def of(cls, precision: int, scale: int) -> DecimalType:
        """Create the type from its precision and its scale."""
        return cls(
            f"DECIMAL({precision},{scale})",
            f"decimal128({precision}, {scale})",
            f"decimal({precision},{scale})",
            f"decimal {scale}",
            precision=precision,
            scale=scale,
        )

    def arrow_type(self) -> pa.DataType:
        return pa.decimal128(self.precision, self.scale)

    def of_text(self, text: str) -> Decimal:
        found = re.fullmatch(DECIMAL, text)
        if found is None or not re.search("[0-9]", text):
            raise ValueError("it is no number in digits")
        whole = found[1].lstrip("0")
        behind = found[2] or ""
        if len(behind) > self.scale:
            raise ValueError(
                f"it has {len(behind)} digits behind the point, more than {self.scale}"
            )
        if len(whole) > self.precision - self.scale:
            raise ValueError(
                f"it has more than {self.precision - self.scale} digits before the point"
            )
        digits = f"{whole or '0'}.{behind.ljust(self.scale, '0')}"
        # Spark has no -0. The value would become a different key.
        is_negative = text.startswith("-") and (whole or behind)
        return Decimal(f"-{digits}" if is_negative else digits)

    def of_json(self, value: Any) -> Decimal:
        if isinstance(value, JsonNumber):
            return self.of_text(value.text)
        if type(value) is int:
            return self.of_text(str(value))
        result: Decimal = super().of_json(value)
        return result


@dataclass(frozen=True)
class BooleanType(PlainType):
    """The type BOOLEAN. Its texts are true and false, in any case."""

    def of_text(self, text: str) -> bool:
        found = {"true": True, "false": False}.get(text.lower())
        if found is None:
            raise ValueError("it is not true or false")
        return found

    def of_json(self, value: Any) -> bool:
        if type(value) is bool:
            return value
        raise ValueError(f"a JSON {_json_name(value)} is no {self.ddl}")


@dataclass(frozen=True)
class DateType(PlainType):
    """The type DATE, such as ``2013-01-31``, in the years 1 to 9999."""

    def of_text(self, text: str) -> date:
        if not _DATE.fullmatch(text):
            raise ValueError("it is no date like 2013-01-31")
        return _date(text)


@dataclass(frozen=True)
class TimestampType(PlainType):
    """The types TIMESTAMP and TIMESTAMP_NTZ. TIMESTAMP is a moment, in UTC if the text has no time zone.

    TIMESTAMP_NTZ is a time without a time zone.

    :param zoned: True for TIMESTAMP, False for TIMESTAMP_NTZ.
    """

    zoned: bool = True
    forms: ClassVar[str] = "2013-01-31 23:59:59.123456"

    def arrow_type(self) -> pa.DataType:
        return pa.timestamp("us", "UTC" if self.zoned else None)

    def of_text(self, text: str) -> datetime:
        found = re.fullmatch(rf"{MOMENT}{ZONE}?", text)
        if found is None or (found[3] and not found[2]) or (found[3] and not self.zoned):
            raise ValueError(f"it is no time like {self.forms}{'+00:00' if self.zoned else ''}")
        clock, _, fraction = (found[2] or "00:00").partition(".")
        hours, minutes, *seconds = map(int, clock.split(":"))
        read = datetime.combine(_date(found[1]), datetime.min.time()).replace(
            hour=hours, minute=minutes, second=sum(seconds), microsecond=int(fraction.ljust(6, "0"))
        )
        if not self.zoned:
            return read
        return _in_utc(read.replace(tzinfo=_zone(found[3])))


@dataclass(frozen=True)
class StringType(PlainType):
    """The types STRING, VARCHAR(n) and CHAR(n).

    :param longest: maximum number of characters, or None for any length.
    :param only_texts: whether the type refuses JSON values other than texts, for columns without a declared type
    """

    longest: int | None = None
    only_texts: bool = False

    def of_text(self, text: str) -> str:
        if self.longest is not None and len(text) > self.longest:
            raise ValueError(f"it has {len(text)} characters, more than {self.longest}")
        return text

    def of_json(self, value: Any) -> str:
        if self.only_texts and not isinstance(value, str):
            raise ValueError(f"a {type(value).__name__} is no {self.ddl}")
        return self.of_text(value if isinstance(value, str) else text_of_json(value))


_STRING = StringType("STRING", "string", "string", "bytes", ("large_string", "string_view"))
COLUMN_TYPES: Mapping[str, PlainType] = {
    each.ddl: each
    for each in (
        IntegerType("TINYINT", "int8", "byte", "", bits=8),
        IntegerType("SMALLINT", "int16", "short", "", ("int8",), bits=16),
        IntegerType("INT", "int32", "integer", "", ("int8", "int16"), bits=32),
        IntegerType("BIGINT", "int64", "long", "", ("int8", "int16", "int32")),
        FloatType("FLOAT", "float", "float", "float", single=True),
        FloatType("DOUBLE", "double", "double", "double", ("float",)),
        DecimalType.of(10, 0),
        BooleanType("BOOLEAN", "bool", "boolean", "boolean"),
        DateType("DATE", "date32[day]", "date", "date"),
        TimestampType(
            "TIMESTAMP",
            "timestamp[us, tz=UTC]",
            "timestamp",
            "timestamp",
            ("timestamp[ms, tz=UTC]",),
        ),
        TimestampType(
            "TIMESTAMP_NTZ",
            "timestamp[us]",
            "timestamp_ntz",
            "timestamp",
            ("timestamp[ms]",),
            zoned=False,
        ),
        _STRING,
        PlainType("BINARY", "binary", "binary", "bytes"),
    )
}
"""The column types, by DDL name. DECIMAL has one example size.

A schema cannot declare BINARY, since text cannot represent it.
"""
_OF_ARROW = {each.arrow: each for each in COLUMN_TYPES.values()}
_SIMPLE: Mapping[str, PlainType] = {
    word: each
    for each in COLUMN_TYPES.values()
    if each.ddl != "BINARY"
    for word in (each.ddl, each.delta.upper())
}
_OTHER_WORDS = {"REAL": "FLOAT", "TIMESTAMP_LTZ": "TIMESTAMP"}
_SIZED: Mapping[str, Callable[[list[int]], PlainType | None]] = {
    **dict.fromkeys(("DECIMAL", "NUMERIC", "DEC"), lambda sizes: _decimal(*sizes)),
    **dict.fromkeys(("VARCHAR", "CHARACTER", "CHAR"), lambda sizes: _string(*sizes)),
}
_COLUMN = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(\w+))(?:\s*:\s*|\s+)(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?"
    r"(?:\s*NOT\s+NULL)?(?:\s*COMMENT\s+(?:'[^']*'|\"[^\"]*\"))?\s*",
    re.IGNORECASE,
)


def columns_of(schema: str) -> dict[str, PlainType]:
    """Parse the columns of Spark's DDL, such as ``day INT, carrier STRING``.

    :raises ValueError: a column has a type that this package supports only with Spark.
    """
    columns: list[tuple[str, PlainType]] = []
    at = 0
    while at <= len(schema):
        found = _COLUMN.match(schema, at)
        kind = None
        if found is not None and schema[found.end() : found.end() + 1] in ("", ","):
            kind = _type_of(found[3].upper(), [int(size) for size in found.groups()[3:] if size])
        if found is None or kind is None:
            column = re.match(r"[^,(<]*([(<].*?[)>])?", schema[at:])
            raise UnfitText(
                f"column {(column or [''])[0].strip()!r} of the schema has no type that rows without Spark can have"
            )
        columns.append((found[2] or found[1].replace("``", "`"), kind))
        at = found.end() + 1
    check_names(name for name, _ in columns)
    return dict(columns)


def check_names(names: Iterable[str]) -> None:
    """Raise ValueError if two column names differ only in case, which Spark and SQL ignore."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.get(name.lower())) is not None:
            raise UnfitText(f"columns {other} and {name} are the same column in Spark and in SQL")
        known[name.lower()] = name


_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)


def says_not_null(schema: str | None) -> bool:
    """Return whether a schema declares NOT NULL. No reader checks this constraint."""
    return _NOT_NULL.search(_QUOTED.sub("", schema or "")) is not None


def column_name(name: str) -> str:
    """Quote the name of a column for Spark SQL."""
    return f"`{name.replace('`', '``')}`"


def ddl_of(columns: Mapping[str, str]) -> str:
    """Format columns and their types as Spark's DDL."""
    return ", ".join(f"{column_name(name)} {kind}" for name, kind in columns.items())


def text_of_json(value: Any) -> str:
    """Format a JSON value as text, as Spark does for a text column.

    :raises ValueError: the value is nested too deeply to format it.
    """
    try:
        return _written(value)
    except RecursionError:
        raise ValueError(_TOO_DEEP) from None


def _written(value: Any) -> str:
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, dict):
        fields = (f"{_written(name)}:{_written(each)}" for name, each in value.items())
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(_written, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _type_of(name: str, sizes: list[int]) -> PlainType | None:
    sized = _SIZED.get(name)
    if sized is not None:
        return sized(sizes)
    return None if sizes else _SIMPLE.get(_OTHER_WORDS.get(name, name))


def _decimal(precision: int = 10, scale: int = 0) -> PlainType | None:
    if not 0 < precision <= 38 or scale > precision:
        return None
    return DecimalType.of(precision, scale)


def _string(longest: int | None = None) -> PlainType | None:
    return None if longest is None else replace(_STRING, longest=longest)


def _json_name(value: Any) -> str:
    names = {bool: "boolean", str: "text", dict: "object", list: "array"}
    return names.get(type(value), "number")


def _float(exact: str | int) -> float:
    try:
        return float(exact)
    except OverflowError:
        return math.inf


def _single(double: float, exact: Decimal) -> float:
    """Round a number to a 32-bit float. The result is infinite if the number is too large.

    :param double: nearest 64-bit float.
    """
    is_even = struct.pack(">d", double)[-1] % 2 == 0
    if is_even and double != exact:
        # A 64-bit float that is exactly halfway between two 32-bit floats, with an even last bit,
        # does not show which is nearer.
        double = math.nextafter(double, math.inf if exact > double else -math.inf)
    try:
        (found,) = struct.unpack("f", struct.pack("f", double))
    except OverflowError:
        return math.inf
    return float(found)


def _date(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError:
        raise ValueError("there is no such day") from None


def _zone(text: str | None) -> timezone:
    if text in (None, "Z"):
        return timezone.utc
    assert text is not None
    hours, minutes = map(int, text[1:].split(":"))
    if (hours, minutes) > (18, 0) or minutes > 59:
        raise ValueError("it has no such time zone")
    return timezone((1 if text[0] == "+" else -1) * timedelta(hours=hours, minutes=minutes))


def _in_utc(value: datetime) -> datetime:
    try:
        return value.astimezone(timezone.utc)
    except OverflowError:
        raise ValueError("it is beyond the years 1 to 9999 in UTC") from None


# --- json objects -------------------------------------------------------------------------------------------------
# Strict JSON reading. A text must be one object without duplicate keys, and only JSON values are
# accepted.


_TOO_DEEP = "it is nested too deeply"


class UnfitText(ValueError):
    """Signals that a text is not a value of its type, or contains a value that does not fit.

    :ivar reason: reason without the value and its position, so that it is the same for all texts with this problem.
    :ivar place: place of the value that the message quotes, or "" if it quotes no value.
    """

    def __init__(self, message: str, reason: str = "", place: str = "") -> None:
        super().__init__(message)
        self.reason = reason or message
        self.place = place

    @staticmethod
    def reason_of(error: ValueError) -> str:
        """Return why a text does not fit its type. For any other error, return its message."""
        return error.reason if isinstance(error, UnfitText) else str(error)

    @staticmethod
    def place_of(error: ValueError, *, within: str) -> str:
        """Return the place of the value that an error quotes, or "" if it quotes no value.

        For any other error, return `within`, since the error may quote a value.
        """
        if not isinstance(error, UnfitText):
            return within
        return error.place and f"{within}: {error.place}"


def parsed_object(text: str, *, exact: bool) -> dict[str, Any]:
    """Parse a text that must be one JSON object.

    :param exact: whether numbers keep their text, as a `JsonNumber`.
    :raises ValueError: the text is not a JSON object. The message gives the reason.
    """
    try:
        found = json.loads(
            text,
            parse_float=JsonNumber if exact else None,
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise UnfitText(_TOO_DEEP) from None
    except json.JSONDecodeError as error:
        raise UnfitText(f"it is no JSON ({error})", reason="it is no JSON") from None
    if not isinstance(found, dict):
        raise UnfitText(f"it is a JSON {type(found).__name__}, not an object")
    if "\\u" in text:
        _check_characters(found)
    return found


def _constant(word: str) -> NoReturn:
    raise UnfitText(f"it is no JSON ({word} is no number)", reason="it is no JSON")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        message = f"an object contains the key {twice!r} twice"
        raise UnfitText(message, place="a key")
    return found


def _check_characters(found: dict[str, Any]) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise UnfitText("it has half a surrogate pair, which is no character") from None


# --- nested -------------------------------------------------------------------------------------------------------


_FIELD = re.compile(r"\s*(?:`((?:[^`]|``)+)`|(\w+))(?:\s*:\s*|\s+)(.+)", re.DOTALL)
_NESTED = re.compile(
    r"\s*(ARRAY|MAP|STRUCT)\s*<(.*)>(?:\s+NOT\s+NULL)?(?:\s+COMMENT\s+(?:'[^']*'|\"[^\"]*\"))?\s*",
    re.IGNORECASE | re.DOTALL,
)
_TOKEN = re.compile(r"`(?:[^`]|``)*`|'[^']*'|\"[^\"]*\"|.", re.DOTALL)
_SHOWN = 80


@dataclass(frozen=True)
class ArrayType(ColumnType):
    """The type ARRAY: values of one type.

    :param element: type of the values.
    """

    element: ColumnType

    def arrow_type(self) -> pa.DataType:
        return pa.list_(self.element.arrow_type())

    def of_json(self, value: Any) -> list[Any]:
        if type(value) is not list:
            raise ValueError(f"it is no {self.ddl}")
        return [_value(each, self.element) for each in value]


@dataclass(frozen=True)
class MapType(ColumnType):
    """The type MAP, from texts to values of one type.

    :param element: type of the values.
    """

    element: ColumnType

    def arrow_type(self) -> pa.DataType:
        return pa.map_(pa.string(), self.element.arrow_type())

    def of_json(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"it is no {self.ddl}")
        return {name: _value(each, self.element) for name, each in value.items()}


@dataclass(frozen=True)
class StructType(ColumnType):
    """The type STRUCT: named values.

    :param fields: name and type of each value.
    """

    fields: tuple[tuple[str, ColumnType], ...]

    def arrow_type(self) -> pa.DataType:
        return pa.struct(list(arrow_types_of(dict(self.fields)).items()))

    def of_json(self, value: Any) -> dict[str, Any]:
        if type(value) is not dict:
            raise ValueError(f"it is no {self.ddl}")
        return {name: _value(value.get(name), kind) for name, kind in self.fields}


def nested_columns_of(schema: str) -> dict[str, ColumnType]:
    """Parse the columns of Spark's DDL, such as ``user STRING, tags ARRAY<STRING>``.

    :raises ValueError: a column has a type that JSON cannot represent.
    """
    return dict(_fields(_parts(schema)))


def found_columns_of(schema: str) -> dict[str, ColumnType]:
    """Parse columns that Spark has inferred from JSON. For mixed texts and numbers, Spark infers STRING.

    :raises ValueError: a column has a type that JSON cannot represent.
    """
    return {name: _plain(kind) for name, kind in nested_columns_of(schema).items()}


def _plain(kind: ColumnType) -> ColumnType:
    if isinstance(kind, (ArrayType, MapType)):
        return replace(kind, element=_plain(kind.element))
    if isinstance(kind, StructType):
        return replace(kind, fields=tuple((name, _plain(each)) for name, each in kind.fields))
    return replace(_STRING, only_texts=True) if isinstance(kind, StringType) else kind


def object_values(found: Mapping[str, Any], columns: Mapping[str, ColumnType]) -> dict[str, Any]:
    """Extract the values of the columns from a parsed JSON object. A missing column is None.

    :raises ValueError: a value does not fit its column. The message has the column, the value and the reason.
    """
    values = {}
    for name, kind in columns.items():
        try:
            values[name] = _value(found.get(name), kind)
        except ValueError as error:
            shown = text_of_json(found[name])[:_SHOWN]
            place = f"column {name} {kind.ddl}"
            message = f"{place} = {shown}: {error}"
            raise UnfitText(message, reason=f"{place}: {error}", place=place) from None
    return values


def _value(value: Any, kind: ColumnType) -> Any:
    return None if value is None else kind.of_json(value)


def _fields(parts: Sequence[str]) -> list[tuple[str, ColumnType]]:
    found = list(map(_field, parts))
    check_names(name for name, _ in found)
    return found


def _field(text: str) -> tuple[str, ColumnType]:
    found = _FIELD.fullmatch(text)
    kind = found and _type(found[3])
    if found is None or kind is None:
        raise UnfitText(
            f"column {text.strip()!r} of the schema has no type that rows without Spark can have"
        )
    return found[2] or found[1].replace("``", "`"), kind


def _type(ddl: str) -> ColumnType | None:
    found = _NESTED.fullmatch(ddl)
    if found is None:
        try:
            return columns_of(f"c {ddl}")["c"]
        except ValueError:
            return None
    parts = _parts(found[2])
    name = found[1].upper()
    if name == "STRUCT":
        fields = dict(_fields(parts))
        named = ddl_of({name: kind.ddl for name, kind in fields.items()})
        return StructType(f"STRUCT<{named}>", tuple(fields.items()))
    kinds = list(map(_type, parts))
    element = kinds[-1]
    if name == "ARRAY" and len(kinds) == 1 and element is not None:
        return ArrayType(f"ARRAY<{element.ddl}>", element)
    if len(kinds) == 2 and isinstance(kinds[0], StringType) and element is not None:
        return MapType(f"MAP<STRING, {element.ddl}>", element)
    return None


def _parts(text: str) -> list[str]:
    """Split a text at commas outside brackets."""
    return list(_divided(text))


def _divided(text: str) -> Iterator[str]:
    depth = begins = 0
    for token in _TOKEN.finditer(text):
        depth += (token[0] in "<(") - (token[0] in ">)")
        if token[0] == "," and depth == 0:
            yield text[begins : token.start()]
            begins = token.end()
    yield text[begins:]


# --- arrow --------------------------------------------------------------------------------------------------------


def arrow_types_of(columns: Mapping[str, ColumnType]) -> dict[str, pa.DataType]:
    """Return the Arrow types of columns."""
    return {name: kind.arrow_type() for name, kind in columns.items()}


def batch_rows(batch: pa.RecordBatch) -> Iterator[dict[str, Any]]:
    """Yield the rows of a record batch as dicts of `ColumnType` values. Times with a time zone are in UTC."""
    # Creating the dict takes most of a row's time. This is the fastest way to create it.
    named = map(zip, repeat(batch.schema.names), zip(*map(_values, batch.columns), strict=True))
    return map(dict, named)


def _values(column: pa.Array) -> list[Any]:
    types = pa.types
    kind = column.type
    if types.is_nested(kind):
        return _nested(column)
    if types.is_null(kind):
        return [None] * len(column)
    if types.is_integer(kind) or types.is_floating(kind) or types.is_boolean(kind):
        return _numbers(column)
    # Texts, times and decimals repeat often, and a cache lookup is faster than creating the value.
    coded = column.dictionary_encode()
    known = coded.dictionary
    if types.is_timestamp(kind) and kind.tz is not None:
        naive = known.cast(pa.timestamp("us")).to_pylist()
        values = [each.replace(tzinfo=timezone.utc) for each in naive]
    else:
        values = known.to_pylist()
    values.append(None)
    codes = coded.indices.fill_null(len(values) - 1) if column.null_count else coded.indices
    return list(map(values.__getitem__, codes.to_numpy().tolist()))


def _nested(column: pa.Array) -> list[Any]:
    is_there = column.is_valid().to_pylist()
    if pa.types.is_struct(column.type):
        fields = [(each.name, _values(column.field(each.name))) for each in column.type]
        return [
            {name: values[at] for name, values in fields} if there else None
            for at, there in enumerate(is_there)
        ]
    ends = column.offsets.to_pylist()
    is_map = pa.types.is_map(column.type)
    values = (
        list(zip(_values(column.keys), _values(column.items), strict=True))
        if is_map
        else _values(column.values)
    )
    make: Callable[[list[Any]], Any] = dict if is_map else list
    return [
        make(values[first:last]) if there else None
        for first, last, there in zip(ends, ends[1:], is_there, strict=False)
    ]


def _numbers(column: pa.Array) -> list[Any]:
    if not column.null_count:
        plain: list[Any] = column.to_numpy(zero_copy_only=False).tolist()
        return plain
    values = _numbers(column.fill_null(pa.scalar(0).cast(column.type)))
    for at in pc.indices_nonzero(column.is_null()).to_pylist():
        values[at] = None
    return values
