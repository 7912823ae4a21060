"""Messages from Redis as rows; one that cannot be read fails the batch, by its name."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from airflow_tx.errors import FailedBatch
from airflow_tx.sources.redis.log import MessageLog, Raw


@dataclass(frozen=True)
class Part:
    """Messages that are read in one go. It can be pickled.

    :param messages: of a batch, those of `MessageLog.parts`.
    :param objects: whether a message is a JSON object, rather than a text.
    """

    log: MessageLog
    messages: Any
    objects: bool

    def unreadable(self, place: int | str, why: str) -> FailedBatch:
        """Make the error for a message that cannot be read."""
        database = self.log.database
        return FailedBatch(
            f"{self.log.named(place)} in {database.where}, partition {database.partition}, cannot be read: {why}. "
            "Correct it and clear the run, or: airflow tx skip TOPOLOGY TXID --why TEXT"
        )


def rows_of(part: Part, client: Any = None) -> Iterator[dict[str, Any]]:
    """The rows of a part.

    :param client: default: one of its own.
    :raises SourceError: a message is gone, or the server cannot be reached.
    :raises FailedBatch: one cannot be read.
    """
    database, place_name = part.log.database, part.log.place_name
    own = client is None
    client = database.client() if own else client
    try:
        with database.telling():
            for place, raw in part.log.read(client, part.messages):
                yield {"partition": database.partition, place_name: place, "message": _read(part, place, raw)}
    finally:
        if own:
            client.close()


def _read(part: Part, place: int | str, raw: Raw) -> Any:
    try:
        if isinstance(raw, dict):
            return {name.decode(): value.decode() for name, value in raw.items()}
        text = raw.decode()
    except UnicodeDecodeError as error:
        raise part.unreadable(place, f"it is not UTF-8 ({error.reason} at byte {error.start})") from None
    if not part.objects:
        return text
    try:
        found = json.loads(text)
    except ValueError as error:
        raise part.unreadable(place, f"it is no JSON ({error})") from None
    if not isinstance(found, dict):
        raise part.unreadable(place, f"it is a JSON {type(found).__name__}, not an object")
    return found
