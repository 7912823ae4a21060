"""Topologies of DAGs in other ledgers, as the commands find them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from airflow_tx.hooks import zookeeper
from airflow_tx.ledger.api import Paths
from airflow_tx.operations.actions.ledger_places import LedgerPlace
from airflow_tx.operations.cli import commands


def elsewhere(monkeypatch: pytest.MonkeyPatch, *conn_ids: str, connect: Callable[[str], Any]) -> None:
    """Let DAGs name a topology in the ledger of each connection."""

    class Places:
        def elsewhere(self) -> dict[str, str]:
            return {f"far@{each}/far": "dag" for each in conn_ids}

        def named(self, name: str) -> LedgerPlace:
            return LedgerPlace(name, name.partition("@")[2].partition("/")[0], Paths("/far", "far"))

    class Hook:
        def __init__(self, conn_id: str) -> None:
            self.conn_id = conn_id

        @contextmanager
        def store(self) -> Iterator[Any]:
            yield connect(self.conn_id)

    monkeypatch.setattr(commands, "LedgerPlaces", Places)
    monkeypatch.setattr(zookeeper, "ZooKeeperHook", Hook)
