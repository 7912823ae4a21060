"""A database as anyone may look at it, beside the state under test."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa


def query(url: str, statement: str, **options: Any) -> list[tuple[Any, ...]]:
    """Run a statement in a transaction of its own; the rows it gives.

    :param options: of the engine, such as `isolation_level`.
    """
    with sa.create_engine(url, poolclass=sa.pool.NullPool, **options).begin() as connection:
        result = connection.execute(sa.text(statement))
        return [tuple(row) for row in result] if result.returns_rows else []
