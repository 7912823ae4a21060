"""The base classes of partitioned sources, and of partitions that are logs.

A log has ordered rows, and a position after each row. A `PartitionLog` finds a partition's rows after a position, takes
the next rows and reads them. `LogSource` does the rest for all logs. It divides the batch limit among the partitions,
explains the batch size, lists lost rows, and omits unreachable partitions.
"""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_tx.base.errors import OtherSource, PartitionUnavailable, SourceError
from airflow_tx.base.remedy import Command, Remedy
from airflow_tx.base.rows import dicts_of
from airflow_tx.ledger import Loss, TransactionAttempt
from airflow_tx.sources.api import (
    Batch,
    BatchSize,
    EmittedRows,
    Json,
    Limit,
    Source,
    SourceKind,
    as_batch,
    source_kind,
)

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


# --- partitioned --------------------------------------------------------------------------------------------------
# Sources with several partitions. The ledger stores one position per partition.
#
# Source: storm-transactional-topologies (IPartitionedTransactionalSpout, IOpaquePartitionedTransactionalSpout).


log = logging.getLogger(__name__)


class PartitionedTransactionalSource(Source):
    """The base class of a transactional source of partitions.

    A subclass lists the partitions, decides the next batch of one partition, and reads its rows. The ledger stores
    metadata and position separately for each partition. You can add a partition at any time. If a partition with a
    position is missing, `decide` fails until the partition is back.
    """

    partitioned: ClassVar[bool] = True

    def num_partitions(self) -> int:
        """Return the number of partitions, which are named "0", "1" and so on.

        For other names, override `partitions`.
        """
        raise NotImplementedError(f"{type(self).__name__} has no num_partitions and no partitions")

    def partitions(self) -> Sequence[str]:
        """Return the names of the current partitions."""
        return [str(number) for number in range(self.num_partitions())]

    @abstractmethod
    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, partition: str, position: Json
    ) -> Batch | Json | None:
        """Decide one partition's rows in a transaction. Unlike Storm's spout, this method reads no rows.

        :param position: position of the partition, or None if no batch has included the partition yet.
        :return: a `Batch`, or plain JSON that serves as both metadata and position, or None if the partition has no new
            rows.
        :raises PartitionUnavailable: the partition cannot be reached now.
        """

    @abstractmethod
    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        """Read exactly the rows of one partition that `metadata` names. See `emit_batch`."""

    def decide(self, attempt: TransactionAttempt, position: Json) -> Batch | None:
        positions = self.partition_positions(position)

        def take(partition: str) -> Batch | None:
            return as_batch(
                self.emit_partition_batch_new(attempt, partition, positions.get(partition))
            )

        batch = self._joined(positions, self._taking_part(positions, self.partitions()), take)
        if batch is None or batch.count is None:
            return batch
        return replace(batch, reason=self.limit_reason(batch.count, positions))

    def _joined(
        self,
        positions: Mapping[str, Any],
        partitions: Sequence[str],
        take: Callable[[str], Batch | None],
    ) -> Batch | None:
        """Combine the decisions of all partitions into one batch. Partitions that cannot be reached are omitted."""
        taken: dict[str, Batch] = {}
        for partition in partitions:
            before = positions.get(partition)
            try:
                batch = take(partition)
            except PartitionUnavailable as error:
                self._unavailable(error)
                continue
            if batch is not None:
                self._check_moved(partition, before, batch)
                taken[partition] = batch
        if not taken:
            return None
        counts = [batch.count for batch in taken.values() if batch.count is not None]
        count = sum(counts) if len(counts) == len(taken) else None
        rows = {partition: batch.metadata for partition, batch in taken.items()}
        after = {partition: batch.position for partition, batch in taken.items()}
        starts = {name: batch.start for name, batch in taken.items() if batch.start is not None}
        start: Json = {name: each for name, each in starts.items() if name not in positions}
        at_most = any(batch.at_most for batch in taken.values())
        return Batch(rows, after, count, unit=self.unit, start=start, at_most=at_most)

    def decide_again(self, attempt: TransactionAttempt, metadata: Json) -> Json:
        assert isinstance(metadata, dict)
        return {
            name: self.decide_partition_again(attempt, name, each)
            for name, each in metadata.items()
        }

    def refuses_again(self, metadata: Json) -> str | None:
        assert isinstance(metadata, dict)
        found = (self.partition_refuses_again(name, each) for name, each in metadata.items())
        return next((why for why in found if why is not None), None)

    def partition_refuses_again(self, partition: str, metadata: Json) -> str | None:
        """Explain why the rows of one partition cannot be read again. See `refuses_again`."""
        return None

    def decide_partition_again(
        self, attempt: TransactionAttempt, partition: str, metadata: Json
    ) -> Json:
        """Decide the same rows of a partition again, from their current content."""
        return metadata

    def contains(self, metadata: Json, what: str) -> bool | None:
        """Return whether any partition of a batch contains `what`. The text `PARTITION:WHAT` names one partition."""
        if not isinstance(metadata, dict):
            return False
        found = {
            self.partition_contains(name, each, what.removeprefix(f"{name}:"))
            for name, each in metadata.items()
        }
        return True if True in found else None if None in found else False

    def partition_contains(self, partition: str, metadata: Json, what: str) -> bool | None:
        """Return whether one partition's batch contains `what`, or None if the source cannot tell."""
        return None

    def reaches(self, position: Json, what: str) -> bool | None:
        for name, each in self.partition_positions(position).items():
            if what.startswith(f"{name}:"):
                return self.partition_reaches(name, each, what.removeprefix(f"{name}:"))
        return (
            False if ":" in what else None
        )  # False means that the transactions took no rows from that partition.

    def partition_reaches(self, partition: str, position: Json, what: str) -> bool | None:
        """Return whether one partition's position is past `what`, or None if the source cannot tell."""
        return None

    def limit_reason(self, count: int, positions: Mapping[str, Json]) -> str:
        """Explain how the size of the batch was chosen.

        :param count: number of rows in the batch.
        :param positions: position of each partition before the batch.
        """
        return self.limit.reason_for(count, None)

    def emit_batch(
        self, attempt: TransactionAttempt, metadata: Json, spark: SparkSession | None = None
    ) -> EmittedRows:
        if not isinstance(metadata, dict) or not metadata:
            raise OtherSource(
                source=repr(self), problem=f"{str(metadata)[:80]!r} names no partition"
            )
        if spark is None:
            return self._all_rows(attempt, metadata)
        parts = [
            self.emit_partition_batch(attempt, name, metadata[name], spark)
            for name in sorted(metadata)
        ]
        if not all(
            hasattr(part, "unionByName") for part in parts
        ):  # the source returned Python rows
            return chain.from_iterable(map(dicts_of, parts))
        return reduce(lambda one, other: one.unionByName(other), cast("list[DataFrame]", parts))

    def _all_rows(
        self, attempt: TransactionAttempt, metadata: Mapping[str, Json]
    ) -> Iterator[Mapping[str, Any]]:
        for name in sorted(metadata):
            yield from dicts_of(self.emit_partition_batch(attempt, name, metadata[name]))

    def partition_positions(self, position: Json) -> dict[str, Any]:
        """Return the positions of all partitions.

        :raises OtherSource: a source without partitions wrote this position.
        """
        if position is None:
            return {}
        if not isinstance(position, dict):
            raise OtherSource(
                source=repr(self), problem=f"position {str(position)[:80]!r} has no partitions"
            )
        return position

    def _taking_part(
        self, positions: Mapping[str, Any], partitions: Sequence[str]
    ) -> Sequence[str]:
        found = self._names(partitions)
        lost = sorted(set(positions) - set(found))
        if lost:
            self._gone(lost)
        return found

    def _names(self, partitions: Sequence[str]) -> list[str]:
        found = list(partitions)
        times = Counter(map(repr, found))
        wrong = [name for name in found if not _is_name(name) or times[repr(name)] > 1]
        if wrong:
            remedy = "Give each partition a unique, non-empty name that UTF-8 can encode."
            raise self.refused(f"partitions() returned {wrong[0]!r}", remedy)
        return found

    def _check_moved(self, partition: str, before: Json, batch: Batch) -> None:
        # The ledger cannot detect an unchanged position if other partitions have moved.
        if batch.position == before:
            raise self.refused(
                f"partition {partition} has rows {str(batch.metadata)[:80]}, but its position stays "
                f"{str(before)[:80]}: the next batch would contain the rows again",
                "Nothing was allocated. The source must return a position after these rows.",
            )

    def _gone(self, partitions: Sequence[str]) -> None:
        named = ", ".join(partitions[:20]) + (" ..." if len(partitions) > 20 else "")
        if self.kind is SourceKind.TRANSACTIONAL:
            raise self._stopped(f"partition {named} was in earlier batches and is gone")
        log.warning(
            "%r leaves out partition %s, which is gone; it keeps its position.", self, named
        )

    def _unavailable(self, error: PartitionUnavailable) -> None:
        if self.kind is SourceKind.TRANSACTIONAL:
            raise self._stopped(
                f"partition {error.partition} cannot be reached: {error.reason}"
            ) from error
        log.warning("%s The partition is left out of this batch and keeps its position.", error)

    def _stopped(self, problem: str) -> SourceError:
        return self.refused(
            problem,
            "Nothing was allocated. Bring the partition back, then clear this task. If a source may lose partitions, "
            "make its kind opaque.",
        )


class OpaquePartitionedTransactionalSource(PartitionedTransactionalSource):
    """The base class of a partitioned source that continues while some partitions cannot be reached.

    A batch omits a partition that is missing or cannot be reached. The partition keeps its position, so a later batch
    contains its rows. A replay decides its rows again, from the end of the preceding transaction.
    """

    kind = SourceKind.OPAQUE


def _is_name(name: Any) -> bool:
    try:
        return isinstance(name, str) and bool(name.encode())
    except UnicodeEncodeError:  # some file systems permit names that are not UTF-8
        return False


def is_number_within(what: str, start: int, end: int) -> bool:
    """Return whether a text is a number from `start` to `end`, exclusive."""
    return what.isdecimal() and start <= int(what) < end


def is_number_below(what: str, end: int) -> bool | None:
    """Return whether a text is a number below `end`, or None if it is not a number."""
    return int(what) < end if what.isdecimal() else None


# --- partitions ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gone:
    """The lost next rows of a log.

    :param description: text that names the missing rows.
    :param resume_at: position of the next row that exists.
    :param went_back: whether the log was reset to before the position, so that it repeats taken rows.
    """

    description: str
    resume_at: Json
    went_back: bool = False

    def loss(self, partition: str, position: Json) -> Loss:
        """Convert these rows to a loss, which a user can accept.

        :param partition: name of the partition.
        :param position: position of the partition before the missing rows.
        """
        return Loss(partition, position, self.resume_at, self.description, self.went_back)


@dataclass(frozen=True)
class LogSnapshot:
    """The state of a log after a position.

    :param position: parsed position.
    :param available: number of rows that the log reports, or None if only `count` can determine it. Some of these rows
        may be missing.
    :param gone: next rows that are known to be missing, or None if there are none.
    """

    position: Any
    available: int | None
    gone: Gone | None = None


@dataclass(frozen=True)
class LogBatch(Batch):
    """The rows of one partition in a batch.

    :param metadata: plain JSON that identifies exactly these rows.
    :param position: position of the log after these rows, as plain JSON.
    :param count: number of rows.
    :param reason: explanation of the batch size, which `LogSource` sets.
    :param unit: unit of `count`. `LogSource` counts rows.
    :param start: position where the batch begins.
    :param at_most: whether the batch may have fewer rows than `count`.
    :param key: key of the run that must process the rows, or "" for any run.
    :param run_id: id of that run.
    :param ended: whether the partition currently has no more rows.
    """

    ended: bool = False


class PartitionLog(ABC):
    """The ordered rows of one partition. Each object serves one decision, or the read of one batch."""

    @abstractmethod
    def snapshot(self, position: Json) -> LogSnapshot:
        """Find the rows after a position.

        :param position: position of the partition, or None if no batch has included the partition yet.
        :raises PartitionUnavailable: the partition cannot be reached now.
        """

    @abstractmethod
    def take(self, snapshot: Any, most: int | None) -> LogBatch | Gone | None:
        """Decide the next rows, up to the first missing row.

        :param snapshot: result of `snapshot`.
        :param most: maximum number of rows, or None for no limit.
        :return: the rows, or `Gone` if the first row is missing, or None if there is no row.
        """

    def sizes(self, snapshot: Any) -> Sequence[int]:
        """Return the sizes of some of the next rows, in bytes. Without sizes, a byte limit has no effect."""
        return ()

    def count(self, snapshot: Any, most: int) -> int:
        """Count the available rows. The count may stop at `most`."""
        return int(snapshot.available)

    def backlog(self, position: Json) -> int:
        """Count the rows after a position."""
        return int(self.snapshot(position).available or 0)

    def gone(self, position: Json, most: int | None) -> Gone | None:
        """Return the lost rows among the next `most` rows, or None if all exist."""
        snapshot = self.snapshot(position)
        if snapshot.gone is not None or not snapshot.available:
            return snapshot.gone
        # Some logs detect missing rows only by looking up every row.
        taken = self.take(snapshot, most)
        return taken if isinstance(taken, Gone) else None

    def lacks(self, position: Json) -> str | None:
        """Return a clause that explains how the log went back to before a position. Return None if it did not."""
        gone = self.snapshot(position).gone
        return gone.description if gone is not None and gone.went_back else None


class LogDecision:
    """Decides one batch: finds each log's new rows, and how many of them the log contributes.

    :param logs: log of each partition.
    :param positions: position of each partition.
    :param limit: limit of the batch.
    :param sizes: function that returns the sizes of some of the next rows of all logs, in bytes.
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
        """The snapshots of the logs that may have new rows."""
        out = {*self.gone, *self._empty}
        return {
            name: each
            for name, each in self.snapshots.items()
            if name not in out and each.available != 0
        }

    def sizes(self) -> list[int]:
        """Return the sizes of some of the next rows of each log, in bytes."""
        return [size for name, each in self.usable.items() for size in self.logs[name].sizes(each)]

    def take(self, name: str) -> LogBatch | Gone | None:
        """Take the rows in one log's share.

        :raises PartitionUnavailable: the partition could not be reached.
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
        """Distribute the shares of logs without rows among the other logs. Return False if no share changes."""
        before = self._shares
        self._shares = self._shared()
        return before != self._shares

    def reason(self, count: int) -> str:
        """Explain how the size of the batch was chosen."""
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
    """The base class of a source whose arguments limit the rows or bytes of a batch."""

    def __init__(
        self,
        *,
        kind: str = "transactional",
        max_rows_per_batch: int | None = None,
        max_bytes_per_batch: int | None = None,
        target_seconds: float | None = None,
    ) -> None:
        """Set the kind and the batch limits of the source.

        :param kind: ``transactional`` or ``opaque``.
        :param max_rows_per_batch: maximum number of rows in a batch, over all partitions.
        :param max_bytes_per_batch: maximum number of bytes in a batch, estimated from a sample of rows.
        :param target_seconds: seconds that a batch should take. Its size depends on the speed of the last transactions.
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

    def gone_refused(self, gone: Iterable[Gone], problem: str, remedy: Remedy | str) -> SourceError:
        """Return the error for lost rows.

        :param remedy: remedy if only the source was restored from a backup, not the states.
        """
        if any(each.went_back for each in gone):
            remedy = Remedy.of(
                "If the states were restored together with the source, first: ",
                Command.of("repair", self.topology, "--roll-forward"),
                ". ",
                remedy,
            )
        return self.refused(problem, Remedy.of("Nothing was allocated. ", remedy))


class LogSource(LimitedSource, PartitionedTransactionalSource):
    """The base class of sources whose partitions are logs. A subclass lists the logs, and may describe lost rows."""

    leaves_out_gone: ClassVar[bool] = False
    """Whether an opaque source omits a partition with lost rows instead of failing."""

    @abstractmethod
    def logs(self, positions: Mapping[str, Json]) -> Mapping[str, PartitionLog]:
        """Return the logs of the current partitions, by partition name.

        :param positions: positions of the partitions that earlier batches included.
        """

    def gone_words(self, gone: Mapping[str, Gone]) -> tuple[str, Remedy]:
        """Describe the problem and the remedy if rows of some partitions are lost."""
        named = "; ".join(f"partition {name}: {each.description}" for name, each in gone.items())
        return (
            f"rows that come next are gone: {named}",
            ("Restore the rows, or accept the loss: " + self.command("accept-loss")),
        )

    def sizes(self, decision: LogDecision) -> Sequence[int]:
        """Return the sizes of some of the next rows, in bytes."""
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
        """Count the rows of the reachable partitions, or return None if there are none."""
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
                    found.append(gone.loss(name, own))
        return found

    def lacks(self, position: Json) -> str | None:
        positions = self.partition_positions(position)
        found = []
        for name, log in self.logs(positions).items():
            with suppress(PartitionUnavailable):
                found.append(log.lacks(positions[name]) if name in positions else None)
        return "; ".join(filter(None, found)) or None

    def _refused(self, gone: Mapping[str, Gone]) -> SourceError:
        problem, remedy = self.gone_words(gone)
        return self.gone_refused(gone.values(), problem, remedy)

    def _lost(self, name: str, gone: Gone) -> SourceError:
        if not (self.leaves_out_gone and self.kind is SourceKind.OPAQUE):
            return self._refused({name: gone})
        reason = ". ".join(map(str, self.gone_words({name: gone}))).rstrip(".")
        return PartitionUnavailable(partition=name, source=repr(self), reason=reason)
