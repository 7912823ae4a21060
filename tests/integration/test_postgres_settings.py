"""What a connection demands of PostgreSQL's login and encryption is demanded: by a state, a source, and under Spark."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import pytest
import sqlalchemy as sa

from airflow_tx.base.errors import SourceError, StateError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.sql.source import SqlSource
from airflow_tx.state import SqlState, Sum
from airflow_tx.testing.airflow import connection
from airflow_tx.testing.suites.state_tools import Grants, is_applied
from tests.integration.databases import query
from tests.servers.postgres import POSTGRES_PASSWORD, POSTGRES_USER, LocalPostgres
from tests.servers.spark_session import jdbc_jars, skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ATTEMPT = TransactionAttempt(1, 1)
Extras = Mapping[str, str]
HELD: tuple[Extras, ...] = (
    {"require_auth": "md5"},
    {"gssencmode": "disable"},
    {"channel_binding": "prefer"},
)
NOT_HELD: tuple[Extras, ...] = (
    {"require_auth": "password"},
    {"gssencmode": "require"},
    {"channel_binding": "require"},
    {"sslmode": "require"},
)


@pytest.fixture
def connect(postgres: LocalPostgres, monkeypatch: pytest.MonkeyPatch) -> Callable[[Extras], None]:
    """Give the connection `own` these extras."""
    known = {"host": "127.0.0.1", "port": postgres.port, "login": POSTGRES_USER, "password": POSTGRES_PASSWORD}

    def given(extra: Extras) -> None:
        text = connection("postgres", **known, schema="postgres", extra=dict(extra))
        monkeypatch.setenv("AIRFLOW_CONN_OWN", text)

    return given


def write(state: SqlState) -> None:
    grants = Grants()
    grant = grants(1)
    state.raise_and_write(grant, [{"carrier": "AA", "n": 2}])
    grants.final(grant, state)
    assert is_applied(state)


def in_a_table(table: str) -> SqlState:
    return SqlState("own", table=table, keys=["carrier"], values={"n": Sum()}, kind="opaque")


@pytest.mark.parametrize("extra", HELD, ids=str)
def test_a_state_can_write_to_a_server_that_meets_the_settings_of_the_connection(
    connect: Callable[[Extras], None], table: str, extra: Extras
) -> None:
    connect(extra)
    write(in_a_table(table))


@pytest.mark.parametrize("extra", NOT_HELD, ids=str)
def test_a_server_that_violates_the_settings_of_the_connection_is_refused(
    connect: Callable[[Extras], None], table: str, extra: Extras
) -> None:
    connect(extra)
    with pytest.raises(StateError) as refused:
        write(in_a_table(table))
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("extra", [*HELD, *NOT_HELD], ids=str)
def test_settings_in_the_url_of_a_state_are_enforced(postgres: LocalPostgres, table: str, extra: Extras) -> None:
    url = sa.engine.make_url(postgres.url()).update_query_dict(dict(extra)).render_as_string(hide_password=False)
    state = SqlState.from_url(url, table=table, keys=["carrier"], values={"n": Sum()}, kind="opaque")
    if extra in HELD:
        write(state)
        return
    with pytest.raises(StateError):
        write(state)


@pytest.mark.spark
def test_settings_that_jdbc_cannot_enforce_are_refused_before_spark_connects(
    connect: Callable[[Extras], None], postgres: LocalPostgres, table: str, spark: SparkSession
) -> None:
    skip_without(jdbc_jars)
    query(postgres.url(), f"CREATE TABLE {table} (id BIGSERIAL PRIMARY KEY, n INT); INSERT INTO {table} (n) VALUES (1)")
    source = SqlSource("own", table, patience=0)
    connect({"require_auth": "md5"})
    batch = source.decide(ATTEMPT, None)
    assert batch is not None
    with pytest.raises(SourceError, match="Remove require_auth from the extra of the connection"):
        source.emit_batch(ATTEMPT, batch.metadata, spark)
    source.close()
    connect({"channel_binding": "prefer", "gssencmode": "disable", "keepalives": "1"})
    read = SqlSource("own", table, patience=0)
    frame: Any = read.emit_batch(ATTEMPT, batch.metadata, spark)
    assert [row["n"] for row in frame.collect()] == [1]
    read.close()
