"""A person at the command line, who types what refusals advise."""

from __future__ import annotations

import inspect
import io
import re
import shlex
from argparse import ArgumentParser
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from typing import TYPE_CHECKING, Any

import pytest
from airflow.cli.cli_config import ActionCommand

from airflow_tx.base.errors import TxError
from airflow_tx.operations.actions import dags
from airflow_tx.operations.cli import actions as cli_actions
from airflow_tx.operations.cli.definition import TX_COMMANDS

if TYPE_CHECKING:
    from tests.model.walks import Walk

NAME = "walks"


class WalkFailed(Exception):
    """What a walk has found.

    :ivar kind: one word, by which a shorter walk is known to fail in the same way.
    """

    def __init__(self, kind: str, told: object) -> None:
        super().__init__(f"{kind}: {told}")
        self.kind = kind


def is_advice(text: str) -> bool:
    """Whether a text names a command that a person can type here."""
    return _ADVISED.search(text) is not None


_ADVISED = re.compile(
    rf"airflow tx (?:(repair) {NAME} (--roll-forward|--ledger-lost|--state-lost)((?: [\w.]+)*)"
    rf"|(skip) {NAME} (\d+|TXID))"
)
_COMMANDS = {each.name: each for each in TX_COMMANDS if isinstance(each, ActionCommand)}
_FUNCTIONS = {
    "repair": inspect.unwrap(cli_actions.repair),
    "accept-change": inspect.unwrap(cli_actions.accept_change),
}


class Person:
    """Types commands, as refusals advise them; the second piece of advice, once the first one has changed nothing."""

    def __init__(self, walk: Walk) -> None:
        self._walk = walk
        self.typed: Counter[str] = Counter()
        self._lacked_nothing = False
        self._in_vain = set[str]()

    def types(self, line: str) -> str:
        """Run a command line; why it is refused, "": it was done."""
        _, _, name, *words = shlex.split(line)
        parser = ArgumentParser(exit_on_error=False)
        for each in _COMMANDS[name].args:
            each.add_to_parser(parser)
        walk = self._walk

        @contextmanager
        def store_of(_: Any) -> Iterator[Any]:
            yield walk.store

        states = walk.by_name
        with pytest.MonkeyPatch.context() as patch, redirect_stdout(io.StringIO()) as out:
            patch.setattr(cli_actions, "store_of", store_of)
            patch.setattr(dags, "transactional_dag", lambda *_, **__: (walk.spec, states))
            try:
                _FUNCTIONS[name](parser.parse_args([*words, "--yes"]))
            except SystemExit as ended:
                refused = str(ended.code)
            except TxError as error:
                refused = str(error)
            else:
                refused = ""
        self.typed[f"{name} {words[1].split(' ')[0]}{' refused' if refused else ''}"] += 1
        walk.told(line, refused or out.getvalue().strip()[:150])
        self._lacked_nothing = "lacks a transaction" in out.getvalue()
        if "--roll-forward" in words and not refused:
            walk.rolled([each for each in words[2:] if each in states])
        return refused

    def follows(self, refusal: str, tried: tuple[str, ...] = ()) -> None:
        """Do what a refusal advises, and if that is refused, what that advises.

        :raises WalkFailed: no command leads on, or one advises itself.
        """
        for line in self._advised(refusal):
            if line in tried:
                continue
            refused = self._does(line)
            if not refused and self._lacked_nothing and refusal in self._in_vain:
                continue
            if not refused:
                self._in_vain |= {refusal} if self._lacked_nothing else set()
                return
            self.follows(refused, (*tried, line))
            return
        raise WalkFailed("dead-end", f"{refusal}; typed: {tried}")

    def _does(self, line: str) -> str:
        walk = self._walk
        if line.startswith("airflow tx skip"):
            return walk.skips(int(line.split()[-1]))
        refused = self.types(line)
        if "--state-lost" in line and not refused:
            walk.has_accepted(line.split()[-1])
        for number in dict.fromkeys(re.findall(r"--changed (\d+)", refused)):
            walk.makes_again(int(number))
            refused = self.types(f"{line} --changed {number}")
        return refused

    def _advised(self, refusal: str) -> Iterator[str]:
        named = re.search(r"[Ss]tate '?([\w.]+)", refusal)
        for match in _ADVISED.finditer(refusal):
            _, option, names, skip, txid = match.groups()
            if skip:
                yield f"airflow tx skip {NAME} {txid.replace('TXID', str(self._walk.turn()))}"
                continue
            for name in names.split() or [""]:
                if option == "--state-lost" and name == "STATE":
                    behind = self._walk.behind() or [named[1] if named else ""]
                    yield from (f"airflow tx repair {NAME} {option} {each}" for each in behind)
                else:
                    yield f"airflow tx repair {NAME} {option} {name.rstrip('.')}".rstrip()
