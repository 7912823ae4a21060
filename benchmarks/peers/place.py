"""What the engines share: the data, and the database that they all commit to."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any, Protocol

from airflow_tx.base.errors import TxError
from airflow_tx.testing.eventually import Hopeless
from benchmarks.peers.jobs import BEGUN, Data, Job, Totals
from tests.servers.postgres import LocalPostgres

UPSERT = """
INSERT INTO {table} AS old (key, n, total) VALUES %s
ON CONFLICT (key) DO UPDATE SET n = old.n + excluded.n, total = old.total + excluded.total
"""
"""Of an engine that guarantees nothing by itself."""


class MissingPart(TxError):
    """Something that an engine needs is not on this machine; the others can be measured."""

    template = "{peer} is left out: {reason}"


class Peer(Protocol):
    """An engine, or a way of ours."""

    key: str
    title: str

    @property
    def counts(self) -> Mapping[str, int]:
        """How many batches of each job it commits."""

    def opened(self, job: Job, table: str) -> AbstractContextManager[Callable[[], bool]]:
        """Let a fresh process commit all batches of a job.

        :return: asked again and again, says whether the first batch has begun; raises if the engine has failed.
        """


@dataclass(frozen=True)
class Place:
    """Where everything lies.

    :param folder: for what an engine writes.
    """

    folder: Path
    data: Data
    postgres: LocalPostgres
    database: str

    @property
    def url(self) -> str:
        """Of the database, for psycopg2."""
        return self.postgres.url(self.database).replace("+psycopg2", "")

    def connect(self) -> Any:
        import psycopg2  # type: ignore[import-untyped]

        return psycopg2.connect(self.url)

    def make_table(self, table: str) -> None:
        """Make a table for an engine that does not make its own."""
        with self.connect() as connection, connection.cursor() as cursor:
            cursor.execute(
                f"CREATE TABLE {table} (key TEXT PRIMARY KEY, n BIGINT, total BIGINT, "
                "txid BIGINT, previous_n BIGINT, previous_total BIGINT)"
            )

    @cached_property
    def _reader(self) -> Any:
        connection = self.connect()
        connection.autocommit = True
        return connection

    def rows(self, table: str) -> int:
        """Give how many rows have been committed; what is no table yet has none."""
        return sum(n for n, _ in self.totals(table).values())

    def totals(self, table: str) -> Totals:
        """Read what has been committed; nothing if there is no such table."""
        with self._reader.cursor() as cursor:
            cursor.execute("SELECT to_regclass(%s)", [table])
            if cursor.fetchone() == (None,):
                return {}
            cursor.execute(f"SELECT key, n, total FROM {table}")
            return {key: (int(n), int(total)) for key, n, total in cursor.fetchall()}

    def check(self, job: Job, batches: int, table: str) -> None:
        """Compare every total with what it must be.

        :raises TxError: one is wrong.
        """
        found, wanted = self.totals(table), self.data.totals(job, batches)
        wrong = [key for key in found.keys() | wanted.keys() if found.get(key) != wanted.get(key)]
        if wrong:
            key = min(wrong)
            problem = f"{len(wrong)} of {len(wanted)} totals, such as {key}: {found.get(key)}, not {wanted.get(key)}"
            raise TxError(message=f"Table {table} is wrong: {problem}")


def upsert(connection: Any, table: str, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add rows of key, count and sum to a table, in a transaction of the database."""
    from psycopg2.extras import execute_values  # type: ignore[import-untyped]

    with connection, connection.cursor() as cursor:
        execute_values(cursor, UPSERT.format(table=table), rows, page_size=1000)


@contextmanager
def running(command: Sequence[str], folder: Path, env: Mapping[str, str]) -> Iterator[Callable[[], bool]]:
    """Start the program of an engine, which ends when its input is closed.

    :param folder: with its batches; for its log.
    :return: whether the first batch has begun: the program makes a file then.
    """
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, cwd=folder, env=env, stdin=subprocess.PIPE, stdout=log, stderr=log)

    def has_begun() -> bool:
        if process.poll() is not None:
            raise Hopeless(f"its program ended: {(folder / 'log').read_text()[-2000:]}")
        return (folder / BEGUN).exists()

    try:
        yield has_begun
    finally:
        process.communicate()
