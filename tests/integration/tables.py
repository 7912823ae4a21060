"""Tables that tests kill committers of: of a lake, or of a database, behind one interface.

A table is named by its URI. That of a table in a database is the URL of the database, `#`, and the name of the table.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import airflow_tx.state.lake
import airflow_tx.state.sql
from airflow_tx.state import DeltaTable, SqlTable
from airflow_tx.state.api import Grant

Held = list[tuple[int, int]]
ENOUGH = 40
"""Writes of racing committers in which something wrong may be seen."""


class Table(ABC):
    """One table, as a new process opens it.

    :cvar code: the folder with the code of its commits.
    :ivar url: of its database; "": it is in a lake.
    """

    code: str
    url = ""
    state: DeltaTable | SqlTable

    @abstractmethod
    def update(self, grant: Grant, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Give the rows of an update as the state takes them."""

    @abstractmethod
    def held(self) -> Held:
        """Read transaction and number of each row, as anybody does."""

    def compact(self) -> None:
        """Merge files, where there are some."""


class LakeTable(Table):
    """A table of Delta Lake. Nothing here may start a thread of deltalake before a test forks."""

    code = str(Path(airflow_tx.state.lake.__file__).parent)

    def __init__(self, uri: str) -> None:
        self.state: DeltaTable = DeltaTable(uri)

    def update(self, grant: Grant, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        import pyarrow as pa  # type: ignore[import-untyped]

        from tests.lake import staged

        return staged(self.state, grant.attempt, pa.Table.from_pylist(list(rows)))

    def held(self) -> Held:
        from tests.lake import read_back

        return sorted((row["tx_txid"], row["n"]) for row in read_back(self.state.uri, self.state.options()))

    def compact(self) -> None:
        import deltalake

        deltalake.DeltaTable(self.state.uri, storage_options=self.state.options()).optimize.compact()


class DatabaseTable(Table):
    """A table of a database."""

    code = str(Path(airflow_tx.state.sql.__file__).parent)

    def __init__(self, uri: str) -> None:
        self.url, _, self.name = uri.rpartition("#")
        self.state: SqlTable = SqlTable.from_url(self.url, table=self.name, add_columns=True)
        # Imported here, and not by each process. It has not connected yet.
        _ = self.state._store

    def update(self, grant: Grant, rows: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return list(map(dict, rows))

    def held(self) -> Held:
        from tests.integration.databases import query

        return sorted((txid, n) for txid, n in query(self.url, f"SELECT tx_txid, n FROM {self.name}"))


def table_at(uri: str) -> Table:
    return DatabaseTable(uri) if "#" in uri else LakeTable(uri)
