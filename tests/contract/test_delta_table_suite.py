"""The state suite on Delta tables, on disk and on S3, as far as it fits rows that are appended."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tx.state.api import FencedState
from airflow_tx.testing.suites.state_fence import FenceSuite
from airflow_tx.testing.suites.state_tools import Grants, MakeState, is_applied, rows
from tests.lake import SummedTable
from tests.servers.s3 import Bucket, LocalS3


class _AppendSuite(FenceSuite):
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


class TestDeltaTable(_AppendSuite):
    @pytest.fixture
    def make_state(self, tmp_path: Path) -> MakeState:
        def make(kind: str, name: str = "first", **_: object) -> FencedState:
            return SummedTable(tmp_path / name)

        return make


@pytest.mark.long
class TestDeltaTableOnS3(_AppendSuite):
    @pytest.fixture
    def make_state(self, s3: LocalS3) -> MakeState:
        bucket = Bucket(s3)

        def make(kind: str, name: str = "first", **_: object) -> FencedState:
            return SummedTable(f"{bucket.url}/{name}", storage_options=s3.options)

        return make
