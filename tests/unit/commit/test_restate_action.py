"""What a person does to have transactions restated: all wishes, then runs, once each, however often it is repeated."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from datetime import datetime, timezone
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from airflow.providers.standard.operators.python import PythonOperator

from airflow_tx.base import compat
from airflow_tx.base.errors import AcceptanceRefused, ConfigError, NotTakenBack, RestateRefused, TxError
from airflow_tx.base.failpoints import VARIABLE, FailpointError
from airflow_tx.ledger import Correction, Corrections
from airflow_tx.ledger.api import Create
from airflow_tx.ledger.audit.rebuild import reset
from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.life import Life
from airflow_tx.ledger.reading import Reader
from airflow_tx.ledger.receipt import Replaced
from airflow_tx.ledger.records import Binding, encode
from airflow_tx.ledger.steps.correction import ComparedUpTo
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.ledger.steps.replay import wishes
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.ledger.views.view import LedgerView
from airflow_tx.operations.actions import value_acceptance
from airflow_tx.operations.actions.action import ActionTarget, EffectLine
from airflow_tx.operations.actions.correction import CorrectionRestatement
from airflow_tx.operations.actions.request import dated_transactions
from airflow_tx.operations.actions.restatement import SeveralRefused, TransactionRestatement
from airflow_tx.operations.actions.stale import Stale, StaleLine, StaleReason, StaleRestatement
from airflow_tx.operations.actions.value_acceptance import ChangeAcceptance
from airflow_tx.operations.actions.withdrawal import WishWithdrawal
from airflow_tx.operations.cli.actions import RestatedWork, left_over
from airflow_tx.operations.cli.progress import Progress, WorkStatus
from airflow_tx.sources.dates import key_of_interval
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.state import Count, Max, MemoryState, SqlTable, Sum
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.update import DagStates
from airflow_tx.transaction.processing.task import stage_frames
from airflow_tx.triggers.sensor import commit_of
from tests.stage import update
from tests.unit.bench import Numbers
from tests.unit.commit.run import Run, counts

ADA = Audit("ada", "a bug in the job")


class Rereadable(Numbers):
    """Numbers whose rows may be gone.

    :ivar gone: why they cannot be read again.
    """

    gone: str | None = None
    behind: Mapping[int, dict[int, int]] = {}  # of a source that reads another topology
    rows_can_change = True

    def refuses_again(self, metadata: Any) -> str | None:
        return self.gone

    def named(self, topology: str) -> Any:
        return self


class World:
    """A topology in memory, and an Airflow that executes a run when it is told to.

    :ivar counted: what the task counts from now on.
    """

    def __init__(self, make: Callable[..., Run], state: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        self.make = make
        self.state = state
        self.states: dict[str, str] = {}
        self.versions: dict[str, bool] = {}
        self.counted = 1
        self.source = Rereadable()
        self.updates = [update(state)]
        self.most = 4
        monkeypatch.setattr(compat, "runs_of", lambda dag_id, run_ids: self._states_of(run_ids))
        monkeypatch.setattr(compat, "clear_run", self._clear)
        monkeypatch.setattr(compat, "why_none_starts", lambda dag_id: None)

    def _states_of(self, run_ids: Any) -> dict[str, str]:
        return {each: self.states[each] for each in run_ids if each in self.states}

    def _clear(self, dag_id: str, run_id: str, *, past_limit: bool, latest: bool = False, noting: Any = bool) -> bool:
        noting()
        self.versions[run_id] = latest
        self.states[run_id] = "queued"
        return True

    def run_of(self, run_id: str) -> Run:
        return self.make(run_id, self.updates, source=self.source, max_pending=self.most)

    def execute(self, run_id: str) -> None:
        run = self.run_of(run_id)
        run.begin()
        if run.begun is not None:
            run.work(count=self.counted)
            run.commit_now()
        self.states[run_id] = "success"

    def execute_queued(self, seconds: float = 0.0) -> None:
        """Execute one run that is queued."""
        for run_id in [each for each, state in self.states.items() if state == "queued"][:1]:
            self.execute(run_id)

    @property
    def spec(self) -> Any:
        return self.run_of("any").spec

    @property
    def ledger(self) -> Any:
        return self.spec.ledger(self.spec.memory)

    @property
    def dag(self) -> Any:
        return SimpleNamespace(tasks=[SimpleNamespace(task_id="commit", updates=self.updates)])

    def target(self) -> ActionTarget:
        return ActionTarget(self.ledger, self.ledger.topology(), lambda: (self.spec, DagStates(self.dag)))

    def action(self, *txids: int, **options: Any) -> TransactionRestatement:
        return TransactionRestatement(self.target(), txids, **options)

    def restate(self, *txids: int, audit: Audit = ADA, **options: Any) -> list[EffectLine]:
        return list(self.action(*txids, **options).execute(audit))

    def follow(self, *txids: int, in_flight: int = 3, audit: Audit = ADA, **options: Any) -> list[str]:
        """Do what the command does; what it says at its end."""
        action = self.action(*txids, in_flight=in_flight, **options)
        list(action.execute(audit))
        work = RestatedWork(self.target(), action.chosen)
        left = Progress(work, in_flight, sleep=self.execute_queued).follow()
        return left_over("numbers", left)

    @property
    def wished(self) -> list[int]:
        return [wish.txid for wish in wishes(self.spec.memory, self.spec.paths)]

    @property
    def total(self) -> int:
        return counts(self.state)["count"]


@pytest.fixture
def state() -> MemoryState:
    return MemoryState("words", keys=["word"], values={"count": Sum()})


@pytest.fixture
def world(make: Any, state: MemoryState, monkeypatch: pytest.MonkeyPatch) -> World:
    """Five transactions are committed, each of which has counted 1; the bug is found, and 2 would have been right."""
    made = World(make, state, monkeypatch)
    for number in range(1, 6):
        made.execute(f"r{number}")
    made.counted = 2
    return made


def test_each_requested_transaction_is_processed_again_and_replaces_its_contribution(world: World) -> None:
    assert world.follow(1, 2, 3, 4, 5) == ["All 5 transactions are restated."]
    assert (world.total, world.wished) == (10, [])
    assert set(world.versions.values()) == {True}


def test_restate_starts_runs_until_one_place_is_left_and_keeps_the_other_requests(world: World) -> None:
    done = world.restate(1, 2, 3, 4, 5)
    started = [each.txid for each in done if each.what.startswith("its run was cleared")]
    assert (started, world.wished) == ([1, 2, 3], [1, 2, 3, 4, 5])
    assert "the coordinator starts its run once fewer restatements are in progress" in done[-1].what
    assert "airflow tx restate numbers --why TEXT" in done[-1].what


def test_restate_without_txids_continues_the_requested_restatements(world: World) -> None:
    world.restate(4, 5, in_flight=1)
    assert world.follow() == ["All 2 transactions are restated."]
    assert world.total == 7


@pytest.mark.parametrize("point", ["after_wish", "after_start"])
@pytest.mark.parametrize("txid", [1, 2, 3])
def test_a_restate_action_that_is_killed_and_repeated_restates_each_transaction_once(
    world: World, point: str, txid: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv(VARIABLE, f"restate.{point}:txid={txid}:raise:once={tmp_path / 'hit'}")
    with pytest.raises(FailpointError):
        world.follow(1, 2, 3, 4, 5, dated=True)
    world.execute_queued()
    left = 5 - len([each for each in by_date(world) if each > 5])
    assert world.follow(*by_date(world), dated=True) == [f"All {left} transactions are restated."]
    assert world.follow(*by_date(world), dated=True) == ["All 0 transactions are restated."]
    assert world.total == 10
    assert isinstance(world.ledger.outcome(10).receipt.replaces, Replaced)
    assert world.ledger.outcome(11) is None


def by_date(world: World) -> list[int]:
    """What the bindings of the dates say, as `--from --to` finds it."""
    read = Reader(world.spec.memory)
    return [read.peek(Binding, world.spec.paths.run(f"r{number}")).txid for number in range(1, 6)]


def test_restate_by_dates_selects_the_transactions_that_are_current_for_these_dates(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    days = [datetime(2013, 1, day, tzinfo=timezone.utc) for day in range(1, 6)]
    intervals = [compat.ScheduledInterval(start, start, end, end) for start, end in pairwise(days)]
    monkeypatch.setattr(
        compat,
        "scheduled_intervals",
        lambda dag_id, first, last: [each for each in intervals if first <= each.logical_date <= last],
    )
    for each, txid in zip(intervals, (4, 9, 2), strict=False):  # the last day has no transaction
        key = key_of_interval((each.start, each.end))
        world.spec.memory.multi((), (Create(world.spec.paths.run(key), encode(Binding(txid))),))
    spec = SimpleNamespace(source=DataIntervalSource("package.reader"), dag_id="numbers", zone="")
    target = ActionTarget(world.ledger, world.ledger.topology(), lambda: (spec, {}))  # type: ignore[arg-type, return-value]
    assert dated_transactions(target, "2013-01-01", "2013-01-05") == [4, 9, 2]
    assert dated_transactions(target, "2013-01-02", "2013-01-02") == [9]
    with pytest.raises(ConfigError, match="None of the 1 intervals between these dates has a transaction"):
        dated_transactions(target, "2013-01-04", "2013-01-04")
    with pytest.raises(ConfigError, match=r"have no dates, so name the transactions: airflow tx restate numbers TXID"):
        dated_transactions(world.target(), "2013-01-01", "2013-01-02")


def test_a_restatement_with_another_reason_restates_the_transaction_again(world: World) -> None:
    world.follow(1, 2, dated=True)
    world.counted = 5
    world.follow(*by_date(world)[:2], dated=True, audit=Audit("ada", "another bug"))
    assert world.total == 13


def test_the_txid_of_a_restated_transaction_selects_the_newest_restatement(world: World) -> None:
    world.follow(1)
    assert "it restated transaction 1" in world.action(1).preview().effects[0].what
    (told,) = world.restate(1)
    assert told.what.startswith("not restated: transaction 6 has restated it for this reason")
    world.counted = 7
    world.follow(1, audit=Audit("ada", "another bug"))
    assert world.total == 11


def test_a_preview_of_a_restatement_names_the_keys_to_replace_and_changes_nothing(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = MemoryState("words", keys=["word"], values={"count": Sum("double")})
    world = World(make, state, monkeypatch)
    world.counted = 2**40
    world.execute("r1")
    found = world.action(1).preview()
    assert found.sentence.startswith("Process transaction 1 of topology numbers again")
    assert [each.what for each in found.effects] == [
        "restated with its rows. It replaces 1 key of words (digits of count below 1e-04 are lost)"
    ]
    assert world.wished == []


def test_a_preview_of_a_restatement_names_the_tasks_that_read_its_states(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    def look_up(rows: Any) -> Any:
        return [state_query(row, state=None) for row in rows]  # type: ignore[name-defined] # noqa: F821

    task = PythonOperator(task_id="enrich", python_callable=look_up)
    stage_frames(task)  # as a block does
    tasks = [*world.dag.tasks, task]
    monkeypatch.setattr(World, "dag", SimpleNamespace(tasks=tasks))
    told = [each.what for each in world.action(1).preview().effects]
    assert told[1] == "task enrich reads states: later transactions that read the old values are not corrected"


# --- refusals


def refusal(world: World, *txids: int, **options: Any) -> str:
    """Why nothing is restated, one line each; the preview says the same."""
    told = [each.what for each in world.action(*txids, **options).preview().refused if each.run_id is None]
    with pytest.raises(SeveralRefused) as refused:
        world.restate(*txids, **options)
    assert str(refused.value).splitlines() == told
    assert world.wished == []
    return str(refused.value)


def test_a_restatement_of_missing_rows_is_refused_without_the_option_for_changed_rows(world: World) -> None:
    world.source.gone = "file a.csv is missing"
    told = refusal(world, 1)
    assert told == (
        "Restatement of transaction 1 of numbers refused: its rows cannot be read again: file a.csv is missing. "
        "Nothing was changed. The transaction still counts, unchanged."
    )
    assert world.follow(1, changed_rows=True) == ["All 1 transactions are restated."]


def test_the_option_for_changed_rows_is_refused_if_the_source_is_a_log(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Rereadable, "rows_can_change", False)
    assert "reads a log, whose rows never change. Nothing was changed. Without --changed-rows" in refusal(
        world, 1, changed_rows=True
    )


def test_restate_refuses_open_and_skipped_and_unknown_transactions_in_one_error(world: World) -> None:
    run = world.run_of("r6")
    run.begin()
    told = refusal(world, 1, 6, 9).splitlines()
    assert len(told) == 2
    assert "refused: it is open. Nothing was changed. To process it again: airflow tx replay numbers 6" in told[0]
    assert told[1].startswith("No transaction 9 of topology 'numbers'")


def test_a_restatement_is_refused_if_the_dag_no_longer_writes_a_state_of_the_transaction(world: World) -> None:
    world.updates = [update(MemoryState("other", keys=["word"], values={"count": Count()}))]
    told = refusal(world, 1)
    assert "it has written state 'words', which the DAG no longer writes" in told
    assert "--withdraw" not in told


def test_a_restatement_without_its_journal_entry_is_refused(world: World) -> None:
    world.spec.staging().forget(world.ledger.incarnation())
    assert re.search(r"entry \S+/1-\w+", refusal(world, 1), re.IGNORECASE)


def test_a_second_restatement_is_not_requested_while_the_first_one_is_open(world: World) -> None:
    world.restate(1)
    run = world.run_of("r1")
    run.begin()
    assert [each.what for each in world.restate(1)] == ["transaction 6 restates it already"]


# --- withdrawal, skips


def test_a_request_can_be_withdrawn_until_its_restatement_has_begun(world: World) -> None:
    world.restate(1, 2, in_flight=1)
    withdrawal = WishWithdrawal(world.target(), [2])
    assert [each.txid for each in withdrawal.preview().effects] == [2]
    assert [each.txid for each in withdrawal.execute(ADA)] == [2]
    world.execute_queued()
    with pytest.raises(RestateRefused, match="or its restatement has begun"):
        list(WishWithdrawal(world.target(), [1]).execute(ADA))
    assert (world.total, world.wished) == (6, [])


def test_all_requests_can_be_withdrawn_at_once(world: World) -> None:
    world.restate(1, 2, 3)
    assert [each.txid for each in WishWithdrawal(world.target(), []).execute(ADA)] == [1, 2, 3]
    assert world.wished == []


def test_the_answer_names_a_run_that_failed_before_its_begin_and_the_command_that_withdraws_it(world: World) -> None:
    def fails(seconds: float) -> None:
        for run_id, found in world.states.items():
            world.states[run_id] = "failed" if found == "queued" else found

    action = world.action(1, in_flight=1)
    list(action.execute(ADA))
    fails(0.0)
    left = Progress(RestatedWork(world.target(), action.chosen), 1, sleep=fails).follow()
    assert [each.status for each in left] == [WorkStatus.FAILED]
    (line, *_) = left_over("numbers", left)
    assert line.endswith("To withdraw the request: airflow tx restate numbers 1 --withdraw")


def test_an_interval_stays_committed_during_its_restatement_and_after_that_is_skipped(world: World) -> None:
    world.restate(1)
    run = world.run_of("r1")
    run.begin()
    interval = {"key": "r1"}
    found = commit_of(world.spec.memory, world.spec.paths, interval)
    assert found is not None
    assert found["txid"] == 1
    world.ledger.run(note_skip, 6, ADA)
    take_skip(world.ledger, 6, {"words": world.state}, log=run.log)
    assert commit_of(world.spec.memory, world.spec.paths, interval) == found
    assert world.total == 5


# --- states that went back


@pytest.mark.parametrize("txids", [0, 1], ids=["lost whole", "a backup"])
def test_a_restatement_is_refused_if_the_state_lacks_committed_transactions(
    make: Any, state: MemoryState, monkeypatch: pytest.MonkeyPatch, txids: int
) -> None:
    world = World(make, state, monkeypatch)
    kept = [state.database.snapshot()]
    for run_id in ("r1", "r2"):
        world.execute(run_id)
        kept.append(state.database.snapshot())
    state.database.restore(kept[txids])
    answer = world.action(1).preview()
    (refused,) = answer.refused
    assert "state words lacks transactions that the ledger committed to it" in refused.what
    assert "airflow tx repair numbers --roll-forward words" in refused.what
    with pytest.raises(TxError, match="state words lacks transactions"):
        world.restate(1)
    assert world.wished == []
    state.database.restore(kept[2])
    assert world.action(1).preview().refused == ()


# --- keys that cannot be taken back


@pytest.mark.parametrize(
    ("kind", "shown"),
    [("opaque", "other transactions have contributed to 1 of these keys"), ("transactional", "the new")],
)
def test_a_preview_of_a_restatement_names_the_keys_that_may_be_refused(
    make: Any, monkeypatch: pytest.MonkeyPatch, kind: str, shown: str
) -> None:
    best = MemoryState("best", keys=["word"], values={"count": Max()}, kind=kind)
    world = World(make, best, monkeypatch)
    world.execute("r1")
    assert any("best: the new max of count" in line for line in lines_of(world, 1)) is (kind == "transactional")
    world.execute("r2")
    (line,) = [line for line in lines_of(world, 1) if line.startswith("best: ")]
    assert line.startswith(f"best: {shown}")
    assert line.endswith("the new max of count must include the old one or equal it; otherwise the commit is refused")
    assert "{'word': 'count'}" in line or kind == "transactional"


def test_a_preview_of_a_restatement_warns_that_rows_deleted_by_a_person_come_back(
    make: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    table = SqlTable.from_url(f"sqlite:///{tmp_path}/words.db", table="words")
    world = World(make, table, monkeypatch)
    for run_id in ("r1", "r2"):
        world.execute(run_id)
    assert lines_of(world, 1) == ["restated with its rows. It replaces its rows in url.words"]
    with table._store.transaction() as connection:
        connection.exec_driver_sql("DELETE FROM words WHERE tx_txid = 1")
    back = "url.words: 0 of its 1 rows are in the table. Deleted rows come back if the source still has them"
    assert back in lines_of(world, 1)
    assert len(lines_of(world, 2)) == 1


def lines_of(world: World, txid: int) -> list[str]:
    return [each.what for each in world.action(txid).preview().effects]


# --- keys that a person has deleted


def accepted(world: World, state: str = "words") -> list[str]:
    return [each.what for each in ChangeAcceptance(world.target(), state).execute(Audit("ada", "a customer's right"))]


def deleted(world: World, key: str = "count") -> None:
    """A person deletes a key from the table."""
    del world.state.database.rows[key,]


def test_a_restatement_takes_back_no_value_of_a_key_whose_deletion_was_accepted(world: World) -> None:
    deleted(world)
    assert accepted(world)[-1] == "accepted: 1 key is gone, and no restatement takes back the lost values"
    world.execute("r6")  # it comes back
    assert world.follow(2) == ["All 1 transactions are restated."]
    assert world.total == 2 + 2


def test_a_key_that_was_created_again_is_restated_normally_for_later_transactions(world: World) -> None:
    deleted(world)
    accepted(world)
    world.counted = 1
    world.execute("r6")
    world.counted = 2
    assert world.follow(6) == ["All 1 transactions are restated."]
    assert world.total == 2
    assert world.follow(1) == ["All 1 transactions are restated."]
    assert world.follow(8) == ["All 1 transactions are restated."]
    assert world.total == 4


def test_a_refused_restatement_of_a_deleted_key_continues_after_the_deletion_is_accepted(world: World) -> None:
    deleted(world)
    world.restate(2)
    with pytest.raises(NotTakenBack, match="airflow tx accept-change numbers --state words --why TEXT"):
        world.execute("r2")
    accepted(world)
    world.execute("r2")
    assert world.total == 2


def test_a_deletion_that_is_accepted_while_a_restatement_waits_is_noticed_when_it_has_the_turn(world: World) -> None:
    world.restate(2)
    run = world.run_of("r2")
    run.begin()
    run.work(count=2)
    commit = run.commit()
    commit.complete()
    commit.prepare()
    deleted(world)
    accepted(world)
    assert not commit.try_to_commit()
    commit.complete()
    assert commit.try_to_commit()
    assert world.total == 2


def test_an_accepted_deletion_cannot_be_accepted_again(world: World) -> None:
    deleted(world)
    accepted(world)
    with pytest.raises(AcceptanceRefused, match="its values match its receipts"):
        accepted(world)


def test_an_accepted_deletion_with_a_large_journal_prevents_earlier_restatements(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(value_acceptance, "MOST_ENTRIES", 4)
    deleted(world)
    assert accepted(world)[-1].startswith("accepted: no earlier transaction can be restated: ")
    world.execute("r6")
    with pytest.raises(SeveralRefused, match="keys of state 'words' were deleted since transaction 2"):
        world.restate(2)
    assert world.follow(6) == ["All 1 transactions are restated."]


def test_keys_that_were_deleted_before_a_reset_have_no_effect_on_the_next_incarnation(world: World) -> None:
    deleted(world)
    accepted(world)
    ledger = world.ledger

    def gone(first: int) -> frozenset[str]:
        repairs = LedgerView(ledger.store, ledger.paths).repairs()
        return Life.of("words", ledger.topology(), repairs).gone(first)

    assert gone(5)
    assert not gone(6)
    ledger.run(reset, TopologyRequest("numbers", "opaque", 4, False), Audit("ada", "again"))
    assert not gone(1)


# --- corrections upstream


class ReadsOrders(Rereadable):
    """Numbers that are the rows of topology `orders`; `behind` has the ends upstream that it lacks."""

    upstream = "orders"

    def corrections(self, ledger: Any, now: datetime) -> Corrections:
        found = [
            Correction(txid, txid, f"r{txid}", ends, min(ends), max(ends), ledger.noted_behind().get(txid))
            for txid, ends in self.behind.items()
        ]
        return Corrections(tuple(found), frozenset(), frozenset(), ComparedUpTo("orders", 9, ""), 0)


@pytest.fixture
def following(world: World) -> World:
    world.source = ReadsOrders()
    world.source.behind = {1: {3: 9}, 2: {4: 8, 5: 7}}
    return world


def follow_up(world: World, why: str = "") -> list[EffectLine]:
    return list(CorrectionRestatement(world.target()).execute(Audit("ada", why)))


def test_restate_follow_requests_all_transactions_that_are_behind_and_names_the_corrections(following: World) -> None:
    answer = CorrectionRestatement(following.target()).preview()
    assert (answer.needs_reason, answer.refused) == (False, ())
    assert "transactions 1, 2 of topology numbers" in answer.sentence
    follow_up(following)
    wanted = {each.txid: each.why for each in following.ledger.wishes()}
    assert wanted == {1: "upstream 3 restated by 9", 2: "upstream 4 restated by 8, 5 restated by 7"}
    noted = {txid: each.ends for txid, each in following.ledger.noted_behind().items()}
    assert noted == {1: {"3": 9}, 2: {"4": 8, "5": 7}}
    assert following.ledger.followed().txid == 9


def test_a_person_may_give_another_reason_for_follow_ups(following: World) -> None:
    follow_up(following, ADA.why)
    assert {each.why for each in following.ledger.wishes()} == {ADA.why}


def test_a_transaction_that_was_noted_as_behind_and_is_still_behind_is_requested_again(following: World) -> None:
    following.ledger.note_behind(1, {3: 9}, why="its check failed")
    follow_up(following)
    assert [each.txid for each in following.ledger.wishes()] == [1, 2]
    assert following.ledger.noted_behind()[1].why == ""


def test_a_follow_up_that_cannot_be_restated_is_noted_and_the_other_follow_ups_continue(following: World) -> None:
    following.source.gone = "its rows are gone"
    following.source.behind = {1: {3: 9}}
    answer = CorrectionRestatement(following.target()).preview()
    (refused,) = answer.refused
    assert "its rows are gone" in refused.what
    (line, *_) = follow_up(following)
    assert (line.txid, line.what[:14]) == (1, "not restated: ")
    assert following.ledger.wishes() == ()
    assert "its rows are gone" in following.ledger.noted_behind()[1].why


def test_the_answer_of_restate_follow_says_that_no_transaction_is_behind(following: World) -> None:
    following.source.behind = {}
    answer = CorrectionRestatement(following.target()).preview()
    assert answer.effects == ()
    nothing = "No transaction of topology numbers is behind a correction of orders."
    assert answer.sentence == nothing
    assert [each.what for each in follow_up(following)] == [nothing]


def test_restate_follow_is_refused_for_a_topology_without_an_upstream_topology(world: World) -> None:
    with pytest.raises(ConfigError, match="airflow tx restate numbers TXID --why TEXT"):
        follow_up(world)


def test_a_correction_requests_the_newest_restatement_of_a_transaction_and_not_the_original(following: World) -> None:
    following.follow(1)  # 6 counts for it now
    follow_up(following)
    assert following.wished == [2, 6]


def test_a_stale_transaction_that_was_restated_after_the_comparison_is_not_requested(world: World) -> None:
    other = [StaleLine(txid, f"r{txid}", StaleReason.CODE, "task count has other code", None) for txid in (1, 2)]
    action = StaleRestatement(world.target())
    action.stale = Stale(tuple(other), 5, {})
    world.follow(1)
    list(action.execute(ADA))
    assert world.wished == [2]
