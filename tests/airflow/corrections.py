"""A topology whose committed transactions are corrected, and the same totals by a computation over its files."""

from __future__ import annotations

import csv
import shutil
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from examples.stored import rows
from tests.airflow.stack import Stack

Totals = dict[tuple[str, ...], tuple[int, ...]]
_DAYS = """from corrected import corrected_dag

from airflow_tx import FileSource

dag = corrected_dag({dag_id!r}, FileSource("{files}/*.csv", files_per_batch=1), {tables!r})  # airflow DAG
"""


@dataclass
class Corrected:
    """A topology that is corrected, and the files that it reads.

    :param tables: per table the columns that it adds up; none: it has those of the flights of a month.
    :param files: the folder of the files, if it has not the name of the DAG.
    """

    stack: Stack
    dag_id: str
    tables: dict[str, Sequence[str]] = field(default_factory=dict)
    files: str = ""

    @property
    def folder(self) -> Path:
        return self.stack.folder / (self.files or self.dag_id)

    def write(self) -> None:
        """Write the DAG file, or write it again with other tables."""
        text = _DAYS.format(dag_id=self.dag_id, files=self.folder.name, tables=self.tables)
        (self.stack.airflow_dags / f"{self.dag_id}.py").write_text(text)

    def add(self, files: Sequence[Path]) -> None:
        """Let the source have more files, and commit each in a run of its own."""
        self.folder.mkdir(exist_ok=True)
        for file in files:
            shutil.copy(file, self.folder / file.name)
        self.stack.commit_runs(self.dag_id, *(file.stem for file in files))

    def restate(self, *txids: int, changed_rows: bool = False) -> None:
        """Restate transactions, and wait until all runs have ended."""
        options = ["--changed-rows"] if changed_rows else []
        command = ["tx", "restate", self.dag_id, *map(str, txids), "--why", "the job had a bug", *options]
        self.stack.airflow.command(*command, timeout=600)
        for run in self.stack.airflow.runs(self.dag_id):
            self.stack.airflow.wait_run(self.dag_id, run["dag_run_id"])

    def stored(self, table: str = "", keys: str = "carrier") -> Totals:
        """The totals in a table; a key to which nothing contributes any more is there with zeros."""
        columns = ["flights", *self.tables.get(table or self.dag_id, ["dep_delay"])]
        query = f"SELECT {keys}, {', '.join(columns)} FROM {table or self.dag_id}"
        split = keys.count(",") + 1
        found = rows(self.stack.folder / "state.db", query)
        return {row[:split]: row[split:] for row in found if any(row[split:])}

    def computed(self, table: str = "", keys: str = "carrier") -> Totals:
        """The same totals by a computation over the files."""
        columns = self.tables.get(table or self.dag_id, ["dep_delay"])
        sums: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0] * (len(columns) + 1))
        for path in self.folder.glob("*.csv"):
            with path.open() as file:
                for row in csv.DictReader(file):
                    numbers = [1, *(0 if row[name] == "NA" else int(row[name]) for name in columns)]
                    of = sums[tuple(row[key.strip()] for key in keys.split(","))]
                    of[:] = map(sum, zip(of, numbers, strict=True))
        return {key: tuple(found) for key, found in sums.items()}
