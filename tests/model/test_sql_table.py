"""A `SqlTable` ends right in every order of raises, writes, zombies and skips, and each of its rules is needed."""

from __future__ import annotations

import itertools
import sqlite3
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.engine import Connection

from airflow_tx.base.errors import FenceOutranked, SkipRefused, TxError
from airflow_tx.state import SqlTable
from airflow_tx.state.api import Grant
from airflow_tx.state.sql import table_store
from airflow_tx.state.sql.table_store import TableStore
from airflow_tx.testing.suites.state_tools import Grants, about_to_restate, about_to_skip
from tests.model.sql_table import SKIP, Moment, Rules, Sizes, Step, first_wrong_end, refusals, steps

C, N, LATER = 1, 2, 3
RIGHT = Rules()
EVERY_RULE = [
    Rules(*each)  # type: ignore[arg-type]
    for each in itertools.product(("write", "raise"), ("receipts", "rows", "never"), ("always", "other token"))
]
EVERY_SIZE = [Sizes(*each) for each in itertools.product((True, False), (2, 0))]
QUICK = [(Sizes(True, 2), True), (Sizes(True, 0), False), (Sizes(False, 2), False)]
"""Sizes that differ in all, and whether the first rows make the table."""
OWN_TABLE = "CREATE TABLE orders (id INTEGER, tx_txid INTEGER); CREATE INDEX orders_txid ON orders (tx_txid)"


@pytest.mark.parametrize("sizes", EVERY_SIZE, ids=str)
def test_the_chosen_rules_of_the_sql_table_lead_to_no_wrong_result(sizes: Sizes) -> None:
    assert first_wrong_end(sizes, RIGHT) == ""


@pytest.mark.parametrize("rules", [each for each in EVERY_RULE if each != RIGHT], ids=str)
def test_every_other_set_of_rules_for_the_sql_table_leads_to_a_wrong_result(rules: Rules) -> None:
    assert [wrong for sizes in EVERY_SIZE if (wrong := first_wrong_end(sizes, rules))]


class Database:
    """A `SqlTable` on SQLite that takes the steps of the model; each step is a process of its own.

    :param makes_table: whether the first rows make the table; False: it is a table of one's own, without a primary key.
    """

    def __init__(self, folder: Path, sizes: Sizes, *, makes_table: bool) -> None:
        self.sizes = sizes
        self.file = folder / "orders.db"
        if not makes_table:
            with sqlite3.connect(self.file) as connection:
                connection.executescript(OWN_TABLE)
        self._grants = Grants()
        self._grants.commit_rows(C, self.table(), [{"id": 0}])
        # In the order of their ranks.
        self._attempts = {attempt: self._granted(attempt) for attempt in (1, 2)}
        self._skip = about_to_skip(self._granted(2))

    def _granted(self, attempt: int) -> Grant:
        grant = self._grants(N, attempt)
        return about_to_restate(grant, C) if self.sizes.restates else grant

    def table(self) -> SqlTable:
        return SqlTable.from_url(f"sqlite:///{self.file}", table="orders", types={"id": "bigint"})

    def do(self, step: Step) -> None:
        what, attempt = step
        rows = [{"id": attempt} for _ in range(self.sizes.rows)]
        if what == "raise":
            self.table().raise_fence(self._attempts[attempt])
        elif what == "write":
            self.table().write(self._attempts[attempt], rows)
        elif what == "raise and write":
            self.table().raise_and_write(self._attempts[attempt], rows)
        elif what == "skip":
            self.table().raise_fence(self._skip)
        elif what == "skip, refused":
            with pytest.raises(SkipRefused):
                self.table().raise_fence(self._skip)
        elif what == "mark the skip":
            self.table().pass_over(self._skip)

    def check(self, now: Moment) -> None:
        """Compare the rows, and what a process is refused that has lost the fence."""
        rows = self.table().read()
        assert [row["id"] for row in rows if row["tx_txid"] == N] == [*now.n]
        assert [row["id"] for row in rows if row["tx_txid"] == C] == [0] * now.c
        assert len(rows) == now.c + len(now.n)
        for refused in refusals(now):
            with pytest.raises(FenceOutranked):
                self.do(refused)

    def check_end(self, now: Moment) -> None:
        """Let the next transaction commit, as the ledger knows it."""
        assert now.wrong(self.sizes) == ""
        grants = Grants()
        grants.__dict__.update({**self._grants.__dict__, "last": {}, "births": {}, "grants": {}})
        grants.final(self._skip if now.final == SKIP else self._attempts[now.final], self.table())
        self.table().raise_and_write(grants(LATER), [{"id": 7}])
        assert self.table().rows_by_txid()[LATER] == 1

    def content(self) -> tuple[Any, ...]:
        """Everything that it holds."""
        connection = sqlite3.connect(self.file)
        content = tuple(connection.iterdump())
        connection.close()
        return content


def explore(folder: Path, sizes: Sizes, *, makes_table: bool) -> set[Moment]:
    """Let a table take every step of the model, after every order of those before it that shows."""
    database = Database(folder, sizes, makes_table=makes_table)
    start = Moment()
    seen = {(start, database.content())}
    to_do = deque([(start, database.file.read_bytes())])
    while to_do:
        now, saved = to_do.popleft()
        for step, then in steps(now, sizes, RIGHT):
            database.file.write_bytes(saved)
            database.do(step)
            database.check(then)
            found = then, database.content()
            if found not in seen:
                seen.add(found)
                to_do.append((then, database.file.read_bytes()))
                if then.final:
                    database.check_end(then)
    return {now for now, _ in seen}


@pytest.mark.parametrize(
    ("sizes", "makes_table"),
    [
        pytest.param(*each, marks=[] if each in QUICK else pytest.mark.lead, id=f"{each[0]}-{each[1]}")
        for each in itertools.product(EVERY_SIZE, (True, False))
    ],
)
def test_a_sql_table_matches_the_model_in_every_order_of_steps(tmp_path: Path, sizes: Sizes, makes_table: bool) -> None:
    reached = explore(tmp_path, sizes, makes_table=makes_table)
    assert {now.final for now in reached} == {0, 1, 2, SKIP}


# --- a rule that the code lacks -----------------------------------------------------------------------------------

_replaced = table_store._replaced


def _others(grant: Grant) -> list[int]:
    return [txid for txid in _replaced(grant) if txid != grant.txid]


def _take_out_all(store: TableStore, connection: Connection, grant: Grant) -> None:
    found = store._found(connection)
    if found is not None:
        store._take_out(connection, found, _replaced(grant))


def _take_out_own(store: TableStore, connection: Connection, grant: Grant) -> None:
    found = store._found(connection)
    if found is not None:
        store._take_out(connection, found, [grant.txid])


def _keep(store: TableStore, connection: Connection, grant: Grant) -> None:
    pass


def _has_rows(store: TableStore, connection: Any, txid: int, *_: str) -> bool:
    found = store._found(connection)
    return found is not None and store._rows_of(connection, found, txid) > 0


ONCE: Mapping[str, Callable[..., Any]] = {"_replaced": _others, "roll_back": _take_out_own}
LACKS: Mapping[str, tuple[Sizes, Mapping[str, Callable[..., Any]]]] = {
    "rows of c stay": (Sizes(True, 2), {"_replaced": lambda grant: [grant.txid]}),
    "rows of c are taken out by the raise": (Sizes(True, 2), {"roll_back": _take_out_all}),
    "own rows are taken out by the raise of another token": (Sizes(False, 2), ONCE),
    "a skip keeps own rows": (Sizes(False, 2), {"roll_back": _keep}),
    "a skip is refused by rows": (Sizes(True, 0), {"holds_for_good": _has_rows}),
    "a skip is never refused": (Sizes(True, 2), {"holds_for_good": lambda *_: False}),
    "a skip of a fresh transaction is refused": (Sizes(False, 2), {"holds_for_good": _has_rows}),
    "the fence of another token takes a write": (Sizes(False, 2), {"check_write": lambda *_, **__: None}),
}


@pytest.mark.parametrize("lacking", LACKS)
def test_the_exploration_finds_a_sql_table_in_which_a_rule_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacking: str
) -> None:
    sizes, rules = LACKS[lacking]
    for name, rule in rules.items():
        monkeypatch.setattr(table_store if name == "_replaced" else TableStore, name, rule)
    with pytest.raises((AssertionError, TxError, pytest.fail.Exception)):
        explore(tmp_path, sizes, makes_table=False)
