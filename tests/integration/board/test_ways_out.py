"""Each trouble with the advice about it, followed from the first step to the last: rows are counted once at its end."""

from __future__ import annotations

import json
import re
import shlex
import sqlite3
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import expect

from airflow_tx.ledger.api import Paths
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.ledger.ledger import Ledger, ReadOnlyLedger
from airflow_tx.ledger.steps import recovery
from airflow_tx.ledger.steps.recovery import ReplayRequest
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.store.client import ClientConfig, connect, disconnect
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.ledger.views.view import TopologyView, topology_view
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.servers.zookeeper import LocalZooKeeper
from airflow_tx.transaction.alarms import AlarmTopology
from tests.airflow.browser import People, Person
from tests.integration.board.server import ROOT, Board
from tests.integration.cli_runs import Runs

DAG = """
from datetime import timedelta
from airflow.sdk import DAG, task
from airflow_tx import *
from airflow_tx.state import *

with DAG("{name}", schedule=None, max_active_runs=16) as dag:
    with Transaction(source={source}, max_pending=8{options}) as tx:
        @task
        def count(batch):
            return []
        counted = count(tx.batch)
        CommitOperator(task_id="commit", updates=[{updates}]{commit})
"""
FILES = 'FileSource("{home}/*.csv", files_per_batch={size}, kind="{kind}")'
SQL = 'SqlState("tx_state", table="{table}", keys=["key"], values={{"n": Sum()}}{state})'
UPDATE = f"persistent_aggregate(counted, state={SQL})"
CHECK = ', checks=[check("positive", counted, rows="n >= 0")]'


class Place:
    """A topology in trouble: its DAG file, its files and its table.

    :ivar expected: the sum of its state at the end.
    """

    def __init__(self, board: Board, store: ZooKeeperStore, client: Any, name: str) -> None:
        self.client = client
        self.board, self.store, self.name = board, store, name
        self.paths = Paths(ROOT, name)
        self.file = board.commands.dags / f"{name}.py"
        self.home = board.home / name
        self.home.mkdir()
        self.expected = 0
        self.table = self.dag_id = name
        self._runs = 0

    def define(
        self,
        *tables: str,
        size: int = 1,
        kind: str = "transactional",
        options: str = "",
        commit: str = "",
        state: str = "",
    ) -> None:
        """Write the DAG file, and let Airflow know it."""
        updates = ", ".join(UPDATE.format(table=each, state=state) for each in tables or (self.table,))
        source = FILES.format(home=self.home, size=size, kind=kind)
        fields = {"name": self.dag_id, "source": source, "updates": updates, "options": options, "commit": commit}
        self.file.write_text(DAG.format(**fields))
        self.board.commands.run("dags", "reserialize", "--bundle-name", "dags-folder", root=ROOT)

    def child(self, function: str, *arguments: str) -> None:
        code = f"from tests.integration.board.lives import {function}; {function}(*arguments)"
        self.board.commands.run("python", code, *arguments, root=ROOT)

    def arrive(self, value: int = 1) -> None:
        """Let the source have a file of one row."""
        number = len(list(self.home.glob("*.csv"))) + 1
        (self.home / f"{number:02}.csv").write_text(f"n\n{value}\n")
        self.expected += value

    def run(self, *values: int) -> None:
        """Let files arrive, a run each, which go as far as they can."""
        self.go_on(*map(self.next, values))

    def next(self, value: int) -> str:
        """Let a file arrive, and name the run that takes it."""
        self.arrive(value)
        self._runs += 1
        return f"r{self._runs}"

    def go_on(self, *created: str) -> None:
        self.child("go_on", str(self.file), str(self.home), *created)

    def query(self, statement: str) -> list[Any]:
        handle = sqlite3.connect(self.board.commands.database)
        try:
            with handle:
                return handle.execute(statement).fetchall()
        finally:
            handle.close()

    @property
    def sum(self) -> int:
        return self.query(f'SELECT sum(n) FROM "{self.table}"')[0][0] or 0

    @property
    def ledger(self) -> Ledger:
        return Ledger(self.store, self.paths)

    def view(self) -> TopologyView:
        return topology_view(self.store, self.paths)

    def restate(self, txid: int) -> None:
        """Want a transaction restated, by the page: the command follows the run, which no scheduler starts."""
        path, body = f"topologies/{self.name}/actions/restate", {"txids": [txid]}

        def previewed() -> Any:
            answer = self.board.post(f"{path}/preview", body).json()
            return answer if answer.get("effects") else None

        preview = eventually(previewed, 60, "the page previews the restatement")
        answer = self.board.post(path, {**body, "version": preview["version"], "why": "a bug"})
        assert answer.status_code == 200, answer.text

    def type(self, command: str) -> str:
        """Type a command into a shell, and `y` if it asks."""
        program, *words = [CAPITALS.get(each, each) for each in shlex.split(command)]
        assert program == "airflow", command
        done = self.board.commands.tried(*words, root=ROOT)
        if "To confirm without a terminal, add --yes" in str(done.code):
            done = self.board.commands.tried(*words, "--yes", root=ROOT)
        assert not done.broken, done.broken
        assert done.code is None, f"{command}: {done.refusal}"
        return done.output + done.told


CAPITALS = {"TEXT": "the shop was closed"}


@dataclass(frozen=True)
class Trouble:
    """A trouble, and what helps.

    :param make: brings a topology into it, whose open transactions it leaves refused.
    :param steps: the commands that a person does, in their order.
    :param mends: what a person does before the first step, as its words say.
    """

    make: Callable[[Place], None]
    steps: tuple[str, ...]
    mends: Callable[[Place], None] = lambda place: None


def a_failed_task(place: Place) -> None:
    place.define()
    place.run(1)
    (place.home / "broken").touch()
    place.run(2)


def mend(place: Place) -> None:
    (place.home / "broken").unlink()


def a_renamed_state(place: Place) -> None:
    place.define(f"{place.name}_old")
    place.run(1, 2)
    place.query(f"ALTER TABLE {place.name}_old RENAME TO {place.name}")
    place.define()
    place.run(3)


def a_lost_state(place: Place) -> None:
    place.define()
    place.run(1, 2)
    place.child("clear", str(place.file), str(place.home))
    place.run(3)


def a_lost_state_without_a_journal(place: Place) -> None:
    place.define(options=", journal=timedelta(0)")
    place.run(1, 2)
    place.child("clear", str(place.file), str(place.home))
    place.expected = 0
    place.run(3)


def one_that_is_replayed_no_more(place: Place) -> None:
    a_failed_task(place)
    (first,) = place.view().opened
    request = ReplayRequest(TransactionAttempt(first.txid, first.document.attempt), "it broke", counts=True, limit=0)
    place.ledger.run(recovery.note_replay, request)


def a_failed_check(place: Place) -> None:
    place.define(commit=CHECK)
    place.run(1)
    place.run(-5, 2)


def correct(place: Place) -> None:
    (place.home / "corrected").touch()
    place.expected += 10


def a_deleted_run(place: Place) -> None:
    a_failed_task(place)
    mend(place)
    place.child("delete", place.name, "r2")


def a_run_of_a_paused_backfill(place: Place) -> None:
    place.define()
    place.run(1)
    place.arrive(2)
    place.child("begin", str(place.file), str(place.home), "r2")
    place.child("strand", place.name, "r2")


def a_ledger_that_is_lost(place: Place) -> None:
    place.define()
    place.run(1, 2)
    place.client.delete(place.paths.base, recursive=True)
    place.run(3)


def a_ledger_that_went_back(place: Place) -> None:
    place.define()
    place.run(1)
    kept = tree(place.store, place.paths.base)
    place.run(2)
    place.client.delete(place.paths.base, recursive=True)
    for path in sorted(kept):
        place.client.create(path, kept[path])
    place.run(3)


def a_roll_forward_that_died(place: Place) -> None:
    a_lost_state(place)
    place.ledger.begin_roll_forward({f"tx_state.{place.name}": 0}, Audit("ada", "the disk is gone"))


def a_state_that_is_no_longer_updated(place: Place) -> None:
    """A commit has begun in two states, and the DAG has one now."""
    two = place.name, f"{place.name}_two"
    place.define(*two)
    place.run(1)
    place.child("die", "commit.before_mark", str(place.file), str(place.home), place.next(2))
    place.define()
    place.child("clear_task", place.name, "r2", "commit")
    place.go_on()


def bring_the_state_back(place: Place) -> None:
    place.define(place.name, f"{place.name}_two")


def another_output(place: Place) -> None:
    place.define(state=', kind="transactional"')
    place.run(1)
    place.child("die", "commit.before_mark", str(place.file), str(place.home), place.next(-2))
    (place.home / "corrected").touch()
    place.child("clear_task", place.name, "r2", "begin", "count", "commit")
    place.go_on()


def take_the_code_back(place: Place) -> None:
    (place.home / "corrected").unlink()


def a_store_that_is_away(place: Place) -> None:
    place.define()
    place.run(1)
    database = Path(place.board.commands.database)
    database.rename(database.with_suffix(".away"))
    database.mkdir()
    place.run(2)


def bring_the_store_back(place: Place) -> None:
    database = Path(place.board.commands.database)
    database.rmdir()
    database.with_suffix(".away").rename(database)


def one_whose_predecessor_moved(place: Place) -> None:
    place.define(kind="opaque")
    (place.home / "broken").touch()
    place.run(1, 2)
    mend(place)
    place.define(kind="opaque", size=2)
    place.child("clear_task", place.name, "r1", "begin", "count", "commit")
    place.go_on()


def a_changed_value(place: Place) -> None:
    place.define()
    place.run(1, 2)
    place.query(f"UPDATE {place.name} SET n = n + 5")
    place.expected += 5
    place.restate(1)
    place.go_on()


def a_deleted_key(place: Place) -> None:
    place.define()
    place.run(1, 2)
    place.query(f"DELETE FROM {place.name}")
    place.restate(1)
    place.go_on()


LOST = "airflow tx repair {name} --ledger-lost"
TROUBLES = {
    "a failed task": Trouble(a_failed_task, ("airflow tx replay {name} 2",), mend),
    "one that is replayed no more": Trouble(one_that_is_replayed_no_more, ("airflow tx replay {name} 2",), mend),
    "a failed check": Trouble(a_failed_check, ("airflow tx replay {name} 2",), correct),
    "a renamed state": Trouble(
        a_renamed_state,
        ("airflow tx state rename {name} tx_state.{name}_old tx_state.{name}", "airflow tx replay {name} 3"),
    ),
    "a lost state": Trouble(
        a_lost_state, ("airflow tx repair {name} --roll-forward tx_state.{name}", "airflow tx replay {name} 3")
    ),
    "a lost state without a journal": Trouble(
        a_lost_state_without_a_journal,
        ("airflow tx repair {name} --state-lost tx_state.{name}", "airflow tx replay {name} 3"),
    ),
    "a roll forward that died": Trouble(
        a_roll_forward_that_died,
        ("airflow tx repair {name} --roll-forward tx_state.{name}", "airflow tx replay {name} 3"),
    ),
    "a deleted run": Trouble(a_deleted_run, ("airflow tx replay {name} 2",)),
    "a run of a paused backfill": Trouble(a_run_of_a_paused_backfill, ("airflow tx replay {name} 2",)),
    "a ledger that is lost": Trouble(a_ledger_that_is_lost, (LOST,)),
    "a ledger that went back": Trouble(a_ledger_that_went_back, (LOST,)),
    "a state that is no longer updated": Trouble(
        a_state_that_is_no_longer_updated, ("airflow tx replay {name} 2",), bring_the_state_back
    ),
    "another output": Trouble(another_output, ("airflow tx replay {name} 2",), take_the_code_back),
    "a store that is away": Trouble(a_store_that_is_away, ("airflow tx replay {name} 2",), bring_the_store_back),
    "one whose predecessor moved": Trouble(one_whose_predecessor_moved, ("airflow tx replay {name} 2",)),
    "a changed value": Trouble(a_changed_value, ()),
    "a deleted key": Trouble(
        a_deleted_key, ("airflow tx repair {name} --roll-forward tx_state.{name}", "airflow tx replay {name} 3")
    ),
}


def tree(store: ZooKeeperStore, path: str) -> dict[str, bytes]:
    """Read a node and all that is below it."""
    node, children = store.get(path), store.children(path)
    assert node is not None
    assert children is not None
    below = [tree(store, f"{path}/{name}") for name in children.names]
    return {path: node.data, **{name: data for each in below for name, data in each.items()}}


@pytest.fixture
def place(
    board: Board, zookeeper: LocalZooKeeper, store: ZooKeeperStore, runs: Runs, request: pytest.FixtureRequest
) -> Iterator[Place]:
    case = getattr(request, "param", request.node.callspec.id)
    case = "".join(each if each.isalnum() else "_" for each in case)
    client = connect(ClientConfig(zookeeper.hosts))
    made = Place(board, store, client, case)
    yield made
    made.file.unlink()
    disconnect(client)


def steps_of(place: Place, done: Sequence[str]) -> list[Any]:
    """What the overview, the page of the topology, that of the transaction, and the commands advise: the same."""
    view, board = place.view(), place.board
    opened = [each.txid for each in view.opened]

    def seen() -> Any:
        page = board.get(f"topologies/{place.name}", "ulf")
        rows = board.get(f"topologies/{place.name}/transactions", "ulf")["transactions"]
        steps = page["advice"]["steps"]
        is_new = [each["txid"] for each in reversed(rows) if each["open"]] == opened
        return [page] if is_new and not {each["command"] for each in steps}.intersection(done) else None

    (page,) = eventually(seen, 30, f"the page has seen it, and offers nothing again: {done}")
    steps: list[Any] = page["advice"]["steps"]
    lines = board.get("topologies?limit=200", "ulf")["topologies"]
    (line,) = (each for each in lines if each["topology"] == place.name)
    assert line["advice"]["steps"] == steps
    if steps and page["state"]["txid"] is not None:
        shown = board.get(f"topologies/{place.name}/transactions/{page['state']['txid']}", "ulf")
        assert shown["advice"]["steps"] == steps
    if steps:
        first = next(each["command"] for each in steps if each["command"])
        told = place.type(f"airflow tx show {place.name} --no-lag --output json")
        said = json.loads(told)[0]["state"]
        assert first in said, (first, said)
        assert all(said.index(first) <= said.index(each) for each in commands_in(steps) if each in said)
    check_alert(place, view, commands_in(steps))
    return steps


def check_alert(place: Place, view: TopologyView, commands: Sequence[str]) -> None:
    """Compare with what people are sent if the coordinator replays the first transaction no more."""
    mark = view.record.blocked
    if mark is not None:
        opened = ReadOnlyLedger(place.store, place.paths).open_records()
        topology = AlarmTopology(place.name, place.dag_id)
        (alarm,) = topology.find(opened, blocked=mark, now=datetime.now(timezone.utc))
        said = [alarm.remedy.index(each) for each in commands]
        assert said == sorted(said)


def commands_in(steps: Sequence[Any]) -> list[str]:
    return [each["command"] for each in steps if each["command"]]


def follow(place: Place, ulf: Person | None, done: list[str]) -> bool:
    """Do what is said first; False: nothing is said."""
    steps = steps_of(place, done)
    if not steps:
        return False
    print(place.board.get(f"topologies/{place.name}", "ulf")["state"]["sentence"])
    print(*(f"  {each['words']} | {each['command']} | {bool(each['action'])}" for each in steps), sep="\n")
    first = next(each for each in steps if each["command"])
    failed = place.view().opened[0].document.run_id
    done.append(first["command"])
    if ulf is None or first["action"] is None:
        place.type(first["command"])
    else:
        click(ulf, place, first)
    if not place.view().opened and any("Then clear its run" in each["words"] for each in steps):
        place.child("clear_task", place.name, failed, "begin", "count", "commit")
    place.go_on()
    return True


def click(ulf: Person, place: Place, step: Any) -> None:
    """Press the first button below the sentence of the topology, and do what the dialog says."""
    ulf.open(topology=place.name)
    named = re.compile(f"{re.escape(place.name)}$")
    button = ulf.board.get_by_role("button", name=named).filter(has_not_text="Copy").first
    expect(button).to_be_visible()
    name = button.inner_text()
    button.click()
    dialog = ulf.page.get_by_role("dialog")
    pressed = dialog.get_by_role("button", name=name, exact=True)
    expect(dialog.get_by_text("What will happen")).to_be_visible()
    expect(dialog.get_by_text("Refused")).to_have_count(0)
    if dialog.get_by_role("textbox").count():
        dialog.get_by_role("textbox").fill("the shop was closed")
    pressed.click()
    expect(dialog.get_by_text("Done", exact=True)).to_be_visible()
    ulf.page.keyboard.press("Escape")
    expect(ulf.page.get_by_role("dialog")).to_have_count(0)


QUICK = {("a lost state without a journal", "typed"), ("a renamed state", "clicked")}
CASES = [
    pytest.param(trouble, way, marks=[] if (trouble, way) in QUICK else pytest.mark.long, id=f"{trouble}-{way}")
    for trouble in TROUBLES
    for way in ("typed", "clicked")
]


@pytest.mark.parametrize(("trouble", "way"), CASES)
def test_a_stuck_transaction_commits_after_a_person_follows_the_suggested_steps(
    place: Place, people: People, trouble: str, way: str
) -> None:
    case = TROUBLES[trouble]
    case.make(place)
    case.mends(place)
    done: list[str] = []
    while follow(place, people("ulf") if way == "clicked" else None, done):
        pass
    assert (place.view().opened, place.sum) == ((), place.expected)
    assert done == [each.format(name=place.name) for each in case.steps]


@pytest.mark.long
@pytest.mark.parametrize("place", ["skipped"], indirect=True)
def test_a_transaction_that_was_skipped_as_suggested_counts_again_after_its_readmission(place: Place) -> None:
    a_failed_task(place)
    mend(place)
    place.type(commands_in(steps_of(place, ()))[-1])
    assert (place.view().opened, place.sum) == ((), place.expected - 2)
    place.type(f"airflow tx readmit {place.name} 2 --why TEXT")
    place.go_on()
    assert (place.view().opened, place.sum) == ((), place.expected)
