"""What DataIntervalSource and RunPartitionSource read in the suite: a Spark driver would import it just so."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any


def between(start: datetime, end: datetime, spark: Any = None, *, path: str) -> Iterator[dict[str, Any]]:
    """The lines of an interval."""
    for row in _lines(path):
        if start <= datetime.fromisoformat(row["at"]) < end:
            yield row


def of_partition(partition: str, spark: Any = None, *, path: str) -> Iterator[dict[str, Any]]:
    """The lines of a partition."""
    for row in _lines(path):
        if row["at"] == partition:
            yield row


def _lines(path: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in Path(path).read_text().splitlines()]
