"""States of every kind in one database that are written together, and what a look at them says: for kills and races.

Every row and value has the epoch of the grant that wrote it, unless it cannot be undone.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from airflow_tx.state import Last, SqlGuard, SqlState, SqlTable, Sum
from airflow_tx.state.api import Grant, StoredState
from tests.integration.databases import query

ROWS = 3


@dataclass(frozen=True)
class Look:
    """What one statement has read.

    :param epochs: the least and the greatest one of the fences; 0: there is none.
    :param applied: how many fences say that their updates are complete.
    :param orders: how many rows the newest transaction has in the table, and the epoch that is in them.
    :param newest: the epoch in the opaque state.
    :param sums: what the transactional state and the guard have added up.
    :param receipts: of the newest transaction, and the attempt that is in them.
    """

    epochs: tuple[int, int]
    applied: int
    orders: tuple[int, int, int]
    newest: int
    sums: tuple[int, int]
    receipts: tuple[int, int, int]

    def is_of(self, grant: Grant) -> bool:
        """Whether all of it is of this grant, whose transaction is the last of all from 1 on."""
        epoch, attempt = grant.token.epoch, grant.token.attempt
        total = grant.txid * (grant.txid + 1) // 2
        return self == Look((epoch, epoch), 4, (ROWS, epoch, epoch), epoch, (total, total), (4, attempt, attempt))

    @property
    def is_torn(self) -> bool:
        """Whether it has parts of two grants."""
        return len({*self.epochs, *self.orders[1:], self.newest}) > 1


class Moments:
    """A table, an opaque and a transactional state, and a guard, as a new process opens them.

    :param url: of the database.
    :param name: the beginning of the names of all tables.
    """

    def __init__(self, url: str, name: str) -> None:
        self.url, self.name = url, name

    def begin(self) -> None:
        """Make the table of the guard."""
        query(self.url, f"CREATE TABLE {self.name}_guarded (n BIGINT)")
        query(self.url, f"INSERT INTO {self.name}_guarded VALUES (0)")

    def states(self) -> list[StoredState]:
        given: Any = {"keys": ["key"], "values": {"n": Last("bigint")}}
        added: Any = {"keys": ["key"], "values": {"n": Sum()}, "kind": "transactional"}
        text = f"UPDATE {self.name}_guarded SET n = n + :n"
        return [
            SqlState.from_url(self.url, table=f"{self.name}_newest", **given),
            SqlTable.from_url(self.url, table=f"{self.name}_orders", add_columns=True),
            SqlState.from_url(self.url, table=f"{self.name}_added", **added),
            SqlGuard.from_url(self.url, name=f"{self.name}_guard", statements=[text]),
        ]

    def updates(self, grant: Grant, *, wider: bool = False) -> list[list[dict[str, Any]]]:
        """What a grant writes into each of the states.

        :param wider: whether the table gets a column of this transaction.
        """
        epoch, more = grant.token.epoch, {f"c{grant.txid}": 1} if wider else {}
        return [
            [{"key": "a", "n": epoch}],
            [{"n": epoch, **more}] * ROWS,
            [{"key": "a", "n": grant.txid}],
            [{"n": grant.txid}],
        ]

    def look(self) -> Look:
        """Read everything in one statement."""
        fences = f"FROM airflow_tx_fence WHERE state LIKE '%{self.name}%'"
        newest = f"(SELECT max(txid) {fences})"
        orders = f"FROM {self.name}_orders WHERE tx_txid = {newest}"
        receipts = f"FROM airflow_tx_receipts WHERE state LIKE '%{self.name}%' AND txid = {newest}"
        wanted = [
            *(f"(SELECT {each}(epoch) {fences})" for each in ("min", "max")),
            f"(SELECT count(*) {fences} AND applied)",
            *(f"(SELECT {each} {orders})" for each in ("count(*)", "min(n)", "max(n)")),
            f"(SELECT n FROM {self.name}_newest)",
            f"(SELECT n FROM {self.name}_added)",
            f"(SELECT n FROM {self.name}_guarded)",
            *(f"(SELECT {each} {receipts})" for each in ("count(*)", "min(attempt)", "max(attempt)")),
        ]
        (row,) = query(self.url, f"SELECT {', '.join(wanted)}")
        low, high, applied, rows, least, most, newest_n, added, guarded, kept, first, last = (
            int(each or 0) for each in row
        )
        return Look((low, high), applied, (rows, least, most), newest_n, (added, guarded), (kept, first, last))
