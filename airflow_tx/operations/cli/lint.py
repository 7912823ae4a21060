"""`airflow tx lint`: find double counts in DAG files, without importing them and without a ledger."""

from __future__ import annotations

import sys
from argparse import Namespace
from pathlib import Path

from airflow_tx.lint import findings_of, formatted
from airflow_tx.operations.cli.context import comparison


@comparison
def lint(args: Namespace) -> None:
    """`airflow tx lint DAG_FILE|FOLDER [--format text|json|sarif]`.

    The exit code is 1 if there are findings, and 2 for bad input.
    """
    report = findings_of(Path(args.path))
    print(formatted(report, args.format))
    for line in (*report.unseen, *report.unread):
        print(line, file=sys.stderr)
    if report.unread:
        raise SystemExit(2)
    if report.findings:
        raise SystemExit(1)
