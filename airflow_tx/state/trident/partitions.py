"""A state for each of several writers of an update, with the rows of its keys. Source: Trident's partitionBy."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from airflow_tx.errors import StateError
from airflow_tx.state.keys import partition_of


class PartitionedState:
    """The states that a factory has made, one for each partition.

    :param name: of the update, for messages.
    :param parts: one a partition.
    :param fields: of a row, which choose its partition.
    """

    def __init__(self, name: str, parts: Sequence[Any], fields: Sequence[str]) -> None:
        self._name = name
        self.parts = parts
        self._fields = fields

    def begin_commit(self, txid: int | None) -> None:
        for part in self.parts:
            part.begin_commit(txid)

    def commit(self, txid: int | None) -> None:
        for part in self.parts:
            part.commit(txid)

    def shared_out(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[tuple[Any, list[int]]]:
        """Give each part the numbers of its rows; a part without rows has none.

        :raises StateError: a row lacks a field that chooses its partition.
        """
        numbers = [list[int]() for _ in self.parts]
        for number, row in enumerate(rows):
            numbers[partition_of(self._key(row), len(self.parts))].append(number)
        yield from zip(self.parts, numbers, strict=True)

    def _key(self, row: Mapping[str, Any]) -> list[Any]:
        try:
            return [row[name] for name in self._fields]
        except KeyError as error:
            problem = (
                f"row {str(dict(row))[:200]} has no field {error}, which chooses its partition"
            )
            remedy = f"Give each row {', '.join(self._fields)}, or name other fields: partition_by=[...]."
            raise StateError(state=self._name, problem=problem, remedy=remedy) from None
