"""The requirements of a Delta table: commits of metadata alone keep a table exact only if it meets them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import StateDiffers
from airflow_tx.state.appended import TXID, Misfit
from airflow_tx.state.lake.schema import deepest, is_optional, nullable

if TYPE_CHECKING:
    from deltalake import DeltaTable
    from deltalake.table import ProtocolVersions

_VECTORS = "deletionVectors"
_FEATURES = frozenset({"appendOnly", "invariants", "timestampNtz", _VECTORS})
_APPEND_ONLY = "delta.appendOnly"
_WITH_VECTORS = "delta.enableDeletionVectors"
_MAPPING = "delta.columnMapping.mode"
_PREFIXES = "delta.randomizeFilePrefixes"
_FORGETS = "delta.setTransactionRetentionDuration"


@dataclass(frozen=True)
class TableRequirements:
    """Refuses a table that this writer cannot keep right.

    :param uri: of the table, as the state has it.
    """

    state: str
    uri: str

    def check(self, table: DeltaTable) -> None:
        """Look at one version of the table.

        :raises StateDiffers: it has something that this writer cannot keep right; the message says how to remove it.
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
            problem = f"lets no writer take rows back ({_APPEND_ONLY}=true)"
            raise self._refusal(problem, self._unset(_APPEND_ONLY))
        if settings.get(_WITH_VECTORS, "").lower() == "true":
            raise self._refusal(f"has deletion vectors ({_WITH_VECTORS}=true)", self._purged)
        if (mode := settings.get(_MAPPING, "none")) != "none":
            raise self._refusal(f"has column mapping ({_MAPPING}={mode})", self._copied(table))
        if _FORGETS in settings:
            problem = f"forgets which transaction it has ({_FORGETS}={settings[_FORGETS]})"
            raise self._refusal(problem, self._unset(_FORGETS))

    def _check_protocol(self, table: DeltaTable) -> None:
        protocol = table.protocol()
        features = _features(protocol)
        if unknown := sorted(features - _FEATURES):
            problem = f"needs {', '.join(unknown)}, which this writer does not know"
            raise self._refusal(problem, self._copied(table))
        writer = protocol.min_writer_version
        if 2 < writer < 7 or writer > 7:
            problem = f"asks for a writer of version {writer}, which may check constraints or generate columns"
            raise self._refusal(problem, self._copied(table))
        # Delta removes a file that has a vector only if the commit names the vector, and deltalake cannot name it.
        if _VECTORS in features and _has_vectors(table):
            raise self._refusal("has deletion vectors", self._purged)

    def _check_column(self, field: dict[str, Any]) -> None:
        name = field["name"]
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
            raise self._refusal(f"is none for rows of Spark: {error}", remedy) from None
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
    import pyarrow as pa  # type: ignore[import-untyped]

    return bool(pa.table(table.deletion_vectors().read_all()).num_rows)


def rewritten(uri: str, rows: str) -> str:
    """Write the remedy that puts rows into new files whose paths each writer spells alike.

    :param rows: a condition of SQL.
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
    """Name a table by its URI, as Spark's SQL does."""
    return f"delta.`{uri.replace('s3://', 's3a://', 1)}`"
