"""The journal entry of a commit: written before the turn, named by the grant, and counted only if that commits."""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base import failpoints
from airflow_tx.base.errors import StagingUnavailable
from airflow_tx.base.failpoints import FailpointError
from airflow_tx.ledger.answers import Granted
from airflow_tx.ledger.api import Create, Delete, Put, SystemClock
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Replaced
from airflow_tx.ledger.records import Binding, Wish, encode
from airflow_tx.outputs.journal import Entry, JournalArea
from airflow_tx.state import Avg, Count, DeltaTable, MemoryState, Sum
from airflow_tx.state.persisted import PersistedState
from airflow_tx.testing.failpoints import Failpoints
from airflow_tx.testing.suites.aggregator_cases import Balance
from airflow_tx.transaction.commit.handoff import GRACE, sweep_journal
from airflow_tx.transaction.commit.restatement import no_contribution, write_entry
from tests.stage import update
from tests.unit.bench import CountingStore, OpaqueNumbers
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.run import Noted, Run, counts, record

ROWS = [{"word": "a", "count": 1}, {"word": "b", "count": 2}, {"word": "a", "count": 3}]


def journal_of(run: Run) -> JournalArea:
    return JournalArea(run.spec.staging(), run.spec.ledger(run.spec.memory).incarnation())


def entries(run: Run) -> list[Entry]:
    journal = journal_of(run)
    return [journal.read(name) for name in journal.names()]


def begun(make: Any, run_id: str = "r1", rows: list[dict[str, Any]] | None = None, **options: Any) -> Run:
    run: Run = make(run_id, **options)
    run.begin()
    run.end(run.start(), ROWS if rows is None else rows)
    return run


def named(run: Run, txid: int = 1) -> str:
    """The entry that the receipt of a committed transaction names."""
    history = run.spec.ledger(run.spec.memory).outcome(txid)
    assert history is not None
    assert history.receipt is not None
    return str(history.receipt.journal)


@pytest.fixture
def points(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Failpoints:
    found = Failpoints(tmp_path / "points")
    monkeypatch.setenv(failpoints.VARIABLE, found.environment[failpoints.VARIABLE])
    return found


# --- what an entry holds -------------------------------------------------------------------------------------------


def test_a_commit_writes_a_journal_entry_with_the_batch_and_the_contribution(make: Any) -> None:
    run = begun(make)
    run.commit_now()
    entry = journal_of(run).read(named(run))
    assert (entry.topology, entry.txid, entry.attempt, entry.run_id, entry.key) == ("numbers", 1, 1, "r1", "r1")
    assert (entry.metadata, entry.source) == ([0, 10], ("tests.unit.bench.Numbers", {}))
    assert entry.birth == run.begun.attempt.birth
    assert entry.replaces is None
    found = entry.contributions["words"]
    assert list(found.rows()) == [{"word": "a", "count": 4}, {"word": "b", "count": 2}]
    assert (found.keys, found.count) == ({"word": "text"}, 2)


def test_the_grant_and_the_fence_and_the_receipt_name_the_journal_entry(make: Any, state: MemoryState) -> None:
    run = begun(make)
    run.commit_now()
    (entry,) = entries(run)
    fence = state.fence()
    assert fence is not None
    assert json.loads(fence.batch)["journal"] == named(run) == entry.name


def test_the_binding_names_the_journal_entry_after_the_commit(make: Any, store: CountingStore) -> None:
    run = begun(make)
    path = run.spec.paths.run("r1")
    commit = run.commit()
    commit.complete()
    granted = commit.ledger.run(commit.acquire_step())
    commit.take(granted)
    assert Reader(store).peek(Binding, path).entry == ""
    commit.use()
    assert Reader(store).peek(Binding, path) == Binding(1, named(run))


def test_the_journal_entry_stores_a_composite_column_as_its_parts(make: Any) -> None:
    means = MemoryState("means", keys=["word"], values={"delay": Avg()})
    rows = [{"word": "a", "delay": 1.0}, {"word": "a", "delay": 2.0}]
    run = begun(make, rows=rows, updates=[update(means)])
    run.commit_now()
    found = entries(run)[0].contributions["means"]
    assert list(found.rows()) == [{"word": "a", "delay_sum": 3.0, "delay_count": 2}]
    assert set(found.values) == {"delay_sum", "delay_count"}


def test_the_journal_entry_of_a_restatement_has_its_whole_output_and_names_the_replaced_entry(make: Any) -> None:
    run = begun(make)
    run.commit_now()
    again = begun(make, "r2")
    commit = again.commit()
    commit.complete()
    assert commit.processed is not None
    restating = replace(commit, begun=replace(again.begun, replaces=Replaced(1, named(run))))
    name = write_entry(restating, commit.processed, [ROWS[:2]])
    found = journal_of(run).read(name)
    assert found.replaces == {"txid": 1, "entry": named(run)}
    assert list(found.contributions["words"].rows()) == ROWS[:2]


def test_a_batch_without_rows_writes_a_journal_entry_without_rows(make: Any) -> None:
    run = begun(make, rows=[])
    run.commit_now()
    assert [list(each.rows()) for each in entries(run)[0].contributions.values()] == [[]]


@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        (PersistedState(Noted(), Noted(), "opaque"), "PersistedState stores rows unchanged"),
        (MemoryState("m", keys=["word"], values={"n": Balance()}), "column n has a reducer"),
        (DeltaTable("/tmp/t"), "DeltaTable stores rows unchanged"),
        (MemoryState("m", keys=["word"], values={"n": Sum()}), ""),
    ],
    ids=["persisted", "reducer", "appended", "keyed"],
)
def test_the_journal_entry_names_the_reason_if_a_contribution_is_missing(state: Any, refusal: str) -> None:
    assert no_contribution(update(state)) == refusal


def test_the_journal_entry_notes_that_the_rows_of_a_state_cannot_be_taken_back(make: Any) -> None:
    run = begun(make, updates=[update(PersistedState(Noted(), Noted(), "opaque"))])
    run.commit_now()
    (contribution,) = entries(run)[0].contributions.values()
    assert (contribution.refusal, list(contribution.rows())) == ("PersistedState stores rows unchanged", [])


def test_a_transaction_without_a_journal_writes_and_names_no_journal_entry(make: Any, store: CountingStore) -> None:
    run = begun(make, journal=timedelta(0))
    run.commit_now()
    history = run.spec.ledger(store).outcome(1)
    assert history is not None
    assert history.receipt is not None
    assert "journal" not in history.receipt.to_json()
    assert journal_of(run).names() == []


# --- killed, replayed, prepared again ------------------------------------------------------------------------------


@pytest.mark.parametrize("point", ["commit.before_journal", "commit.after_journal"])
def test_a_commit_that_was_killed_before_or_after_it_wrote_its_journal_entry_can_be_retried(
    make: Any, state: MemoryState, store: CountingStore, points: Failpoints, point: str
) -> None:
    run = begun(make)
    points.arm(point, "raise", txid=1)
    with pytest.raises(FailpointError):
        run.commit_now()
    open_one = record(store, 1)
    assert open_one is not None
    assert (open_one.journal, open_one.granted) == (None, False)
    left = journal_of(run).names(1)
    assert len(left) == (0 if point == "commit.before_journal" else 1)
    run.commit_now()
    assert counts(state) == {"a": 4, "b": 2}
    # The name of an entry is a digest of its content. Two tries at the same clock time write the same entry.
    assert {*left, named(run)} == set(journal_of(run).names(1))


def test_the_ledger_does_not_use_the_journal_entry_of_an_outranked_attempt(
    make: Any, state: MemoryState, store: CountingStore
) -> None:
    run = begun(make, source=OpaqueNumbers())
    first = run.commit()
    first.complete()
    granted = first.ledger.run(first.acquire_step())
    assert isinstance(granted, Granted)
    old = record(store, 1)
    assert old is not None
    assert old.journal == entries(run)[0].name
    again = begun(make, rows=[{"word": "c", "count": 7}], source=OpaqueNumbers())
    assert again.begun.attempt.attempt == 2
    replayed = record(store, 1)
    assert replayed is not None
    assert replayed.journal is None
    again.commit_now()
    assert counts(state) == {"c": 7}
    assert named(again) != old.journal
    assert list(journal_of(again).read(named(again)).contributions["words"].rows()) == [{"word": "c", "count": 7}]


def test_an_output_that_is_read_again_gets_a_new_journal_entry_and_the_grant_names_it(
    make: Any, store: CountingStore
) -> None:
    run = begun(make)
    commit = run.commit()
    commit.complete()
    first = commit.prepare().journal
    run.end(run.start(), [{"word": "c", "count": 7}])
    commit.forget()
    commit.complete()
    second = commit.prepare().journal
    assert first != second
    assert commit.try_to_commit()
    assert named(run) == second
    assert list(journal_of(run).read(second).contributions["words"].rows()) == [{"word": "c", "count": 7}]


def test_a_full_staging_area_causes_a_one_line_error_and_the_commit_can_be_retried(
    make: Any, state: MemoryState, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(make)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(os, "fsync", full)
        with pytest.raises(StagingUnavailable, match=r"^\S+@journal\S+ cannot be written: No space left on device\. "):
            run.commit_now()
    assert counts(state) == {}
    run.commit_now()
    assert counts(state) == {"a": 4, "b": 2}


def test_a_commit_phase_writes_the_journal_entry_of_all_committers_before_it_writes_a_state(
    make: Any, store: CountingStore
) -> None:
    words = MemoryState("words", keys=["word"], values={"count": Count()})
    others = MemoryState("others", keys=["word"], values={"count": Sum()})
    inner = MemoryState("inner", keys=["word"], values={"count": Sum()})
    of_d = update(others)
    phase = PhaseRun(make, update(words), of_d, ROWS)
    updates: Any = phase.updates
    updates["d"] = (of_d, update(inner, task="b", name="words"))
    phase.acquire()
    open_one = record(store, 1)
    assert open_one is not None
    entry = journal_of(phase.run).read(open_one.journal or "")
    assert [list(entry.contributions[name].rows()) for name in ("words", "others")] == [
        [{"word": "a", "count": 4}, {"word": "b", "count": 2}]
    ] * 2
    assert entry.contributions["inner"].refusal == "its rows come from task b, which runs in the commit phase"


# --- removed by age ------------------------------------------------------------------------------------------------


def entry_of(run: Run, days: int, txid: int = 1) -> str:
    """Write an entry as it was so many days ago."""
    written = (SystemClock().now() - timedelta(days=days)).isoformat()
    return journal_of(run).write(replace(entries(run)[0], txid=txid, written=written))


def test_a_commit_deletes_journal_entries_a_week_after_their_retention_has_ended(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = datetime.now(timezone.utc)
    monkeypatch.setattr(SystemClock, "now", lambda clock: now)  # no other day begins meanwhile
    run = begun(make, journal=timedelta(days=3))
    run.commit_now()
    first = named(run)
    kept, gone = entry_of(run, 3 + GRACE.days), entry_of(run, 4 + GRACE.days)
    begun(make, "r2", journal=timedelta(days=3)).commit_now()
    assert {first, kept} < set(journal_of(run).names())
    assert gone not in journal_of(run).names()


class Skewed:
    """A clock that is wrong by some days."""

    def __init__(self, days: int) -> None:
        self.wrong = timedelta(days=days)

    def now(self) -> datetime:
        return datetime.now(timezone.utc) + self.wrong


def test_a_clock_that_is_a_minute_fast_removes_no_journal_entry(make: Any) -> None:
    run = begun(make, journal=timedelta(days=3))
    run.commit_now()
    before = journal_of(run).names()
    ledger = run.spec.ledger(run.spec.memory)
    ledger.clock = Skewed(60)
    sweep_journal(run.spec, ledger)
    assert journal_of(run).names() == before


def test_a_journal_entry_from_a_worker_with_a_slow_clock_is_not_dated_before_the_begin(make: Any) -> None:
    run = begun(make, journal=timedelta(days=3))
    commit = run.commit()
    commit.ledger.clock = Skewed(-60)
    commit.complete()
    commit.prepare()
    assert commit.try_to_commit()
    entry = journal_of(run).read(named(run))
    assert entry.written >= entry.began


def test_a_journal_entry_that_a_request_or_an_open_restatement_needs_is_kept(make: Any, store: CountingStore) -> None:
    run = begun(make, journal=timedelta(days=3))
    run.commit_now()
    wished, replaced, gone = (entry_of(run, 20 + number) for number in range(3))
    ledger = run.spec.ledger(store)
    paths = ledger.paths
    open_run = begun(make, "r2", journal=timedelta(days=3))
    open_one = record(store, open_run.begun.txid)
    assert open_one is not None
    put(store, paths.transaction(2), replace(open_one, replaces=Replaced(1, replaced)))
    put(store, paths.run("run:r1"), Binding(1, wished))
    put(store, paths.wishes, None)
    put(store, paths.wish(1), Wish(1, "run:r1", "r1", "ada", "2013-01-01T00:00:00+00:00", "a bug", "op"))
    assert ledger.entries_in_use() == {wished, replaced}
    sweep_journal(run.spec, ledger)
    found = journal_of(run).names()
    assert {wished, replaced} < set(found)
    assert gone not in found


def put(store: CountingStore, path: str, value: Any) -> None:
    data = b"" if value is None else encode(value)
    store.multi((), (Create(path, data) if store.get(path) is None else Put(path, data),))


def test_a_journal_entry_is_kept_if_a_request_for_it_begins_while_old_entries_are_deleted(
    make: Any, store: CountingStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(make, journal=timedelta(days=3))
    run.commit_now()
    wished = entry_of(run, 20)
    ledger = run.spec.ledger(store)
    paths = ledger.paths
    open_run = begun(make, "r2", journal=timedelta(days=3))
    open_one = record(store, open_run.begun.txid)
    assert open_one is not None
    put(store, paths.run("run:r1"), Binding(1, wished))
    put(store, paths.wishes, None)
    put(store, paths.wish(1), Wish(1, "run:r1", "r1", "ada", "2013-01-01T00:00:00+00:00", "a bug", "op"))
    listed = store.children

    def begins_between(path: str) -> Any:
        found = listed(path)
        if store.get(paths.wish(1)) is not None:
            store.multi((), (Delete(paths.wish(1)),))
            put(store, paths.transaction(2), replace(open_one, replaces=Replaced(1, wished)))
        return found

    monkeypatch.setattr(store, "children", begins_between)
    assert ledger.entries_in_use() == {wished}
