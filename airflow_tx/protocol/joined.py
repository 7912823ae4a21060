"""Steps that one process makes one right after the other, in one multi. Source: docs/protocol.md §2.

Each decides as it does alone, on the records that the step before it writes. The multi requires all records that they
have read, so no other step can run between them. A step that refuses, asks or writes nothing is left to be run alone,
and then says why.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

from airflow_tx.errors import Refused, UnreadableRecord
from airflow_tx.protocol.answers import Begun, Joined
from airflow_tx.protocol.attempt import TaskTry
from airflow_tx.protocol.batch import BeginRequest, Outside
from airflow_tx.protocol.begin import BeginAnswer, begin
from airflow_tx.protocol.paths import Paths
from airflow_tx.protocol.processing import start
from airflow_tx.protocol.reader import Reader, Unanswered
from airflow_tx.protocol.step import Decision, Stamp

T = TypeVar("T")
U = TypeVar("U")

BoundStep = Callable[[Reader, Stamp, Paths], Decision[T]]
"""A step with its arguments."""


def in_one_multi(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    first: BoundStep[T],
    then: Callable[[T], BoundStep[U] | None],
) -> Decision[Joined[T, U]]:
    """Decide on a step, and on the one that follows from its answer, if there is one.

    :raises Refused, UnreadableRecord: as the first one.
    """
    one = first(read, stamp, paths)
    if not one.writes:
        return Decision(Joined(one.result), one.writes, one.proof)
    read.apply(one.writes)
    two = _following(read, stamp, paths, then(one.result))
    if two is None or not two.writes:
        return Decision(Joined(one.result), one.writes, one.proof)
    return Decision(Joined(one.result, two.result), (*one.writes, *two.writes), one.proof)


def _following(
    read: Reader, stamp: Stamp, paths: Paths, step: BoundStep[U] | None
) -> Decision[U] | None:
    try:
        return None if step is None else step(read, stamp, paths)
    except (Refused, UnreadableRecord, Unanswered):
        return None


def begin_started(
    read: Reader,
    stamp: Stamp,
    paths: Paths,
    request: BeginRequest,
    outside: Outside,
    *,
    open_first: Callable[[], None],
    task: TaskTry,
) -> Decision[BeginAnswer]:
    """Decide on `begin`, and that the first task of the new transaction works. Raises as `begin`."""
    begun = begin(read, stamp, paths, request, outside, open_first=open_first)
    if not isinstance(begun.result, Begun):
        return begun
    read.apply(begun.writes)
    started = start(read, stamp, paths, begun.result.attempt, task, is_current=outside.is_current)
    return replace(begun, writes=(*begun.writes, *started.writes))
