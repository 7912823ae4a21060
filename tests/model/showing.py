"""The variables of a stopped program as values that can be compared: two programs that show the same go on alike."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterator
from enum import Enum
from functools import partial
from itertools import chain
from types import BuiltinFunctionType, FunctionType, GeneratorType, MethodType, ModuleType, TracebackType
from typing import Any

from airflow_tx.ledger.api import Children, Node

_PLAIN = (str, bytes, int, float, bool, type(None), Enum, type, BuiltinFunctionType, ModuleType)


def variables(traceback: TracebackType | None, *, skip: str) -> tuple[Hashable, ...]:
    """Where each function of a stopped program stands, and its variables.

    :param skip: the file that stopped it.
    """
    found: list[Hashable] = []
    known: dict[int, tuple[Any, int]] = {}
    while traceback is not None:
        frame = traceback.tb_frame
        if frame.f_code.co_filename != skip:
            items = frame.f_locals.items()
            values = frozenset((name, _known(value, known)) for name, value in items if name[0] not in "_.")
            found.append((frame.f_code.co_name, traceback.tb_lineno, values))
        traceback = traceback.tb_next
    return tuple(found)


def shown(value: Any) -> Hashable:
    """Something hashable that is equal for values which a program cannot tell apart.

    A class whose objects are the same for every run of a program says so by an attribute `shown`.
    """
    return _known(value, {})


def _known(value: Any, known: dict[int, tuple[Any, int]]) -> Hashable:
    """The same object is looked at once; it is kept, so that no other one has its id."""
    if isinstance(value, _PLAIN):
        plain: Hashable = value
        return plain
    if id(value) not in known:
        known[id(value)] = (value, hash(type(value)))  # for what leads back to it
        known[id(value)] = (value, hash(_shown(value, known)))
    return known[id(value)][1]


def _shown(value: Any, known: dict[int, tuple[Any, int]]) -> Hashable:
    fixed = getattr(type(value), "shown", None)
    if fixed is not None:
        return (fixed, getattr(value, "ids", None), getattr(value, "name", None))
    for kinds, show in _HOW:
        if isinstance(value, kinds):
            found: Hashable = show(value, lambda part: _known(part, known))
            return found
    return (type(value), _known(vars(value), known)) if hasattr(value, "__dict__") else repr(value)


def _generator(value: GeneratorType[Any, Any, Any], show: Show) -> Hashable:
    frame = value.gi_frame
    return (value.gi_code.co_name, frame and (frame.f_lineno, show(dict(frame.f_locals))))


Show = Callable[[Any], Hashable]
_HOW: tuple[tuple[Any, Callable[[Any, Show], Hashable]], ...] = (
    ((tuple, list), lambda value, show: tuple(map(show, value))),
    ((Node, Children), lambda value, show: value),
    (dict, lambda value, show: frozenset((key, show(item)) for key, item in value.items())),
    ((set, frozenset), lambda value, show: frozenset(map(show, value))),
    (logging.Logger, lambda value, show: "log"),
    (FunctionType, lambda value, show: value.__qualname__),
    (partial, lambda value, show: (show(value.func), show(value.args), show(value.keywords))),
    (MethodType, lambda value, show: (value.__name__, show(value.__self__))),
    (BaseException, lambda value, show: (type(value), show(getattr(value, "fields", value.args)))),
    (GeneratorType, _generator),
    # Of rows, which are those of the acks that stand beside it.
    ((chain, Iterator), lambda value, show: type(value).__name__),
)
