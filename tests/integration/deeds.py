"""Topologies in which each action of a person can be done, on a real ZooKeeper and a real database of Airflow."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import pytest

from airflow_tx.base.errors import StateBehind
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.batch import Batch, BeginRequest, Outside
from airflow_tx.ledger.ledger import ReadOnlyLedger
from airflow_tx.ledger.records import Waiter
from airflow_tx.ledger.steps import end, run_slots
from airflow_tx.operations.actions.request import ActionName
from tests.integration.cli_runs import AUDIT, Runs, checked, fail, granted, state_of
from tests.integration.commands import Commands
from tests.integration.pipeline import Pipeline


@dataclass(frozen=True)
class World:
    """A topology, and the runs of its DAG."""

    airflow: Commands
    pipeline: Pipeline
    runs: Runs

    def everything(self) -> Any:
        """The ledger, the runs and the values of the states."""
        return self._ledger(), self._rows(self.airflow.database), self._rows(self._metadata, "dag", "dag_run")

    def summary(self) -> Any:
        """What a person can tell of it."""
        turn = self.pipeline.ledger.turn()
        opened = ReadOnlyLedger(self.pipeline.store, self.pipeline.paths).open_records()
        found = [(txid, each.attempt, each.phase, each.skip, each.checks) for txid, each in opened.items()]
        topology = self.pipeline.ledger.topology()
        noted = (
            topology.losses,
            topology.yielded,
            topology.accepted,
            topology.generation,
            len(self.pipeline.ledger.repairs()),
        )
        return turn.current, found, noted, self._rows(self._metadata, "dag", "dag_run")

    def pause(self, *, paused: bool) -> None:
        """Pause the coordinator, or not."""
        with sqlite3.connect(self._metadata) as handle:
            handle.execute("UPDATE dag SET is_paused = ? WHERE dag_id = 'flights_coordinator'", (paused,))
        handle.close()

    @property
    def _metadata(self) -> str:
        return f"{self.airflow.environment['AIRFLOW_HOME']}/airflow.db"

    def _ledger(self) -> dict[str, bytes]:
        found, folders = {}, [self.pipeline.paths.base]
        while folders:
            path = folders.pop()
            node, children = self.pipeline.store.get(path), self.pipeline.store.children(path)
            assert node is not None
            assert children is not None
            found[path] = node.data
            folders += [f"{path}/{name}" for name in children.names]
        return found

    def _rows(self, database: str, *tables: str) -> list[Any]:
        handle = sqlite3.connect(database)
        try:
            named = "SELECT name FROM sqlite_master WHERE type = 'table'"
            tables = tables or tuple(name for (name,) in handle.execute(named))
            return [(table, sorted(map(repr, handle.execute(f'SELECT * FROM "{table}"')))) for table in tables]
        finally:
            handle.close()


def one_failed(world: World) -> None:
    fail(world.pipeline, world.pipeline.begin("r1"))
    world.runs.make(r1="failed")


def one_live_one_to_be_skipped(world: World) -> None:
    world.pipeline.begin("r1")
    fail(world.pipeline, world.pipeline.begin("r2"))
    world.runs.make(r1="running", r2="failed")
    world.pipeline.ledger.run(end.note_skip, 2, AUDIT)


def one_failed_one_live(world: World) -> None:
    one_failed(world)
    world.pipeline.begin("r2")
    world.runs.make(r2="running")


def a_live_one_to_be_skipped(world: World) -> None:
    one_failed_one_live(world)
    world.pipeline.ledger.run(end.note_skip, 2, AUDIT)


def two_open_without_runs(world: World) -> None:
    world.pipeline.begin("r1")
    world.pipeline.begin("r2")


def one_in_a_state_that_is_gone(world: World) -> None:
    granted(world.pipeline, "r1", "tx_state.one", "tx_state.gone")
    world.pipeline.begin("r2")


def some_yielded(world: World) -> None:
    one_failed(world)
    world.pipeline.begin("r2")
    world.pipeline.begin("r3")
    world.pipeline.ledger.run(end.note_skip, 3, AUDIT)
    for number, run in enumerate(("gone", "still", "waits")):
        waiter = Waiter(run, None, f"00040{number}", 1)
        world.pipeline.ledger.run(run_slots.bid, waiter)
        world.pipeline.ledger.run(run_slots.note_yield, waiter)
    world.runs.make(r2="running", r3="failed", still="running", waits="failed")


def one_whose_predecessor_moved(world: World) -> None:
    pipeline = world.pipeline
    two_open_without_runs(world)
    request = BeginRequest(pipeline.request, "r1", "r1", "500000", False, {"task0": "1" * 16})
    begun = pipeline.ledger.begin(request, Outside(decide=lambda *_: Batch([1, 2], 2), run_state=lambda _: None))
    assert isinstance(begun, Begun)
    pipeline.mark(pipeline.acquire(begun, pipeline.process(begun)))
    world.runs.make(r2="failed")


def one_with_failed_checks(world: World) -> None:
    checked(world.pipeline, "r1", "positive", "no gaps")
    world.runs.make(r1="failed")
    world.runs.fail("r1", "commit")


def one_that_was_changed_by_hand(world: World) -> None:
    world.pipeline.added = ["n"]
    world.pipeline.run("r1")
    with sqlite3.connect(world.airflow.database) as handle:
        handle.execute("UPDATE one SET n = n + 5")
    handle.close()


def a_renamed_state(world: World) -> None:
    """A table of the DAG, which had another name when transaction 1 was committed."""
    old, two = state_of(world.airflow, "old"), world.pipeline.states[1]
    old.clear()
    with sqlite3.connect(world.airflow.database) as handle:
        handle.execute("DROP TABLE IF EXISTS one")
    world.pipeline.states = [old, two]
    world.pipeline.run("r1")
    with sqlite3.connect(world.airflow.database) as handle:
        handle.execute("ALTER TABLE old RENAME TO one")


def a_state_that_is_gone(world: World) -> None:
    gone = state_of(world.airflow, "gone")
    gone.clear()
    world.pipeline.states = [*world.pipeline.states, gone]
    world.pipeline.run("r1")


def a_lost_state(world: World) -> None:
    world.pipeline.run("r1")
    world.pipeline.states[0].clear()


def a_lost_state_and_a_failed_commit(world: World) -> None:
    a_lost_state(world)
    begun = world.pipeline.begin("r2")
    grant = world.pipeline.acquire(begun, world.pipeline.process(begun))
    with pytest.raises(StateBehind) as behind:
        world.pipeline.write(grant, begun.metadata)
    error = behind.value
    world.pipeline.ledger.note_commit_failed(
        begun.attempt, grant.token.epoch, reason=error.problem_text, remedy=error.advice, for_good=error.for_good
    )
    world.runs.make(r1="success", r2="failed")


def one_skipped(world: World) -> None:
    world.pipeline.begin("r1")
    world.pipeline.skip(1)
    world.runs.make(r1="success")


def one_readmitted(world: World) -> None:
    one_skipped(world)
    world.pipeline.ledger.run(end.note_readmission, 1, AUDIT)
    world.pipeline.begin("r1")


def one_committed(world: World) -> None:
    world.pipeline.run("r1")


def one_of_other_code(world: World) -> None:
    """A committed transaction whose task has other code in the DAG file."""
    world.pipeline.code = {"count": "0" * 16}
    world.pipeline.run("r1")


def all_taken(world: World) -> None:
    for number in range(6):
        world.pipeline.run(f"r{number}")


def a_coordinator(world: World) -> None:
    world.pipeline.begin("r1")
    world.pause(paused=False)


def a_paused_coordinator(world: World) -> None:
    world.pipeline.begin("r1")
    world.pause(paused=True)


ONE, STATE = {"txids": (1,)}, {"names": ("tx_state.one",)}
ASKED: Mapping[ActionName, tuple[Callable[[World], None], dict[str, Any]]] = {
    ActionName.REPLAY: (one_failed, ONE),
    ActionName.REPLAY_FAILED: (one_failed, {}),
    ActionName.SKIP: (one_failed, ONE),
    ActionName.READMIT: (one_skipped, ONE),
    ActionName.RESTATE: (one_committed, ONE),
    ActionName.WITHDRAW: (one_committed, ONE),
    ActionName.ACCEPT_LOSS: (one_failed, {}),
    ActionName.ACCEPT_CHECK: (one_with_failed_checks, {**ONE, "names": ("positive",)}),
    ActionName.ACCEPT_CHANGE: (one_that_was_changed_by_hand, STATE),
    ActionName.ACCEPT_CODE: (one_of_other_code, {}),
    ActionName.STATE_RENAME: (a_renamed_state, {"names": ("tx_state.old", "tx_state.one")}),
    ActionName.STATE_FORGET: (a_state_that_is_gone, {"names": ("tx_state.gone",)}),
    ActionName.REPAIR: (a_lost_state, {"repair": "state-lost", **STATE}),
    ActionName.PAUSE: (a_coordinator, {}),
    ActionName.UNPAUSE: (a_paused_coordinator, {}),
}
