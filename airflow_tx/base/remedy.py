"""Advice for people as data, made of words and commands, and the base class of the errors that give advice.

Messages, buttons and copied commands are made from this data.
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
    """One command of `airflow tx`, as a person types it. Records store it as a list.

    :param verb: name of the subcommand, such as `replay` or `state rename`.
    :param topology: the topology of the command, or "" if the command names no topology.
    :param arguments: the arguments after the topology, such as txids.
    :param options: the options and their values, in order. The person replaces a word in capitals, or `...`.
    """

    verb: str
    topology: str = ""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Format the command for a shell. If a name begins with a dash, `--` ends the options before the names."""
        names = [shlex.quote(each) for each in (self.topology, *self.arguments) if each]
        options = [shlex.quote(each) for each in self.options]
        if any(each.startswith("-") for each in (self.topology, *self.arguments)):
            return " ".join([_COMMAND, self.verb, *options, "--", *names])
        return " ".join([_COMMAND, self.verb, *names, *options])

    @classmethod
    def of(cls, verb: str, topology: str = "", *words: object) -> Command:
        """Make a command from words in their order, such as `Command.of("skip", topology, 7, "--why", "TEXT")`.

        :param words: the arguments, then the options.
        """
        named = list(map(str, words))
        first = next((place for place, each in enumerate(named) if each.startswith("--")), None)
        options = [] if first is None else named[first:]
        return cls(verb, topology, tuple(named[:first]), tuple(options))

    def __radd__(self, words: str) -> Remedy:
        return Remedy((words, self))

    def filled(self, fields: Mapping[str, Any]) -> Command:
        """Fill in the fields of a template, such as `{txid}`. Each item of a list becomes one word."""
        (topology,) = _filled((self.topology,), fields)
        arguments = _filled(self.arguments, fields)
        return Command(self.verb, topology, tuple(arguments), tuple(_filled(self.options, fields)))

    def values(self, option: str) -> tuple[str, ...]:
        """Return the values after an option, up to the next option."""
        if option not in self.options:
            return ()
        behind = self.options[self.options.index(option) + 1 :]
        ends = (place for place, each in enumerate(behind) if each.startswith("--"))
        return behind[: next(ends, len(behind))]


@dataclass(frozen=True)
class Remedy:
    """The advice of an error: words, with commands between them.

    :param parts: words and commands. Joined, they form the text.
    """

    parts: tuple[str | Command, ...] = ()

    @classmethod
    def of(cls, *parts: str | Command | Remedy | None) -> Remedy:
        """Make a remedy: `Remedy.of("To get it back: ", Command.of("readmit", topology, txid))`."""
        each_one = (
            part for each in parts for part in (each.parts if isinstance(each, Remedy) else (each,))
        )
        return cls(tuple(each for each in each_one if each))

    def filled(self, fields: Mapping[str, Any]) -> Remedy:
        """Fill in the fields of a template. A remedy among the fields keeps its commands."""
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
        """The commands, in the order of the text."""
        return tuple(each for each in self.parts if isinstance(each, Command))

    def worded(self, change: Callable[[str], str]) -> Remedy:
        """Return this remedy with `change` applied to its words, but not to its commands."""
        return Remedy(
            tuple(each if isinstance(each, Command) else change(each) for each in self.parts)
        )

    def named(self, topology: str, name: str) -> Remedy:
        """Replace the name of a topology in the commands by the name that the reader knows."""
        return Remedy(
            tuple(
                replace(each, topology=name)
                if isinstance(each, Command) and each.topology == topology
                else each
                for each in self.parts
            )
        )

    def as_stored(self) -> list[Any]:
        """Convert the remedy for a record. Words become a text, and a command becomes a list."""
        return list(msgspec.to_builtins(self.parts))

    @staticmethod
    def behind(problem: str | None, remedy: Remedy | None = None, *, task: str = "") -> str:
        """Join a problem and its remedy into one text for people.

        :param task: the task with the problem, or "" if no single task has it.
        """
        named = f"task {task}: {problem}" if task and problem else task and f"task {task}"
        return " ".join(filter(None, (named or problem, str(remedy or ""))))

    @classmethod
    def from_stored(cls, stored: Sequence[Any]) -> Remedy:
        """Read the result of `as_stored`."""
        return cls(msgspec.convert(stored, tuple[str | Command, ...]))


Template = str | tuple[str | Command, ...]


class TxError(Exception):
    """Base class of every error of this package.

    :param fields: the values of the names in `template`, which become attributes.
    :cvar template: the problem; then the remedy in words and commands, or the field `remedy`.
    :cvar for_good: whether only a person can help, since a replay of the transaction would be refused again.
    :cvar of_values: whether rows or values are refused, which no repair changes. The error then ends a restatement.
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
        """The advice, or None if the template has no advice."""
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
        """Whether an action of a person, a repair, or a recovered store ends the refusal.

        A restatement waits for this.
        """
        return self.for_good and not self.of_values

    @property
    def stored_fields(self) -> dict[str, Any]:
        """The fields as plain values, from which another process makes the error again with `from_stored`."""
        return {
            name: value.as_stored() if isinstance(value, Remedy) else value
            for name, value in self.fields.items()
        }

    @classmethod
    def from_stored(cls, stored: Mapping[str, Any]) -> TxError:
        """Make the error from `stored_fields`. Its remedy has its commands again."""
        remedy = stored.get("remedy")
        read = {"remedy": Remedy.from_stored(remedy)} if isinstance(remedy, list) else {}
        return cls(**{**stored, **read})

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(name)

    def __reduce__(self) -> tuple[Any, tuple[Any, ...]]:
        return partial(type(self), **self.fields), ()


def _words(piece: str, fields: Mapping[str, Any]) -> Iterator[str | Command | Remedy]:
    """Fill in the fields of words. A remedy or a command among the fields is kept as an object."""
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
    """Shorten a text in its middle, since errors begin with the failure and end with the remedy.

    :param most: the maximum number of characters. The default is for attempts before the last one.
    """
    if len(text) <= most:
        return text
    gap = " ... "
    begin = text[: (most - len(gap)) // 3]
    end = text[len(begin) + len(gap) - most :]
    return f"{begin.rpartition(' ')[0] or begin}{gap}{end.partition(' ')[2] or end}"


# Terminal colours, and every other control character except the end of a line.
_COLOURS = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]")
_CONTROLS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


def without_controls(text: str) -> str:
    """Remove terminal control characters from a text, and escape half surrogate pairs, which UTF-8 cannot encode."""
    plain = _CONTROLS.sub(" ", _COLOURS.sub("", text))
    return plain.encode("utf-8", "backslashreplace").decode()
