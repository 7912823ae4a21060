"""Committers of one table that race for a transaction, while one of them is killed again and again.

The log of the table is the judge: a write under a grant that a later grant had outranked before is a violation. In a
database, triggers write the log. Each process is forked before deltalake has started a thread.
Usage: table_fights.py FOLDER KILLS [control] [URI#]
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# pyarrow imports pandas with its first array. Here it is imported once, and not by each process.
import pandas  # type: ignore[import-untyped] # noqa: F401
from sqlalchemy.engine import Connection

from airflow_tx.base.errors import StateError
from airflow_tx.state.api import Grant, StateWrite
from airflow_tx.state.lake import delta
from airflow_tx.state.lake import state as table_state
from airflow_tx.state.lake.delta import DeltaStore
from airflow_tx.state.lake.schema import FENCES
from airflow_tx.state.lake.state import RaisedFence
from airflow_tx.state.sql.table_store import TableStore
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query
from tests.integration.table_kills import in_a_process
from tests.integration.tables import DatabaseTable, Table, table_at
from tests.lake import read_back

COMMITTERS = 2
SHORTEST, LONGEST = 0.04, 0.29
"""Seconds between two kills."""
CONNECTING = 3
"""How many times as long a committer of a database lives: it has to connect."""
_PAUSE = 0.03


@dataclass(frozen=True)
class Fight:
    """What a race came to.

    :param violations: writes under a grant that was outranked before.
    :param live: how many attempts have rows in the table.
    """

    kills: int
    raises: int
    writes: int
    violations: int
    live: int


def fight(folder: Path, kills: int, *, fenced: bool = True, uri: str = "") -> Fight:
    """Let committers race until so many were killed.

    :param fenced: False: commits are tried again on top of whatever came between. It is a control.
    :param uri: the table; by default one of a lake in the folder.
    """
    grants = Grants()
    ranked = [grants(1, attempt) for attempt in range(1, 50 * kills)]
    uri = uri or str(folder / "orders")
    taken = folder / "taken"
    taken.mkdir()
    in_database = bool(table_at(uri).url)
    if in_database:
        _begin_log(uri, ranked.pop(0))
    running = [_committer(uri, ranked, taken, fenced=fenced) for _ in range(COMMITTERS)]
    for _ in range(kills):
        time.sleep(random.uniform(SHORTEST, LONGEST) * (CONNECTING if in_database else 1))
        victim = random.randrange(COMMITTERS)
        _kill(running[victim])
        running[victim] = _committer(uri, ranked, taken, fenced=fenced)
    for each in running:
        _kill(each)
    return _judged_log(uri, kills) if in_database else _judged(Path(uri), kills)


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "a committer ended by itself"


def _committer(uri: str, ranked: Sequence[Grant], taken: Path, *, fenced: bool) -> int:
    """Start a process that commits under one grant after the other."""
    child = os.fork()
    if child:
        return child
    try:
        _prepare(fenced=fenced)
        for number, grant in enumerate(ranked):
            if _takes(taken / str(number)):
                _commit(table_at(uri), grant)
    except BaseException as error:  # noqa: BLE001 - the parent has to know of every error
        print(f"{type(error).__name__}: {error}", file=sys.stderr)
    os._exit(1)


def _prepare(*, fenced: bool) -> None:
    table_state.SWEPT_EVERY = 10**9  # the judge reads the texts of all fences
    if not fenced:
        from deltalake import CommitProperties

        delta._once = lambda **also: CommitProperties(**also)
    cas = DeltaStore.cas

    def paused(self: DeltaStore, *change: Any, **known: Any) -> None:
        # Between the check of the fence and the commit, the other committer may raise.
        time.sleep(random.random() * _PAUSE)
        cas(self, *change, **known)

    DeltaStore.cas = paused  # type: ignore[method-assign]
    _prepare_database(fenced=fenced)


def _takes(name: Path) -> bool:
    """Take a grant that no process has taken."""
    with suppress(FileExistsError):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
        return True
    return False


def _commit(table: Table, grant: Grant) -> None:
    update = table.update(grant, [{"n": grant.token.attempt}] * 3)
    with suppress(StateError):
        table.state.raise_fence(grant)
        if table.url:  # SQLite has one writer: nobody raises while a write waits
            time.sleep(random.random() * _PAUSE)
        table.state.write(grant, update)


def _judged(table: Path, kills: int) -> Fight:
    """Read the log of a table in its order."""
    found = {"raises": 0, "writes": 0, "violations": 0}
    holder = ""
    for version in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in version.read_text().splitlines()]
        marks = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
        notes = [each["commitInfo"].get("userMetadata") for each in actions if "commitInfo" in each]
        if "airflow_tx.raise" in marks:
            found["raises"] += 1
            holder = _holder(table, marks["airflow_tx.raise"], marks["airflow_tx.fence"])
        for note in filter(None, notes):
            found["writes"] += 1
            found["violations"] += json.loads(note)["token"] != holder
    live = {row["n"] for row in read_back(str(table))}
    return Fight(kills, **found, live=len(live))


def _holder(table: Path, number: int, name: int) -> str:
    """Read which grant holds a fence."""
    raised = RaisedFence.of((table / FENCES / f"{number}-{name:016x}.json").read_text(), None)
    assert raised is not None
    return str(raised.fence.token)


# --- a database ---------------------------------------------------------------------------------------------------

_LOG = "CREATE TABLE fought (id {number}, raised BOOLEAN, n BIGINT)"
_NOTE = "INSERT INTO fought (raised, n)"
_NUMBERS = {"sqlite": "INTEGER PRIMARY KEY AUTOINCREMENT", "postgresql": "BIGSERIAL PRIMARY KEY"}
_FUNCTION = "CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {note}; RETURN NEW; END $$"
_TRIGGERS = {
    "sqlite": "CREATE TRIGGER {name} AFTER {event} BEGIN {note}; END",
    "postgresql": "CREATE TRIGGER {name} AFTER {event} FOR EACH ROW EXECUTE FUNCTION {name}()",
}


def _begin_log(uri: str, first: Grant) -> None:
    """Make the table, and let triggers note each raise of its fence, and each row, in their order."""
    table = DatabaseTable(uri)
    kind = table.url.partition(":")[0].partition("+")[0]
    assert in_a_process(lambda: _commit(table, first)) == 0
    query(table.url, _LOG.format(number=_NUMBERS.get(kind, "BIGINT PRIMARY KEY AUTO_INCREMENT")))
    raised = f"{_NOTE} SELECT true, NEW.attempt FROM (SELECT 1 AS one) ones WHERE NEW.attempt <> OLD.attempt"
    wrote = f"{_NOTE} SELECT false, NEW.n"
    for name, event, note in (
        ("on_raise", "UPDATE ON airflow_tx_fence", raised),
        ("on_write", f"INSERT ON {table.name}", wrote),
    ):
        if kind == "postgresql":
            query(table.url, _FUNCTION.format(name=name, note=note))
        trigger = _TRIGGERS.get(kind, "CREATE TRIGGER {name} AFTER {event} FOR EACH ROW {note}")
        query(table.url, trigger.format(name=name, event=event, note=note))


def _prepare_database(*, fenced: bool) -> None:
    put = TableStore.put

    def paused(self: TableStore, connection: Connection, write: StateWrite, sample: list[str]) -> int:
        time.sleep(random.random() * _PAUSE)
        return put(self, connection, write, sample)

    TableStore.put = paused  # type: ignore[method-assign]
    if not fenced:
        TableStore.check_write = lambda *_, **__: None  # type: ignore[method-assign]


def _judged_log(uri: str, kills: int) -> Fight:
    table = DatabaseTable(uri)
    found = {"raises": 0, "writes": 0, "violations": 0}
    holder = last = 0
    for raised, n in query(table.url, "SELECT raised, n FROM fought ORDER BY id"):
        if raised:
            found["raises"] += 1
            holder = n
            continue
        found["writes"] += n != last
        found["violations"] += n != holder
        last = n
    return Fight(kills, **found, live=len({n for _, n in table.held()}))


if __name__ == "__main__":
    uris = [each for each in sys.argv[3:] if each.rpartition("#")[1]]
    print(fight(Path(sys.argv[1]), int(sys.argv[2]), fenced="control" not in sys.argv, uri="".join(uris)))
