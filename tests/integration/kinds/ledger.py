"""The ledger of all kinds, and its answers: each question is asked once, whichever tests look at the answer."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from airflow_tx.testing.eventually import eventually
from tests.integration.commands import Commands, Tried
from tests.integration.kinds.questions import QUESTIONS, Asked, Line, commands_that_read, outputs_of
from tests.integration.kinds.topologies import Kind

ROOT = "/airflow_tx_kinds"
REDIS = 7
"""The database of Redis that these topologies have for themselves."""
TXIDS = 3


@dataclass(frozen=True)
class Told:
    """A command that was typed, and what it gave."""

    command: str
    line: Line
    output: str
    tried: Tried

    def __str__(self) -> str:
        return " ".join(("airflow tx", self.command, *self.line, self.output)).strip()


@dataclass(frozen=True)
class Got:
    """A GET of the page, and its answer.

    :param misfit: why the answer is not what the route promises.
    """

    route: str
    told: Mapping[str, str]
    status: int
    body: Any
    misfit: str

    def __str__(self) -> str:
        return f"{self.route} {dict(self.told)}"


@dataclass
class Ledger:
    """The ledger, and the process of the commands that are asked of it."""

    commands: Commands
    home: Path
    redis: str
    _asked: dict[str, Asked] = field(default_factory=dict)
    _told: dict[str, list[Told]] = field(default_factory=dict)
    _got: dict[str, list[Got]] = field(default_factory=dict)

    def connect(self, **connections: str) -> None:
        """Let Airflow know connections, by id."""
        self.commands.environment |= {f"AIRFLOW_CONN_{name.upper()}": told for name, told in connections.items()}
        self.child("page.end_dag_process")

    def live(self, kinds: Sequence[Kind]) -> None:
        """Let topologies live their lives."""
        for each in kinds:
            (self.commands.dags / f"{each.name}.py").write_text(each.text(str(self.home)))
        self.commands.run("dags", "reserialize", root=ROOT)
        where = (str(self.home), str(self.commands.dags), self.commands.database, self.redis)
        self.child("world.live", *where, *(each.name for each in kinds))

    def child(self, function: str, *arguments: str) -> str:
        """What a function of this folder prints in the process of the commands."""
        module, _, name = function.partition(".")
        code = f"from tests.integration.kinds.{module} import {name}; {name}(*arguments)"
        return self.commands.run("python", code, *arguments, root=ROOT)

    def asked(self, kind: Kind) -> Asked:
        """How a topology is asked: with three of its transactions, the oldest, the newest and one between."""
        if kind.name not in self._asked:
            self._asked[kind.name] = self._asked_of(kind)
        return self._asked[kind.name]

    def _asked_of(self, kind: Kind) -> Asked:
        states: list[str] = []
        found = self.type("list", (kind.name,), ("--output", "json"))
        txids = [int(row["txid"]) for row in json.loads(found.output) if row["txid"]] if found.code is None else [1, 2]
        shown = self.type("show", (kind.name, "--no-lag"), ("--output", "json"))
        assert not found.broken + shown.broken, found.broken + shown.broken
        if shown.code is None:
            states = list(json.loads(shown.output)[0]["states"])
        some = sorted({txids[0], txids[len(txids) // 2], txids[-1]})
        return Asked(kind, states, some, str(self.commands.dags / f"{kind.name}.py"))

    def type(self, command: str, line: Line, output: Line) -> Tried:
        """Type a command."""
        return self.commands.tried("tx", *command.split(), *line, *output, root=ROOT)

    def told(self, kind: Kind) -> list[Told]:
        """What every command that reads gives of a topology: JSON, where it can."""
        if kind.name not in self._told:
            self._told[kind.name] = list(self._tell(kind, in_json=True))
        return self._told[kind.name]

    def told_otherwise(self, kind: Kind) -> list[Told]:
        """What these commands give in every other way to print it."""
        return list(self._tell(kind, in_json=False))

    def _tell(self, kind: Kind, *, in_json: bool) -> Iterator[Told]:
        of = self.asked(kind)
        for name, command in commands_that_read().items():
            outputs = outputs_of(command)
            first = next((each for each in outputs if "json" in each), outputs[0])
            for line in QUESTIONS[name](of):
                for output in outputs:
                    if (output == first) is in_json:
                        yield Told(name, line, output[-1] if output else "", self.type(name, line, output))

    # --- the page

    def routes(self) -> dict[str, list[str]]:
        """The routes of the page that read, and what each has to be told."""
        found: dict[str, list[str]] = json.loads(self.child("page.routes"))
        return found

    def got(self, kind: Kind) -> list[Got]:
        """What every GET of the page answers of a topology, and of three of its transactions."""
        if kind.name not in self._got:
            self._await_sources()
            of = self.asked(kind)
            questions = [
                {"route": route, "told": told}
                for route, needs in self.routes().items()
                for told in _tellings(of, needs)
            ]
            answers = json.loads(self.child("page.get", *map(json.dumps, questions)))
            self._got[kind.name] = [Got(**{**asked, **each}) for asked, each in zip(questions, answers, strict=True)]
        return self._got[kind.name]

    def _await_sources(self) -> None:
        """Let the page have asked every source: it asks them in the background."""
        question = json.dumps({"route": "list_topologies", "told": {}})

        def are_known() -> bool:
            ((answer),) = json.loads(self.child("page.get", question))
            whys = [line["lag"]["why"] or "" for line in answer["body"]["topologies"]]
            # On a busy machine a server may be too slow; it is asked again.
            return not any("source has not answered" in why for why in whys)

        eventually(are_known, 240, "all sources have told their lags", interval=0.2)


def _tellings(of: Asked, needs: Iterable[str]) -> list[dict[str, str]]:
    """What a route may be told of a topology: one telling for each transaction or run, if it wants one."""
    own = {"topology": of.kind.name, "dag_id": of.kind.name, "what": of.finds}
    many = {"txid": [str(each) for each in of.txids], "run_id": ["r1", "r2", "r4"]}
    needs = list(needs)
    several = next((each for each in needs if each in many), None)
    common = {each: own[each] for each in needs if each in own}
    if "what" in common and "topology" not in common:
        common["text"] = of.kind.name  # else the best of all topologies are found
    unknown = set(needs) - own.keys() - many.keys()
    assert not unknown, f"Say here what to tell a route for {unknown}."
    return [common] if several is None else [{**common, several: each} for each in many[several]]
