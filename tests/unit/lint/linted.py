"""A DAG file with a planted line, and the codes that the linter finds in it."""

from __future__ import annotations

import textwrap
from pathlib import Path

from airflow_tx.lint.report import findings_of

HEAD = """
from airflow.sdk import DAG, task
from airflow_tx import CommitOperator, FileSource, SparkBatchOperator, Transaction, current_batch
"""
TAIL = """
with DAG("planted", max_active_runs=8):
    with Transaction(source=FileSource("x/*.csv"), max_pending=4):
        CommitOperator(task_id="commit", updates=[count()])
"""


def processing(lines: str, above: str = "") -> str:
    """Give a DAG file whose task `count` has these lines."""
    body = textwrap.indent(textwrap.dedent(lines).strip(), "    ")
    return f"{HEAD}\n{textwrap.dedent(above)}\n@task\ndef count(rows=None, hook=None):\n{body}\n{TAIL}"


def codes_of(folder: Path, text: str, **others: str) -> list[str]:
    """Give the codes of the findings of a DAG file, with other files beside it."""
    for name, code in others.items():
        (folder / f"{name}.py").write_text(textwrap.dedent(code))
    file = folder / "planted.py"
    file.write_text(text)
    report = findings_of(file)
    assert report.unread == []
    return [each.code for each in report.findings]
