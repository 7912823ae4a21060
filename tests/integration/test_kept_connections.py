"""A connection that a process keeps between transactions: when it is used again, and when it is not."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import StateError
from airflow_tx.state import SqlGuard, SqlState, Sum
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query
from tests.servers.mariadb import LocalMariaDB
from tests.servers.postgres import LocalPostgres

SESSION = {"postgresql": "SELECT pg_backend_pid()", "mysql": "SELECT connection_id()"}
END = {"postgresql": "SELECT pg_terminate_backend({})", "mysql": "KILL {}"}


@pytest.fixture(params=["postgresql", "mysql"])
def url(request: pytest.FixtureRequest) -> str:
    if request.param == "mysql":
        server: LocalMariaDB = request.getfixturevalue("mariadb")
        return server.url()
    postgres: LocalPostgres = request.getfixturevalue("postgres")
    return postgres.url()


@pytest.fixture
def make(url: str) -> Callable[[], SqlState]:
    table = f"t{uuid4().hex[:8]}"
    return lambda: SqlState.from_url(url, table=table, keys=["key"], values={"n": Sum()})


def session(state: SqlState | SqlGuard) -> int:
    """The number that the server has given to the session of a transaction."""
    with state._store.transaction() as connection:
        return int(connection.execute(sa.text(SESSION[_kind(connection)])).scalar_one())


def _kind(connection: sa.Connection) -> str:
    return "postgresql" if connection.dialect.name == "postgresql" else "mysql"


def test_two_states_of_one_database_use_the_same_session(make: Callable[[], SqlState], grants: Grants) -> None:
    one, other = make(), make()
    grants.commit(1, one, {"a": 1})
    first = session(one)
    grants.commit(2, one, {"a": 1})
    assert session(one) == session(other) == first


def test_a_session_in_which_an_error_occurred_is_not_used_again(make: Callable[[], SqlState], grants: Grants) -> None:
    state = make()
    grants.commit(1, state, {"a": 1})
    before = session(state)
    with pytest.raises(StateError, match="occurs twice"):
        state.raise_and_write(grants(2), [{"key": "a", "n": 1}] * 2)
    assert session(state) != before
    grants.commit(2, state, {"a": 1})
    assert state.read() == [{"key": "a", "n": 2}]


def test_a_session_that_the_server_has_ended_is_replaced(
    url: str, make: Callable[[], SqlState], grants: Grants
) -> None:
    state = make()
    grants.commit(1, state, {"a": 1})
    query(url, END[sa.make_url(url).get_backend_name()].format(session(state)))
    grants.commit(2, state, {"a": 1})
    assert state.read() == [{"key": "a", "n": 2}]


def test_a_session_uses_keepalives_that_detect_a_silent_server_within_half_a_minute(
    make: Callable[[], SqlState],
) -> None:
    with make()._store.transaction() as connection:
        driver: Any = connection.connection.dbapi_connection
        handle = driver.fileno() if _kind(connection) == "postgresql" else driver._sock.fileno()
        with socket.socket(fileno=os.dup(handle)) as same:
            assert same.getsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT) == 30_000
            idle, interval, count = socket.TCP_KEEPIDLE, socket.TCP_KEEPINTVL, socket.TCP_KEEPCNT
            assert [same.getsockopt(socket.IPPROTO_TCP, each) for each in (idle, interval, count)] == [10, 5, 4]
            assert same.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE) == 1


def test_a_forked_process_opens_its_own_session(make: Callable[[], SqlState], grants: Grants) -> None:
    state = make()
    grants.commit(1, state, {"a": 1})
    before = session(state)
    child = os.fork()
    if child == 0:
        own = None
        try:
            own = session(state)
            assert state.read() == [{"key": "a", "n": 1}]
        finally:
            os._exit(0 if own not in (None, before) else 1)
    assert os.waitpid(child, 0)[1] == 0
    assert session(state) == before


def test_a_state_in_a_spark_executor_keeps_no_session_open(make: Callable[[], SqlState]) -> None:
    state = make().for_executors()
    assert isinstance(state, SqlState)
    assert session(state) != session(state)


def test_the_statements_of_a_guard_leave_no_session_open(url: str) -> None:
    guard = SqlGuard.from_url(url, name=uuid4().hex, statements=[])
    assert session(guard) != session(guard)
