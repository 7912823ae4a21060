"""The tests of a `Source`. Subclass `SourceSuite`, and define how to create your source and how to add data.

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
from typing import Any

import pytest

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import SourceKind, rebuild
from airflow_tx.testing.suites.source_case import SourceCase, SourceLedger, plain, sorted_texts

_CREDENTIALS = re.compile(r"://[^/\s]*:[^/\s]*@|\bpassw(or)?d\W+\w|\bat 0x[0-9a-f]+", re.IGNORECASE)


class SourceSuite(SourceCase):
    """The tests of a source. Override `make` and `add`, and the methods that skip a test if your source supports them.

    `add` must return rows that are all different and equal to the rows of the source. If only Spark can read your
    source, override the fixture `spark`.
    """

    # --- metadata ---------------------------------------------------------------------------------------------------

    def test_metadata_is_small_and_plain_json(self, ledger: SourceLedger) -> None:
        self.added()
        for batch in ledger.every():
            for value in (batch.metadata, batch.position):
                assert plain(value) == value
                assert len(json.dumps(value)) <= self.metadata_limit

    def test_a_rebuilt_source_is_equal(self, ledger: SourceLedger) -> None:
        self.added()
        source = self.make()
        classpath, arguments = source.serialize()
        again = rebuild(classpath, plain(arguments))
        assert type(again) is type(source)
        assert (again.serialize(), again.kind, repr(again)) == (
            source.serialize(),
            source.kind,
            repr(source),
        )

    def test_its_repr_and_arguments_show_no_address_and_no_credentials(self) -> None:
        source = self.make()
        for text in (repr(source), json.dumps(source.serialize())):
            assert not _CREDENTIALS.search(text), text
            assert not [secret for secret in self.secrets if secret in text], text
            assert "\n" not in text

    # --- how much there is ------------------------------------------------------------------------------------------

    def test_the_backlog_is_what_no_batch_has(self, ledger: SourceLedger) -> None:
        self.added()
        before = self._backlog(ledger)
        if before is None:
            pytest.skip("the source cannot count its waiting rows")
        assert before > 0
        self.some(ledger)
        after = self._backlog(ledger)
        assert after is not None
        assert 0 < after < before
        ledger.rest()
        assert self._backlog(ledger) == 0

    def test_a_batch_whose_rows_are_counted_has_so_many(self, ledger: SourceLedger) -> None:
        self.added()
        counted = [
            each for each in ledger.every() if each.count is not None and each.unit == "rows"
        ]
        if not counted:
            pytest.skip("the source does not count the rows of a batch")
        for batch in counted:
            assert batch.count == len(self.rows(batch.metadata))
            assert batch.reason

    def _backlog(self, ledger: SourceLedger) -> int | None:
        source = self.make()
        found = source.backlog(plain(ledger.places[-1]))
        source.close()
        return found

    # --- every row once ---------------------------------------------------------------------------------------------

    def test_without_data_there_is_no_batch(self, ledger: SourceLedger) -> None:
        if self.make().per_run:
            pytest.skip("every run has its batch")
        self.added()
        ledger.every()
        for attempt in (1, 2):
            assert ledger.decide(attempt) is None

    def test_a_run_that_was_made_anew_has_the_batch_of_its_key(self, ledger: SourceLedger) -> None:
        if not self.make().per_run:
            pytest.skip("every run takes the next rows of the source")
        self.added()
        run = ledger.next_run()
        assert run is not None, "`runs` should return the runs of the rows that `add` adds"
        first = ledger.decide(run=run)
        source = self.make()
        assert source.for_key(source.key(run)).decide(TransactionAttempt(1, 2), None) == first

    def test_batches_have_every_row_exactly_once(self, ledger: SourceLedger) -> None:
        added = self.added()
        batches = ledger.rest()
        assert len(batches) > 1, "`add` should add data for two batches"
        assert sorted_texts(self.all_rows(batches)) == sorted_texts(added)

    def test_data_that_comes_later_is_in_later_batches(self, ledger: SourceLedger) -> None:
        added = []
        batches = []
        for _ in range(3):
            added += self.added()
            batches += [self.some(ledger), *ledger.rest()]
        assert sorted_texts(self.all_rows(batches)) == sorted_texts(added)

    def test_data_may_come_between_two_batches(self, ledger: SourceLedger) -> None:
        added = self.added()
        batches = [self.some(ledger)]
        added += self.added()
        batches += ledger.rest()
        assert sorted_texts(self.all_rows(batches)) == sorted_texts(added)

    def test_rows_come_in_order(self, ledger: SourceLedger) -> None:
        if not self.ordered:
            pytest.skip("its rows have no order")
        added = [*self.added(), *self.added()]
        order = {text: number for number, row in enumerate(added) for text in sorted_texts([row])}
        seen: dict[str, list[int]] = {}
        for batch in ledger.every():
            parts: Any = batch.metadata if self.make().partitioned else {"": batch.metadata}
            for partition, metadata in parts.items():
                rows = self.rows({partition: metadata} if self.make().partitioned else metadata)
                seen.setdefault(partition, []).extend(
                    order[text] for row in rows for text in sorted_texts([row])
                )
        for numbers in seen.values():
            assert numbers == sorted(numbers)

    def test_the_position_moves_with_every_batch(self, ledger: SourceLedger) -> None:
        self.added()
        ledger.every()
        places = [json.dumps(place, sort_keys=True) for place in ledger.places]
        assert len(set(places)) == len(places)

    # --- the same rows again ----------------------------------------------------------------------------------------

    def test_the_same_metadata_gives_the_same_rows(self, ledger: SourceLedger) -> None:
        self.added()
        batch = self.some(ledger)
        first = self.rows(batch.metadata)
        assert first
        assert self.rows(batch.metadata, attempt=2) == first
        again = rebuild(*plain(self.make().serialize()))
        assert self.rows(batch.metadata, again) == first
        ledger.rest()
        self.added()
        ledger.rest()
        assert sorted_texts(self.rows(batch.metadata)) == sorted_texts(first)

    def test_rows_decided_again_are_the_same_as_long_as_nothing_has_changed(
        self, ledger: SourceLedger
    ) -> None:
        self.added()
        batches = [self.some(ledger), self.some(ledger)]
        for txid, batch in enumerate(batches, 1):
            source = self.make()
            again = source.decide_again(TransactionAttempt(txid, 2), plain(batch.metadata))
            source.close()
            assert plain(again) == plain(batch.metadata)

    def test_a_committed_batch_can_be_read_again_as_long_as_its_rows_are_there(
        self, ledger: SourceLedger
    ) -> None:
        self.added()
        batches = [self.some(ledger), self.some(ledger)]
        source = self.make()
        found = [source.refuses_again(plain(batch.metadata)) for batch in batches]
        source.close()
        assert [why is None for why in found] == [self.gives_again] * 2

    def test_a_committed_batch_whose_rows_are_gone_is_refused_before_it_is_begun_again(
        self, ledger: SourceLedger
    ) -> None:
        if not self.knows_what_is_gone:
            pytest.skip("the source finds lost rows only when it reads them")
        self.added()
        batch = self.some(ledger)
        self.lose_rows()
        source = self.make()
        assert source.refuses_again(plain(batch.metadata))
        source.close()

    def test_record_batches_have_the_same_rows(self, ledger: SourceLedger) -> None:
        if self._spark is not None:
            pytest.skip("only Spark can read this source")
        self.added()
        batch = self.some(ledger)
        source = self.make()
        reader = source.emit_arrow(TransactionAttempt(1, 1), plain(batch.metadata))
        found = [row for each in reader for row in each.to_pylist(maps_as_pydicts="strict")]
        source.close()
        assert sorted_texts(found) == sorted_texts(self.rows(batch.metadata))

    def test_a_source_that_was_closed_can_be_used_again(self, ledger: SourceLedger) -> None:
        self.added()
        batch = self.some(ledger)
        source = self.make()
        first = self.rows(batch.metadata, source)
        source.close()
        source.close()
        assert self.rows(batch.metadata, source) == first

    def test_cleaning_up_leaves_what_is_not_final(self, ledger: SourceLedger) -> None:
        added = self.added()
        batches = [self.some(ledger), self.some(ledger)]
        first = self.rows(batches[0].metadata)
        source = self.make()
        source.cleanup_before(2)
        assert self.rows(batches[1].metadata, source)
        batches += ledger.rest()
        assert sorted_texts([*first, *self.all_rows(batches[1:])]) == sorted_texts(added)

    def test_rows_that_are_gone_are_an_error_and_never_fewer_rows(
        self, ledger: SourceLedger
    ) -> None:
        self.added()
        batch = self.some(ledger)
        self.lose_rows()
        with pytest.raises(SourceError) as refusal:
            self.rows(batch.metadata)
        assert "\n" not in str(refusal.value)

    # --- decided again ----------------------------------------------------------------------------------------------

    def test_a_batch_decided_again_with_those_after_it_has_every_row_once(
        self, ledger: SourceLedger
    ) -> None:
        added = self.added()
        run = ledger.next_run()
        assert ledger.decide(run=run) is not None
        added += self.added()
        again = ledger.decide(attempt=2, run=run)
        assert again is not None
        ledger.keep(again)
        if run is not None:
            ledger.keys.add(self.make().key(run))
        assert sorted_texts(self.all_rows([again, *ledger.rest()])) == sorted_texts(added)

    def test_an_opaque_source_that_lost_rows_gives_the_others(self, ledger: SourceLedger) -> None:
        if self.make().kind is not SourceKind.OPAQUE:
            pytest.skip("a replay of a transactional source has the same rows")
        added = self.added()
        run = ledger.next_run()
        first = ledger.decide(run=run)
        assert first is not None
        self.lose_rows()
        batches = ledger.rest()
        found = sorted_texts(self.all_rows(batches))
        assert len(set(found)) == len(found)
        assert set(found) < set(sorted_texts(added))

    # --- partitions -------------------------------------------------------------------------------------------------

    def test_a_new_partition_is_taken_up(self, ledger: SourceLedger) -> None:
        if not self.make().partitioned:
            pytest.skip("the source has no partitions")
        added = self.added()
        batches = [self.some(ledger)]
        before = set(ledger.places[-1])
        added += self.added_partition()
        batches += ledger.rest()
        assert before < set(ledger.places[-1])
        assert sorted_texts(self.all_rows(batches)) == sorted_texts(added)

    def test_a_transactional_source_stops_without_a_partition_it_had(
        self, ledger: SourceLedger
    ) -> None:
        if self.make().kind is SourceKind.OPAQUE:
            pytest.skip("an opaque source continues")
        added = self.added()
        batches = [self.some(ledger)]
        self.lose_partition()
        for _ in range(2):
            with pytest.raises(SourceError) as refusal:
                ledger.decide()
            assert "\n" not in str(refusal.value)
        self.return_partition()
        batches += ledger.rest()
        assert sorted_texts(self.all_rows(batches)) == sorted_texts(added)

    def test_an_opaque_source_goes_on_without_a_partition_and_loses_nothing(
        self, ledger: SourceLedger
    ) -> None:
        if self.make().kind is not SourceKind.OPAQUE:
            pytest.skip("a transactional source stops")
        added = self.added()
        batches = [self.some(ledger)]
        before = ledger.places[-1]
        self.lose_partition()
        without = ledger.rest()
        # The batches without the partition are read now. The first batch is read when the partition
        # is restored.
        found = self.all_rows(without)
        assert {name for batch in without for name in plain(batch.metadata)} < set(before)
        self.return_partition()
        found += self.all_rows([*batches, *ledger.rest()])
        assert sorted_texts(found) == sorted_texts(added)
