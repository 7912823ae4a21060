"""The numbers 0, 1, 2 and so on, up to the limit that a file tells."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from airflow_tx.sources import Batch, Json, TransactionalSource
from benchmarks.peers.jobs import NUMBERS, limit


class LimitedNumbers(TransactionalSource):
    """Ten of them a transaction.

    :param folder: where the limit stands, below AIRFLOW_TX_DATA.
    """

    def __init__(self, folder: str) -> None:
        self.folder = folder

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "benchmarks.peers.limited_numbers.LimitedNumbers", {"folder": self.folder}

    def initialize_transaction(self, txid: int, position: Json) -> Batch | None:
        first = position if isinstance(position, int) else 0
        if first + NUMBERS > limit(Path(os.environ["AIRFLOW_TX_DATA"], self.folder)):
            return None
        return Batch(metadata=[first, first + NUMBERS], position=first + NUMBERS)

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Iterator[dict[str, int]]:
        return ({"number": number} for number in range(*metadata))


def sums(numbers: list[int]) -> list[dict[str, Any]]:
    """Sum up a batch by key: each of its numbers has a key of its own."""
    return [{"key": str(number % NUMBERS), "n": 1, "total": number} for number in numbers]
