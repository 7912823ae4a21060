"""What a commit leaves for later tasks: the new values of its keys, or what an updater emits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import ConfigError, Outranked, StagingError
from airflow_tx.base.failpoints import VARIABLE, FailpointError
from airflow_tx.ledger.attempt import TaskTry
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operators.commit import CommitOperator
from airflow_tx.spark import new_values as spark_new_values
from airflow_tx.spark.new_values import KEYS_A_LOOK_UP
from airflow_tx.state import Avg, CollectSet, Count, Max, MemoryState, SqlGuard, Sum
from airflow_tx.transaction.commit import write as writing
from airflow_tx.transaction.commit.update import partition_persist, persistent_aggregate
from airflow_tx.transaction.processing.batch import inputs_of
from airflow_tx.transaction.processing.task import Processing
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.run import (
    Run,  # noqa: F401 - a fixture
    committed,
    read,
    told,
)

SOURCE: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="return_value")


@pytest.fixture
def state() -> MemoryState:
    return MemoryState("words", keys=["word"], values={"count": Count(), "exact": Sum("numeric")})


def word(name: str, count: int, exact: str = "0.1") -> dict[str, Any]:
    return {"word": name, "count": count, "exact": Decimal(exact)}


def test_later_tasks_receive_the_keys_of_the_batch_with_their_new_values(make: Any, state: MemoryState) -> None:
    update = persistent_aggregate(SOURCE, state=state, new_values="words")
    first, second = make("r1", [update]), make("r2", [update])
    assert committed(first, [word("man", 3), word("dog", 4)])["words"]["rows"] == 2
    refs = committed(second, [word("man", 2), word("man", 5), word("cat", 1)])
    # After the commit, when all other output of the transaction is gone.
    assert read(second, refs["words"]) == [word("man", 10, "0.3"), word("cat", 1)]
    (files,) = [each.files for each in inputs_of(second.spec, {"w": refs["words"]}, second.begun).values()]
    assert all(file.startswith("file:///") for file in files)


def test_a_committer_that_was_killed_after_its_commit_returns_its_new_values_in_the_next_try(
    make: Any,
    state: MemoryState,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    update = persistent_aggregate(SOURCE, state=state, new_values="words")
    run = make("r1", [update])
    monkeypatch.setenv(VARIABLE, f"commit.after_mark:raise:once={tmp_path}/hit")
    with pytest.raises(FailpointError):
        committed(run, [word("man", 3)])
    monkeypatch.delenv(VARIABLE)
    assert read(run, told(run)["words"]) == [word("man", 3)]


def test_a_cleared_committer_returns_only_the_new_values_that_the_dag_still_names(
    make: Any,
    state: MemoryState,
) -> None:
    run = make("r1", [persistent_aggregate(SOURCE, state=state, new_values="words")])
    committed(run, [word("man", 3)])
    run.updates = [persistent_aggregate(SOURCE, state=state, new_values="totals")]
    assert told(run) == {}


def test_a_committer_without_new_values_returns_none(make: Any, state: MemoryState) -> None:
    run = make("r1", [persistent_aggregate(SOURCE, state=state)])
    assert committed(run, [word("man", 3)]) == {}
    assert told(run) == {}, "it is committed already"


def test_new_values_that_an_outranked_grant_has_staged_are_not_returned(
    make: Any,
    state: MemoryState,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    update = persistent_aggregate(SOURCE, state=state, new_values="words")
    run = make("r1", [update])
    monkeypatch.setenv(VARIABLE, f"commit.before_mark:raise:once={tmp_path}/hit")
    with pytest.raises(FailpointError):
        committed(run, [word("man", 3), word("dog", 4)])
    monkeypatch.delenv(VARIABLE)
    refs = committed(run, [word("man", 2)])
    assert read(run, refs["words"]) == [word("man", 2)]
    birth = refs["words"]["task_try"].partition("-")[2].partition("-")[2]
    old = {**refs["words"], "task_try": f"grant-1.1-{birth}", "attempt": 1}
    assert read(run, old) == [word("man", 2)]


@pytest.mark.parametrize("lost", ["reset", "ledger-lost"])
def test_new_values_of_another_incarnation_are_not_returned(
    make: Any,
    state: MemoryState,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    lost: str,
) -> None:
    update = persistent_aggregate(SOURCE, state=state, new_values="words")
    run = make("r1", [update])
    run.begin()
    if lost == "ledger-lost":
        monkeypatch.setenv(VARIABLE, f"commit.before_mark:raise:once={tmp_path}/hit")
        with pytest.raises(FailpointError):
            committed(run, [word("man", 3)])
        # The fence says that nothing of it is complete.
        assert state.database.fence is not None
        state.database.fence = replace(state.database.fence, applied=False)
    else:
        committed(run, [word("man", 3)])
    repairs, audit = Repairs(run.spec.ledger(run.spec.memory)), Audit("ada", "why")
    if lost == "reset":
        repairs.reset(run.spec.request, audit, clear=state.clear)
    else:
        held = HeldState.of(state.name, undoable=True, fence=state.fence())
        repairs.ledger_lost([held], run.spec.request, audit)
    again = make("r1", [update])
    refs = committed(again, [word("man", 2)])
    assert refs["words"]["attempt"] == 1, "the lost one was attempt 2"
    assert read(again, refs["words"]) == [word("man", 2)]
    assert read(again, told(again)["words"]) == [word("man", 2)]


def test_new_values_are_kept_for_the_configured_number_of_transactions(
    make: Any,
    state: MemoryState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AIRFLOW__TX__KEEP_NEW_VALUES", "2")
    update = persistent_aggregate(SOURCE, state=state, new_values="words")
    runs = [make(f"r{number}", [update]) for number in range(3)]
    refs = [committed(run, [word("man", 1)])["words"] for run in runs]
    assert read(runs[1], refs[1]) == [word("man", 2, "0.2")]
    with pytest.raises(StagingError, match="'words' of task commit in .*1.1.*no longer kept.*keep_new_values"):
        read(runs[0], refs[0])


def test_a_batch_without_rows_has_no_new_values(make: Any, state: MemoryState) -> None:
    run = make("r1", [persistent_aggregate(SOURCE, state=state, new_values="words")])
    refs = committed(run, [])
    assert read(run, refs["words"]) == []


def test_each_part_of_a_large_update_is_stored_as_one_file_of_new_values(
    make: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    from airflow_tx.outputs.staging.area import write_manifest, write_rows

    monkeypatch.setattr(writing, "ROWS_A_WRITE", 4)
    values: Any = {"mean": Avg(), "seen": CollectSet()}
    state = MemoryState("words", keys=["word"], values=values)
    source: Any = SimpleNamespace(operator=SimpleNamespace(task_id="count"), key="counts")
    run = make("r1", [persistent_aggregate(source, state=state, new_values="new")])
    run.begin()
    processing = run.start()
    where = processing.staging.try_dir(processing.topology, processing.attempt, processing.task)
    rows = [{"word": f"w{i}", "mean": float(i), "seen": [i]} for i in range(9)]
    refs = {
        name: ref.to_json()
        for name, ref in write_manifest(where, {"counts": write_rows(where, "counts", rows)}).items()
    }
    processing.ack(list(refs.values()))
    run.committer.xcoms["count", "counts", -1] = refs["counts"]
    run.committer.states["count"] = "success"
    new = told(run)["new"]
    assert [(row["word"], row["mean"], row["mean_count"], row["seen"]) for row in read(run, new)] == [
        (f"w{i}", float(i), 1, [i]) for i in range(9)
    ]
    assert run.begun is not None
    assert len(inputs_of(run.spec, {"new": new}, run.begun)["new"].files) == 3
    assert KEYS_A_LOOK_UP == 10_000


class Places:
    """A state of one's own."""

    kind = "transactional"

    def begin_commit(self, txid: int | None) -> None: ...

    def commit(self, txid: int | None) -> None: ...


class Moves:
    """An updater that emits."""

    def update_state(self, state: Places, rows: Sequence[Any]) -> list[dict[str, Any]]:
        return [{"user": row["word"], "moved": True} for row in rows]


def test_the_rows_that_an_updater_returns_are_available_as_an_output(make: Any) -> None:
    run = make("r1", [partition_persist(SOURCE, state=Places(), updater=Moves(), new_values="moved")])
    refs = committed(run, [word("man", 1)])
    assert read(run, refs["moved"]) == [{"user": "man", "moved": True}]


def test_the_log_counts_rows_that_an_updater_returns_and_that_no_task_reads(
    make: Any,
    caplog: pytest.LogCaptureFixture,
) -> None:
    run = make("r1", [partition_persist(SOURCE, state=Places(), updater=Moves())])
    with caplog.at_level("INFO"):
        assert committed(run, [word("man", 1)]) == {}
    assert "Moves emitted 1 new values, which no task can read" in caplog.text


def test_invalid_names_and_invalid_states_for_new_values_are_refused_while_the_dag_is_parsed(
    state: MemoryState,
) -> None:
    guard = SqlGuard("tx_state", name="guard", statements=["SELECT 1"])
    for name, given in (("return_value", state), ("_words", state), ("words", guard)):
        with pytest.raises(ConfigError, match="new_values="):
            persistent_aggregate(SOURCE, state=given, new_values=name)
    with pytest.raises(ConfigError, match="Only an updater emits"):
        partition_persist(SOURCE, state=guard, new_values="words")
    twice = [persistent_aggregate(SOURCE, state=state, new_values="words")] * 2
    with pytest.raises(ConfigError, match="different names"):
        CommitOperator(task_id="commit", updates=twice)


def test_the_output_of_a_task_after_the_transaction_is_staged_in_a_folder_that_is_kept(make: Any) -> None:
    run = make("r1", [])
    run.begin()
    inside, after = (
        Processing(run.spec, run.begun, TaskTry(task, -1, "try"), anchored=False).staging.root
        for task in ("count", "report")
    )
    assert after == f"{inside}/@kept"


def test_an_input_that_is_not_a_reference_to_staged_rows_is_refused(make: Any) -> None:
    run = make("r1", [])
    run.begin()
    with pytest.raises(StagingError, match=r"it is not a reference \(None\)"):
        inputs_of(run.spec, {"words": None}, run.begun)


LEFT: Any = SimpleNamespace(operator=SimpleNamespace(task_id="b"), key="counts")


def test_a_committer_of_a_phase_reads_the_new_values_after_the_turn_was_taken_again(make: Any) -> None:
    words = MemoryState("words", keys=["word"], values={"count": Count()})
    largest = MemoryState("largest", keys=["word"], values={"count": Max()})
    of_b = persistent_aggregate(SOURCE, state=words, new_values="counts")
    rows = [{"word": "man", "count": 3}, {"word": "dog", "count": 1}]
    phase = PhaseRun(make, of_b, persistent_aggregate(LEFT, state=largest), rows)
    first = phase.acquire()
    refs = phase.write("b", first)
    phase.write("d", first)
    # `d` is cleared alone: the turn is taken again, and what `b` had written is written anew.
    phase.states["d"] = None
    second = phase.acquire()
    assert largest.read() == []
    phase.write("d", second)
    assert [(row["word"], row["count"]) for row in largest.read()] == [("dog", 1), ("man", 3)]
    assert sorted(row["count"] for row in read(phase.run, refs["counts"])) == [1, 3]
    tries = phase.run.spec.staging().of_topology(phase.run.begun.incarnation).kept.files.list("numbers/1/1/b@-1")
    made = [f"grant-{token.generation}.{token.epoch}-{token.birth}" for token in (first.token, second.token)]
    assert sorted(tries) == made


def test_a_write_after_the_turn_was_taken_again_stages_the_new_values_again(make: Any) -> None:
    words = MemoryState("words", keys=["word"], values={"count": Count()})
    largest = MemoryState("largest", keys=["word"], values={"count": Max()})
    of_b = persistent_aggregate(SOURCE, state=words, new_values="counts")
    rows = [{"word": "man", "count": 3}, {"word": "dog", "count": 1}]
    phase = PhaseRun(make, of_b, persistent_aggregate(LEFT, state=largest), rows)
    phase.write("b", phase.acquire())
    phase.work(rows[:1])
    phase.write("d", phase.acquire())
    assert largest.read() == [{"word": "man", "count": 3}]


def test_a_late_try_of_a_committer_does_not_replace_the_new_values(
    make: Any,
    state: MemoryState,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    of_b = persistent_aggregate(SOURCE, state=state, new_values="counts")
    largest = MemoryState("largest", keys=["word"], values={"count": Max()})
    phase = PhaseRun(make, of_b, persistent_aggregate(LEFT, state=largest), [word("man", 3)])
    grant = phase.acquire()
    refs, stage = dict[str, Any](), spark_new_values.stage_keys

    def paused(*args: Any, **options: Any) -> Any:
        """While it slept after its write, another try of the same task did all, and a later one wrote to its key."""
        monkeypatch.setattr(spark_new_values, "stage_keys", stage)
        refs.update(phase.write("b", grant))
        state.write(phase.acquire(), [word("man", 100)])
        return stage(*args, **options)

    monkeypatch.setattr(spark_new_values, "stage_keys", paused)
    with pytest.raises(Outranked):
        phase.write("b", grant)
    assert read(phase.run, refs["counts"]) == [word("man", 3)]


@pytest.mark.parametrize("large", [False, True])
def test_values_without_an_arrow_type_reach_another_committer_unchanged(
    make: Any,
    state: MemoryState,
    monkeypatch: pytest.MonkeyPatch,
    large: bool,
) -> None:
    monkeypatch.setattr(writing, "ROWS_A_WRITE", 1 if large else 100)
    of_b = persistent_aggregate(SOURCE, state=state, new_values="counts")
    largest = MemoryState("largest", keys=["word"], values={"exact": Largest()})
    phase = PhaseRun(make, of_b, persistent_aggregate(LEFT, state=largest), [word("man", 3), word("dog", 1, "1.50")])
    grant = phase.acquire()
    phase.write("b", grant)
    phase.write("d", grant)
    assert largest.read() == [{"word": "dog", "exact": Decimal("1.50")}, {"word": "man", "exact": Decimal("0.1")}]


class Largest:
    """A reducer that compares numbers with numbers."""

    name, type = "largest", "numeric"

    def init(self) -> Decimal:
        return Decimal(-1)

    def reduce(self, current: Decimal, row: Any) -> Decimal:
        return max(current, Decimal(row["exact"]))
