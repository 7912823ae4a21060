"""States that are set back to backups, every kind of transaction between them, and what all of them have to pass."""

from __future__ import annotations

import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from airflow_tx.base.errors import StateBehind
from airflow_tx.ledger.audit.chain import ledger_evidence
from airflow_tx.ledger.audit.verification import verified
from airflow_tx.ledger.steps.end import note_skip
from airflow_tx.ledger.steps.step import Audit
from airflow_tx.operations.actions.action import ActionTarget
from airflow_tx.operations.actions.evidence import evidence_of
from airflow_tx.operations.actions.restatement import TransactionRestatement
from airflow_tx.operations.actions.roll_forward import RollForwardRepair
from airflow_tx.state import Aggregator, DeltaTable, MemoryState, SqlTable, Sum
from airflow_tx.state.sql.state import SqlState
from airflow_tx.transaction.commit import roll_forward as module
from airflow_tx.transaction.commit.handoff import take_skip
from airflow_tx.transaction.commit.update import DagStates
from tests.unit.commit.restated_run import begun, committed, journal_of, processed, rows
from tests.unit.commit.run import Run, killed_before_the_mark

ADA = Audit("ada", "the disk is gone")
Content = list[tuple[Any, ...]]


class InMemory:
    """A state in memory, whose database is set back."""

    def __init__(self, folder: Path, kind: str, made: Aggregator | None = None) -> None:
        self.state: Any = MemoryState("words", keys=["word"], values={"count": made or Sum()}, kind=kind)

    def backup(self) -> Callable[[], None]:
        kept = self.state.database.snapshot()
        return lambda: self.state.database.restore(kept)

    def values_of(self, kept: Callable[[], None]) -> None:
        """Set back the values, and not the fence with the receipts."""
        fence, receipts = self.state.database.fence, self.state.database.receipts
        kept()
        self.state.database.fence, self.state.database.receipts = fence, receipts

    def lose(self, *txids: int) -> None:
        """Lose the values that some transactions wrote, and nothing else."""
        rows = self.state.database.rows
        self.state.database.rows = {key: each for key, each in rows.items() if each.txid not in txids}

    def beside(self) -> Any:
        """What the store keeps of the fence."""
        fence = self.state.database.fence
        return None if fence is None else vars(fence)

    def content(self) -> Content:
        return sorted(
            (key, each.value, each.txid, getattr(each, "prev", None), each.token and each.token.rank[2:])
            for key, each in self.state.database.rows.items()
        )


class InSqlite:
    """A state in a file of SQLite, which is copied and put back.

    :cvar of_fence: the tables beside that of the values.
    """

    of_fence: tuple[str, ...] = ("airflow_tx_fence", "airflow_tx_receipts", "airflow_tx_portions")

    def __init__(self, folder: Path, kind: str, made: Aggregator | None = None) -> None:
        self.file = folder / "state.db"
        self._copies = 0
        self.kind = kind
        self._made = made or Sum()
        self.state: Any = self.new()

    def new(self) -> Any:
        url = f"sqlite:///{self.file}"
        return SqlState.from_url(url, table="words", keys=["word"], values={"count": self._made}, kind=self.kind)

    def backup(self) -> Callable[[], None]:
        self._copies += 1
        copy = self.file.with_suffix(f".{self._copies}")
        if not self.file.exists():
            return self.lose_all
        shutil.copy(self.file, copy)

        def restore() -> None:
            shutil.copy(copy, self.file)

        return restore

    def lose_all(self) -> None:
        self.file.unlink()
        self.state = self.new()

    def values_of(self, kept: Callable[[], None]) -> None:
        now = self.file.with_suffix(".now")
        shutil.copy(self.file, now)
        kept()
        with sqlite3.connect(self.file) as connection:
            connection.execute(f"attach '{now}' as now")
            for table in self.of_fence:
                connection.execute(f"delete from {table}")
                connection.execute(f"insert into {table} select * from now.{table}")

    def lose(self, *txids: int) -> None:
        with sqlite3.connect(self.file) as connection:
            for txid in txids:
                connection.execute("delete from words where tx_txid = ?", (txid,))

    def lose_table(self) -> None:
        with sqlite3.connect(self.file) as connection:
            connection.execute("drop table words")
        self.state = self.new()

    def beside(self) -> Any:
        with sqlite3.connect(self.file) as connection:
            connection.row_factory = sqlite3.Row
            return [dict(each) for each in connection.execute("select * from airflow_tx_fence")]

    def content(self) -> Content:
        with sqlite3.connect(self.file) as connection:
            names = [each[1] for each in connection.execute("pragma table_info(words)")]
            own = [name for name in names if name != "tx_generation"]
            return sorted(connection.execute(f"select {', '.join(own)} from words").fetchall())


class TableInSqlite(InSqlite):
    """A table in a file of SQLite, which is copied and put back."""

    of_fence = ("airflow_tx_fence", "airflow_tx_receipts")

    def __init__(self, folder: Path, **options: Any) -> None:
        self._options = options
        super().__init__(folder, "opaque")

    def new(self) -> Any:
        return SqlTable.from_url(f"sqlite:///{self.file}", table="words", **self._options)

    def backup(self) -> Callable[[], None]:
        kept = super().backup()

        def restore() -> None:
            kept()
            self.state = self.new()

        return restore

    def sql(self, statement: str) -> Any:
        with sqlite3.connect(self.file) as connection:
            return connection.execute(statement).fetchall()

    def content(self) -> Content:
        return sorted(self.sql("select tx_txid, tx_row, word, count from words"))


class LakeInFolder:
    """A table of a lake, whose log is set back; its files stay."""

    def __init__(self, folder: Path) -> None:
        self.state = DeltaTable(folder / "lake")
        self.log = folder / "lake/_delta_log"
        self._copies = 0

    def backup(self) -> Callable[[], None]:
        self._copies += 1
        copy = self.log.with_name(f"_log{self._copies}")
        shutil.copytree(self.log, copy)

        def restore() -> None:
            shutil.rmtree(self.log)
            shutil.copytree(copy, self.log)

        return restore

    def content(self) -> list[str]:
        return sorted(map(str, self.state.read()))


def entry_file(run: Any, txid: int) -> Path:
    files = run.spec.staging().files
    folder = Path(files.uri(journal_of(run)._folder).removeprefix("file://"))
    (found,) = folder.rglob(f"{txid}-*")
    return found


def repair(run: Run, place: Any, **options: Any) -> RollForwardRepair:
    spec = run.spec
    states = options.pop("states", {place.state.name: place.state})
    return RollForwardRepair(spec.ledger(spec.memory), states, journal_of(run), spec.staging(), **options)


def restating(run: Run) -> TransactionRestatement:
    """What has transactions of the DAG of a run restated."""
    dag = SimpleNamespace(tasks=[SimpleNamespace(task_id="commit", updates=run.updates)])
    ledger = run.spec.ledger(run.spec.memory)
    return TransactionRestatement(ActionTarget(ledger, ledger.topology(), lambda: (run.spec, DagStates(dag))), ())


def rolled(run: Run, place: Any, **options: Any) -> list[str]:
    """Roll forward; why states were refused."""
    command = repair(run, place, **options)
    command.execute(ADA)
    return [str(each.what) for each in command.refused]


def findings(run: Run, place: Any) -> tuple[str, ...]:
    """What `airflow tx verify --values` finds."""
    ledger = ledger_evidence(run.spec.memory, run.spec.paths)
    return verified(ledger, evidence_of({place.state.name: place.state}, values=True)).findings


def skipped(makes: Any, output: Any, *, written: bool) -> Run:
    """Skip a transaction; with rows of an attempt that was killed before its mark."""
    run = begun(makes, output)
    if written:
        killed_before_the_mark(run.commit())
    ledger = run.spec.ledger(run.spec.memory)
    assert run.begun is not None
    ledger.run(note_skip, run.begun.txid, ADA)
    states = {each.state.name: each.state for each in run.updates}
    take_skip(ledger, run.begun.txid, states, log=run.log)
    return run


def story(makes: Any, place: Any) -> tuple[Run, dict[str, Callable[[], None]]]:
    """Every kind of transaction; the backups between them, by what had happened last."""
    backups = {}
    committed(makes, rows(a=1, b=2))
    backups["1"] = place.backup()
    run = begun(makes, rows(a=100, c=1))
    killed_before_the_mark(run.commit())
    backups["2.1"] = place.backup()
    run.begin()
    processed(run, rows(a=10, b=-10)).commit_now()
    backups["2"] = place.backup()
    skipped(makes, rows(a=7, d=7), written=True)
    backups["3, skipped"] = place.backup()
    committed(makes, rows(a=5, c=9), instead_of=1)
    backups["4, of 1"] = place.backup()
    last = committed(makes, rows(b=3, e=1))
    return last, backups


WHEN = ["1", "2.1", "2", "3, skipped", "4, of 1"]


def values(place: Any) -> dict[str, int]:
    return {row["word"]: row["count"] for row in place.state.read()}


class RollForwardTests:
    """The tests of a state of one store, which the fixture `place` gives."""

    @pytest.mark.parametrize("when", WHEN)
    def test_a_state_of_any_moment_is_as_if_it_had_not_gone_back(self, makes: Any, place: Any, when: str) -> None:
        run, backups = story(makes, place)
        truth, receipts = place.content(), place.state.receipts()
        backups[when]()
        with pytest.raises(StateBehind, match="--roll-forward"):
            begun(makes, rows(a=1)).commit_now()
        assert rolled(run, place) == []
        assert (place.content(), place.state.receipts()) == (truth, receipts)
        assert findings(run, place) == ()

    @pytest.mark.parametrize("when", WHEN)
    def test_values_that_went_back_without_their_fence_decide(self, makes: Any, place: Any, when: str) -> None:
        run, backups = story(makes, place)
        truth = place.content()
        place.values_of(backups[when])
        assert rolled(run, place) == []
        assert place.content() == truth
        assert findings(run, place) == ()

    @pytest.mark.parametrize("when", WHEN)
    def test_a_fence_that_went_back_without_its_values_gets_the_receipts_that_went_with_it(
        self, makes: Any, place: Any, when: str
    ) -> None:
        run, backups = story(makes, place)
        truth, receipts = place.content(), place.state.receipts()
        now = place.backup()
        backups[when]()
        place.values_of(now)
        assert rolled(run, place) == []
        assert (place.content(), place.state.receipts()) == (truth, receipts)
        assert findings(run, place) == ()

    def test_two_portions_of_a_transaction_are_written_and_it_may_die_between_them(
        self, makes: Any, place: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        run, backups = story(makes, place)
        truth = values(place)
        backups["1"]()
        monkeypatch.setattr(module, "ROWS_A_WRITE", 1)
        points = list[str]()

        def dies(name: str, **context: Any) -> None:
            points.append(name)
            if points.count(name) == 1:
                raise OSError("killed")

        monkeypatch.setattr(module, "failpoint", dies)
        for _ in range(2):
            with pytest.raises(OSError, match="killed"):
                rolled(run, place)
        assert rolled(run, place) == []
        assert set(points) == {"roll_forward.wrote", "roll_forward.between_portions"}
        assert values(place) == truth
        assert findings(run, place) == ()
