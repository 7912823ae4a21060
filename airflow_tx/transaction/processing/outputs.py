"""Fingerprint the output of tasks, so that the committer writes only acked output.

Source: tests/model/TRACES.md: 11.
"""

from __future__ import annotations

import datetime as dt
import math
import numbers
from collections.abc import Iterator, Mapping
from dataclasses import MISSING, fields
from decimal import Decimal
from typing import Any

from airflow_tx.base.compat import as_xcom, canonical, from_xcom
from airflow_tx.base.errors import StagingError
from airflow_tx.base.rows import first_line, is_frame, is_same_value, shown_value
from airflow_tx.ledger import (
    Ack,
    TaskTry,
    TransactionAttempt,
    digest,
)
from airflow_tx.outputs import OutputRef
from airflow_tx.transaction.spec import TransactionSpec

# --- outputs ------------------------------------------------------------------------------------------------------


RETURN_KEY = "return_value"
_REF = frozenset(field.name for field in fields(OutputRef))
_NEEDED = frozenset(field.name for field in fields(OutputRef) if field.default is MISSING)

Acks = Mapping[tuple[str, int], Ack]


def xcom_fingerprint(value: Any) -> str:
    """Return the digest of an XCom value, the same for the returned value and the value pulled from the XCom."""
    try:
        return digest(value)
    except (TypeError, ValueError):
        return digest(canonical(value))


def returned(value: Any, *, multiple: bool) -> list[dict[str, str]]:
    """Return the name and the fingerprint of each XCom that a Python task pushes for its return value, for the ack.

    :param multiple: whether each entry of a returned mapping also becomes an XCom of its own.
    """
    if value is None:
        return []
    found = {RETURN_KEY: value, **(value if multiple and isinstance(value, Mapping) else {})}
    return [{"name": str(name), "digest": xcom_fingerprint(item)} for name, item in found.items()]


def is_ref(value: Any) -> bool:
    """Return whether a value is a reference to staged output."""
    return isinstance(value, Mapping) and value.keys() >= _NEEDED and value.keys() <= _REF


def acked(acks: Acks, task: str, name: str) -> dict[int, str]:
    """Return the fingerprints of the output `name` in the acks of a task, by map index.

    It is −1 for an unmapped task.
    """
    return {
        index: xcom_fingerprint(entry) if is_ref(entry) else entry["digest"]
        for (of, index), ack in sorted(acks.items())
        if of == task
        for entry in ack.outputs
        if entry["name"] == name
    }


# --- passed on ----------------------------------------------------------------------------------------------------
# A return value that XCom would change is refused before the task acks.


_Path = tuple[Any, ...]
_Problem = tuple[_Path, str, str]
_PLAIN = {type(None), bool, float, dt.date}
_STAGE = "Return current_batch().stage({}), which keeps it."
_LEAST = -(2**63)
_BEYOND = 2**64
"""The range of integers that a task can send to its supervisor: `_LEAST <= value < _BEYOND`."""


def check_returned(
    value: Any, spec: TransactionSpec, task: TaskTry, attempt: TransactionAttempt
) -> None:
    """Refuse a return value that XCom would refuse or change, or that the committer cannot write.

    :raises StagingError: the value cannot be used. The error names the value and where it is.
    """
    committed = task.task_id in spec.committed
    for path, problem, remedy in _problems(value, (), committed):
        raise StagingError(
            output=RETURN_KEY,
            task=task,
            txid=attempt.txid,
            attempt=attempt.attempt,
            problem=f"{_place(path)} {problem}",
            remedy=remedy,
        )


def _problems(value: Any, path: _Path, committed: bool) -> Iterator[_Problem]:
    if isinstance(value, Mapping):
        for key, item in value.items():
            yield from _problems(item, (*path, key), committed)
    elif isinstance(value, (list, tuple, set, frozenset)):
        for number, item in enumerate(value):
            yield from _problems(item, (*path, number), committed)
    elif is_frame(value):
        yield from _of_frame(value, path, committed)
    else:
        yield from _of_leaf(value, path)


def _of_leaf(value: Any, path: _Path) -> Iterator[_Problem]:
    kind = type(value)
    if kind is str:
        if not value.isascii() and not _encodable(value):
            yield path, f"= {shown_value(value)} holds half a surrogate pair", "Leave it out."
    elif kind is int:
        if not _LEAST <= value < _BEYOND:
            yield path, f"= {value} has more than 64 bits", "Return it as a text or a Decimal."
    elif isinstance(value, numbers.Real) and not math.isfinite(value):
        yield path, f"= {value} is not finite, and an XCom must be JSON", "A missing value is None."
    elif kind not in _PLAIN:
        yield from _of_other(value, path)


def _of_frame(frame: Any, path: _Path, committed: bool) -> Iterator[_Problem]:
    name = f"{type(frame).__module__.partition('.')[0]}.{type(frame).__name__}"
    if committed:
        problem = f"is a {name}, but a committer needs dicts or a reference"
        remedy = "Return current_batch().stage(frame): rows of columns are staged."
        yield path, problem, remedy
    elif not name.startswith("pandas."):
        problem = f"is a {name}, which an XCom cannot contain"
        yield path, problem, _STAGE.format("frame")


def _of_other(value: Any, path: _Path) -> Iterator[_Problem]:
    try:
        found = from_xcom(as_xcom(value))
    except Exception as error:  # noqa: BLE001
        reason = first_line(error).partition(". Give it")[0]
        problem = f"= {shown_value(value)} cannot become an XCom ({reason})"
        yield path, problem, _STAGE.format("rows")
        return
    if isinstance(value, (Decimal, dt.datetime, numbers.Number)) and not is_same_value(
        found, value
    ):
        problem = f"= {shown_value(value)} would become {shown_value(found)} in an XCom"
        yield path, problem, _STAGE.format("rows")


def _encodable(text: str) -> bool:
    try:
        return bool(text.encode())
    except UnicodeEncodeError:
        return False


def _place(path: _Path) -> str:
    if [*map(type, path)] == [int, str]:
        row, column = path
        return f"row {row}: {column}"
    return f"its value{''.join(f'[{step!r}]' for step in path)}"
