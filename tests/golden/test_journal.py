"""An entry of the journal: what it is called, and what it holds."""

from __future__ import annotations

import datetime as dt
import json
from decimal import Decimal
from pathlib import Path
from typing import Any

from airflow_tx.outputs.journal import Contribution, Entry, JournalArea, KeptFile
from airflow_tx.outputs.staging.area import StagingArea
from airflow_tx.state.aggregators import Avg, Columns, Count, Sum
from tests.golden.written import check_golden

DAY = "2013-01-31"
COLUMNS = Columns("flights", ("day", "carrier"), {"n": Count(), "fare": Sum("numeric"), "delay": Avg()}, {})
ROWS: list[dict[str, Any]] = [
    {"day": dt.date(2013, 1, 1), "carrier": "AA", "n": 3, "fare": Decimal("1.10"), "delay_sum": 1.5, "delay_count": 2},
    {"day": dt.date(2013, 1, 1), "carrier": "UA", "n": 1, "fare": 7, "delay_sum": None, "delay_count": 0},
]


def test_a_journal_entry_matches_the_golden_file(tmp_path: Path) -> None:
    journal = JournalArea(StagingArea(str(tmp_path)), "life-1")
    file = KeptFile(f"{DAY}/rows/{64 * 'a'}.parquet", 1024, 2000, 64 * "a")
    contributions = {
        "flights": journal.contribution(COLUMNS, ROWS, day=DAY),
        "many": Contribution({"carrier": "text"}, {"n": {"aggregator": "sum", "type": "bigint"}}, 2000).of([file]),
        "guard": Contribution(refusal="it takes rows as they are"),
    }
    entry = Entry(
        "flights",
        "life-1",
        7,
        attempt=2,
        birth="b17",
        key="run:manual",
        run_id="manual",
        began=f"{DAY}T11:59:00.000+00:00",
        written=f"{DAY}T12:00:00.000+00:00",
        metadata={"files": ["a.csv"]},
        source=("airflow_tx.sources.memory.MemorySource", {"partitions": {}}),
        replaces={"txid": 3, "entry": f"2013-01-30/3-{64 * 'b'}"},
        contributions=contributions,
    )
    check_golden("entry", {"name": journal.write(entry), "content": json.loads(entry.content)})
    assert list(journal.read(entry.name).contributions["flights"].rows()) == ROWS
