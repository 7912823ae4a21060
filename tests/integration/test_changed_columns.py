"""The SQL by which the columns of a state are changed is that of docs/howto/change-columns.md."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy.exc import OperationalError

from airflow_tx.base.errors import StateError
from airflow_tx.state import Count, SqlState, Sum
from airflow_tx.testing.suites.state_tools import Grants
from tests.integration.databases import query
from tests.servers.postgres import LocalPostgres

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "change-columns.md"


def change(url: str, table: str, name: str) -> None:
    """Run a block of SQL of the page."""
    (statements,) = re.findall(rf"```sql\n-- {name}\n(.*?)```", PAGE.read_text(), re.DOTALL)
    for statement in statements.replace("daily_orders", table).split(";"):
        if statement.strip():
            query(url, statement)


def commit(grants: Grants, txid: int, state: SqlState, **row: Any) -> list[dict[str, Any]]:
    """Commit a row in the second attempt of a transaction, and read all."""
    for attempt in (1, 2):
        grant = grants(txid, attempt)
        state.raise_and_write(grant, [row])
    grants.final(grant, state)
    return list(state.read())


def described(url: str, table: str, *keys: str, **values: Any) -> SqlState:
    return SqlState.from_url(url, table=table, keys=keys or ("product",), values=values)


def test_the_sql_statements_on_the_page_add_a_column(url: str, table: str, grants: Grants) -> None:
    commit(grants, 1, described(url, table, amount=Sum()), product="tea", amount=5)
    added = described(url, table, amount=Sum(), refunds=Sum())
    with pytest.raises(StateError, match=r"exists with other columns: it lacks refunds \(bigint\), tx_prev_refunds"):
        added.raise_fence(grants(2))
    change(url, table, "add")
    found = commit(grants, 2, added, product="tea", amount=4, refunds=2)
    assert found == [{"product": "tea", "amount": 9, "refunds": 2}]


def test_the_sql_statements_on_the_page_drop_a_column(url: str, table: str, grants: Grants) -> None:
    commit(grants, 1, described(url, table, orders=Count(), amount=Sum()), product="tea", orders=1, amount=5)
    if url.startswith("sqlite"):
        with pytest.raises(OperationalError, match="after drop column: no such column: amount"):
            change(url, table, "drop")
        return
    change(url, table, "drop")
    found = commit(grants, 2, described(url, table, orders=Count()), product="tea", orders=2)
    assert found == [{"product": "tea", "orders": 3}]


def test_the_sql_statements_on_the_page_rename_a_column(url: str, table: str, grants: Grants) -> None:
    commit(grants, 1, described(url, table, amount=Sum()), product="tea", amount=5)
    change(url, table, "rename")
    found = commit(grants, 2, described(url, table, total=Sum()), product="tea", total=4)
    assert found == [{"product": "tea", "total": 9}]


def test_the_sql_statements_on_the_page_add_a_key_column(postgres: LocalPostgres, table: str, grants: Grants) -> None:
    url = postgres.url()
    commit(grants, 1, described(url, table, orders=Count()), product="tea", orders=1)
    change(url, table, "key")
    found = commit(
        grants, 2, described(url, table, "product", "region", orders=Count()), product="tea", region="eu", orders=2
    )
    keys = sorted((row["product"], row["region"], row["orders"]) for row in found)
    assert keys == [("tea", "eu", 2), ("tea", "unknown", 1)]
