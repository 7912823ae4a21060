"""Which staged files are deleted, and when."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from airflow_tx.state.lake.state import FENCES_KEPT, NOTES, dead_files, old_fences

DAY = 86_400.0
paths = st.builds(
    lambda txid, name: f"_airflow_tx/{txid}.1.00000000000000ab/{name}.parquet", st.integers(1, 9), st.integers(0, 3)
)


@given(st.sets(paths), st.sets(paths), st.dictionaries(paths, st.floats(0, 20 * DAY)), st.integers(1, 9))
def test_a_cleanup_deletes_no_file_in_use_and_no_file_of_an_open_transaction(
    there: set[str], live: set[str], known: dict[str, float], txid: int
) -> None:
    found = dead_files(there, live, known, txid=txid, now=10 * DAY, retention=7 * DAY)
    for path in found.over:
        assert path not in live
        assert int(path.split("/")[1].split(".")[0]) < txid
        assert known[path] <= 3 * DAY
    assert not set(found.over) & set(found.since)


def test_a_file_is_deleted_after_it_was_unused_for_the_retention_time() -> None:
    path = "_airflow_tx/1.1.00000000000000ab/a.parquet"
    first = dead_files([path], (), {}, txid=2, now=DAY, retention=7 * DAY)
    assert (first.over, first.since) == (set(), {path: DAY})
    assert dead_files([path], (), first.since, txid=2, now=8 * DAY, retention=7 * DAY).over == {path}


def test_a_file_that_is_used_again_starts_a_new_retention_time() -> None:
    path = "_airflow_tx/1.1.00000000000000ab/a.parquet"
    again = dead_files([path], {path}, {path: 0.0}, txid=2, now=9 * DAY, retention=7 * DAY)
    assert (again.over, again.since) == (set(), {})


def test_a_cleanup_does_not_delete_other_files() -> None:
    there = [
        NOTES,
        "part-1.parquet",
        "_airflow_tx/x/y",
        "_airflow_tx/1.csv",
        "_airflow_tx/1.1.backup/a.parquet",
        "1.1.00000000000000ab/a.parquet",
    ]
    found = dead_files(there, (), dict.fromkeys(there, 0.0), txid=9, now=99 * DAY, retention=DAY)
    assert (found.over, found.since) == (set(), {})


def test_old_fences_are_kept_for_processes_that_have_read_an_older_version() -> None:
    there = [f"_airflow_tx/_fence/{number}-00000000000000ff.json" for number in range(1, 300)]
    last = 299
    foreign = [NOTES, "_airflow_tx/_fence/1-notes.json", "_airflow_tx/1.1.00000000000000ab/5-00000000000000ff.json"]
    old = old_fences([*there, *foreign], last)
    assert old == set(there[: last - FENCES_KEPT])
