"""Values at the edges of each column type, from a task into states on servers: what arithmetic says, or refused."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_tx.state import SqlState
from airflow_tx.state.redis.state import RedisState
from tests.edges.state_values import batches, check_values

pytestmark = pytest.mark.long


@pytest.fixture(scope="module", params=["postgres", "mariadb", "redis"])
def make(request: pytest.FixtureRequest) -> Callable[[Any], Any]:
    """Make an empty state with this aggregator."""
    server = request.getfixturevalue(request.param)

    def made(aggregator: Any) -> Any:
        columns: dict[str, Any] = {"keys": ["k"], "values": {"n": aggregator}}
        name = f"edges_{uuid.uuid4().hex[:12]}"
        if request.param == "redis":
            return RedisState.from_url(server.url(), prefix=name, **columns)
        return SqlState.from_url(server.url(), table=name, **columns)

    return made


@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(batch=batches(), is_staged=st.booleans())
def test_a_state_on_a_server_holds_the_exact_sums_of_edge_values_or_refuses_the_rows(
    make: Callable[[Any], Any], tmp_path_factory: pytest.TempPathFactory, batch: Any, is_staged: bool
) -> None:
    check_values(batch, make(batch[1]), tmp_path_factory.mktemp("edges"), is_staged=is_staged)
