"""The base class of the tests of a source, with the methods to override, and the steps of the ledger."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from airflow_tx.base.rows import dicts_of
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.reading import position_after
from airflow_tx.sources.api import Batch, Source

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.base.compat import RunInfo

Row = dict[str, Any]
_MANY = 1_000  # More batches than any test creates.


class SourceLedger:
    """A ledger for the tests of a source. It keeps one position per txid, and decides one batch after another.

    :param suite: the suite. It creates a new source object for every step, as another process would do.
    """

    def __init__(self, suite: SourceCase) -> None:
        self.suite = suite
        self.places: list[Any] = [None]
        self.keys: set[str] = set()
        self.asked: Source | None = None

    def close(self) -> None:
        """Close the source that decided the last batch."""
        if self.asked is not None:
            self.asked.close()

    def decide(self, attempt: int = 1, run: RunInfo | None = None) -> Batch | None:
        """Decide the next batch without keeping it, or return None if there is no data."""
        self.close()
        source = self.suite.make()
        self.asked = source if run is None else source.for_run(run)
        txid = TransactionAttempt(len(self.places), attempt)
        return self.asked.decide(txid, plain(self.places[-1])) if self.asked.is_ready() else None

    def keep(self, batch: Batch) -> None:
        """Store a batch as the next transaction, so that the next batch starts at its position."""
        place = plain(batch.position)
        partitioned = self.suite.make().partitioned
        self.places.append(position_after(self.places[-1], place, partitioned=partitioned))
        if self.asked is not None:
            self.asked.begun(len(self.places) - 1, plain(batch.metadata))
        self.close()

    def next_run(self) -> RunInfo | None:
        """Return the next run without a batch, or None if there is none or runs have no batches of their own."""
        for run in self.suite.runs():
            if run is None or self.suite.make().key(run) not in self.keys:
                return run
        return None

    def take(self) -> Batch | None:
        """Decide and keep the next batch, or return None if there is no data."""
        run = self.next_run()
        if run is None and self.suite.make().per_run:
            return None
        batch = self.decide(run=run)
        if batch is not None:
            self.keep(batch)
            if run is not None:
                self.keys.add(self.suite.make().key(run))
        return batch

    def every(self) -> list[Batch]:
        """Decide and keep batches until there is no more data.

        :raises AssertionError: there is no batch. A test of all batches would then pass without checking anything.
        """
        batches = self.rest()
        if not batches:
            raise AssertionError(
                "`add` returned rows, but the source returned no batch of these rows"
            )
        return batches

    def rest(self) -> list[Batch]:
        """Decide and keep batches until there is no more data. Return without a batch if there is no data."""
        batches: list[Batch] = []
        while (batch := self.take()) is not None:
            batches.append(batch)
            assert len(batches) < _MANY, "the source returns too many batches"
        return batches


def _some(rows: Iterable[Row], problem: str) -> list[Row]:
    """Return the added rows as a list. Fail if there are no rows."""
    found = list(rows)
    if not found:
        raise AssertionError(problem)
    return found


def plain(value: Any) -> Any:
    """Return a value as the ledger returns it, converted to JSON and back."""
    return json.loads(json.dumps(value))


def sorted_texts(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the rows as sorted texts, so that results can be compared regardless of row order."""
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


class SourceCase:
    """The description of a source for its tests."""

    # The maximum length of a batch's metadata in these tests, in characters, since it is one record
    # of the ledger.
    metadata_limit: ClassVar[int] = 10_000
    # Texts that must not appear in output, such as the password of the source.
    secrets: ClassVar[tuple[str, ...]] = ()
    # Whether the rows of a partition are read in the order in which they were added. A source
    # without partitions has one partition.
    ordered: ClassVar[bool] = True
    # Whether the rows of a committed batch can be read again.
    gives_again: ClassVar[bool] = True
    # Whether the source can detect, without reading rows, that rows no longer exist.
    knows_what_is_gone: ClassVar[bool] = False

    # --- methods to override --------------------------------------------------------------------------------------

    def make(self) -> Source:
        """Return a new source object that reads the same data."""
        raise NotImplementedError("override `make`")

    def add(self) -> list[Row]:
        """Add data for at least two batches to every partition, or to at least one partition. Return the rows."""
        raise NotImplementedError("override `add`")

    def runs(self) -> Iterable[RunInfo | None]:
        """Return the existing runs, if each run has its own batch (`per_run`). Otherwise any run gets the next rows."""
        return [None]

    def add_partition(self) -> list[Row]:
        """Add a partition with data for at least one batch, and return the rows."""
        pytest.skip("no partition can be added")

    def lose_partition(self) -> None:
        """Remove a partition that has data."""
        pytest.skip("no partition can be lost")

    def return_partition(self) -> None:
        """Restore the partition that was removed, with its data."""
        pytest.skip("no partition can be lost")

    def lose_rows(self) -> None:
        """Delete a row of the first batch permanently."""
        pytest.skip("no row can be lost")

    @pytest.fixture
    def spark(self) -> SparkSession | None:
        """Return the Spark session that reads the rows, or None if the source does not need Spark."""
        return None

    # --- methods for the tests ------------------------------------------------------------------------------------

    @pytest.fixture
    def ledger(self) -> Iterator[SourceLedger]:
        ledger = SourceLedger(self)
        yield ledger
        ledger.close()

    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def added(self) -> list[Row]:
        """Add data. Fail if none was added, since each test would then pass without checking anything."""
        return _some(
            self.add(),
            "`add` added no rows: it should add data for two batches, and return its rows",
        )

    def added_partition(self) -> list[Row]:
        """Add a partition. Fail if it has no data."""
        return _some(
            self.add_partition(),
            "`add_partition` added no rows: it should add data for a batch, and return its rows",
        )

    def rows(self, metadata: Any, source: Source | None = None, attempt: int = 1) -> list[Row]:
        source = source or self.make()
        found: Any = source.emit_batch(TransactionAttempt(1, attempt), plain(metadata), self._spark)
        if hasattr(found, "collect"):  # The value is a Spark DataFrame.
            found = [row.asDict(True) for row in found.collect()]
        rows = [dict(row) for row in dicts_of(found)]
        source.close()
        return rows

    def all_rows(self, batches: Iterable[Batch]) -> list[Row]:
        return [row for batch in batches for row in self.rows(batch.metadata)]

    def some(self, ledger: SourceLedger) -> Batch:
        """Decide and keep the next batch. Fail if there is none."""
        batch = ledger.take()
        assert batch is not None, "there is data, but the source returned no batch"
        return batch
