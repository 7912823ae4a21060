"""What a commit writes into one database becomes visible together."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import sqlalchemy as sa
from airflow.sdk import DAG, task

from airflow_tx import Transaction
from airflow_tx.base.errors import (
    ConfigError,
    NotTakenBack,
    OutputChanged,
    StateError,
    TransactionDefinitionError,
    TxError,
)
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.operators.commit import CommitOperator
from airflow_tx.operators.phase import commit_phase
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import (
    Count,
    MemoryState,
    RedisState,
    RowTally,
    SqlGuard,
    SqlState,
    SqlTable,
    StateWrite,
    Sum,
    api,
    write_together,
)
from airflow_tx.testing.suites.state_tools import Grants
from airflow_tx.transaction.commit import committer, handoff, write
from airflow_tx.transaction.commit.committer import Commit
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.update import append, partition_persist, persistent_aggregate, written_together
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.model.mutants import ONE, Mutant, applied
from tests.stage import update
from tests.unit.bench import Numbers
from tests.unit.commit.backups import ADA
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.restated_run import Makes, begun, committed, processed, rows
from tests.unit.commit.run import Run, dies, killed_before_the_mark

TABLE, TOTALS, GUARD, ELSEWHERE = "table", "totals", "guard", "elsewhere"
SUMMED = ["DELETE FROM report", "INSERT INTO report SELECT sum(count) FROM totals"]


class Database:
    """One SQLite file with the states of a topology, and a state in another store.

    :ivar written: how many transactions of the file have written, since it was last asked.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / "shop.db"
        url = f"sqlite:///{self.path}"
        self.execute("CREATE TABLE report (total INTEGER)")
        self.states: dict[str, Any] = {
            TABLE: SqlTable.from_url(url, table="seen"),
            TOTALS: SqlState.from_url(url, table="totals", keys=["word"], values={"count": Sum()}),
            GUARD: SqlGuard.from_url(url, name="report", statements=[(each, {}) for each in SUMMED]),
            ELSEWHERE: MemoryState("elsewhere", keys=["word"], values={"count": Count()}),
        }

    def execute(self, sql: str) -> None:
        with closing(sqlite3.connect(self.path)) as database, database:
            database.execute(sql)

    def updates(self, *names: str) -> list[Any]:
        return [update(self.states[each]) for each in names]

    def asked(self, sql: str) -> list[Any]:
        """Read what another session sees."""
        with closing(sqlite3.connect(self.path)) as database:
            return database.execute(sql).fetchall()

    def content(self) -> list[Any]:
        """Read the rows of all states, and their fences."""
        named = [name for (name,) in self.asked("SELECT name FROM sqlite_master WHERE type = 'table' ORDER BY 1")]
        return [(name, sorted(self.asked(f"SELECT * FROM {name}"), key=str)) for name in named]

    @contextmanager
    def counted(self) -> Iterator[list[int]]:
        """Count the transactions that write."""
        found: list[int] = []

        def note(connection: Any) -> None:
            if not connection.get_execution_options().get("tx_reading", True):
                found.append(1)

        sa.event.listen(sa.Engine, "commit", note)
        try:
            yield found
        finally:
            sa.event.remove(sa.Engine, "commit", note)


@pytest.fixture
def shop(tmp_path: Path) -> Database:
    return Database(tmp_path)


@pytest.fixture
def makes(make: Any, shop: Database) -> Callable[..., Makes]:
    return lambda *names: Makes(make, updates=shop.updates(*names))


# --- a commit


@pytest.mark.parametrize("names", [(TABLE, TOTALS), (TABLE, TOTALS, GUARD), (TABLE, ELSEWHERE, TOTALS)])
def test_all_states_of_one_database_are_written_in_one_transaction_of_the_database(
    makes: Any, shop: Database, names: tuple[str, ...]
) -> None:
    made = makes(*names)
    committed(made, rows(a=1))
    with shop.counted() as transactions:
        committed(made, rows(a=2, b=3))
    assert len(transactions) == 1
    assert shop.asked("SELECT word, count FROM totals ORDER BY word") == [("a", 3), ("b", 3)]
    assert shop.asked("SELECT tx_txid, word, count FROM seen ORDER BY 1, 2") == [(1, "a", 1), (2, "a", 2), (2, "b", 3)]


def test_a_guard_that_is_written_after_the_states_reads_their_new_rows(makes: Any, shop: Database) -> None:
    made = makes(TOTALS, GUARD)
    committed(made, rows(a=1))
    committed(made, rows(a=2, b=3))
    assert shop.asked("SELECT total FROM report") == [(6,)]


def test_a_value_that_the_second_state_refuses_leaves_the_first_state_unchanged(makes: Any, shop: Database) -> None:
    made = makes(TOTALS, TABLE)
    committed(made, rows(a=1))
    shop.execute("CREATE TRIGGER no BEFORE INSERT ON seen WHEN NEW.word = 'bad' BEGIN SELECT RAISE(ABORT, 'bad'); END")
    before = shop.content()
    run = begun(made, rows(a=2, bad=1))
    with pytest.raises(StateError, match="State 'url.seen' refused: the database says: bad"):
        run.commit_now()
    assert shop.content() == before


def test_a_refusal_by_the_fence_of_another_store_leaves_the_database_unchanged(makes: Any, shop: Database) -> None:
    made = makes(TOTALS, TABLE, ELSEWHERE)
    committed(made, rows(a=1))
    before = shop.content()
    shop.states[ELSEWHERE].database.fence = None
    run = begun(made, rows(a=2))
    with pytest.raises(StateError, match="elsewhere"):
        run.commit_now()
    assert shop.content() == before


def test_a_replay_with_other_rows_replaces_the_rows_in_all_states(makes: Any, shop: Database) -> None:
    made = makes(TABLE, TOTALS, ELSEWHERE)
    committed(made, rows(a=1))
    run = begun(made, rows(a=2, gone=9))
    killed_before_the_mark(run.commit())
    assert shop.asked("SELECT sum(count) FROM totals") == shop.asked("SELECT sum(count) FROM seen") == [(12,)]
    run.begin()
    processed(run, rows(b=4)).commit_now()
    assert shop.asked("SELECT sum(count) FROM totals") == shop.asked("SELECT sum(count) FROM seen") == [(5,)]


def test_the_log_names_the_states_that_one_transaction_of_the_database_writes(makes: Any) -> None:
    run = committed(makes(TABLE, ELSEWHERE, TOTALS), rows(a=1))
    assert "One transaction of the database writes url.seen, url.totals" in run.log.lines


# --- new values, portions, other outputs


def promised(names: list[Any]) -> list[Any]:
    return list(written_together(names))


@pytest.mark.usefixtures("small")
def test_updates_with_the_option_together_are_written_in_one_transaction_even_with_many_rows(
    make: Any, shop: Database, area: StagingArea
) -> None:
    totals = replace(update(shop.states[TOTALS]), new_values="totals")
    run = make("r1", updates=promised([totals, *shop.updates(TABLE)]), area=area)
    run.begin()
    counting = run.start()
    many = [{"word": f"w{number}", "count": 1} for number in range(9)]
    run.end(counting, CurrentBatch(counting).stage(many))
    with shop.counted() as transactions:
        run.commit_now()
    assert len(transactions) == 1
    assert shop.asked("SELECT count(*), sum(count) FROM totals") == [(9, 9)]
    assert shop.asked("SELECT count(*) FROM seen") == [(9,)]


def exact(shop: Database, name: str) -> SqlState:
    url = f"sqlite:///{shop.path}"
    return SqlState.from_url(url, table=name, keys=["word"], values={"count": Sum()}, kind="transactional")


def test_the_output_for_states_of_one_database_may_change_only_until_it_is_written(
    make: Any, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = begun(Makes(make, updates=[update(exact(shop, "one")), update(exact(shop, "two"))]), rows(a=1))
    dies(run, monkeypatch, committer, "write_moment")
    run.begin()
    processed(run, rows(a=2))
    dies(run, monkeypatch, Commit, "mark_step")
    assert run.spec.ledger(run.spec.memory).status(1).outputs == prepared(run).prepare().outputs
    run.begin()
    with pytest.raises(OutputChanged):
        processed(run, rows(a=3)).commit_now()
    processed(run, rows(a=2)).commit_now()
    assert shop.asked("SELECT count FROM one") == shop.asked("SELECT count FROM two") == [(2,)]


@pytest.mark.parametrize("name", [TABLE, GUARD])
def test_a_state_that_needs_all_rows_at_once_refuses_an_update_in_parts(shop: Database, name: str) -> None:
    state, grant = shop.states[name], Grants()(1)
    in_parts = StateWrite(state.name, grant, raising=True, parts=lambda: iter([(0, RowTally(rows(a=1)))]))
    with pytest.raises(StateError, match="it received only a part of an update"):
        write_together([(state, in_parts)])
    assert state.fence() is None


# --- a restatement, a skip, a phase


def test_a_restatement_replaces_the_rows_of_all_states_in_one_transaction(makes: Any, shop: Database) -> None:
    made = makes(TABLE, TOTALS)
    committed(made, rows(a=1))
    committed(made, rows(a=2, b=3))
    with shop.counted() as transactions:
        committed(made, rows(a=10), instead_of=1)
    assert len(transactions) == 1
    assert shop.asked("SELECT word, count FROM totals ORDER BY 1") == [("a", 12), ("b", 3)]
    assert shop.asked("SELECT tx_txid, word, count FROM seen ORDER BY 1, 2") == [(2, "a", 2), (2, "b", 3), (3, "a", 10)]


@pytest.mark.parametrize("names", [(TABLE, TOTALS), (TOTALS,), (TOTALS, ELSEWHERE)])
def test_a_restatement_of_a_missing_key_changes_no_state(makes: Any, shop: Database, names: tuple[str, ...]) -> None:
    made = makes(*names)
    committed(made, rows(a=1))
    committed(made, rows(b=3))
    shop.execute("DELETE FROM totals WHERE word = 'a'")
    shop.states[TOTALS].accept_values()
    before = shop.content()
    run = begun(made, rows(a=10), instead_of=1)
    with pytest.raises(NotTakenBack, match="key {'word': 'a'} is missing"):
        run.commit_now()
    assert shop.content() == before


def test_a_replayed_restatement_starts_from_the_values_before_the_failed_attempt(makes: Any, shop: Database) -> None:
    made = makes(TOTALS, TABLE)
    committed(made, rows(a=1))
    committed(made, rows(b=3))
    run = begun(made, rows(c=10), instead_of=1)
    killed_before_the_mark(run.commit())
    run.begin()
    processed(run, rows(a=5)).commit_now()
    assert shop.asked("SELECT word, count FROM totals WHERE count <> 0 ORDER BY 1") == [("a", 5), ("b", 3)]


def test_a_restatement_writes_a_table_that_removes_rows_after_the_state_of_another_store(
    makes: Any, shop: Database
) -> None:
    made = makes(TABLE, TOTALS, ELSEWHERE)
    committed(made, rows(a=1))
    run = begun(made, rows(a=10), instead_of=1)
    found = prepared(run).updates_to_write()
    assert [each.state.name for each in write.moment_of(found)] == ["url.totals"]
    kept = [replace(each, update=replace(each.update, together=each.state is not found[2].state)) for each in found]
    assert [each.state.name for each in write.moment_of(kept)] == ["url.seen", "url.totals"]


def prepared(run: Run) -> Commit:
    commit = run.commit()
    commit.complete()
    commit.prepare()
    return commit


def test_a_skip_undoes_all_states_in_one_transaction_of_their_database(makes: Any, shop: Database) -> None:
    made = makes(TABLE, TOTALS, GUARD)
    committed(made, rows(a=1))
    run = begun(made, rows(a=2))
    ledger = run.spec.ledger(run.spec.memory)
    ledger.run(note_skip, 2, ADA)
    with shop.counted() as transactions:
        take_skip(ledger, 2, {each.name: each for each in run.commit().states.values()}, log=run.log)
    assert len(transactions) == 1
    committed(made, rows(a=4))
    assert shop.asked("SELECT count FROM totals") == [(5,)]


def test_a_retried_committer_of_a_commit_phase_replaces_its_earlier_rows_in_one_transaction(
    make: Any, shop: Database
) -> None:
    inside = [update(shop.states[each], task="c") for each in (TABLE, TOTALS)]
    phase = PhaseRun(make, update(shop.states[ELSEWHERE]), inside[0], rows(a=1), between=["c"])
    phase.updates = {"b": phase.updates["b"], "d": tuple(inside)}  # type: ignore[dict-item]
    phase.acquire()
    phase.commit("b")
    for given in (rows(a=1, gone=5), rows(a=2)):
        phase.returns("c", given)
        with shop.counted() as transactions:
            phase.commit("d")
        assert len(transactions) == 1
    assert shop.asked("SELECT word, count FROM totals") == shop.asked("SELECT word, count FROM seen") == [("a", 2)]


# --- refusals


@task
def found() -> list[dict[str, Any]]:
    return []


def states(*tables: str, conn_id: str = "warehouse") -> list[Any]:
    return [SqlTable(conn_id, table=each) for each in tables]


TWO_DATABASES = [append("rows", state=each) for each in (*states("a", "b"), *states("c", "d", conn_id="other"))]


@pytest.mark.parametrize(
    ("updates", "message"),
    [
        (
            [append("rows", state=each) for each in (*states("a"), *states("b", conn_id="other"))],
            "warehouse.a, other.b'.* No two of these states are in one SQL database: set the same conn_id",
        ),
        (
            [
                persistent_aggregate(
                    "rows", state=RedisState("warehouse", prefix=each, keys=["word"], values={"n": Sum()})
                )
                for each in ("a", "b")
            ],
            "warehouse.a, warehouse.b'.* No two of these states are in one SQL database",
        ),
        (TWO_DATABASES, "warehouse.a, warehouse.b and other.c, other.d'.* together= works for one database"),
        (
            [
                append("rows", state=states("a")[0]),
                persistent_aggregate(
                    "rows",
                    state=SqlState("warehouse", table="b", keys=["word"], values={"n": Sum()}),
                    writers="spark",
                ),
            ],
            "warehouse.b'.* leave writers=, spark= and spark_from_rows= out",
        ),
    ],
)
def test_updates_that_cannot_be_written_in_one_transaction_are_refused(updates: list[Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        written_together(updates)


def test_rejected_rows_are_written_in_the_same_transaction_as_the_updates_of_their_database() -> None:
    one, rejected = states("a", "rejected")
    with DAG("numbers", schedule=None), Transaction(source=Numbers(), rejected=rejected):
        commit = CommitOperator(task_id="commit", updates=[append(found(), state=one)], together=True)
    assert [(each.state.name, each.together) for each in commit.updates] == [
        ("warehouse.a", True),
        ("warehouse.rejected", True),
    ]


def test_a_guard_is_written_after_the_rejected_rows() -> None:
    one, rejected = states("a", "rejected")
    guard = SqlGuard("warehouse", name="summary", statements=["SELECT 1"])
    with DAG("numbers", schedule=None), Transaction(source=Numbers(), rejected=rejected):
        rows = found()
        updates = [append(rows, state=one), partition_persist(rows, state=guard)]
        commit = CommitOperator(task_id="commit", updates=updates, together=True)
    assert [each.state.name for each in commit.updates] == ["warehouse.a", "warehouse.rejected", "warehouse.summary"]


def test_the_option_together_is_refused_in_a_commit_phase() -> None:
    def defined() -> None:
        with DAG("numbers", schedule=None), Transaction(source=Numbers()):
            rows = found()
            with commit_phase("phase"):
                updates = [append(rows, state=each) for each in states("a", "b")]
                CommitOperator(task_id="commit", updates=updates, together=True)

    with pytest.raises(TransactionDefinitionError, match="task phase.commit has together=True in a commit phase"):
        defined()


# --- what ends wrong if a rule is left out


class Given(NamedTuple):
    """What the tests above are given."""

    make: Any
    shop: Database
    patch: pytest.MonkeyPatch

    def makes(self, *names: str) -> Makes:
        return Makes(self.make, updates=self.shop.updates(*names))


LEFT_OUT: dict[str, tuple[Any, str, str, Callable[[Given], None]]] = {
    "the fences elsewhere are raised first": (
        Commit.write,
        "raise_fences(outside, grant)",
        "None",
        lambda given: test_a_refusal_by_the_fence_of_another_store_leaves_the_database_unchanged(
            given.makes, given.shop
        ),
    ),
    "states of one database share its transaction": (
        api.sharing_a_store,
        "state.store_key is None",
        "True",
        lambda given: test_a_value_that_the_second_state_refuses_leaves_the_first_state_unchanged(
            given.makes, given.shop
        ),
    ),
    "the output is noted behind its fence": (
        Commit.write,
        "self._take_other_output(inside)",
        "None",
        lambda given: test_the_output_for_states_of_one_database_may_change_only_until_it_is_written(
            given.make, given.shop, given.patch
        ),
    ),
    "the keys that are taken back are looked up": (
        write.UpdateRows.write,
        "require=self.require",
        "require=None",
        lambda given: test_a_restatement_of_a_missing_key_changes_no_state(given.makes, given.shop, (TABLE, TOTALS)),
    ),
    "the keys that are taken back from the only state are looked up": (
        write.write_moment,
        "not works[0].require",
        "True",
        lambda given: test_a_restatement_of_a_missing_key_changes_no_state(given.makes, given.shop, (TOTALS,)),
    ),
    "what takes rows out is written last": (
        write.moment_of,
        "if not each.for_good",
        "if True",
        lambda given: test_a_restatement_writes_a_table_that_removes_rows_after_the_state_of_another_store(
            given.makes, given.shop
        ),
    ),
    "a try of a phase undoes the one before it": (
        write.UpdateRows.write,
        "not raising and self.state.kind is StateKind.OPAQUE",
        "False",
        lambda given: test_a_retried_committer_of_a_commit_phase_replaces_its_earlier_rows_in_one_transaction(
            given.make, given.shop
        ),
    ),
    "a skip is noted with its raise": (
        handoff.take_skip,
        "if each.store_key is not None",
        "if False",
        lambda given: test_a_skip_undoes_all_states_in_one_transaction_of_their_database(given.makes, given.shop),
    ),
}


@pytest.mark.parametrize("rule", LEFT_OUT, ids=lambda rule: rule.replace(" ", "-"))
def test_each_rule_of_a_moment_is_covered_by_a_test_that_fails_without_the_rule(
    rule: str, make: Any, shop: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    function, old, new, noticed_by = LEFT_OUT[rule]
    with applied(Mutant(rule, ((function, old, new),), ONE)):
        with pytest.raises((AssertionError, TxError, pytest.fail.Exception)):
            noticed_by(Given(make, shop, monkeypatch))
