"""Tables of each kind whose rows are read by their transactions, as tests open and fill them."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.state import CommittedTable, DeltaTable, SqlTable, TableCounts
from airflow_tx.state.api import Grant
from airflow_tx.state.lake.files import write_python_rows
from airflow_tx.testing.suites.state_tools import Grants, about_to_restate
from tests.servers.s3 import Bucket

Rows = Sequence[Mapping[str, Any]]
SERVERS = ("postgres", "mariadb", "mysql")
LAKES = ("delta", "partitioned")
KINDS: list[Any] = ["sqlite", "postgres", "mariadb", pytest.param("mysql", marks=pytest.mark.long), *LAKES]


@dataclass
class Filled:
    """A table, and the ledger that commits to it.

    :param reopen: opens the same table again, as another process does.
    """

    kind: str
    reopen: Callable[..., CommittedTable]
    grants: Grants = field(default_factory=Grants)

    @property
    def table(self) -> CommittedTable:
        return self.reopen()

    @property
    def is_lake(self) -> bool:
        return self.kind in (*LAKES, "s3")

    def commit(self, txid: int, rows: Rows, *, restates: int | None = None, **options: Any) -> None:
        """Commit rows, as the restatement of another transaction or as new ones."""
        table = self.reopen(**options)
        grant = self.grants(txid)
        if restates is not None:
            grant = about_to_restate(grant, restates)
        table.raise_and_write(grant, self._staged(table, rows, grant))
        self.grants.final(grant, table)

    def _staged(self, table: CommittedTable, rows: Rows, grant: Grant) -> Iterable[Mapping[str, Any]]:
        if not isinstance(table, DeltaTable):
            return rows
        return write_python_rows(table, rows, TransactionAttempt(grant.txid, 1))

    def read(self, *txids: int, **how: Any) -> pa.Table:
        """Read rows as Arrow has them."""
        return self.table.arrow(newest(self.table, txids), **how).read_all()

    def frame(self, spark: Any, txids: Iterable[int], **how: Any) -> Any:
        """Read rows as Spark has them."""
        return self.table.frame(spark, newest(self.table, txids), **how)


def newest(table: CommittedTable, txids: Iterable[int]) -> TableCounts:
    """Count the rows of transactions without a snapshot, so that the newest ones are read."""
    counts = table.counts([*txids])
    counts.close()
    return TableCounts(counts.rows)


def opened(request: pytest.FixtureRequest, kind: str, folder: Path) -> Filled:
    """Open an empty table of a kind."""
    name = f"t{uuid.uuid4().hex[:8]}"
    if kind == "s3":
        s3 = request.getfixturevalue("s3")
        uri = f"{Bucket(s3).url}/{name}"
        return Filled(kind, lambda **how: DeltaTable(uri, storage_options=s3.options, **how))
    if kind in LAKES:
        partition_by = ("part",) if kind == "partitioned" else ()
        return Filled(kind, lambda **how: DeltaTable(folder / name, partition_by=partition_by, **how))
    url = f"sqlite:///{folder}/orders.db" if kind == "sqlite" else request.getfixturevalue(kind).url()
    return Filled(kind, lambda **how: SqlTable.from_url(url, table=name, **how))
