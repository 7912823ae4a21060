"""Maps and factories for other processes: with the addresses of their stores, where there is no Airflow to ask."""

from __future__ import annotations

import copy
from typing import Any


def portable(made: Any, *parts: str) -> Any:
    """A copy for executors of Spark: of one that looks up a connection, with what it finds; else as it is.

    :param parts: attributes that hold others of its sort.
    """
    if not parts:
        return made.for_executors() if callable(getattr(made, "for_executors", None)) else made
    copied = copy.copy(made)
    for name in parts:
        setattr(copied, name, portable(getattr(made, name)))
    return copied
