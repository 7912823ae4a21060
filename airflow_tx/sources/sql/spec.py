"""The arguments of the SQL sources: the order of the rows, the columns, and how long to wait."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from airflow_tx.base.errors import ConfigError

SETTLE = 5.0
PATIENCE = 30.0
ROWS_PER_READ = 100_000


@dataclass(frozen=True)
class SqlSpec:
    """How a source takes rows from a table. The parameters are the same as for `SqlRows`."""

    order_by: tuple[str, ...]
    columns: tuple[str, ...] | None = None
    settle: float = SETTLE
    patience: float = PATIENCE
    rows_per_read: int = ROWS_PER_READ

    @classmethod
    def checked(
        cls,
        source: str,
        *,
        order_by: str | Sequence[str],
        columns: Sequence[str] | None,
        settle: float,
        patience: float,
        rows_per_read: int,
    ) -> SqlSpec:
        """Check the arguments of a source.

        :param source: name of the source, for errors.
        :raises ConfigError: an argument is unusable.
        """
        order = (order_by,) if isinstance(order_by, str) else tuple(order_by)
        if not 1 <= len(order) <= 2 or not _names(order):
            remedy = 'Give the column of an id, such as "id", or of a time and an id, such as ["updated_at", "id"].'
            raise ConfigError(option=f"order_by of {source}", value=order_by, remedy=remedy)
        if columns is not None and (isinstance(columns, str) or not columns or not _names(columns)):
            remedy = "Give the names of columns, each once, or leave it out for all."
            raise ConfigError(option=f"columns of {source}", value=columns, remedy=remedy)
        for name, value in {"settle": settle, "patience": patience}.items():
            if (
                isinstance(value, bool)
                or not isinstance(value, (int, float))
                or not 0 <= value < float("inf")
            ):
                raise ConfigError(
                    option=f"{name} of {source}", value=value, remedy="Give seconds, 0 or more."
                )
        if (
            isinstance(rows_per_read, bool)
            or not isinstance(rows_per_read, int)
            or rows_per_read < 1
        ):
            remedy = "Give a whole number above 0."
            raise ConfigError(
                option=f"rows_per_read of {source}", value=rows_per_read, remedy=remedy
            )
        return cls(
            order, None if columns is None else tuple(columns), settle, patience, rows_per_read
        )


def checked_text(source: str, option: str, value: Any, example: str) -> str:
    """Check that an argument is a name.

    :raises ConfigError: the name is empty or not a text.
    """
    if not isinstance(value, str) or not value.strip():
        raise ConfigError(
            option=f"{option} of {source}", value=value, remedy=f'Give a name, such as "{example}".'
        )
    return value


def _names(names: Sequence[Any]) -> bool:
    return all(isinstance(name, str) and name for name in names) and len(set(names)) == len(names)
