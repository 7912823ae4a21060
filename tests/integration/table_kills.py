"""Commits to a table that are killed at a line, and finished by another process.

Each process is forked before deltalake has started a thread. FOLDER|URI: on this disk, in a bucket, or the URL of a
database and a #. Usage: table_kills.py FOLDER|URI STEP [FIRST [restate | take_out | new | apart]]
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
import uuid
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

from airflow_tx.ledger import Token
from airflow_tx.state.api import Grant
from airflow_tx.testing.suites.state_tools import Grants, about_to_restate
from tests.integration.tables import Held, Table, table_at

KILLED = -signal.SIGKILL
_BEGUN = [(1, 10), (1, 11), (2, 20)]
_OUTRANKED = (3, 32)
_COMMITTED = [(3, 30), (3, 31)]
_RESTATED = 1
Rows = list[dict[str, Any]]


@dataclass(frozen=True)
class World:
    """What a table holds, and who has raised its fence.

    :param applied: whether all updates under it are in the table; None: it has no fence.
    """

    held: Held
    token: Token | None = None
    applied: bool | None = None


def world(table: Table) -> World:
    fence = table.state.fence()
    held = table.held() if fence else []
    return World(held) if fence is None else World(held, fence.token, fence.applied)


def in_a_process(work: Callable[[], object]) -> int:
    """Do work in a process of its own, and return how that ended."""
    child = os.fork()
    if child == 0:
        try:
            work()
        except BaseException as error:  # noqa: BLE001 - whatever it is, the parent has to know
            print(f"{type(error).__name__}: {error}", file=sys.stderr)
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def killed_at(code: str, line: int, work: Callable[[], object]) -> None:
    """Do work, and die before the line of that number, counted over the lines of a folder that it passes."""
    passed = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.startswith(code):
            return None
        if event == "line":
            passed += 1
            if passed == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    work()


def rows(*values: int) -> Rows:
    return [{"n": n} for n in values]


def wider(*values: int) -> Rows:
    return [{"n": n, "why": "new"} for n in values]


def begin(table: Table, grants: Sequence[Grant], *, writes: bool) -> None:
    """Commit two transactions and an attempt of the third, then let somebody merge the files.

    :param writes: False: this attempt has only raised the fence.
    """
    *committed, third = grants
    for grant, given in zip(committed, (rows(10, 11), rows(20)), strict=True):
        table.state.raise_and_write(grant, table.update(grant, given))
    if writes:
        table.state.raise_and_write(third, table.update(third, rows(32)))
    else:
        table.state.raise_fence(third)
    table.compact()


def finish(table: Table, grant: Grant, files: Rows, worlds: Sequence[World]) -> None:
    """Look at what a killed commit has left, let a later grant commit, and look at what the table holds then.

    :param worlds: what a kill may leave; the last one is the whole commit.
    """
    left = world(table)
    assert left in worlds, left
    table.state.raise_and_write(grant, files)
    held, wanted = table.held(), worlds[-1].held
    assert held == wanted, held
    assert table.state.rows_by_txid() == Counter(txid for txid, _ in wanted)


def raise_then_write(table: Table, grant: Grant, files: Rows) -> None:
    table.state.raise_fence(grant)
    table.state.write(grant, files)


def given_apart(table: Table, grant: Grant, given: Rows) -> Rows:
    """Make an update by a process of its own: deltalake must not start a thread in this one."""
    with tempfile.NamedTemporaryFile() as note:
        told = Path(note.name)
        assert in_a_process(lambda: told.write_text(json.dumps(table.update(grant, given)))) == 0
        return list(json.loads(told.read_text()))


class Replay:
    """A replay that is about to commit to a table with two transactions before it, and the grants after it.

    The raise and the rows are in one commit, so a kill leaves all of it or nothing.

    :param how: restate: the transaction takes the rows of another one out; take_out: the first attempt has not;
        new: the table is not there; apart: the raise is a commit of its own.
    """

    def __init__(self, uri: str, how: str = "") -> None:
        self.table = table_at(uri)
        self.apart = how == "apart"
        restates = how in ("restate", "take_out")
        grants = Grants()
        # They are made here, so that every process has the same ones.
        committed = list[Grant]()
        for txid in () if how == "new" else (1, 2):
            committed.append(grants(txid))
            grants.final(committed[-1], self.table.state)
        txid = _OUTRANKED[0]
        first, self.grant, self.later, self.newer = (
            about_to_restate(grants(txid, attempt), _RESTATED) if restates else grants(txid, attempt)
            for attempt in (1, 2, 2, 3)
        )
        if how == "new":
            self.worlds = [World([]), World(_COMMITTED, self.grant.token, applied=True)]
            return
        kept = [each for each in _BEGUN if not restates or each[0] != _RESTATED]
        before = _BEGUN if how == "take_out" else [*kept, _OUTRANKED]
        raised = [World(before, self.grant.token, applied=False)] if self.apart else []
        self.worlds = [
            World(before, first.token, applied=how != "take_out"),
            *raised,
            World([*kept, *_COMMITTED], self.grant.token, applied=True),
        ]
        beginning = partial(begin, self.table, [*committed, first], writes=how != "take_out")
        assert in_a_process(beginning) == 0

    def killed_and_finished(self, line: int) -> bool:
        """Kill it at a line, and let a later grant finish it; returns whether it was killed."""
        table = self.table
        files = given_apart(table, self.grant, wider(30, 31))
        written = partial(raise_then_write, table) if self.apart else table.state.raise_and_write
        work = partial(written, self.grant, files)
        ended = in_a_process(partial(killed_at, table.code, line, work))
        assert ended in (KILLED, 0)
        finisher = self.newer if line % 3 == 0 else self.later
        again = files if finisher is self.later else given_apart(table, self.newer, wider(30, 31))
        assert in_a_process(partial(finish, table, finisher, again, self.worlds)) == 0, line
        return ended == KILLED


def main(folder: str, step: int, first: int = 1, how: str = "") -> int:
    """Kill a replay at every `step`-th line from the first one, and let a later grant finish it.

    :param folder: on this disk; or in a bucket, which the environment says how to reach, or a database.
    :return: how many replays were killed.
    """
    is_local = "://" not in folder
    if is_local:
        replay = Replay(f"{folder}/orders", how)
        Path(f"{folder}/orders").mkdir(exist_ok=True)
        shutil.copytree(f"{folder}/orders", f"{folder}/begun")
    for kills, line in enumerate(range(first, 10_000, step)):
        if is_local:
            shutil.rmtree(f"{folder}/orders")
            shutil.copytree(f"{folder}/begun", f"{folder}/orders")
        else:
            at = folder if folder.endswith("#") else f"{folder}/"
            replay = Replay(f"{at}orders_{uuid.uuid4().hex[:8]}", how)
        if not replay.killed_and_finished(line):
            return kills
    raise AssertionError("the commit never ended")


if __name__ == "__main__":
    print(main(sys.argv[1], *map(int, sys.argv[2:4]), *sys.argv[4:]))  # type: ignore[arg-type]
