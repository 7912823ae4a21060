"""`airflow tx list` over several ledgers: all are asked together, and each is given as it answers."""

from __future__ import annotations

import threading
from argparse import Namespace
from typing import Any

import pytest

from airflow_tx.base.config import Settings
from airflow_tx.base.errors import StoreUnavailable
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.operations.cli import commands
from tests.integration.pipeline import Pipeline
from tests.unit.cli.far_ledgers import elsewhere

ARGS = Namespace(topology=None, root="", conn_id="", no_lag=True)
TIMEOUT = 60


def test_the_list_command_queries_unreachable_ledgers_in_parallel(monkeypatch: pytest.MonkeyPatch) -> None:
    together = threading.Barrier(2, timeout=TIMEOUT)

    def connect(conn_id: str) -> Any:
        together.wait()
        raise StoreUnavailable(hosts="h", connection=conn_id, reason="it is away")

    elsewhere(monkeypatch, "one", "two", connect=connect)
    rows = [row for some in commands._topology_rows(ARGS, MemoryStore()) for row in some]
    assert [each["state"] for each in rows] == ["unreadable"] * 2
    assert sorted(each["topology"] for each in rows) == ["far@one/far", "far@two/far"]


def test_the_topologies_of_one_ledger_are_listed_before_a_slower_ledger_answers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    is_seen = threading.Event()
    store = MemoryStore()
    Pipeline(store, Settings.load().root).begin("r1")

    def connect(conn_id: str) -> Any:
        assert is_seen.wait(TIMEOUT)
        raise StoreUnavailable(hosts="h", connection=conn_id, reason="it is away")

    elsewhere(monkeypatch, "one", connect=connect)
    rows = commands._topology_rows(ARGS, store)
    assert [each["topology"] for each in next(rows)] == ["flights"]
    is_seen.set()
    assert [each["topology"] for each in next(rows)] == ["far@one/far"]
