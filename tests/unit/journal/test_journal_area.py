"""The journal: an entry that is written once is read as it was, or refused by its name."""

from __future__ import annotations

import datetime as dt
import os
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from airflow_tx.base.errors import EntryDiffers, EntryMissing, JournalError, StagingUnavailable
from airflow_tx.ledger.attempt import TaskTry, TransactionAttempt
from airflow_tx.outputs.journal import INLINE_ROWS, ROWS_A_FILE, Contribution, JournalArea, StagedFiles
from airflow_tx.outputs.staging.area import StagingArea, write_rows
from tests.unit.journal.entries import COLUMNS, DAY, entry, kept, rows

LIFE = "life-1"


@pytest.fixture(params=["local", "memory"])
def area(request: pytest.FixtureRequest, tmp_path: Path) -> StagingArea:
    """The same area on a folder and on an object store."""
    return StagingArea(str(tmp_path) if request.param == "local" else f"memory://{tmp_path.name}/staging")


@pytest.fixture
def local(tmp_path: Path) -> StagingArea:
    return StagingArea(str(tmp_path))


@pytest.fixture
def journal(area: StagingArea) -> JournalArea:
    return JournalArea(area, LIFE)


def staged(area: StagingArea, *parts: list[dict[str, Any]]) -> StagedFiles:
    where = area.of_topology(LIFE).try_dir("flights", TransactionAttempt(7, 1), TaskTry("count", -1, "a"))
    written = [write_rows(where, "counts", part, file=f"part-{number}.parquet") for number, part in enumerate(parts)]
    files = [(where.child(f"counts/{file.name}"), file.rows) for output in written for file in output.files]
    return StagedFiles(files, written[-1].columns, LIFE)


# --- what is written is read again ---------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [0, 1, INLINE_ROWS, INLINE_ROWS + 1, 2 * ROWS_A_FILE + 1])
def test_journal_rows_can_be_read_unchanged_and_repeatedly(journal: JournalArea, count: int) -> None:
    name = kept(journal, journal.contribution(COLUMNS, iter(rows(count)), day=DAY))
    found = journal.read(name).contributions["flights"]
    assert found.count == count
    assert list(found.rows()) == list(found.rows()) == rows(count)


def test_few_rows_are_stored_inside_the_journal_entry_and_many_rows_in_files(journal: JournalArea) -> None:
    few = journal.contribution(COLUMNS, rows(INLINE_ROWS), day=DAY)
    many = journal.contribution(COLUMNS, rows(INLINE_ROWS + 1), day=DAY)
    long = journal.contribution(COLUMNS, [{"carrier": "a" * 300_000, "n": 1, "miles": 1}], day=DAY)
    assert (few.files, many.inline, long.inline) == ((), None, None)
    assert [len(each.files) for each in (many, long)] == [1, 1]


def test_the_journal_copies_staged_files_and_keeps_them_after_staging_is_cleaned(
    area: StagingArea, journal: JournalArea
) -> None:
    parts = staged(area, rows(1500)[:800], rows(1500)[800:])
    name = kept(journal, journal.contribution(COLUMNS, rows(1500), day=DAY, staged=parts))
    own = area.of_topology(LIFE)
    own.sweep("flights")
    own.kept.sweep("flights")
    assert own.files.list("flights") == {}
    found = journal.check(name).contributions["flights"]
    assert [file.rows for file in found.files] == [800, 700]
    assert list(found.rows()) == list(found.rows()) == rows(1500)
    batches: Any = list(found.parts())
    assert sum(batch.num_rows for batch in batches) == 1500


def test_the_journal_copies_a_file_on_a_local_disk_as_a_hard_link(local: StagingArea, tmp_path: Path) -> None:
    parts = staged(local, rows(1500))
    journal = JournalArea(local, LIFE)
    (file,) = journal.contribution(COLUMNS, rows(1500), day=DAY, staged=parts).files
    copied = tmp_path / LIFE / "@journal" / file.name
    assert os.path.samefile(copied, tmp_path / LIFE / parts.files[0][0])
    assert file.size == copied.stat().st_size


def test_the_journal_copies_the_complete_file_to_a_disk_without_hard_links(
    local: StagingArea, tmp_path: Path, monkeypatch: Any
) -> None:
    def unsupported(*_: Any) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", unsupported)
    parts = staged(local, rows(1500))
    journal = JournalArea(local, LIFE)
    made = journal.contribution(COLUMNS, rows(1500), day=DAY, staged=parts)
    copied = tmp_path / LIFE / "@journal" / made.files[0].name
    assert copied.read_bytes() == (tmp_path / LIFE / parts.files[0][0]).read_bytes()
    assert not os.path.samefile(copied, tmp_path / LIFE / parts.files[0][0])


def test_a_contribution_stores_the_columns_and_types_with_which_it_was_written(journal: JournalArea) -> None:
    found = journal.contribution(COLUMNS, rows(1), day=DAY)
    assert found.keys == {"carrier": "text"}
    assert found.values == {
        "n": {"aggregator": "count", "type": "bigint"},
        "miles": {"aggregator": "sum", "type": "bigint"},
    }
    assert journal.contribution(COLUMNS, [], day=DAY).keys == {"carrier": ""}


VALUES: list[Any] = [
    None,
    True,
    2**62,
    0.1,
    "ä",
    b"\x00\xff",
    dt.date(2013, 1, 1),
    dt.datetime(2013, 1, 1, 12, 0, 0, 5),
    dt.datetime(2013, 1, 1, 12, tzinfo=dt.timezone.utc),
    Decimal("1.10"),
    [1, {"a": [None]}],
]


@pytest.mark.parametrize("value", VALUES, ids=repr)
def test_a_value_in_the_journal_keeps_its_type(journal: JournalArea, value: Any) -> None:
    given = [{"carrier": "a", "n": value, "miles": None}, {"carrier": "b", "n": None, "miles": value}]
    name = kept(journal, journal.contribution(COLUMNS, given, day=DAY))
    found = list(journal.read(name).contributions["flights"].rows())
    assert found == given
    assert [type(row["n"]) for row in found] == [type(value), type(None)]


def test_values_of_several_types_in_one_column_keep_their_types_in_the_journal(journal: JournalArea) -> None:
    given = [{"carrier": str(number), "n": value, "miles": 0} for number, value in enumerate(VALUES)]
    name = kept(journal, journal.contribution(COLUMNS, given, day=DAY))
    found = list(journal.read(name).contributions["flights"].rows())
    assert found == given
    assert [type(row["n"]) for row in found] == list(map(type, VALUES))


def test_rows_that_the_journal_cannot_store_do_not_fail_the_commit(journal: JournalArea) -> None:
    found = journal.contribution(COLUMNS, [{"carrier": "a", "n": {1, 2}, "miles": 0}], day=DAY)
    assert found.refusal == "its rows cannot be kept: a value is a set, which no column can store"


# --- names ---------------------------------------------------------------------------------------------------------


def test_two_writes_of_equal_entries_create_one_entry(journal: JournalArea) -> None:
    first = kept(journal, journal.contribution(COLUMNS, rows(2000), day=DAY))
    second = kept(journal, journal.contribution(COLUMNS, rows(2000), day=DAY))
    assert first == second
    assert journal.names() == [first]


def test_journal_entries_with_different_content_have_different_names(journal: JournalArea) -> None:
    names = {
        kept(journal, journal.contribution(COLUMNS, rows(count), day=DAY), attempt=attempt)
        for count in (1, 2)
        for attempt in (1, 2)
    }
    assert len(names) == 4
    assert sorted(names) == sorted(journal.names(7))


def test_the_entries_of_a_transaction_are_found_for_any_day(journal: JournalArea) -> None:
    old = journal.write(entry(7, "2013-01-29T00:00:00+00:00"))
    new = journal.write(entry(7, "2013-01-31T00:00:00+00:00"))
    journal.write(entry(77, "2013-01-30T00:00:00+00:00"))
    assert journal.names(7) == [new, old]
    assert len(journal.names()) == 3
    assert journal.names(8) == []


def test_each_incarnation_of_a_topology_has_its_own_journal(area: StagingArea, journal: JournalArea) -> None:
    name = journal.write(entry())
    other = JournalArea(area, "life-2")
    assert other.names() == []
    with pytest.raises(EntryMissing):
        other.read(name)


# --- what is refused -----------------------------------------------------------------------------------------------


def test_the_error_for_a_missing_journal_entry_shows_its_name(area: StagingArea, journal: JournalArea) -> None:
    name = journal.write(entry())
    area.files.remove_tree(f"{LIFE}/@journal")
    with pytest.raises(EntryMissing, match=rf"^Entry {name} of the journal cannot be used: \S+{name} is not there\. R"):
        journal.read(name)


def test_the_error_for_a_changed_journal_entry_shows_its_name(area: StagingArea, journal: JournalArea) -> None:
    name = journal.write(entry())
    area.files.write(f"{LIFE}/@journal/{name}", entry(attempt=3).content)
    with pytest.raises(EntryDiffers, match=rf"{name} has the sha256 [0-9a-f]{{64}} instead of {name[-64:]}\. Restore"):
        journal.read(name)


@pytest.mark.parametrize("kind", ["json", "parquet"])
def test_changed_journal_rows_are_refused_before_the_first_row_is_read(
    area: StagingArea, journal: JournalArea, kind: str
) -> None:
    parts = staged(area, rows(1500)) if kind == "parquet" else None
    contribution = journal.contribution(COLUMNS, rows(1500), day=DAY, staged=parts)
    name = kept(journal, contribution)
    path = f"{LIFE}/@journal/{contribution.files[0].name}"
    assert path.endswith(kind)
    area.files.remove_tree(f"{LIFE}/@journal/{DAY}/rows")
    with pytest.raises(EntryMissing, match=f"{name} .*{kind} is not there"):
        next(journal.read(name).contributions["flights"].rows())
    area.files.write(path, b"other rows")
    with pytest.raises(EntryDiffers, match=f"{name} .*{kind} has the sha256"):
        next(journal.read(name).contributions["flights"].rows())
    with pytest.raises(EntryDiffers):
        journal.check(name)


@pytest.mark.parametrize("name", ["", "7", "2013-01-31/7-abc", "../../2013-01-31/7-" + 64 * "a"])
def test_a_malformed_name_of_a_journal_entry_is_refused(journal: JournalArea, name: str) -> None:
    with pytest.raises(JournalError, match="it is not the name of an entry"):
        journal.read(name)


def test_a_journal_entry_with_a_newer_format_is_refused(
    area: StagingArea, journal: JournalArea, monkeypatch: Any
) -> None:
    monkeypatch.setattr("airflow_tx.outputs.journal.ENTRY_FORMAT", 2)
    name = journal.write(entry())
    monkeypatch.undo()
    with pytest.raises(JournalError, match="it has format 2, and this version reads 1. Upgrade airflow-provider-tx"):
        journal.read(name)


def test_a_full_disk_is_reported_with_a_one_line_error_and_leaves_no_entry(
    local: StagingArea, tmp_path: Path, monkeypatch: Any
) -> None:
    journal = JournalArea(local, LIFE)

    def full(*_: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(StagingUnavailable, match=r"cannot be written: No space left on device\. .*Make room"):
        journal.write(entry())
    assert journal.names() == []
    monkeypatch.undo()
    name = journal.write(entry())
    assert journal.names() == [name]


# --- sweep ---------------------------------------------------------------------------------------------------------


def written_on(journal: JournalArea, *days: str) -> list[str]:
    return [
        kept(journal, journal.contribution(COLUMNS, rows(1500), day=day), written=f"{day}T00:00:00+00:00")
        for day in days
    ]


def test_cleaning_the_journal_removes_all_days_before_a_given_day(area: StagingArea, journal: JournalArea) -> None:
    *_, last = written_on(journal, "2013-01-01", "2013-01-02", "2013-01-03")
    assert journal.sweep(dt.date(2013, 1, 3), list) == ["2013-01-02", "2013-01-01"]
    assert journal.names() == [last]
    assert list(area.files.list(f"{LIFE}/@journal")) == ["2013-01-03"]


def test_cleaning_the_journal_keeps_the_day_of_a_needed_entry_and_its_rows(journal: JournalArea) -> None:
    first, second, _ = written_on(journal, "2013-01-01", "2013-01-02", "2013-01-03")
    assert journal.sweep(dt.date(2013, 1, 3), lambda: [first]) == ["2013-01-02"]
    assert len(list(journal.check(first).contributions["flights"].rows())) == 1500
    assert second not in journal.names()
    assert journal.sweep(dt.date(2013, 1, 3), list) == ["2013-01-01"]


def test_cleaning_the_journal_keeps_an_entry_as_long_as_the_entry_of_its_restatement(journal: JournalArea) -> None:
    first, second, _ = written_on(journal, "2013-01-01", "2013-01-02", "2013-01-03")
    journal.write(entry(8, "2013-01-03T00:00:00+00:00", replaces={"txid": 7, "entry": first}))
    assert journal.sweep(dt.date(2013, 1, 3), list) == ["2013-01-02"]
    assert first in journal.names()
    assert second not in journal.names()
    assert journal.sweep(dt.date(2013, 1, 4), list) == ["2013-01-03", "2013-01-01"]


def test_cleaning_the_journal_looks_up_needed_entries_only_if_a_day_is_old_enough(journal: JournalArea) -> None:
    written_on(journal, "2013-01-03")

    def asked() -> list[str]:
        raise AssertionError("it was asked")

    assert journal.sweep(dt.date(2013, 1, 3), asked) == []


def test_deleting_a_topology_removes_its_journal_and_no_other_journal(area: StagingArea, journal: JournalArea) -> None:
    other = JournalArea(area, "life-2")
    journal.write(entry())
    other.write(entry())
    area.forget(LIFE)
    assert (journal.names(), len(other.names())) == ([], 1)


def test_a_refused_contribution_has_no_rows() -> None:
    assert list(Contribution(refusal="it takes rows as they are").rows()) == []
