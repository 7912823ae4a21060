"""Trident's LocationDB: a database of one's own as a state, with an updater for it, and a query of it.

Where a user was seen last; and, for the users of a batch, where they are once it is committed.
"""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

from airflow.sdk import DAG, task

from airflow_tx import CommitOperator, FileSource, Transaction, current_batch, partition_persist
from airflow_tx.state import state_query


class LocationDB:
    """The database. A transaction that is in it already is not applied again: so it is a transactional state."""

    kind = "transactional"

    def begin_commit(self, txid: int | None) -> None:
        """One database transaction per transaction."""
        self.connection, self.txid = self._connect(), txid or 0
        self.connection.execute("BEGIN IMMEDIATE")
        ((last,),) = self.connection.execute("SELECT coalesce(max(txid), 0) FROM last_commit")
        self.is_new = txid is None or txid > last

    def set_locations_bulk(self, users: Sequence[int], locations: Sequence[str]) -> None:
        """The new locations of many users; of one that comes twice, the last one."""
        if self.is_new:
            pairs = zip(users, locations, strict=True)
            self.connection.executemany("INSERT OR REPLACE INTO locations VALUES (?, ?)", pairs)

    def bulk_get_locations(self, users: Sequence[int]) -> list[str | None]:
        """The locations of many users."""
        with closing(self._connect()) as connection:
            marks = ", ".join("?" * len(users))
            found = dict(connection.execute(f"SELECT * FROM locations WHERE user IN ({marks})", users).fetchall())
        return [found.get(user) for user in users]

    def commit(self, txid: int | None) -> None:
        """The last txid and the locations, together."""
        self.connection.execute("INSERT OR IGNORE INTO last_commit VALUES (?)", (self.txid,))
        self.connection.execute("COMMIT")
        self.connection.close()

    def _connect(self) -> sqlite3.Connection:
        path = Path(os.environ["AIRFLOW_TX_DATA"]) / "locations.db"
        connection = sqlite3.connect(path, timeout=30, isolation_level=None)
        connection.execute("CREATE TABLE IF NOT EXISTS locations (user INTEGER PRIMARY KEY, location TEXT)")
        connection.execute("CREATE TABLE IF NOT EXISTS last_commit (txid INTEGER PRIMARY KEY)")
        return connection


class LocationUpdater:
    """Trident's StateUpdater."""

    def update_state(self, state: LocationDB, rows: Sequence[Mapping[str, Any]]) -> None:
        """All rows of the batch at once."""
        state.set_locations_bulk([row["user"] for row in rows], [row["location"] for row in rows])


class QueryLocation:
    """Trident's QueryFunction."""

    def batch_retrieve(self, state: LocationDB, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """All rows of a batch at once."""
        return state.bulk_get_locations([row["user"] for row in rows])

    def execute(self, row: Mapping[str, Any], result: str | None) -> Iterable[Mapping[str, Any]]:
        """The field to add; no row for an unknown user."""
        return [] if result is None else [{"location": result}]


@task
def seen() -> list[dict[str, Any]]:
    """Who was seen where, in the order of the batch."""
    return [{"user": int(row["user"]), "location": row["location"]} for row in current_batch().read()]


@task(trigger_rule="none_failed_min_one_success")  # of a committed run that is cleared, `seen` is skipped
def whereabouts(rows: Any) -> list[dict[str, Any]]:
    """Where the users of the batch are now; it may know of a later batch already."""
    users = [{"user": user} for user in sorted({row["user"] for row in rows})]
    return list(state_query(users, state=last_seen, query=QueryLocation()))


with DAG("locations", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("seen/*.csv", files_per_batch=1), max_pending=4):
        rows = seen()
        last_seen = partition_persist(rows, state=LocationDB(), updater=LocationUpdater())
        commit = CommitOperator(task_id="commit", updates=[last_seen])
    commit >> whereabouts(rows)
