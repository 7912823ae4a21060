"""A table that came back from a backup, and whose rows the journal does not have: its transactions are restated."""

from __future__ import annotations

import shutil
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base import compat
from airflow_tx.base.errors import FenceOutranked, RepairRefused, StateBehind, StateUnavailable
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.rebuild import state_lost
from airflow_tx.ledger.audit.verification import Verified, verified
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.steps.replay import withdraw
from airflow_tx.operations.actions import roll_forward as command_module
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.operations.actions.lost_state import seen_state
from airflow_tx.operations.actions.restatement import TransactionRestatement
from airflow_tx.state import DeltaTable, SqlGuard
from airflow_tx.transaction.commit import roll_forward as module
from tests.stage import update
from tests.unit.bench import Numbers
from tests.unit.commit.backups import (
    ADA,
    WHEN,
    InMemory,
    LakeInFolder,
    TableInSqlite,
    entry_file,
    findings,
    repair,
    restating,
    rolled,
    story,
    values,
)
from tests.unit.commit.restated_run import begun, committed, rows
from tests.unit.commit.run import Run, killed_before_the_mark


class Rereadable(Numbers):
    """Numbers that can be read again.

    :ivar gone: why not.
    """

    gone: str | None = None

    def refuses_again(self, metadata: Any) -> str | None:
        return self.gone

    def named(self, topology: str) -> Any:
        return self


class TableWithoutRows(TableInSqlite):
    """A table whose rows the journal does not keep."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, journal_rows=False)

    def words(self) -> list[tuple[Any, ...]]:
        return sorted(self.sql("select word, count from words"))


class VacuumedLake(LakeInFolder):
    """A table of a lake, whose files of later transactions are gone, too."""

    def backup(self) -> Any:
        restore = super().backup()
        files = set(self.log.parent.rglob("*.parquet"))

        def vacuumed() -> None:
            restore()
            for each in {*self.log.parent.rglob("*.parquet")} - files:
                each.unlink()

        return vacuumed

    def lose_all(self) -> None:
        shutil.rmtree(self.log.parent)

    def words(self) -> list[tuple[Any, ...]]:
        return sorted((row["word"], row["count"]) for row in self.state.read())


@pytest.fixture(autouse=True)
def no_airflow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compat, "runs_of", lambda dag_id, run_ids: {})


@pytest.fixture
def source() -> Rereadable:
    return Rereadable()


@pytest.fixture(params=[TableWithoutRows, VacuumedLake], ids=["SqlTable", "DeltaTable"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return request.param(tmp_path)


@pytest.fixture
def makes(make: Any, place: Any, source: Rereadable) -> Any:
    def made(run_id: str, **options: Any) -> Any:
        return make(run_id, **{"updates": [update(place.state)], "source": source, **options})

    made.runs = {}  # type: ignore[attr-defined]
    return made


def again(run: Run, place: Any, **options: Any) -> list[str]:
    """Roll forward with --restate; why states were refused."""
    return rolled(run, place, restating=restating(run), **options)


def wished(run: Run) -> list[int]:
    return [each.txid for each in run.spec.ledger(run.spec.memory).wishes()]


def audited(run: Run, place: Any) -> Verified:
    ledger = ledger_evidence(run.spec.memory, run.spec.paths)
    return verified(ledger, evidence_of({place.state.name: place.state}, values=True))


def restated(makes: Any, given: dict[int, Any]) -> None:
    """Execute the runs whose transactions are wanted restated."""
    for txid in wished(makes("any")):
        committed(makes, given[txid], instead_of=txid, noted=True)


GIVEN = {1: rows(a=1, b=2), 2: rows(a=10, b=-10), 4: rows(a=5, c=9), 5: rows(b=3, e=1)}


@pytest.mark.parametrize("when", WHEN)
def test_rows_without_a_journal_are_restated_and_each_row_is_in_the_table_once(
    makes: Any, place: Any, when: str
) -> None:
    run, backups = story(makes, place)
    truth = place.words()
    backups[when]()
    late = begun(makes, rows(z=1))
    with pytest.raises(StateBehind, match="--roll-forward"):
        late.commit_now()
    assert again(run, place) == []
    lacking = [txid for txid in (2, 4, 5) if when == "1" or txid > int(when[0]) or (when, txid) == ("2.1", 2)]
    assert wished(run) == lacking
    assert [each for each in findings(run, place) if "restatement is requested" in each] == [
        f"state {place.state.name}: transaction {txid} has no rows: its restatement is requested" for txid in lacking
    ]
    late.commit_now()
    restated(makes, GIVEN)
    assert place.words() == sorted([*truth, ("z", 1)])
    assert findings(run, place) == ()


def test_a_roll_forward_restates_transactions_only_with_the_option_that_its_refusal_names(
    makes: Any, place: Any
) -> None:
    committed(makes, rows(a=1))
    kept = place.backup()
    run = committed(makes, rows(b=2))
    kept()
    before = place.words()
    (told,) = rolled(run, place)
    assert (
        f"Process the missing transactions again: airflow tx repair numbers --roll-forward {place.state.name} --restate"
        in told
    )
    assert (place.words(), wished(run)) == (before, [])


def test_a_table_that_is_lost_completely_is_restored_by_restatements(makes: Any, place: Any) -> None:
    run, _ = story(makes, place)
    truth = place.words()
    place.lose_all()
    assert again(run, place) == []
    assert wished(run) == [2, 4, 5]
    restated(makes, GIVEN)
    assert place.words() == truth
    assert findings(run, place) == ()


@pytest.mark.parametrize("when", WHEN)
def test_rows_that_were_set_back_without_their_fence_are_restated(make: Any, tmp_path: Path, when: str) -> None:
    place = TableWithoutRows(tmp_path)
    makes = made_with(make, Rereadable(), place.state)
    run, backups = story(makes, place)
    truth = place.words()
    place.values_of(backups[when])
    assert again(run, place) == []
    assert 5 in wished(run)
    committed(makes, rows(z=1))
    restated(makes, GIVEN)
    assert place.words() == sorted([*truth, ("z", 1)])
    assert findings(run, place) == ()


@pytest.mark.parametrize("repeated", [again, rolled], ids=["as before", "without the option"])
def test_a_repair_that_was_interrupted_at_any_step_can_be_repeated_without_the_option(
    makes: Any, place: Any, repeated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, backups = story(makes, place)
    truth = place.words()
    before = run.spec.memory.snapshot()
    runs = dict(makes.runs)
    points: list[str] = []
    left = 0

    def dies(name: str, **context: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            points.append(name)
            raise OSError("killed")

    monkeypatch.setattr(module, "failpoint", dies)
    monkeypatch.setattr(command_module, "failpoint", dies)
    for number in range(1, 10):
        run.spec.memory.restore(before)
        makes.runs.clear()
        makes.runs.update(runs)
        backups["1"]()
        left = number
        try:
            again(run, place)
            break
        except OSError:
            left = 0
        assert wished(run) == [2, 4, 5]
        requested = [each for each in findings(run, place) if "its restatement is requested" in each]
        assert len(requested) == 3
        assert repeated(run, place) == []
        assert wished(run) == [2, 4, 5]
        restated(makes, GIVEN)
        assert place.words() == truth
        assert findings(run, place) == ()
    assert points == ["roll_forward.begun", *["roll_forward.wrote"] * 4]


def test_an_interrupted_repair_refuses_every_commit_until_it_is_repeated(
    makes: Any, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, backups = story(makes, place)
    backups["2"]()
    with monkeypatch.context() as patch:
        patch.setattr(command_module, "failpoint", killed)
        with pytest.raises(OSError, match="killed"):
            again(run, place)
    late = begun(makes, rows(z=1))
    late.commit_now()
    assert late.spec.ledger(late.spec.memory).topology().rolling is not None
    assert ("z", 1) not in place.words()
    assert again(run, place) == []
    late.commit_now()
    assert ("z", 1) in place.words()


def killed(name: str, **context: Any) -> None:
    raise OSError("killed")


def test_the_later_of_two_simultaneous_repairs_continues_and_requests_each_transaction_once(
    makes: Any, place: Any
) -> None:
    run, backups = story(makes, place)
    truth = place.words()
    for point in (module, command_module):
        backups["1"]()

        def overtaken(name: str, **context: Any) -> None:
            patch.undo()
            assert again(run, place) == []

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(point, "failpoint", overtaken)
            with pytest.raises((FenceOutranked, RepairRefused)):
                again(run, place)
        assert len(wished(run)) == len(set(wished(run))) == 3
    restated(makes, GIVEN)
    assert place.words() == truth
    assert findings(run, place) == ()


def test_the_repair_is_refused_if_another_state_cannot_take_back_its_rows(
    make: Any, place: Any, source: Rereadable, tmp_path: Path
) -> None:
    guard = SqlGuard.from_url(f"sqlite:///{tmp_path / 'other.db'}", name="own", statements=[])
    makes = made_with(make, source, place.state, guard)
    committed(makes, rows(a=1))
    kept = place.backup()
    committed(makes, rows(b=1))
    run = committed(makes, rows(c=1))
    kept()
    before = (place.words(), run.spec.memory.snapshot())
    (told,) = again(run, place)
    assert f"transaction 2 cannot be processed again: state {guard.name!r} cannot take anything back" in told
    assert f"--state-lost {place.state.name}" in told
    assert "--restate" not in told
    assert (place.words(), run.spec.memory.snapshot()) == before


def made_with(make: Any, source: Any, *states: Any) -> Any:
    def made(run_id: str, **options: Any) -> Any:
        return make(run_id, **{"updates": list(map(update, states)), "source": source, **options})

    made.runs = {}  # type: ignore[attr-defined]
    return made


def test_the_error_names_transactions_whose_rows_the_source_no_longer_has(
    makes: Any, place: Any, source: Rereadable
) -> None:
    committed(makes, rows(a=1))
    kept = place.backup()
    run = committed(makes, rows(b=1))
    kept()
    source.gone = "file 2 is gone"
    (told,) = again(run, place)
    assert "transaction 2 cannot be processed again: its rows cannot be read again: file 2 is gone" in told
    assert f"--state-lost {place.state.name}" in told
    assert wished(run) == []


def test_a_transaction_without_a_journal_entry_cannot_be_processed_again(makes: Any, place: Any) -> None:
    committed(makes, rows(a=1), journal=timedelta(0))
    kept = place.backup()
    run = committed(makes, rows(b=1), journal=timedelta(0))
    kept()
    (told,) = again(run, place)
    assert "transaction 2 cannot be processed again: the journal has no entry for it" in told
    assert f"--state-lost {place.state.name}" in told


def test_rows_in_the_journal_are_written_again_and_only_the_other_missing_rows_are_restated(
    make: Any, tmp_path: Path, source: Rereadable
) -> None:
    place = TableWithoutRows(tmp_path)
    with_rows = TableInSqlite(tmp_path)
    makes = made_with(make, source, place.state)
    how = {"updates": [update(with_rows.state)]}
    committed(makes, rows(a=1))
    kept = place.backup()
    committed(makes, rows(b=2), **how)
    committed(makes, rows(c=3))
    run = committed(makes, rows(d=4), **how)
    kept()
    assert again(run, place) == []
    assert wished(run) == [3]
    assert place.words() == [("a", 1), ("b", 2), ("d", 4)]
    restated(makes, {3: rows(c=3)})
    assert place.words() == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert findings(run, place) == ()


def test_the_error_names_a_missing_journal_entry_and_no_record_is_changed(
    make: Any, tmp_path: Path, source: Rereadable
) -> None:
    place = TableWithoutRows(tmp_path)
    makes = made_with(make, source, place.state)
    committed(makes, rows(a=1))
    kept = place.backup()
    run = committed(makes, rows(b=2))
    kept()
    entry_file(run, 2).unlink()
    before = (place.words(), run.spec.memory.snapshot())
    (told,) = again(run, place)
    assert "transaction 2 cannot be processed again: Entry " in told
    assert f"--state-lost {place.state.name}" in told
    assert (place.words(), run.spec.memory.snapshot()) == before


@pytest.mark.parametrize("repeated", [again, rolled], ids=["as before", "without the option"])
def test_rows_that_were_set_back_without_their_fence_are_restated_after_several_interruptions(
    make: Any, tmp_path: Path, repeated: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = TableWithoutRows(tmp_path)
    makes = made_with(make, Rereadable(), place.state)
    run, backups = story(makes, place)
    truth = place.words()
    place.values_of(backups["2"])
    words = ["begun", "looking", "begun", "looking", "wrote", "begun", "wrote"]
    points = [f"roll_forward.{each}" for each in words]

    def dies(name: str, **context: Any) -> None:
        if points and name == points[0]:
            points.pop(0)
            raise OSError("killed")

    monkeypatch.setattr(module, "failpoint", dies)
    monkeypatch.setattr(command_module, "failpoint", dies)
    with pytest.raises(OSError, match="killed"):
        again(run, place)
    noted = wished(run)
    for _ in range(10):
        try:
            assert repeated(run, place) == []
            break
        except OSError:
            assert wished(run) == noted
    assert points == []
    committed(makes, rows(z=1))
    restated(makes, GIVEN)
    assert place.words() == sorted([*truth, ("z", 1)])
    assert findings(run, place) == ()


def test_a_keyed_state_next_to_the_restated_table_keeps_exact_values(
    make: Any, place: Any, source: Rereadable, tmp_path: Path
) -> None:
    beside = InMemory(tmp_path, "opaque")
    makes = made_with(make, source, place.state, beside.state)
    run, backups = story(makes, place)
    truth = (place.words(), values(beside))
    backups["1"]()
    assert again(run, place) == []
    restated(makes, GIVEN)
    assert (place.words(), values(beside)) == truth


def test_the_preview_names_the_transactions_to_restate_and_changes_nothing(makes: Any, place: Any) -> None:
    run, backups = story(makes, place)
    backups["2"]()
    before = (place.words(), run.spec.memory.snapshot())
    answer = repair(run, place, restating=restating(run)).preview()
    assert answer.sentence.endswith("The journal does not have all rows, so transactions 4, 5 will be processed again.")
    first, skip, *lacking = [str(each.what) for each in answer.effects]
    assert first == f"state {place.state.name}: fence 2, ledger 5; missing: 3 to 5 (2 committed, 1 skipped)"
    assert skip == "skipped: it writes nothing"
    assert len(lacking) == 2
    assert all(
        "its run is processed again as a later transaction, and its rows get that txid" in each for each in lacking
    )
    assert (place.words(), run.spec.memory.snapshot()) == before


def test_verify_reports_a_lost_transaction_whose_restatement_was_withdrawn(makes: Any, place: Any) -> None:
    committed(makes, rows(a=1))
    kept = place.backup()
    run = committed(makes, rows(b=1))
    kept()
    assert again(run, place) == []
    run.spec.ledger(run.spec.memory).run(withdraw, 2)
    told = f"state {place.state.name}: transaction 2 has no rows: restate it: airflow tx restate numbers 2 --why TEXT"
    assert findings(run, place) == (told,)


def test_verify_does_not_report_a_loss_that_was_accepted_after_its_restatements_were_withdrawn(
    makes: Any, place: Any
) -> None:
    committed(makes, rows(a=1))
    kept = place.backup()
    committed(makes, rows(b=1))
    run = committed(makes, rows(c=1))
    kept()
    assert again(run, place) == []
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(state_lost, place.state.name, ADA, seen=seen_state(ledger, place.state))
    found = audited(run, place)
    assert found.findings == ()
    assert [each.partition(" by repair")[0] for each in found.given_up] == [
        f"state {place.state.name}: transactions 2 to 3 were given up"
    ]
    for txid in wished(run):
        ledger.run(withdraw, txid)
    committed(makes, rows(d=1))
    assert place.words() == [("a", 1), ("d", 1)]
    assert audited(run, place).findings == ()


def test_a_loss_is_not_treated_as_accepted_if_its_acceptance_was_killed(
    makes: Any, place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, backups = story(makes, place)
    backups["1"]()
    left = 4

    def dies(name: str, **context: Any) -> None:
        nonlocal left
        left -= 1
        if not left:
            raise OSError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(module, "failpoint", dies)
        with pytest.raises(OSError, match="killed"):
            again(run, place)
    ledger = run.spec.ledger(run.spec.memory)
    assert seen_state(ledger, place.state).found is None


def test_no_restatement_is_needed_if_a_complete_backup_is_restored_before_the_restatements_run(
    makes: Any, place: Any
) -> None:
    run, backups = story(makes, place)
    whole, truth = place.backup(), place.words()
    first = make_aside(place)
    backups["2"]()
    assert again(run, place) == []
    first()
    whole()
    committed(makes, rows(z=1))
    assert findings(run, place) == ()
    assert place.words() == sorted([*truth, ("z", 1)])
    restated(makes, GIVEN)
    assert findings(run, place) == ()
    assert place.words() == sorted([*truth, ("z", 1)])


def make_aside(place: Any) -> Any:
    """Keep all files of a store, and put them back."""
    if isinstance(place, TableInSqlite):
        return place.backup()
    folder = place.log.parent
    copy = folder.with_name("aside")
    shutil.copytree(folder, copy)

    def back() -> None:
        shutil.rmtree(folder)
        shutil.copytree(copy, folder)

    return back


def test_a_second_repair_requests_no_restatement_of_a_transaction_that_was_already_replaced(
    makes: Any, place: Any
) -> None:
    run, backups = story(makes, place)
    truth = place.words()
    backups["2"]()
    assert again(run, place) == []
    restated(makes, GIVEN)
    backups["2"]()
    assert again(run, place) == []
    assert wished(run) == [6, 7]
    restated(makes, {6: GIVEN[4], 7: GIVEN[5]})
    assert place.words() == truth
    assert findings(run, place) == ()


def test_a_table_that_cannot_be_reached_is_not_reported_as_a_table_with_missing_rows(
    make: Any, tmp_path: Path, source: Rereadable, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = VacuumedLake(tmp_path)
    makes = made_with(make, source, place.state)
    committed(makes, rows(a=1))
    kept = LakeInFolder.backup(place)
    run = committed(makes, rows(b=1))
    kept()

    def away(self: Any, listed: Any) -> None:
        raise StateUnavailable(state=place.state.name, where="the bucket", reason="timeout")

    monkeypatch.setattr(DeltaTable, "check_there", away)
    (told,) = again(run, place)
    assert "timeout" in told
    assert wished(run) == []


def test_a_transaction_that_is_committed_during_the_repair_needs_a_second_repair(make: Any, tmp_path: Path) -> None:
    place = TableWithoutRows(tmp_path)
    makes = made_with(make, Rereadable(), place.state)
    committed(makes, rows(a=1))
    committed(makes, rows(b=2))
    run = committed(makes, rows(c=3))
    place.sql("delete from words where tx_txid = 2")

    class Meanwhile(TransactionRestatement):
        """Another run commits before anything is noted."""

        def requests(self, txids: Any) -> Any:
            if 4 not in makes.runs:
                committed(makes, rows(d=4))
            return super().requests(txids)

    (told,) = rolled(run, place, restating=Meanwhile(restating(run).target, ()))
    assert "transaction 4" in told
    assert 4 not in wished(run)
    assert ("d", 4) in place.words()
    assert again(run, place) == []
    restated(makes, {1: rows(a=1), 2: rows(b=2), 3: rows(c=3), 4: rows(d=4)})
    assert place.words() == [("a", 1), ("b", 2), ("c", 3), ("d", 4)]
    assert findings(run, place) == ()


def test_rows_that_an_open_restatement_has_removed_are_requested_together_with_the_lost_rows(
    make: Any, tmp_path: Path
) -> None:
    place = TableWithoutRows(tmp_path)
    makes = made_with(make, Rereadable(), place.state)
    run, _ = story(makes, place)
    late = begun(makes, rows(z=1), instead_of=2)
    killed_before_the_mark(late.commit())
    place.sql("delete from words where tx_txid = 5")
    assert again(run, place) == []
    assert wished(run) == [4, 5]
    late.commit_now()
    restated(makes, GIVEN)
    assert place.words() == [("a", 5), ("b", 3), ("c", 9), ("e", 1), ("z", 1)]
    assert findings(run, place) == ()


def test_a_transaction_that_a_later_one_has_replaced_is_not_restated(make: Any, tmp_path: Path) -> None:
    place = TableWithoutRows(tmp_path)
    with_rows = TableInSqlite(tmp_path)
    makes = made_with(make, Rereadable(), place.state)
    committed(makes, rows(a=1))
    kept = place.backup()
    committed(makes, rows(b=2))
    run = committed(makes, rows(b=3), instead_of=2, updates=[update(with_rows.state)])
    kept()
    answer = repair(run, place, restating=restating(run)).preview()
    assert "None of its rows are written; a later transaction has replaced it" in str(answer.effects[1].what)
    assert again(run, place) == []
    assert wished(run) == []
    assert place.words() == [("a", 1), ("b", 3)]
    assert findings(run, place) == ()


def test_a_lost_transaction_is_reported_as_requested_while_its_restatement_runs(makes: Any, place: Any) -> None:
    committed(makes, rows(a=1))
    kept = place.backup()
    run = committed(makes, rows(b=1))
    kept()
    assert again(run, place) == []
    late = begun(makes, rows(b=1), instead_of=2, noted=True)
    assert wished(run) == []
    (told,) = [each for each in findings(run, place) if "has no rows" in each]
    assert told == f"state {place.state.name}: transaction 2 has no rows: its restatement is requested"
    late.commit_now()
    assert findings(run, place) == ()


def test_a_transaction_without_rows_is_not_restated(make: Any, place: Any, source: Rereadable) -> None:
    def made(run_id: str, **options: Any) -> Any:
        return make(run_id, updates=[replace(update(place.state), allow_empty=True)], source=source, **options)

    made.runs = {}  # type: ignore[attr-defined]
    committed(made, rows(a=1))
    kept = place.backup()
    run = committed(made, [])
    kept()
    assert rolled(run, place) == []
    assert wished(run) == []
    assert findings(run, place) == ()
