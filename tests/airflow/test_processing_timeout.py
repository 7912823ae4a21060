"""A transaction that is processed longer than `processing_timeout` is replayed, though its task still works on it."""

from __future__ import annotations

import pytest

from airflow_tx.testing.eventually import eventually
from tests.airflow.feed import Feed
from tests.airflow.stack import Stack


@pytest.mark.long
def test_a_hanging_run_is_replayed_after_the_processing_timeout_and_counted_once(stack: Stack) -> None:
    let_one_hang(stack, "timed")


@pytest.mark.long
def test_a_hanging_lane_transaction_is_replayed_after_the_processing_timeout_and_counted_once(stack: Stack) -> None:
    let_one_hang(stack, "timed_lane")


def let_one_hang(stack: Stack, topology: str) -> None:
    """Commit three transactions, the second of which hangs in its first attempt."""
    feed = Feed(stack, topology, (f"{topology}_coordinator",), f"{topology}_marks")
    stack.airflow.wait_dag(topology)
    feed.go_on()
    try:
        _, hang, _ = feed.add(None, "hang", None)
        assert hang is not None
        eventually(lambda: not hang.exists(), 240, "the second transaction hangs", explain=feed.explain)
        assert feed.record(2)["phase"] == "PROCESSING"
        feed.committed()
        late = stack.receipts(topology)[1]
        assert late["attempt"] == stack.ledger(topology).history()[1].attempts >= 2
        assert "processing_timeout" in str(late["replays"])
    finally:
        feed.stop()
