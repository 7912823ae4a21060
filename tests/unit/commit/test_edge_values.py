"""Values at the edges of each column type, from a task into a state: exactly what arithmetic says, or refused."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from airflow_tx.state import Max, MemoryState, SqlState, Sum
from tests.edges.state_values import batches, check_values


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("edges")


NUMBER = itertools.count()


@settings(max_examples=150, suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(batch=batches(), on_sqlite=st.booleans(), is_staged=st.booleans())
@example(batch=("bigint", Sum(), [[{"k": "a", "n": 2**60}, {"k": "a", "n": 1.0}], []]), on_sqlite=True, is_staged=False)
@example(batch=("bigint", Sum(), [[{"k": "a", "n": 0.5}], [{"k": "a", "n": 0.5}]]), on_sqlite=True, is_staged=True)
@example(
    batch=("double", Max("double"), [[{"k": "a", "n": 5.0}, {"k": "a", "n": math.nan}], []]),
    on_sqlite=False,
    is_staged=False,
)
def test_a_state_returns_the_exact_sums_of_edge_values_or_refuses_the_rows(
    folder: Path, batch: tuple[str, Any, list[list[dict[str, Any]]]], on_sqlite: bool, is_staged: bool
) -> None:
    number = next(NUMBER)
    columns: dict[str, Any] = {"keys": ["k"], "values": {"n": batch[1]}}
    state: Any = MemoryState(f"t{number}", **columns)
    if on_sqlite:
        state = SqlState.from_url(f"sqlite:///{folder}/{number}.db", table="t", **columns)
    check_values(batch, state, folder / str(number), is_staged=is_staged)
