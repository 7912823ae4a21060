"""Commits to a Delta table that are killed at a line, and finished by another process.

Each process is forked before deltalake has started a thread. Usage: table_kills.py FOLDER|URI STEP [FIRST [restate]]
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import deltalake
import pyarrow as pa  # type: ignore[import-untyped]

import airflow_tx.state.lake
from airflow_tx.state import DeltaTable
from airflow_tx.state.api import Grant
from airflow_tx.state.lake.state import replaced_by
from airflow_tx.testing.suites.state_tools import Grants
from tests.lake import read_back, staged

KILLED = -signal.SIGKILL
_LAKE = str(Path(airflow_tx.state.lake.__file__).parent)
_EXPECTED = [(1, 10), (1, 11), (2, 20), (3, 30), (3, 31)]
_RESTATED = 1


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


def killed_at(line: int, work: Callable[[], object]) -> None:
    """Do work, and die before the line of that number, counted over the lines of this room that it passes."""
    passed = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal passed
        if not frame.f_code.co_filename.startswith(_LAKE):
            return None
        if event == "line":
            passed += 1
            if passed == line:
                os.kill(os.getpid(), signal.SIGKILL)
        return trace

    sys.settrace(trace)
    work()


def rows(*values: int) -> pa.Table:
    return pa.table({"n": pa.array(values, pa.int64())})


def wider(*values: int) -> pa.Table:
    return rows(*values).append_column("why", pa.array(["new"] * len(values)))


def begin(table: DeltaTable, grants: Sequence[Grant]) -> None:
    """Commit two transactions and an attempt of the third, then let somebody merge the files."""
    for grant, given in zip(grants, (rows(10, 11), rows(20), rows(32)), strict=True):
        table.raise_and_write(grant, staged(table, grant.attempt, given))
    deltalake.DeltaTable(table.uri, storage_options=table.options()).optimize.compact()


def finish(table: DeltaTable, grant: Grant, files: Sequence[dict[str, Any]]) -> None:
    """Let a later grant commit, and look at what the table holds then."""
    table.raise_and_write(grant, files)
    held = sorted((row["tx_txid"], row["n"]) for row in read_back(table.uri, table.options()))
    replaced = replaced_by(grant)
    expected = [each for each in _EXPECTED if each[0] != replaced]
    assert held == expected, held
    assert table.rows_by_txid() == Counter(txid for txid, _ in expected)


def staged_apart(table: DeltaTable, grant: Grant, given: pa.Table) -> list[dict[str, Any]]:
    """Stage rows by a process of its own: deltalake must not start a thread in this one."""
    with tempfile.NamedTemporaryFile() as note:
        told = Path(note.name)
        assert in_a_process(lambda: told.write_text(json.dumps(staged(table, grant.attempt, given)))) == 0
        return list(json.loads(told.read_text()))


class Replay:
    """A replay that is about to commit to a table with two transactions before it, and the grants after it.

    :param restates: whether the transaction takes the rows of another one out.
    """

    def __init__(self, uri: str, *, restates: bool = False) -> None:
        self.table = DeltaTable(uri)
        grants = Grants()
        # They are made here, so that every process has the same ones.
        committed = list[Grant]()
        for txid in (1, 2):
            committed.append(grants(txid))
            grants.final(committed[-1], self.table)
        first, self.grant, self.later, self.newer = (
            _restating(grants(3, attempt)) if restates else grants(3, attempt) for attempt in (1, 2, 2, 3)
        )
        assert in_a_process(lambda: begin(self.table, [*committed, first])) == 0

    def killed_and_finished(self, line: int) -> bool:
        """Kill it at a line, and let a later grant finish it; returns whether it was killed."""
        files = staged_apart(self.table, self.grant, wider(30, 31))
        how = in_a_process(partial(killed_at, line, partial(self.table.raise_and_write, self.grant, files)))
        assert how in (KILLED, 0)
        finisher = self.newer if line % 3 == 0 else self.later
        again = files if finisher is self.later else staged_apart(self.table, self.newer, wider(30, 31))
        assert in_a_process(partial(finish, self.table, finisher, again)) == 0, line
        return how == KILLED


def _restating(grant: Grant) -> Grant:
    claim = {**json.loads(grant.claim), "replaces": {"txid": _RESTATED, "entry": "e"}}
    return replace(grant, claim=json.dumps(claim))


def main(folder: str, step: int, first: int = 1, *, restates: bool = False) -> int:
    """Kill a replay at every `step`-th line from the first one, and let a later grant finish it.

    :param folder: on this disk, or in a bucket, which the environment says how to reach.
    :return: how many replays were killed.
    """
    on_s3 = "://" in folder
    replay = Replay(f"{folder}/orders", restates=restates)
    if not on_s3:
        shutil.copytree(replay.table.uri, f"{folder}/begun")
    for kills, line in enumerate(range(first, 10_000, step)):
        if on_s3:
            replay = Replay(f"{folder}/orders-{line}", restates=restates)
        else:
            shutil.rmtree(replay.table.uri)
            shutil.copytree(f"{folder}/begun", replay.table.uri)
        if not replay.killed_and_finished(line):
            return kills
    raise AssertionError("the commit never ended")


if __name__ == "__main__":
    print(main(sys.argv[1], *map(int, sys.argv[2:4]), restates="restate" in sys.argv))
