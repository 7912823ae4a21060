"""Committers of one Delta table that race for a transaction, while one of them is killed again and again.

The log of the table is the judge: a write under a grant that a later grant had outranked before is a violation. Each
process is forked before deltalake has started a thread. Usage: table_fights.py FOLDER KILLS [control]
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
import pyarrow as pa  # type: ignore[import-untyped]

from airflow_tx.base.errors import StateError
from airflow_tx.state import DeltaTable
from airflow_tx.state.api import Grant
from airflow_tx.state.lake import delta
from airflow_tx.state.lake import state as table_state
from airflow_tx.state.lake.delta import DeltaStore
from airflow_tx.state.lake.schema import FENCES
from airflow_tx.state.lake.state import RaisedFence
from airflow_tx.testing.suites.state_tools import Grants
from tests.lake import read_back, staged

COMMITTERS = 2
SHORTEST, LONGEST = 0.04, 0.29
"""Seconds between two kills."""
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


def fight(folder: Path, kills: int, *, fenced: bool = True) -> Fight:
    """Let committers race until so many were killed.

    :param fenced: False: commits are tried again by deltalake, on top of whatever came between. It is a control.
    """
    grants = Grants()
    ranked = [grants(1, attempt) for attempt in range(1, 50 * kills)]
    uri = str(folder / "orders")
    taken = folder / "taken"
    taken.mkdir()
    running = [_committer(uri, ranked, taken, fenced=fenced) for _ in range(COMMITTERS)]
    for _ in range(kills):
        time.sleep(random.uniform(SHORTEST, LONGEST))
        victim = random.randrange(COMMITTERS)
        _kill(running[victim])
        running[victim] = _committer(uri, ranked, taken, fenced=fenced)
    for each in running:
        _kill(each)
    return _judged(folder / "orders", kills)


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
                _commit(DeltaTable(uri), grant)
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


def _takes(name: Path) -> bool:
    """Take a grant that no process has taken."""
    with suppress(FileExistsError):
        os.close(os.open(name, os.O_CREAT | os.O_EXCL))
        return True
    return False


def _commit(table: DeltaTable, grant: Grant) -> None:
    n = grant.token.attempt
    files = staged(table, grant.attempt, pa.table({"n": pa.array([n] * 3, pa.int64())}))
    with suppress(StateError):
        table.raise_fence(grant)
        table.write(grant, files)


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


if __name__ == "__main__":
    print(fight(Path(sys.argv[1]), int(sys.argv[2]), fenced="control" not in sys.argv))
