"""Moments that are killed at a statement or at a line, and finished by another attempt.

Each transaction is killed one statement later than the one before it, until one is not killed any more.
Usage: moment_kills.py URL NAME [new | replay | wider | apart] [statement | line] STEP
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import sqlalchemy as sa
from sqlalchemy import event

import airflow_tx.state
from airflow_tx.state.api import Grant
from airflow_tx.testing.suites.state_together import apart, together
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.moments import Moments
from tests.integration.table_kills import KILLED, in_a_process, killed_at

CODE = str(Path(airflow_tx.state.__file__).parent)


def killed_at_statement(number: int, work: Callable[[], object]) -> None:
    """Do work, and die before the statement of that number; each commit counts as one, and so does its answer."""
    passed = 0

    def count(*_: object) -> None:
        nonlocal passed
        passed += 1
        if passed == number:
            os.kill(os.getpid(), signal.SIGKILL)

    for name in ("before_cursor_execute", "commit"):
        event.listen(sa.engine.Engine, name, count)
    work()
    count()


class Killer:
    """Transactions of one group of states, of which attempts are killed.

    :param how: what the attempt finds: new: nothing of its transaction; replay: an attempt before it that is whole;
        apart: one that was written state by state; wider: as new, and the table gets a column.
    """

    def __init__(self, moments: Moments, how: str) -> None:
        self.moments, self.how = moments, how
        self.grants = Grants()
        self.txid = 0
        moments.begin()
        # It makes the tables.
        self.last = self._committed(self._next())

    def kill(self, killed: Callable[[Callable[[], object]], None]) -> bool:
        """Kill an attempt of the next transaction, look, and commit it; returns whether it was killed."""
        before = self.last
        attempt = self._next()
        if self.how in ("replay", "apart"):
            assert in_a_process(partial(self._write, attempt, plan=apart if self.how == "apart" else together)) == 0
            before, attempt = attempt, self.grants(self.txid, 2)
        ended = in_a_process(lambda: killed(partial(self._write, attempt)))
        assert ended in (KILLED, 0)
        seen = self.moments.look()
        assert seen.is_of(attempt) or (ended == KILLED and seen.is_of(before)), (seen, before, attempt)
        self.last = self._committed(self.grants(self.txid, 3))
        return ended == KILLED

    def _next(self) -> Grant:
        self.txid += 1
        return self.grants(self.txid)

    def _committed(self, grant: Grant) -> Grant:
        assert in_a_process(partial(self._write, grant)) == 0
        seen = self.moments.look()
        assert seen.is_of(grant), (seen, grant)
        self.grants.final(grant, *self.moments.states())
        return grant

    def _write(self, grant: Grant, plan: Callable[..., object] = together) -> None:
        plan(grant, self.moments.states(), self.moments.updates(grant, wider=self.how == "wider"))


def main(url: str, name: str, how: str = "new", at: str = "statement", step: int = 1) -> int:
    """Kill attempts, and return how many."""
    killer = Killer(Moments(url, name), how)
    for kills, number in enumerate(range(1, 100_000, step)):
        killed = partial(killed_at_statement, number) if at == "statement" else partial(killed_at, CODE, number)
        if not killer.kill(killed):
            return kills
    raise AssertionError("the commit never ended")


if __name__ == "__main__":
    print(main(*sys.argv[1:5], *map(int, sys.argv[5:])))  # type: ignore[arg-type]
