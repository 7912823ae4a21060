"""A coordinator is refused for a block that never can do what it says about corrections upstream."""

from __future__ import annotations

from datetime import timedelta
from typing import Any

import pytest

from airflow_tx import CommitOperator, Transaction, coordinator_dag, persistent_aggregate
from airflow_tx.state import Count, MemoryState, Sum
from tests.unit.topology.blocks import Numbers, count, dag, refused


class Orders(Numbers):
    """Reads a table of topology `orders`."""

    upstream = "orders"


class ReportedOrders(Orders):
    on_correction = "report"


class Longest:
    """A reducer: what it has made of rows cannot be taken back."""

    name = "longest"
    type = "bigint"

    def init(self) -> int:
        return 0

    def reduce(self, current: int, row: Any) -> int:
        return max(current, len(row["word"]))


def coordinated(source: Numbers, values: Any, **options: Any) -> None:
    state = MemoryState("totals", keys=["word"], values=values)
    with dag(), Transaction(source=source, **options) as batch:
        CommitOperator(task_id="commit", updates=[persistent_aggregate(count(batch), state=state)])
    coordinator_dag("words")


ADDED = {"count": Count(), "sum": Sum()}
REDUCED = {"longest": Longest()}


@pytest.fixture(params=["reducer", "journal"])
def never(request: pytest.FixtureRequest) -> dict[str, Any]:
    """A block whose transactions can never be restated."""
    reduced = {"values": REDUCED}
    return reduced if request.param == "reducer" else {"values": ADDED, "journal": timedelta(0)}


def test_a_coordinator_accepts_a_transaction_that_can_be_restated() -> None:
    coordinated(Orders(), ADDED)


def test_a_coordinator_refuses_a_transaction_with_an_upstream_that_can_never_be_restated(never: dict[str, Any]) -> None:
    with refused(r"a correction of 'orders' must restate its transactions, but .*on_correction=\"report\"") as error:
        coordinated(Orders(), **never)
    assert "\n" not in str(error.value)


def test_a_coordinator_accepts_a_transaction_that_reports_corrections_or_has_no_upstream(never: dict[str, Any]) -> None:
    coordinated(ReportedOrders(), **never)
    coordinated(Numbers(), **never)
