"""A table that came back from a backup gets the rows that it lacks again, from the journal."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import deltalake
import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import FenceOutranked, RepairRefused, StateBehind
from airflow_tx.ledger.audit.rebuild import note_change
from airflow_tx.ledger.json_text import replace
from airflow_tx.outputs.journal import Contribution, KeptFiles
from airflow_tx.outputs.staging.area import Output, write_manifest, write_rows
from airflow_tx.state import MemoryMap, OpaqueMap, SqlGuard, SqlState, SqlTable, Sum
from airflow_tx.state.persisted import as_aggregate
from airflow_tx.testing.suites.aggregator_cases import Balance
from airflow_tx.transaction.commit import roll_forward as module
from airflow_tx.transaction.commit.restatement import _rows_of_table, takes_no_rows
from airflow_tx.transaction.commit.write import RowsInTurn, StagedRows
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import update
from tests.unit.commit.backups import (
    ADA,
    WHEN,
    LakeInFolder,
    TableInSqlite,
    entry_file,
    findings,
    repair,
    rolled,
    story,
)
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.restated_run import Makes, begun, committed, entry_of, journal_of, rows
from tests.unit.commit.run import killed_before_the_mark, killed_until_it_ends


@pytest.fixture
def place(tmp_path: Path) -> TableInSqlite:
    return TableInSqlite(tmp_path)


@pytest.fixture
def makes(make: Any, place: TableInSqlite) -> Any:
    return Makes(make, place)


def said(place: TableInSqlite) -> list[tuple[int, str]]:
    return [(each.txid, each.text) for each in place.state.receipts()]


@pytest.mark.parametrize("when", WHEN)
def test_a_roll_forward_of_a_table_restores_its_rows_and_receipts_from_a_backup_of_any_time(
    makes: Any, place: TableInSqlite, when: str
) -> None:
    run, backups = story(makes, place)
    truth, receipts = place.content(), said(place)
    backups[when]()
    with pytest.raises(StateBehind, match="--roll-forward"):
        begun(makes, rows(a=1)).commit_now()
    assert rolled(run, place) == []
    assert (place.content(), said(place)) == (truth, receipts)
    assert findings(run, place) == ()


def test_a_roll_forward_writes_a_completely_lost_table_again(makes: Any, place: TableInSqlite) -> None:
    run, _ = story(makes, place)
    truth = place.content()
    place.lose_all()
    assert rolled(run, place) == []
    assert place.content() == truth
    assert findings(run, place) == ()


@pytest.mark.parametrize("when", WHEN)
def test_a_roll_forward_writes_rows_again_that_were_set_back_without_their_fence(
    makes: Any, place: TableInSqlite, when: str
) -> None:
    run, backups = story(makes, place)
    truth = place.content()
    place.values_of(backups[when])
    assert rolled(run, place) == []
    assert place.content() == truth
    assert findings(run, place) == ()


@pytest.mark.parametrize("apart", [False, True])
def test_a_roll_forward_that_is_killed_at_any_statement_is_exact_when_repeated(
    makes: Any, place: TableInSqlite, apart: bool
) -> None:
    run, backups = story(makes, place)
    truth, receipts = place.content(), said(place)
    (place.values_of if apart else lambda restore: restore())(backups["1"])
    left = died = 0

    def dies(*_: Any) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise KeyboardInterrupt

    sa.event.listen(sa.Engine, "before_cursor_execute", dies)
    try:
        for number in range(1, 500):
            left = number
            try:
                assert rolled(run, place) == []
                break
            except KeyboardInterrupt:
                died += 1
                place.state = place.new()
    finally:
        sa.event.remove(sa.Engine, "before_cursor_execute", dies)
    assert died > 10
    assert (place.content(), said(place)) == (truth, receipts)
    assert findings(run, place) == ()


@pytest.mark.parametrize("when", WHEN)
def test_a_table_roll_forward_that_is_killed_between_two_transactions_is_exact_when_repeated(
    makes: Any, place: TableInSqlite, when: str
) -> None:
    run, backups = story(makes, place)
    truth = place.content()
    backups[when]()
    died, _ = killed_until_it_ends(module, lambda: rolled(run, place))
    assert died
    assert place.content() == truth
    assert findings(run, place) == ()


def test_rows_of_the_open_transaction_are_removed_if_rows_were_set_back_without_the_fence(
    makes: Any, place: TableInSqlite
) -> None:
    run, _ = story(makes, place)
    truth = place.content()
    late = begun(makes, rows(z=1))
    killed_before_the_mark(late.commit())
    place.sql("delete from words where tx_txid = 5")
    assert rolled(run, place) == []
    assert place.content() == truth
    late.commit_now()
    assert place.content() == sorted([*truth, (6, 0, "z", 1)])


def test_rows_that_an_open_restatement_has_removed_do_not_count_as_missing(makes: Any, place: TableInSqlite) -> None:
    run, _ = story(makes, place)
    late = begun(makes, rows(z=1), instead_of=2)
    killed_before_the_mark(late.commit())
    before = place.content()
    assert repair(run, place).preview().effects == ()
    assert rolled(run, place) == []
    assert place.content() == before


def test_rows_that_an_open_restatement_has_removed_are_written_again_with_other_missing_rows(
    makes: Any, place: TableInSqlite
) -> None:
    run, _ = story(makes, place)
    truth = place.content()
    late = begun(makes, rows(z=1), instead_of=2)
    killed_before_the_mark(late.commit())
    place.sql("delete from words where tx_txid = 5")
    assert rolled(run, place) == []
    assert place.content() == truth
    late.commit_now()
    assert findings(run, place) == ()


def test_rows_that_a_user_has_inserted_stay_in_the_table(makes: Any, place: TableInSqlite) -> None:
    place.sql("create table words (word text, count bigint, tx_txid bigint)")
    place.sql("create index own on words (tx_txid)")
    place.sql("insert into words values ('mine', 7, null)")
    place.backup()
    kept = place.backup()
    committed(makes, rows(a=1))
    run = committed(makes, rows(b=2))
    kept()
    assert rolled(run, place) == []
    found = place.sql("select word, count, tx_txid from words order by word")
    assert found == [("a", 1, 1), ("b", 2, 2), ("mine", 7, None)]


def test_a_roll_forward_of_a_table_that_another_roll_forward_has_overtaken_changes_nothing(
    makes: Any, place: TableInSqlite, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, backups = story(makes, place)
    truth = place.content()
    backups["1"]()

    def overtaken(name: str, **context: Any) -> None:
        monkeypatch.setattr(module, "failpoint", lambda name, **context: None)
        assert rolled(run, place) == []

    monkeypatch.setattr(module, "failpoint", overtaken)
    with pytest.raises((FenceOutranked, RepairRefused)):
        rolled(run, place)
    assert place.content() == truth


def test_the_preview_of_a_roll_forward_names_the_missing_rows_and_changes_nothing(
    makes: Any, place: TableInSqlite
) -> None:
    run, backups = story(makes, place)
    backups["2"]()
    before = place.content()
    answer = repair(run, place).preview()
    assert [str(each.what) for each in answer.effects] == [
        f"state {place.state.name}: fence 2, ledger 5; missing: 3 to 5 (2 committed, 1 skipped)",
        "skipped: it writes nothing",
        "2 rows, as its receipt says",
        "2 rows, as its receipt says",
    ]
    assert place.content() == before


# --- what the journal keeps ----------------------------------------------------------------------------------------


def test_a_roll_forward_restores_rows_with_different_columns_exactly(makes: Any, place: TableInSqlite) -> None:
    kept_before = rows(a=1)
    committed(makes, [{**kept_before[0], "more": None}], updates=[update(table_with_more(place))])
    kept = place.backup()
    given: list[dict[str, Any]] = [
        {"word": "a", "count": 2},
        {"word": "b", "more": {"z": 1, "a": [None]}},
        {"more": [], "word": "c"},
    ]
    run = committed(makes, given, updates=[update(table_with_more(place))])
    truth = place.sql("select * from words order by tx_txid, tx_row")
    kept()
    assert rolled(run, place) == []
    assert place.sql("select * from words order by tx_txid, tx_row") == truth


def table_with_more(place: TableInSqlite) -> SqlTable:
    return SqlTable.from_url(f"sqlite:///{place.file}", table="words", types={"more": "json"})


def staged_run(makes: Any, place: TableInSqlite, *parts: list[dict[str, Any]]) -> Any:
    """A run whose task has staged its output in files."""
    run = makes(f"run {len(makes.runs) + 1}", updates=[update(place.state, name="counts")])
    run.begin()
    makes.runs[run.begun.txid] = run.run_id
    processing = run.start()
    list(CurrentBatch(processing).read())
    area = run.spec.staging().of_topology(run.begun.incarnation)
    where = area.try_dir("numbers", run.begun.attempt, processing.task)
    written = [write_rows(where, "counts", part, file=f"{number}.parquet") for number, part in enumerate(parts)]
    output = Output(tuple(file for each in written for file in each.files), written[-1].columns)
    ref = write_manifest(where, {"counts": output})["counts"].to_json()
    processing.ack([ref])
    run.committer.xcoms["count", "counts", -1] = ref
    run.committer.states["count"] = "success"
    return run


MANY = [{"word": f"w{number}", "count": number} for number in range(1500)]


def test_a_roll_forward_writes_staged_files_in_the_order_of_their_links_in_the_journal(
    makes: Any, place: TableInSqlite
) -> None:
    committed(makes, rows(a=1))
    kept = place.backup()
    run = staged_run(makes, place, MANY[:900], MANY[900:])
    run.commit_now()
    truth = place.content()
    (found,) = journal_of(run).read(entry_of(run, 2)).contributions.values()
    assert [each.rows for each in found.files] == [900, 600]
    run.spec.staging().of_topology(run.begun.incarnation).sweep("numbers")
    kept()
    assert rolled(run, place) == []
    assert place.content() == truth
    assert findings(run, place) == ()


def test_rows_of_several_outputs_stay_in_their_order(makes: Any, place: TableInSqlite) -> None:
    run = staged_run(makes, place, MANY)
    case = run.commit()
    (staged,) = (StagedRows(case.area, run.committer.xcoms["count", "counts", -1], place.state, case.begun.attempt),)
    journal = journal_of(run)
    outputs: list[Any] = [rows(a=1), staged, rows(b=2), [{"word": "c", "count": 3, "more": True}]]
    kept = _rows_of_table(case, journal, RowsInTurn(outputs), "2026-01-01")
    kept = replace(kept, place=KeptFiles(journal._files, journal._folder, "an entry"))
    assert list(kept.rows()) == [row for each in outputs for row in each]
    assert [each.name.rpartition(".")[2] for each in kept.files] == ["json", "parquet", "json"]


def test_a_changed_file_of_the_journal_is_reported_before_anything_is_written(makes: Any, place: TableInSqlite) -> None:
    committed(makes, rows(a=1))
    kept = place.backup()
    committed(makes, rows(b=1))
    run = staged_run(makes, place, MANY)
    run.commit_now()
    kept()
    before = place.content()
    (found,) = journal_of(run).read(entry_of(run, 3)).contributions.values()
    file = entry_file(run, 3).parent / found.files[0].name.partition("/")[2]
    content = file.read_bytes()
    file.unlink()
    file.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    (told,) = rolled(run, place)
    assert "transaction 3" in told
    assert place.content() == before


def test_rows_that_differ_from_their_receipt_are_refused_before_anything_is_written(
    makes: Any, place: TableInSqlite, monkeypatch: pytest.MonkeyPatch
) -> None:
    committed(makes, rows(a=1))
    kept = place.backup()
    run = committed(makes, rows(b=1))
    kept()
    before = place.content()
    monkeypatch.setattr(Contribution, "rows", lambda self: iter(rows(b=2)))
    monkeypatch.setattr(Contribution, "parts", lambda self: iter([rows(b=2)]))
    (told,) = rolled(run, place)
    assert "transaction 2: its journal entry gives" in told
    assert place.content() == before


def test_the_error_for_a_table_whose_journal_has_no_rows_names_the_repair_that_needs_no_rows(
    makes: Any, tmp_path: Path, place: TableInSqlite
) -> None:
    place = TableInSqlite(tmp_path, journal_rows=False)
    how: dict[str, Any] = {"updates": [update(place.state)]}
    committed(makes, rows(a=1), **how)
    kept = place.backup()
    run = committed(makes, rows(b=1), **how)
    (found,) = journal_of(run).read(entry_of(run, 2)).contributions.values()
    assert (found.count, found.inline, found.files) == (0, None, ())
    kept()
    with pytest.raises(StateBehind) as refused:
        begun(makes, rows(a=1), **how).commit_now()
    assert f"--roll-forward {place.state.name} --restate" in str(refused.value)
    (told,) = rolled(run, place)
    assert "SqlTable(journal_rows=False) keeps no rows in the journal" in told
    assert f"--state-lost {place.state.name}" in told


def test_a_change_by_hand_that_is_missing_in_the_backup_stops_the_roll_forward(
    makes: Any, place: TableInSqlite
) -> None:
    committed(makes, rows(a=1, b=2))
    kept = place.backup()
    run = committed(makes, rows(c=1))
    place.sql("delete from words where word = 'a'")
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(note_change, place.state.name, {}, rows={1: 1}, keys=[], receipt=ledger.topology().receipt, audit=ADA)
    place.state.accept_values(1)
    with_change = place.backup()
    committed(makes, rows(d=1))
    truth = place.content()
    kept()
    rolled(run, place)
    assert any("changed its values by hand" in each for each in rolled(run, place))
    with_change()
    assert rolled(run, place) == []
    assert place.content() == truth


@pytest.fixture
def lake(tmp_path: Path) -> LakeInFolder:
    return LakeInFolder(tmp_path)


@pytest.fixture
def to_lake(make: Any, lake: LakeInFolder) -> Any:
    return Makes(make, lake)


@pytest.mark.parametrize("when", WHEN)
def test_a_lake_that_was_set_back_to_any_time_gets_its_rows_again_if_its_files_still_exist(
    to_lake: Any, lake: LakeInFolder, when: str
) -> None:
    run, backups = story(to_lake, lake)
    truth = lake.content()
    backups[when]()
    with pytest.raises(StateBehind, match="--roll-forward"):
        begun(to_lake, rows(a=1)).commit_now()
    assert rolled(run, lake) == []
    assert lake.content() == truth
    assert findings(run, lake) == ()


def test_a_lake_whose_rows_were_set_back_gets_its_later_rows_again(to_lake: Any, lake: LakeInFolder) -> None:
    committed(to_lake, rows(a=1))
    committed(to_lake, rows(e=1))
    version = deltalake.DeltaTable(lake.state.uri).version()
    committed(to_lake, rows(b=2, c=3))
    committed(to_lake, rows(a=5), instead_of=1)
    run = committed(to_lake, rows(d=4))
    truth = lake.content()
    deltalake.DeltaTable(lake.state.uri).restore(version)
    assert lake.content() != truth
    assert rolled(run, lake) == []
    assert lake.content() == truth
    assert findings(run, lake) == ()


def test_a_lake_whose_rows_were_restored_next_to_rows_of_the_open_transaction_is_refused(
    to_lake: Any, lake: LakeInFolder
) -> None:
    committed(to_lake, rows(a=1))
    version = deltalake.DeltaTable(lake.state.uri).version()
    committed(to_lake, rows(b=2))
    late = begun(to_lake, rows(z=1))
    deltalake.DeltaTable(lake.state.uri).restore(version)
    killed_before_the_mark(late.commit())
    before = lake.content()
    (told,) = rolled(late, lake)
    assert "has rows of the open transaction 3" in told
    assert lake.content() == before


def test_a_lake_whose_files_were_deleted_is_refused_and_nothing_is_changed(to_lake: Any, lake: LakeInFolder) -> None:
    committed(to_lake, rows(a=1))
    kept = lake.backup()
    run = committed(to_lake, rows(b=2))
    kept()
    for each in lake.log.parent.glob("_airflow_tx/2.1.*/*.parquet"):
        each.unlink()
    before = lake.content()
    (told,) = rolled(run, lake)
    assert "is not there" in told
    assert f"--roll-forward {lake.state.name} --restate. Or: RESTORE the table to its newest version" in told
    assert lake.content() == before


@pytest.mark.parametrize("kind", ["guard", "reducer", "no fence"])
def test_a_roll_forward_of_an_up_to_date_state_of_any_kind_finds_no_missing_rows(
    makes: Any, tmp_path: Path, kind: str
) -> None:
    url = f"sqlite:///{tmp_path / 'other.db'}"
    kinds: dict[str, Any] = {
        "guard": lambda: SqlGuard.from_url(url, name="own", statements=[]),
        "reducer": lambda: SqlState.from_url(url, table="t", keys=["word"], values={"count": Balance()}),
        "no fence": lambda: as_aggregate(OpaqueMap(MemoryMap()), ["word"], {"count": Sum()}, None),
    }
    state = kinds[kind]()
    given = {"word": "a", "step" if kind == "reducer" else "count": 1}
    run = committed(makes, [given], updates=[update(state)])
    command = repair(run, SimpleNamespace(state=state))
    assert "No state of topology numbers lacks a transaction" in command.preview().sentence
    assert (command.execute(ADA), command.refused) == (None, [])


def test_the_journal_has_the_rows_of_a_table_in_a_commit_phase_unless_the_phase_made_them(
    make: Any, place: TableInSqlite, lake: LakeInFolder, tmp_path: Path
) -> None:
    made = SqlTable.from_url(f"sqlite:///{tmp_path / 'made.db'}", table="made")
    phase = PhaseRun(make, update(place.state), update(made, "c"), rows(a=1, b=2), between=["c"])
    phase.acquire()
    (entry,) = map(journal_of(phase.run).read, journal_of(phase.run).names())
    kept = entry.contributions
    assert list(kept[place.state.name].rows()) == rows(a=1, b=2)
    assert "task c, which runs in the commit phase" in kept[made.name].refusal
    assert takes_no_rows(update(lake.state), phase.run.spec.phase.inside) == (
        "its committer writes its own files in the commit phase"
    )
