"""`airflow tx lint`: finds double counts in DAG files. It imports no DAG and asks no ledger."""

from __future__ import annotations

from argparse import Namespace
from pathlib import Path

from airflow_tx.cli.context import comparison
from airflow_tx.lint.folder import findings_of
from airflow_tx.lint.report import formatted


@comparison
def lint(args: Namespace) -> None:
    """`airflow tx lint DAG_FILE|FOLDER [--format text|json|sarif]`: exit code 1 with findings, 2 with bad input."""
    found = findings_of(Path(args.path))
    print(formatted(found, args.format))
    if found:
        raise SystemExit(1)
