"""A source that hangs, and viewers who ask it again and again: others are answered, and each is told what is busy."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from contextlib import contextmanager
from itertools import islice
from typing import Any

import httpx
import pytest

from airflow_tx.ledger.batch import TopologyRequest
from airflow_tx.ledger.store.zookeeper import ZooKeeperStore
from airflow_tx.plugin.api.questions import AGAIN_AFTER, MOST_OF_TOPOLOGY
from airflow_tx.testing.eventually import eventually
from tests.integration.board.server import OF_ONE_DAG, ROOT, Board
from tests.integration.pipeline import Pipeline

ATTACK = 45


def search(board: Board, topology: str, user: str) -> httpx.Response:
    with board.client(user) as client:
        return client.get(f"/api/v1/topologies/{topology}/search", params={"what": "1"})


@pytest.fixture
def hanging(store: ZooKeeperStore) -> Pipeline:
    """A topology whose source hangs once it has a transaction to look at."""
    hanging = Pipeline(store, ROOT, topology="hangs")
    hanging.request = TopologyRequest("hangs", "opaque", 3)
    hanging.run("r1")
    return hanging


@contextmanager
def asked(board: Board, questions: int) -> Iterator[list[Future[Any]]]:
    """Let a viewer ask a source that hangs so many times at once, until the block ends."""
    with ThreadPoolExecutor(questions) as pool:
        yield [pool.submit(search, board, "hangs", "vera") for _ in range(questions)]
        board.end_dag_process()


def test_a_viewer_who_sends_many_requests_about_a_hanging_source_delays_no_other_request(
    board: Board, pipeline: Pipeline, hanging: Pipeline
) -> None:
    pipeline.run("r1")
    eventually(lambda: board.get("topologies/flights/search", what="1")["looked"] == 1, 240, "the process has started")
    with asked(board, ATTACK) as questions:
        refused = [each.result() for each in islice(as_completed(questions), ATTACK - MOST_OF_TOPOLOGY)]
        assert {each.status_code for each in refused} == {429}
        assert {each.headers["retry-after"] for each in refused} == {str(AGAIN_AFTER)}
        assert {each.json()["detail"].partition(", since")[0] for each in refused} <= {
            "Topology hangs is busy: a search (2 times) in topology hangs",
            "Topology hangs is busy: a search in topology hangs",
        }
        # The questions that hang still do.
        assert len([each for each in questions if not each.done()]) == MOST_OF_TOPOLOGY
        other = search(board, "flights", OF_ONE_DAG)
        assert (other.status_code, other.json()["looked"]) == (200, 1)
        preview = board.post("topologies/flights/actions/accept-loss/preview", {})
        assert preview.status_code == 200
    assert {each.result().status_code for each in questions} == {429, 504}
