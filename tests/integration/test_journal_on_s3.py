"""The journal in an object store: a real S3 server copies staged files, and a restored backup is refused by name."""

from __future__ import annotations

import datetime as dt
import re
from typing import Any

import pytest

from airflow_tx.base.errors import EntryDiffers, EntryMissing
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.journal import Entry, JournalArea, StagedFiles
from airflow_tx.outputs.staging.area import StagingArea, write_rows
from airflow_tx.state.aggregators import Columns, Count
from tests.servers.s3 import Bucket, LocalS3

DAY = "2013-01-31"
COLUMNS = Columns("flights", ("carrier",), {"n": Count()}, {})
ROWS = [{"carrier": f"c{number}", "n": number} for number in range(2000)]


@pytest.fixture
def bucket(s3: LocalS3) -> Bucket:
    return Bucket(s3)


@pytest.fixture
def area(bucket: Bucket) -> StagingArea:
    return StagingArea(f"s3://{bucket.conn_id}@{bucket.name}/staging")


def written(area: StagingArea, rows: list[dict[str, Any]] = ROWS, day: str = DAY) -> str:
    """Stage rows, write them into the journal, and remove what was staged."""
    journal = JournalArea(area, "life")
    own = area.of_topology("life")
    where = own.try_dir("flights", TransactionAttempt(1, 1), TaskTry("count", -1, "a"))
    (file,) = write_rows(where, "counts", rows).files
    staged = StagedFiles([(where.child(f"counts/{file.name}"), file.rows)], ["carrier", "n"], "life")
    contribution = journal.contribution(COLUMNS, rows, day=day, staged=staged)
    own.sweep("flights")
    parts = {"flights": contribution}
    times: dict[str, Any] = {"began": f"{day}T00:00:00+00:00", "written": f"{day}T00:00:01+00:00"}
    batch: dict[str, Any] = {"key": "run", "run_id": "run", "metadata": {}, "source": ("a.Source", {})}
    return journal.write(Entry("flights", "life", 1, attempt=1, birth="b", **batch, **times, contributions=parts))


def test_staged_files_are_copied_into_the_journal_by_the_s3_server(
    area: StagingArea, bucket: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    written_by_us: list[str] = []
    write = type(area.files).write

    def noted(self: Any, name: str, content: bytes) -> None:
        written_by_us.append(name)
        write(self, name, content)

    monkeypatch.setattr(type(area.files), "write", noted)
    name = written(area)
    assert [each for each in written_by_us if "/rows/" in each] == []
    found = JournalArea(area, "life").check(name).contributions["flights"]
    assert list(found.rows()) == list(found.rows()) == ROWS
    assert bucket.fs.exists(f"{bucket.name}/staging/life/@journal/{found.files[0].name}")


def test_journal_days_are_listed_and_old_days_are_removed(area: StagingArea) -> None:
    old = written(area, day="2013-01-01")
    new = written(area)
    journal = JournalArea(area, "life")
    assert journal.names(1) == [new, old]
    assert journal.sweep(dt.date(2013, 1, 31), list) == ["2013-01-01"]
    assert journal.names() == [new]


def test_a_journal_restored_from_an_older_backup_is_refused_and_the_error_names_the_entry(
    area: StagingArea, bucket: Bucket
) -> None:
    before = written(area, ROWS[:1500])
    folder = f"{bucket.name}/staging/life/@journal"
    backup = {name: bucket.fs.cat_file(name) for name in bucket.fs.find(folder)}
    name = written(area)
    journal = JournalArea(area, "life")
    (rows,) = journal.read(name).contributions["flights"].files
    bucket.fs.rm(folder, recursive=True)
    bucket.fs.pipe(backup)
    with pytest.raises(EntryMissing, match=re.escape(name)):
        journal.read(name)
    assert len(list(journal.read(before).contributions["flights"].rows())) == 1500

    named = next(each for each in backup if each.endswith(".parquet"))
    again = written(area)
    bucket.fs.pipe(f"{folder}/{rows.name}", backup[named])
    with pytest.raises(EntryDiffers, match=f"{re.escape(again)} .*parquet has the sha256"):
        next(journal.read(again).contributions["flights"].rows())
