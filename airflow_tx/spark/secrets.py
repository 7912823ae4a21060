"""What executors get beside code, such as a state with its password. No readable plan, setting or log shows it.

It travels within the code of the tasks, under a key: a server may log the plans that it is given. The key is a property
of the session whose name Spark redacts.
"""

from __future__ import annotations

import hashlib
import os
import sys
import sysconfig
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any

from airflow_tx.errors import TxError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

# The property of the session with the key for secrets that executors get. Spark redacts it by its name.
KEY = "spark.airflow_tx.secret"
_LOOKED_INTO = 1_000


def pickled(told: Any) -> bytes:
    """Pickle a value together with the user's own classes, because executors do not have the DAG file."""
    from pyspark import cloudpickle as pyspark_cloudpickle

    # It has no types of its own.
    cloudpickle: Any = pyspark_cloudpickle
    with ExitStack() as stack:
        for name in sorted(_own_modules(told)):
            cloudpickle.register_pickle_by_value(sys.modules[name])
            stack.callback(cloudpickle.unregister_pickle_by_value, sys.modules[name])
        data: bytes = cloudpickle.dumps(told)
        return data


def veiled(data: bytes, key: bytes) -> bytes:
    """Veil data with a key that is used once. Veiling twice returns the data."""
    stream = hashlib.shake_256(key).digest(len(data))
    return (int.from_bytes(data, "big") ^ int.from_bytes(stream, "big")).to_bytes(len(data), "big")


def hidden_in(spark: SparkSession, data: bytes) -> tuple[bytes, bytes]:
    """Veil data for `revealed` in the tasks of a session, however late they run.

    :return: what makes its key one of its own, and the veiled data.
    """
    key = spark.conf.get(KEY, None)
    if key is None:
        key = os.urandom(32).hex()
        spark.conf.set(KEY, key)
    salt = os.urandom(16)
    return salt, veiled(data, salt + bytes.fromhex(key))


def revealed(salt: bytes, hidden: bytes) -> bytes:
    """Reveal the data in a task of Spark.

    :raises TxError: the task belongs to no query of the session, such as one of `df.rdd`.
    """
    from pyspark import TaskContext

    task = TaskContext.get()
    key = None if task is None else task.getLocalProperty(KEY)
    if not key:
        raise TxError(
            message="batch.look_up works in queries of DataFrames only. Use df, not df.rdd."
        )
    return veiled(hidden, salt + bytes.fromhex(key))


def _own_modules(told: Any) -> set[str]:
    """Find the user's own modules whose classes are in a value."""
    installed = tuple({os.path.realpath(path) for path in sysconfig.get_paths().values()})
    names = {type(part).__module__ for part in _parts(told, set())}
    own = set[str]()
    for name in names - {"__main__"}:
        file = getattr(sys.modules.get(name), "__file__", None)
        if (
            file
            and not name.startswith("airflow_tx.")
            and not os.path.realpath(file).startswith(installed)
        ):
            own.add(name)
    return own


def _parts(told: Any, seen: set[int]) -> Iterator[Any]:
    if id(told) in seen or len(seen) > _LOOKED_INTO:
        return
    seen.add(id(told))
    yield told
    if isinstance(told, Mapping):
        inner = [*told.values()] if len(told) < _LOOKED_INTO else []
    elif isinstance(told, (list, tuple)):
        inner = [*told[:_LOOKED_INTO]]
    else:
        inner = [*getattr(told, "__dict__", {}).values()]
    for part in inner:
        yield from _parts(part, seen)
