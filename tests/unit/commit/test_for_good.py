"""What cannot be undone: a table has taken out the rows of a transaction, or a guard has run its statements."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import NotTakenBack, SkipRefused, TxError
from airflow_tx.ledger import life
from airflow_tx.ledger.audit import plan
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs, forget_state, state_lost
from airflow_tx.ledger.audit.verification import Verified, verified
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.life import holds_for_good
from airflow_tx.ledger.receipt import NOTHING_WRITTEN
from airflow_tx.ledger.records import Phase
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.state import DeltaTable, SqlGuard, SqlState, SqlTable, Sum
from airflow_tx.state.api import Fence
from airflow_tx.state.sql.store import SqlStore
from airflow_tx.testing.suites.state_tools import Grants, about_to_skip
from airflow_tx.transaction.commit import committer, restatement
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.restatement import refuses_restatement
from airflow_tx.transaction.commit.update import Update
from tests.model.mutants import ONE, Mutant, applied
from tests.stage import update
from tests.unit.commit.backups import ADA, InMemory, rolled, values
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.restated_run import Makes, begun, committed, entry_of, journal_of, processed, rows
from tests.unit.commit.run import Run, killed_before_the_mark

# --- one judgement

RULES = {
    "a birth is compared": "each.birth",
    "a life is compared": "each.incarnation",
    "a number is compared": "each.txid",
}
MINE = (3, "birth", "life")


def fence_of(txid: int, birth: str, incarnation: str) -> Fence:
    return Fence(incarnation, replace(Grants()(txid).token, birth=birth))


def test_a_state_that_removed_rows_for_a_transaction_holds_that_transaction_permanently() -> None:
    assert holds_for_good([fence_of(*MINE)], *MINE)


def others_are_not_for_good() -> None:
    others = [(2, "birth", "life"), (3, "another", "life"), (3, "birth", "another")]
    assert not life.holds_for_good([fence_of(*each) for each in others], *MINE)


def test_a_state_does_not_hold_a_transaction_of_another_incarnation_or_birth_permanently() -> None:
    others_are_not_for_good()


@pytest.mark.parametrize("rule", RULES)
def test_the_tests_detect_a_comparison_without_the_birth_or_the_incarnation_or_the_txid(rule: str) -> None:
    text = RULES[rule]
    mine = {"each.birth": "birth", "each.incarnation": "incarnation", "each.txid": "txid"}[text]
    whole = "(each.txid, each.birth, each.incarnation) == mine"
    mutant = Mutant(rule, ((life.holds_for_good, whole, whole.replace(text, mine)),), ONE)
    with applied(mutant), pytest.raises(AssertionError):
        others_are_not_for_good()


# --- a guard


@pytest.fixture
def guard(tmp_path: Path) -> Callable[[], SqlGuard]:
    url = f"sqlite:///{tmp_path}/guard.db"
    with sa.create_engine(url).begin() as connection:
        connection.exec_driver_sql("CREATE TABLE runs (txid INTEGER)")

    def make() -> SqlGuard:
        return SqlGuard.from_url(url, name="g", statements=["INSERT INTO runs VALUES (:txid)"])

    return make


def next_life(grants: Grants) -> Grants:
    """The grants of a ledger that gives the numbers again; a person has accepted what the guard has noted."""
    after = Grants()
    after.incarnation = grants.incarnation
    after.generation = grants.generation + 1
    return after


def test_a_transaction_whose_guard_has_already_run_cannot_be_skipped(guard: Any) -> None:
    grants = Grants()
    guard().raise_and_write(grants(1), [{}])
    with pytest.raises(SkipRefused):
        guard().raise_fence(about_to_skip(grants(1, 2)))


def test_a_transaction_can_be_skipped_if_the_guard_has_noted_another_transaction_with_its_txid(guard: Any) -> None:
    grants = Grants()
    guard().raise_and_write(grants(1), [{}])
    skip = about_to_skip(next_life(grants)(1))
    guard().raise_fence(skip)
    guard().pass_over(skip)
    assert not guard().holds(1)


def test_a_guard_runs_its_statements_for_a_new_transaction_that_has_the_txid_of_an_older_one(guard: Any) -> None:
    grants = Grants()
    guard().raise_and_write(grants(1), [{}])
    guard().raise_and_write(next_life(grants)(1), [{}])
    with guard()._store.transaction() as connection:
        assert connection.exec_driver_sql("SELECT count(*) FROM runs").scalar_one() == 2


# --- a state that cannot undo


@pytest.fixture
def exact(tmp_path: Path) -> Callable[[], SqlState]:
    url = f"sqlite:///{tmp_path}/exact.db"
    return lambda: SqlState.from_url(url, table="words", keys=[], values={"n": Sum()}, kind="transactional")


def test_a_transaction_that_a_transactional_state_contains_cannot_be_skipped(exact: Any) -> None:
    grants = Grants()
    exact().raise_and_write(grants(1), [{"n": 1}])
    with pytest.raises(SkipRefused):
        exact().raise_fence(about_to_skip(grants(1, 2)))


def adds_to_what_was_accepted(exact: Any) -> None:
    """Transaction 1 of another birth was accepted."""
    grants = Grants()
    exact().raise_and_write(grants(1), [{"n": 1}])
    exact().raise_and_write(next_life(grants)(1), [{"n": 10}])
    assert exact().read() == [{"n": 11}]


def test_a_transactional_state_adds_the_rows_of_a_new_transaction_with_an_older_txid(exact: Any) -> None:
    adds_to_what_was_accepted(exact)


def skips_another(make: Any, exact: Any) -> None:
    """Transaction 2 was written, the ledger was set back, and a person has accepted what the state has."""
    updates = [update(exact())]
    makes = Makes(make, updates=updates)
    run = committed(makes, [{"n": 1}])
    before = run.spec.memory.snapshot()
    late = begun(makes, [{"n": 2}])
    killed_before_the_mark(late.commit())
    run.spec.memory.restore(before)
    other = begun(makes, [{"n": 3}])
    ledger = run.spec.ledger(run.spec.memory)
    states = {each.state.name: each.state for each in updates}
    ledger.run(state_lost, *states, audit=ADA)
    ledger.run(note_skip, other.begun.txid, ADA)
    take_skip(ledger, other.begun.txid, states, log=run.log)
    assert (ledger.current(), exact().read()) == (3, [{"n": 3}])


def test_a_transaction_can_be_skipped_if_a_transactional_state_contains_another_with_its_txid(
    make: Any, exact: Any
) -> None:
    skips_another(make, exact)


def test_the_tests_detect_a_skip_that_does_not_compare_the_birth_of_the_transaction(make: Any, exact: Any) -> None:
    asked = SqlStore.holds_for_good, "not own or holds_for_good(own, txid, birth, incarnation)", "True"
    with applied(Mutant("its birth is asked", (asked,), ONE)), pytest.raises(SkipRefused):
        skips_another(make, exact)


def test_the_tests_detect_a_sum_that_includes_rows_of_another_birth(exact: Any) -> None:
    forgotten = SqlStore._forget_another, "if own and", "if False and"
    with applied(Mutant("rows of another birth are nobody's", (forgotten,), ONE)), pytest.raises(AssertionError):
        adds_to_what_was_accepted(exact)


# --- left as accepted


class Two:
    """Transactions 1 and 2 are committed to tables and, behind them, to a state; a restatement of 1 died.

    :ivar back: puts the state back to after transaction 1.
    """

    def __init__(self, make: Any, folder: Path, *tables: Any) -> None:
        self.place = InMemory(folder, "opaque")
        self.tables = tables
        self.states = [*tables, self.place.state]
        self.make = Makes(make, updates=[*map(update, self.states)])
        committed(self.make, rows(a=1))
        self.back = self.place.backup()
        committed(self.make, rows(b=2))
        self.run = begun(self.make, rows(a=100), instead_of=1)
        self.die()

    def die(self) -> None:
        """Behind the write to both."""
        killed_before_the_mark(self.run.commit())

    @property
    def ledger(self) -> Any:
        return self.run.spec.ledger(self.run.spec.memory)

    def again(self) -> Run:
        self.run.begin()
        return processed(self.run, rows(a=100))

    def verified(self) -> Verified:
        ledger = ledger_evidence(self.run.spec.memory, self.run.spec.paths)
        return verified(ledger, evidence_of({each.name: each for each in self.states}, values=True))

    def rows(self) -> list[list[Any]]:
        """Those of the tables."""
        found = ([(row["word"], row["count"], row["tx_txid"]) for row in each.read()] for each in self.tables)
        return [*map(sorted, found)]


class World(Two):
    """The state came back from a backup of after 1, and a person has accepted that."""

    def __init__(self, make: Any, folder: Path) -> None:
        self.table = SqlTable.from_url(f"sqlite:///{folder}/rows.db", table="rows")
        self._make = make
        super().__init__(make, folder, self.table)
        self.back()
        self.ledger.run(state_lost, "words", audit=ADA)

    def phase(self, one: Update, two: Update) -> PhaseRun:
        """The run of the restatement again, with a commit phase."""
        return PhaseRun(lambda _, of, **options: self._make(self.run.run_id, of, **options), one, two, rows(a=100))


@pytest.fixture
def world(make: Any, tmp_path: Path) -> World:
    return World(make, tmp_path)


def test_a_restatement_does_not_change_a_state_that_may_lack_the_restated_transaction(world: World) -> None:
    before = values(world.place)
    world.again().commit_now()
    assert world.ledger.current() == 4
    assert world.rows() == [[("a", 100, 3), ("b", 2, 2)]]
    assert values(world.place) == before
    receipt = world.ledger.outcome(3).receipt
    assert receipt.written["words"] == replace(NOTHING_WRITTEN, left=True)
    assert not receipt.written[world.table.name].left


def test_a_commit_phase_does_not_change_a_state_that_may_lack_the_restated_transaction(world: World) -> None:
    before = values(world.place)
    phase = world.phase(update(world.place.state), update(world.table))
    phase.acquire()
    phase.commit("b", "d")
    phase.mark()
    assert world.rows() == [[("a", 100, 3), ("b", 2, 2)]]
    assert values(world.place) == before
    assert world.ledger.outcome(3).receipt.written["words"].left


def test_a_restored_state_that_a_restatement_did_not_change_is_rolled_forward(world: World) -> None:
    committed_again = world.again()
    backup = world.place.backup()
    committed_again.commit_now()
    committed(world.make, rows(c=3))
    backup()
    assert rolled(world.run, world.place) == []
    # This backup is from before the loss was accepted, so transaction 2 comes back, too.
    assert values(world.place) == {"a": 1, "b": 2, "c": 3}


def test_verify_notes_that_a_restatement_did_not_change_a_state(world: World) -> None:
    world.again().commit_now()
    found = world.verified()
    assert "transaction 3: it left out state words, whose values a person had accepted" in found.notes
    assert found.findings == ()


def test_a_restatement_that_did_not_change_one_of_its_states_cannot_be_restated(world: World) -> None:
    world.again().commit_now()
    entry = journal_of(world.run).read(entry_of(world.run, 3))
    problem = refuses_restatement(world.run.updates, entry, renamed={})
    assert problem is not None
    assert "a person accepted its values" in problem


def test_a_restatement_that_can_be_skipped_is_refused_if_a_state_may_lack_the_transaction(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(SqlTable, "holds_for_good", lambda *_: False)
    with pytest.raises(NotTakenBack, match="may lack transaction 1"):
        world.again().commit_now()


def test_a_restatement_is_committed_after_its_state_was_forgotten(world: World) -> None:
    world.ledger.run(forget_state, "words", ADA)
    world.again().commit_now()
    assert world.rows() == [[("a", 100, 3), ("b", 2, 2)]]


# --- last


def test_the_committer_of_a_restatement_writes_the_table_that_removes_rows_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()
    monkeypatch.setattr(
        committer,
        "failpoint",
        lambda name, **where: seen.append(where["state"]) if name == "commit.before_write" else None,
    )
    world.again().commit_now()
    committed(world.make, rows(c=3))
    # In the order of the DAG, where it is no restatement.
    assert seen == ["words", world.table.name, world.table.name, "words"]


def test_a_restatement_in_a_commit_phase_writes_the_table_that_removes_rows_last(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = list[str]()
    phase = world.phase(update(world.table), update(world.place.state))
    both: dict[str, Any] = {"b": (*phase.updates["b"], *phase.updates["d"]), "d": ()}
    phase.updates = both
    phase.acquire()
    monkeypatch.setattr(committer, "failpoint", lambda name, **where: seen.append(where["state"]))
    phase.commit("b")
    assert seen == ["words", world.table.name]


# --- remade


class LostWorld(Two):
    """It has taken rows out of the first of two tables before it died. Then the ledger was rebuilt."""

    def __init__(self, make: Any, folder: Path, tables: Callable[[str], Any], *, gone: bool) -> None:
        super().__init__(make, folder, tables("one"), tables("two"))
        if gone:
            vars(self.run.spec.memory).update(vars(type(self.run.spec.memory)()))
        self.birth = self.run.begun.attempt.birth

    def die(self) -> None:
        """Before the write to the second table."""

        def dies(name: str, **where: Any) -> None:
            if name == "commit.before_write" and where["state"] == self.tables[1].name:
                raise OSError("killed")

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(committer, "failpoint", dies)
            commit = self.run.commit()
            commit.complete()
            with pytest.raises(OSError, match="killed"):
                commit.try_to_commit()

    def rebuild(self) -> str:
        held = [
            HeldState.of(each.name, undoable=True, fence=each.fence(), holds=each.holds, receipts=each.receipts())
            for each in self.states
        ]
        return Repairs(self.ledger).ledger_lost(held, self.run.spec.request, ADA).summary


@pytest.fixture(params=["SqlTable", "DeltaTable"])
def tables(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Any]:
    if request.param == "DeltaTable":
        return lambda name: DeltaTable(f"{tmp_path}/{name}")
    return lambda name: SqlTable.from_url(f"sqlite:///{tmp_path}/{name}.db", table=name)


@pytest.fixture(params=[True, False], ids=["gone", "there"])
def lost(make: Any, tmp_path: Path, tables: Any, request: pytest.FixtureRequest) -> LostWorld:
    return LostWorld(make, tmp_path, tables, gone=request.param)


def test_a_rebuild_of_the_ledger_restores_the_record_of_a_restatement_that_cannot_be_undone(lost: LostWorld) -> None:
    assert "it stays open" in lost.rebuild()
    record = lost.ledger.status(3)
    assert record is not None
    assert (record.phase, record.birth, record.error) == (Phase.FAILED, lost.birth, "the ledger was rebuilt")
    assert record.replaces is not None
    assert record.replaces.txid == 1
    assert record.counted is not None


def test_after_a_rebuild_the_run_of_a_restatement_that_cannot_be_undone_is_replayed(lost: LostWorld) -> None:
    lost.rebuild()
    again = lost.again()
    assert (again.begun.txid, again.begun.attempt.birth) == (3, lost.birth)
    again.commit_now()
    assert lost.rows() == [[("a", 100, 3), ("b", 2, 2)]] * 2
    assert values(lost.place) == {"a": 100, "b": 2}
    assert lost.verified().findings == ()


def test_a_restatement_that_a_rebuild_of_the_ledger_has_restored_cannot_be_skipped(lost: LostWorld) -> None:
    lost.rebuild()
    lost.ledger.run(note_skip, 3, ADA)
    with pytest.raises(SkipRefused):
        take_skip(lost.ledger, 3, {each.name: each for each in lost.states}, log=lost.run.log)


def test_a_rebuild_of_the_ledger_can_be_repeated(lost: LostWorld) -> None:
    lost.rebuild()
    lost.rebuild()
    test_after_a_rebuild_the_run_of_a_restatement_that_cannot_be_undone_is_replayed(lost)


# --- what ends wrong if a rule is left out


class Given(NamedTuple):
    """What the tests above are given."""

    make: Any
    folder: Path
    patch: pytest.MonkeyPatch

    def world(self) -> World:
        return World(self.make, self.folder)

    def lost(self) -> LostWorld:
        def table(name: str) -> SqlTable:
            return SqlTable.from_url(f"sqlite:///{self.folder}/{name}.db", table=name)

        return LostWorld(self.make, self.folder, table, gone=True)


_LEFT = "may_lack if may_lack and _is_for_good(case, topology.incarnation) else ()"
_REMADE = "RemadeTransaction.of(held, newest)"
LEFT_OUT: tuple[tuple[str, Any, str, str, Callable[[Given], None]], ...] = (
    (
        "what takes rows out is written last",
        committer.Commit.updates_to_write,
        "self._cannot_be_undone(update)",
        "False",
        lambda given: test_the_committer_of_a_restatement_writes_the_table_that_removes_rows_last(
            given.world(), given.patch
        ),
    ),
    (
        "it is in a commit phase",
        committer.PhaseCommit._write_own,
        "for_good=self._cannot_be_undone(each)",
        "for_good=False",
        lambda given: test_a_restatement_in_a_commit_phase_writes_the_table_that_removes_rows_last(
            given.world(), given.patch
        ),
    ),
    (
        "a state that may lack it is passed over",
        restatement.differences,
        _LEFT,
        "()",
        lambda given: test_a_restatement_does_not_change_a_state_that_may_lack_the_restated_transaction(given.world()),
    ),
    (
        "nothing is where it can be skipped",
        restatement.differences,
        _LEFT,
        "may_lack",
        lambda given: test_a_restatement_that_can_be_skipped_is_refused_if_a_state_may_lack_the_transaction(
            given.world(), given.patch
        ),
    ),
    (
        "its receipt says so",
        committer._marked,
        "if name in left",
        "if False",
        lambda given: test_verify_notes_that_a_restatement_did_not_change_a_state(given.world()),
    ),
    (
        "states that are forgotten are left out",
        restatement._of_states_that_are_there,
        "or not _is_for_good(case, incarnation)",
        "or True",
        lambda given: test_a_restatement_is_committed_after_its_state_was_forgotten(given.world()),
    ),
    (
        "a rebuild makes the record again",
        plan.plan_rebuild,
        _REMADE,
        "None",
        lambda given: test_a_rebuild_of_the_ledger_restores_the_record_of_a_restatement_that_cannot_be_undone(
            given.lost()
        ),
    ),
)


@pytest.mark.parametrize("rule", LEFT_OUT, ids=lambda rule: rule[0].replace(" ", "-"))
def test_each_rule_of_permanent_rows_is_covered_by_a_test_that_fails_without_the_rule(
    rule: Any, make: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, function, old, new, noticed_by = rule
    with applied(Mutant(told, ((function, old, new),), ONE)):
        with pytest.raises((AssertionError, TxError, pytest.fail.Exception)):
            noticed_by(Given(make, tmp_path, monkeypatch))
