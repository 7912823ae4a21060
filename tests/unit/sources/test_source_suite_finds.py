"""The source suite finds what is wrong with a source: each of these has one fault, and fails the test that is named."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Batch
from airflow_tx.sources.memory import MemorySource
from airflow_tx.testing.suites.source_case import Row, SourceLedger
from airflow_tx.testing.suites.source_suite import SourceSuite


class Suite(SourceSuite):
    """The suite over rows in memory."""

    def __init__(self, source: type[MemorySource], kind: str = "transactional") -> None:
        self.source, self.kind = source, kind
        self.data: dict[str, list[Row]] = {"0": [], "1": []}
        self.away: dict[str, list[Row]] = {}
        self.number = 0
        self._spark = None

    def make(self) -> MemorySource:
        return self.source(self.data, 3, self.kind)

    def add(self) -> list[Row]:
        return [row for name in sorted(self.data) for row in self.append(name, 7)]

    def append(self, name: str, count: int) -> list[Row]:
        rows = [{"n": self.number + number} for number in range(count)]
        self.number += count
        self.data.setdefault(name, []).extend(rows)
        return rows

    def add_partition(self) -> list[Row]:
        return self.append("new", 2)

    def lose_partition(self) -> None:
        self.away = {"1": self.data.pop("1")}

    def return_partition(self) -> None:
        self.data.update(self.away)

    def lose_rows(self) -> None:
        del self.data["0"][2:]


class Sound(MemorySource):
    """Without a fault."""


class Overlapping(MemorySource):
    """Its batches share a row."""

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Any) -> Batch | None:
        batch: Any = super().emit_partition_batch_new(attempt, partition, position)
        if batch is None or batch.position == len(self.rows[partition]):
            return batch  # type: ignore[no-any-return]
        return Batch(batch.metadata, batch.position - 1)


class Leaking(MemorySource):
    """A row between two batches is in none."""

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Any) -> Batch | None:
        batch = super().emit_partition_batch_new(attempt, partition, position)
        return batch and Batch(batch.metadata, min(int(str(batch.position)) + 1, len(self.rows[partition])))


class Lenient(MemorySource):
    """Gives fewer rows where some are gone."""

    def emit_partition_batch(
        self, attempt: TransactionAttempt, partition: str, metadata: Any, spark: Any = None
    ) -> Any:
        return self.rows.get(partition, [])[metadata["from"] : metadata["to"]]


class Growing(MemorySource):
    """Its metadata says only where the rows begin."""

    def emit_partition_batch(
        self, attempt: TransactionAttempt, partition: str, metadata: Any, spark: Any = None
    ) -> Any:
        return self.rows[partition][metadata["from"] :]


class Remembering(MemorySource):
    """Its position is in the process."""

    taken: dict[str, Any] = {}  # noqa: RUF012

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Any) -> Batch | None:
        batch = super().emit_partition_batch_new(attempt, partition, self.taken.get(partition))
        if batch is not None:
            self.taken[partition] = batch.position
        return batch


class ByAttempt(MemorySource):
    """Its rows depend on the attempt that asks."""

    def emit_partition_batch(
        self, attempt: TransactionAttempt, partition: str, metadata: Any, spark: Any = None
    ) -> Any:
        return [{**row, "attempt": attempt.attempt} for row in self.rows[partition]]


class Fixed(MemorySource):
    """It looks for partitions once."""

    def partitions(self) -> list[str]:
        return ["0", "1"]


class Forgiving(MemorySource):
    """It goes on without a partition, though it is transactional."""

    def _gone(self, partitions: Any) -> None:
        pass


class Forgetful(MemorySource):
    """A partition that comes back begins where the others are."""

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Any) -> Batch | None:
        start = max(position or 0, 3 * (attempt.txid - 1))
        return super().emit_partition_batch_new(attempt, partition, min(start, len(self.rows[partition])))


class Closing(MemorySource):
    """Once closed, it has nothing."""

    def close(self) -> None:
        self.rows = {}


class Tuples(MemorySource):
    """Its metadata is no plain JSON."""

    def decide(self, attempt: TransactionAttempt, position: Any) -> Batch | None:
        batch: Any = super().decide(attempt, position)
        rows: Any = {"rows": (1, 2)}
        return batch and Batch(rows, batch.position)


class Talkative(MemorySource):
    """Its repr is Python's own."""

    __repr__ = object.__repr__


class Travelling(MemorySource):
    """It loses an argument on the way."""

    def serialize(self) -> tuple[str, dict[str, Any]]:
        classpath, arguments = super().serialize()
        return classpath, {**arguments, "per_batch": self.per_batch + 1}


Check = Callable[[Suite, SourceLedger], None]
S = SourceSuite
FAULTS: list[tuple[type[MemorySource], Check, str]] = [
    (Overlapping, S.test_batches_have_every_row_exactly_once, "transactional"),
    (Leaking, S.test_batches_have_every_row_exactly_once, "transactional"),
    (Lenient, S.test_rows_that_are_gone_are_an_error_and_never_fewer_rows, "transactional"),
    (Lenient, S.test_rows_that_are_gone_are_an_error_and_never_fewer_rows, "opaque"),
    (Growing, S.test_the_same_metadata_gives_the_same_rows, "transactional"),
    (Growing, S.test_data_may_come_between_two_batches, "transactional"),
    (Remembering, S.test_a_batch_decided_again_with_those_after_it_has_every_row_once, "opaque"),
    (ByAttempt, S.test_the_same_metadata_gives_the_same_rows, "transactional"),
    (Fixed, S.test_a_new_partition_is_taken_up, "opaque"),
    (Forgiving, S.test_a_transactional_source_stops_without_a_partition_it_had, "transactional"),
    (Forgetful, S.test_an_opaque_source_goes_on_without_a_partition_and_loses_nothing, "opaque"),
    (Closing, S.test_a_source_that_was_closed_can_be_used_again, "transactional"),
    (Tuples, S.test_metadata_is_small_and_plain_json, "transactional"),
    (Travelling, S.test_a_rebuilt_source_is_equal, "transactional"),
]


@pytest.mark.parametrize(("source", "check", "kind"), FAULTS)
def test_each_faulty_source_fails_the_suite_test_for_its_fault(
    source: type[MemorySource], check: Check, kind: str
) -> None:
    Remembering.taken.clear()
    sound = Suite(Sound, kind)
    check(sound, SourceLedger(sound))
    faulty = Suite(source, kind)
    with pytest.raises((AssertionError, SourceError, pytest.fail.Exception)):
        check(faulty, SourceLedger(faulty))


def test_the_suite_finds_an_address_in_a_repr_and_a_secret_in_the_arguments() -> None:
    with pytest.raises(AssertionError):
        Suite(Talkative).test_its_repr_and_arguments_show_no_address_and_no_credentials()
    told = Suite(Sound)
    told.secrets = ("per_batch",)  # type: ignore[misc]
    with pytest.raises(AssertionError):
        told.test_its_repr_and_arguments_show_no_address_and_no_credentials()


class Empty(Suite):
    """Adds nothing."""

    def add(self) -> list[Row]:
        return []


class Pretending(Suite):
    """Returns rows that its source does not have."""

    def add(self) -> list[Row]:
        return [{"n": 1}, {"n": 2}]


class Mute(Suite):
    """Adds rows, and returns none of them."""

    def add(self) -> list[Row]:
        super().add()
        return []


WITHOUT_ROWS = {
    "test_its_repr_and_arguments_show_no_address_and_no_credentials",  # it looks at the source alone
    "test_a_run_that_was_made_anew_has_the_batch_of_its_key",  # this source has no batches of runs
    "test_a_committed_batch_whose_rows_are_gone_is_refused_before_it_is_begun_again",  # nor does it know that
}
WITH_ROWS = sorted(name for name in vars(S) if name.startswith("test_") and name not in WITHOUT_ROWS)
NO_ROWS = "`add` added no rows: it should add data for two batches, and return its rows"


def of_kind(check: str) -> str:
    """The kind of a source that the test is about."""
    return "opaque" if "opaque_source" in check else "transactional"


def call(suite: Suite, check: str) -> None:
    """Call a test of the suite as pytest does."""
    arguments = inspect.signature(getattr(S, check)).parameters
    getattr(suite, check)(**({"ledger": SourceLedger(suite)} if "ledger" in arguments else {}))


@pytest.mark.parametrize("suite", [Empty, Mute])
@pytest.mark.parametrize("check", WITH_ROWS)
def test_every_suite_test_without_rows_fails_with_a_one_line_error(suite: type[Suite], check: str) -> None:
    with pytest.raises(AssertionError) as failed:
        call(suite(Sound, of_kind(check)), check)
    assert str(failed.value) == NO_ROWS


NEEDS_NO_BATCH = {"test_a_rebuilt_source_is_equal"}


@pytest.mark.parametrize("check", sorted(set(WITH_ROWS) - NEEDS_NO_BATCH))
def test_no_suite_test_passes_if_the_source_does_not_have_the_given_rows(check: str) -> None:
    suite = Pretending(Sound, of_kind(check))
    suite.data.clear()
    with pytest.raises((AssertionError, SourceError)):
        call(suite, check)


def test_a_method_add_partition_that_adds_no_rows_fails_the_suite() -> None:
    class Without(Suite):
        def add_partition(self) -> list[Row]:
            return []

    with pytest.raises(AssertionError, match="`add_partition` added no rows"):
        call(Without(Sound, "opaque"), "test_a_new_partition_is_taken_up")
