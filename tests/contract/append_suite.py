"""What a table to which rows are appended has of the state suite."""

from __future__ import annotations

from typing import Any

import pytest

from airflow_tx.state import SqlTable
from airflow_tx.state.api import FencedState
from airflow_tx.testing.suites.state_fence import FenceSuite
from airflow_tx.testing.suites.state_tools import Grants, is_applied, rows
from tests.lake import summed


class SummedSqlTable(SqlTable):
    """Shows the sums of its rows, as a keyed state does."""

    def read(self, limit: int | None = None) -> list[dict[str, Any]]:
        return summed(super().read())


class AppendSuite(FenceSuite):
    @pytest.fixture(params=["opaque"])
    def kind(self, request: pytest.FixtureRequest) -> str:
        return str(request.param)

    def test_the_fence_says_when_all_updates_of_its_grant_are_in(self, state: FencedState, grants: Grants) -> None:
        grant = grants(1)
        state.raise_fence(grant)
        assert is_applied(state) is False
        state.write(grant, rows({"a": 1}))
        assert is_applied(state) is True
        state.raise_fence(grants(1, 2))
        assert is_applied(state) is False
