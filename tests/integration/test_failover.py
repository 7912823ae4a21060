"""A PostgreSQL that fails over to an asynchronous standby, which lacks what the primary has confirmed last."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from airflow_tx.base.errors import PortionsLost, StateBehind
from airflow_tx.state import SqlState, Sum
from airflow_tx.state.api import Grant
from airflow_tx.testing.eventually import eventually
from airflow_tx.testing.suites.state_tools import Grants, rows
from airflow_tx.transaction.commit import write
from tests.integration.databases import query
from tests.integration.spark_runs import Topology, update
from tests.servers.postgres import LocalPostgres, postgres_program
from tests.unit.bench import Numbers

KEYS = 3001


class Standby(LocalPostgres):
    """An asynchronous standby, made by a base backup of its primary."""

    def __init__(self, primary: LocalPostgres) -> None:
        super().__init__()
        self._primary = primary

    def cut_off(self) -> None:
        """Receive nothing more of what the primary confirms; all that it has confirmed so far is here."""
        ((written,),) = query(self._primary.url(), "SELECT pg_current_wal_lsn()")
        here = f"SELECT pg_last_wal_replay_lsn() >= '{written}'"
        eventually(lambda: query(self.url(), here) == [(True,)], 240, "the standby has all of it")
        query(self.url(), "ALTER SYSTEM SET primary_conninfo = ''", isolation_level="AUTOCOMMIT")
        query(self.url(), "SELECT pg_reload_conf()")
        receivers = "SELECT count(*) FROM pg_stat_wal_receiver"
        eventually(lambda: query(self.url(), receivers) == [(0,)], 240, "nothing is received any more")

    def take_over(self) -> None:
        """Let the primary crash, become the primary, and have its address."""
        self._primary.kill()
        # Its second argument: seconds that it waits at most.
        assert query(self.url(), "SELECT pg_promote(true, 300)") == [(True,)]
        self.stop()
        self.port = self._primary.port
        self.start()

    def _make_data(self) -> None:
        self._give()
        primary = self._primary.url().replace("+psycopg2", "")
        backup = postgres_program("pg_basebackup")
        self._run_program(
            backup, "-D", str(self.data_dir / "data"), "-d", primary, "-R", "--checkpoint=fast", "--no-sync"
        )


@pytest.fixture
def primary() -> Iterator[LocalPostgres]:
    with LocalPostgres() as server:
        yield server


@pytest.fixture
def standby(primary: LocalPostgres) -> Iterator[Standby]:
    with Standby(primary) as server:
        yield server


class Interrupted(SqlState):
    """A state of which something happens to the server once it has answered a portion."""

    after: dict[int, Callable[[], None]]

    def write(self, grant: Grant, rows: Iterable[Mapping[str, Any]], *, chunk: int = 0, complete: bool = True) -> int:
        written = super().write(grant, rows, chunk=chunk, complete=complete)
        self.after.pop(chunk, lambda: None)()
        return written


@pytest.mark.parametrize("kind", ["opaque", pytest.param("transactional", marks=pytest.mark.long)])
def test_a_part_that_is_missing_after_a_failover_is_found_before_the_commit_and_written_again(
    primary: LocalPostgres, standby: Standby, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(write, "ROWS_A_WRITE", 1000)
    state = Interrupted.from_url(primary.url(), table="totals", keys=["id"], values={"n": Sum()}, kind=kind)
    state.after = {0: standby.cut_off, 1: standby.take_over}
    run = Topology(Numbers(), tmp_path, "").begin("r1")
    run.emit(pa.table({"id": list(range(KEYS)), "n": [1] * KEYS}))
    with pytest.raises(PortionsLost, match=r"lost 1 of 4 .* of transaction 1.*next try writes all portions again"):
        run.commit(update(state, writers="worker"))
    assert run.commit(update(state, writers="worker")) is None
    assert query(primary.url(), "SELECT count(*), sum(n) FROM totals") == [(KEYS, KEYS)]


@pytest.mark.long
def test_a_standby_with_the_fence_but_without_the_values_of_a_commit_is_refused(
    primary: LocalPostgres, standby: Standby, grants: Grants
) -> None:
    state = SqlState.from_url(primary.url(), table="totals", keys=["key"], values={"n": Sum()})
    grants.commit(1, state, {"a": 1})
    second = grants(2)
    state.raise_fence(second)
    standby.cut_off()
    state.write(second, rows({"a": 1, "b": 1}))
    grants.final(second, state)
    standby.take_over()
    state = SqlState.from_url(primary.url(), table="totals", keys=["key"], values={"n": Sum()})
    with pytest.raises(StateBehind, match="2, but some of its updates are missing"):
        state.raise_and_write(grants(3), rows({"a": 1}))
    assert state.read() == [{"key": "a", "n": 1}]
