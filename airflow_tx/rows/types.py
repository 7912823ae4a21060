"""The types of columns that a source declares in Spark's DDL, and the values that each of them takes, exactly.

A text, a JSON value or a Python value becomes a value of the type, or is refused: nothing is rounded, cut or wrapped.
Spark takes the same texts by the expressions of `rows.spark`.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any, ClassVar

DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
MOMENT = rf"({DATE})(?:[T ]([0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?))?"
ZONE = r"(Z|[+-][0-9]{2}:[0-9]{2})"
DECIMAL = r"[+-]?([0-9]*)(?:\.([0-9]*?)0*)?"
"""A number in digits: before the point, and behind it without the last zeros."""
INFINITE = frozenset({"inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_WHOLE = re.compile("[+-]?[0-9]+")
_BROKEN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?[dDfF]?", re.ASCII)
_DATE = re.compile(DATE)
BLANKS = "".join(map(chr, range(33)))
"""What Java trims, and Spark in a text that it casts."""


class JsonNumber(float):
    """A number of JSON with a fraction or an exponent, which knows its text.

    :ivar text: its digits in the file or message.
    """

    text: str

    def __new__(cls, text: str) -> JsonNumber:
        """Take the text, as ``parse_float`` of `json.loads` gives it."""
        number = super().__new__(cls, text)
        number.text = text
        return number


@dataclass(frozen=True)
class ColumnType:
    """A type of Spark's DDL.

    :param ddl: as Spark writes it, such as ``DECIMAL(10,2)``.
    """

    ddl: str

    def of_text(self, text: str) -> Any:
        """Read a value from its text, as a csv file has it.

        :raises ValueError: it is no value of the type; why, in words.
        """
        raise NotImplementedError

    def of_json(self, value: Any) -> Any:
        """Read a value that JSON has; its numbers were parsed with `JsonNumber`.

        :raises ValueError: it is no value of the type; why, in words.
        """
        if isinstance(value, str):
            return self.of_text(value)
        raise ValueError(f"a JSON {_json_name(value)} is no {self.ddl}")

    def of_value(self, value: Any) -> Any:
        """Take a value of Python.

        :raises ValueError: it is no value of the type; why, in words.
        """
        raise NotImplementedError

    def _only(self, value: Any, *kinds: type) -> Any:
        if type(value) in kinds:
            return value
        raise ValueError(f"a {type(value).__name__} is no {self.ddl}")


@dataclass(frozen=True)
class IntegerType(ColumnType):
    """TINYINT, SMALLINT, INT, BIGINT.

    :param bits: its size.
    """

    bits: int = 64

    def of_text(self, text: str) -> int:
        trimmed = text.strip(BLANKS)
        if not _WHOLE.fullmatch(trimmed):
            raise ValueError("it is no whole number in digits")
        return self._within(int(trimmed))

    def of_json(self, value: Any) -> int:
        if isinstance(value, JsonNumber):
            raise ValueError("it is no whole number in digits")
        if type(value) is int:
            return self.of_value(value)
        raise ValueError(f"a JSON {_json_name(value)} is no {self.ddl}")

    def of_value(self, value: Any) -> int:
        return self._within(self._only(value, int))

    def _within(self, number: int) -> int:
        if not -(2 ** (self.bits - 1)) <= number < 2 ** (self.bits - 1):
            raise ValueError(f"it does not fit into {self.bits} bits")
        return number


@dataclass(frozen=True)
class FloatType(ColumnType):
    """FLOAT, DOUBLE: the nearest number of the type.

    :param single: whether it has 32 bits.
    """

    single: bool = False

    def of_text(self, text: str) -> float:
        trimmed = text.strip(BLANKS)
        if _BROKEN.fullmatch(trimmed):
            return self._finite(float(trimmed.rstrip("dDfF")))
        word = trimmed.lower()
        if word == "nan" or word in INFINITE:
            return float(word)
        raise ValueError("it is no number")

    def of_json(self, value: Any) -> float:
        if type(value) in (int, float, JsonNumber):
            return self._finite(_float(value))
        raise ValueError(f"a JSON {_json_name(value)} is no {self.ddl}")

    def of_value(self, value: Any) -> float:
        number = _float(self._only(value, int, float))
        if isinstance(value, int) and number != value:
            raise ValueError("it has more digits than the type")
        return number if not math.isfinite(number) else self._finite(number)

    def _finite(self, number: float) -> float:
        if self.single and math.isfinite(number):
            try:
                (number,) = struct.unpack("f", struct.pack("f", number))
            except OverflowError:
                number = math.inf
        if math.isinf(number):
            raise ValueError(f"it is too great for {self.ddl}")
        return number


@dataclass(frozen=True)
class DecimalType(ColumnType):
    """DECIMAL of so many digits, so many of them behind the point."""

    precision: int = 10
    scale: int = 0

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
        # Spark has no -0, which would be another key.
        is_negative = text.startswith("-") and (whole or behind)
        return Decimal(f"-{digits}" if is_negative else digits)

    def of_json(self, value: Any) -> Decimal:
        if isinstance(value, JsonNumber):
            return self.of_text(value.text)
        if type(value) is int:
            return self.of_text(str(value))
        result: Decimal = super().of_json(value)
        return result

    def of_value(self, value: Any) -> Decimal:
        number = Decimal(self._only(value, int, Decimal))
        if not number.is_finite():
            raise ValueError("it is not finite")
        return self.of_text(f"{number:f}")


@dataclass(frozen=True)
class BooleanType(ColumnType):
    """BOOLEAN: true or false, in letters of any case."""

    def of_text(self, text: str) -> bool:
        found = {"true": True, "false": False}.get(text.lower())
        if found is None:
            raise ValueError("it is not true or false")
        return found

    def of_json(self, value: Any) -> bool:
        if type(value) is bool:
            return value
        raise ValueError(f"a JSON {_json_name(value)} is no {self.ddl}")

    def of_value(self, value: Any) -> bool:
        return bool(self._only(value, bool))


@dataclass(frozen=True)
class DateType(ColumnType):
    """DATE: ``2013-01-31``, of the years 1 to 9999."""

    def of_text(self, text: str) -> date:
        if not _DATE.fullmatch(text):
            raise ValueError("it is no date like 2013-01-31")
        return _date(text)

    def of_value(self, value: Any) -> date:
        found: date = self._only(value, date)
        return found


@dataclass(frozen=True)
class TimestampType(ColumnType):
    """TIMESTAMP, a moment: of a text without a zone, in UTC; TIMESTAMP_NTZ, the time of some clock.

    :param zoned: whether it is a moment.
    """

    zoned: bool = True
    forms: ClassVar[str] = "2013-01-31 23:59:59.123456"

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

    def of_value(self, value: Any) -> datetime:
        found: datetime = self._only(value, datetime)
        if (found.tzinfo is not None) != self.zoned:
            raise ValueError(
                f"a datetime {'without' if self.zoned else 'with'} time zone is no {self.ddl}"
            )
        return _in_utc(found) if self.zoned else found


@dataclass(frozen=True)
class StringType(ColumnType):
    """STRING, VARCHAR(n), CHAR(n).

    :param longest: in characters; None: any length.
    """

    longest: int | None = None

    def of_text(self, text: str) -> str:
        if self.longest is not None and len(text) > self.longest:
            raise ValueError(f"it has {len(text)} characters, more than {self.longest}")
        return text

    def of_json(self, value: Any) -> str:
        return self.of_text(value if isinstance(value, str) else text_of_json(value))

    def of_value(self, value: Any) -> str:
        return self.of_text(self._only(value, str))


_INTEGERS = {
    **dict.fromkeys(("TINYINT", "BYTE"), ("TINYINT", 8)),
    **dict.fromkeys(("SMALLINT", "SHORT"), ("SMALLINT", 16)),
    **dict.fromkeys(("INT", "INTEGER"), ("INT", 32)),
    **dict.fromkeys(("BIGINT", "LONG"), ("BIGINT", 64)),
}
_SIMPLE: Mapping[str, ColumnType] = {
    **{name: IntegerType(ddl, bits) for name, (ddl, bits) in _INTEGERS.items()},
    **dict.fromkeys(("FLOAT", "REAL"), FloatType("FLOAT", single=True)),
    "DOUBLE": FloatType("DOUBLE"),
    "BOOLEAN": BooleanType("BOOLEAN"),
    "DATE": DateType("DATE"),
    **dict.fromkeys(("TIMESTAMP", "TIMESTAMP_LTZ"), TimestampType("TIMESTAMP")),
    "TIMESTAMP_NTZ": TimestampType("TIMESTAMP_NTZ", zoned=False),
    "STRING": StringType("STRING"),
}
_SIZED: Mapping[str, Callable[[list[int]], ColumnType | None]] = {
    **dict.fromkeys(("DECIMAL", "NUMERIC", "DEC"), lambda sizes: _decimal(*sizes)),
    **dict.fromkeys(("VARCHAR", "CHARACTER", "CHAR"), lambda sizes: _string(*sizes)),
}
_COLUMN = re.compile(
    r"\s*(?:`((?:[^`]|``)+)`|(\w+))(?:\s*:\s*|\s+)(\w+)\s*(?:\(\s*(\d+)\s*(?:,\s*(\d+)\s*)?\))?"
    r"(?:\s*NOT\s+NULL)?(?:\s*COMMENT\s+(?:'[^']*'|\"[^\"]*\"))?\s*",
    re.IGNORECASE,
)


def columns_of(schema: str) -> dict[str, ColumnType]:
    """Read the columns of Spark's DDL, such as ``day INT, carrier STRING``.

    :raises ValueError: one has a type that rows without Spark cannot have.
    """
    columns: dict[str, ColumnType] = {}
    at = 0
    while at <= len(schema):
        found = _COLUMN.match(schema, at)
        kind = None
        if found is not None and schema[found.end() : found.end() + 1] in ("", ","):
            kind = _type_of(found[3].upper(), [int(size) for size in found.groups()[3:] if size])
        if found is None or kind is None:
            column = re.match(r"[^,(<]*([(<].*?[)>])?", schema[at:])
            raise ValueError(
                f"column {(column or [''])[0].strip()!r} of the schema has no type that rows without Spark can have"
            )
        columns[found[2] or found[1].replace("``", "`")] = kind
        at = found.end() + 1
    return columns


def ddl_of(columns: Mapping[str, str]) -> str:
    """Write columns and their types as Spark's DDL."""
    return ", ".join(f"`{name.replace('`', '``')}` {kind}" for name, kind in columns.items())


def text_of_json(value: Any) -> str:
    """Write a JSON value that stands where a text is wanted, as Spark does."""
    if isinstance(value, JsonNumber):
        return value.text
    if isinstance(value, dict):
        fields = (f"{text_of_json(name)}:{text_of_json(each)}" for name, each in value.items())
        return f"{{{','.join(fields)}}}"
    if isinstance(value, list):
        return f"[{','.join(map(text_of_json, value))}]"
    return json.dumps(value, ensure_ascii=False)


def _type_of(name: str, sizes: list[int]) -> ColumnType | None:
    sized = _SIZED.get(name)
    if sized is not None:
        return sized(sizes)
    return None if sizes else _SIMPLE.get(name)


def _decimal(precision: int = 10, scale: int = 0) -> ColumnType | None:
    if not 0 < precision <= 38 or scale > precision:
        return None
    return DecimalType(f"DECIMAL({precision},{scale})", precision, scale)


def _string(longest: int | None = None) -> ColumnType | None:
    return None if longest is None else StringType("STRING", longest)


def _json_name(value: Any) -> str:
    names = {bool: "boolean", str: "text", dict: "object", list: "array"}
    return names.get(type(value), "number")


def _float(value: float) -> float:
    try:
        return float(value)
    except OverflowError:
        return math.inf


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
