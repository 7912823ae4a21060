"""What every source whose partitions are logs gets from its base class."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import pytest

from airflow_tx.base.errors import PartitionUnavailable, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources import Gone, LogBatch, LogSnapshot, LogSource, PartitionLog

ATTEMPT = TransactionAttempt(2, 1)


class Scripted(PartitionLog):
    """A log that holds the numbers below `end`.

    :param said: how many rows it says that there are; None: as many as there are.
    :param first: the first number that is left.
    :param found: whether only a take shows what is gone.
    """

    def __init__(self, end: int, *, said: int | None = None, first: int = 0, found: bool = False) -> None:
        self.end = end
        self.said = said
        self.first = first
        self.found = found

    def snapshot(self, position: Any) -> LogSnapshot:
        start = position or 0
        available = self.end - start if self.said is None else self.said
        return LogSnapshot(start, available, None if self.found else self._missing(start))

    def _missing(self, start: int) -> Gone | None:
        return Gone(f"{start} to {self.first - 1}", self.first) if start < self.first else None

    def sizes(self, snapshot: LogSnapshot) -> Sequence[int]:
        return [10] * (snapshot.available or 0)

    def take(self, snapshot: LogSnapshot, most: int | None) -> LogBatch | Gone | None:
        gone = self._missing(snapshot.position)
        if gone is not None:
            return gone
        left = self.end - snapshot.position
        count = left if most is None else min(most, left)
        if not count:
            return None
        end = snapshot.position + count
        return LogBatch([snapshot.position, end], end, count, ended=end == self.end)


class Away(Scripted):
    def snapshot(self, position: Any) -> LogSnapshot:
        raise PartitionUnavailable(partition="away", source="Logs", reason="it is switched off")


class Logs(LogSource):
    leaves_out_gone = True

    def __init__(self, own: Mapping[str, Scripted], **limits: Any) -> None:
        super().__init__(**limits)
        self.own = own

    def logs(self, positions: Mapping[str, Any]) -> Mapping[str, Scripted]:
        return self.own

    def emit_partition_batch(
        self, attempt: TransactionAttempt, partition: str, metadata: Any, spark: Any = None
    ) -> Iterable[dict[str, Any]]:
        return [{"n": number} for number in range(*metadata)]


def decided(source: LogSource, position: Any = None) -> Any:
    batch = source.decide(ATTEMPT, position)
    return None if batch is None else (batch.metadata, batch.reason)


def test_partitions_share_a_limit_of_rows_or_bytes() -> None:
    logs = {"a": Scripted(1), "b": Scripted(9)}
    found = {"a": [0, 1], "b": [0, 3]}
    assert decided(Logs(logs, max_rows_per_batch=4)) == (found, "4 of 10 rows: max_rows_per_batch=4")
    assert decided(Logs(logs, max_bytes_per_batch=40)) == (
        found,
        "4 of 10 rows: max_bytes_per_batch=40, 10 bytes a row",
    )
    assert decided(Logs(logs)) == ({"a": [0, 1], "b": [0, 9]}, "all 10 rows that there were")


def test_a_partition_that_overstates_its_number_of_rows_takes_no_share_from_the_others() -> None:
    logs = {"a": Scripted(0, said=50), "b": Scripted(9)}
    assert decided(Logs(logs, max_rows_per_batch=1)) == ({"b": [0, 1]}, "1 of 9 rows: max_rows_per_batch=1")
    assert decided(Logs({"a": Scripted(0, said=50)})) is None


@pytest.mark.parametrize("found", [False, True])
def test_missing_rows_stop_a_transactional_source_and_make_an_opaque_source_omit_the_partition(
    found: bool, caplog: pytest.LogCaptureFixture
) -> None:
    logs = {"a": Scripted(9, first=4, found=found), "b": Scripted(3)}
    told = "rows that come next are gone: partition a: 1 to 3. Nothing was allocated. "
    told += "Restore the rows, or accept the loss: airflow tx "
    with pytest.raises(SourceError, match=told):
        Logs(logs).decide(ATTEMPT, {"a": 1})
    with caplog.at_level(logging.WARNING):
        assert decided(Logs(logs, kind="opaque"), {"a": 1}) == ({"b": [0, 3]}, "all 3 rows that there were")
    assert "The partition is left out of this batch" in caplog.text
    (loss,) = Logs(logs).losses({"a": 1, "b": 0})
    assert (loss.partition, loss.position, loss.resume_at) == ("a", 1, 4)
    with pytest.raises(SourceError, match=told):
        Logs({"a": logs["a"]}, kind="opaque").decide(ATTEMPT, {"a": 1})


def test_a_partition_that_cannot_be_reached_is_not_counted_and_reports_no_loss() -> None:
    logs = {"away": Away(9), "b": Scripted(3)}
    with pytest.raises(SourceError, match="partition away cannot be reached: it is switched off"):
        Logs(logs).decide(ATTEMPT, {"away": 4})
    assert decided(Logs(logs, kind="opaque"), {"away": 4}) == ({"b": [0, 3]}, "all 3 rows that there were")
    assert Logs(logs).backlog({"away": 4, "b": 1}) == 2
    assert Logs({"away": Away(9)}).backlog(None) is None
    assert Logs(logs).losses({"away": 4}) == []
