"""What a person asks of a topology: each command that reads, as it is typed."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from airflow.cli.cli_config import GroupCommand

from airflow_tx.operations.cli.definition import TX_COMMANDS
from tests.integration.kinds.topologies import Kind

OUTPUTS = ("table", "json", "yaml")
KEY = "all"
OTHER = "all_committed:tx_state.all_committed"
"""The state with which others are compared."""
FORMATS = ("text", "json", "sarif")


@dataclass(frozen=True)
class Asked:
    """A topology that is asked.

    :param states: the names of its states; `txids`: three of its transactions.
    :param dag_file: where its DAG file is.
    """

    kind: Kind
    states: Sequence[str]
    txids: Sequence[int]
    dag_file: str

    @property
    def finds(self) -> str:
        """What is looked for."""
        return self.kind.finds.format(name=self.kind.name)


Line = tuple[str, ...]


def _list(of: Asked) -> list[Line]:
    return [(of.kind.name, "--wide")]


def _show(of: Asked) -> list[Line]:
    return [(of.kind.name,), *((of.kind.name, str(txid)) for txid in of.txids)]


def _verify(of: Asked) -> list[Line]:
    return [(of.kind.name,), (of.kind.name, "--values", "--recount", "2")]


def _find(of: Asked) -> list[Line]:
    return [(of.kind.name, of.finds)]


def _receipts(of: Asked) -> list[Line]:
    return [(of.kind.name,)]


def _stale(of: Asked) -> list[Line]:
    return [(of.kind.name,)]


def _at(of: Asked) -> list[Line]:
    return [(of.kind.name,), *((of.kind.name, str(txid)) for txid in of.txids)]


def _diff(of: Asked) -> list[Line]:
    return [(f"{of.kind.name}:{name}", OTHER) for name in of.states]


def _state_get(of: Asked) -> list[Line]:
    return [(of.kind.name, name, *([KEY] if of.kind.row else [])) for name in of.states]


def _rejected(of: Asked) -> list[Line]:
    return [(of.kind.name,), *((of.kind.name, str(txid)) for txid in of.txids)]


def _lint(of: Asked) -> list[Line]:
    return [(of.dag_file,)]


def _ddl(of: Asked) -> list[Line]:
    return [(of.kind.name,)]


QUESTIONS: Mapping[str, Callable[[Asked], list[Line]]] = {
    "list": _list,
    "show": _show,
    "verify": _verify,
    "find": _find,
    "receipts": _receipts,
    "stale": _stale,
    "at": _at,
    "diff": _diff,
    "lint": _lint,
    "ddl": _ddl,
    "state get": _state_get,
    "rejected": _rejected,
}
"""By command, how it is typed for a topology."""


def commands_that_read() -> dict[str, Any]:
    """The commands of the definition, by name: what changes something has a preview, `--dry-run`."""
    found = dict(_commands(TX_COMMANDS))
    return {name: each for name, each in found.items() if "--dry-run" not in _flags(each)}


def _commands(commands: Sequence[Any], before: str = "") -> Iterator[tuple[str, Any]]:
    for each in commands:
        if isinstance(each, GroupCommand):
            yield from _commands(tuple(each.subcommands), f"{before}{each.name} ")
        else:
            yield f"{before}{each.name}", each


def _flags(command: Any) -> set[str]:
    return {flag for argument in command.args for flag in argument.flags}


def outputs_of(command: Any) -> list[Line]:
    """How a command may be told to print."""
    flags = _flags(command)
    if "--output" in flags:
        return [("--output", each) for each in OUTPUTS]
    return [("--format", each) for each in FORMATS] if "--format" in flags else [()]
