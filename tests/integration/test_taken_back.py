"""A database of source and state together is set back: each row of it is counted once, all the same."""

from __future__ import annotations

import logging
import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import RepairRefused, SourceError, StateBehind
from airflow_tx.ledger.answers import Begun
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.operations.actions.loss_acceptance import LossAcceptance
from airflow_tx.operations.actions.return_to_transaction import held_by
from airflow_tx.operations.actions.roll_forward import RollForwardRepair
from airflow_tx.outputs.journal import JournalArea
from airflow_tx.sources.files.source import FileSource
from airflow_tx.sources.sql.source import SqlSource
from airflow_tx.state import SqlState, Sum
from airflow_tx.testing.airflow import connection
from airflow_tx.transaction.processing.batch import CurrentBatch
from tests.integration.databases import query
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres
from tests.stage import Stage, update
from tests.unit.commit.run import Run

ADA = Audit("ada", "one backup of both")
ALONE = {"isolation_level": "AUTOCOMMIT"}


class Shop:
    """A database with orders and with their totals, and its backup."""

    def __init__(self, url: str, backup: Callable[[], None], restore: Callable[[], None]) -> None:
        self.url, self.backup, self.restore = url, backup, restore
        ids = "BIGSERIAL PRIMARY KEY" if url.startswith("postgres") else "INTEGER PRIMARY KEY AUTOINCREMENT"
        query(url, f"CREATE TABLE orders (id {ids}, amount INTEGER)")
        self.state = SqlState.from_url(url, table="totals", keys=["word"], values={"n": Sum()}, label="shop")
        self.stage = Stage(source=SqlSource("shop", "orders"), inside=("count", "commit"))
        self.runs = 0

    def sell(self, amount: int) -> None:
        query(self.url, f"INSERT INTO orders (amount) VALUES ({amount})")

    def run(self, run_id: str = "") -> int:
        """Count what is new."""
        self.runs += 1
        run = self.begun(run_id or f"run {self.runs}")
        run.commit_now()
        return int(run.begun.txid)

    def begun(self, run_id: str) -> Any:
        run = Run(self.stage.spec, run_id, [update(self.state)], logging.getLogger("task"))
        assert isinstance(run.begin(), Begun)
        processing = run.start()
        rows = [{"word": "all", "n": row["amount"]} for row in CurrentBatch(processing).read()]
        run.end(processing, rows)
        return run

    @property
    def ledger(self) -> Any:
        return self.stage.spec.ledger(self.stage.store)

    def roll_forward(self) -> None:
        spec = self.stage.spec
        journal = JournalArea(spec.staging(), self.ledger.incarnation())
        states = {self.state.name: self.state}
        RollForwardRepair(self.ledger, states, journal, spec.staging(), source=spec.source).execute(ADA)

    def back(self, txid: int) -> str:
        held = held_by({self.state.name: self.state}, self.ledger.incarnation())
        return str(self.ledger.back(txid, audit=ADA, **held).summary)

    def accept_loss(self) -> None:
        """As `airflow tx accept-loss` does."""
        topology = self.ledger.topology()
        target = ActionTarget(self.ledger, topology, lambda: (self.stage.spec, {self.state.name: self.state}))
        list(LossAcceptance(target).execute(ADA))

    def total(self) -> int:
        (row,) = self.state.read()
        return int(row["n"])

    def findings(self) -> tuple[str, ...]:
        evidence = ledger_evidence(self.stage.store, self.stage.spec.paths)
        return verified(evidence, evidence_of({self.state.name: self.state}, values=True)).findings


@pytest.fixture(params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shop]:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    if request.param == "sqlite":
        file, copy = tmp_path / "shop.db", tmp_path / "backup.db"
        monkeypatch.setenv("AIRFLOW_CONN_SHOP", connection("sqlite", host=str(file)))
        yield Shop(f"sqlite:///{file}", lambda: shutil.copy(file, copy), lambda: shutil.copy(copy, file))  # type: ignore[arg-type]
        return
    server: LocalPostgres = request.getfixturevalue("postgres")
    name = server.new_database()
    fields: dict[str, Any] = {"host": "127.0.0.1", "port": server.port, "schema": name}
    made = connection("postgres", login=POSTGRES_USER, password=POSTGRES_PASSWORD, **fields)
    monkeypatch.setitem(os.environ, "AIRFLOW_CONN_SHOP", made)

    def copied(old: str, new: str) -> None:
        query(server.url(), f'DROP DATABASE IF EXISTS "{new}" WITH (FORCE)', **ALONE)
        ended = f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE datname = '{old}'"
        query(server.url(), ended)
        query(server.url(), f'CREATE DATABASE "{new}" TEMPLATE "{old}"', **ALONE)

    kept = f"{name}_kept"
    yield Shop(server.url(name), lambda: copied(name, kept), lambda: copied(kept, name))
    query(server.url(), f'DROP DATABASE IF EXISTS "{kept}" WITH (FORCE)', **ALONE)


def set_back(shop: Shop, opened: str = "") -> None:
    """Set back source and state to transaction 2 of 4.

    :param opened: the run of another one, which is open.
    """
    for amount in (1, 20):
        shop.sell(amount)
        shop.run()
    shop.backup()
    for amount in (300, 4000):
        shop.sell(amount)
        shop.run()
    assert shop.total() == 4321
    if opened:
        shop.sell(9)
        shop.begun(opened)
    shop.restore()


def state_set_back(shop: Shop) -> None:
    """Set back the state alone, to transaction 2 of 4."""
    set_back(shop)
    query(shop.url, "INSERT INTO orders (id, amount) VALUES (3, 300), (4, 4000)")
    if shop.url.startswith("postgres"):
        query(shop.url, "SELECT setval('orders_id_seq', 4)")


def test_roll_forward_is_refused_and_names_repair_back_if_source_and_state_were_restored(shop: Shop) -> None:
    set_back(shop)
    with pytest.raises(RepairRefused, match="airflow tx repair numbers --back 2$"):
        shop.roll_forward()
    assert shop.total() == 21


def test_each_row_counts_once_after_repair_back_of_a_restored_source_and_state(shop: Shop) -> None:
    set_back(shop)
    told = shop.back(2)
    assert told == "transactions 3 to 4 are taken back; their runs begin again when they are cleared: run 3, run 4"
    for amount in (50000, 600000):
        shop.sell(amount)
        assert shop.run(f"run {len(str(amount)) - 2}") == len(str(amount))
    assert shop.total() == 650021
    assert query(shop.url, "SELECT sum(amount) FROM orders") == [(650021,)]
    assert shop.findings() == ()
    shop.restore()
    assert shop.back(2).startswith("transactions 3 to 6 are taken back")
    shop.sell(7)
    assert shop.run() == 7
    assert shop.total() == 28
    assert shop.findings() == ()


def test_the_file_of_a_transaction_that_was_taken_back_is_counted_again(shop: Shop, tmp_path: Path) -> None:
    files = FileSource(f"{tmp_path}/*.csv", schema="amount INT", files_per_batch=1)
    shop.stage = Stage(source=files, inside=("count", "commit"))
    (tmp_path / "1.csv").write_text("amount\n1\n")
    shop.run()
    shop.backup()
    (tmp_path / "2.csv").write_text("amount\n20\n")
    shop.run()
    shop.restore()
    shop.back(1)
    assert shop.run("run 2") == 3
    assert shop.total() == 21
    assert shop.findings() == ()


def test_a_repeated_repair_back_lists_the_same_runs_again(shop: Shop) -> None:
    set_back(shop)
    assert shop.back(2) == shop.back(2)


def test_repair_back_is_refused_if_no_later_transaction_has_begun(shop: Shop) -> None:
    shop.sell(1)
    shop.run()
    with pytest.raises(RepairRefused, match="no transaction after 1 has begun"):
        shop.back(1)


def test_repair_back_also_takes_back_transactions_that_are_still_open(shop: Shop) -> None:
    set_back(shop, "run 5")
    assert "3 to 5" in shop.back(2)
    shop.sell(9)
    assert shop.run("run 5") == 6
    assert shop.total() == 30
    assert shop.findings() == ()


@pytest.mark.parametrize(
    ("txid", "why"),
    [(1, "names transaction 2.1, not 1"), (3, "names transaction 2.1, not 3"), (9, "--back 9 is no final transaction")],
)
def test_repair_back_is_refused_if_a_state_is_at_another_transaction(shop: Shop, txid: int, why: str) -> None:
    set_back(shop)
    before = shop.ledger.topology()
    with pytest.raises(RepairRefused, match=why):
        shop.back(txid)
    assert shop.ledger.topology() == before


def test_accept_loss_is_refused_while_source_and_states_are_both_restored_to_an_older_backup(shop: Shop) -> None:
    set_back(shop)
    roll = "airflow tx repair numbers --roll-forward"
    with pytest.raises(
        SourceError, match=f"begins again.* If the states were restored together with the source, first: {roll}"
    ):
        shop.begun("run 5")
    told = f"The source of topology numbers also went back. This command says what to do: {roll}$"
    with pytest.raises(StateBehind, match=told):
        shop.accept_loss()
    shop.back(2)


def source_begins_again(shop: Shop) -> None:
    """Set back the source alone, to transaction 2 of 4, and accept what it lost."""
    state_set_back(shop)
    shop.roll_forward()
    query(shop.url, "DELETE FROM orders WHERE id > 2")
    is_server = shop.url.startswith("postgres")
    query(shop.url, "SELECT setval('orders_id_seq', 2)" if is_server else "UPDATE sqlite_sequence SET seq = 2")
    shop.accept_loss()


def test_a_state_can_be_rolled_forward_after_a_person_accepts_the_loss_of_the_source(shop: Shop) -> None:
    source_begins_again(shop)
    shop.restore()
    shop.roll_forward()
    assert shop.total() == 4321
    assert shop.run() == 5
    assert shop.total() == 4342
    assert shop.findings() == ()


def test_repair_back_removes_a_loss_that_was_accepted_earlier(shop: Shop) -> None:
    source_begins_again(shop)
    shop.restore()
    shop.back(2)
    shop.sell(300)
    shop.sell(4000)
    shop.run()
    assert shop.findings() == ()
    shop.sell(7)
    shop.run()
    assert shop.total() == 4328
    assert shop.findings() == ()


def test_a_state_is_rolled_forward_if_only_the_state_was_restored(shop: Shop) -> None:
    state_set_back(shop)
    shop.roll_forward()
    assert shop.total() == 4321


@pytest.mark.parametrize("written", [False, True])
def test_a_killed_repair_back_can_be_run_again(shop: Shop, monkeypatch: pytest.MonkeyPatch, written: bool) -> None:
    set_back(shop)
    multi = shop.stage.store.multi

    def dies(requirements: Any, writes: Any) -> None:
        if written:
            multi(requirements, writes)
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(shop.stage.store, "multi", dies)
        with pytest.raises(KeyboardInterrupt):
            shop.back(2)
    assert "3 to 4 are taken back" in shop.back(2)
    shop.sell(9)
    assert shop.run() == 5
    assert shop.total() == 30
    assert shop.findings() == ()
