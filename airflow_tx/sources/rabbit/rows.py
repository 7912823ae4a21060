"""Messages of a queue as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import FailedBatch
from airflow_tx.rows.types import ColumnType
from airflow_tx.sources.message import message_ddl, parsed_message, spark_and_arrow
from airflow_tx.sources.rabbit.taken import QueueMessage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class QueueRows:
    """The row of a message.

    :param where: the queue, in words.
    :param columns: of the JSON object that a message is; None: it is a text.
    """

    where: str
    columns: Mapping[str, ColumnType] | None
    skip: str

    def of(self, messages: Sequence[QueueMessage]) -> list[dict[str, Any]]:
        """Make the rows; FailedBatch names a message that cannot be read."""
        return [self._row(each) for each in messages]

    def frame(self, spark: SparkSession, messages: Sequence[QueueMessage]) -> DataFrame:
        """Make a DataFrame of them, in this process: they are at most as many as a broker hands out."""
        import pyarrow as pa  # type: ignore[import-untyped]

        message = "STRING" if self.columns is None else message_ddl(self.columns)
        ddl = f"message_id STRING, routing_key STRING, headers STRING, message {message}"
        struct, columns = spark_and_arrow(spark, ddl)
        rows = pa.Table.from_pylist(self.of(messages), schema=columns)
        return spark.createDataFrame(rows, schema=struct)

    def _row(self, message: QueueMessage) -> dict[str, Any]:
        row = asdict(message)
        body = row.pop("body")
        try:
            return {**row, "message": parsed_message(body, self.columns)}
        except ValueError as error:
            raise self._unreadable(row, str(error)) from None

    def _unreadable(self, row: Mapping[str, Any], why: str) -> FailedBatch:
        return FailedBatch(
            f"Message {row['message_id']!r} of {self.where} cannot be read: {why}. "
            f"Let the task take it as a text, without schema, or: {self.skip}"
        )
