"""A state that came back from a backup is written again from the journal, and is as if it had not gone back."""

from __future__ import annotations

import json
import re
import sqlite3
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import FenceOutranked, RepairRefused, RestateRefused, RollingForward, StateBehind, TxError
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.move import Mover
from airflow_tx.ledger.audit.rebuild import close_for_reset, note_change, rename_state, state_lost
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.life import NOTHING_PENDING, Life
from airflow_tx.ledger.steps import roll_forward as roll_forward_protocol
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.roll_forward import begin_roll_forward
from airflow_tx.operations.actions import roll_forward as actions
from airflow_tx.operations.actions.action import ActionTarget, PersonalAction
from airflow_tx.operations.actions.request import ActionRequest
from airflow_tx.operations.actions.restatement import SeveralRefused
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.outputs.staging.area import JOURNAL
from airflow_tx.state import Max, MemoryState, Sum
from airflow_tx.state.lake.state import DeltaTable
from airflow_tx.state.sql.state import SqlState
from airflow_tx.transaction.commit import roll_forward as module
from airflow_tx.transaction.commit.roll_forward import RollForward
from airflow_tx.transaction.commit.state_history import StateHistory, StateLook
from tests.stage import update
from tests.unit.commit.backups import (
    ADA,
    WHEN,
    InMemory,
    InSqlite,
    RollForwardTests,
    entry_file,
    findings,
    repair,
    rolled,
    story,
    values,
)
from tests.unit.commit.restated_run import Makes, begun, committed, rows
from tests.unit.commit.run import killed_before_the_mark, killed_until_it_ends


@pytest.fixture(params=[InMemory, InSqlite])
def place(request: Any, tmp_path: Path) -> Any:
    return request.param(tmp_path, "opaque")


@pytest.fixture
def make_in(make: Any) -> Any:
    def make_there(place: Any) -> Any:
        return Makes(make, place)

    return make_there


@pytest.fixture
def makes(make_in: Any, place: Any) -> Any:
    return make_in(place)


class TestStates(RollForwardTests):
    """In memory, and in SQLite."""


def test_transactions_are_committed_after_a_roll_forward(makes: Any, place: Any) -> None:
    run, backups = story(makes, place)
    backups["1"]()
    rolled(run, place)
    committed(makes, rows(a=1000))
    committed(makes, rows(b=7), instead_of=5)
    assert {row["word"]: row["count"] for row in place.state.read()} == {"a": 1015, "b": -3, "c": 9, "e": 0}
    assert findings(run, place) == ()


@pytest.mark.parametrize("when", WHEN)
@pytest.mark.parametrize("apart", [False, True])
def test_a_roll_forward_that_is_killed_between_two_transactions_is_exact_when_repeated(
    makes: Any, place: Any, when: str, apart: bool
) -> None:
    run, backups = story(makes, place)
    truth = place.content()
    (place.values_of if apart else lambda restore: restore())(backups[when])
    died, _ = killed_until_it_ends(module, lambda: rolled(run, place))
    assert died
    assert place.content() == truth
    assert findings(run, place) == ()


def test_a_roll_forward_that_is_killed_between_two_receipts_is_exact_when_repeated(makes: Any, place: Any) -> None:
    run, backups = story(makes, place)
    receipts, now = place.state.receipts(), place.backup()
    backups["1"]()
    place.values_of(now)
    died, _ = killed_until_it_ends(module, lambda: rolled(run, place))
    assert died > 2
    assert place.state.receipts() == receipts
    assert findings(run, place) == ()


def test_the_transaction_that_has_the_turn_waits_during_a_roll_forward(
    makes: Any, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, backups = story(makes, place)
    backups["1"]()
    next_one = begun(makes, rows(a=1))
    waits = list[bool]()

    def wakes_up(name: str, **context: Any) -> None:
        waits.append(next_one.commit_now() is not None)
        assert "repeat it: airflow tx repair numbers --roll-forward" in next_one.log.lines[-1]

    monkeypatch.setattr(module, "failpoint", wakes_up)
    assert rolled(run, place) == []
    assert waits == [True] * 4
    next_one.commit_now()
    assert findings(run, place) == ()


def test_a_roll_forward_of_a_complete_state_writes_nothing(makes: Any, place: Any) -> None:
    run, _ = story(makes, place)
    before = run.spec.ledger(run.spec.memory).topology()
    command = repair(run, place)
    assert command.preview().effects == ()
    assert command.execute(ADA) is None
    assert run.spec.ledger(run.spec.memory).topology() == before


def requested(run: Any, place: Any, **named: Any) -> PersonalAction:
    """The repair that a button of the Transactions page asks for."""
    asked = {"conn_id": "", "root": "", "coordinator": "", "name": "repair", "txids": (), "repair": "roll-forward"}
    request = ActionRequest.from_json({"topology": "numbers", **asked, **named})
    ledger = run.spec.ledger(run.spec.memory)
    dag: Any = (run.spec, {place.state.name: place.state})
    return request.action(ActionTarget(ledger, ledger.topology(), lambda: dag))


def test_a_roll_forward_from_the_page_that_was_killed_continues_when_it_is_repeated(makes: Any, place: Any) -> None:
    run, backups = story(makes, place)
    truth = place.content()
    backups["1"]()

    def act() -> list[str]:
        action = requested(run, place, names=[place.state.name])
        preview = action.preview()
        assert (preview.refused, preview.needs_reason) == ((), True)
        return [str(each.what) for each in action.effects(ADA, preview.version)]

    died, (repaired,) = killed_until_it_ends(module, act)
    assert died
    assert "transaction 6 commits next." in repaired
    assert place.content() == truth
    assert findings(run, place) == ()


def test_the_page_explains_why_a_refused_state_cannot_be_rolled_forward(makes: Any, place: Any) -> None:
    run, backups = story(makes, place)
    backups["1"]()
    entry_file(run, 4).unlink()
    action = requested(run, place)
    preview = action.preview()
    assert (preview.effects, [str(each.what)[:6] for each in preview.refused]) == ((), ["state "])
    with pytest.raises(SeveralRefused, match=re.escape(str(preview.refused[0].what))):
        list(action.execute(ADA, preview.version))


def test_the_preview_of_a_roll_forward_names_missing_transactions_and_changes_nothing(makes: Any, place: Any) -> None:
    run, backups = story(makes, place)
    backups["2"]()
    before = place.content()
    answer = repair(run, place).preview()
    assert [str(each.what) for each in answer.effects] == [
        f"state {place.state.name}: fence 2, ledger 5; missing: 3 to 5 (2 committed, 1 skipped)",
        "skipped: it writes nothing",
        "3 keys, count +11, as its receipt says",
        "2 keys, count +4, as its receipt says",
    ]
    assert place.content() == before


# --- what is refused ----------------------------------------------------------------------------------------------


def test_a_roll_forward_names_a_missing_journal_entry_and_changes_nothing(makes: Any, place: Any) -> None:
    run, backups = story(makes, place)
    backups["2"]()
    before = place.content()
    folder = Path(run.spec.staging().files.uri(JOURNAL).removeprefix("file://"))
    (entry,) = folder.parent.rglob("5-*")
    entry.unlink()
    assert any("transaction 5" in each and "--state-lost" in each for each in rolled(run, place))
    assert place.content() == before


def test_a_roll_forward_that_another_roll_forward_has_overtaken_changes_nothing(
    makes: Any, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, backups = story(makes, place)
    truth = place.content()
    backups["1"]()
    ledger = run.spec.ledger(run.spec.memory)

    def overtaken(name: str, **context: Any) -> None:
        monkeypatch.setattr(module, "failpoint", lambda name, **context: None)
        assert rolled(run, place) == []

    monkeypatch.setattr(module, "failpoint", overtaken)
    with pytest.raises((FenceOutranked, RepairRefused)):
        rolled(run, place)
    assert (place.content(), ledger.topology().rolling) == (truth, None)


@pytest.mark.parametrize("action", ["rename", "state rename", "reset"])
def test_other_repairs_are_refused_while_a_roll_forward_runs(makes: Any, place: Any, action: str) -> None:
    run, _ = story(makes, place)
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(begin_roll_forward, {place.state.name: 2}, ADA)
    done: dict[str, Callable[[], Any]] = {
        "rename": lambda: Mover(ledger).close_for_deletion(),
        "reset": lambda: ledger.run(close_for_reset),
        "state rename": lambda: ledger.run(rename_state, place.state.name, "other", audit=ADA),
    }
    with pytest.raises(RollingForward, match="--roll-forward"):
        done[action]()


def test_accepting_the_loss_ends_a_roll_forward_and_a_later_roll_forward_restores_the_values(
    makes: Any, place: Any
) -> None:
    run, backups = story(makes, place)
    ledger = run.spec.ledger(run.spec.memory)
    backups["2"]()
    ledger.run(begin_roll_forward, {place.state.name: 2}, ADA)
    ledger.run(state_lost, place.state.name, ADA)
    committed(makes, rows(a=2))
    with pytest.raises(RestateRefused, match="may lack"):
        ledger.run(want, WishRequest(2, makes.runs[2], makes.runs[2], (place.state.name,)), ADA)
    backups["2"]()
    assert rolled(run, place) == []
    found = {row["word"]: row["count"] for row in place.state.read()}
    assert found == {"a": 17, "b": -7, "c": 9, "e": 1}
    assert findings(run, place) == ()


def test_a_roll_forward_stops_at_a_change_by_hand(makes: Any, place: Any) -> None:
    run, backups = story(makes, place)
    ledger = run.spec.ledger(run.spec.memory)
    receipt = ledger.topology().receipt
    ledger.run(note_change, place.state.name, {"count": 3}, keys=[], receipt=receipt, audit=ADA)
    place.state.accept_values(2)
    committed(makes, rows(a=1))
    backups["2"]()
    assert rolled(run, place) == []
    assert max(each.txid for each in place.state.receipts()) == 5
    refused = rolled(run, place)
    assert "with --changed 2" in refused[0] or "with --changed 1" in refused[0]


def test_a_state_with_values_from_different_times_is_refused(makes: Any, tmp_path: Path) -> None:
    place = InMemory(tmp_path, "opaque")
    place.state = MemoryState("largest", keys=["word"], values={"count": Max()})
    how: dict[str, Any] = {"updates": [update(place.state)]}
    committed(makes, rows(a=1), **how)
    kept = place.backup()
    run = committed(makes, rows(a=5), **how)
    place.values_of(kept)
    (refused,) = rolled(run, place)
    assert "from different moments" in refused
    assert run.spec.ledger(run.spec.memory).topology().rolling is None


def test_a_roll_forward_removes_rows_that_the_open_transaction_has_added_to_older_values(
    makes: Any, place: Any
) -> None:
    run, backups = story(makes, place)
    truth = values(place)
    place.values_of(backups["2"])
    late = begun(makes, rows(z=1))
    with suppress(StateBehind):
        killed_before_the_mark(late.commit())
    assert rolled(run, place) == []
    assert values(place) == truth


def test_a_roll_forward_refuses_older_values_that_the_open_transaction_has_overwritten(
    makes: Any, tmp_path: Path
) -> None:
    place = InMemory(tmp_path, "opaque")
    how: dict[str, Any] = {"updates": [update(place.state)]}
    committed(makes, rows(a=1), **how)
    kept = place.backup()
    run = committed(makes, rows(a=2), **how)
    place.values_of(kept)
    late = begun(makes, rows(a=1), **how)
    killed_before_the_mark(late.commit())
    assert "from different moments" in rolled(run, place)[0]
    kept()
    assert rolled(run, place) == []
    assert values(place) == {"a": 3}


# --- what ends wrong if a rule is left out --------------------------------------------------------------------------


def never_behind(look: Any) -> Any:
    """A fence of the last transaction is taken for whole."""

    def looked(self: StateHistory) -> StateLook:
        found: StateLook = look(self)
        return found if found.apart or found.first != found.found else replace(found, first=found.found + 1)

    return looked


def any_entry(self: JournalArea, name: str) -> Any:
    """Take another entry of the transaction than the one that its receipt names, if there is one."""
    names = self.names(int(name.partition("/")[2].partition("-")[0]))
    return self.read(min(names, key=lambda each: each == name))


PROVED: Any = RollForward.proved
LEFT_OUT: dict[str, tuple[tuple[Any, str, Any], ...]] = {
    "whether a fence is whole": ((StateHistory, "look", never_behind(StateHistory.look)),),
    "the values as a witness": ((StateHistory, "_compared", lambda self, look, fence, *, undone: look),),
    "who wrote the newest rows": (
        (StateHistory, "_fits", lambda self, *asked, **how: True),
        (Life, "changes_after", lambda self, *a, **how: NOTHING_PENDING),
    ),
    "skips": ((RollForward, "proved", lambda self, *a: [m for m in PROVED(self, *a) if not m.is_skip]),),
    "the difference of a restatement": ((RollForward, "_difference", lambda self, h, r, rows, *_, **how: (rows, ())),),
    "the entry that a receipt names, and the proof": (
        (JournalArea, "check", any_entry),
        (module, "dumps", lambda value: ""),
    ),
    "receipts that its values are newer than": ((RollForward, "_write_receipts", lambda *asked: None),),
    "a new generation": ((roll_forward_protocol, "GENERATIONS", 0),),
    "the fence that was looked at": ((module, "replace", lambda grant, **changes: grant),),
}


@pytest.mark.parametrize("rule", LEFT_OUT)
def test_without_any_one_of_its_rules_a_roll_forward_is_not_exact_in_at_least_one_case(
    makes: Any, tmp_path: Path, rule: str, monkeypatch: pytest.MonkeyPatch, place: Any
) -> None:
    run, backups = story(makes, place)
    truth, now = place.content(), place.backup()
    write = RollForward.write

    def late(self: RollForward, history: Any, look: Any, missing: Any, rolling: Any) -> Any:
        """An earlier run, which was thought dead, goes on after this one has looked."""
        monkeypatch.setattr(RollForward, "write", write)
        before = replace(rolling, generation=rolling.generation - 1, nonce="of an earlier run")
        write(self, history, look, missing, before)
        return write(self, history, look, missing, rolling)

    def is_exact(restore: Callable[[], None]) -> bool:
        try:
            restore()
            return rolled(run, place) == [] and place.content() == truth and findings(run, place) == ()
        except (TxError, AssertionError):
            return False

    def older_fence(restore: Callable[[], None]) -> None:
        restore()
        place.values_of(now)

    cases: list[Callable[[], None]] = []
    for restore in backups.values():
        cases += [restore, partial(place.values_of, restore), partial(older_fence, restore)]
    assert all(is_exact(case) for case in cases)
    for owner, name, other in LEFT_OUT[rule]:
        monkeypatch.setattr(owner, name, other)
    if rule == "the fence that was looked at":
        monkeypatch.setattr(RollForward, "write", late)
    assert not all(is_exact(case) for case in cases)


@pytest.mark.parametrize("where", [InMemory, InSqlite])
def test_a_roll_forward_restores_a_transactional_state_and_its_receipts(
    make_in: Any, tmp_path: Path, where: Any
) -> None:
    place = where(tmp_path, "transactional")
    makes = make_in(place)
    committed(makes, rows(a=1, b=2))
    kept = place.backup()
    run = begun(makes, rows(a=5))
    killed_before_the_mark(run.commit())
    half = place.backup()
    run.commit_now()
    run = committed(makes, rows(b=1, c=4))
    truth = place.content(), place.state.receipts()
    for restore in (kept, half):
        restore()
        assert rolled(run, place) == []
        assert (place.content(), place.state.receipts()) == truth
    fence = place.state.fence()
    assert fence is not None
    assert list(json.loads(fence.batch)["outputs"]) == [place.state.name]


def test_a_column_that_was_added_later_is_null_in_transactions_that_are_rolled_forward(
    make_in: Any, tmp_path: Path
) -> None:
    place = InSqlite(tmp_path, "opaque")
    makes = make_in(place)
    committed(makes, rows(a=1))
    kept = place.backup()
    committed(makes, rows(a=2, b=1))
    wider = {"count": Sum(), "size": Sum()}

    def widened() -> SqlState:
        with sqlite3.connect(tmp_path / "state.db") as connection:
            for column in ("size", "tx_prev_size"):
                connection.execute(f"ALTER TABLE words ADD COLUMN {column} BIGINT")
        url = f"sqlite:///{tmp_path / 'state.db'}"
        return SqlState.from_url(url, table="words", keys=["word"], values=wider)

    place.state = widened()
    run = committed(makes, [{"word": "a", "count": 4, "size": 7}])
    truth = place.content()
    kept()
    place.state = widened()
    assert rolled(run, place) == []
    assert place.content() == truth


def test_a_roll_forward_of_a_lake_table_is_refused_with_the_command_that_restores_the_table(
    makes: Any, place: Any, tmp_path: Path
) -> None:
    run, _ = story(makes, place)
    table = DeltaTable(str(tmp_path / "table"))
    refused = rolled(run, place, states={table.name: table}, chosen=[table.name])
    assert [each for each in refused if "RESTORE the table" in each] == refused


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"chosen": ["nosuch"]}, "the DAG has no state 'nosuch'. Nothing was changed. Known: "),
        ({"until": 0}, "--until 0 is not a transaction. Nothing was changed. Known: 1 and later"),
        ({"changed": [7]}, "repair 7 is not an accepted change. Nothing was changed. Known: none"),
    ],
)
def test_unknown_states_and_options_of_the_command_are_refused_with_a_one_line_error(
    makes: Any, place: Any, given: dict[str, Any], words: str
) -> None:
    run, backups = story(makes, place)
    backups["1"]()
    with pytest.raises(RepairRefused, match=re.escape(words)):
        rolled(run, place, **given)


def test_a_roll_forward_up_to_a_transaction_leaves_the_later_ones_for_the_next_roll_forward(
    makes: Any, place: Any
) -> None:
    run, backups = story(makes, place)
    truth = place.content()
    backups["1"]()
    assert rolled(run, place, until=3) == []
    with pytest.raises(StateBehind, match="its fence says 3"):
        begun(makes, rows(a=1)).commit_now()
    assert rolled(run, place) == []
    assert place.content() == truth
    assert findings(run, place) == ()


@pytest.mark.parametrize("apart", [False, True])
def test_an_empty_state_is_refused_if_the_ledger_no_longer_contains_its_first_transactions(
    makes: Any, place: Any, apart: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    empty = place.backup()
    run, _ = story(makes, place)
    (place.values_of if apart and isinstance(place, InMemory) else lambda restore: restore())(empty)

    def forgetful(*asked: Any) -> Any:
        found = ledger_evidence(*asked)
        return replace(found, histories={txid: each for txid, each in found.histories.items() if txid > 1})

    assert rolled(run, place) == []
    assert values(place) == {"a": 15, "b": -7, "c": 9, "e": 1}
    (place.values_of if apart and isinstance(place, InMemory) else lambda restore: restore())(empty)
    monkeypatch.setattr(actions, "ledger_evidence", forgetful)
    refused = rolled(run, place)
    if apart and isinstance(place, InMemory):
        # The state keeps the receipt that the ledger has forgotten.
        assert values(place) == {"a": 15, "b": -7, "c": 9, "e": 1}
        return
    assert "transaction 1" in refused[0]
    assert values(place) == {}
