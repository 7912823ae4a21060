"""What a database says to a statement: an error is final, unless it is on the list of what passes."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from airflow_tx.base.errors import StateError, StateLocked, StateUnavailable
from airflow_tx.state import SqlTable
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query

Refusing = Callable[[str, str], SqlTable]
POSTGRES = (
    "CREATE FUNCTION {t}_f() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
    "RAISE EXCEPTION 'as told' USING ERRCODE = '{code}'; END $$"
)


@pytest.fixture
def refusing(table: str) -> Refusing:
    """Makes a table whose database answers an insert with an error of this code."""

    def make(url: str, code: str) -> SqlTable:
        query(url, f"CREATE TABLE {table} (id BIGINT, tx_txid BIGINT)")
        query(url, f"CREATE INDEX {table}_i ON {table} (tx_txid)")
        if url.startswith("postgresql"):
            query(url, POSTGRES.format(t=table, code=code))
            query(url, f"CREATE TRIGGER g BEFORE INSERT ON {table} FOR EACH ROW EXECUTE FUNCTION {table}_f()")
        elif url.startswith("mysql"):
            signal = f"SIGNAL SQLSTATE '45000' SET MYSQL_ERRNO = {code}, MESSAGE_TEXT = 'as told'"
            query(url, f"CREATE TRIGGER {table}_g BEFORE INSERT ON {table} FOR EACH ROW {signal}")
        else:
            query(url, f"CREATE TRIGGER {table}_g BEFORE INSERT ON {table} BEGIN SELECT {code}; END")
        return SqlTable.from_url(url, table=table)

    return make


PASSING = {
    "postgres": "08006 25006 40001 53100 53200 53300 57P01 57P03 58030",
    "mariadb": "1021 1040 1053 1114 1290 1927",
}
FINAL = {
    "postgres": "22001 42501 53400 54000 55000 57014 P0001 XX000",
    "mariadb": "1153 1317 1644 1969",
    "sqlite": "abs(-9223372036854775808) json('{') zeroblob(2000000000) missing()",
}


def cases(codes: dict[str, str]) -> list[tuple[str, str]]:
    return [(database, code) for database, listed in codes.items() for code in listed.split()]


@pytest.mark.parametrize(("url", "code"), cases(PASSING), indirect=["url"])
def test_a_listed_database_error_is_retryable(url: str, grants: Grants, refusing: Refusing, code: str) -> None:
    with pytest.raises(StateUnavailable, match="as told"):
        grants.commit_rows(1, refusing(url, code), [{"id": 1}])


@pytest.mark.parametrize(("url", "code"), cases(FINAL), indirect=["url"])
def test_any_other_database_error_is_permanent(url: str, grants: Grants, refusing: Refusing, code: str) -> None:
    with pytest.raises(StateError, match="the database says: ") as refused:
        grants.commit_rows(1, refusing(url, code), [{"id": 1}])
    assert not isinstance(refused.value, StateUnavailable)


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
@pytest.mark.parametrize("code", ["55P03", "40P01"])
def test_a_lock_held_by_another_session_causes_a_retryable_error(
    url: str, grants: Grants, refusing: Refusing, code: str
) -> None:
    with pytest.raises(StateLocked, match="as told"):
        grants.commit_rows(1, refusing(url, code), [{"id": 1}])


@pytest.mark.parametrize("url", ["postgres"], indirect=True)
def test_a_text_that_is_too_long_for_an_index_is_refused(url: str, table: str, grants: Grants) -> None:
    query(url, f"CREATE TABLE {table} (t TEXT, tx_txid BIGINT)")
    query(url, f"CREATE INDEX ON {table} (tx_txid, t)")
    with pytest.raises(StateError, match="index row requires .* maximum size is") as refused:
        grants.commit_rows(1, SqlTable.from_url(url, table=table), [{"t": "".join(map(chr, range(200, 9_000)))}])
    assert not isinstance(refused.value, StateUnavailable)
