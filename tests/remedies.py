"""Remedies as tests write them: a text in which each command stands between angle brackets."""

from __future__ import annotations

import re
from typing import Any

from airflow_tx.base.remedy import Command, Remedy

_STEP = re.compile(r"<airflow tx ([^>]*)>")


def remedy_of(template: str, /, **fields: Any) -> Remedy:
    """Make a remedy of a text such as "To get it back: <airflow tx readmit {topology} {txid} --why TEXT>".

    :param fields: of the text. A remedy among them keeps its commands; in a command, a list is a word each.
    """
    return Remedy(template_of(template)).filled(fields)


def template_of(text: str) -> tuple[str | Command, ...]:
    """Read the words and commands of a text."""
    pieces = enumerate(_STEP.split(text))
    return tuple(_command(piece) if place % 2 else piece for place, piece in pieces if piece)


def _command(piece: str) -> Command:
    words = piece.split()
    is_verb = [re.fullmatch(r"[a-z]+(-[a-z]+)*", each) is not None for each in words]
    verb = words[: is_verb.index(False) if False in is_verb else len(words)]
    rest = words[len(verb) :]
    topology = [] if rest[:1] and rest[0].startswith("--") else rest[:1]
    return Command.of(" ".join(verb), *(topology or [""]), *rest[len(topology) :])
