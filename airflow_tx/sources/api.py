"""What a source is: who decides which rows a transaction has, and who turns that decision into rows.

Source: storm-transactional-topologies (ITransactionalSpout: Coordinator and Emitter).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

    from airflow_tx.protocol.attempt import TransactionAttempt

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"


class SourceKind(str, Enum):
    """What a source promises about a replay."""

    TRANSACTIONAL = "transactional"
    OPAQUE = "opaque"
    NON_TRANSACTIONAL = "non-transactional"


@dataclass(frozen=True)
class Batch:
    """The rows of one transaction, as metadata.

    :param rows: plain JSON that says exactly which rows they are.
    :param position: plain JSON that says where the source stands after them; it determines every row taken so far.
    """

    rows: Json
    position: Json


class TransactionalSource(ABC):
    """A source of batches. Subclass it; `initialize_transaction` and `emit_batch` are all a source must have.

    Both halves of the seeds' spout are methods of this one class: the coordinator half (`is_ready`,
    `initialize_transaction`) runs in `begin`, the emitter half (`emit_batch`, `cleanup_before`) in the processing
    tasks. An instance travels to a Spark application as `serialize()` says, so its constructor takes plain JSON.
    """

    kind: ClassVar[SourceKind] = SourceKind.TRANSACTIONAL

    @abstractmethod
    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Class path and plain-JSON constructor arguments, free of addresses and credentials."""

    def is_ready(self) -> bool:
        """Whether the source can be asked for a batch now."""
        return True

    @abstractmethod
    def initialize_transaction(self, txid: int, prev_metadata: Json) -> Batch | Json:
        """Decide the rows of transaction `txid`.

        :param prev_metadata: the position after transaction txid − 1; None for the first one.
        :return: a `Batch`; plain JSON if rows and position are the same; None if there is no data.
        """

    @abstractmethod
    def emit_batch(
        self,
        attempt: TransactionAttempt,
        metadata: Json,
        spark: SparkSession | None = None,
    ) -> DataFrame | Iterable[Mapping[str, Any]]:
        """Exactly the rows that `metadata` names: a Spark DataFrame if `spark` is given, else Python rows.

        :raises SourceError: if exactly these rows cannot be had.
        """

    def cleanup_before(self, txid: int) -> None:
        """Forget what was kept for transactions before `txid`; they are final."""

    def close(self) -> None:
        """Give back connections."""


def as_batch(decided: Batch | Json) -> Batch | None:
    """Read the answer of `initialize_transaction`: plain JSON stands for both rows and position."""
    if decided is None or isinstance(decided, Batch):
        return decided
    return Batch(rows=decided, position=decided)


def rebuild(classpath: str, arguments: Mapping[str, Any]) -> TransactionalSource:
    """Make the source that `serialize()` described, as Airflow does with triggers."""
    from importlib import import_module

    module, _, name = classpath.rpartition(".")
    source: TransactionalSource = getattr(import_module(module), name)(**arguments)
    return source
