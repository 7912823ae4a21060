"""The state suite on Delta Lake. Each commit takes Spark a second, so most of it is `long`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from airflow_tx.state.delta.state import DeltaState
from airflow_tx.testing.suites.state_suite import StateSuite
from airflow_tx.testing.suites.state_tools import MakeState
from tests.contract.opening import opening
from tests.servers.spark_session import delta_jars, skip_without

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.spark


@pytest.mark.worth("what the suite without Spark cannot say: the commits of Delta itself")
class TestDeltaState(StateSuite):
    @pytest.fixture
    def make_state(self, spark: SparkSession, tmp_path: Path) -> MakeState:
        skip_without(delta_jars)
        return opening(lambda name, **given: DeltaState(str(tmp_path / name), spark=spark, **given))
