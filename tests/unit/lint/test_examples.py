"""The example DAGs that the installed Airflow and its providers ship have no findings: none of them adds to a store.

For the examples of other providers install these into a folder, and run `airflow tx lint` over it.
"""

from __future__ import annotations

from pathlib import Path

import airflow
import pytest

from airflow_tx.lint.report import findings_of

FOLDERS = sorted(Path(airflow.__file__).parent.rglob("example_dags"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.parent.name)
def test_the_linter_has_no_findings_in_the_example_dags_of_airflow(folder: Path) -> None:
    report = findings_of(folder)
    assert [str(each) for each in report.findings] == report.unread == []


def test_the_linter_checks_at_least_fifty_example_dags() -> None:
    assert sum(findings_of(folder).plain for folder in FOLDERS) >= 50
