"""A new fact of a transaction is added in few files: docs/architecture.md, "add a fact of a transaction"."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from tests.imports.rulers import PACKAGE, ROOT

FACT = "    wish: Deed | None = None\n\n    @property\n    def restates"
EDITS = {
    # A fact that record and receipt share. It is not written where it says nothing: old receipts keep their hash.
    "ledger/receipt.py": [
        (FACT, FACT.replace("None\n\n", 'None\n    colour: str = ""\n\n', 1)),
        ('frozenset({"size"', 'frozenset({"colour", "size"'),
    ],
    "operations/cli/render.py": [
        ("    waiting_for note behind digest\n", "    waiting_for note behind digest colour\n"),
        ('"batch position partitions acks"', '"batch position partitions acks colour"'),
        ("written replays journal hash\n", "written replays journal hash colour\n"),
    ],
    "plugin/api/timeline.py": [
        (
            "    rejected: int\n    warnings: list[str]\n",
            "    rejected: int\n    colour: str\n    warnings: list[str]\n",
        )
    ],
}
"""Per file of the package, what stands there and what is put in its place."""

SHOWN = """
import json
from airflow_tx.ledger import Paths
from airflow_tx.ledger.api import Put
from airflow_tx.ledger.json_text import replace
from airflow_tx.ledger.records import encode
from airflow_tx.ledger.store.memory import MemoryStore
from airflow_tx.ledger.views.view import LedgerView
from airflow_tx.operations.cli import render
from airflow_tx.plugin.api.timeline import TimelineRow
from airflow_tx.plugin.api.access import answer_of
from airflow_tx.state import Sum
from airflow_tx.state.memory import MemoryState
from tests.model.driver import Run, Topology

store = MemoryStore()
states = [MemoryState("s", keys=["key"], values={"n": Sum()})]
topology = Topology(lambda: store, "/trace", states)
run = Run(topology, "r1")
run.processed(3, {"a": 1})
record = topology.record(1)
store.multi([], [Put(topology.paths.transaction(1), encode(replace(record, colour="green")))])
run.commit()
kept = topology.history(1)
found = LedgerView(store, topology.paths).details(1)
given = dict.fromkeys("attempts tasks waiting commit batch_name to_skip to_restate has_run phase".split())
print(json.dumps({
    "history": kept.colour,
    "receipt": kept.receipt.said()["colour"],
    "list": render.transaction(found.transaction)["colour"],
    "show": render.details(found)["colour"],
    "page": answer_of(TimelineRow, found.transaction, **given).colour,
    "receipts": "colour" in render.RECEIPT_COLUMNS,
}))
"""


def test_a_new_fact_about_a_transaction_needs_changes_in_only_three_files(tmp_path: Path) -> None:
    copy = tmp_path / "airflow_tx"
    shutil.copytree(PACKAGE, copy, ignore=shutil.ignore_patterns("__pycache__", "ui", "*.cjs"))
    for name, edits in EDITS.items():
        text = (copy / name).read_text()
        for old, new in edits:
            assert text.count(old) == 1, f"{name} says {old!r} {text.count(old)} times"
            text = text.replace(old, new)
        (copy / name).write_text(text)
    environment = {**os.environ, "PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}", "PYTHONSAFEPATH": "1"}
    done = subprocess.run([sys.executable, "-c", SHOWN], env=environment, cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(json.loads(done.stdout.splitlines()[-1]).values()) == {"green", True}
    assert {name.partition("/")[0] for name in EDITS} == {"ledger", "operations", "plugin"}
