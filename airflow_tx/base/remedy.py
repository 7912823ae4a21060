"""Advice for a person as data, words and commands: texts, buttons and copied commands are made of it."""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from string import Formatter
from typing import Any

import msgspec
from msgspec.structs import replace

_COMMAND = "airflow tx"
_STEP = re.compile(rf"<{_COMMAND} ([^>]*)>")


class Command(msgspec.Struct, frozen=True, array_like=True):
    """One command of `airflow tx`, as a person types it. It is stored as a list.

    :param verb: such as `replay` or `state rename`.
    :param topology: what the command is about; "": the command names none.
    :param arguments: what follows the topology, such as txids.
    :param options: with their values, in order. A word in capitals, or `...`, is replaced by the person.
    """

    verb: str
    topology: str = ""
    arguments: tuple[str, ...] = ()
    options: tuple[str, ...] = ()

    def __str__(self) -> str:
        """Write it as a shell takes it. Before a name with a dash at its beginning, `--` ends the options."""
        names = [shlex.quote(each) for each in (self.topology, *self.arguments) if each]
        options = [shlex.quote(each) for each in self.options]
        if any(each.startswith("-") for each in (self.topology, *self.arguments)):
            return " ".join([_COMMAND, self.verb, *options, "--", *names])
        return " ".join([_COMMAND, self.verb, *names, *options])

    def __radd__(self, words: str) -> Remedy:
        return Remedy((words, self))

    def values(self, option: str) -> tuple[str, ...]:
        """Give what stands behind an option, up to the next one."""
        if option not in self.options:
            return ()
        behind = self.options[self.options.index(option) + 1 :]
        ends = (place for place, each in enumerate(behind) if each.startswith("--"))
        return behind[: next(ends, len(behind))]


@dataclass(frozen=True)
class Remedy:
    """Says what to do: words, with commands between them.

    :param parts: one after the other, they are its text.
    """

    parts: tuple[str | Command, ...] = ()

    @classmethod
    def of(cls, template: str, /, **fields: Any) -> Remedy:
        """Make it of a template: "To get it back: <airflow tx readmit {topology} {txid} --why TEXT>".

        :param fields: of the template. A remedy among them keeps its commands; in a command, a list is a word each.
        """
        parts: list[str | Command] = []
        for place, piece in enumerate(_STEP.split(template)):
            parts += [_command(piece, fields)] if place % 2 else _words(piece, fields)
        return cls(tuple(each for each in parts if each != ""))

    def __str__(self) -> str:
        return "".join(map(str, self.parts))

    def __bool__(self) -> bool:
        return str(self).strip() != ""

    def __add__(self, other: Remedy | str) -> Remedy:
        more = other.parts if isinstance(other, Remedy) else filter(None, (other,))
        return Remedy((*self.parts, *more))

    @property
    def commands(self) -> tuple[Command, ...]:
        """List the commands, in the order in which the words name them."""
        return tuple(each for each in self.parts if isinstance(each, Command))

    def worded(self, change: Callable[[str], str]) -> Remedy:
        """Change the words, and leave the commands unchanged."""
        return Remedy(
            tuple(each if isinstance(each, Command) else change(each) for each in self.parts)
        )

    def named(self, topology: str, name: str) -> Remedy:
        """Call a topology by another name, by which this reader knows it."""
        return Remedy(
            tuple(
                replace(each, topology=name)
                if isinstance(each, Command) and each.topology == topology
                else each
                for each in self.parts
            )
        )

    def as_stored(self) -> list[Any]:
        """Write it for a record: a text for words, a list for a command."""
        return list(msgspec.to_builtins(self.parts))

    @staticmethod
    def behind(problem: str | None, remedy: Remedy | None) -> str:
        """Write what to do behind what is wrong, as people read it."""
        return " ".join(filter(None, (problem, str(remedy or ""))))

    @classmethod
    def from_stored(cls, stored: Sequence[Any]) -> Remedy:
        """Read what `as_stored` wrote."""
        return cls(msgspec.convert(stored, tuple[str | Command, ...]))


def _words(piece: str, fields: dict[str, Any]) -> list[str | Command]:
    """Fill the fields of words: a remedy or a command among them stays what it is."""
    parts: list[str | Command] = []
    text = ""
    for literal, name, spec, conversion in Formatter().parse(piece):
        text += literal
        value = fields.get(name) if name else None
        if isinstance(value, (Remedy, Command)) and not conversion:
            parts += [text, *(value.parts if isinstance(value, Remedy) else (value,))]
            text = ""
        elif name is not None:
            field = f"{{{name}{'!' if conversion else ''}{conversion or ''}:{spec}}}"
            text += field.format(**fields)
    return [*parts, text]


def _command(piece: str, fields: dict[str, Any]) -> Command:
    """Read a command of a template: its verb are the words before the first field, word in capitals, or option."""
    words = piece.split()
    is_verb = [re.fullmatch(r"[a-z]+(-[a-z]+)*", each) is not None for each in words]
    verb = words[: is_verb.index(False) if False in is_verb else len(words)]
    rest = words[len(verb) :]
    first = next((place for place, each in enumerate(rest) if each.startswith("--")), len(rest))
    topology, *arguments = _filled(rest[:first], fields) or [""]
    return Command(" ".join(verb), topology, tuple(arguments), tuple(_filled(rest[first:], fields)))


def _filled(words: Sequence[str], fields: dict[str, Any]) -> list[str]:
    found: list[str] = []
    for word in words:
        value = fields.get(word[1:-1]) if word.startswith("{") else None
        found += map(str, value) if isinstance(value, (list, tuple)) else [word.format(**fields)]
    return found
