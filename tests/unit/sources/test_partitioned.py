"""What every source of partitions gets from its base class."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any, cast

import pytest

from airflow_tx.base.errors import PartitionUnavailable, SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import SourceKind
from airflow_tx.sources.partitions import OpaquePartitionedTransactionalSource, PartitionedTransactionalSource

ATTEMPT = TransactionAttempt(2, 1)


class Scripted(PartitionedTransactionalSource):
    """Says what it is told to say."""

    def __init__(self, answers: dict[str, Any], names: Sequence[Any] | None = None) -> None:
        self.answers, self.names = answers, names

    def __repr__(self) -> str:
        return "Scripted()"

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return "Scripted", {}

    def partitions(self) -> Sequence[str]:
        return list(self.answers) if self.names is None else self.names

    def emit_partition_batch_new(self, attempt: TransactionAttempt, partition: str, position: Any) -> Any:
        answer = self.answers[partition]
        if answer == "away":
            raise PartitionUnavailable(partition=partition, source=repr(self), reason="it is switched off")
        return answer

    def emit_partition_batch(
        self, attempt: TransactionAttempt, partition: str, metadata: Any, spark: Any = None
    ) -> Iterable[dict[str, Any]]:
        return [{"partition": partition, "is": metadata}]


class OpaqueScripted(Scripted, OpaquePartitionedTransactionalSource):
    """The same for partitions that may be away."""


def test_a_partition_with_rows_whose_position_does_not_move_is_refused() -> None:
    with pytest.raises(
        SourceError, match=r"partition b has rows 7, but its position stays 7: the next batch would contain"
    ):
        Scripted({"a": 2, "b": 7}).decide(ATTEMPT, {"a": 1, "b": 7})


def test_a_partition_without_data_is_not_part_of_the_batch() -> None:
    batch = Scripted({"a": 2, "b": None}).decide(ATTEMPT, {"a": 1, "b": 7})
    assert batch is not None
    assert (batch.metadata, batch.position) == ({"a": 2}, {"a": 2})
    assert Scripted({"a": None}).decide(ATTEMPT, None) is None


def test_a_partition_that_cannot_be_reached_stops_a_transactional_source_and_not_an_opaque_one(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answers = {"a": 2, "b": "away"}
    with pytest.raises(SourceError, match=r"partition b cannot be reached: it is switched off\. Nothing was allocated"):
        Scripted(answers).decide(ATTEMPT, None)
    with caplog.at_level(logging.WARNING):
        batch = OpaqueScripted(answers).decide(ATTEMPT, {"gone": 1})
    assert batch is not None
    assert batch.metadata == {"a": 2}
    assert "leaves out partition gone" in caplog.text
    assert "it is switched off. The partition is left out of this batch and keeps its position." in caplog.text


def test_a_lost_partition_stops_a_transactional_source_and_not_an_opaque_source() -> None:
    class Named(Scripted):
        kind = SourceKind.OPAQUE

    assert Named({"a": 2}).decide(ATTEMPT, {"gone": 1}) is not None
    with pytest.raises(SourceError, match=r"partition gone was in earlier batches and is gone\. Nothing was allocated"):
        Scripted({"a": 2}).decide(ATTEMPT, {"gone": 1})


@pytest.mark.parametrize("names", [["a", "a"], [""], [0], ["\udcff"]])
def test_partition_names_that_are_empty_or_not_unique_are_refused(names: list[Any]) -> None:
    with pytest.raises(SourceError, match=r"partitions\(\) returned .* a unique, non-empty name"):
        Scripted({"a": 1, "": 1}, names).decide(ATTEMPT, None)


def test_a_source_without_spark_support_passes_the_rows_of_all_partitions_to_spark() -> None:
    spark: Any = object()
    rows = cast("Iterable[Any]", Scripted({}).emit_batch(ATTEMPT, {"b": 2, "a": 1}, spark))
    assert list(rows) == [{"partition": "a", "is": 1}, {"partition": "b", "is": 2}]


def test_metadata_that_does_not_name_partitions_is_refused() -> None:
    with pytest.raises(SourceError, match=r"'\[1\]' names no partition\. The topology had another source before"):
        Scripted({}).emit_batch(ATTEMPT, [1])
