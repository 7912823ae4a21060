"""A restatement in a commit: its difference is formed before the turn, and written once its old keys are there."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import closing
from datetime import timedelta
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import EntryDiffers, NotTakenBack, RestateRefused, RowsDiffer, StateUnavailable
from airflow_tx.ledger.audit.rebuild import rename_state, state_lost
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.ledger.steps.replay import note_changed
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.outputs.staging.area import JOURNAL
from airflow_tx.state import Avg, Count, First, Last, Max, MemoryDatabase, MemoryState, Min, SqlState, Sum
from airflow_tx.state.maps import OpaqueValue
from airflow_tx.state.persisted import PersistedState
from airflow_tx.testing.suites.aggregator_cases import Balance
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.contributions import Difference
from airflow_tx.transaction.commit.restatement import check_entry, refuses_restatement
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.commit.write import output_digests
from tests.stage import begin_run, update
from tests.unit.bench import CountingStore, Numbers
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.restated_run import Makes, Rows, begun, committed, entry_of, journal_of, processed, rows, wanted
from tests.unit.commit.run import AWAY, Noted, counts, dies, record


class Mendable(Numbers):
    """Numbers that may be changed where they are."""

    def __init__(self, factor: int = 1) -> None:
        self.factor = factor

    def emit_batch(self, attempt: Any, metadata: Any, spark: Any = None) -> Iterator[dict[str, int]]:
        return ({"number": self.factor * number} for number in range(*metadata))


@pytest.fixture
def makes(make: Any) -> Any:
    """`make`, with the run of each transaction."""
    return Makes(make)


# --- what a state has afterwards


def test_a_restatement_replaces_the_old_output_with_the_new_output(makes: Any, state: MemoryState) -> None:
    committed(makes, rows(a=1, b=2))
    committed(makes, rows(a=10))
    committed(makes, rows(a=5, c=7), instead_of=1)
    assert counts(state) == {"a": 15, "b": 0, "c": 7}


def test_a_second_restatement_takes_back_the_complete_first_restatement(makes: Any, state: MemoryState) -> None:
    committed(makes, rows(a=7))
    for txid, value in enumerate((10, 12, 13), 1):
        committed(makes, rows(a=value), instead_of=txid)
        assert counts(state) == {"a": value}


def test_the_journal_entry_of_a_restatement_contains_its_complete_output(makes: Any) -> None:
    committed(makes, rows(a=7, b=1))
    run = committed(makes, rows(a=10), instead_of=1)
    entry = journal_of(run).read(entry_of(run, 2))
    assert list(entry.contributions["words"].rows()) == rows(a=10)
    assert entry.replaces == {"txid": 1, "entry": entry_of(run, 1)}


def test_each_of_several_updates_in_a_restatement_replaces_its_own_old_output(makes: Any) -> None:
    states = [MemoryState(name, keys=["word"], values={"count": Sum()}) for name in ("one", "two")]
    how: dict[str, Any] = {"updates": [update(each) for each in states]}
    committed(makes, rows(a=1), **how)
    committed(makes, rows(a=4, b=1), instead_of=1, **how)
    assert [counts(each) for each in states] == [{"a": 4, "b": 1}] * 2


def test_a_restatement_writes_its_complete_output_into_a_new_state(makes: Any, state: MemoryState) -> None:
    committed(makes, rows(a=1))
    new = MemoryState("new", keys=["word"], values={"count": Sum()})
    committed(makes, rows(a=4), instead_of=1, updates=[update(state), update(new)])
    assert (counts(state), counts(new)) == ({"a": 4}, {"a": 4})


def test_a_restatement_finds_a_renamed_state_by_the_record_of_the_rename(makes: Any, state: MemoryState) -> None:
    run = committed(makes, rows(a=1))
    ledger = run.spec.ledger(run.spec.memory)
    renamed = MemoryState("terms", keys=["word"], values={"count": Count()}, database=state.database)
    for name in ("phrases", "terms"):
        old = next(iter(ledger.topology().states))
        ledger.run(rename_state, old, name, audit=Audit("ada", "a better name"))
    committed(makes, rows(a=4), instead_of=1, updates=[update(renamed)])
    assert counts(renamed) == {"a": 4}


def test_a_restatement_with_changed_rows_is_refused_unless_a_person_accepts_the_current_rows(
    makes: Any, state: MemoryState
) -> None:
    committed(makes, rows(a=1), source=Mendable())
    committed(makes, rows(a=2), instead_of=1, source=Mendable())
    run = begun(makes, rows(a=4), instead_of=2, source=Mendable(2))
    with pytest.raises(RowsDiffer, match="an earlier one 10 .*airflow tx replay numbers 3 --changed-rows --why TEXT"):
        run.commit_now()
    assert counts(state) == {"a": 2}
    run.spec.ledger(run.spec.memory).run(note_changed, 3, {}, audit=Audit("ada", "they were corrected"))
    run.begun = begin_run(run.spec, run.run_id)
    processed(run, rows(a=4)).commit_now()
    assert counts(state) == {"a": 4}


def test_a_restatement_with_changed_rows_may_read_other_rows(makes: Any, state: MemoryState) -> None:
    committed(makes, rows(a=1), source=Mendable())
    committed(makes, rows(a=4), instead_of=1, source=Mendable(2), changed_rows=True)
    assert counts(state) == {"a": 4}


def test_a_restatement_may_read_other_rows_if_its_source_always_returns_the_current_rows(
    makes: Any, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Mendable, "keeps_rows", False)
    committed(makes, rows(a=1), source=Mendable())
    committed(makes, rows(a=4), instead_of=1, source=Mendable(2))
    assert counts(state) == {"a": 4}


@pytest.mark.parametrize("when", ["before it read its output", "before its turn"])
def test_a_restatement_is_refused_if_the_loss_of_its_state_was_accepted_after_it_began(
    makes: Any, state: MemoryState, when: str
) -> None:
    run = committed(makes, rows(a=1))
    commit = begun(makes, rows(a=4), instead_of=1).commit()
    commit.complete()
    if when == "before its turn":
        commit.prepare()
    run.spec.ledger(run.spec.memory).run(state_lost, state.name, Audit("ada", "a backup"))
    with pytest.raises(
        NotTakenBack, match="may lack transaction 1: .* Transaction 1 still counts. .*airflow tx skip \\S+ 2 "
    ):
        commit.try_to_commit()
    assert counts(state) == {"a": 1}


@pytest.mark.parametrize("when", ["before it read its output", "before its turn"])
def test_a_restatement_finds_a_renamed_state_although_a_new_state_has_its_old_name(
    makes: Any, state: MemoryState, when: str
) -> None:
    run = committed(makes, rows(a=1))
    ledger = run.spec.ledger(run.spec.memory)
    moved = MemoryState("moved", keys=["word"], values={"count": Count()}, database=state.database)
    ledger.run(rename_state, state.name, "moved", audit=Audit("ada", "a better name"))
    new = MemoryState(state.name, keys=["word"], values={"count": Count()})
    how: dict[str, Any] = {"updates": [update(moved), update(new)]}
    between = begun(makes, rows(a=2), **how)
    commit = begun(makes, rows(a=4), instead_of=1, **how).commit()
    commit.complete()
    if when == "before its turn":
        commit.prepare()
    between.commit_now()
    commit.try_to_commit()
    assert (counts(moved), counts(new)) == ({"a": 6}, {"a": 6})


def test_a_restatement_to_no_rows_and_a_second_restatement_back_to_rows_are_exact(
    makes: Any, state: MemoryState
) -> None:
    committed(makes, rows(a=1))
    committed(makes, [], instead_of=1)
    assert counts(state) == {"a": 0}
    committed(makes, rows(a=2), instead_of=2)
    assert counts(state) == {"a": 2}


# --- a column that was dropped and added again


def with_columns(database: MemoryDatabase, was: Sequence[str] = (), **values: Any) -> dict[str, Any]:
    """Give the state these value columns, as a person does who alters its table: a column that is added is NULL."""

    def altered(cells: Any) -> Any:
        found = dict(zip(was, cells, strict=True)) if cells is not None else None
        return None if found is None else tuple(found.get(name) for name in values)

    for key, each in database.rows.items():
        assert isinstance(each, OpaqueValue)
        database.rows[key] = replace(each, value=altered(each.value), prev=altered(each.prev))
    made = MemoryState("words", keys=["word"], values=values, database=database)
    return {"updates": [update(made)]}


def filled(**values: int) -> Rows:
    return [{"word": "a", **values}]


def values_now(how: dict[str, Any]) -> dict[str, Any]:
    (row,) = how["updates"][0].state.read()
    return {name: value for name, value in row.items() if name != "word"}


def test_a_column_that_was_dropped_and_added_again_is_restated_with_its_complete_new_value(makes: Any) -> None:
    database = MemoryDatabase()
    how = with_columns(database, count=Sum(), n=Sum())
    committed(makes, filled(count=1, n=100), **how)
    how = with_columns(database, ("count", "n"), count=Sum())
    committed(makes, filled(count=1), **how)
    how = with_columns(database, ("count",), count=Sum(), n=Sum())
    committed(makes, filled(count=1, n=3), **how)
    committed(makes, filled(count=5, n=70), instead_of=1, **how)
    assert values_now(how) == {"count": 7, "n": 73}


def test_a_table_column_that_was_dropped_and_added_again_gets_its_complete_new_value(
    makes: Any, tmp_path: Path
) -> None:
    def table(**values: Any) -> dict[str, Any]:
        url = f"sqlite:///{tmp_path / 'state.db'}"
        return {"updates": [update(SqlState.from_url(url, table="words", keys=["word"], values=values))]}

    def alter(*changes: str) -> None:
        with closing(sqlite3.connect(tmp_path / "state.db")) as connection:
            for each in changes:
                connection.execute(f"ALTER TABLE words {each}")

    add, drop = ([f"{verb} COLUMN {name}" for name in ("n", "tx_prev_n")] for verb in ("ADD", "DROP"))
    added = [f"{each} bigint" for each in add]
    committed(makes, filled(count=1), **table(count=Sum()))
    alter(*added)
    committed(makes, filled(count=1, n=100), **table(count=Sum(), n=Sum()))
    alter(*drop)
    committed(makes, filled(count=1), **table(count=Sum()))
    alter(*added)
    how = table(count=Sum(), n=Sum())
    committed(makes, filled(count=1, n=3), **how)
    committed(makes, filled(count=5, n=70), instead_of=2, **how)
    assert values_now(how) == {"count": 8, "n": 73}


def test_a_restatement_may_be_the_first_write_to_a_column_that_was_added_again(makes: Any) -> None:
    database = MemoryDatabase()
    how = with_columns(database, count=Sum(), n=Sum())
    committed(makes, filled(count=1, n=100), **how)
    how = with_columns(database, ("count", "n"), count=Sum())
    committed(makes, filled(count=1), **how)
    how = with_columns(database, ("count",), count=Sum(), n=Max())
    committed(makes, filled(count=5, n=70), instead_of=1, **how)
    assert values_now(how) == {"count": 6, "n": 70}
    committed(makes, filled(count=5, n=80), instead_of=3, **how)
    assert values_now(how) == {"count": 6, "n": 80}


def test_a_column_that_was_dropped_while_a_restatement_waits_gets_its_complete_new_value(makes: Any) -> None:
    database = MemoryDatabase()
    how = with_columns(database, count=Sum(), n=Sum())
    committed(makes, filled(count=1, n=100), **how)
    dropped = begun(makes, filled(count=1), **with_columns(database, ("count", "n"), count=Sum(), n=Sum()))
    commit = begun(makes, filled(count=5, n=70), instead_of=1, **how).commit()
    commit.complete()
    commit.prepare()
    dropped.updates = with_columns(database, ("count", "n"), count=Sum())["updates"]
    dropped.commit_now()
    with_columns(database, ("count",), count=Sum(), n=Sum())
    assert not commit.try_to_commit()
    commit.complete()
    assert commit.try_to_commit()
    assert values_now(how) == {"count": 6, "n": 70}


def test_the_error_for_a_column_that_was_added_again_names_its_possible_new_name(makes: Any) -> None:
    database = MemoryDatabase()
    how = with_columns(database, count=Sum(), n=Sum())
    committed(makes, filled(count=1, n=100), **how)
    committed(makes, filled(count=1, total=1), **with_columns(database, ("count", "total"), count=Sum(), total=Sum()))
    how = with_columns(database, ("count", "total"), count=Sum(), total=Sum(), n=Sum())
    committed(makes, filled(count=1, total=1, n=3), **how)
    with pytest.raises(NotTakenBack, match="column n was later dropped and added again, and may have"):
        committed(makes, filled(count=5, total=70, n=70), instead_of=1, **how)


def test_the_columns_of_a_renamed_state_are_recorded_under_the_new_name_of_the_state(
    makes: Any, state: MemoryState
) -> None:
    run = committed(makes, rows(a=1))
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(rename_state, state.name, "terms", audit=Audit("ada", "a better name"))
    assert ledger.topology().columns == {"terms": {"count": 0}}


# --- killed and replayed


def sums(kind: str) -> MemoryState:
    return MemoryState("words", keys=["word"], values={"count": Sum("double")}, kind=kind)


@pytest.mark.parametrize("kind", ["opaque", "transactional"])
def test_a_restatement_is_exact_if_it_is_killed_and_replayed_with_floats_in_another_order(
    makes: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = sums(kind)
    how: dict[str, Any] = {"updates": [update(state)]}
    committed(makes, rows(a=0.1, b=2.0), **how)
    run = begun(makes, rows(a=0.3, b=2.0), instead_of=1, **how)
    dies(run, monkeypatch, Difference, "check_taken")
    run.begin(retry=True)
    run.end(run.start(), rows(b=2.0000000000000004, a=0.1 + 0.2))
    run.commit_now()
    assert counts(state) == pytest.approx({"a": 0.3, "b": 2.0})


def test_replays_of_a_restatement_compare_the_output_and_not_the_difference(makes: Any) -> None:
    how: dict[str, Any] = {"updates": [update(sums("transactional"))]}
    committed(makes, rows(a=0.1, b=2.0), **how)
    run = begun(makes, rows(a=0.3, b=2.0), instead_of=1, **how)
    commit = run.commit()
    commit.complete()
    assert commit.prepare().outputs == output_digests(run.updates, [rows(a=0.3, b=2.0)])
    assert list(commit.replacing.differences["words"].rows) != list(commit.rows_read[0])


# --- refused


def test_a_restatement_that_cannot_be_taken_back_is_refused_before_it_has_the_turn(
    makes: Any, store: CountingStore
) -> None:
    best = MemoryState("best", keys=["word"], values={"count": Max()})
    how: dict[str, Any] = {"updates": [update(best)]}
    committed(makes, rows(a=9), **how)
    committed(makes, rows(a=1), **how)
    run = begun(makes, rows(a=8), instead_of=1, **how)
    with pytest.raises(NotTakenBack, match="the max of column count was 9 and is now 8"):
        run.commit_now()
    open_one = record(store, 3)
    assert open_one is not None
    assert not open_one.granted
    assert counts(best) == {"a": 9}


def _away(*arguments: Any, **options: Any) -> Any:
    raise AWAY


BEST = partial(MemoryState, "best", keys=["word"])


@pytest.mark.parametrize("chosen", [Max(), Min(), First("bigint"), Last("bigint")])
def test_a_restatement_replaces_a_maximum_or_minimum_that_no_other_transaction_has_changed(
    makes: Any, chosen: Any
) -> None:
    best = BEST(values={"count": chosen})
    how: dict[str, Any] = {"updates": [update(best)]}
    committed(makes, rows(a=9, b=9), **how)
    for txid, value in enumerate((8, 10, 3), 1):
        committed(makes, rows(a=value), instead_of=txid, **how)
        assert counts(best) == {"a": value, "b": None}


def test_a_restatement_with_the_same_output_does_not_prevent_a_later_replacement(makes: Any) -> None:
    best = BEST(values={"count": Max()})
    how: dict[str, Any] = {"updates": [update(best)]}
    committed(makes, rows(a=9), **how)
    committed(makes, rows(a=9), instead_of=1, **how)
    committed(makes, rows(a=3), instead_of=2, **how)
    assert counts(best) == {"a": 3}


def test_a_restatement_that_was_killed_after_its_write_replaces_the_value_exactly_in_a_replay(
    makes: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = BEST(values={"count": Max()})
    how: dict[str, Any] = {"updates": [update(best)]}
    committed(makes, rows(a=9), **how)
    run = begun(makes, rows(a=8), instead_of=1, **how)
    commit = run.commit()
    commit.complete()
    commit.prepare()
    with monkeypatch.context() as patch:
        patch.setattr(Commit, "mark_step", _away)
        with pytest.raises(StateUnavailable):
            commit.try_to_commit()
    assert counts(best) == {"a": 8}
    run.begin(retry=True)
    run.end(run.start(), rows(a=5))
    run.commit_now()
    assert counts(best) == {"a": 5}


def test_a_transaction_that_adds_to_the_value_while_a_restatement_waits_is_noticed_at_its_turn(makes: Any) -> None:
    best = BEST(values={"count": Max()})
    how: dict[str, Any] = {"updates": [update(best)]}
    committed(makes, rows(a=9), **how)
    between = begun(makes, rows(a=7), **how)
    commit = begun(makes, rows(a=3), instead_of=1, **how).commit()
    commit.complete()
    commit.prepare()
    between.commit_now()
    assert not commit.try_to_commit()
    commit.complete()
    with pytest.raises(NotTakenBack, match="the max of column count was 9 and is now 3"):
        commit.try_to_commit()
    assert counts(best) == {"a": 9}


def test_a_restatement_does_not_replace_a_value_that_a_person_has_changed(makes: Any) -> None:
    best = BEST(values={"count": Max()})
    how: dict[str, Any] = {"updates": [update(best)]}
    committed(makes, rows(a=9), **how)
    best.database.rows["a",] = replace(best.database.rows["a",], value=(11,))
    with pytest.raises(NotTakenBack, match="the max of column count was 9 and is now 3"):
        committed(makes, rows(a=3), instead_of=1, **how)


def test_the_receipt_of_replaced_values_contains_the_difference_of_the_sums(makes: Any) -> None:
    best = BEST(values={"count": Sum(), "most": Max()})
    how: dict[str, Any] = {"updates": [update(best)]}
    outputs = [[{"word": word, "count": n, "most": n} for word in "ab"] for n in (9, 4)]
    committed(makes, outputs[0], **how)
    run = committed(makes, outputs[1], instead_of=1, **how)
    history = run.spec.ledger(run.spec.memory).outcome(2)
    assert history is not None
    assert history.receipt is not None
    assert history.receipt.written["best"].sums == {"count": -10}
    assert [each.text for each in best.receipts()][1] == Receipt.from_json(history.receipt).text


def test_a_restatement_of_a_deleted_key_is_refused_before_anything_is_written(makes: Any) -> None:
    states = [MemoryState(name, keys=["word"], values={"count": Sum()}) for name in ("one", "two")]
    how: dict[str, Any] = {"updates": [update(each) for each in states]}
    committed(makes, rows(a=1, b=2), **how)
    del states[1].database.rows["b",]
    run = begun(makes, rows(a=5, b=2), instead_of=1, **how)
    with pytest.raises(NotTakenBack, match=r"'two' refused: key \{'word': 'b'\} is missing"):
        run.commit_now()
    assert [counts(each) for each in states] == [{"a": 1, "b": 2}, {"a": 1}]
    fences = [each.fence() for each in states]
    assert [fence.token.txid for fence in fences if fence is not None] == [2, 2]


def test_a_restatement_from_a_changed_journal_entry_is_refused(makes: Any) -> None:
    committed(makes, rows(a=1))
    run = begun(makes, rows(a=2), instead_of=1)
    files = run.spec.staging().files
    name = f"{run.begun.incarnation}/{JOURNAL}/{run.begun.replaces.entry}"
    files.write(name, files.read(name).replace(b"1]", b"9]"))
    with pytest.raises(EntryDiffers):
        run.commit_now()


def test_a_restatement_logs_how_large_the_error_in_sums_of_doubles_may_be(makes: Any) -> None:
    how: dict[str, Any] = {"updates": [update(sums("opaque"))]}
    committed(makes, rows(a=1e18), **how)
    run = committed(makes, rows(a=3.0), instead_of=1, **how)
    text = "\n".join(run.log.lines)
    assert "sums of column count may be wrong by 111 afterwards" in text
    assert "the contribution of transaction 1 is replaced" in text


# --- whether it can at all


def keyed(**values: Any) -> MemoryState:
    return MemoryState("words", keys=["word"], values=values or {"count": Count()})


def refused(makes: Any, updates: Sequence[Any], inside: tuple[str, ...] = ()) -> str | None:
    run = committed(makes, rows(a=1))
    entry = journal_of(run).read(entry_of(run, 1))
    return refuses_restatement(updates, entry, inside=inside, renamed={})


def test_the_same_states_with_added_columns_can_be_restated(makes: Any) -> None:
    state = keyed(count=Count(), mean=Avg(), top=Max())
    assert refused(makes, [update(state), update(MemoryState("new", keys=["k"], values={"n": Sum()}))]) is None


@pytest.mark.parametrize(
    ("updates", "inside", "why"),
    [
        ([update(keyed(total=Count()))], (), "column count is no longer in the state"),
        ([update(keyed(count=Sum()))], (), "column count was a count(bigint) and is now a sum(bigint)"),
        (
            [update(MemoryState("words", keys=["term"], values={"count": Count()}))],
            (),
            "its keys were word and are term",
        ),
        ([update(MemoryState("other", keys=["word"], values={"count": Count()}))], (), "no longer writes"),
        ([update(keyed()), update(keyed(count=Balance()))], (), "column count has a reducer"),
        ([update(keyed()), update(PersistedState(Noted(), Noted(), "opaque"))], (), "stores rows unchanged"),
        ([update(keyed(), "b")], ("b",), "its rows come from task b, which runs in the commit phase"),
    ],
    ids=["column", "aggregator", "key", "state", "reducer", "persisted", "new values"],
)
def test_a_restatement_that_is_not_possible_is_refused_before_it_gets_a_txid(
    makes: Any, updates: list[Update], inside: tuple[str, ...], why: str
) -> None:
    assert why in str(refused(makes, updates, inside))


def test_the_error_of_a_refused_restatement_names_the_command_that_withdraws_the_request(
    makes: Any, store: CountingStore
) -> None:
    run = committed(makes, rows(a=1))
    task: Any = SimpleNamespace(updates=[update(keyed(total=Count()))])
    check = partial(check_entry, run.spec, SimpleNamespace(tasks=[object(), task]))
    with pytest.raises(RestateRefused, match="column count is no longer in the state.*restate numbers 1 --withdraw"):
        begun(makes, rows(a=2), instead_of=1, check=check)
    assert record(store, 2) is None


# --- in a commit phase


def test_every_committer_of_a_phase_writes_the_difference_that_the_first_task_calculated(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = (MemoryState(name, keys=["word"], values={"count": Sum()}) for name in ("one", "two"))
    phase = PhaseRun(make, update(one), update(two), rows(a=1, b=2))
    phase.acquire()
    phase.commit("b", "d")
    phase.mark()
    wanted(phase.run, 1)
    # The DAG keeps no journal any more, which the restatement does not need.
    again = PhaseRun(partial(make, journal=timedelta(0)), update(one), update(two), rows(a=5, c=1))
    again.acquire()
    assert set(again.shared["differences"]) == {"one", "two"}
    again.commit("b")
    # A task of the phase dies: the first one takes the turn again, and writes for the committer that has succeeded.
    again.acquire()
    assert again.shared["healed"] == ["b"]
    again.commit("d")
    again.mark()
    assert [counts(each) for each in (one, two)] == [{"a": 5, "b": 0, "c": 1}] * 2


def test_in_a_commit_phase_a_deleted_key_is_refused_before_anything_is_written(make: Any) -> None:
    one, two = (MemoryState(name, keys=["word"], values={"count": Sum()}) for name in ("one", "two"))
    phase = PhaseRun(make, update(one), update(two), rows(a=1, b=2))
    phase.acquire()
    phase.commit("b", "d")
    phase.mark()
    del two.database.rows["b",]
    wanted(phase.run, 1)
    again = PhaseRun(make, update(one), update(two), rows(a=5))
    with pytest.raises(NotTakenBack, match="is missing"):
        again.acquire()
    assert counts(one) == {"a": 1, "b": 2}
