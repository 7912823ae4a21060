"""Two connections at one SQL state at once: a writer thought dead, first users, parallel writers, a dying server."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import FenceOutranked, StateUnavailable
from airflow_tx.state import Grant, SqlState, Sum
from airflow_tx.testing.suites.state_tools import Grants, rows, totals
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import POSTGRES_PASSWORD, LocalPostgres

_SOON = 300.0  # far more than a statement takes, however busy the machine is
_NOT_YET = 0.3
"""Seconds in which a statement that waits does not end. Time alone shows that; a slow machine fails nothing."""
# More than one portion of rows: when a writer comes to the last row, the first ones are in its transaction.
_MANY = {f"key {i}": 1 for i in range(10_001)}


@pytest.fixture(
    params=[
        "sqlite",
        "postgres",
        "mariadb",
        pytest.param("postgres with another isolation level", marks=pytest.mark.lead),
    ]
)
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'state.db'}"
    server: LocalPostgres | LocalMariaDB = request.getfixturevalue(request.param.split()[0])
    name = server.new_database()
    if "level" in request.param:
        with sa.create_engine(server.url()).execution_options(isolation_level="AUTOCOMMIT").connect() as connection:
            connection.execute(sa.text(f"ALTER DATABASE {name} SET default_transaction_isolation = 'serializable'"))
    return server.url(name)


def _state(url: str, table: str = "totals") -> SqlState:
    return SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})


class _Pause:
    """An update that stops before its last row, inside the transaction that writes it."""

    def __init__(self, updates: dict[str, int]) -> None:
        self._updates = updates
        self._reached = threading.Event()
        self._go_on = threading.Event()

    def __iter__(self) -> Iterator[dict[str, Any]]:
        *most, last = rows(self._updates)
        yield from most
        self._reached.set()
        assert self._go_on.wait(_SOON)
        yield last

    def reached(self) -> None:
        assert self._reached.wait(_SOON)

    def go_on(self) -> None:
        self._go_on.set()


def _still_waiting(future: Future[Any]) -> bool:
    return not wait([future], timeout=_NOT_YET).done


def test_raising_the_fence_waits_for_an_older_writer_and_then_undoes_its_writes(
    url: str, pool: ThreadPoolExecutor
) -> None:
    grants, state = Grants(), _state(url)
    grants.commit(1, state, {"key 0": 5})
    old, new, pause = grants(2), grants(2, 2), _Pause(_MANY)
    state.raise_fence(old)
    writing = pool.submit(_state(url).write, old, pause)
    pause.reached()
    raising = pool.submit(_state(url).raise_fence, new)
    assert _still_waiting(raising)
    pause.go_on()
    assert writing.result(_SOON) == len(_MANY)
    raising.result(_SOON)
    assert totals(state) == {"key 0": 5}
    with pytest.raises(FenceOutranked):
        state.write(old, rows(_MANY))


def test_raising_the_fence_waits_for_an_older_writer_that_writes_a_part_of_an_update(
    url: str, pool: ThreadPoolExecutor
) -> None:
    grants, state = Grants(), _state(url)
    old, new, pause = grants(1), grants(1, 2), _Pause(_MANY)
    state.raise_fence(old)
    writing = pool.submit(_state(url).write, old, pause, chunk=7, complete=False)
    pause.reached()
    replay = pool.submit(_state(url).raise_and_write, new, rows({"key 1": 4}))
    assert _still_waiting(replay)
    pause.go_on()
    assert writing.result(_SOON) == len(_MANY)
    assert replay.result(_SOON) == 1
    assert totals(state) == {"key 1": 4}


@pytest.mark.parametrize("use", ["write", "raise_and_write"])
def test_an_older_writer_waits_while_the_fence_is_raised_and_is_then_refused(
    url: str, pool: ThreadPoolExecutor, use: str
) -> None:
    grants, state = Grants(), _state(url)
    old, new, pause = grants(1), grants(1, 2), _Pause(_MANY)
    state.raise_fence(old)
    raising = pool.submit(_state(url).raise_and_write, new, pause)
    pause.reached()
    writing = pool.submit(getattr(_state(url), use), old, rows({"only the old attempt has it": 1}))
    assert _still_waiting(writing)
    pause.go_on()
    raising.result(_SOON)
    with pytest.raises(FenceOutranked):
        writing.result(_SOON)
    assert totals(state) == _MANY


def test_the_later_of_two_simultaneous_first_grants_wins(url: str, pool: ThreadPoolExecutor) -> None:
    for turn in range(8):
        grants, table = Grants(), f"totals_{turn}"
        old, new, together = grants(1), grants(1, 2), threading.Barrier(2)

        def use(grant: Grant, table: str = table, together: threading.Barrier = together) -> bool:
            state = _state(url, table)
            together.wait(_SOON)
            try:
                state.raise_and_write(grant, rows({"a": grant.token.attempt, f"of {grant.token.attempt}": 1}))
            except FenceOutranked:
                return False
            return True

        done = {grant.token.attempt: pool.submit(use, grant) for grant in (old, new)}
        done[1].result(_SOON)
        assert done[2].result(_SOON) is True
        state = _state(url, table)
        fence = state.fence()
        assert fence is not None
        assert fence.token == new.token
        assert totals(state) == {"a": 2, "of 2": 1}


def test_parallel_writers_of_one_grant_create_and_fill_the_table(url: str, pool: ThreadPoolExecutor) -> None:
    grants, state, together = Grants(), _state(url), threading.Barrier(4)
    grant = grants(1)
    state.raise_fence(grant)

    def part(chunk: int) -> int:
        together.wait(_SOON)
        update = ({"key": f"{chunk} {i}", "n": i} for i in range(500))
        return _state(url).write(grant, update, chunk=chunk, complete=False)

    assert sum(future.result(_SOON) for future in [pool.submit(part, chunk) for chunk in range(4)]) == 2000
    state.write(grant, [])
    assert totals(state) == {f"{chunk} {i}": i for chunk in range(4) for i in range(500)}


def test_parallel_writers_keep_their_store_transactions_open_at_the_same_time(
    postgres: LocalPostgres, pool: ThreadPoolExecutor
) -> None:
    url = postgres.url(postgres.new_database())
    grants, state = Grants(), _state(url)
    grants.commit(1, state, {"a": 1})
    grant, pauses = grants(2), [_Pause({f"{chunk} {key}": 1 for key in _MANY}) for chunk in range(2)]
    state.raise_fence(grant)
    parts = [
        pool.submit(_state(url).write, grant, pause, chunk=chunk, complete=False) for chunk, pause in enumerate(pauses)
    ]
    for pause in pauses:
        pause.reached()
    for pause in pauses:
        pause.go_on()
    assert [part.result(_SOON) for part in parts] == [len(_MANY)] * 2


def test_a_commit_is_rolled_back_if_the_server_dies_and_the_same_grant_can_retry(
    pool: ThreadPoolExecutor,
) -> None:
    with LocalPostgres(fsync=True) as server:
        grants, state = Grants(), _state(server.url())
        grants.commit(1, state, {"key 0": 5})
        grant, pause = grants(2), _Pause(_MANY)
        writing = pool.submit(_state(server.url()).raise_and_write, grant, pause)
        pause.reached()
        server.kill()
        pause.go_on()
        uses: list[Callable[[], Any]] = [lambda: writing.result(_SOON), state.read, lambda: state.raise_fence(grant)]
        for use in uses:
            with pytest.raises(StateUnavailable) as failure:
                use()
            assert POSTGRES_PASSWORD not in str(failure.value)
        server.start()
        assert totals(state) == {"key 0": 5}
        state.raise_and_write(grant, rows(_MANY))
        assert totals(state) == {**_MANY, "key 0": 6}


def test_two_complete_writes_of_one_grant_run_one_after_the_other(url: str, pool: ThreadPoolExecutor) -> None:
    grants, state, pause = Grants(), _state(url), _Pause(_MANY)
    grant = grants(1)
    state.raise_fence(grant)
    first = pool.submit(_state(url).write, grant, pause)
    pause.reached()
    second = pool.submit(_state(url).write, grant, rows({"other": 1}), chunk=1)
    assert _still_waiting(second)
    pause.go_on()
    assert first.result(_SOON) == len(_MANY)
    assert second.result(_SOON) == 1
    assert totals(state) == {**_MANY, "other": 1}
