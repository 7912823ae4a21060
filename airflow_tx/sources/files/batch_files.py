"""The files of one batch, as its rows are read from them: by Python, or by Spark; and with which schema."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from airflow_tx.protocol.records import digest
from airflow_tx.sources.files.csv_format import named_as_spark
from airflow_tx.sources.files.records import read_rows
from airflow_tx.sources.files.schema import Misfit, check_header, find_schema, with_text
from airflow_tx.sources.files.storage import FilePath, Storage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

# Read strictly: by Spark's own default a damaged row turns into nulls, and a header is not checked.
# An option that the user gives wins.
_DEFAULTS: dict[str, dict[str, Any]] = {
    "csv": {"header": True, "enforceSchema": False, "mode": "FAILFAST"},
    "json": {"mode": "FAILFAST"},
}


def reader_options(file_format: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that files are read with."""
    return {**_DEFAULTS.get(file_format, {}), **options}


@dataclass(frozen=True)
class BatchFiles:
    """The files of a batch, and how to read them.

    :param for_spark: the same files, as Spark names them.
    :param declared: the schema that the source has been given; `found`: the schema of the first files of its topology.
    """

    paths: Sequence[FilePath]
    for_spark: Sequence[str]
    format: str
    options: Mapping[str, Any] = field(hash=False)
    declared: str | None
    found: str | None

    @property
    def schema(self) -> str | None:
        return self.declared or self.found

    def rows(self, path: FilePath) -> Iterator[dict[str, Any]]:
        """Read the rows of one of them; ValueError: they cannot be read."""
        return read_rows(path, self.format, self.options, self.schema)

    def frame(self, spark: SparkSession) -> DataFrame:
        """Give their rows to Spark; ValueError: a file is not what its format says."""
        reader = spark.read.format(self.format).options(**self.options)
        schema = self.schema
        if schema is None and self.format == "csv":
            schema = find_schema(self.paths[:1], self.options)
        if schema:
            reader = reader.schema(schema)
        return reader.load(list(self.for_spark))

    def check_header(self, path: FilePath) -> None:
        """Check the columns of a file: Spark does not mind new ones of which a job reads none.

        :raises Misfit: it has others than the first files had.
        """
        if self.found and not self.declared:
            check_header(path, self.options, self.found)

    def misfit(self, message: str) -> tuple[FilePath, Misfit] | None:
        """Find the value that Spark could not read in a file; None if only Spark can find it."""
        for path in [path for path in self.paths if path.name in message] or self.paths:
            try:
                for _ in self.rows(path):
                    pass
            except Misfit as error:
                return path, error
            except (ValueError, OSError):
                return None
        return None

    def declarable(self, path: FilePath, error: Exception) -> str | None:
        """Return the schema that a source may declare so that a misfit is none."""
        if self.declared or not self.found or not isinstance(error, Misfit):
            return None
        return (
            find_schema([path], self.options)
            if error.column is None
            else with_text(self.found, error.column)
        )


def recorded_schema(
    storage: Storage, options: Mapping[str, Any], positions: Iterable[Any], metadata: Iterable[Any]
) -> dict[str, str] | None:
    """Return the schema of csv files that was found before; else the schema of this batch's files.

    A position keeps it, and with which options it was found: others may mean another one.

    :param positions: before the batch; `metadata`: of the batch, of each folder.
    :return: None: it cannot be found here.
    """
    found_with = digest(named_as_spark(options))
    for position in positions:
        known: dict[str, str] | None = (position or {}).get("schema")
        if known is not None and known["options"] == found_with:
            return known
    paths = (
        storage.path(each["folder"]) / file["name"] for each in metadata for file in each["files"]
    )
    with suppress(ValueError, OSError):  # the reader of the rows reports the error
        columns = find_schema(paths, reader_options("csv", options))
        return {"columns": columns, "options": found_with} if columns else None
    return None
