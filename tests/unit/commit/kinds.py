"""Every public kind of state: how its store is backed up, lost, renamed and changed by hand, and what then happens."""

from __future__ import annotations

import inspect
import re
import shutil
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

from airflow_tx import state as room
from airflow_tx.base.errors import TxError
from airflow_tx.ledger.audit.plan import HeldState
from airflow_tx.ledger.audit.rebuild import Repairs, note_change, rename_state, state_lost
from airflow_tx.operations.actions.roll_forward import RollForwardRepair
from airflow_tx.state import (
    DeltaTable,
    FencedState,
    Max,
    MemoryMap,
    MemoryState,
    NonTransactionalMap,
    OpaqueMap,
    SqlGuard,
    SqlState,
    SqlTable,
    StateKind,
    Sum,
    TransactionalMap,
)
from airflow_tx.state.persisted import as_aggregate
from airflow_tx.testing.suites.aggregator_cases import Balance
from tests.stage import update
from tests.unit.commit.backups import ADA, restating
from tests.unit.commit.restated_run import Makes, begun, committed, journal_of

Rows = list[dict[str, Any]]
GIVEN: list[Rows] = [[{"word": "ab"[n % 2], "count": n}, {"word": "c", "count": 10 * n}] for n in range(1, 8)]
ROLL, LOST, LEDGER, CHANGED = "--roll-forward", "--state-lost", "--ledger-lost", "--changed"
RESTATE = f"{ROLL} --restate"
BEFORE_THE_LOSS = {"backup": [LOST], "lost": [LOST], "renamed": [LOST], "forgotten": [LOST], "ledger lost": [LEDGER]}
UNNOTICED: dict[str, list[str]] = {"backup": [], "lost": []}
EVENTS = ("backup", "lost", "renamed", "forgotten", "ledger lost", "by hand", "restated")


def public_kinds() -> set[str]:
    """The public classes that keep values: states, maps, and factories of them."""
    found = {name: getattr(room, name) for name in room.__all__}
    classes = {name: each for name, each in found.items() if inspect.isclass(each)}
    return {
        name
        for name, each in classes.items()
        if not inspect.isabstract(each) and not getattr(each, "_is_protocol", False)
        if issubclass(each, FencedState) or hasattr(each, "make_state") or hasattr(each, "begin_commit")
    }


class Kind:
    """A state of one kind.

    :ivar state: as the DAG has it now.
    """

    folder: Path
    state: Any

    def rows(self, number: int) -> Rows:
        """What a transaction gives to it."""
        return GIVEN[number]

    def content(self) -> Any:
        return sorted(self.state.read(), key=str)

    def backup(self) -> Callable[[], None]:
        raise NotImplementedError

    def lose(self) -> None:
        raise NotImplementedError

    def rename(self) -> Any:
        """Move the values, and give the state its new name."""
        raise NotImplementedError

    def by_hand(self) -> dict[str, Any]:
        """Change values by hand; what `note_change` takes of it."""
        raise NotImplementedError


class InFolder(Kind):
    """A state whose store is a folder, which is copied and put back."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.folder.mkdir()
        self._copies = 0
        self.name = "words"
        self.state = self.opened()

    def opened(self) -> Any:
        raise NotImplementedError

    def backup(self) -> Callable[[], None]:
        self._copies += 1
        copy = self.folder.with_name(f"copy{self._copies}")
        shutil.copytree(self.folder, copy)

        def restore() -> None:
            self.lose()
            shutil.copytree(copy, self.folder, dirs_exist_ok=True)

        return restore

    def lose(self) -> None:
        shutil.rmtree(self.folder)
        self.folder.mkdir()
        self.state = self.opened()


class InSql(InFolder):
    """A state in a database of SQLite."""

    def __init__(self, folder: Path, make: Callable[[str, str], Any], *, row: dict[str, Any] | None = None) -> None:
        self._make = make
        self._row = row
        super().__init__(folder)

    def opened(self) -> Any:
        return self._make(f"sqlite:///{self.folder}/state.db", self.name)

    def sql(self, statement: str) -> Any:
        with sqlite3.connect(self.folder / "state.db") as connection:
            return connection.execute(statement).fetchall()

    def rows(self, number: int) -> Rows:
        given = super().rows(number)
        return given if self._row is None else [{**self._row, "word": each["word"]} for each in given]

    def rename(self) -> Any:
        old = self.state
        self.sql("alter table words rename to other")
        self.name = "other"
        self.state = self.opened()
        self.state.take_over(old.name)
        return old.name, self.state.name

    def by_hand(self) -> dict[str, Any]:
        if self.state.takes_back_by_txid:
            self.sql(f"delete from {self.name} where tx_txid = 1 and word = 'c'")
            return {"columns": {}, "rows": {1: 1}}
        self.sql(f"update {self.name} set count = count + 5 where word = 'c'")
        return {"columns": {"count": 5} if self.state.added_up else {}}


class Guarded(InSql):
    """Statements of one's own behind a fence."""

    def __init__(self, folder: Path) -> None:
        statements = ["INSERT INTO guarded VALUES (:word, :count)"]
        super().__init__(folder, lambda url, name: SqlGuard.from_url(url, name=name, statements=statements))

    def opened(self) -> Any:
        self.sql("create table if not exists guarded (word text, count bigint)")
        return super().opened()

    def content(self) -> Any:
        return sorted(self.sql("select * from guarded"))


class Lake(InFolder):
    """A table of a lake: its log is set back, and its files stay."""

    def opened(self) -> Any:
        return DeltaTable(self.folder / "lake")

    def backup(self) -> Callable[[], None]:
        self._copies += 1
        log, copy = self.folder / "lake/_delta_log", self.folder.with_name(f"copy{self._copies}")
        shutil.copytree(log, copy)

        def restore() -> None:
            shutil.rmtree(log)
            shutil.copytree(copy, log)

        return restore


class InMemory(Kind):
    """A state in the memory of this process."""

    def __init__(self) -> None:
        self.state = MemoryState("words", keys=["word"], values={"count": Sum()})

    def backup(self) -> Callable[[], None]:
        kept = self.state.database.snapshot()
        return lambda: self.state.database.restore(kept)

    def lose(self) -> None:
        self.state.clear()


class OfTrident(Kind):
    """A map of Trident's over a dictionary: it has no fence."""

    def __init__(self, made: Callable[[Any], Any]) -> None:
        self._store = MemoryMap[Any]()
        self.state = as_aggregate(made(self._store), ["word"], {"count": Sum()}, None)

    def content(self) -> Any:
        return self.state.multi_get([["a"], ["b"], ["c"]])

    def backup(self) -> Callable[[], None]:
        kept = dict(self._store.values)

        def restore() -> None:
            self._store.values.clear()
            self._store.values.update(kept)

        return restore

    def lose(self) -> None:
        self._store.values.clear()


def keyed(made: Any, kind: str = "opaque") -> Callable[[str, str], Any]:
    return lambda url, name: SqlState.from_url(url, table=name, keys=["word"], values={"count": made}, kind=kind)


KINDS: dict[str, Callable[[Path], Kind]] = {
    "SqlState": lambda folder: InSql(folder, keyed(Sum())),
    "SqlState transactional": lambda folder: InSql(folder, keyed(Sum(), "transactional")),
    "SqlState largest": lambda folder: InSql(folder, keyed(Max())),
    "SqlState reducer": lambda folder: InSql(folder, keyed(Balance()), row={"step": 2}),
    "SqlTable": lambda folder: InSql(folder, lambda url, name: SqlTable.from_url(url, table=name)),
    "SqlTable without rows in the journal": lambda folder: InSql(
        folder, lambda url, name: SqlTable.from_url(url, table=name, journal_rows=False)
    ),
    "SqlGuard": Guarded,
    "DeltaTable": Lake,
    "MemoryState": lambda folder: InMemory(),
    "OpaqueMap": lambda folder: OfTrident(OpaqueMap),
    "TransactionalMap": lambda folder: OfTrident(TransactionalMap),
    "NonTransactionalMap": lambda folder: OfTrident(NonTransactionalMap),
}
"""By name of the class, and of how it is made: the ones without a server."""
ON_SERVERS = frozenset({"RedisState", "RedisGuard", "MemcachedState"})
"""The ones of `tests/integration/test_kinds_of_states.py`."""
PARTS = frozenset({"RollBackMap", "CachedMap", "SnapshottableMap"})
"""Maps around another map, which is the one that has the values."""


def without_txids(content: Any) -> Any:
    """The rows of a table, of any transaction."""
    own = [{name: each for name, each in row.items() if not name.startswith("tx_")} for row in content]
    return sorted(own, key=str)


class Story:
    """Three transactions, what happens to the store, and what a person does then.

    :ivar typed: the advised commands that the person has typed, and whether one was refused.
    :ivar mended: what the state has after them, before the next transaction.
    """

    def __init__(self, make: Any, kind: Kind) -> None:
        self.kind = kind
        self.typed: list[str] = []
        self.others: list[Any] = []
        self.given: dict[int, int] = {}

        def makes(run_id: str, **options: Any) -> Any:
            return make(run_id, **{"updates": [update(self.kind.state), *self.others], **options})

        self.makes = Makes(makes)
        self.run = self._committed(0)
        self.kept = kind.backup()
        self._committed(1)
        self.run = self._committed(2)

    @property
    def ledger(self) -> Any:
        return self.run.spec.ledger(self.run.spec.memory)

    def _committed(self, number: int, **how: Any) -> Any:
        run = committed(self.makes, self.kind.rows(number), **how)
        self.given[run.begun.txid] = number
        return run

    # --- events

    def backup(self) -> Any:
        truth = self.kind.content()
        self.kept()
        return truth

    def lost(self) -> Any:
        truth = self.kind.content()
        self.kind.lose()
        return truth

    def renamed(self) -> Any:
        old, new = self.kind.rename()
        self.ledger.run(rename_state, old, new, audit=ADA)
        self.run = self._committed(3)
        return self.lost()

    def forgotten(self) -> Any:
        """Its DAG leaves it out, a person forgets it, and then the DAG has it again."""
        Repairs(self.ledger).state_lost(self.kind.state.name, ADA)
        self.others = [update(SqlTable.from_url(f"sqlite:///{self.kind.folder}/../other.db", table="other"))]
        self.run = self._committed(3, updates=self.others)
        self.run = self._committed(3)
        kept = self.kind.backup()
        self.run = self._committed(4)
        truth = self.kind.content()
        kept()
        return truth

    def ledger_lost(self) -> Any:
        memory = self.run.spec.memory
        memory._nodes.clear()
        return self.kind.content()

    def by_hand(self) -> Any:
        noted = self.kind.by_hand()
        receipt = self.ledger.topology().receipt
        self.ledger.run(note_change, self.kind.state.name, keys=[], receipt=receipt, audit=ADA, **noted)
        noted_as = self.ledger.topology().accepted[self.kind.state.name]["change"]
        self.kind.state.accept_values(noted_as)
        self.run = self._committed(3)
        return self.backup()

    def restated(self) -> Any:
        self.run = self._committed(5, instead_of=2)
        return self.backup()

    # --- a person

    def goes_on(self) -> None:
        """Commit the next transaction, typing what each refusal advises, until it is committed."""
        late = begun(self.makes, self.kind.rows(6))
        for _ in range(4):
            self.mended = self.kind.content()
            try:
                late.commit_now()
            except TxError as error:
                self._type_what_is_advised(str(error))
                if "--ledger-lost" in self.typed:
                    late = begun(self.makes, self.kind.rows(6))
            else:
                if RESTATE in self.typed:
                    self._restate_what_is_wanted(late)
                return
        raise AssertionError(f"no command leads back: {self.typed}")

    def _restate_what_is_wanted(self, late: Any) -> None:
        for wish in self.ledger.wishes():
            self._committed(self.given[wish.txid], instead_of=wish.txid, noted=True)
        self.mended = [row for row in self.kind.content() if row["tx_txid"] != late.begun.txid]

    def _type_what_is_advised(self, told: str) -> None:
        found = re.findall(r"airflow tx repair numbers (--[a-z-]+)(?: [^ -]\S+)?( --restate)?", told)
        commands = map("".join, found)
        for command in commands:
            refused = self._type(command)
            if refused is None:
                self.typed.append(command)
                return
            if changed := re.search(r"--changed (\d+)", refused):
                self.kind.by_hand()
                assert self._type(command, changed=[int(changed[1])]) is None
                self.typed.append("--changed")
                return
            self.typed.append(f"{command} refused")
            return self._type_what_is_advised(refused)
        raise AssertionError(f"nothing that is advised is left: {told}; typed {self.typed}")

    def _type(self, command: str, **options: Any) -> str | None:
        """Do what a command does; why it refuses."""
        state = self.kind.state
        spec = self.run.spec
        if command in (ROLL, RESTATE):
            options |= {"restating": restating(self.run)} if command == RESTATE else {}
            area = spec.staging()
            own = RollForwardRepair(
                self.ledger, {state.name: state}, journal_of(self.run), area, chosen=[state.name], **options
            )
            done = own.execute(ADA)
            refused = [str(each.what) for each in own.refused]
            return refused[0] if refused else None if done is not None else "it lacks nothing"
        if command == "--state-lost":
            self.ledger.run(state_lost, state.name, ADA)
            return None
        if command == "--ledger-lost":
            held = HeldState.of(
                state.name,
                undoable=state.kind is StateKind.OPAQUE,
                fence=state.fence(),
                holds=state.holds,
                receipts=state.receipts(),
            )
            Repairs(self.ledger).ledger_lost([held], spec.request, ADA)
            return None
        return f"{command} is no command of this test"
