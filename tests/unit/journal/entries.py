"""An entry of the journal."""

from __future__ import annotations

from typing import Any

from airflow_tx.outputs.journal import Contribution, Entry, JournalArea
from airflow_tx.state.aggregators import Columns, Count, Sum

DAY = "2013-01-31"
COLUMNS = Columns("flights", ("carrier",), {"n": Count(), "miles": Sum()}, {})


def entry(txid: int = 7, written: str = f"{DAY}T12:00:00.000+00:00", **changed: Any) -> Entry:
    fields = {
        "attempt": 2,
        "birth": "b17",
        "key": "run:manual",
        "run_id": "manual",
        "began": f"{DAY}T11:59:00.000+00:00",
        "metadata": {"files": ["a.csv"]},
        "source": ("airflow_tx.sources.memory.MemorySource", {"partitions": {}}),
        **changed,
    }
    return Entry("flights", "life-1", txid, written=written, **fields)


def rows(count: int) -> list[dict[str, Any]]:
    return [{"carrier": f"c{number:05}", "n": number, "miles": -number} for number in range(count)]


def kept(journal: JournalArea, contribution: Contribution, **changed: Any) -> str:
    return journal.write(entry(contributions={"flights": contribution}, **changed))
