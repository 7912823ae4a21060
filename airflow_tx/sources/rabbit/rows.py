"""Messages of a queue as rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import FailedBatch
from airflow_tx.sources.message import arrow_rows, parsed_message
from airflow_tx.sources.rabbit.taken import QueueMessage

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


@dataclass(frozen=True)
class QueueRows:
    """The row of a message.

    :param where: the queue, in words.
    :param schema: Spark DDL of JSON objects; None: a message is a text.
    """

    where: str
    schema: str | None
    skip: str

    def of(self, messages: Sequence[QueueMessage]) -> list[dict[str, Any]]:
        """Make the rows; FailedBatch names a message that cannot be read."""
        return [self._row(each) for each in messages]

    def frame(self, spark: SparkSession, messages: Sequence[QueueMessage]) -> DataFrame:
        """Make a DataFrame of them, in this process: they are at most as many as a broker hands out."""
        import pyarrow as pa  # type: ignore[import-untyped]
        from pyspark.sql.pandas.types import to_arrow_schema

        message = f"STRUCT<{self.schema}>" if self.schema else "STRING"
        ddl = f"message_id STRING, routing_key STRING, headers STRING, message {message}"
        struct = spark.createDataFrame([], ddl).schema
        columns = to_arrow_schema(struct)
        batch = arrow_rows(self.of(messages), columns, self._unreadable)
        return spark.createDataFrame(pa.Table.from_batches([batch], schema=columns), schema=struct)

    def _row(self, message: QueueMessage) -> dict[str, Any]:
        row = asdict(message)
        body = row.pop("body")
        try:
            return {**row, "message": parsed_message(body, objects=self.schema is not None)}
        except ValueError as error:
            raise self._unreadable(row, str(error)) from None

    def _unreadable(self, row: Mapping[str, Any], why: str) -> FailedBatch:
        return FailedBatch(
            f"Message {row['message_id']!r} of {self.where} cannot be read: {why}. "
            f"Let the task take it as a text, without schema, or: {self.skip}"
        )
