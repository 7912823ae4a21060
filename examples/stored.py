"""Read the states of an example with plain SQL."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def rows(database: Path | str, query: str) -> list[tuple[Any, ...]]:
    """Return the rows of a query, or no rows if the table does not exist yet.

    :param database: an SQLite file, or the URL of a database server.
    """
    import sqlalchemy as sa

    if isinstance(database, Path) and not database.exists():
        return []
    url = f"sqlite:///file:{database}?mode=ro&uri=true" if isinstance(database, Path) else database
    engine = sa.create_engine(url, poolclass=sa.pool.NullPool)
    with engine.connect() as connection:
        try:
            return [tuple(row) for row in connection.execute(sa.text(query))]
        except (sa.exc.OperationalError, sa.exc.ProgrammingError):
            return []
