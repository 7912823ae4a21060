"""The conversions of `rows.types` as expressions of Spark. A text that is refused fails the query."""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import TYPE_CHECKING, Any, ClassVar, NoReturn

from airflow_tx.base.errors import ConfigError
from airflow_tx.base.lazy_names import LazyModule

if TYPE_CHECKING:
    from pyspark.sql import Column, DataFrame, DataFrameReader, SparkSession, functions as F
else:
    F = LazyModule("pyspark.sql.functions")


# --- types --------------------------------------------------------------------------------------------------------
# The types of columns that a source declares in Spark's DDL, and the values that each of them takes, exactly.
#
# A text, a JSON value or a Python value becomes a value of the type, or is refused: nothing is rounded, cut or
# wrapped. Spark takes the same texts by the expressions of `rows.spark`.


DATE = r"[0-9]{4}-[0-9]{2}-[0-9]{2}"
MOMENT = rf"({DATE})(?:[T ]([0-9]{{2}}:[0-9]{{2}}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?))?"
ZONE = r"(Z|[+-][0-9]{2}:[0-9]{2})"
DECIMAL = r"[+-]?([0-9]*)(?:\.([0-9]*?)0*)?"
"""A number in digits: before the point, and behind it without the last zeros."""
INFINITE = frozenset({"inf", "+inf", "-inf", "infinity", "+infinity", "-infinity"})
_WHOLE = re.compile("[+-]?[0-9]+")
_BROKEN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?", re.ASCII)
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
            return self._finite(float(trimmed))
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
    columns: list[tuple[str, ColumnType]] = []
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
        columns.append((found[2] or found[1].replace("``", "`"), kind))
        at = found.end() + 1
    check_names(name for name, _ in columns)
    return dict(columns)


def check_names(names: Iterable[str]) -> None:
    """Check that no two columns are one to readers that ignore case, as Spark and SQL do; ValueError: two are."""
    known: dict[str, str] = {}
    for name in names:
        if (other := known.get(name.lower())) is not None:
            raise ValueError(f"columns {other} and {name} are one to Spark and to SQL")
        known[name.lower()] = name


_QUOTED = re.compile(r"`[^`]*`|'[^']*'|\"[^\"]*\"")
_NOT_NULL = re.compile(r"\bNOT\s+NULL\b", re.IGNORECASE)


def says_not_null(schema: str | None) -> bool:
    """Ask whether a schema declares NOT NULL, which no reader checks."""
    return _NOT_NULL.search(_QUOTED.sub("", schema or "")) is not None


def kind_of(value: Any) -> ColumnType:
    """Find a type that holds a value of Python exactly."""
    if isinstance(value, datetime):
        return _SIMPLE["TIMESTAMP" if value.tzinfo else "TIMESTAMP_NTZ"]
    if isinstance(value, Decimal):
        return DecimalType("DECIMAL", 38, max(0, -int(value.as_tuple().exponent)))
    kinds = {bool: "BOOLEAN", int: "BIGINT", float: "DOUBLE", date: "DATE"}
    return _SIMPLE[kinds.get(type(value), "STRING")]


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


# --- json objects -------------------------------------------------------------------------------------------------
# JSON objects, read strictly: one object, each key once, no value that JSON has not.


def parsed_object(text: str, *, exact: bool) -> dict[str, Any]:
    """Parse a text that is one JSON object.

    :param exact: whether numbers keep their text, as `JsonNumber`.
    :raises ValueError: it is none; why, in words.
    """
    try:
        found = json.loads(
            text,
            parse_float=JsonNumber if exact else None,
            parse_constant=_constant,
            object_pairs_hook=_object,
        )
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except json.JSONDecodeError as error:
        raise ValueError(f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise ValueError(f"it is a JSON {type(found).__name__}, not an object")
    if "\\u" in text:
        _check_characters(found)
    return found


def _constant(word: str) -> NoReturn:
    raise ValueError(f"it is no JSON ({word} is no number)")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"the key {twice!r} is in an object twice")
    return found


def _check_characters(found: dict[str, Any]) -> None:
    try:
        json.dumps(found, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        raise ValueError("it has half a surrogate pair, which is no character") from None


# --- reads --------------------------------------------------------------------------------------------------------
# All reads of Spark are opened here, so that a batch has the same rows with any settings of a session, a cluster or
# Hadoop. Options of a reader override settings; a setting that has no option is refused.


_OF_FILES = {
    "ignoreCorruptFiles": "false",
    "ignoreMissingFiles": "false",
    "ignoreInvalidPartitionPaths": "false",
    # Hadoop leaves out longer lines, and reads files with this suffix without decompression.
    "mapreduce.input.linerecordreader.line.maxlength": "2147483647",
    "io.compress.passthrough.extension": ".passthrough",
}
_OF_TEXTS = {
    **_OF_FILES,
    "mode": "FAILFAST",
    "columnNameOfCorruptRecord": "_corrupt_record",
    "timeZone": "UTC",
}
_SAID: Mapping[str, Mapping[str, str]] = {
    "csv": _OF_TEXTS,
    "json": _OF_TEXTS,
    "xml": _OF_TEXTS,
    "parquet": {
        **_OF_FILES,
        "mergeSchema": "false",
        "datetimeRebaseMode": "CORRECTED",
        "int96RebaseMode": "CORRECTED",
    },
    "orc": {
        **_OF_FILES,
        "mergeSchema": "false",
        "orc.skip.corrupt.data": "false",
        "orc.force.positional.evolution": "false",
    },
    "avro": {
        **_OF_FILES,
        "mode": "FAILFAST",
        "ignoreExtension": "true",
        "datetimeRebaseMode": "CORRECTED",
    },
    "jdbc": {"preferTimestampNTZ": "false"},
    "kafka": {},
}
"""The options that take the place of settings, by format."""
_TYPED = "typed rows"
_UNTYPED = "untyped rows"
WRITES = "write"
"""What `check_settings` takes for rows that Spark writes for us."""
_ANY = {
    "spark.sql.legacy.charVarcharAsString": "false",
    "spark.sql.timestampType": "TIMESTAMP_LTZ",
}
# Hadoop applies its filter to files that we name, too.
_LISTED = {
    **_ANY,
    **{f"{each}mapreduce.input.pathFilter.class": "" for each in ("", "spark.hadoop.")},
}
_TIMES = {"spark.sql.legacy.timeParserPolicy": "CORRECTED EXCEPTION"}
_PARSED = {**_LISTED, **_TIMES}
_OBJECTS = {
    **_TIMES,
    "spark.sql.legacy.json.allowEmptyString.enabled": "false",
    "spark.sql.legacy.json.enableDateTimeParsingFallback": "",
    "spark.sql.mapKeyDedupPolicy": "EXCEPTION",
    "spark.sql.variant.allowDuplicateKeys": "false",
    "spark.sql.variant.validateUnicodeInJsonParsing": "true",
}
_HELD: Mapping[str, Mapping[str, str]] = {
    "csv": {**_PARSED, "spark.sql.legacy.csv.enableDateTimeParsingFallback": ""},
    "json": {**_PARSED, **_OBJECTS},
    "xml": _PARSED,
    "parquet": {
        **_LISTED,
        "spark.sql.legacy.parquet.nanosAsLong": "false",
        "spark.sql.legacy.parquet.returnNullStructIfAllFieldsMissing": "false",
        "spark.sql.parquet.binaryAsString": "false",
        "spark.sql.parquet.inferTimestampNTZ.enabled": "true",
        "spark.sql.parquet.int96AsTimestamp": "true",
        "spark.sql.parquet.int96TimestampConversion": "false",
    },
    "jdbc": {
        **_ANY,
        "spark.sql.legacy.mysql.bitArrayMapping.enabled": "false",
        "spark.sql.legacy.mysql.timestampNTZMapping.enabled": "false",
        "spark.sql.legacy.postgres.datetimeMapping.enabled": "false",
        "spark.sql.parser.escapedStringLiterals": "false",
        "spark.sql.parser.quotedRegexColumnNames": "false",
    },
    "kafka": {**_ANY, **_OBJECTS},
    _TYPED: _ANY,
    _UNTYPED: {
        **_ANY,
        "spark.sql.pyspark.inferNestedDictAsStruct.enabled": "false",
        "spark.sql.pyspark.legacy.inferArrayTypeFromFirstElement.enabled": "false",
        "spark.sql.pyspark.legacy.inferMapTypeFromFirstPair.enabled": "false",
    },
    WRITES: {
        "spark.sql.legacy.parquet.datetimeRebaseModeInWrite": "CORRECTED EXCEPTION",
        "spark.sql.parquet.datetimeRebaseModeInWrite": "CORRECTED EXCEPTION",
    },
}
"""The values that a setting without an option may have, by format; "": it must not be set."""


def held_settings(file_format: str) -> dict[str, str]:
    """List the settings of Spark SQL that reads of a format need, for a session of our own."""
    held = _HELD[file_format].items()
    return {name: each.split()[0] for name, each in held if each and name.startswith("spark.sql.")}


def check_settings(spark: SparkSession, file_format: str) -> None:
    """Check that the settings of a session change nothing that Spark reads, or writes, for us.

    :raises ConfigError: one does, and no option overrides it.
    """
    of_server = type(spark).__module__.startswith("pyspark.sql.connect.")
    # A server is asked once; a JVM of this process tells one setting in a hundredth of the time that all of them take.
    given: Any = spark.conf.getAll.get if of_server else spark.conf.get
    for name, allowed in _HELD.get(file_format, _LISTED).items():
        value = (given(name, None) or "").strip()
        if value and value.lower() not in allowed.lower().split():
            instead = f"Set it to {allowed.split()[0]}" if allowed else "Leave it out"
            remedy = (
                f"Spark would give other rows with it. {instead} where it is set: SparkBatchOperator(conf=), the "
                "application, spark-defaults.conf or the Spark Connect server."
            )
            raise ConfigError(option=name, value=value, remedy=remedy)


def python_frame(
    spark: SparkSession, rows: Sequence[Mapping[str, Any]], schema: str | None = None
) -> DataFrame:
    """Make a DataFrame of rows of Python that depends on no setting.

    :param schema: None: Spark finds the types of the values.
    :raises ConfigError: a setting of the session changes rows.
    """
    check_settings(spark, _TYPED if schema else _UNTYPED)
    return spark.createDataFrame(list[Any](rows), schema)


def spark_reader(
    spark: SparkSession, file_format: str, options: Mapping[str, Any] | None = None
) -> DataFrameReader:
    """Open a reader of Spark whose rows depend on no setting.

    :param options: of the reader; they win over the options that every reader has.
    :raises ConfigError: a setting of the session changes rows, and no option overrides it.
    """
    check_settings(spark, file_format)
    said = _SAID.get(file_format, _OF_FILES)
    return spark.read.format(file_format).options(**said).options(**(options or {}))


# --- spark --------------------------------------------------------------------------------------------------------


REFUSED_VALUE = "airflow_tx: no such value: "
"""What begins the message of a query that found a value which is refused."""
_SHOWN = 1000
_WITH_NULL = {"ignoreNullFields": "false"}
_CLOCK = "[0-9]{2}:[0-9]{2}"
# The first moment of year 1 and the last one of year 9999, in microseconds since 1970.
_FIRST = -62_135_596_800_000_000
_LAST = 253_402_300_799_999_999


def typed_texts(
    texts: DataFrame,
    columns: Mapping[str, ColumnType],
    typed: Collection[str] = (),
    *,
    malformed: str = "",
) -> DataFrame:
    """Give columns of texts their types; the query fails at a text that is no value of its column's type.

    The query checks every column, also one that it does not use. Its error shows the row, without its free texts: Java
    does not compile a method of more than 8,000 bytes, and a message for each column makes one.

    :param typed: the columns that have their types already, and that a reader checks only if it has to give them.
    :param malformed: the column that gets the text of a row that does not fit, in place of a failure. The texts have
        it already, with the lines that have other fields than the columns.
    """
    if not malformed and all(kind == StringType("STRING") for kind in columns.values()):
        return texts
    values: list[Column] = []
    checked: list[Column] = []
    problems: list[Column] = []
    for name, kind in columns.items():
        text = F.col(column_name(name))
        value, fits = (text, None) if name in typed else read_text(text, kind)
        values.append(value.alias(name))
        if fits is not None:
            checked.append(text)
            problems.append(F.when(text.isNotNull() & ~fits, F.lit(0)))
    if malformed:
        whole = F.to_json(F.struct(*map(F.col, map(column_name, columns))), _WITH_NULL)
        misfit = F.when(F.coalesce(*problems, F.lit(None)).isNotNull(), whole)
        values.append(F.coalesce(F.col(malformed), misfit).alias(malformed))
    elif problems:
        row = F.substring(F.to_json(F.struct(*checked)), 1, _SHOWN)
        refused = F.raise_error(F.concat(F.lit(f"{REFUSED_VALUE}in the row "), row)).cast("boolean")
        texts = texts.where(F.when(F.coalesce(*problems).isNull(), F.lit(True)).otherwise(refused))
    if typed:
        # True of each row. The optimizer does not know that, so that it asks the reader for all of them.
        columns_read = F.xxhash64(*(F.col(column_name(name)) for name in typed))
        texts = texts.where(columns_read.bitwiseAND(F.lit(0)) == 0)
    return texts.select(*values)


def with_columns(rows: DataFrame, found: Sequence[str], columns: Mapping[str, str]) -> DataFrame:
    """Give rows these columns, in this order; a column that they lack is NULL.

    :param found: the columns of the rows, which a server would be asked for.
    :param columns: and their types.
    """
    if list(found) == list(columns):
        return rows
    known = set(found)
    return rows.select(
        *(
            F.col(column_name(name)) if name in known else F.lit(None).cast(kind).alias(name)
            for name, kind in columns.items()
        )
    )


def checked_lines(
    rows: DataFrame,
    spark: SparkSession,
    files: Sequence[str],
    *,
    quote: str,
    utf8: bool,
    whole: bool,
) -> DataFrame:
    """Let a query over csv files fail at a line that Spark's own reader takes for something else.

    It reads the files once more, as lines. A value does not show that its quote was not closed, or that its bytes were
    no UTF-8.

    :param files: as Spark names them.
    :param quote: "" if the files have none.
    :param whole: whether a value may have several lines, so that the quotes of a whole file are counted.
    """
    line = F.col("value")
    problems = []
    if quote:
        count = F.length(line) - F.length(F.replace(line, F.lit(quote), F.lit("")))
        problems.append(F.when(count % 2 == 1, F.lit(f"{REFUSED_VALUE}a quote is not closed")))
        problems.append(
            F.when(
                line.contains(quote) & line.rlike(spaced(quote)),
                F.lit(f"{REFUSED_VALUE}spaces behind a quote"),
            )
        )
    if utf8:
        problems.append(_broken_utf8(line))
    if not problems:
        return rows
    lines = spark_reader(spark, "text", {"wholetext": whole}).load(list(files))
    none = lines.where(fails(F.coalesce(*problems), otherwise=False))
    first = rows.schema.fields[0]
    null = F.lit(None).cast(first.dataType).alias(first.name)
    # Spark adds the other columns: for a wide file, thousands of expressions made here take minutes.
    return rows.unionByName(none.select(null), allowMissingColumns=True)


def valid_text(rows: DataFrame) -> DataFrame:
    """Let a query over text files fail at bytes that are no UTF-8, which Spark hands on."""
    (name,) = rows.columns
    return rows.where(fails(_broken_utf8(F.col(column_name(name))), otherwise=True))


def spaced(quote: str) -> str:
    """Return the pattern of spaces between a closing quote and the next separator, which readers read differently."""
    mark = f"\\x{ord(quote):02x}"
    return rf"(?m)(?<!{mark}){mark}[ \t]+(\W|$)"


def column_name(name: str) -> str:
    """Quote the name of a column."""
    return f"`{name.replace('`', '``')}`"


def _broken_utf8(line: Column) -> Column:
    return F.when(~F.is_valid_utf8(line), F.lit(f"{REFUSED_VALUE}bytes that are no UTF-8"))


def fails(problem: Column, *, otherwise: bool) -> Column:
    """Let a query fail at a row that has a problem; of other rows the answer is `otherwise`."""
    return F.when(problem.isNotNull(), F.raise_error(problem).cast("boolean")).otherwise(
        F.lit(otherwise)
    )


def read_text(text: Column, kind: ColumnType) -> tuple[Column, Column | None]:
    """Return the value of a text, and whether it is one; None: each text is."""
    if isinstance(kind, StringType):
        return text, None if kind.longest is None else F.length(text) <= kind.longest
    if isinstance(kind, BooleanType):
        word = F.lower(text)
        return word == "true", word.isin("true", "false")
    if isinstance(kind, TimestampType):
        return _moment(text, kind)
    value = text.try_cast(kind.ddl)
    fits = value.isNotNull()
    if isinstance(kind, IntegerType):
        fits &= ~text.contains("\x7f")  # Spark takes it for a blank
    elif isinstance(kind, FloatType):
        word = F.lower(F.trim(text))
        named = word.isin("nan", *INFINITE)
        javas = word.rlike(r"x|[0-9.][df][\x00-\x20]*\z")  # in hexadecimal digits, or with a type
        fits &= named | ((F.abs(value) < float("inf")) & ~javas)
    elif isinstance(kind, DecimalType):
        fits &= text.rlike(rf"\A(?=.*[0-9])[+-]?[0-9]*(?:\.[0-9]{{0,{kind.scale}}}0*)?\z")
    elif isinstance(kind, DateType):
        fits &= text.rlike(rf"\A(?!0000){DATE}\z")
    return value, fits


def _moment(text: Column, kind: TimestampType) -> tuple[Column, Column]:
    zone = f"{ZONE}?" if kind.zoned else ""
    utc = "Z?" if kind.zoned else ""
    # Almost every time is written like this. The checks of the other forms take several times as long.
    usual = text.rlike(rf"\A(?!0000){DATE}[T ]{_CLOCK}:[0-9]{{2}}{utc}\z")
    any_form = text.rlike(
        rf"\A(?!0000){DATE}(?:[T ]{_CLOCK}(?::[0-9]{{2}}(?:\.[0-9]{{1,6}})?)?{zone})?\z"
    )
    # Spark takes no zone behind minutes, or behind a date.
    with_time = F.regexp_replace(text, rf"\A({DATE})\z", "$1 00:00:00")
    with_seconds = F.regexp_replace(with_time, rf"\A({DATE}[T ]{_CLOCK})(?={zone}\z)", "$1:00")
    full = F.when(usual, text).otherwise(with_seconds)
    if not kind.zoned:
        value = full.try_cast(kind.ddl)
        return value, (usual | any_form) & value.isNotNull()
    has_zone = full.endswith("Z") | F.substring(full, -6, 1).isin("+", "-")
    value = F.when(has_zone, full).otherwise(F.concat(full, F.lit("Z"))).try_cast(kind.ddl)
    # One comparison, since Spark would cast the text once for each.
    within = F.abs(2 * F.unix_micros(value) - (_FIRST + _LAST)) <= _LAST - _FIRST
    return value, (usual | any_form) & F.coalesce(within, F.lit(False))
