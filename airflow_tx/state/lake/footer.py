"""The footer of a Parquet file: its columns, its rows, its statistics. It needs pyarrow alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, BinaryIO

from airflow_tx.state.appended import TXID, Misfit
from airflow_tx.state.lake.manifest import TableFile
from airflow_tx.state.lake.schema import Schema, nullable, of_arrow, struct
from airflow_tx.state.lake.statistics import statistics

SPARK_SCHEMA = b"org.apache.spark.sql.parquet.row.metadata"
_OTHER_CALENDAR = (b"org.apache.spark.legacyDateTime", b"org.apache.spark.legacyINT96")


def read_footer(
    opened: BinaryIO,
    *,
    path: str,
    size: int,
    partition: Mapping[str, str | None],
    partition_fields: Sequence[Mapping[str, Any]],
    shared: bool = False,
) -> TableFile:
    """Describe a file for the manifest.

    :param path: relative to the table.
    :param partition: the text of each partition column, which the file lacks.
    :param partition_fields: the fields of these columns in Spark's schema.
    :param shared: whether rows of several transactions may be in it.
    :raises Misfit: the file cannot be one of a Delta table.
    """
    import pyarrow.parquet as pq  # type: ignore[import-untyped]

    footer = pq.ParquetFile(opened)
    own = _columns(footer)
    names = [each["name"] for each in own["fields"]]
    if both := [name for name in partition if name in names]:
        raise Misfit(f"partition column {both[0]} is in file {path} as well")
    stats = statistics(footer.metadata, own["fields"])
    if not shared:
        check_txid(stats, path)
    whole = nullable(struct([*own["fields"], *map(dict, partition_fields)]))
    text = json.dumps(whole)
    return TableFile(path, size, footer.metadata.num_rows, dict(partition), stats, text)


def check_txid(stats: str, path: str, txid: int | None = None) -> None:
    """Refuse a file in which not every row says its transaction, or not the same one.

    :param txid: of the transaction; None: any.
    :raises Misfit: a row does not.
    """
    said = json.loads(stats)
    found = (said["minValues"].get(TXID), said["maxValues"].get(TXID))
    wanted = found[0] if txid is None else txid
    if said["numRecords"] and (
        said["nullCount"].get(TXID) != 0 or wanted is None or found != (wanted, wanted)
    ):
        raise Misfit(f"not every row of file {path} has column {TXID} with its transaction")


def _columns(footer: Any) -> Schema:
    notes = footer.metadata.metadata or {}
    if any(name in notes for name in _OTHER_CALENDAR):
        raise Misfit(
            "its dates are in the calendar of before 1582: set spark.sql.parquet.datetimeRebaseModeInWrite "
            "and spark.sql.parquet.int96RebaseModeInWrite to CORRECTED"
        )
    if SPARK_SCHEMA not in notes:
        return of_arrow(footer.schema_arrow)
    said: Schema = nullable(json.loads(notes[SPARK_SCHEMA]))
    names = [each["name"] for each in said["fields"]]
    if names != footer.schema_arrow.names:
        raise Misfit(f"its columns are {footer.schema_arrow.names}, and its note says {names}")
    return said
