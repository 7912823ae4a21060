"""States that know the keys to which one transaction alone has contributed: a restatement can replace their values."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence

from airflow_tx.state.aggregators import Cells
from airflow_tx.state.api import QueryableState

REPLACING = -1
"""The first chunk whose rows replace values that cannot be taken back; others of a grant have lower numbers."""


def replaces(chunk: int | None) -> bool:
    """Ask whether the rows of a chunk replace values: no other transaction has contributed to these keys."""
    return chunk is not None and chunk <= REPLACING


class SoleWriterState(QueryableState):
    """A state whose rows say which transaction wrote them, and whether there was a value before it."""

    @abstractmethod
    def sole_values(
        self, keys: Sequence[Cells], txids: Collection[int], own: int
    ) -> list[Cells | None]:
        """Read the stored values of each key, if one transaction alone has contributed to it; None: others may have.

        A key that is not there has NULL in every column.

        :param txids: that transaction is one of these. A key whose values were replaced before counts likewise.
        :param own: the transaction that asks: its own writes do not count.
        """
