"""The source suite on every source we have, and on the one that docs/howto/write-a-source.md makes from scratch."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable
from datetime import datetime, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from airflow_tx.base.compat import RunInfo
from airflow_tx.base.errors import SourceError
from airflow_tx.ledger.attempt import TransactionAttempt
from airflow_tx.sources.api import Source
from airflow_tx.sources.files.source import FileSource, PartitionedFileSource
from airflow_tx.sources.memory import MemorySource
from airflow_tx.sources.run.data_interval import DataIntervalSource
from airflow_tx.sources.run.partition import RunPartitionSource
from airflow_tx.testing.suites.source_case import Row
from airflow_tx.testing.suites.source_suite import SourceSuite

ROOT = Path(__file__).parents[2]


class TestMemorySource(SourceSuite):
    kind = "transactional"

    @pytest.fixture(autouse=True)
    def place(self) -> None:
        self.data: dict[str, list[Row]] = {"0": [], "1": []}
        self.away: dict[str, list[Row]] = {}
        self.number = 0

    def make(self) -> MemorySource:
        return MemorySource(self.data, per_batch=3, kind=self.kind)

    def add(self) -> list[Row]:
        return [row for name in sorted(self.data) for row in self.append(name, 5)]

    def append(self, name: str, count: int) -> list[Row]:
        rows = [{"n": self.number + n, "partition": name} for n in range(count)]
        self.number += count
        self.data.setdefault(name, []).extend(rows)
        return rows

    def add_partition(self) -> list[Row]:
        return self.append("new", 4)

    def lose_partition(self) -> None:
        self.away = {"1": self.data.pop("1")}

    def return_partition(self) -> None:
        self.data.update(self.away)

    def lose_rows(self) -> None:
        del self.data["0"][2:]


class TestOpaqueMemorySource(TestMemorySource):
    kind = "opaque"


class Folder:
    """Numbered csv files."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(parents=True)
        self.number = 0

    def write(self, name: str, **columns: str) -> list[Row]:
        self.number += 1
        rows = [{"file": f"{self.path.name}/{name}", "n": str(self.number * 10 + n)} for n in range(2)]
        (self.path / name).write_text("file,n\n" + "".join(f"{row['file']},{row['n']}\n" for row in rows))
        return [{**row, **columns} for row in rows]

    def append(self, count: int, **columns: str) -> list[Row]:
        return [row for _ in range(count) for row in self.write(f"{self.number:04}.csv", **columns)]


class TestFileSource(SourceSuite):
    knows_what_is_gone = True
    kind = "transactional"

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.folder = Folder(tmp_path / "in")

    def make(self) -> FileSource:
        return FileSource(f"{self.folder.path}/*.csv", files_per_batch=2, kind=self.kind)

    def add(self) -> list[Row]:
        return self.folder.append(5)

    def lose_rows(self) -> None:
        (self.folder.path / "0000.csv").unlink()


class TestOpaqueFileSource(TestFileSource):
    kind = "opaque"


class TestFileSourceOfAnObjectStorage(TestFileSource):
    def make(self) -> FileSource:
        return FileSource(f"file://{self.folder.path}/*.csv", max_bytes_per_batch=60, kind=self.kind)


class TestOpaqueFileSourceOfAnObjectStorage(TestFileSourceOfAnObjectStorage):
    kind = "opaque"


class TestPartitionedFileSource(SourceSuite):
    knows_what_is_gone = True
    kind = "transactional"

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.root = tmp_path / "orders"
        self.folders = {name: Folder(self.root / f"region={name}") for name in ("eu", "us")}

    def make(self) -> PartitionedFileSource:
        return PartitionedFileSource(f"{self.root}/*/*.csv", files_per_batch=2, kind=self.kind)

    def add(self) -> list[Row]:
        return [row for name, folder in self.folders.items() for row in folder.append(3, region=name)]

    def add_partition(self) -> list[Row]:
        self.folders["asia"] = Folder(self.root / "region=asia")
        return self.folders["asia"].append(1, region="asia")

    def lose_partition(self) -> None:
        (self.root / "region=us").rename(self.root.parent / "away")

    def return_partition(self) -> None:
        (self.root.parent / "away").rename(self.root / "region=us")

    def lose_rows(self) -> None:
        (self.root / "region=eu" / "0000.csv").write_text("file,n\n")


class TestOpaquePartitionedFileSource(TestPartitionedFileSource):
    kind = "opaque"

    def lose_rows(self) -> None:
        (self.root / "region=eu" / "0000.csv").unlink()


class TestPartitionedFileSourceOfAnObjectStorage(TestPartitionedFileSource):
    def make(self) -> PartitionedFileSource:
        return PartitionedFileSource(f"file://{self.root}/*/*.csv", files_per_batch=2, kind=self.kind)


class TestOpaquePartitionedFileSourceOfAnObjectStorage(TestOpaquePartitionedFileSource):
    def make(self) -> PartitionedFileSource:
        return PartitionedFileSource(f"file://{self.root}/*/*.csv", files_per_batch=2, kind=self.kind)


class _Runs(SourceSuite):
    """Sources whose batch is the run's own."""

    start = datetime(2026, 1, 1, tzinfo=timezone.utc)

    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        # As on a worker, which has the folder of the user's modules on its path.
        monkeypatch.syspath_prepend(str(Path(__file__).parent))
        self.file = tmp_path / "lines"
        self.file.touch()
        self.days = 0

    def add(self) -> list[Row]:
        rows = []
        for _ in range(2):
            at = (self.start + timedelta(days=self.days)).isoformat()
            rows += [{"at": at, "n": self.days * 10 + n} for n in range(3)]
            self.days += 1
        with self.file.open("a") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        return rows

    def runs(self) -> Iterable[RunInfo]:
        return [self.run_of(self.start + timedelta(days=day)) for day in range(self.days)]

    def run_of(self, date: datetime) -> RunInfo:
        raise NotImplementedError


class TestDataIntervalSource(_Runs):
    def make(self) -> Source:
        return DataIntervalSource("interval_reader.between", options={"path": str(self.file)})

    def run_of(self, date: datetime) -> RunInfo:
        return RunInfo(f"scheduled__{date}", "scheduled", date, date + timedelta(days=1), date, None, None, {})


class TestOpaqueDataIntervalSource(TestDataIntervalSource):
    def make(self) -> Source:
        return DataIntervalSource("interval_reader.between", options={"path": str(self.file)}, kind="opaque")


class TestRunPartitionSource(_Runs):
    def make(self) -> Source:
        return RunPartitionSource("interval_reader.of_partition", options={"path": str(self.file)})

    def run_of(self, date: datetime) -> RunInfo:
        return RunInfo(f"run__{date}", "manual", None, None, None, "eu", date, {})


def _of_the_docs(name: str) -> ModuleType:
    """A module of docs/howto/write-a-source.md, as it stands there."""
    text = (ROOT / "docs" / "howto" / "write-a-source.md").read_text()
    code = re.search(rf"```python\n(# {name}\.py\n.*?)```", text, re.DOTALL)
    assert code, f"docs/howto/write-a-source.md has no {name}.py"
    module = ModuleType(name)
    sys.modules[name] = module
    exec(compile(code[1], f"docs/howto/write-a-source.md:{name}", "exec"), module.__dict__)
    return module


_of_the_docs("shop_logs")
_NUMBERS = _of_the_docs("numbers_source")


class TestNumbersOfTheDocs(SourceSuite):
    @pytest.fixture(autouse=True)
    def place(self, tmp_path: Path) -> None:
        self.file = tmp_path / "numbers"
        self.first, self.end = 0, 0

    def make(self) -> Source:
        source: Source = _NUMBERS.Numbers(str(self.file), max_rows_per_batch=10)
        return source.with_limit(())

    def add(self) -> list[Row]:
        before, self.end = self.end, self.end + 25
        self.file.write_text(f"{self.first} {self.end}")
        return [{"id": number} for number in range(before, self.end)]

    def lose_rows(self) -> None:
        self.first = 3
        self.file.write_text(f"{self.first} {self.end}")

    def test_a_source_reports_the_rows_that_it_has_lost(self) -> None:
        self.add()
        self.lose_rows()
        (loss,) = self.make().losses({"all": 1})
        assert (loss.position, loss.resume_at, loss.description) == (1, 3, "numbers 1 to 2")
        with pytest.raises(SourceError, match="airflow tx accept-loss TOPOLOGY --why TEXT"):
            self.make().decide(TransactionAttempt(2, 1), {"all": 1})


_TESTS = _of_the_docs("test_shop_logs")
TestShopLogs: Any = _TESTS.TestShopLogs
TestOpaqueShopLogs: Any = _TESTS.TestOpaqueShopLogs
