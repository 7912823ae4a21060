"""Objects that are described by their constructor arguments.

The base class stores each object's arguments. It derives the stored form, the repr, and copies in other processes from
them. Connections and other values that only this process can use are `cached_property` attributes. A copy, or an
unpickled object, creates its own.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from enum import Enum
from functools import cache, cached_property, wraps
from importlib import import_module
from os import PathLike, fspath
from typing import Any, ClassVar, cast

from airflow_tx.base.errors import ConfigError


class Described:
    """The base class of objects that are described by their constructor arguments. A dataclass does not need it."""

    always_written: ClassVar[tuple[str, ...]] = ()
    """The arguments that are stored even if they have the default value."""
    in_repr: ClassVar[tuple[str, ...] | None] = None
    """The arguments that a repr shows in addition to the first one. None means all arguments."""
    always_shown: ClassVar[tuple[str, ...]] = ()
    """The arguments that a repr shows even if they have the default value."""
    left_out: ClassVar[tuple[str, ...]] = ()
    """The arguments that only this process can use. They are not stored and not shown."""
    _given: dict[str, Any] = {}  # noqa: RUF012 - of a class without a constructor

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = _keeping_arguments(cls.__init__)  # type: ignore[method-assign]

    def normalize(self, **arguments: Any) -> None:
        """Replace arguments with their stored form. Constructors may call this method."""
        self._given.update(arguments)

    def arguments(self) -> dict[str, Any]:
        """Return the arguments as plain values.

        The default values are omitted, except for the first argument and `always_written`.
        """
        return self._told(self.always_written)

    def described(self) -> tuple[str, dict[str, Any]]:
        """Return the stored name of the class, and the arguments that recreate the object."""
        return stored_name(type(self)), self.arguments()

    def __repr__(self) -> str:
        told = self._told(self.always_shown)
        texts = [repr(_alone(told.pop(name))) for name in list(told)[:1]]
        texts += [
            f"{name}={value!r}"
            for name, value in told.items()
            if self.in_repr is None or name in self.in_repr
        ]
        return f"{type(self).__name__}({', '.join(texts)})"

    def __getstate__(self) -> dict[str, Any]:
        made_here = _made_here(cast("Any", type(self)))
        return {name: value for name, value in vars(self).items() if name not in made_here}

    def _told(self, also: tuple[str, ...]) -> dict[str, Any]:
        own = _parameters(cast("Any", type(self)))
        parameters = {name: default for name, default in own.items() if name not in self.left_out}
        written = {*list(parameters)[:1], *also}
        found: dict[str, Any] = {}
        for name, default in parameters.items():
            value = plain_form(self._given.get(name, default))
            if name in written or value != plain_form(default):
                found[name] = value
        return found


def stored_name(cls: type) -> str:
    """Return the stored name of a class. It contains the public package, so that the class can move within it."""
    module = cls.__module__
    if module.startswith("airflow_tx."):
        module = ".".join(module.split(".")[:2])
    return f"{module}.{cls.__qualname__}"


def plain_form(value: Any) -> Any:
    """Convert a value to JSON types: a tuple to a list, and an enum to its value. Other values are unchanged."""
    if isinstance(value, Described):
        made_by, arguments = value.described()
        return {_CLASS: made_by, _ARGUMENTS: arguments}
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, Mapping):
        return {key: plain_form(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain_form(each) for each in value]
    return value


_CLASS = "class"
_ARGUMENTS = "arguments"


def remade(value: Any) -> Any:
    """Create the object that `plain_form` described by its class and arguments. Return any other value unchanged."""
    if not isinstance(value, Mapping) or value.keys() != {_CLASS, _ARGUMENTS}:
        return value
    module, _, name = str(value[_CLASS]).rpartition(".")
    made: Described = getattr(import_module(module), name)(**value[_ARGUMENTS])
    return made


def _alone(value: Any) -> Any:
    return value[0] if isinstance(value, list) and len(value) == 1 else value


@cache
def _made_here(cls: type) -> frozenset[str]:
    """Return the names of the attributes that each process creates itself.

    A lane copies its source for each transaction.
    """
    attributes = (found for each in cls.__mro__ for found in vars(each).items())
    return frozenset(name for name, value in attributes if isinstance(value, cached_property))


def _keeping_arguments(init: Callable[..., None]) -> Callable[..., None]:
    """Wrap a constructor so that it stores its arguments.

    If the constructor of a subclass has stored arguments, keep those.
    """
    signature = inspect.signature(init)

    @wraps(init)
    def keeping(self: Described, *given: Any, **named: Any) -> None:
        if "_given" not in vars(self):
            # The constructor's own error for wrong arguments is better.
            with suppress(TypeError):
                kept = _by_name(signature.bind(self, *given, **named))
                self._given = {name: kept[name] for name in kept if name not in self.left_out}
                if type(self).__module__.startswith("airflow_tx."):
                    check_no_template(type(self).__name__, self._given)
        init(self, *given, **named)

    return keeping


def check_no_template(what: str, arguments: Mapping[str, Any]) -> None:
    """Raise an error if an argument contains a template.

    Airflow would not render it, so each run would get the same text.

    :param what: name of the object with these arguments.
    :raises ConfigError: an argument is a template. The error names the first one.
    """
    for name, value in arguments.items():
        within = value.values() if isinstance(value, Mapping) else value
        for text in within if isinstance(value, list | tuple | Mapping) else [value]:
            if isinstance(text, str | PathLike) and "{{" in fspath(text):
                remedy = "Templates are not rendered here, so each run would get this text. Write a fixed value."
                raise ConfigError(option=f"{what}({name}=)", value=fspath(text), remedy=remedy)


def _by_name(bound: inspect.BoundArguments) -> dict[str, Any]:
    (_, *own), found = bound.arguments, dict[str, Any]()
    for name in own:
        value = bound.arguments[name]
        if bound.signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD:
            found.update(value)
        else:
            found[name] = value
    return found


@cache
def _parameters(cls: type) -> dict[str, Any]:
    """Map argument names to their default values.

    A constructor with ``**options`` passes them to its base, so the keyword-only arguments of the base are included.
    """
    found: dict[str, Any] = {}
    inits = [vars(each)["__init__"] for each in cls.__mro__[:-1] if "__init__" in vars(each)]
    for number, init in enumerate(inits):
        _, *own = inspect.signature(init).parameters.values()
        for each in own:
            if each.kind is each.KEYWORD_ONLY or (
                number == 0 and each.kind is each.POSITIONAL_OR_KEYWORD
            ):
                found.setdefault(each.name, each.default)
        if not any(each.kind is each.VAR_KEYWORD for each in own):
            break
    return found
