"""`airflow tx show T N` of a final transaction: which batch it counted, after the ledger has rotated its metadata."""

from __future__ import annotations

import inspect
import json
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.config import Settings
from airflow_tx.ledger.api import Put, Store
from airflow_tx.ledger.json_text import is_shortened
from airflow_tx.ledger.receipt import METADATA_KEPT
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.operations.cli import commands
from airflow_tx.outputs.journal import Entry, JournalArea
from airflow_tx.outputs.staging.area import StagingArea
from tests.integration.pipeline import Pipeline

Shown = Callable[[int, str], str]
MANY = {"files": [{"name": f"{day:03}.csv"} for day in range(METADATA_KEPT // 10)]}


@pytest.fixture
def store() -> Store:
    return MemoryStore()


@pytest.fixture
def show(store: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Shown:
    @contextmanager
    def store_of(args: Namespace) -> Iterator[Store]:
        yield store

    def shown(txid: int, output: str) -> str:
        args = Namespace(topology="flights", txid=txid, root="", conn_id="", output=output)
        inspect.unwrap(commands.show)(args)
        return capsys.readouterr().out

    monkeypatch.setattr(commands, "store_of", store_of)
    monkeypatch.setattr(commands, "with_known_run_ends", list)
    return shown


def ran(store: Store, metadata: Any) -> Pipeline:
    """Three committed transactions; the ledger keeps the metadata of the last one alone."""
    pipeline = Pipeline(store, Settings.load().root)
    pipeline.metadata = lambda row: metadata
    for run in ("r1", "r2", "r3"):
        pipeline.run(run)
    assert store.get(pipeline.paths.meta(1)) is None
    return pipeline


def test_show_prints_the_batch_of_a_final_transaction_in_words_or_as_json(store: Store, show: Shown) -> None:
    metadata = {"folder": "/data", "files": [{"name": "2013-01.csv"}, {"name": "2013-02.csv"}]}
    ran(store, metadata)
    (line,) = [each for each in show(1, "table").splitlines() if each.startswith("batch")]
    assert line.split("|")[1].strip() == "2013-01.csv and 1 more"
    assert json.loads(show(1, "json"))[0]["batch"] == metadata


def test_show_reads_the_batch_from_the_journal_if_the_receipt_has_only_a_digest_of_the_batch(
    store: Store, show: Shown, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("AIRFLOW_HOME", str(tmp_path))
    pipeline = ran(store, MANY)
    assert is_shortened(json.loads(show(1, "json"))[0]["batch"])

    life = pipeline.ledger.incarnation()
    journal = JournalArea(StagingArea.of_ledger("zookeeper_default", Settings.load().root), life)
    written = datetime.now(timezone.utc).isoformat()
    name = journal.write(Entry("flights", life, 1, 1, "", "r1", "r1", written, written, MANY, ("numbers", {})))
    node = store.get(pipeline.paths.history(1))
    assert node is not None
    history = json.loads(node.data)
    history["receipt"]["journal"] = name
    store.multi([], [Put(pipeline.paths.history(1), json.dumps(history).encode())])
    assert json.loads(show(1, "json"))[0]["batch"] == MANY
    assert f"000.csv and {len(MANY['files']) - 1} more" in show(1, "table")
