"""Values from before the first transaction: of a table of one's own, and of Trident's maps."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from sqlalchemy import create_engine, text

from airflow_tx.state import Count, MemoryMap, OpaqueMap, SqlState, Sum, from_trident
from airflow_tx.state.maps import CombinerValueUpdater
from airflow_tx.testing.suites.state_tools import Grants
from tests.servers.postgres import LocalPostgres

HOWTO = Path(__file__).parents[2] / "docs" / "howto"


def test_the_first_transaction_adds_to_totals_that_existed_before(postgres: LocalPostgres) -> None:
    url = postgres.url(postgres.new_database())
    ((_, statements),) = re.findall(r"```(sql)\n(.*?)```", (HOWTO / "move-from-spark-submit.md").read_text(), re.DOTALL)
    with create_engine(url).begin() as connection:
        connection.execute(text("CREATE TABLE sales (product text PRIMARY KEY, orders bigint, amount bigint)"))
        connection.execute(text("INSERT INTO sales VALUES ('tea', 2, 10)"))
        connection.execute(text(statements))
    state = SqlState.from_url(url, table="sales_totals", keys=["product"], values={"orders": Count(), "amount": Sum()})
    grants = Grants()

    state.raise_and_write(grants(1), [{"product": "tea", "orders": 5, "amount": 50}])
    state.raise_and_write(grants(1, attempt=2), [{"product": "tea", "orders": 1, "amount": 4}])

    assert list(state.read()) == [{"product": "tea", "orders": 3, "amount": 14}]


@pytest.mark.parametrize("stored", ["[7,5,3]", "[6,5,3]"])
def test_a_replay_of_the_first_transaction_starts_from_the_migrated_trident_values(stored: str) -> None:
    counts: OpaqueMap[int] = OpaqueMap(MemoryMap())
    counts.multi_put([("man",)], [from_trident(stored, "opaque", committed=7)])

    for _attempt in (1, 2):
        counts.begin_commit(1)
        counts.multi_update([("man",)], [CombinerValueUpdater(Count(), 2)])
        counts.commit(1)

    assert counts.multi_get([("man",)]) == [7]
