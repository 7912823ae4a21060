"""Sources of several partitions, each with a position of its own that the ledger keeps.

Source: storm-transactional-topologies (IPartitionedTransactionalSpout, IOpaquePartitionedTransactionalSpout).
"""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from itertools import chain
from typing import TYPE_CHECKING, Any, ClassVar, cast

from airflow_tx.base.errors import OtherSource, PartitionUnavailable, SourceError
from airflow_tx.sources.api import Batch, EmittedRows, Json, Source, SourceKind, as_batch

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.ledger.attempt import TransactionAttempt

log = logging.getLogger(__name__)


class PartitionedTransactionalSource(Source):
    """A source of partitions: say which there are, what the next batch of one is, and what rows that batch has.

    The ledger keeps rows and position of every partition by itself. A partition may be added at any time; one that
    took part before and is gone stops the source with the reason, until it is back.
    """

    partitioned: ClassVar[bool] = True

    def num_partitions(self) -> int:
        """Count the partitions that there are now, if they are numbered; else override `partitions`."""
        raise NotImplementedError(f"{type(self).__name__} has no num_partitions and no partitions")

    def partitions(self) -> Sequence[str]:
        """Name the partitions that there are now."""
        return [str(number) for number in range(self.num_partitions())]

    @abstractmethod
    def emit_partition_batch_new(
        self, attempt: TransactionAttempt, partition: str, position: Json
    ) -> Batch | Json | None:
        """Decide the rows of one partition in a transaction. No row is read here: Storm's spout emits them, too.

        :param position: of the partition; None if it never took part.
        :return: a `Batch`; plain JSON if rows and position are the same; None if the partition has nothing now.
        :raises PartitionUnavailable: it cannot be reached now.
        """

    @abstractmethod
    def emit_partition_batch(
        self,
        attempt: TransactionAttempt,
        partition: str,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> EmittedRows:
        """Read exactly the rows of one partition that `metadata` names; see `emit_batch`."""

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
        """Join the rows of all partitions to one batch, without partitions that are away."""
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
        """Say why the rows of one partition cannot be read again."""
        return None

    def decide_partition_again(
        self, attempt: TransactionAttempt, partition: str, metadata: Json
    ) -> Json:
        """Decide the same rows of one partition, with their current content."""
        return metadata

    def contains(self, metadata: Json, what: str) -> bool | None:
        """Whether a batch has what a person looks for, in the partition that `PARTITION:WHAT` names, or in any."""
        if not isinstance(metadata, dict):
            return False
        found = {
            self.partition_contains(name, each, what.removeprefix(f"{name}:"))
            for name, each in metadata.items()
        }
        return True if True in found else None if None in found else False

    def partition_contains(self, partition: str, metadata: Json, what: str) -> bool | None:
        """Whether the batch of one partition has what a person looks for; None if it cannot tell."""
        return None

    def reaches(self, position: Json, what: str) -> bool | None:
        for name, each in self.partition_positions(position).items():
            if what.startswith(f"{name}:"):
                return self.partition_reaches(name, each, what.removeprefix(f"{name}:"))
        return False if ":" in what else None  # nothing was taken of that partition

    def partition_reaches(self, partition: str, position: Json, what: str) -> bool | None:
        """Whether all of one partition was taken up to what a person waits for; None if it cannot tell."""
        return None

    def limit_reason(self, count: int, positions: Mapping[str, Json]) -> str:
        """Word why a batch has so many rows.

        :param positions: of every partition, before it.
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
        if not all(hasattr(part, "unionByName") for part in parts):  # a source without Spark
            return chain.from_iterable(cast("list[Iterable[Mapping[str, Any]]]", parts))
        return reduce(lambda one, other: one.unionByName(other), cast("list[DataFrame]", parts))

    def _all_rows(
        self, attempt: TransactionAttempt, metadata: Mapping[str, Json]
    ) -> Iterator[Mapping[str, Any]]:
        for name in sorted(metadata):
            yield from self.emit_partition_batch(attempt, name, metadata[name])  # type: ignore[misc]

    def partition_positions(self, position: Json) -> dict[str, Any]:
        """Read the positions of all partitions; OtherSource: it is the position of a source that has none."""
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
            remedy = (
                "Names of partitions are texts that UTF-8 can spell, not empty, each of them once."
            )
            raise self.refused(f"partitions() gives {wrong[0]!r}", remedy)
        return found

    def _check_moved(self, partition: str, before: Json, batch: Batch) -> None:
        # Beside partitions that moved, the ledger could not notice.
        if batch.position == before:
            raise self.refused(
                f"partition {partition} has rows {str(batch.metadata)[:80]}, and stays at {str(before)[:80]}: "
                "the next batch would have them again",
                "Nothing was allocated; let the source give a position after the rows.",
            )

    def _gone(self, partitions: Sequence[str]) -> None:
        named = ", ".join(partitions[:20]) + (" ..." if len(partitions) > 20 else "")
        if self.kind is SourceKind.TRANSACTIONAL:
            raise self._stopped(f"partition {named} took part before and is gone")
        log.warning(
            "%r leaves out partition %s, which is gone; it keeps its position.", self, named
        )

    def _unavailable(self, error: PartitionUnavailable) -> None:
        if self.kind is SourceKind.TRANSACTIONAL:
            raise self._stopped(
                f"partition {error.partition} cannot be reached: {error.reason}"
            ) from error
        log.warning("%s It is left out of this batch and keeps its position.", error)

    def _stopped(self, problem: str) -> SourceError:
        return self.refused(
            problem,
            "Nothing was allocated. Bring it back, then clear this task; a source that may lose partitions is of kind "
            "opaque.",
        )


class OpaquePartitionedTransactionalSource(PartitionedTransactionalSource):
    """Like its base, for partitions that may be away for a while.

    A partition that is gone or cannot be reached is left out and keeps its position: what it has not given yet is in a
    later batch. A replay is decided again, from where the transaction before it ended.
    """

    kind = SourceKind.OPAQUE


def _is_name(name: Any) -> bool:
    try:
        return isinstance(name, str) and bool(name.encode())
    except UnicodeEncodeError:  # of a file system with other names
        return False
