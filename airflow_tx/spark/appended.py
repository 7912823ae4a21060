"""An output that is appended to a table: executors write its rows as Parquet into the folder of the table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_tx.rows.spark import column_name, fails
from airflow_tx.staging import AppendTo
from airflow_tx.staging.files import spark_uri
from airflow_tx.staging.output import Output, RowsInTable
from airflow_tx.state.appended import TXID
from airflow_tx.state.lake.partitions import check_columns, empty_in

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

    from airflow_tx.spark.observed import RowsObserver

# Formats that every reader of a Delta table accepts. As options they override the session for this write only.
_OPTIONS = {
    "spark.sql.parquet.outputTimestampType": "TIMESTAMP_MICROS",
    "spark.sql.parquet.writeLegacyFormat": "false",
    "partitionOverwriteMode": "static",
}


def write_appended(
    observer: RowsObserver, df: DataFrame, to: AppendTo, folder: str, txid: int
) -> Output:
    """Write rows in one Spark job; the task that submitted the application lists their files.

    :param folder: relative to the table.
    :raises Misfit: a Delta table cannot have such rows.
    """
    from pyspark.sql import functions as F

    fields = df.schema.jsonValue()["fields"]
    check_columns(fields, to.partition_by)
    by_name = {each["name"]: each for each in fields}

    def write(rows: DataFrame) -> None:
        # The folder belongs to this job alone.
        writer = rows.write.mode("overwrite").options(**_OPTIONS).partitionBy(*to.partition_by)
        writer.parquet(spark_uri(f"{to.uri}/{folder}"))

    for name in to.partition_by:
        if by_name[name]["type"] == "string":
            problem = F.when(F.col(column_name(name)) == "", F.lit(f"airflow_tx: {empty_in(name)}"))
            df = df.where(fails(problem, otherwise=True))
    numbered = df.withColumn(TXID, F.lit(txid).cast("bigint"))
    written = observer.save(numbered, df.columns, write)
    partition = tuple(by_name[name] for name in to.partition_by)
    rows = RowsInTable(to.uri, folder, written.rows, written.text, partition)
    return Output((), tuple(df.columns), appended=rows)
