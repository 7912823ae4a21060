"""Continuously checks that the tables of a database contain the same numbers while transactions commit."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa

from airflow_tx.testing.eventually import eventually

if TYPE_CHECKING:
    from typing_extensions import Self

Tables = Mapping[str, Mapping[str, tuple[int, int]]]
"""The number of rows and their sum, by table and key."""
_PATIENCE = 300.0
_BETWEEN = 0.01
"""The seconds between two readings. Without a pause, the reader would use a processor core that the commits need."""


class ComparingReader:
    """Runs one statement repeatedly in a thread. It is a context manager.

    :param query: an SQL query that returns rows of table name, key, number and sum.
    :param tables: the names of the tables, which must contain the same numbers.
    :ivar readings: the number of readings so far.
    :ivar found: the result of the last reading.
    :ivar torn: the results of the readings in which the tables differed.
    """

    def __init__(self, url: str, query: str, tables: Sequence[str]) -> None:
        self._tables = tables
        self.readings = 0
        self.found: Tables = {}
        self.torn: list[Tables] = []
        self._failure: BaseException | None = None
        self._query = sa.text(query)
        self._engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        self._thread.join()
        if self._failure is not None and error is None:
            raise self._failure

    def looks(self, times: int = 20) -> None:
        """Wait for some more readings, so that the reader has certainly read the current values."""
        wanted = self.readings + times
        eventually(lambda: self._failure or self.readings >= wanted, _PATIENCE, f"{times} more readings")

    def _look(self) -> None:
        try:
            with self._engine.connect() as connection:
                while not self._over.wait(_BETWEEN):
                    self.found = found = self._sorted(connection.execute(self._query))
                    connection.rollback()  # The next statement reads a new snapshot.
                    if any(found[name] != found[self._tables[0]] for name in self._tables):
                        self.torn.append(found)
                    self.readings += 1
        except BaseException as failure:  # noqa: BLE001 - it is raised where the readings are waited for
            self._failure = failure

    def _sorted(self, rows: Iterable[Any]) -> Tables:
        found: dict[str, dict[str, tuple[int, int]]] = {name: {} for name in self._tables}
        for table, key, number, total in rows:
            if number:
                found[table][key] = (int(number), int(total))
        return found
