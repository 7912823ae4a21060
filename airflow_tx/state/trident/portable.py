"""Maps and factories for other processes: with the addresses of their stores, where there is no Airflow to ask."""

from __future__ import annotations

import copy
from typing import Any


def portable(made: Any, *parts: str) -> Any:
    """Copy a map or factory for executors of Spark, with the address of its connection; else return it unchanged.

    :param parts: attributes that hold other maps.
    """
    if not parts:
        return made.for_executors() if callable(getattr(made, "for_executors", None)) else made
    copied = copy.copy(made)
    for name in parts:
        setattr(copied, name, portable(getattr(made, name)))
    return copied
