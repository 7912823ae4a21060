"""What the states of an example hold, read with plain SQL."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any


def rows(database: Path, query: str) -> list[tuple[Any, ...]]:
    """What a query finds in an SQLite database; nothing, as long as there is no such table."""
    if not database.exists():
        return []
    with closing(sqlite3.connect(f"file:{database}?mode=ro", uri=True)) as connection:
        try:
            return connection.execute(query).fetchall()
        except sqlite3.OperationalError:
            return []
