"""The schema of a table and of its files, in the JSON form that Spark and Delta use. All functions are pure."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from decimal import Decimal
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from airflow_tx.base.errors import StateDiffers
from airflow_tx.base.lazy_names import LazyModule
from airflow_tx.base.rows import COLUMN_TYPES, ColumnType
from airflow_tx.state.aggregators import RESERVED
from airflow_tx.state.api import REJECTED_COLUMNS, TXID, Misfit

if TYPE_CHECKING:
    import pyarrow as pa  # type: ignore[import-untyped]
    from deltalake import DeltaTable
    from deltalake.table import ProtocolVersions
else:
    pa = LazyModule("pyarrow")


# --- schema -------------------------------------------------------------------------------------------------------


FieldJson = dict[str, Any]
Schema = dict[str, Any]
DELTA_TYPES = {each.delta: each for each in COLUMN_TYPES.values()}
"""The plain types, by their names in Delta. Decimals of other sizes are also allowed."""
_SHOWN = 100
"""Maximum number of characters of a check rule in a message."""
_DECIMAL = re.compile(r"decimal\(\d+, ?\d+\)")
TXID_FIELD: FieldJson = {"name": TXID, "type": "long", "nullable": True, "metadata": {}}


def nullable(kind: Any, *, column: str = "") -> Any:
    """Return a type that is nullable at every depth. Its fields have no metadata.

    Delta readers refuse a table with a nested field that is not nullable.

    :raises Misfit: Delta has no such type.
    """
    if isinstance(kind, str):
        if kind in DELTA_TYPES or _DECIMAL.fullmatch(kind):
            return kind.replace(" ", "")
        raise _unknown(column, kind)
    if kind.get("type") == "struct":
        return {"type": "struct", "fields": [_field(each, column) for each in kind["fields"]]}
    if kind.get("type") == "array":
        element = nullable(kind["elementType"], column=column)
        return {"type": "array", "elementType": element, "containsNull": True}
    if kind.get("type") == "map":
        of_key = nullable(kind["keyType"], column=column)
        of_value = nullable(kind["valueType"], column=column)
        return {"type": "map", "keyType": of_key, "valueType": of_value, "valueContainsNull": True}
    raise _unknown(column, kind.get("type"))


def _unknown(column: str, kind: Any) -> Misfit:
    problem = f"column {column} has the type {kind}, which a Delta table cannot have"
    return Misfit(problem, cast_to(column, "string"))


def cast_to(column: str, kind: str) -> str:
    """Return the remedy for a column of a wrong type."""
    name = column.partition(".")[0]
    if name != column:
        return f"Cast {column} to another type, such as {kind}, then clear the task."
    return f'Cast it in the task, such as df.withColumn("{name}", df["{name}"].cast("{kind}")), then clear the task.'


def _field(field: Mapping[str, Any], column: str) -> FieldJson:
    inner = f"{column}.{field['name']}" if column else str(field["name"])
    kind = nullable(field["type"], column=inner)
    return {"name": field["name"], "type": kind, "nullable": True, "metadata": {}}


def struct(fields: Sequence[FieldJson]) -> Schema:
    """Return a schema with these fields."""
    return {"type": "struct", "fields": list(fields)}


def new_fields(table: Schema, found: Schema) -> list[FieldJson]:
    """Return the fields of a file that its table does not have yet.

    :param table: columns of the table.
    :param found: columns of the file, partition columns included.
    :raises Misfit: a column has another type, or a name that differs only by case.
    """
    known = {each["name"]: nullable(each["type"], column=each["name"]) for each in table["fields"]}
    spelled = {name.lower(): name for name in known}
    fresh = list[FieldJson]()
    for each in nullable(found)["fields"]:
        name = each["name"]
        if name not in known:
            other = spelled.setdefault(name.lower(), name)
            if other != name:
                raise Misfit(f"column {name} differs from column {other} by case alone")
            known[name] = each["type"]
            fresh.append(each)
        elif known[name] != each["type"]:
            was = shown_type(known[name])
            problem = f"column {name} has the type {shown_type(each['type'])} in the rows, and {was} in the table"
            raise Misfit(problem, cast_to(name, was))
    return fresh


def check_partition(
    found: Schema, partition: Mapping[str, str | None], columns: Sequence[str]
) -> None:
    """Refuse a file unless it has exactly one value for each partition column.

    :raises Misfit: the file lacks a partition column, or is also partitioned by another column.
    """
    names = {each["name"] for each in found["fields"]}
    if missing := [name for name in columns if name not in names or name not in partition]:
        raise Misfit(f"the rows lack partition column {missing[0]}")
    if more := [name for name in partition if name not in columns]:
        raise Misfit(f"the rows are partitioned by {more[0]}, but the table is not")


def of_arrow(schema: pa.Schema) -> Schema:
    """Convert an Arrow schema to Spark's schema.

    :raises Misfit: Delta has no such type.
    """
    return struct([_of_field(each, each.name) for each in schema])


def _of_field(field: pa.Field, column: str) -> FieldJson:
    kind = _of_type(field.type, column)
    return {"name": field.name, "type": kind, "nullable": True, "metadata": {}}


def _of_type(kind: Any, column: str) -> Any:
    types = pa.types
    if types.is_dictionary(kind):
        return _of_type(kind.value_type, column)
    if types.is_struct(kind):
        return struct(
            [
                _of_field(kind.field(n), f"{column}.{kind.field(n).name}")
                for n in range(kind.num_fields)
            ]
        )
    if types.is_list(kind) or types.is_large_list(kind) or types.is_fixed_size_list(kind):
        element = _of_type(kind.value_type, column)
        return {"type": "array", "elementType": element, "containsNull": True}
    if types.is_map(kind):
        both = (_of_type(kind.key_type, column), _of_type(kind.item_type, column))
        return {"type": "map", "keyType": both[0], "valueType": both[1], "valueContainsNull": True}
    return _of_plain(kind, column)


def _of_plain(kind: Any, column: str) -> str:
    found = ColumnType.of_arrow(kind)
    if found is None:
        raise Misfit(f"column {column} has the type {kind}, which a Delta table cannot have")
    return found.delta


def shown_type(kind: Any) -> str:
    """Return a type in Spark SQL, for use in `cast`."""
    if isinstance(kind, str):
        return kind
    if kind["type"] == "array":
        return f"array<{shown_type(kind['elementType'])}>"
    if kind["type"] == "map":
        return f"map<{shown_type(kind['keyType'])}, {shown_type(kind['valueType'])}>"
    if kind["type"] == "struct":
        inner = (f"`{each['name']}`: {shown_type(each['type'])}" for each in kind["fields"])
        return f"struct<{', '.join(inner)}>"
    return str(kind["type"])


def _parts(kind: Mapping[str, Any]) -> list[Any]:
    """Return the types of the elements, the keys and the values of a nested type."""
    return [kind[name] for name in ("elementType", "keyType", "valueType") if name in kind]


def deepest(kind: Any, asked: Callable[[str], bool]) -> bool:
    """Return whether `asked` is true for any plain type inside a type."""
    if isinstance(kind, str):
        return asked(kind)
    inner = [*_parts(kind), *(each["type"] for each in kind.get("fields", ()))]
    return any(deepest(each, asked) for each in inner)


def declared_in(field: FieldJson) -> Iterator[tuple[str, str]]:
    """Yield the requirements in the metadata of a field and its nested fields, such as check rules, maximum lengths or
    defaults.
    """
    for name, value in sorted(field.get("metadata", {}).items()):
        if name.startswith(_ASKS) and not name.startswith(_MAPPED):
            yield name, " ".join(str(value).split())[:_SHOWN]
    kinds = [field["type"]]
    for kind in kinds:
        if isinstance(kind, dict):
            kinds += _parts(kind)
            for each in kind.get("fields", ()):
                yield from declared_in(each)


def is_optional(kind: Any) -> bool:
    """Return whether NULL is allowed at every depth within a type."""
    if isinstance(kind, str):
        return True
    if not kind.get("containsNull", True) or not kind.get("valueContainsNull", True):
        return False
    fields = kind.get("fields", ())
    return all(each["nullable"] for each in fields) and all(
        is_optional(each) for each in (*_parts(kind), *(each["type"] for each in fields))
    )


# --- requirements -------------------------------------------------------------------------------------------------
# The requirements for a Delta table. Exactly-once commits that change only metadata work only on
# tables that meet them.


_VECTORS = "deletionVectors"
_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", _VECTORS})
_APPEND_ONLY = "delta.appendOnly"
_WITH_VECTORS = "delta.enableDeletionVectors"
_MAPPING = "delta.columnMapping.mode"
_PREFIXES = "delta.randomizeFilePrefixes"
_FORGETS = "delta.setTransactionRetentionDuration"
_CONSTRAINT = "delta.constraints."
# Prefixes of names in the metadata of a field. Metadata with one of these prefixes, except for
# `_MAPPED`, is a requirement for a writer.
_MAPPED = "delta.columnMapping."
_ASKS = (
    "delta.",
    "__CHAR_VARCHAR_TYPE_STRING",
    "__COLLATIONS",
    "CURRENT_DEFAULT",
    "EXISTS_DEFAULT",
)


@dataclass(frozen=True)
class TableRequirements:
    """Checks that a table has no features that this writer does not support.

    :param uri: URI of the table, as in the arguments of the state.
    """

    state: str
    uri: str

    def check(self, table: DeltaTable) -> None:
        """Check one version of the table.

        :raises StateDiffers: the table has a feature that this writer does not support. The message says how to remove
            it.
        """
        self._check_settings(table)
        self._check_protocol(table)
        for each in json.loads(table.schema().to_json())["fields"]:
            self._check_column(each)

    def _check_settings(self, table: DeltaTable) -> None:
        settings = {
            name: str(value) for name, value in table.metadata().configuration.items() if value
        }
        if settings.get(_APPEND_ONLY, "").lower() == "true":
            problem = f"does not allow a writer to delete rows ({_APPEND_ONLY}=true)"
            raise self._refusal(problem, self._unset(_APPEND_ONLY))
        if settings.get(_WITH_VECTORS, "").lower() == "true":
            raise self._refusal(f"has deletion vectors ({_WITH_VECTORS}=true)", self._purged)
        if (mode := settings.get(_MAPPING, "none")) != "none":
            raise self._refusal(f"has column mapping ({_MAPPING}={mode})", self._copied(table))
        if _FORGETS in settings:
            problem = f"deletes the record of its last transaction after some time ({_FORGETS}={settings[_FORGETS]})"
            raise self._refusal(problem, self._unset(_FORGETS))
        for name in (each for each in settings if each.startswith(_CONSTRAINT)):
            problem = (
                f"has a constraint that no reader of the files checks ({name}={settings[name]})"
            )
            raise self._refusal(problem, self._copied(table))

    def _check_protocol(self, table: DeltaTable) -> None:
        protocol = table.protocol()
        features = _features(protocol)
        if unknown := sorted(features - _FEATURES):
            problem = f"needs {', '.join(unknown)}, which this writer does not support"
            raise self._refusal(problem, self._copied(table))
        writer = protocol.min_writer_version
        if 2 < writer < 7 or writer > 7:
            problem = f"requires a writer of version {writer}, which may check constraints or generate columns"
            raise self._refusal(problem, self._copied(table))
        # Delta removes a file with a deletion vector only if the commit names the vector. deltalake
        # cannot do this.
        if _VECTORS in features and _has_vectors(table):
            raise self._refusal("has deletion vectors", self._purged)

    def _check_column(self, field: dict[str, Any]) -> None:
        name = field["name"]
        for asked, value in declared_in(field):
            problem = (
                f"declares {asked} = {value} of column {name}, which no reader of the files checks"
            )
            raise self._refusal(
                problem, f"Give the state a table whose column {name} has no such rule."
            )
        if not field["nullable"]:
            problem = f"has column {name} as NOT NULL, which no reader of the files checks"
            raise self._refusal(problem, self._altered(f"ALTER COLUMN `{name}` DROP NOT NULL"))
        if not is_optional(field["type"]):
            problem = f"has a NOT NULL within column {name}, which no reader of the files checks"
            remedy = f"Drop it, or give the state a table without column {name}."
            raise self._refusal(problem, remedy)
        try:
            nullable(field["type"], column=name)
        except Misfit as error:
            remedy = f"Give the state a table without column {name}."
            raise self._refusal(f"cannot have rows of Spark: {error}", remedy) from None
        if name == TXID and deepest(field["type"], lambda kind: kind != "long"):
            raise self._refusal(
                f"has a column {TXID} of type {field['type']}", "It must be a bigint."
            )

    # --- remedies ---------------------------------------------------------------------------------------------------

    @property
    def _purged(self) -> str:
        off = f"SET TBLPROPERTIES ({_WITH_VECTORS} = false)"
        return f"{self._altered(off)}; then REORG TABLE {self._table} APPLY (PURGE)"

    def _unset(self, setting: str) -> str:
        return self._altered(f"UNSET TBLPROPERTIES ({setting})")

    def _altered(self, clause: str) -> str:
        return f"In Spark: ALTER TABLE {self._table} {clause}"

    def _copied(self, table: DeltaTable) -> str:
        columns = ", ".join(f"`{each}`" for each in table.metadata().partition_columns)
        divided = f" PARTITIONED BY ({columns})" if columns else ""
        copy = spark_table(f"{self.uri}_copy")
        return (
            f"Give the state a copy. In Spark: CREATE TABLE {copy} USING delta{divided} "
            f"AS SELECT * FROM {self._table}"
        )

    @property
    def _table(self) -> str:
        return spark_table(self.uri)

    def _refusal(self, problem: str, remedy: str) -> StateDiffers:
        return StateDiffers(state=self.state, problem=f"the table {problem}", remedy=remedy)


def _features(protocol: ProtocolVersions) -> set[str]:
    return {*(protocol.reader_features or ()), *(protocol.writer_features or ())}


def _has_vectors(table: DeltaTable) -> bool:
    return bool(pa.table(table.deletion_vectors().read_all()).num_rows)


def rewritten(uri: str, rows: str) -> str:
    """Return the remedy for rows in files whose paths deltalake cannot encode. It moves the rows to new files.

    :param rows: an SQL condition.
    """
    table = spark_table(uri)
    statements = (
        f"ALTER TABLE {table} SET TBLPROPERTIES ({_PREFIXES} = true)",
        f"UPDATE {table} SET {TXID} = {TXID} WHERE {rows}",
        f"ALTER TABLE {table} UNSET TBLPROPERTIES ({_PREFIXES})",
        "clear the task",
    )
    return f"In Spark: {'; then '.join(statements)}"


def spark_table(uri: str) -> str:
    """Return the name of a table in Spark SQL, derived from its URI."""
    return f"delta.`{uri.replace('s3://', 's3a://', 1)}`"


# --- partitions ---------------------------------------------------------------------------------------------------
# The partition columns of a table: which columns are allowed, and how their values appear in folder
# names. All functions are pure.


NULL_FOLDER = "__HIVE_DEFAULT_PARTITION__"
"""The folder name for NULL in Hive, Spark and Delta."""
_LONGEST = 255
"""Maximum length of a folder name in bytes, in nearly every file system."""
_TYPES = re.compile(r"string|boolean|byte|short|integer|long|date|decimal\(.*\)")
_ESCAPED = re.compile(r"""[\x00-\x1f"#%'*/:=?\\\x7f{\[\]^]""")
_IMPOSSIBLE = re.compile(r"[ ,;{}()\n\t=]")


def check_columns(fields: Iterable[Mapping[str, Any]], partition_by: Sequence[str]) -> None:
    """Refuse rows that cannot be written to files of a table.

    :param fields: fields of Spark's schema of the rows.
    :raises Misfit: a column does not fit. The message names it.
    """
    found = {str(each["name"]): each for each in fields}
    if not found:
        raise Misfit("no column of the rows has a value, so the types of the columns are unknown")
    spelled = dict[str, str]()
    for name, each in found.items():
        if not name or _IMPOSSIBLE.search(name):
            raise Misfit(f"column {name!r} has a name that a Delta table cannot have")
        if name.lower().startswith(RESERVED) and name not in REJECTED_COLUMNS:
            raise Misfit(f"column {name} has a reserved name ({RESERVED}*)")
        if (other := spelled.setdefault(name.lower(), name)) != name:
            raise Misfit(f"column {name} differs from column {other} by case alone")
        nullable(each["type"], column=name)
    for name in partition_by:
        if name not in found:
            raise Misfit(f"the rows lack partition column {name}; they have {', '.join(found)}")
        kind = shown_type(found[name]["type"])
        if not _TYPES.fullmatch(kind):
            raise Misfit(
                f"partition column {name} has the type {kind}; it must be a text, a whole number, "
                "a boolean, a date or a decimal"
            )
    if len(partition_by) == len(found):
        raise Misfit("every column is a partition column, so the files would have no columns")


def text_of(value: Any) -> str | None:
    """Return a value in the text form of the Delta log. None represents NULL."""
    if value is None or value == "":
        return None
    if isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, date | Decimal | int):
        return format(value, "f") if isinstance(value, Decimal) else str(value)
    return str(value)


def empty_in(name: str) -> str:
    """Return the error message for an empty text in a partition column."""
    return (
        f"partition column {name} has an empty text, which readers of a Delta table read as NULL: "
        "give NULL or another text"
    )


def folder_of(partition: Mapping[str, str | None]) -> str:
    """Return the folders of a partition, spelled as in Spark: ``day=2026-01-01/``.

    Return "" without partition columns.
    """
    return "".join(f"{_escaped(name)}={_escaped(text)}/" for name, text in partition.items())


def new_folder(partition: Mapping[str, str | None]) -> str:
    """Return the folders of a partition, after checking that a file system allows them.

    :raises Misfit: a value is too long for a folder name.
    """
    for name, text in partition.items():
        folder = folder_of({name: text})
        size = len(folder.encode()) - 1
        if size > _LONGEST:
            problem = f"partition column {name} has the value {str(text)[:40]!r}…"
            limit = f"a name of {size} bytes, more than {_LONGEST}"
            raise Misfit(f"{problem}, whose folder has {limit}")
    return folder_of(partition)


def values_in(folder: str) -> dict[str, str | None]:
    """Parse the partition values from a partition's folders, as `folder_of` spells them."""
    found = dict[str, str | None]()
    for part in filter(None, folder.split("/")):
        name, _, text = part.partition("=")
        found[unquote(name)] = None if text == NULL_FOLDER else unquote(text)
    return found


def _escaped(text: str | None) -> str:
    if text is None:
        return NULL_FOLDER
    return _ESCAPED.sub(lambda found: f"%{ord(found[0]):02X}", text)
