"""Partitions that are logs: rows that come in an order, with a position behind each of them.

A backend says what one partition has behind a position, takes the next rows, and reads them. `LogSource` does what is
the same for all of them: it shares the limits of a batch among the partitions, words the reason, lists what is lost,
and leaves out what is away.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from airflow_tx.base.errors import PartitionUnavailable, SourceError
from airflow_tx.ledger.batch import Loss
from airflow_tx.sources.api import Batch, BatchSize, Json, Limit, Source, SourceKind, source_kind
from airflow_tx.sources.partitioned import PartitionedTransactionalSource

if TYPE_CHECKING:
    from airflow_tx.ledger.attempt import TransactionAttempt


@dataclass(frozen=True)
class Gone:
    """Rows that come next and that the log does not have.

    :param description: which they are, in words.
    :param resume_at: the position from which there are rows again.
    """

    description: str
    resume_at: Json


@dataclass(frozen=True)
class LogSnapshot:
    """The rows after a position.

    :param position: as its log reads it.
    :param available: how many rows there are, as the log says; some may be missing in between. None: `count` them.
    :param gone: the rows that are known to be gone.
    """

    position: Any
    available: int | None
    gone: Gone | None = None


@dataclass(frozen=True)
class LogBatch(Batch):
    """The rows of one partition in a batch.

    :param metadata: plain JSON that says exactly which rows they are.
    :param position: plain JSON that says where the log stands after them.
    :param count: how many rows they are.
    :param reason: `LogSource` words it.
    :param unit: `LogSource` counts rows.
    :param start: the position where the batch begins.
    :param at_most: whether there may be fewer rows than `count`.
    :param key: of the run that has the rows; "": any run can.
    :param run_id: of that run.
    :param ended: whether the partition has no more rows now.
    """

    ended: bool = False


class PartitionLog(ABC):
    """The rows of one partition, in their order. It is made for one decision, or to read one batch."""

    @abstractmethod
    def snapshot(self, position: Json) -> LogSnapshot:
        """Find what comes after a position.

        :param position: None: the partition never took part.
        :raises PartitionUnavailable: it cannot be reached now.
        """

    @abstractmethod
    def take(self, snapshot: Any, most: int | None) -> LogBatch | Gone | None:
        """Decide the next rows, up to a missing one.

        :param most: at most so many; None: no limit.
        :return: `Gone` if the first row is missing; None if there is no row.
        """

    def sizes(self, snapshot: Any) -> Sequence[int]:
        """Measure the bytes of some of the rows that come next; nothing: a limit of bytes has no effect."""
        return ()

    def count(self, snapshot: Any, most: int) -> int:
        """Count the rows that can be taken; those beyond `most` need not be counted."""
        return int(snapshot.available)

    def backlog(self, position: Json) -> int:
        """Count the rows after a position."""
        return int(self.snapshot(position).available or 0)

    def gone(self, position: Json, most: int | None) -> Gone | None:
        """Find the rows that are gone among the next `most` ones."""
        snapshot = self.snapshot(position)
        if snapshot.gone is not None or not snapshot.available:
            return snapshot.gone
        # A log may find out only now, when it looks for each row.
        taken = self.take(snapshot, most)
        return taken if isinstance(taken, Gone) else None


class LogDecision:
    """Decides one batch: what the logs have behind their positions, and how much of it each one gives.

    :param sizes: measures some of the next rows of all these logs, in bytes.
    """

    def __init__(
        self,
        logs: Mapping[str, PartitionLog],
        positions: Mapping[str, Json],
        limit: Limit,
        sizes: Callable[[LogDecision], Sequence[int]],
    ) -> None:
        self.logs = logs
        self.snapshots: dict[str, LogSnapshot] = {}
        self.away: dict[str, PartitionUnavailable] = {}
        for name, log in logs.items():
            try:
                self.snapshots[name] = log.snapshot(positions.get(name))
            except PartitionUnavailable as error:
                self.away[name] = error
        self.gone = {
            name: each.gone for name, each in self.snapshots.items() if each.gone is not None
        }
        self._empty: set[str] = set()
        self._ended: set[str] = set()
        self._limit = limit
        if limit.bytes is not None:
            self._limit = limit.of_rows_of(sizes(self))
        self._shares = self._shared()

    @property
    def usable(self) -> dict[str, LogSnapshot]:
        """The snapshots of the logs that have rows, as far as is known."""
        out = {*self.gone, *self._empty}
        return {
            name: each
            for name, each in self.snapshots.items()
            if name not in out and each.available != 0
        }

    def sizes(self) -> list[int]:
        """Measure some of the next rows, one log after the other."""
        return [size for name, each in self.usable.items() for size in self.logs[name].sizes(each)]

    def take(self, name: str) -> LogBatch | Gone | None:
        """Take the share of one log.

        :raises PartitionUnavailable: it could not be reached.
        """
        if name in self.away:
            raise self.away[name]
        if name in self.gone:
            return self.gone[name]
        share = self._shares.get(name, self._limit.rows)
        taken = self.logs[name].take(self.snapshots[name], share)
        if isinstance(taken, Gone):
            self.gone[name] = taken
        elif taken is None and share != 0:
            self._empty.add(name)
        elif taken is not None and taken.ended:
            self._ended.add(name)
        return taken

    def share_again(self) -> bool:
        """Share among the others what those had that gave nothing; False: there is nothing to share."""
        before = self._shares
        self._shares = self._shared()
        return before != self._shares

    def reason(self, count: int) -> str:
        """Word why a batch has so many rows."""
        usable = self.usable
        there: int | None = None
        if set(usable) <= self._ended:
            there = count
        elif all(each.available is not None for each in usable.values()):
            there = sum(each.available or 0 for each in usable.values())
        return self._limit.reason_for(count, there)

    def _shared(self) -> dict[str, int]:
        rows = self._limit.rows
        usable = self.usable
        if rows is None or len(usable) < 2:
            return {}
        return self._limit.shares(
            {name: self.logs[name].count(each, rows) for name, each in usable.items()}
        )


class LimitedSource(Source):
    """A source whose batches have limits."""

    def __init__(
        self,
        *,
        kind: str = "transactional",
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        target_seconds: float | None = None,
    ) -> None:
        """Take what limits a batch.

        :param kind: ``transactional`` or ``opaque``.
        :param max_rows_per_batch: at most so many rows in a batch, of all partitions together.
        :param max_bytes_per_batch: at most so many bytes, by a sample of the rows.
        :param target_seconds: as many rows as are processed in so many seconds, by what the last transactions took.
        """
        self.kind = source_kind(kind, type(self).__name__)
        size = BatchSize.checked(
            type(self).__name__,
            max_rows=max_rows_per_batch,
            max_bytes=max_bytes_per_batch,
            target_seconds=target_seconds,
        )
        self.batch_size = size
        self.limit = size.limit()


class LogSource(LimitedSource, PartitionedTransactionalSource):
    """A source whose partitions are logs: say which there are, and word what is gone."""

    leaves_out_gone: ClassVar[bool] = False
    """Whether an opaque source leaves out a partition whose next rows are gone, rather than to stop."""

    @abstractmethod
    def logs(self, positions: Mapping[str, Json]) -> Mapping[str, PartitionLog]:
        """Make the logs of the partitions that there are now.

        :param positions: of the partitions that took part before.
        """

    def gone_words(self, gone: Mapping[str, Gone]) -> tuple[str, str]:
        """Word the problem that the next rows of partitions are gone, and what a person can do about it."""
        named = "; ".join(f"partition {name}: {each.description}" for name, each in gone.items())
        return (
            f"rows that come next are gone: {named}",
            f"Bring them back, or: {self.command('accept-loss')}",
        )

    def sizes(self, decision: LogDecision) -> Sequence[int]:
        """Measure the bytes of some of the rows that come next."""
        return decision.sizes()

    def partitions(self) -> list[str]:
        return list(self.logs({}))

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        positions = self.partition_positions(position)
        return self.decide_of(self.logs(positions), positions)

    def decide_of(
        self, logs: Mapping[str, PartitionLog], positions: Mapping[str, Json]
    ) -> Batch | None:
        """Decide the next rows of these logs."""
        decision = LogDecision(logs, positions, self.limit, self.sizes)
        if decision.gone and not (self.leaves_out_gone and self.kind is SourceKind.OPAQUE):
            raise self._refused(decision.gone)
        names = self._taking_part(positions, list(logs))

        def take(name: str) -> LogBatch | None:
            taken = decision.take(name)
            if isinstance(taken, Gone):
                raise self._lost(name, taken)
            return taken

        batch = self._joined(positions, names, take)
        while batch is None and decision.share_again():
            batch = self._joined(positions, names, take)
        if batch is not None:
            return replace(batch, reason=decision.reason(batch.count or 0))
        if decision.gone and len(decision.gone) == len(logs):
            raise self._refused(decision.gone)
        return None

    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, partition: str, position: Json
    ) -> Batch | None:
        positions = {} if position is None else {partition: position}
        log = self.logs(positions)[partition]
        taken = LogDecision({partition: log}, positions, self.limit, self.sizes).take(partition)
        if isinstance(taken, Gone):
            raise self._lost(partition, taken)
        return taken

    def backlog(self, position: Json) -> int | None:
        """Count the rows of the partitions that can be reached; None: no partition can be reached."""
        positions = self.partition_positions(position)
        found: list[int] = []
        for name, log in self.logs(positions).items():
            with suppress(PartitionUnavailable):
                found.append(log.backlog(positions.get(name)))
        return sum(found) if found else None

    def losses(self, position: Json) -> Sequence[Loss]:
        found = []
        positions = self.partition_positions(position)
        for name, log in self.logs(positions).items():
            own = positions.get(name)
            if own is None:
                continue
            with suppress(PartitionUnavailable):
                gone = log.gone(own, self.limit.rows)
                if gone is not None:
                    found.append(Loss(name, own, gone.resume_at, gone.description))
        return found

    def _refused(self, gone: Mapping[str, Gone]) -> SourceError:
        problem, remedy = self.gone_words(gone)
        return self.refused(problem, f"Nothing was allocated. {remedy}")

    def _lost(self, name: str, gone: Gone) -> SourceError:
        if not (self.leaves_out_gone and self.kind is SourceKind.OPAQUE):
            return self._refused({name: gone})
        reason = ". ".join(self.gone_words({name: gone})).rstrip(".")
        return PartitionUnavailable(partition=name, source=repr(self), reason=reason)
