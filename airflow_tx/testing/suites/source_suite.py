"""What every `Source` must do, as tests: subclass `SourceSuite`, say how to make yours and how data gets into it.

class TestMySource(SourceSuite):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path):
        self.path = tmp_path / "data"

    def make(self):
        return MySource(str(self.path))

    def add(self):
        return append_some_rows(self.path)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, ClassVar

import pytest

from airflow_tx.errors import SourceError
from airflow_tx.protocol.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch, Source, SourceKind, rebuild

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from airflow_tx.compat import RunInfo

Row = dict[str, Any]
_MANY = 1_000  # more batches than any test makes
_CREDENTIALS = re.compile(r"://[^/\s]*:[^/\s]*@|\bpassw(or)?d\W+\w|\bat 0x[0-9a-f]+", re.IGNORECASE)


class Ledger:
    """What a ledger does with a source, without anything that can fail: a position per txid, one batch after another.

    :param suite: makes the source, anew for every step as another process would.
    """

    def __init__(self, suite: SourceSuite) -> None:
        self.suite = suite
        self.places: list[Any] = [None]
        self.keys: set[str] = set()

    def decide(self, attempt: int = 1, run: RunInfo | None = None) -> Batch | None:
        """The batch after the last one, which is not taken yet."""
        source = self.suite.make()
        bound = source if run is None else source.for_run(run)
        txid = TransactionAttempt(len(self.places), attempt)
        batch = bound.decide(txid, plain(self.places[-1])) if bound.is_ready() else None
        source.close()
        return batch

    def keep(self, batch: Batch) -> None:
        """The batch is the next transaction's: its position is where the next one begins."""
        place, after = self.places[-1], plain(batch.position)
        # A partition that takes no part keeps its place.
        self.places.append({**(place or {}), **after} if self.suite.make().partitioned else after)

    def run(self) -> RunInfo | None:
        """The next run, of those that the source wants to know."""
        for run in self.suite.runs():
            if run is None or self.suite.make().key(run) not in self.keys:
                return run
        return None

    def take(self) -> Batch | None:
        """Decide the next batch and keep it."""
        run = self.run()
        if run is None and self.suite.make().per_run:
            return None
        batch = self.decide(run=run)
        if batch is not None:
            self.keep(batch)
            if run is not None:
                self.keys.add(self.suite.make().key(run))
        return batch

    def rest(self) -> list[Batch]:
        """Batches until there is no data."""
        batches: list[Batch] = []
        while (batch := self.take()) is not None:
            batches.append(batch)
            assert len(batches) < _MANY, "it has a batch without end"
        return batches


def plain(value: Any) -> Any:
    """A value as it comes back from the ledger."""
    return json.loads(json.dumps(value))


def _sorted(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted(json.dumps(row, sort_keys=True, default=str) for row in rows)


class SourceSuite:
    """The behaviour of a source. Override `make` and `add`, and what else it has of the methods that skip a test.

    The rows that `add` gives are all different, and those that the source gives are equal to them. For a source that
    only Spark can read override the fixture `spark`.
    """

    # No batch of these tests may have more metadata: it is one record of the ledger.
    metadata_limit: ClassVar[int] = 10_000
    # Texts that nobody may see, such as the password that the source reads with.
    secrets: ClassVar[tuple[str, ...]] = ()
    # Whether the rows of a partition (of the source, if it has none) come in the order in which they were added.
    ordered: ClassVar[bool] = True

    # --- what you say of your source ------------------------------------------------------------------------------

    def make(self) -> Source:
        """The source, a new object every time, on the same data."""
        raise NotImplementedError("override `make`")

    def add(self) -> list[Row]:
        """Add data for at least two batches, in every partition there is (in one at least), and return its rows."""
        raise NotImplementedError("override `add`")

    def runs(self) -> Iterable[RunInfo | None]:
        """The runs there are by now, if the batch is the run's own (`per_run`); else any run takes the next rows."""
        return [None]

    def add_partition(self) -> list[Row]:
        """Add a partition with data for at least one batch, and return its rows."""
        pytest.skip("no partition can be added")

    def lose_partition(self) -> None:
        """Let a partition that has data be gone."""
        pytest.skip("no partition can be lost")

    def return_partition(self) -> None:
        """Bring back the partition that is gone, with what it had."""
        pytest.skip("no partition can be lost")

    def lose_rows(self) -> None:
        """Make some row of the first batch be gone for ever."""
        pytest.skip("no row can be lost")

    @pytest.fixture
    def spark(self) -> SparkSession | None:
        """The session that rows are read in; None reads them without Spark."""
        return None

    # --- what the tests use ---------------------------------------------------------------------------------------

    @pytest.fixture
    def ledger(self) -> Ledger:
        """The ledger's side."""
        return Ledger(self)

    @pytest.fixture(autouse=True)
    def _session(self, spark: SparkSession | None) -> None:
        self._spark = spark

    def rows(self, metadata: Any, source: Source | None = None, attempt: int = 1) -> list[Row]:
        """The rows of a batch, as plain dicts."""
        source = source or self.make()
        found: Any = source.emit_batch(TransactionAttempt(1, attempt), plain(metadata), self._spark)
        if hasattr(found, "collect"):  # Spark's
            found = [row.asDict(True) for row in found.collect()]
        rows = [dict(row) for row in found]
        source.close()
        return rows

    def all_rows(self, batches: Iterable[Batch]) -> list[Row]:
        """The rows of batches."""
        return [row for batch in batches for row in self.rows(batch.metadata)]

    def some(self, ledger: Ledger) -> Batch:
        """The next batch, which has rows."""
        batch = ledger.take()
        assert batch is not None, "there is data, and it gave no batch"
        return batch

    # --- metadata ---------------------------------------------------------------------------------------------------

    def test_metadata_is_small_and_plain_json(self, ledger: Ledger) -> None:
        self.add()
        for batch in ledger.rest():
            for value in (batch.metadata, batch.position):
                assert plain(value) == value
                assert len(json.dumps(value)) <= self.metadata_limit

    def test_a_rebuilt_source_is_equal(self, ledger: Ledger) -> None:
        self.add()
        source = self.make()
        classpath, arguments = source.serialize()
        again = rebuild(classpath, plain(arguments))
        assert type(again) is type(source)
        assert (again.serialize(), again.kind, repr(again)) == (source.serialize(), source.kind, repr(source))

    def test_its_repr_and_arguments_show_no_address_and_no_credentials(self) -> None:
        source = self.make()
        for text in (repr(source), json.dumps(source.serialize())):
            assert not _CREDENTIALS.search(text), text
            assert not [secret for secret in self.secrets if secret in text], text
            assert "\n" not in text

    # --- how much there is ------------------------------------------------------------------------------------------

    def test_the_backlog_is_what_no_batch_has(self, ledger: Ledger) -> None:
        self.add()
        before = self._backlog(ledger)
        if before is None:
            pytest.skip("it does not know how much it has")
        assert before > 0
        self.some(ledger)
        after = self._backlog(ledger)
        assert after is not None
        assert 0 < after < before
        ledger.rest()
        assert self._backlog(ledger) == 0

    def test_a_batch_whose_rows_are_counted_has_so_many(self, ledger: Ledger) -> None:
        self.add()
        for batch in ledger.rest():
            if batch.count is not None and batch.unit == "rows":
                assert batch.count == len(self.rows(batch.metadata))
                assert batch.reason

    def _backlog(self, ledger: Ledger) -> int | None:
        source = self.make()
        found = source.backlog(plain(ledger.places[-1]))
        source.close()
        return found

    # --- every row once ---------------------------------------------------------------------------------------------

    def test_without_data_there_is_no_batch(self, ledger: Ledger) -> None:
        if self.make().per_run:
            pytest.skip("every run has its batch")
        self.add()
        ledger.rest()
        for attempt in (1, 2):
            assert ledger.decide(attempt) is None

    def test_a_run_that_was_made_anew_has_the_batch_of_its_key(self, ledger: Ledger) -> None:
        if not self.make().per_run:
            pytest.skip("any run takes the next rows")
        self.add()
        run = ledger.run()
        assert run is not None, "`runs` should give the runs of what `add` adds"
        first, source = ledger.decide(run=run), self.make()
        assert source.for_key(source.key(run)).decide(TransactionAttempt(1, 2), None) == first

    def test_batches_have_every_row_exactly_once(self, ledger: Ledger) -> None:
        added = self.add()
        batches = ledger.rest()
        assert len(batches) > 1, "`add` should add data for two batches"
        assert _sorted(self.all_rows(batches)) == _sorted(added)

    def test_data_that_comes_later_is_in_later_batches(self, ledger: Ledger) -> None:
        added, batches = [], []
        for _ in range(3):
            added += self.add()
            batches += [self.some(ledger), *ledger.rest()]
        assert _sorted(self.all_rows(batches)) == _sorted(added)

    def test_data_may_come_between_two_batches(self, ledger: Ledger) -> None:
        added, batches = self.add(), [self.some(ledger)]
        added += self.add()
        batches += ledger.rest()
        assert _sorted(self.all_rows(batches)) == _sorted(added)

    def test_rows_come_in_order(self, ledger: Ledger) -> None:
        if not self.ordered:
            pytest.skip("its rows have no order")
        added = [*self.add(), *self.add()]
        order = {text: number for number, row in enumerate(added) for text in _sorted([row])}
        seen: dict[str, list[int]] = {}
        for batch in ledger.rest():
            parts: Any = batch.metadata if self.make().partitioned else {"": batch.metadata}
            for partition, metadata in parts.items():
                rows = self.rows({partition: metadata} if self.make().partitioned else metadata)
                seen.setdefault(partition, []).extend(order[text] for row in rows for text in _sorted([row]))
        for numbers in seen.values():
            assert numbers == sorted(numbers)

    def test_the_position_moves_with_every_batch(self, ledger: Ledger) -> None:
        self.add()
        ledger.rest()
        places = [json.dumps(place, sort_keys=True) for place in ledger.places]
        assert len(set(places)) == len(places)

    # --- the same rows again ----------------------------------------------------------------------------------------

    def test_the_same_metadata_gives_the_same_rows(self, ledger: Ledger) -> None:
        self.add()
        batch = self.some(ledger)
        first = self.rows(batch.metadata)
        assert first
        assert self.rows(batch.metadata, attempt=2) == first
        again = rebuild(*plain(self.make().serialize()))
        assert self.rows(batch.metadata, again) == first
        ledger.rest()
        self.add()
        ledger.rest()
        assert _sorted(self.rows(batch.metadata)) == _sorted(first)

    def test_rows_decided_again_are_the_same_as_long_as_nothing_has_changed(self, ledger: Ledger) -> None:
        self.add()
        batches = [self.some(ledger), self.some(ledger)]
        for txid, batch in enumerate(batches, 1):
            source = self.make()
            again = source.decide_again(TransactionAttempt(txid, 2), plain(batch.metadata))
            source.close()
            assert plain(again) == plain(batch.metadata)

    def test_a_source_that_was_closed_can_be_used_again(self, ledger: Ledger) -> None:
        self.add()
        batch = self.some(ledger)
        source = self.make()
        first = self.rows(batch.metadata, source)
        source.close()
        source.close()
        assert self.rows(batch.metadata, source) == first

    def test_cleaning_up_leaves_what_is_not_final(self, ledger: Ledger) -> None:
        added = self.add()
        batches = [self.some(ledger), self.some(ledger)]
        first = self.rows(batches[0].metadata)
        source = self.make()
        source.cleanup_before(2)
        assert self.rows(batches[1].metadata, source)
        batches += ledger.rest()
        assert _sorted([*first, *self.all_rows(batches[1:])]) == _sorted(added)

    def test_rows_that_are_gone_are_an_error_and_never_fewer_rows(self, ledger: Ledger) -> None:
        self.add()
        batch = self.some(ledger)
        self.lose_rows()
        with pytest.raises(SourceError) as refusal:
            self.rows(batch.metadata)
        assert "\n" not in str(refusal.value)

    # --- decided again ----------------------------------------------------------------------------------------------

    def test_a_batch_decided_again_with_those_after_it_has_every_row_once(self, ledger: Ledger) -> None:
        added = self.add()
        run = ledger.run()
        assert ledger.decide(run=run) is not None
        added += self.add()
        again = ledger.decide(attempt=2, run=run)
        assert again is not None
        ledger.keep(again)
        if run is not None:
            ledger.keys.add(self.make().key(run))
        assert _sorted(self.all_rows([again, *ledger.rest()])) == _sorted(added)

    def test_an_opaque_source_that_lost_rows_gives_the_others(self, ledger: Ledger) -> None:
        if self.make().kind is not SourceKind.OPAQUE:
            pytest.skip("a replay of a transactional source has the same rows")
        added = self.add()
        run = ledger.run()
        first = ledger.decide(run=run)
        assert first is not None
        self.lose_rows()
        batches = ledger.rest()
        found = _sorted(self.all_rows(batches))
        assert len(set(found)) == len(found)
        assert set(found) < set(_sorted(added))

    # --- partitions -------------------------------------------------------------------------------------------------

    def test_a_new_partition_is_taken_up(self, ledger: Ledger) -> None:
        if not self.make().partitioned:
            pytest.skip("it has no partitions")
        added, batches = self.add(), [self.some(ledger)]
        before = set(ledger.places[-1])
        added += self.add_partition()
        batches += ledger.rest()
        assert before < set(ledger.places[-1])
        assert _sorted(self.all_rows(batches)) == _sorted(added)

    def test_a_transactional_source_stops_without_a_partition_it_had(self, ledger: Ledger) -> None:
        if self.make().kind is SourceKind.OPAQUE:
            pytest.skip("an opaque source goes on")
        added, batches = self.add(), [self.some(ledger)]
        self.lose_partition()
        for _ in range(2):
            with pytest.raises(SourceError) as refusal:
                ledger.decide()
            assert "\n" not in str(refusal.value)
        self.return_partition()
        batches += ledger.rest()
        assert _sorted(self.all_rows(batches)) == _sorted(added)

    def test_an_opaque_source_goes_on_without_a_partition_and_loses_nothing(self, ledger: Ledger) -> None:
        if self.make().kind is not SourceKind.OPAQUE:
            pytest.skip("a transactional source stops")
        added, batches = self.add(), [self.some(ledger)]
        before = ledger.places[-1]
        self.lose_partition()
        without = ledger.rest()
        # What was read while it was away is read now; of the first batch, when it is back.
        found = self.all_rows(without)
        assert {name for batch in without for name in plain(batch.metadata)} < set(before)
        self.return_partition()
        found += self.all_rows([*batches, *ledger.rest()])
        assert _sorted(found) == _sorted(added)
