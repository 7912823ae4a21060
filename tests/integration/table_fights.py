"""Committers of one table that race for a transaction, while one of them is killed again and again.

The log of the table is the judge: a write or a raise under a grant that a later grant had outranked before is a
violation. Half of the commits raise and write at once. In a database, triggers write the log. Each process is forked
before deltalake has started a thread.
Usage: table_fights.py FOLDER KILLS [control] [URI#]
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from mmap import mmap
from pathlib import Path
from typing import Any

# pyarrow imports pandas with its first array. Here it is imported once, and not by each process.
import pandas  # type: ignore[import-untyped] # noqa: F401
from sqlalchemy.engine import Connection

from airflow_tx.base.errors import StateError
from airflow_tx.ledger import Token
from airflow_tx.state.api import Grant, StateWrite
from airflow_tx.state.lake import delta
from airflow_tx.state.lake import state as table_state
from airflow_tx.state.lake.delta import FENCES, DeltaStore
from airflow_tx.state.lake.fence import RaisedFence
from airflow_tx.state.sql.table_store import TableStore
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query
from tests.integration.table_kills import in_a_process
from tests.integration.tables import ENOUGH, DatabaseTable, Table, table_at
from tests.lake import read_back

COMMITTERS = 2
GRANTS_A_LIFE = (0, 0, 1, 1, 2)
"""How many grants a committer uses up at least before it is killed: a slow machine gives it more time."""
LONGEST = 0.2
"""Seconds that it lives then at most: it dies anywhere."""
MOST_ROUNDS = 5
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


class Lives:
    """How many grants each committer, and those before it in its place, have used up: in memory that they share."""

    def __init__(self) -> None:
        self._used = mmap(-1, 8 * COMMITTERS)

    def used(self, place: int) -> int:
        return int.from_bytes(self._used[8 * place : 8 * place + 8], "little")

    def use(self, place: int) -> None:
        """Count one more."""
        self._used[8 * place : 8 * place + 8] = (self.used(place) + 1).to_bytes(8, "little")

    def await_end(self, place: int, process: int) -> None:
        """Wait until a committer is to die."""
        until = self.used(place) + random.choice(GRANTS_A_LIFE)
        while self.used(place) < until:
            assert os.waitpid(process, os.WNOHANG) == (0, 0), "a committer ended by itself"
            time.sleep(0.005)
        time.sleep(random.random() * LONGEST)


def fight(folder: Path, kills: int, *, fenced: bool = True, uri: str = "") -> Fight:
    """Let committers race until so many were killed, and as many again as long as nothing can be learned of it.

    :param fenced: False: commits are tried again on top of whatever came between. It is a control.
    :param uri: the table; by default one of a lake in the folder.
    """
    grants = Grants()
    ranked = [grants(1, attempt) for attempt in range(1, 50 * MOST_ROUNDS * kills)]
    uri = uri or str(folder / "orders")
    taken = folder / "taken"
    taken.mkdir()
    in_database = bool(table_at(uri).url)
    if in_database:
        _begin_log(uri, ranked.pop(0))
    lives = Lives()

    def begin(place: int) -> int:
        return _committer(uri, ranked, taken, lambda: lives.use(place), fenced=fenced)

    running = [begin(place) for place in range(COMMITTERS)]
    found, killed = Counter[str](), 0
    while killed < MOST_ROUNDS * kills and not _says_something(found, fenced=fenced):
        for _ in range(kills):
            victim = random.randrange(COMMITTERS)
            lives.await_end(victim, running[victim])
            _kill(running[victim])
            running[victim] = begin(victim)
        killed += kills
        found = _logged(uri) if in_database else _judged(Path(uri))
    for each in running:
        _kill(each)
    found = _logged(uri) if in_database else _judged(Path(uri))
    live = {n for _, n in table_at(uri).held()} if in_database else {row["n"] for row in read_back(uri)}
    return Fight(killed, found["raises"], found["writes"], found["violations"], len(live))


def _says_something(found: Counter[str], *, fenced: bool) -> bool:
    """Whether there were enough writes, some of them refused; without a fence, whether there was a violation."""
    return found["raises"] > found["writes"] > ENOUGH if fenced else found["violations"] > 0


def _kill(process: int) -> None:
    os.kill(process, signal.SIGKILL)
    _, status = os.waitpid(process, 0)
    assert os.waitstatus_to_exitcode(status) == -signal.SIGKILL, "a committer ended by itself"


def _committer(uri: str, ranked: Sequence[Grant], taken: Path, use: Callable[[], None], *, fenced: bool) -> int:
    """Start a process that commits under one grant after the other, and says of each that it is used up."""
    child = os.fork()
    if child:
        return child
    try:
        _prepare(fenced=fenced)
        for number, grant in enumerate(ranked):
            if _takes(taken / str(number)):
                _commit(table_at(uri), grant)
                use()
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
        if random.random() < 0.5:
            table.state.raise_and_write(grant, update)
            return
        table.state.raise_fence(grant)
        if table.url:  # SQLite has one writer: nobody raises while a write waits
            time.sleep(random.random() * _PAUSE)
        table.state.write(grant, update)


def _judged(table: Path) -> Counter[str]:
    """Read the log of a table in its order; without deltalake, since further processes may be forked."""
    found = Counter[str]()
    holder: Token | None = None
    for version in sorted((table / "_delta_log").glob("*.json")):
        actions = [json.loads(line) for line in version.read_text().splitlines()]
        marks = {each["txn"]["appId"]: each["txn"]["version"] for each in actions if "txn" in each}
        notes = [each["commitInfo"].get("userMetadata") for each in actions if "commitInfo" in each]
        if "airflow_tx.raise" in marks:
            found["raises"] += 1
            outranked = holder
            holder = _holder(table, marks["airflow_tx.raise"], marks["airflow_tx.fence"])
            found["violations"] += outranked is not None and holder.rank < outranked.rank
        for note in filter(None, notes):
            found["writes"] += 1
            found["violations"] += json.loads(note)["token"] != str(holder)
    return found


def _holder(table: Path, number: int, name: int) -> Token:
    """Read which grant holds a fence."""
    raised = RaisedFence.of((table / FENCES / f"{number}-{name:016x}.json").read_text(), None)
    assert raised is not None
    return raised.fence.token


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


def _logged(uri: str) -> Counter[str]:
    table = DatabaseTable(uri)
    found = Counter[str]()
    holder = last = 0
    for raised, n in query(table.url, "SELECT raised, n FROM fought ORDER BY id"):
        if raised:
            found["raises"] += 1
            holder = n
            continue
        found["writes"] += n != last
        found["violations"] += n != holder
        last = n
    return found


if __name__ == "__main__":
    uris = [each for each in sys.argv[3:] if each.rpartition("#")[1]]
    print(fight(Path(sys.argv[1]), int(sys.argv[2]), fenced="control" not in sys.argv, uri="".join(uris)))
