"""User advice as words and commands, and the base class of errors with advice.

Messages, buttons and commands to copy are created from this data.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from string import Formatter
from typing import Any, ClassVar

import msgspec
from msgspec.structs import replace

_COMMAND = "airflow tx"


class Command(msgspec.Struct, frozen=True, array_like=True):
    """One command line of `airflow tx`. Records store it as a list of words.

    :param verb: name of the subcommand, such as `replay` or `state rename`.
    :param topology: name of the topology, or "" if the command names no topology.
    :param arguments: arguments after the topology, such as txids.
    :param options: options and their values, in order. Words in capitals, and `...`, are for the user to replace.
    """

    verb: str
    topology: str = ""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Format the command for a shell.

        If an argument starts with a dash, `--` separates the options from the arguments.
        """
        names = [shlex.quote(each) for each in (self.topology, *self.arguments) if each]
        options = [shlex.quote(each) for each in self.options]
        if any(each.startswith("-") for each in (self.topology, *self.arguments)):
            return " ".join([_COMMAND, self.verb, *options, "--", *names])
        return " ".join([_COMMAND, self.verb, *names, *options])

    @classmethod
    def of(cls, verb: str, topology: str = "", *words: object) -> Command:
        """Create a command from its words, such as `Command.of("skip", topology, 7, "--why", "TEXT")`.

        :param words: the arguments, then the options.
        """
        named = list(map(str, words))
        first = next((place for place, each in enumerate(named) if each.startswith("--")), None)
        options = [] if first is None else named[first:]
        return cls(verb, topology, tuple(named[:first]), tuple(options))

    def __radd__(self, words: str) -> Remedy:
        return Remedy((words, self))

    def filled(self, fields: Mapping[str, Any]) -> Command:
        """Fill in the fields of a command, such as `{txid}`. Each item of a list becomes one word."""
        (topology,) = _filled((self.topology,), fields)
        arguments = _filled(self.arguments, fields)
        return Command(self.verb, topology, tuple(arguments), tuple(_filled(self.options, fields)))

    def values(self, option: str) -> tuple[str, ...]:
        """Return the values of an option, up to the next option."""
        if option not in self.options:
            return ()
        behind = self.options[self.options.index(option) + 1 :]
        ends = (place for place, each in enumerate(behind) if each.startswith("--"))
        return behind[: next(ends, len(behind))]


@dataclass(frozen=True)
class Remedy:
    """The advice of an error, which consists of words and commands.

    :param parts: words and commands, which form the text in this order.
    """

    parts: tuple[str | Command, ...] = ()

    @classmethod
    def of(cls, *parts: str | Command | Remedy | None) -> Remedy:
        """Create a remedy, such as `Remedy.of("To get it back: ", Command.of("readmit", topology, txid))`."""
        each_one = (
            part for each in parts for part in (each.parts if isinstance(each, Remedy) else (each,))
        )
        return cls(tuple(each for each in each_one if each))

    def filled(self, fields: Mapping[str, Any]) -> Remedy:
        """Fill in the fields of a template. If a field is a remedy, the result keeps its commands."""
        filled = (
            part
            for each in self.parts
            for part in (
                (each.filled(fields),) if isinstance(each, Command) else _words(each, fields)
            )
        )
        return Remedy.of(*filled)

    def __str__(self) -> str:
        return "".join(map(str, self.parts))

    def __bool__(self) -> bool:
        return str(self).strip() != ""

    def __add__(self, other: Remedy | Command | str) -> Remedy:
        return Remedy.of(self, other)

    @property
    def commands(self) -> tuple[Command, ...]:
        """The remedy's commands, in the order of the text."""
        return tuple(each for each in self.parts if isinstance(each, Command))

    def worded(self, change: Callable[[str], str]) -> Remedy:
        """Return this remedy with `change` applied to its words, not to its commands."""
        return Remedy(
            tuple(each if isinstance(each, Command) else change(each) for each in self.parts)
        )

    def named(self, topology: str, name: str) -> Remedy:
        """Replace the topology's name in the commands with the name that the reader knows."""
        return Remedy(
            tuple(
                replace(each, topology=name)
                if isinstance(each, Command) and each.topology == topology
                else each
                for each in self.parts
            )
        )

    def as_stored(self) -> list[Any]:
        """Convert the remedy to its stored form. Words become text, and a command becomes a list."""
        return list(msgspec.to_builtins(self.parts))

    @staticmethod
    def behind(problem: str | None, remedy: Remedy | None = None, *, task: str = "") -> str:
        """Join a problem and its remedy into one readable text.

        :param task: name of the task with the problem, or "" if the problem does not belong to a single task.
        """
        named = f"task {task}: {problem}" if task and problem else task and f"task {task}"
        return " ".join(filter(None, (named or problem, str(remedy or ""))))

    @classmethod
    def from_stored(cls, stored: Sequence[Any]) -> Remedy:
        """Create a remedy from the result of `as_stored`."""
        return cls(msgspec.convert(stored, tuple[str | Command, ...]))


Template = str | tuple[str | Command, ...]


class TxError(Exception):
    """The base class of all errors of this package.

    :param fields: values of the names in `template`. They become attributes.
    :cvar template: the problem, and then the remedy in words and commands, or the field `remedy`.
    :cvar for_good: whether a user must act, since a replay would fail in the same way.
    :cvar of_values: whether the error is about rows or values, which a repair cannot change. It ends a restatement.
    """

    template: ClassVar[Template] = "{message}"
    for_good: ClassVar[bool] = False
    of_values: ClassVar[bool] = False

    def __init__(self, **fields: Any) -> None:
        self.fields = fields
        for name, value in fields.items():
            setattr(self, name, value)
        advice = [str(self._filled(self._parts[1:]))] if self._parts[1:] else []
        text = " ".join([self.problem_text, *advice])
        super().__init__(text.encode("utf-8", "backslashreplace").decode())

    @property
    def problem_text(self) -> str:
        """The problem: the text without the advice."""
        return str(self._filled(self._parts[:1]))

    @property
    def advice(self) -> Remedy | None:
        """The advice of the error, or None if the template has no advice."""
        return self._filled(self._parts[1:]) or None

    @property
    def _parts(self) -> tuple[str | Command, ...]:
        if not isinstance(self.template, str):
            return self.template
        return (self.template, *(["{remedy}"] if "remedy" in self.fields else ()))

    def _filled(self, parts: tuple[str | Command, ...]) -> Remedy:
        return Remedy(parts).filled(self.fields)

    @property
    def repairable(self) -> bool:
        """Whether a user, a repair or a recovered store can remove the error's cause. A restatement waits for this."""
        return self.for_good and not self.of_values

    @property
    def stored_fields(self) -> dict[str, Any]:
        """The fields as plain values. Another process creates the error from them with `from_stored`."""
        return {
            name: value.as_stored() if isinstance(value, Remedy) else value
            for name, value in self.fields.items()
        }

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> TxError:
        """Create the error from the result of `stored_fields`. Its remedy contains commands again."""
        remedy = stored.get("remedy")
        read = {"remedy": Remedy.from_stored(remedy)} if isinstance(remedy, list) else {}
        return cls(**{**stored, **read})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return partial(type(self), **self.fields), ()


def _words(piece: str, fields: Mapping[str, Any]) -> Iterator[str | Command | Remedy]:
    """Fill in the fields of a text. Remedies and commands remain objects in the result."""
    text = ""
    for literal, name, spec, conversion in Formatter().parse(piece):
        text += literal
        value = fields.get(name) if name else None
        if isinstance(value, (Remedy, Command)) and not conversion:
            yield from (text, value)
            text = ""
        elif name is not None:
            field = f"{{{name}{'!' if conversion else ''}{conversion or ''}:{spec}}}"
            text += field.format(**fields)
    yield text


def _filled(words: Sequence[str], fields: Mapping[str, Any]) -> Iterator[str]:
    for word in words:
        value = fields.get(word[1:-1]) if word.startswith("{") else None
        yield from map(str, value) if isinstance(value, (list, tuple)) else [word.format(**fields)]


def shortened_reason(text: str, most: int = 200) -> str:
    """Shorten a long error in the middle, since it starts with the failure and ends with the remedy.

    :param most: maximum number of characters. The default applies to the errors of earlier attempts.
    """
    if len(text) <= most:
        return text
    gap = " ... "
    begin = text[: (most - len(gap)) // 3]
    end = text[len(begin) + len(gap) - most :]
    return f"{begin.rpartition(' ')[0] or begin}{gap}{end.partition(' ')[2] or end}"


# Terminal colours, and all control characters except line ends.
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Remove terminal control characters from a text. Escape unpaired surrogates, which UTF-8 cannot encode."""
    plain = _CONTROLS.sub(" ", _COLOURS.sub("", text))
    return plain.encode("utf-8", "backslashreplace").decode()
