"""A change is what differs from the newest commit of more than four hours ago."""

from __future__ import annotations

import os
import subprocess
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest

from tests.changes import base, changed_files, changed_tests

OLD = """
def test_one():
    assert 1

def test_two():
    assert 2

class TestThree:
    def test_four(self):
        assert 4
"""
TEST = "tests/unit/test_old.py"


class Checkout:
    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.git("init", "-q")

    def git(self, *arguments: str, hours: float = 0.0) -> str:
        at = (datetime.now(timezone.utc) - timedelta(hours=hours)).isoformat()
        names = {f"GIT_{who}_{what}": "nobody" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
        environment = {**os.environ, **names, "GIT_COMMITTER_DATE": at, "GIT_AUTHOR_DATE": at}
        command = ["git", *arguments]
        done = subprocess.run(command, cwd=self.folder, env=environment, check=True, capture_output=True, text=True)
        return done.stdout.strip()

    def write(self, path: str, text: str) -> None:
        (self.folder / path).parent.mkdir(parents=True, exist_ok=True)
        (self.folder / path).write_text(text)

    def commit(self, *, hours: float) -> str:
        self.git("add", "-A")
        self.git("commit", "-q", "-m", "a change", hours=hours)
        return self.git("rev-parse", "HEAD")


@pytest.fixture
def checkout(tmp_path: Path) -> Checkout:
    made = Checkout(tmp_path)
    made.write(TEST, OLD)
    made.write("README.md", "old")
    return made


def test_a_change_is_compared_with_the_newest_commit_that_is_older_than_four_hours(checkout: Checkout) -> None:
    checkout.commit(hours=9)
    checkout.write("a.py", "")
    settled = checkout.commit(hours=5)
    checkout.write("b.py", "")
    checkout.commit(hours=1)
    checkout.write("c.py", "")
    assert base(checkout.folder) == settled
    assert changed_files(checkout.folder, settled) == {"b.py", "c.py"}


def test_every_file_counts_as_changed_if_no_older_commit_is_known(checkout: Checkout) -> None:
    checkout.commit(hours=1)
    assert base(checkout.folder) is None
    assert changed_files(checkout.folder, None) == {TEST, "README.md"}
    assert changed_tests(checkout.folder, None) == [TEST]


def test_tests_with_changed_lines_and_tests_in_new_files_count_as_changed(checkout: Checkout) -> None:
    settled = checkout.commit(hours=5)
    checkout.write(TEST, OLD.replace("assert 2", "assert 22").replace("assert 4", "assert 44"))
    checkout.write("tests/unit/test_new.py", "def test_new():\n    pass\n")
    checkout.write("tests/unit/helper.py", "def test_data():\n    pass\n")
    expected = ["tests/unit/test_new.py", f"{TEST}::test_two", f"{TEST}::TestThree::test_four"]
    assert changed_tests(checkout.folder, settled) == expected


def test_a_test_whose_file_was_deleted_is_not_listed_as_changed(checkout: Checkout) -> None:
    settled = checkout.commit(hours=5)
    (checkout.folder / TEST).unlink()
    assert changed_tests(checkout.folder, settled) == []
