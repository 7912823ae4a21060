"""The tests of a `FencedState`. Subclass `StateSuite`, and override the fixture that creates your state.

class TestMyState(StateSuite):
    @pytest.fixture
    def make_state(self, tmp_path):
        def make(kind, name="first", *, keys=("key",), values=None, types=None):
            return MyState(tmp_path / name, keys=keys, values=values or {"n": Sum()}, kind=kind, types=types)
        return make
"""

from __future__ import annotations

from airflow_tx.testing.suites.state_fence import FenceSuite
from airflow_tx.testing.suites.state_receipts import ReceiptSuite
from airflow_tx.testing.suites.state_updates import UpdateSuite
from airflow_tx.testing.suites.state_values import ValueSuite


class StateSuite(FenceSuite, UpdateSuite, ValueSuite, ReceiptSuite):
    """The tests of a fenced state. Override the fixture `make_state`.

    Override `cannot` if your store lacks some types.
    """
