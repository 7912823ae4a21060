"""A person has raised the txid in a fence: each command says so, and what it says to do works."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from airflow_tx.base.errors import RepairRefused, StateDiffers
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs, state_lost
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.turn import commit_in_turn
from tests.stage import begin_run
from tests.unit.commit.backups import ADA, InSqlite, rolled, values
from tests.unit.commit.restated_run import Makes, committed, processed, rows
from tests.unit.commit.run import Run, killed_before_the_mark

PHASES = ["begun", "processed", "acquired", "written"]


class Died(Exception):
    """The committer is killed."""


class Raised:
    """Transactions 1 and 2 are committed, and 3 is open. Then the txid in the fence is raised.

    :ivar raised_by: the transaction that has raised the fence.
    """

    def __init__(self, folder: Path, make: Any, phase: str, to: int) -> None:
        self.place: Any = InSqlite(folder, "opaque")
        self.file = folder / "state.db"
        made = Makes(make, self.place)
        for given in ({"a": 1}, {"a": 20}):
            committed(made, rows(**given))
        self.run: Run = made("run 3")
        self.run.begun = begin_run(self.run.spec, "run 3")
        self.phase, self.raised_by = phase, 3 if phase == "written" else 2
        if phase != "begun":
            processed(self.run, rows(a=300))
        if phase == "acquired":
            commit = self.run.commit()

            def dies(*args: Any, **how: Any) -> Any:
                raise Died

            with pytest.raises(Died), patch.object(Commit, "use", dies):
                commit_in_turn(commit, self.run.spec.memory, patience=0.0)
        if phase == "written":
            killed_before_the_mark(self.run.commit())
        self.put(to)
        self.ledger = self.run.spec.ledger(self.run.spec.memory)

    def put(self, txid: int) -> None:
        with sqlite3.connect(self.file) as connection:
            connection.execute("UPDATE airflow_tx_fence SET txid = ?", (txid,))

    def commits(self) -> int:
        if self.phase == "begun":
            processed(self.run, rows(a=300))
            self.phase = "processed"
        self.run.commit_now()
        return values(self.place)["a"]

    def skip(self) -> None:
        self.ledger.run(note_skip, 3, ADA)
        take_skip(self.ledger, 3, {self.place.state.name: self.place.state}, log=self.run.log)

    def roll_forward(self) -> None:
        (told,) = rolled(self.run, self.place)
        raise RepairRefused(what="roll-forward", topology="numbers", problem=told, remedy="")

    def ledger_lost(self) -> None:
        state = self.place.state
        how = {"fence": state.fence(), "holds": state.holds, "receipts": state.receipts()}
        Repairs(self.ledger).ledger_lost([HeldState.of(state.name, undoable=True, **how)], self.run.spec.request, ADA)


COMMANDS: dict[str, Callable[[Raised], Any]] = {
    "commit": Raised.commits,
    "skip": Raised.skip,
    "roll forward": Raised.roll_forward,
    "ledger lost": Raised.ledger_lost,
}


@pytest.mark.parametrize("phase", PHASES)
@pytest.mark.parametrize("to", [4, 9])
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("remedy", ["put back", "state lost"])
def test_a_fence_whose_txid_was_raised_by_hand_is_refused_with_a_remedy_that_works(
    tmp_path: Path, make: Any, phase: str, to: int, command: str, remedy: str
) -> None:
    raised = Raised(tmp_path, make, phase, to)
    with pytest.raises((StateDiffers, RepairRefused)) as refused:
        COMMANDS[command](raised)
    told = str(refused.value)
    name = raised.place.state.name
    assert f"its fence says transaction {to}, and transaction {raised.raised_by} has raised it" in told
    assert f"airflow tx repair numbers --state-lost {name}" in told
    if remedy == "put back":
        (txid,) = re.findall(r"Put txid (\d+) back into the fence", told)
        raised.put(int(txid))
    else:
        raised.ledger.run(state_lost, name, ADA)
    if command == "skip":
        raised.skip()
        assert values(raised.place) == {"a": 21}
    else:
        assert raised.commits() == 321


@pytest.mark.parametrize("phase", ["begun", "processed", "acquired"])
@pytest.mark.parametrize("command", ["roll forward", "ledger lost"])
def test_a_repair_does_not_count_a_txid_that_was_written_into_the_fence_by_hand_as_committed(
    tmp_path: Path, make: Any, phase: str, command: str
) -> None:
    raised = Raised(tmp_path, make, phase, 3)
    with pytest.raises(RepairRefused, match="its fence says transaction 3, and transaction 2 has raised it"):
        COMMANDS[command](raised)
    assert raised.commits() == 321
