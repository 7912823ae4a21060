"""A roll forward that is refused changes nothing: what was refused before it is refused after it."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from airflow_tx.base.errors import FenceOutranked, StateBehind, TxError
from airflow_tx.ledger import Grant, Token
from airflow_tx.ledger.answers import Blocked, ReplayNoted
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.rebuild import state_lost
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.records import TransactionRecord
from airflow_tx.ledger.steps import roll_forward as steps
from airflow_tx.ledger.steps.recovery import ReplayRequest, note_replay
from airflow_tx.ledger.steps.roll_forward import begin_roll_forward
from airflow_tx.ledger.views.view import topology_health, topology_view
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.state import Max, Sum, fence
from airflow_tx.state.sql.fence import FencedStore
from airflow_tx.transaction.commit import roll_forward as module
from airflow_tx.transaction.commit.roll_forward import RollForward
from airflow_tx.transaction.commit.state_history import StateHistory
from airflow_tx.transaction.commit.turn import commit_in_turn
from airflow_tx.transaction.processing.task import advice_of
from tests.model.mutants import ONE, Mutant, applied
from tests.unit.commit.backups import ADA, InMemory, InSqlite, findings, repair, rolled, values
from tests.unit.commit.restated_run import Makes, begun, committed, processed
from tests.unit.commit.run import AWAY, Run, failed, killed_before_the_mark

KINDS: dict[str, tuple[str, Any]] = {
    "largest": ("opaque", Max()),
    "money": ("opaque", Sum("numeric")),
    "transactional": ("transactional", Sum()),
}
"""States whose values do not tell of which transaction they are."""
OLD = {"a": 1}
REFUSED = "no receipt says what the values up to transaction 1 add up to"


class Given(NamedTuple):
    """The fixtures of the tests below."""

    cases: Any
    points: Any
    make: Any
    folder: Path


class Case:
    """Transactions 1 to 3 are committed, and 4 is open. Then the values alone come back from after transaction 1.

    :ivar run: of transaction 4.
    :ivar beside: what the store keeps of the fence.
    """

    def __init__(self, make: Any, folder: Path, where: Any, kind: str, *, wrote: bool = False) -> None:
        self.kind, made = KINDS[kind]
        self.place = where(folder, self.kind, made)
        self.money = kind == "money"
        self.made = Makes(make, self.place)
        for given in ({"a": 1}, {"b": 20}, {"c": 300, "e": 300}):
            committed(self.made, self.rows(**given))
        self.run: Run = begun(self.made, self.rows(d=4000))
        if wrote:
            killed_before_the_mark(self.run.commit())
        self.place.lose(2, 3)
        self.beside = self.place.beside()
        self.ledger = self.run.spec.ledger(self.run.spec.memory)

    def rows(self, **given: int) -> Any:
        return [{"word": word, "count": Decimal(count) if self.money else count} for word, count in given.items()]

    def roll(self) -> list[str]:
        return rolled(self.run, self.place)

    def lost(self) -> None:
        self.ledger.run(state_lost, self.place.state.name, ADA)

    def commit_is_refused(self) -> bool:
        """Whether the commit of the open transaction is refused, as it was before."""
        try:
            self.run.commit_now()
        except StateBehind:
            return True
        return False

    def is_unchanged(self) -> bool:
        return self.place.beside() == self.beside and self.ledger.topology().rolling is None

    def goes_on(self) -> bool:
        """Whether the transaction commits on what a person has accepted."""
        self.lost()
        self.run.commit_now()
        return values(self.place) == {**OLD, "d": 4000} and findings(self.run, self.place) == ()

    def refusal(self) -> TransactionRecord:
        """Note the refusal of the commit, as the failed task does."""
        with pytest.raises(StateBehind) as refused:
            self.run.commit_now()
        found = self.record()
        attempt = self.run.begun.attempt
        self.ledger.note_commit_failed(attempt, found.epoch, reason=str(refused.value), for_good=True)
        return self.record()

    def record(self) -> TransactionRecord:
        path = self.run.spec.paths.transaction(4)
        found = Reader(self.run.spec.memory).peek_if_any(TransactionRecord, path)
        assert found is not None
        return found

    def replayed(self) -> Any:
        """What the coordinator is told when it finds that the run has ended."""
        return self.ledger.run(note_replay, ReplayRequest(self.run.begun.attempt, "its run failed", True, 3))


@pytest.fixture
def cases(make: Any, tmp_path: Path) -> Callable[..., Case]:
    count = iter(range(100))

    def made(where: Any = InSqlite, kind: str = "largest", **how: Any) -> Case:
        folder = tmp_path / str(next(count))
        folder.mkdir()
        return Case(make, folder, where, kind, **how)

    return made


@pytest.fixture
def points(monkeypatch: pytest.MonkeyPatch) -> dict[str, Callable[[], None]]:
    """What happens at a point of the command, once."""
    due = dict[str, Callable[[], None]]()

    def reached(name: str, **context: Any) -> None:
        due.pop(name.removeprefix("roll_forward."), lambda: None)()

    monkeypatch.setattr(module, "failpoint", reached)
    return due


def dies() -> None:
    raise OSError("killed")


def dies_at(case: Case, points: dict[str, Callable[[], None]], point: str) -> None:
    points[point] = dies
    with pytest.raises(OSError, match="killed"):
        case.roll()


BOTH = pytest.mark.parametrize("where", [InMemory, InSqlite])
EACH = pytest.mark.parametrize("kind", KINDS)
WROTE = pytest.mark.parametrize("wrote", [False, True], ids=["unwritten", "written"])


@EACH
@WROTE
def test_a_refused_commit_stays_refused_after_the_roll_forward_of_its_state_was_refused(
    cases: Any, kind: str, wrote: bool
) -> None:
    case = cases(kind=kind, wrote=wrote)
    assert case.commit_is_refused()
    (told,) = case.roll()
    assert REFUSED in told
    assert f"airflow tx repair numbers --state-lost {case.place.state.name}" in told
    assert case.is_unchanged()
    assert case.commit_is_refused()
    assert case.goes_on()


@EACH
def test_a_roll_forward_whose_values_no_receipt_can_prove_is_refused_before_it_raises_a_fence(
    cases: Any, kind: str
) -> None:
    case = cases(kind=kind)
    before = case.ledger.topology()
    command = repair(case.run, case.place)
    answer = command.preview()
    assert answer.sentence == "No state of topology numbers can be written again."
    assert [REFUSED in str(each.what) for each in answer.refused] == [True]
    assert command.execute(ADA) is None
    assert case.ledger.topology() == before
    assert case.is_unchanged()


@BOTH
@pytest.mark.parametrize("known", [True, False], ids=["the ledger knows of it", "the ledger does not"])
def test_verify_reports_the_fence_of_an_interrupted_roll_forward_and_the_command_to_repeat_it(
    cases: Any, points: Any, where: Any, known: bool
) -> None:
    case = cases(where, wrote=True)
    dies_at(case, points, "looking")
    ledger = ledger_evidence(case.run.spec.memory, case.run.spec.paths)
    if not known:
        ledger = replace(ledger, topology=replace(ledger.topology, rolling=None, generation=1))
    state = case.place.state.name
    found = verified(ledger, evidence_of({state: case.place.state}, values=True))
    told = [each for each in (found.notes if known else found.findings) if "roll forward" in each]
    assert told == [
        f"state {state}: a roll forward has replaced the fence of transaction 4 to read the values, and has not "
        f"ended. If that command was killed, repeat it: airflow tx repair numbers --roll-forward {state}"
    ]
    assert known is not bool(found.findings)


@BOTH
@EACH
@pytest.mark.parametrize("point", ["looking", "put_back"])
def test_a_refused_roll_forward_that_is_repeated_after_a_kill_restores_the_fence(
    cases: Any, points: Any, where: Any, kind: str, point: str
) -> None:
    case = cases(where, kind, wrote=True)
    dies_at(case, points, point)
    assert case.run.commit_now() is not None  # it waits
    assert len(case.roll()) == 1
    assert case.is_unchanged()
    if where is InSqlite:
        assert case.commit_is_refused()
        assert case.goes_on()


@BOTH
@EACH
def test_a_loss_can_be_accepted_after_a_roll_forward_was_killed_while_it_read_the_values(
    cases: Any, points: Any, where: Any, kind: str
) -> None:
    case = cases(where, kind, wrote=True)
    dies_at(case, points, "looking")
    assert case.goes_on()


def looked_at_before_the_turn(make: Any, tmp_path: Path) -> tuple[Any, Any]:
    """A look from before the open transaction has begun, so that its fence has another birth."""
    place = InMemory(tmp_path, "opaque", Max())
    made = Makes(make, place)
    run = committed(made, [{"word": "a", "count": 1}])
    ledger = run.spec.ledger(run.spec.memory)
    rolling = ledger.run(begin_roll_forward, {place.state.name: 1}, ADA)
    found = place.state.fence()
    token = Token(rolling.generation - 1, 2, 0, 0, rolling.nonce, rolling.nonce)
    over = {place.state.name: found.token}
    place.state.raise_fence(Grant("numbers", found.incarnation, token, {}, over=over))
    ledger.run(state_lost, place.state.name, ADA)
    return begun(made, [{"word": "d", "count": 4}]), place


def test_a_transaction_that_begins_after_an_accepted_loss_commits_despite_an_old_roll_forward(
    make: Any, tmp_path: Path
) -> None:
    late, place = looked_at_before_the_turn(make, tmp_path)
    late.commit_now()
    assert values(place) == {"a": 1, "d": 4}


@BOTH
def test_the_fence_that_an_interrupted_roll_forward_leaves_behind_refuses_every_commit(
    cases: Any, points: Any, where: Any
) -> None:
    case = cases(where, wrote=True)
    dies_at(case, points, "looking")
    assert rolling_ended(case)
    with pytest.raises(StateBehind, match="its fence says 4, from a roll forward that has not ended") as refused:
        case.run.commit_now()
    assert f"airflow tx repair numbers --roll-forward {case.place.state.name}" in str(refused.value)
    assert len(case.roll()) == 1
    assert case.is_unchanged()


def rolling_ended(case: Case) -> bool:
    """End the run as one for other states does."""
    runs = case.ledger.topology().rolling
    assert runs is not None
    return bool(case.ledger.end_roll_forward(runs.nonces[-1], {}, audit=ADA))


def test_a_table_that_is_lost_after_a_roll_forward_has_read_it_is_still_noticed(cases: Any, points: Any) -> None:
    case = cases(wrote=True)
    dies_at(case, points, "looking")
    case.place.lose_table()
    assert len(case.roll()) == 1
    assert case.is_unchanged()


@BOTH
@EACH
def test_the_later_of_two_simultaneous_roll_forwards_restores_the_fence(
    cases: Any, points: Any, where: Any, kind: str
) -> None:
    case = cases(where, kind, wrote=True)
    points["looking"] = lambda: None if len(case.roll()) == 1 and case.is_unchanged() else pytest.fail("it changed")
    with pytest.raises(FenceOutranked):
        case.roll()
    assert case.is_unchanged()


@BOTH
def test_an_outranked_roll_forward_does_not_change_the_fence_of_a_later_one(
    cases: Any, points: Any, where: Any
) -> None:
    case = cases(where, wrote=True)
    points["looking"] = lambda: dies_at(case, points, "looking")
    with pytest.raises(FenceOutranked):
        case.roll()
    assert case.place.state.fence().token.is_look
    assert len(case.roll()) == 1
    assert case.is_unchanged()


@BOTH
def test_a_roll_forward_is_not_refused_if_a_commit_happens_while_it_is_planned(
    make: Any, tmp_path: Path, where: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place, made = summed(make, tmp_path, where)
    run = begun(made, [{"word": "d", "count": 1}])
    state = type(place.state)
    read = state.rows_by_grant

    def overtaken(self: Any) -> Any:
        rows = read(self)
        monkeypatch.setattr(state, "rows_by_grant", read)
        run.commit_now()
        return rows

    monkeypatch.setattr(state, "rows_by_grant", overtaken)
    assert rolled(run, place) == []
    assert values(place) == dict.fromkeys("abcde", 1)
    assert findings(run, place) == ()


@BOTH
def test_a_roll_forward_removes_the_rows_of_the_open_transaction_before_it_compares_values(
    make: Any, tmp_path: Path, where: Any
) -> None:
    place, made = summed(make, tmp_path, where)
    run = begun(made, [{"word": "d", "count": 1}])
    killed_before_the_mark(run.commit())
    place.lose(2, 3)
    assert rolled(run, place) == []
    run.commit_now()
    assert values(place) == {"a": 1, "b": 1, "c": 1, "d": 1, "e": 1}
    assert findings(run, place) == ()


def summed(make: Any, folder: Path, where: Any) -> tuple[Any, Any]:
    """A state whose values add up, with three transactions."""
    place = where(folder, "opaque")
    made = Makes(make, place)
    for words in ("a", "b", "ce"):
        committed(made, [{"word": word, "count": 1} for word in words])
    return place, made


@pytest.mark.parametrize("wrote", [False, True])
def test_a_roll_forward_that_is_refused_because_the_totals_differ_does_not_stop_commits(
    make: Any, tmp_path: Path, wrote: bool
) -> None:
    place, made = summed(make, tmp_path, InSqlite)
    with sqlite3.connect(tmp_path / "state.db") as connection:
        connection.execute("UPDATE words SET count = 7 WHERE word = 'a'")
    run = begun(made, [{"word": "f", "count": 1}])
    if wrote:
        killed_before_the_mark(run.commit())
    before = place.state.fence()
    assert "do not add up to the totals in its receipts" in rolled(run, place)[0]
    assert place.state.fence() == before
    run.commit_now()
    assert values(place) == {"a": 7, "b": 1, "c": 1, "e": 1, "f": 1}


def test_a_roll_forward_after_an_accepted_loss_changes_nothing(make: Any, tmp_path: Path) -> None:
    place, made = summed(make, tmp_path, InSqlite)
    place.lose(2, 3)
    run = begun(made, [{"word": "d", "count": 1}])
    run.spec.ledger(run.spec.memory).run(state_lost, place.state.name, ADA)
    run.commit_now()
    assert rolled(run, place) == []
    assert values(place) == {"a": 1, "d": 1}


# --- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("died", [0, 1, 2])
def test_a_roll_forward_does_not_lift_a_permanent_refusal_and_the_transaction_is_not_replayed(
    cases: Any, points: Any, died: int
) -> None:
    case = cases(wrote=True)
    case.refusal()
    assert isinstance(case.replayed(), Blocked)
    blocked = case.ledger.topology().blocked
    for _ in range(died):
        dies_at(case, points, "looking")
    assert len(case.roll()) == 1
    assert case.ledger.topology().blocked == blocked
    assert isinstance(case.replayed(), Blocked)
    case.lost()
    assert isinstance(case.replayed(), ReplayNoted)


def test_a_refusal_that_an_earlier_repair_has_lifted_stays_lifted_after_a_roll_forward(cases: Any) -> None:
    case = cases(wrote=True)
    assert case.refusal().for_good == 1
    case.lost()
    assert len(case.roll()) == 1
    assert case.record().for_good == 1
    assert isinstance(case.replayed(), ReplayNoted)


def test_a_roll_forward_that_restores_the_state_lifts_the_refusal_of_the_commit(make: Any, tmp_path: Path) -> None:
    place, made = summed(make, tmp_path, InSqlite)
    run = begun(made, [{"word": "d", "count": 1}])
    place.lose(2, 3)
    with pytest.raises(StateBehind):
        run.commit_now()
    ledger = run.spec.ledger(run.spec.memory)
    path = run.spec.paths.transaction(4)
    record = Reader(run.spec.memory).peek_if_any(TransactionRecord, path)
    assert record is not None
    ledger.note_commit_failed(run.begun.attempt, record.epoch, reason="behind", for_good=True)
    request = ReplayRequest(run.begun.attempt, "its run failed", True, 3)
    assert isinstance(ledger.run(note_replay, request), Blocked)
    assert rolled(run, place) == []
    assert ledger.topology().blocked is None
    assert isinstance(ledger.run(note_replay, request), ReplayNoted)
    run.commit_now()
    assert values(place) == dict.fromkeys("abcde", 1)


# --- a restatement ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("error", [None, AWAY], ids=["behind", "away"])
def test_a_restatement_whose_refusal_a_repair_can_resolve_is_not_given_up(
    make: Any, tmp_path: Path, error: Any
) -> None:
    place = InSqlite(tmp_path, "opaque")
    made = Makes(make, place)
    committed(made, [{"word": "a", "count": 1}])
    kept = place.backup()
    committed(made, [{"word": "b", "count": 2}])
    run = begun(made, [{"word": "a", "count": 5}], instead_of=1)
    kept()
    commit = run.commit()
    with pytest.raises(StateBehind) as behind:
        commit_in_turn(commit, run.spec.memory, patience=0.0)
    failed(run, commit, error or behind.value)
    ledger = run.spec.ledger(run.spec.memory)
    request = ReplayRequest(run.begun.attempt, "its run failed", True, 0)
    assert isinstance(ledger.run(note_replay, request), Blocked)
    assert rolled(run, place) == []
    assert ledger.topology().blocked is None
    assert isinstance(ledger.run(note_replay, replace(request, limit=1)), ReplayNoted)
    run.begin()
    processed(run, [{"word": "a", "count": 5}]).commit_now()
    assert values(place) == {"a": 5, "b": 2}
    assert findings(run, place) == ()


def test_a_restatement_whose_task_cannot_reach_a_state_is_not_given_up(make: Any, tmp_path: Path) -> None:
    _, made = summed(make, tmp_path, InMemory)
    run = begun(made, [{"word": "a", "count": 5}], instead_of=1)
    run.start().fail("StateUnavailable", AWAY)
    ledger = run.spec.ledger(run.spec.memory)
    request = ReplayRequest(run.begun.attempt, "its run failed", True, 0)
    assert isinstance(ledger.run(note_replay, request), Blocked)


# --- what ends wrong if a rule is left out ------------------------------------------------------------------------


def refused_look(given: Given) -> None:
    test_a_refused_commit_stays_refused_after_the_roll_forward_of_its_state_was_refused(
        given.cases, "largest", wrote=True
    )


def refused_when_whole(given: Given) -> None:
    test_a_roll_forward_that_is_refused_because_the_totals_differ_does_not_stop_commits(
        given.make, given.folder, wrote=True
    )


def refused_without_table(given: Given) -> None:
    test_a_table_that_is_lost_after_a_roll_forward_has_read_it_is_still_noticed(given.cases, given.points)


def refused_plan(given: Given) -> None:
    test_a_roll_forward_whose_values_no_receipt_can_prove_is_refused_before_it_raises_a_fence(given.cases, "largest")


def refused_after_a_death(given: Given) -> None:
    test_a_refused_roll_forward_that_is_repeated_after_a_kill_restores_the_fence(
        given.cases, given.points, InMemory, "largest", "looking"
    )


def left(given: Given) -> None:
    test_the_fence_that_an_interrupted_roll_forward_leaves_behind_refuses_every_commit(
        given.cases, given.points, InMemory
    )


def left_and_accepted(given: Given) -> None:
    test_a_loss_can_be_accepted_after_a_roll_forward_was_killed_while_it_read_the_values(
        given.cases, given.points, InMemory, "largest"
    )


def left_before_the_turn(given: Given) -> None:
    test_a_transaction_that_begins_after_an_accepted_loss_commits_despite_an_old_roll_forward(given.make, given.folder)


def thought_dead(given: Given) -> None:
    test_an_outranked_roll_forward_does_not_change_the_fence_of_a_later_one(given.cases, given.points, InMemory)


def written_open(given: Given) -> None:
    test_a_roll_forward_removes_the_rows_of_the_open_transaction_before_it_compares_values(
        given.make, given.folder, InMemory
    )


def overtaken(given: Given) -> None:
    with pytest.MonkeyPatch.context() as patch:
        test_a_roll_forward_is_not_refused_if_a_commit_happens_while_it_is_planned(
            given.make, given.folder, InMemory, patch
        )


def refused_for_good(given: Given) -> None:
    test_a_roll_forward_does_not_lift_a_permanent_refusal_and_the_transaction_is_not_replayed(
        given.cases, given.points, 2
    )


def lifted(given: Given) -> None:
    test_a_refusal_that_an_earlier_repair_has_lifted_stays_lifted_after_a_roll_forward(given.cases)


LEFT_OUT: tuple[tuple[str, Any, str, str, Callable[[Given], None]], ...] = (
    ("no commit passes a look", fence._check_no_look, "stored.token.is_look and", "False and", left),
    (
        "an accepted loss passes it",
        fence._check_no_look,
        " or accepted(stored, grant, state=state)",
        "",
        left_and_accepted,
    ),
    (
        "it does whatever the birth",
        fence._check_birth,
        " or accepted(stored, grant, state=state)",
        "",
        left_before_the_turn,
    ),
    ("a look keeps the fence", fence.raised, "_covering(stored)", "grant.batch", refused_look),
    (
        "and a later look the same",
        fence._covering,
        "stored.batch if stored.token.is_look else",
        "",
        refused_after_a_death,
    ),
    ("and its imprint", FencedStore._has_lost, "bool(lost) or", "", refused_look),
    (
        "of a table that is gone, too",
        FencedStore._has_lost,
        "or not self._is_there(connection)",
        "",
        refused_without_table,
    ),
    ("unless nothing was lost", FencedStore._has_lost, "bool(lost)", "True", refused_when_whole),
    ("the fence is put back", RollForward.take, "history.state.put_back(grant)", "pass", refused_look),
    ("with its imprint", FencedStore.put_back, "Imprint.of(found[1])", "None", refused_look),
    ("by its own look alone", fence.uncovered, "check_write(stored, grant, state=state)", "pass", thought_dead),
    ("a look is known again", StateHistory._look, "if fence.token.is_look:", "if False:", refused_after_a_death),
    ("the plan is refused", StateHistory._compared, "txid >= self.ledger.current and epoch", "True", refused_plan),
    ("not with open rows", StateHistory._compared, "txid >= self.ledger.current and epoch", "False", written_open),
    ("not during a commit", StateHistory._compared, "or self._has_moved(look)", "", overtaken),
    ("it stays blocked", steps.end_roll_forward, "None if rolled else topology.blocked", "None", refused_for_good),
    ("it stays refused", steps._refused_still, "0 < before <= record.for_good", "False", refused_for_good),
    ("after any number of runs", steps._refused_still, "* len(runs)", "", refused_for_good),
    ("a lifted one stays lifted", steps._refused_still, "0 < before <=", "0 <", lifted),
)


@pytest.mark.parametrize("rule", LEFT_OUT, ids=lambda rule: rule[0].replace(" ", "-"))
def test_each_rule_of_refused_roll_forwards_is_covered_by_a_test_that_fails_without_the_rule(
    rule: Any, cases: Any, points: Any, make: Any, tmp_path: Path
) -> None:
    told, function, old, new, noticed_by = rule
    given = Given(cases, points, make, tmp_path)
    with applied(Mutant(told, ((function, old, new),), ONE)):
        with pytest.raises((AssertionError, TxError, pytest.fail.Exception)):
            noticed_by(given)


@pytest.mark.parametrize("repaired", [False, True])
def test_the_list_of_transactions_no_longer_recommends_a_repair_that_was_made(cases: Any, repaired: bool) -> None:
    case = cases()
    with pytest.raises(StateBehind) as refused:
        case.run.commit_now()
    error: TxError = refused.value
    remedy = advice_of(error)
    assert remedy is not None
    assert "--state-lost" in str(remedy)
    found = case.record()
    case.ledger.note_commit_failed(
        case.run.begun.attempt, found.epoch, reason=error.problem_text, remedy=remedy, for_good=True
    )
    if repaired:
        case.lost()
    view = topology_view(case.run.spec.memory, case.run.spec.paths)
    (listed,) = view.opened
    told = " ".join(map(str, (listed.waiting_for, listed.to_do, listed.said, topology_health(view))))
    assert ("--state-lost" in told) is not repaired
    assert listed.failed
