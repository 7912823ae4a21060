"""The DAG of docs/howto/move-from-spark-submit.md, before and after its move, on a real Airflow and PostgreSQL."""

from __future__ import annotations

import shutil
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Engine, create_engine, text
from sqlalchemy.engine import make_url
from sqlalchemy.exc import ProgrammingError

from tests.airflow.stack import Stack
from tests.servers.postgres import LocalPostgres

EXAMPLE = Path(__file__).parents[2] / "examples" / "moving"
DAY = datetime(2026, 1, 5, tzinfo=timezone.utc)
ORDERS = [
    ("tea", 4, DAY),
    ("tea", 6, DAY + timedelta(hours=23)),
    ("cake", 3, DAY),
    ("cake", 9, DAY - timedelta(hours=1)),
]
SALES = {"tea": (2, 10), "cake": (1, 3)}


@pytest.fixture
def shop(stack: Stack, postgres: LocalPostgres) -> Engine:
    """A database with orders, and the connection of this name."""
    url = make_url(postgres.url(postgres.new_database()))
    told: dict[str, Any] = {"login": url.username, "password": url.password, "schema": url.database, "port": url.port}
    stack.connect("shop", conn_type="postgres", host=url.host, **told)
    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("CREATE TABLE orders (product text, amount bigint, ordered_at timestamptz)"))
        connection.execute(text("CREATE TABLE sales (product text PRIMARY KEY, orders bigint, amount bigint)"))
        for order in ORDERS:
            connection.exec_driver_sql("INSERT INTO orders VALUES (%s, %s, %s)", order)
    return engine


def deploy(stack: Stack, kind: str) -> str:
    """Put one of the two into the folder of the DAG files, under an id of its own."""
    dag_id = f"{kind}_sales"
    folder = Path(shutil.copytree(EXAMPLE / kind, stack.airflow_dags / kind, dirs_exist_ok=True))
    data = stack.folder / "shop"
    data.mkdir(exist_ok=True)
    file = folder / "daily_sales.py"
    code = file.read_text().replace("daily_sales", dag_id).replace("/data/shop", str(data))
    file.write_text(code)
    return dag_id


def totals(shop: Engine, table: str) -> dict[str, tuple[int, int]]:
    with shop.connect() as connection:
        rows = connection.execute(text(f"SELECT product, orders, amount FROM {table}"))
        return {product: (orders, amount) for product, orders, amount in rows}


@pytest.mark.long
def test_a_cleared_day_counts_twice_in_an_ordinary_dag_and_once_in_a_transactional_dag(
    stack: Stack, shop: Engine
) -> None:
    dags = [deploy(stack, kind) for kind in ("plain", "transaction")]
    for dag in dags:
        stack.airflow.wait_dag(dag)
        stack.airflow.trigger(dag, "day", logical_date=DAY, interval=(DAY, DAY + timedelta(days=1)))
    for dag in dags:
        stack.airflow.wait_run(dag, "day")
    assert totals(shop, "sales") == SALES
    assert totals(shop, "sales_totals") == SALES

    for dag in dags:
        stack.airflow.clear_run(dag, "day")
    for dag in dags:
        stack.airflow.wait_run(dag, "day")
    assert totals(shop, "sales") == {product: (2 * orders, 2 * amount) for product, (orders, amount) in SALES.items()}
    assert totals(shop, "sales_totals") == SALES


@pytest.mark.long
def test_a_trial_of_the_migrated_dag_shows_the_totals_and_writes_nothing(stack: Stack, shop: Engine) -> None:
    dag = deploy(stack, "transaction")
    stack.airflow.wait_dag(dag)
    stack.airflow.pause(dag)
    shown = stack.airflow.command("dags", "test", dag, "2026-01-06", timeout=300)
    assert "State shop.sales_totals: 2 keys would be written." in shown
    with pytest.raises(ProgrammingError, match="sales_totals"):
        totals(shop, "sales_totals")
