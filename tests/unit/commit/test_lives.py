"""Lives of states: renamed, forgotten, lost whole and changed by hand, and then a backup comes back."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_tx.base.errors import AcceptanceRefused, NotTakenBack, StateBehind, TxError
from airflow_tx.ledger import life
from airflow_tx.ledger.audit import rebuild
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs, SeenState, rename_state
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.life import Life, _Walk
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.ledger.records import RepairRecord
from airflow_tx.ledger.steps import end as end_steps
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.views.view import LedgerView
from airflow_tx.operations.actions import value_acceptance
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.operations.actions.lost_state import seen_state
from airflow_tx.operations.actions.roll_forward import RollForwardRepair
from airflow_tx.operations.actions.value_acceptance import ChangeAcceptance
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.state import Max, MemoryState, Sum, fence
from airflow_tx.state.api import FencedState
from airflow_tx.state.sql.state import SqlState
from airflow_tx.transaction.commit import roll_forward as module
from airflow_tx.transaction.commit.contributions import DifferenceRows
from airflow_tx.transaction.commit.state_history import StateHistory
from tests.model.mutants import ONE, Mutant, applied
from tests.stage import update
from tests.unit.bench import CountingStore
from tests.unit.commit.backups import ADA, InMemory, InSqlite, skipped, values
from tests.unit.commit.restated_run import begun, committed, rows
from tests.unit.commit.run import Run, killed_until_it_ends


def by_hand(place: Any, word: str, count: int | None) -> None:
    """A person sets a value, or deletes it."""
    if isinstance(place, InMemory):
        found = place.state.database.rows
        if count is None:
            found.pop((word,), None)
        else:
            found[word,] = replace(found[word,], value=(count,))
        return
    with sqlite3.connect(place.file) as connection:
        if count is None:
            connection.execute("delete from words where word = ?", (word,))
        else:
            connection.execute("update words set count = ? where word = ?", (count, word))


class Line:
    """A line of transactions of some states, of which one is set back.

    :ivar places: of the states of the DAG, by name; `place`: the one that the tests are about.
    """

    def __init__(self, make: Any, folder: Path, where: Any, made: Any = None) -> None:
        self.place: Any = where(folder, "opaque", made)
        self.states: list[Any] = [self.place.state]
        self.folder = folder
        self.runs: dict[int, str] = {}
        self._make = make
        self.store: CountingStore | None = None

    def __call__(self, run_id: str, **options: Any) -> Run:
        """Make a run of all states, as they are now."""
        run: Run = self._make(run_id, updates=[update(each) for each in self.states], **options)
        if self.store is not None:
            run.spec = replace(run.spec, memory=self.store)
        self.run = run
        return run

    def commit(self, instead_of: int | None = None, **output: int) -> Run:
        return committed(self, rows(**output), instead_of=instead_of)

    def backup(self) -> Callable[[], None]:
        """Make a backup; what puts it back also lets the DAG have the state that is there then."""
        kept = self.place.backup()

        def restore() -> None:
            before = self.place.state
            kept()
            self.states = [self.place.state if each is before else each for each in self.states]

        return restore

    def backups(self, *counts: int) -> list[Callable[[], None]]:
        """Commit transactions that add to `a`; the backups of before the first one, and behind each."""
        kept = [self.backup()]
        for count in counts:
            self.commit(a=count)
            kept.append(self.backup())
        return kept

    def gap(self) -> list[Callable[[], None]]:
        """Lose transaction 2, accept that, and commit another one; the backups of before the loss."""
        kept = self.backups(1, 10)
        kept[1]()
        self.lose()
        self.commit(a=100)
        return kept

    def change_gone(self) -> None:
        """Put back a backup of before a change by hand, behind which no transaction has followed."""
        self.commit(a=50, b=7)
        kept = self.backup()
        self.edit("a", None)
        kept()

    @property
    def spec(self) -> Any:
        return self.run.spec

    @property
    def ledger(self) -> Any:
        return self.spec.ledger(self.spec.memory)

    @property
    def by_name(self) -> dict[str, Any]:
        return {each.name: each for each in self.states}

    @property
    def repairs(self) -> list[RepairRecord]:
        return [*LedgerView(self.ledger.store, self.ledger.paths).repairs()]

    @property
    def life(self) -> Life:
        ledger = ledger_evidence(self.spec.memory, self.spec.paths)
        found = {txid: each.receipt for txid, each in ledger.histories.items() if each.receipt is not None}
        receipts = {txid: Receipt.from_json(each) for txid, each in found.items()}
        return Life.of(self.place.state.name, ledger.topology, ledger.repairs, receipts)

    def journal(self, incarnation: str = "") -> JournalArea:
        return JournalArea(self.spec.staging(), incarnation or self.ledger.incarnation())

    def accept(self, *, after: int | None = None) -> list[str]:
        """As `airflow tx accept-change`."""
        dag: Any = (self.spec, self.by_name)
        target = ActionTarget(self.ledger, self.ledger.topology(), lambda: dag)
        acceptance = ChangeAcceptance(target, self.place.state.name, made_after=after)
        return [str(each.what) for each in acceptance.execute(ADA)]

    def edit(self, word: str, count: int | None, *, after: int | None = None) -> None:
        by_hand(self.place, word, count)
        self.accept(after=after)

    def command(self, **options: Any) -> RollForwardRepair:
        options = {"states": self.by_name, **options}
        return RollForwardRepair(self.ledger, options.pop("states"), self.journal(), self.spec.staging(), **options)

    def roll(self, **options: Any) -> list[str]:
        """As `airflow tx repair --roll-forward`; why states were refused, and what is left to do."""
        command = self.command(**options)
        command.execute(ADA)
        return [str(each.what) for each in command.refused]

    def seen(self) -> SeenState:
        return seen_state(self.ledger, self.place.state)

    def lose(self, *, unseen: bool = False) -> str:
        """As `airflow tx repair --state-lost`."""
        seen = None if unseen else self.seen()
        return str(Repairs(self.ledger).state_lost(self.place.state.name, ADA, seen=seen).summary)

    def lose_ledger(self) -> None:
        """As `airflow tx repair --ledger-lost`, once everything in ZooKeeper is gone."""
        self.store = CountingStore()
        self("rebuilds")
        held = [
            HeldState.of(
                each.name, undoable=True, fence=each.fence(), holds=lambda txid: False, receipts=each.receipts()
            )
            for each in self.states
        ]
        changes = [record for each in held for record in self.journal(each.incarnation).changes()]
        Repairs(self.ledger).ledger_lost(held, self.spec.request, ADA, changes=changes)

    def findings(self) -> tuple[str, ...]:
        """What `airflow tx verify --values` finds."""
        ledger = ledger_evidence(self.spec.memory, self.spec.paths)
        return verified(ledger, evidence_of(self.by_name, values=True)).findings

    def values(self) -> dict[str, int]:
        return values(self.place)


@pytest.fixture(params=[InMemory, InSqlite])
def where(request: Any) -> Any:
    return request.param


@pytest.fixture
def line(make: Any, tmp_path: Path, where: Any) -> Line:
    return Line(make, tmp_path, where)


@pytest.fixture
def lines(make: Any, tmp_path: Path) -> Callable[..., Line]:
    """Lines whose state is of a store and a kind of values."""
    return lambda where, made=None: Line(make, tmp_path, where, made)


Lines = Callable[..., Line]
stores = pytest.mark.parametrize("where", [InMemory, InSqlite])


# --- changes by hand ----------------------------------------------------------------------------------------------


@stores
@pytest.mark.parametrize("made", [Sum(), Max()], ids=["sum", "largest"])
def test_a_restored_backup_that_lacks_an_accepted_change_is_noticed_at_the_next_commit(
    lines: Lines, where: Any, made: Any
) -> None:
    line = lines(where, made)
    line.change_gone()
    with pytest.raises(StateBehind, match="lack the change that repair 1 accepted.*--roll-forward"):
        line.commit(a=3)
    assert line.values() == {"a": 50, "b": 7}


@stores
@pytest.mark.parametrize("made", [Sum(), Max()], ids=["sum", "largest"])
def test_a_roll_forward_continues_after_a_person_has_repeated_a_lost_change_and_confirmed_it(
    lines: Lines, where: Any, made: Any
) -> None:
    line = lines(where, made)
    line.change_gone()
    (told,) = line.roll()
    assert "--changed 1" in told
    by_hand(line.place, "a", None)
    assert line.roll(changed=[1]) == []
    line.commit(a=3)
    assert line.values() == {"a": 3, "b": 7}
    assert line.findings() == ()


def test_commits_continue_after_a_person_has_dropped_an_unwanted_change_by_its_number(line: Line) -> None:
    line.change_gone()
    assert line.roll(unchanged=[1]) == []
    line.commit(a=3)
    assert line.values() == {"a": 53, "b": 7}
    assert line.findings() == ()


def test_a_roll_forward_reports_a_missing_change_that_was_made_after_the_last_transaction(line: Line) -> None:
    line.commit(a=5, b=7)
    kept = line.backup()
    line.commit(a=1)
    line.edit("a", None)
    kept()
    (left,) = line.roll()
    assert "has changed its values by hand at this place (repair 1," in left
    assert line.values() == {"a": 6, "b": 7}
    by_hand(line.place, "a", None)
    assert line.roll(changed=[1]) == []
    assert line.findings() == ()


def test_a_roll_forward_recognizes_two_changes_that_cancel_each_other_out(line: Line) -> None:
    line.commit(a=100, b=0, c=1)
    line.edit("b", 40)
    line.commit(c=1)
    line.edit("a", 60)
    line.commit(c=1)
    kept = line.backup()
    line.commit(c=1)
    truth = line.values()
    kept()
    assert line.roll() == []
    assert line.values() == truth
    assert line.findings() == ()


@stores
def test_a_roll_forward_asks_about_a_change_that_is_not_visible_in_the_totals(lines: Lines, where: Any) -> None:
    line = lines(where, Max())
    line.commit(a=100, b=1)
    kept = line.backup()
    line.edit("b", None)
    line.commit(a=101)
    kept()
    (asked,) = line.roll()
    assert "it is unknown whether the values have this change" in asked
    assert line.values() == {"a": 100, "b": 1}
    by_hand(line.place, "b", None)
    assert line.roll(changed=[1]) == []
    assert line.values() == {"a": 101}


def test_a_roll_forward_orders_a_change_by_its_preceding_transaction_and_not_by_its_acceptance(line: Line) -> None:
    line.commit(a=1, b=1)
    kept = line.backup()
    by_hand(line.place, "a", 0)
    line.commit(a=10)
    line.accept(after=1)
    truth = line.values()
    kept()
    (refused,) = line.roll()
    assert "with --changed 1" in refused
    assert line.values() == {"a": 1, "b": 1}
    by_hand(line.place, "a", 0)
    assert line.roll(changed=[1]) == []
    assert line.values() == truth == {"a": 10, "b": 1}
    assert line.findings() == ()


@pytest.mark.parametrize("after", [-1, 3])
def test_an_acceptance_of_a_change_after_an_unknown_transaction_is_refused(line: Line, after: int) -> None:
    line.commit(a=1)
    line.commit(a=1)
    by_hand(line.place, "a", None)
    with pytest.raises(AcceptanceRefused, match=f"transaction {after} is not between 0 and 2"):
        line.accept(after=after)


@stores
@pytest.mark.parametrize("made", [Sum(), Max()], ids=["sum", "largest"])
def test_a_roll_forward_of_a_backup_that_contains_the_change_asks_no_question(
    lines: Lines, where: Any, made: Any
) -> None:
    line = lines(where, made)
    line.commit(a=100, b=1)
    line.edit("b", None)
    kept = line.backup()
    line.commit(a=101)
    truth = line.values()
    kept()
    assert line.roll() == []
    assert line.values() == truth


def test_a_roll_forward_restores_the_number_of_the_last_change_in_the_fence(lines: Lines) -> None:
    line = lines(InMemory)
    line.commit(a=50, b=7)
    line.edit("a", None)
    line.commit(a=3)
    database = line.place.state.database
    database.fence = replace(database.fence, batch=database.fence.batch.replace('"change":1,', ""))
    run = begun(line, rows(b=1))
    with pytest.raises(StateBehind, match="lack the change that repair 1 accepted"):
        run.commit_now()
    assert line.roll() == []
    run.commit_now()
    assert line.values() == {"a": 3, "b": 8}
    assert line.findings() == ()


# --- accept-change that dies ----------------------------------------------------------------------------------------


@pytest.fixture
def kills(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Kill the process at a point, the first time."""

    def arm(owner: Any, point: str, turn: int = 1) -> None:
        left = [turn]

        def dies(name: str, **context: Any) -> None:
            left[0] -= name == point
            if name == point and left[0] == 0:
                raise OSError("killed")

        monkeypatch.setattr(owner, "failpoint", dies)

    return arm


POINTS = ["accept_change.noted", "accept_change.kept"]


@pytest.mark.parametrize("point", POINTS)
def test_an_interrupted_acceptance_of_a_change_stops_commits_until_it_is_repeated(
    line: Line, kills: Any, point: str
) -> None:
    line.commit(a=50, b=7)
    kills(value_acceptance, point)
    with pytest.raises(OSError, match="killed"):
        line.edit("a", None)
    run = begun(line, rows(a=3))
    with pytest.raises(StateBehind, match="lack the change that repair 1 accepted"):
        run.commit_now()
    line.accept()
    assert [each.number for each in line.repairs] == [1]
    assert [each.number for each in line.journal().changes()] == [1]
    assert line.place.state.fence().change == 1
    run.commit_now()
    assert line.values() == {"a": 3, "b": 7}
    assert line.findings() == ()


@pytest.mark.parametrize("point", POINTS)
def test_a_second_change_after_an_interrupted_acceptance_is_accepted_as_a_separate_change(
    line: Line, kills: Any, point: str
) -> None:
    line.commit(a=50, b=7)
    kills(value_acceptance, point)
    with pytest.raises(OSError, match="killed"):
        line.edit("a", None)
    line.edit("b", 8)
    assert [each.change["columns"] for each in line.repairs] == [{"count": -50}, {"count": 1}]
    assert line.place.state.fence().change == 2
    line.commit(a=3)
    assert line.findings() == ()


def test_a_change_whose_acceptance_is_complete_cannot_be_accepted_again(line: Line) -> None:
    line.commit(a=50, b=7)
    line.edit("a", None)
    with pytest.raises(AcceptanceRefused, match="its values match its receipts"):
        line.accept()


def test_a_state_accepts_changes_although_its_fence_cannot_store_their_numbers(
    lines: Lines, monkeypatch: pytest.MonkeyPatch
) -> None:
    line = lines(InMemory)
    line.commit(a=50, b=7)
    monkeypatch.setattr(MemoryState, "accept_values", FencedState.accept_values)
    line.edit("a", None)
    line.commit(a=3)
    assert line.values() == {"a": 3, "b": 7}
    assert line.findings() == ()
    assert [each.number for each in line.journal().changes()] == [1]


def test_values_without_a_fence_from_a_backup_older_than_an_accepted_loss_are_noticed(lines: Lines) -> None:
    line = lines(InSqlite)
    line.commit(a=1, b=2)
    line.commit(c=3, d=4)
    kept = line.place.backup()
    line.place.lose(1, 2)
    line.lose()
    line.commit(e=5)
    line.place.values_of(kept)
    with pytest.raises(StateBehind, match="--roll-forward"):
        line.commit(a=1)


# --- a ledger that is lost ------------------------------------------------------------------------------------------


def test_a_rebuilt_ledger_restores_an_accepted_change_from_the_journal(line: Line) -> None:
    line.change_gone()
    line.lose_ledger()
    assert [(each.number, each.what) for each in line.repairs] == [(1, "accept-change"), (2, "ledger-lost")]
    with pytest.raises(StateBehind, match="lack the change that repair 1 accepted"):
        line.commit(a=3)


def test_numbers_of_new_repairs_are_higher_than_the_number_of_the_change_in_a_fence(line: Line) -> None:
    line.commit(a=50, b=7)
    line.edit("a", 51)
    line.edit("a", 52)
    for each in [*line.folder.rglob("changes")]:
        shutil.rmtree(each)
    line.lose_ledger()
    assert [(each.number, each.what) for each in line.repairs] == [(3, "ledger-lost")]
    line.commit(a=1)
    assert line.values() == {"a": 53, "b": 7}


def test_a_rebuilt_ledger_accepts_a_state_that_contains_its_accepted_change(line: Line) -> None:
    line.commit(a=50, b=7)
    line.edit("a", None)
    line.lose_ledger()
    line.commit(a=3)
    assert line.values() == {"a": 3, "b": 7}
    assert line.place.state.fence().change == 1


# --- accepted losses ------------------------------------------------------------------------------------------------


def test_the_acceptance_of_a_loss_names_the_last_transaction_in_the_state_and_the_exact_gap(line: Line) -> None:
    line.backups(1, 10, 100)[1]()
    assert line.lose().endswith("what it holds now is accepted: its transactions up to 1")
    line.commit(a=1000)
    assert line.values() == {"a": 1001}
    assert line.findings() == ()
    assert [line.life.kept(txid) for txid in range(1, 5)] == [True, False, False, True]


def test_a_backup_other_than_the_accepted_one_is_refused(line: Line) -> None:
    _, older, newer, _ = line.backups(1, 10, 100)
    newer()
    line.lose()
    older()
    run = begun(line, rows(a=1000))
    with pytest.raises(StateBehind, match="says 1, but the fence that a person accepted was 2"):
        run.commit_now()
    assert line.values() == {"a": 1}
    line.lose()
    run.commit_now()
    assert line.values() == {"a": 1001}
    assert line.findings() == ()


def test_a_state_that_loses_all_values_after_its_loss_was_accepted_is_refused(line: Line) -> None:
    empty, kept, _ = line.backups(1, 10)
    kept()
    line.lose()
    empty()
    with pytest.raises(StateBehind, match="nothing, but the fence that a person accepted was 1"):
        line.commit(a=100)


def test_a_backup_that_is_restored_after_an_empty_state_was_accepted_is_refused(line: Line) -> None:
    empty, kept, _ = line.backups(1, 10)
    empty()
    assert line.seen().found == 0
    line.lose()
    kept()
    with pytest.raises(StateBehind, match="1, but the fence that a person accepted was nothing"):
        line.commit(a=100)


def test_older_values_that_are_restored_without_their_accepted_fence_are_refused(lines: Lines) -> None:
    line = lines(InSqlite)
    line.commit(a=1)
    line.commit(b=10)
    kept = line.backup()
    line.commit(c=100)
    kept()
    line.lose()
    line.place.lose(2)
    with pytest.raises(StateBehind):
        line.commit(d=1000)
    assert line.values() == {"a": 1}


def test_any_backup_is_accepted_if_the_loss_was_accepted_without_reading_the_state(line: Line) -> None:
    _, older, newer, _ = line.backups(1, 10, 100)
    newer()
    line.lose(unseen=True)
    older()
    line.commit(a=1000)
    assert line.values() == {"a": 1001}
    assert [line.life.kept(txid) for txid in range(1, 5)] == [None, None, None, True]


def test_a_transaction_that_a_state_has_lost_cannot_be_restated(line: Line) -> None:
    line.gap()
    with pytest.raises(TxError, match="may lack transaction 2"):
        line.commit(instead_of=2, a=20)


def test_a_transaction_that_a_state_still_contains_after_a_loss_can_be_restated(line: Line) -> None:
    line.gap()
    line.commit(instead_of=1, a=2)
    assert line.values() == {"a": 102}
    assert line.findings() == ()


def test_a_backup_older_than_an_accepted_loss_restores_the_lost_transactions(line: Line) -> None:
    _, older, newer, _ = line.backups(1, 10, 100)
    older()
    line.lose()
    line.commit(a=1000)
    newer()
    assert "missing: 3 to 4 (2 committed)" in line.command().preview().effects[0].what
    assert line.roll() == []
    assert line.values() == {"a": 1111}
    assert line.findings() == ()


def test_a_loss_stays_accepted_if_a_skip_follows_it(line: Line) -> None:
    line.commit(a=1)
    kept = line.backup()
    line.commit(b=10)
    kept()
    line.lose()
    skipped(line, rows(c=100), written=False)
    assert line.command().preview().effects == ()
    assert line.roll() == []
    assert line.values() == {"a": 1}


def test_a_backup_newer_than_an_accepted_loss_keeps_the_gap(line: Line) -> None:
    line.gap()
    later = line.backup()
    line.commit(a=1000)
    later()
    assert line.roll() == []
    assert line.values() == {"a": 1101}
    assert line.findings() == ()


def test_a_roll_forward_asks_about_a_change_that_may_have_compensated_for_a_restored_loss(line: Line) -> None:
    _, _, newer = line.gap()
    line.edit("a", 111)
    newer()
    told = line.roll()
    assert line.values() == {"a": 111}
    assert "it is unknown whether the values have this change" in told[0]
    assert line.roll(unchanged=[2]) == []
    assert line.findings() == ()


@stores
def test_the_roll_forward_of_an_empty_state_after_an_accepted_loss_keeps_the_gap(lines: Lines, where: Any) -> None:
    line = lines(where)
    empty, *_ = line.gap()
    empty()
    assert line.roll(chosen=[line.place.state.name]) == []
    assert line.values() == {"a": 101}
    assert line.findings() == ()
    with pytest.raises(TxError, match="may lack transaction 2"):
        line.commit(instead_of=2, a=20)


@stores
def test_an_empty_state_gets_all_rows_again_if_its_loss_was_accepted_without_reading_the_state(
    lines: Lines, where: Any
) -> None:
    line = lines(where)
    empty, *_ = line.backups(1, 10)
    line.lose(unseen=True)
    empty()
    assert line.roll(chosen=[line.place.state.name]) == []
    assert line.values() == {"a": 11}
    assert line.findings() == ()


@stores
def test_the_first_commit_after_a_loss_accepted_without_reading_records_an_empty_state(
    lines: Lines, where: Any
) -> None:
    line = lines(where)
    empty, _ = line.backups(1)
    line.lose(unseen=True)
    empty()
    line.commit(a=10)
    assert line.life.expected(2) == (2,)
    kept = line.backup()
    line.edit("a", 11)
    kept()
    (told,) = line.roll()
    assert "at this place" in told


def test_a_change_that_was_part_of_an_accepted_loss_is_no_longer_expected(line: Line) -> None:
    line.commit(a=1)
    kept = line.backup()
    line.edit("a", 5)
    kept()
    line.lose()
    line.commit(a=10)
    assert line.values() == {"a": 11}
    assert line.findings() == ()


# --- names ----------------------------------------------------------------------------------------------------------


def words_in(folder: Path, table: str = "words") -> SqlState:
    url = f"sqlite:///{folder / 'state.db'}"
    return SqlState.from_url(url, table=table, keys=["word"], values={"count": Sum()})


def alter(folder: Path) -> None:
    with sqlite3.connect(folder / "state.db") as connection:
        connection.execute("alter table words rename to terms")


def renamed(line: Line) -> SqlState:
    """A person renames the table and its state."""
    old = line.place.state.name
    alter(line.folder)
    moved = words_in(line.folder, "terms")
    moved.take_over(old)
    Repairs(line.ledger).rename_state(old, moved.name, audit=ADA)
    line.states = [moved]
    return moved


def test_a_backup_from_before_a_rename_is_rolled_forward_after_its_table_is_renamed(lines: Lines) -> None:
    line = lines(InSqlite)
    line.commit(a=1)
    kept = line.backup()
    renamed(line)
    line.commit(a=10)
    line.commit(a=100)
    kept()
    moved = line.states[0] = words_in(line.folder, "terms")
    (refused,) = line.roll(chosen=[moved.name])
    assert "ALTER TABLE words RENAME TO terms" in refused
    alter(line.folder)
    moved = line.states[0] = words_in(line.folder, "terms")
    assert line.roll(chosen=[moved.name]) == []
    assert moved.read() == [{"word": "a", "count": 111}]
    assert line.findings() == ()
    line.commit(a=1000)
    assert moved.read() == [{"word": "a", "count": 1111}]


def test_a_change_that_is_missing_in_a_backup_is_noticed_although_the_state_was_renamed_later(lines: Lines) -> None:
    line = lines(InSqlite)
    line.commit(a=1, b=1)
    kept = line.backup()
    line.edit("a", None)
    renamed(line)
    line.commit(b=10)
    kept()
    alter(line.folder)
    moved = line.states[0] = words_in(line.folder, "terms")
    (refused,) = line.roll(chosen=[moved.name])
    assert "with --changed 1" in refused


def state_in(folder: Path, name: str, where: Any) -> Any:
    (folder / name).mkdir(exist_ok=True)
    return where(folder / name, "opaque")


def test_a_state_that_is_lost_completely_is_rolled_forward_from_its_first_transaction(
    lines: Lines, where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__HISTORY", "4")
    line = lines(where)
    other = MemoryState("old", keys=["word"], values={"count": Sum()})
    line.states = [other]
    for _ in range(6):
        line.commit(a=1)
    empty = line.backup()
    line.states = [other, line.place.state]
    line.commit(a=10)
    line.commit(b=20)
    empty()
    assert line.roll(chosen=[line.place.state.name]) == []
    assert line.values() == {"a": 10, "b": 20}
    assert line.findings() == ()


def test_an_empty_state_is_not_rolled_forward_if_it_may_have_had_values_before_its_first_use(
    lines: Lines, where: Any
) -> None:
    line = lines(where)
    empty, _ = line.backups(1)
    if where is InSqlite:
        line.place.state.release()
    else:
        line.place.state.database.fence = None
    Repairs(line.ledger).forget_state(line.place.state.name, ADA)
    line.commit(a=10)
    empty()
    (refused,) = line.roll(chosen=[line.place.state.name])
    assert "no record says that it was empty before its first transaction" in refused


def forget_and_come_back(line: Line) -> None:
    other = line.states[1]
    Repairs(line.ledger).forget_state(line.place.state.name, ADA)
    line.states = [other]


def rename_away(line: Line) -> None:
    other, state = line.states[1], line.place.state
    moved = MemoryState("moved", keys=["word"], values={"count": Sum()}, database=state.database)
    line.ledger.run(rename_state, state.name, "moved", audit=ADA)
    line.states = [other, moved]


@pytest.mark.parametrize("gone", [forget_and_come_back, rename_away])
def test_a_new_state_with_a_reused_name_is_rolled_forward_only_with_its_own_transactions(
    lines: Lines, gone: Any
) -> None:
    line = lines(InMemory)
    line.states.append(MemoryState("other", keys=["word"], values={"count": Sum()}))
    line.commit(a=1)
    line.commit(a=2)
    gone(line)
    line.commit(a=10)
    line.place = InMemory(line.folder, "opaque")
    empty = line.backup()
    line.states = [*line.states, line.place.state]
    line.commit(a=100)
    line.commit(a=1000)
    empty()
    assert line.roll(chosen=[line.place.state.name]) == []
    assert line.values() == {"a": 1100}
    assert line.findings() == ()


def given_before(line: Line, gone: Callable[[Line], None]) -> None:
    """A transaction, after which another state gets the name of the one that it was given to."""
    line.states.append(MemoryState("other", keys=["word"], values={"count": Sum()}))
    line.commit(a=1)
    gone(line)
    line.place = InMemory(line.folder, "opaque")
    line.states = [*line.states, line.place.state]
    line.commit(a=10)


def test_a_restatement_takes_back_no_value_of_an_older_state_with_the_same_name(lines: Lines) -> None:
    line = lines(InMemory)
    given_before(line, rename_away)
    line.commit(instead_of=1, a=100)
    assert line.values() == {"a": 110}
    assert line.findings() == ()


def test_a_restatement_of_a_transaction_from_before_its_state_was_forgotten_is_refused(lines: Lines) -> None:
    line = lines(InMemory)
    given_before(line, forget_and_come_back)
    with pytest.raises(NotTakenBack, match=r"state 'words \(forgotten before transaction 2\)'"):
        line.commit(instead_of=1, a=100)
    assert line.values() == {"a": 10}


# --- a restatement that replaced a value ----------------------------------------------------------------------------


@stores
def test_a_roll_forward_repeats_a_restatement_exactly(lines: Lines, where: Any) -> None:
    line = lines(where, Max())
    line.commit(b=7)
    line.commit(a=50)
    kept = line.backup()
    line.commit(instead_of=2, a=30)
    truth = line.place.content()
    kept()
    assert line.roll() == []
    assert line.place.content() == truth
    assert line.values() == {"a": 30, "b": 7}


# --- a roll forward that dies -----------------------------------------------------------------------------------------


def changed_between(line: Line) -> Callable[[], None]:
    """A backup, then transactions with an accepted change between them."""
    line.commit(a=1, b=1)
    kept: Callable[[], None] = line.backup()
    line.commit(a=10)
    line.edit("b", None)
    line.commit(b=100)
    line.commit(a=1000)
    return kept


@pytest.mark.parametrize("apart", [False, True])
@pytest.mark.parametrize(("how", "value"), [("changed", 100), ("unchanged", 101)])
def test_a_roll_forward_with_an_accepted_change_can_be_killed_at_any_request_and_repeated(
    line: Line, how: str, value: int, apart: bool
) -> None:
    kept = changed_between(line)
    (line.place.values_of if apart else lambda restore: restore())(kept)
    _, said = killed_until_it_ends(module, line.roll)
    if not said:
        said = line.roll()
    assert any("with --changed 1" in each for each in said)
    if how == "changed":
        by_hand(line.place, "b", None)
    died, left = killed_until_it_ends(module, lambda: line.roll(**{how: [1]}))
    assert died
    assert left == []
    assert line.values() == {"a": 1011, "b": value}
    assert line.findings() == ()
    line.commit(a=1)
    assert line.values() == {"a": 1012, "b": value}


# --- what ends wrong if a rule is left out ----------------------------------------------------------------------------


class Given(NamedTuple):
    """The fixtures of the tests above."""

    lines: Lines
    kills: Any
    patch: pytest.MonkeyPatch


def by_line(test: Any, *more: Any) -> Callable[[Given], None]:
    return lambda given: test(given.lines(InMemory), *more)


def by_lines(test: Any, *more: Any) -> Callable[[Given], None]:
    return lambda given: test(given.lines, *more)


def young(given: Given) -> None:
    test_a_state_that_is_lost_completely_is_rolled_forward_from_its_first_transaction(
        given.lines, InMemory, given.patch
    )


noticed = by_lines(test_a_restored_backup_that_lacks_an_accepted_change_is_noticed_at_the_next_commit, InMemory, Sum())
cancel = by_line(test_a_roll_forward_recognizes_two_changes_that_cancel_each_other_out)
asked = by_lines(test_a_roll_forward_asks_about_a_change_that_is_not_visible_in_the_totals, InMemory)
healed = by_line(test_a_roll_forward_asks_about_a_change_that_may_have_compensated_for_a_restored_loss)
made_again = by_lines(
    test_a_roll_forward_continues_after_a_person_has_repeated_a_lost_change_and_confirmed_it, InMemory, Max()
)
with_change = by_lines(test_a_roll_forward_of_a_backup_that_contains_the_change_asks_no_question, InMemory, Max())
unwanted = by_line(test_commits_continue_after_a_person_has_dropped_an_unwanted_change_by_its_number)
where_made = by_line(test_a_roll_forward_orders_a_change_by_its_preceding_transaction_and_not_by_its_acceptance)
another = by_line(test_a_backup_other_than_the_accepted_one_is_refused)
alone = by_lines(test_older_values_that_are_restored_without_their_accepted_fence_are_refused)
not_taken = by_line(test_a_transaction_that_a_state_has_lost_cannot_be_restated)
exact = by_line(test_the_acceptance_of_a_loss_names_the_last_transaction_in_the_state_and_the_exact_gap)
older = by_line(test_a_backup_older_than_an_accepted_loss_restores_the_lost_transactions)
gap = by_lines(test_the_roll_forward_of_an_empty_state_after_an_accepted_loss_keeps_the_gap, InMemory)
unknown_gap = by_lines(
    test_an_empty_state_gets_all_rows_again_if_its_loss_was_accepted_without_reading_the_state, InMemory
)
emptied = by_lines(test_the_first_commit_after_a_loss_accepted_without_reading_records_an_empty_state, InMemory)
gone = by_line(test_a_change_that_was_part_of_an_accepted_loss_is_no_longer_expected)
copied = by_line(test_a_rebuilt_ledger_restores_an_accepted_change_from_the_journal)
numbered = by_line(test_numbers_of_new_repairs_are_higher_than_the_number_of_the_change_in_a_fence)
before_renaming = by_lines(test_a_backup_from_before_a_rename_is_rolled_forward_after_its_table_is_renamed)
skip_after_a_loss = by_line(test_a_loss_stays_accepted_if_a_skip_follows_it)
taken_name = by_lines(test_a_restatement_takes_back_no_value_of_an_older_state_with_the_same_name)
was_forgotten = by_lines(test_a_restatement_of_a_transaction_from_before_its_state_was_forgotten_is_refused)
not_empty = by_lines(test_an_empty_state_is_not_rolled_forward_if_it_may_have_had_values_before_its_first_use, InMemory)
replaced = by_lines(test_a_roll_forward_repeats_a_restatement_exactly, InMemory)


def unnamed(given: Given) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_a_state_accepts_changes_although_its_fence_cannot_store_their_numbers(given.lines, patch)


def repeated(given: Given) -> None:
    test_an_interrupted_acceptance_of_a_change_stops_commits_until_it_is_repeated(
        given.lines(InMemory), given.kills, POINTS[0]
    )


LEFT_OUT: tuple[tuple[str, Any, str, str, Callable[[Given], None]], ...] = (
    ("the mark is asked", fence._check_change, "stored.change < change", "False", noticed),
    ("it is carried by every raise", fence.raised, "else stored.change", "else None", cancel),
    ("a change is asked where totals do not tell", Life.changes_after, "len(fits) > 1 or", "", asked),
    ("and after a loss that is healed", Life.changes_after, "or after", "", healed),
    ("keys may be missing after a change", StateHistory._fits, ">= keys or lacks", ">= keys", with_change),
    ("also of one that was made again", StateHistory._compared, "or each.number in self._changed", "", made_again),
    ("what is wanted no more is none", _Walk._is_wanted, "change not in self.unwanted", "True", unwanted),
    ("where it was made", rebuild.note_change, "if made_after is None else made_after", "", where_made),
    ("what died is repeated", ChangeAcceptance._find, "if unmarked and", "if False and", repeated),
    ("only fences that name changes are asked", rebuild.note_change, "if marked else {}", "", unnamed),
    ("a loss names its fence", fence._check_accepted, '"fence" not in known', "True", another),
    ("and the whole of its values", fence.raised, 'or known.get("whole")', "", alone),
    ("a loss is known", _Walk._takes_loss, "self.losses.insert(0,", "[].insert(0,", not_taken),
    ("and what was found", Life.kept, "loss.found is not None and", "False and", exact),
    ("an older fence is from before it", Life.kept, "loss.generation > as_of", "False", older),
    ("a known gap is not filled", StateHistory._look, "heals or not life.losses", "True", gap),
    ("an unknown gap is filled", StateHistory._look, "heals or not life.losses", "not life.losses", unknown_gap),
    ("nor healed", _Walk._takes_roll, 'rolled.get("heals", True)', "True", gap),
    ("that its place was empty", end_steps.accepted_after, '"generation" in before', "False", emptied),
    ("changes go with a loss", life._still_there, "loss.change < each.number < loss.number", "False", gone),
    ("a lost ledger gets its changes back", rebuild._kept_changes, "for each in changes:", "for each in ():", copied),
    ("with their numbers", Audit.repair, "above + 1", "0", numbered),
    ("a loss wrote nothing", StateHistory._fits, "and kept(txid, as_of) is not False", "", skip_after_a_loss),
    ("names of before", _Walk._takes_name, "self.name = old", "pass", before_renaming),
    ("another state was renamed", life.name_now, "name = renamed[1]", "pass", taken_name),
    ("another state was forgotten", life.name_now, "each.what == STATE_FORGOTTEN", "False", was_forgotten),
    ("where it began", end_steps.accepted_after, "txid if began[name] else 0", "1", young),
    ("whether it was empty", fence.raised, "known.get(CHANGE, 0), is_empty()", "known.get(CHANGE, 0), True", not_empty),
    ("what was replaced", DifferenceRows.rows, "self._replaced(keys, old, new) if self._done else", "", replaced),
)


@pytest.mark.parametrize("rule", LEFT_OUT, ids=lambda rule: rule[0].replace(" ", "-"))
def test_each_rule_of_the_life_of_a_state_is_covered_by_a_test_that_fails_without_the_rule(
    rule: Any, lines: Lines, kills: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, function, old, new, noticed_by = rule
    given = Given(lines, kills, monkeypatch)
    with applied(Mutant(told, ((function, old, new),), ONE)):
        with pytest.raises((AssertionError, TxError, ValueError, pytest.fail.Exception)):
            noticed_by(given)
