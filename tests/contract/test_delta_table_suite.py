"""The state suite on Delta tables, on disk and on S3, as far as it fits rows that are appended."""

from __future__ import annotations

from pathlib import Path

import pytest

from airflow_tx.state.api import FencedState
from airflow_tx.testing.suites.state_tools import MakeState
from tests.contract.append_suite import AppendSuite
from tests.lake import SummedTable
from tests.servers.s3 import Bucket, LocalS3


class TestDeltaTable(AppendSuite):
    @pytest.fixture
    def make_state(self, tmp_path: Path) -> MakeState:
        def make(kind: str, name: str = "first", **_: object) -> FencedState:
            return SummedTable(tmp_path / name)

        return make


@pytest.mark.long
class TestDeltaTableOnS3(AppendSuite):
    @pytest.fixture
    def make_state(self, s3: LocalS3) -> MakeState:
        bucket = Bucket(s3)

        def make(kind: str, name: str = "first", **_: object) -> FencedState:
            return SummedTable(f"{bucket.url}/{name}", storage_options=s3.options)

        return make
