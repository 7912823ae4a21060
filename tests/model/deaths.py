"""Deaths of a process: at a statement or a commit of a database, and at a write of the ledger."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.ledger.api import Children, Node, Requirement, Store, Watch, Write
from airflow_tx.transaction.commit import committer


class Died(BaseException):
    """A process is killed here."""


class Kills:
    """Kills the process at the n-th of its statements, commits and writes of the ledger.

    :ivar left: how many are left until then; None: it lives.
    :ivar place: the state before whose write a committer dies, or another point of it; "": none.
    """

    def __init__(self) -> None:
        self.left: int | None = None
        self.place = ""
        self.died = 0

    def tick(self, *_: Any) -> None:
        if self.left is None:
            return
        self.left -= 1
        if self.left <= 0:
            self.left = None
            self._dies()

    def reached(self, name: str, **where: Any) -> None:
        """Take note of a point of a commit."""
        if self.place and self.place in (name, where.get("state")):
            self.place = ""
            self._dies()

    def _dies(self) -> None:
        self.died += 1
        raise Died

    @contextmanager
    def armed(self, left: int | None) -> Iterator[None]:
        """Let another process begin, which dies after so many."""
        kept, self.left = self.left, left
        try:
            yield
        finally:
            self.left = kept

    @contextmanager
    def installed(self) -> Iterator[None]:
        committing = sa.engine.Connection._commit_impl

        def commit(connection: Any) -> None:
            self.tick()
            committing(connection)
            self.tick()

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sa.engine.Connection, "_commit_impl", commit)
            patch.setattr(committer, "failpoint", self.reached)
            sa.event.listen(sa.Engine, "before_cursor_execute", self.tick)
            try:
                yield
            finally:
                sa.event.remove(sa.Engine, "before_cursor_execute", self.tick)


class KilledStore(Store):
    """The ledger's store, at which a process may die before a write, and behind it."""

    def __init__(self, store: Store, kills: Kills) -> None:
        self._store, self._kills = store, kills

    def get(self, path: str) -> Node | None:
        return self._store.get(path)

    def children(self, path: str) -> Children | None:
        return self._store.children(path)

    def multi(self, requirements: Sequence[Requirement], writes: Sequence[Write]) -> None:
        self._kills.tick()
        self._store.multi(requirements, writes)
        self._kills.tick()

    def sync(self) -> None:
        self._store.sync()

    def ensure(self, path: str) -> None:
        self._store.ensure(path)

    def watch(self, *paths: str) -> AbstractContextManager[Watch]:
        return self._store.watch(*paths)
