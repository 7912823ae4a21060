"""Whole transactions that append rows of Python tasks to a table of a lake, or of a database, beside a database."""

from __future__ import annotations

import datetime as dt
import logging
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import deltalake
import pytest

from airflow_tx.base.errors import AcceptanceRefused, StateError
from airflow_tx.ledger import ledger_evidence, verified
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.receipt import Receipt
from airflow_tx.ledger.records import TransactionRecord, decode
from airflow_tx.ledger.steps.replay import WishRequest, want
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.operations.actions.value_acceptance import ChangeAcceptance
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state import Count, DeltaTable, MemoryState, SqlState, SqlTable
from airflow_tx.transaction.commit.update import Update
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.stage import Stage, StageRun, begin_run, update
from tests.unit.bench import CountingStore, MemorySpec, Numbers
from tests.unit.commit.phase_run import PhaseRun
from tests.unit.commit.run import Run

DAYS = [dt.date(2026, 1, 1), dt.date(2026, 1, 2)]
ROWS = [{"id": number, "day": DAYS[number % 2], "note": None} for number in range(4)]
TEXTS = [{**row, "day": str(row["day"])} for row in ROWS]


@pytest.fixture(autouse=True)
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path / "airflow"))


Table = DeltaTable | SqlTable


@pytest.fixture(params=["DeltaTable", "SqlTable"])
def orders(request: pytest.FixtureRequest, tmp_path: Path) -> Table:
    if request.param == "DeltaTable":
        return DeltaTable(tmp_path / "lake/orders", partition_by=["day"])
    return SqlTable.from_url(f"sqlite:///{tmp_path}/orders.db", table="orders", types={"note": "text"})


@pytest.mark.parametrize("many", [1, 200])
@pytest.mark.parametrize("is_staged", [False, True])
def test_rows_are_refused_if_only_some_have_a_value_for_a_column_with_a_default(
    tmp_path: Path, many: int, *, is_staged: bool
) -> None:
    orders = SqlTable.from_url(f"sqlite:///{tmp_path}/orders.db", table="orders")
    with closing(sqlite3.connect(tmp_path / "orders.db")) as database:
        database.execute("CREATE TABLE orders (id BIGINT, status TEXT DEFAULT 'new', tx_txid BIGINT)")
        database.execute("CREATE INDEX i ON orders (tx_txid)")
    rows: list[dict[str, Any]] = [*({"id": number} for number in range(many)), {"id": many, "status": "paid"}]
    area = StagingArea(str(tmp_path), "ledger")
    stage = Stage(area=area, inside=("count", "commit"))
    for run_id, given in enumerate((rows, [{"status": None, **row} for row in rows])):
        run = StageRun(stage.spec, f"r{run_id}")
        run.begin()
        task = run.start()
        output: Any = CurrentBatch(task).stage(given) if is_staged else given
        run.end(task, output)
        if given is rows:
            with pytest.raises(StateError, match="column status has a default, and some of .* rows lack it"):
                commit(run, append_to(orders))
            stage = Stage(name="again", area=area, inside=("count", "commit"))
        else:
            commit(run, append_to(orders))
    assert {row["status"] for row in orders.read()} == {None, "paid"}


def append_to(table: Table, **how: Any) -> Update:
    return update(table, writers="worker", **how)


def committed(stage: Stage, run_id: str, *updates: Update, rows: list[dict[str, Any]] = ROWS) -> StageRun:
    run = StageRun(stage.spec, run_id)
    run.begin()
    run.end(run.start(), rows)
    commit(run, *updates)
    return run


def commit(run: StageRun, *updates: Update) -> None:
    making = run.commit_of(updates)
    making.complete()
    assert making.try_to_commit()


def kept(table: Table) -> list[tuple[Any, ...]]:
    return sorted((row["tx_txid"], row["id"], row["day"]) for row in table.read())


def expected(txid: int, rows: list[dict[str, Any]] = ROWS) -> list[tuple[Any, ...]]:
    return [(txid, row["id"], row["day"]) for row in rows]


def test_the_rows_that_a_task_returns_are_in_the_table_with_their_txid(orders: Table) -> None:
    stage = Stage()
    committed(stage, "r1", append_to(orders))
    assert kept(orders) == expected(1)
    committed(stage, "r2", append_to(orders), rows=[{"id": 9, "day": None, "note": "new"}])
    assert kept(orders) == [*expected(1), (2, 9, None)]
    assert {row["note"] for row in orders.read()} == {None, "new"}


def test_a_batch_without_rows_commits_an_empty_transaction(orders: Table) -> None:
    stage = Stage()
    committed(stage, "r1", append_to(orders), rows=[])
    committed(stage, "r2", append_to(orders))
    assert kept(orders) == expected(2)


def test_each_instance_of_a_mapped_task_adds_its_rows(orders: Table) -> None:
    stage = Stage(mapped=frozenset({"count"}))
    run = StageRun(stage.spec, "r1")
    run.begin()
    for index, row in enumerate(ROWS):
        run.end(run.start(index=index), [row])
    commit(run, append_to(orders))
    assert kept(orders) == expected(1)


def test_a_replay_removes_the_rows_of_the_earlier_attempt(orders: Table) -> None:
    stage = Stage()
    run = StageRun(stage.spec, "r1")
    run.begin()
    run.end(run.start(), ROWS)
    making = run.commit_of([append_to(orders)])
    making.complete()
    # The committer dies after it has written, and before it marks.
    from airflow_tx.spark.new_values import NewValues

    making.take(making.ledger.run(making.acquire_step()))
    assert making.granted is not None
    staged = NewValues(making.area, making.granted.grant, "commit")
    making.write(staged)
    assert len(kept(orders)) == 4
    run.begin(retry=True)
    run.end(run.start(), ROWS[:1])
    commit(run, append_to(orders))
    assert kept(orders) == expected(1, ROWS[:1])


def test_one_transaction_writes_into_a_table_and_a_database(orders: Table, tmp_path: Path) -> None:
    totals = SqlState.from_url(
        f"sqlite:///{tmp_path}/totals.db", table="totals", keys=["day"], values={"orders": Count()}
    )
    rows = [{"day": day, "orders": 1, "id": number} for number, day in enumerate(DAYS)]
    stage = Stage(tasks=("count", "total"))
    run = StageRun(stage.spec, "r1")
    run.begin()
    run.end(run.start(), rows)
    run.end(run.start("total"), [{"day": row["day"], "orders": 1} for row in rows])
    commit(run, append_to(orders), update(totals, task="total"))
    assert kept(orders) == expected(1, rows)
    assert {row["day"]: row["orders"] for row in totals.read()} == dict.fromkeys(DAYS, 1)


def phase_of(of_b: Update, of_d: Update) -> PhaseRun:
    """Begin a run whose committer `d` takes what task `c` inside the phase returns."""

    def made(run_id: str, updates: list[Update], **options: Any) -> Run:
        spec = MemorySpec("numbers", "numbers", Numbers(), memory=CountingStore(), tasks=("count",), **options)
        return Run(spec, run_id, updates, logging.getLogger("task"))

    return PhaseRun(made, of_b, of_d, TEXTS, between=["c"])


def receipt_of(phase: PhaseRun) -> Receipt:
    spec = phase.run.spec
    node = spec.memory.get(spec.paths.history(1))
    receipt = decode(TransactionRecord, "", node.data).receipt
    assert receipt is not None
    return receipt


def test_a_commit_phase_keeps_only_the_rows_of_the_last_try_of_a_cleared_task(orders: Table, tmp_path: Path) -> None:
    totals = SqlState.from_url(f"sqlite:///{tmp_path}/totals.db", table="totals", keys=["day"], values={"n": Count()})
    phase = phase_of(update(totals), append_to(orders, task="c"))
    phase.work([{"day": "2026-01-01", "n": 4}])
    phase.acquire()
    phase.commit("b")
    for rows in (TEXTS, TEXTS, TEXTS[2:], []):
        # Airflow's "clear" runs task c and the committer again: under the same grant, perhaps with other rows.
        phase.returns("c", rows)
        phase.commit("d")
        assert kept(orders) == expected(1, rows)
    phase.returns("c", TEXTS[1:])
    phase.commit("d")
    phase.mark()
    assert kept(orders) == expected(1, TEXTS[1:])
    assert totals.read() == [{"day": "2026-01-01", "n": 4}]
    receipt = receipt_of(phase)
    for state in (orders, totals):
        (own,) = state.receipts()
        assert own.text == replace(receipt, written={state.name: receipt.written[state.name]}).text


def test_a_commit_phase_appends_its_rows_once_although_its_first_task_is_cleared(orders: Table, tmp_path: Path) -> None:
    totals = SqlState.from_url(f"sqlite:///{tmp_path}/totals.db", table="totals", keys=["day"], values={"n": Count()})
    phase = phase_of(append_to(orders), update(totals, task="c"))
    phase.acquire()
    phase.commit("b")
    phase.returns("c", [{"day": "2026-01-01", "n": 2}])
    phase.commit("d")
    phase.states["d"] = None  # cleared, with the first task of the phase
    phase.acquire()
    phase.commit("d")
    phase.mark()
    assert kept(orders) == expected(1, TEXTS)
    assert totals.read() == [{"day": "2026-01-01", "n": 2}]


def test_rows_that_do_not_fit_the_table_are_refused_and_nothing_is_committed(orders: Table) -> None:
    stage = Stage()
    committed(stage, "r1", append_to(orders))
    with pytest.raises(
        StateError, match="id = .* is not a value of type long|row 0, column id: 'text' is not an integer"
    ):
        committed(stage, "r2", append_to(orders), rows=[{"id": "text", "day": DAYS[0]}])
    assert kept(orders) == expected(1)


def delete_by_hand(table: Table, where: str) -> None:
    if isinstance(table, SqlTable):
        with table._store.transaction() as connection:
            connection.exec_driver_sql(f"DELETE FROM {table.table} WHERE {where}")
    else:
        deltalake.DeltaTable(table.uri).delete(where)


def findings(stage: Stage, table: Table) -> list[str]:
    states = evidence_of({table.name: table}, values=True)
    return list(verified(ledger_evidence(stage.store, stage.spec.paths), states).findings)


def test_rows_that_a_person_deleted_are_a_finding_until_a_person_accepts_the_deletion(orders: Table) -> None:
    stage = Stage()
    for run_id in ("r1", "r2"):
        committed(stage, run_id, append_to(orders))
    assert findings(stage, orders) == []
    delete_by_hand(orders, "tx_txid = 1 AND id > 1")
    assert findings(stage, orders) == [f"transaction 1: state {orders.name} has 2 rows of it instead of 4"]
    ledger = stage.spec.ledger(stage.store)
    target = ActionTarget(ledger, ledger.existing_topology(), lambda: (stage.spec, {orders.name: orders}))
    acceptance = ChangeAcceptance(target, orders.name)
    (line,) = acceptance.execute(Audit("ada", "a customer's right"))
    assert line.what == "accepted: it has 2 rows of transaction 1 instead of 4"
    assert findings(stage, orders) == []
    with pytest.raises(AcceptanceRefused, match="its values match its receipts"):
        list(acceptance.execute(Audit("ada", "again")))
    restated(stage, "r1", append_to(orders), rows=ROWS[:3])
    assert findings(stage, orders) == []
    assert kept(orders) == [*expected(2), *expected(3, ROWS[:3])]


def restated(stage: Stage, run_id: str, *updates: Update, rows: list[dict[str, Any]]) -> None:
    """A person wants the first transaction restated, and its run gives these rows."""
    run = StageRun(stage.spec, run_id)
    run.spec.ledger(run.spec.memory).run(want, WishRequest(1, run_id, run_id), Audit("ada", "a bug in the job"))
    run.begun = begin_run(run.spec, run_id, check_entry=lambda entry, topology: None)
    run.end(run.start(), rows)
    commit(run, *updates)


def test_a_restatement_replaces_the_rows_of_the_restated_transaction(orders: Table) -> None:
    totals = MemoryState("totals", keys=["day"], values={"orders": Count()})
    stage = Stage(tasks=("count", "total"))
    updates = [append_to(orders), update(totals, task="total")]
    days = [{"day": DAYS[0], "orders": 4}]
    for run_id in ("r1", "r2", "r1"):
        run = StageRun(stage.spec, run_id)
        again = run_id == "r1" and orders.read() != []
        if again:
            audit = Audit("ada", "a bug in the job")
            run.spec.ledger(run.spec.memory).run(want, WishRequest(1, run_id, run_id), audit)
        run.begun = begin_run(run.spec, run_id, check_entry=lambda entry, topology: None)
        run.end(run.start(), ROWS[:1] if again else ROWS)
        run.end(run.start("total"), days)
        commit(run, *updates)
    assert run.begun.replaces.txid == 1
    assert kept(orders) == [*expected(2), *expected(3, ROWS[:1])]
    assert [row["orders"] for row in totals.read()] == [8]
