"""Trident's LocationDB: your own database as a state, with an updater and a query.

The state has the last location of each user. A task after the commit queries it for the users of the batch.
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
    """The database of locations, a transactional state, since it applies no transaction twice."""

    kind = "transactional"

    def begin_commit(self, txid: int | None) -> None:
        """Begin a database transaction for a transaction of the topology."""
        self.connection, self.txid = self._connect(), txid or 0
        self.connection.execute("BEGIN IMMEDIATE")
        ((last,),) = self.connection.execute("SELECT coalesce(max(txid), 0) FROM last_commit")
        self.is_new = txid is None or txid > last

    def set_locations_bulk(self, users: Sequence[int], locations: Sequence[str]) -> None:
        """Store the new locations of users. If a user occurs more than once, the last location counts."""
        if self.is_new:
            pairs = zip(users, locations, strict=True)
            self.connection.executemany("INSERT OR REPLACE INTO locations VALUES (?, ?)", pairs)

    def bulk_get_locations(self, users: Sequence[int]) -> list[str | None]:
        """Return the locations of several users."""
        with closing(self._connect()) as connection:
            marks = ", ".join("?" * len(users))
            found = dict(connection.execute(f"SELECT * FROM locations WHERE user IN ({marks})", users).fetchall())
        return [found.get(user) for user in users]

    def commit(self, txid: int | None) -> None:
        """Commit the txid and the locations in one database transaction."""
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
    """A StateUpdater, as in Trident."""

    def update_state(self, state: LocationDB, rows: Sequence[Mapping[str, Any]]) -> None:
        """Store the locations of all rows of the batch."""
        state.set_locations_bulk([row["user"] for row in rows], [row["location"] for row in rows])


class QueryLocation:
    """A QueryFunction, as in Trident."""

    def batch_retrieve(self, state: LocationDB, rows: Sequence[Mapping[str, Any]]) -> list[str | None]:
        """Return the locations for all rows of a batch."""
        return state.bulk_get_locations([row["user"] for row in rows])

    def execute(self, row: Mapping[str, Any], result: str | None) -> Iterable[Mapping[str, Any]]:
        """Return the field that is added to the row, or no row for an unknown user."""
        return [] if result is None else [{"location": result}]


@task
def seen() -> list[dict[str, Any]]:
    """Return the users and their locations in the order of the batch."""
    return [{"user": int(row["user"]), "location": row["location"]} for row in current_batch().read()]


# If a committed run is cleared, the task `seen` is skipped.
@task(trigger_rule="none_failed_min_one_success")
def whereabouts(rows: Any) -> list[dict[str, Any]]:
    """Return the current locations of the users in the batch. A later batch may already have changed them."""
    users = [{"user": user} for user in sorted({row["user"] for row in rows})]
    return list(state_query(users, state=last_seen, query=QueryLocation()))


with DAG("locations", schedule=None, max_active_runs=8, tags=["transactions", "example"]):
    with Transaction(source=FileSource("seen/*.csv", files_per_batch=1), max_pending=4):
        rows = seen()
        last_seen = partition_persist(rows, state=LocationDB(), updater=LocationUpdater())
        commit = CommitOperator(task_id="commit", updates=[last_seen])
    commit >> whereabouts(rows)
