"""The files that `airflow tx lint` reads, and their findings."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

from airflow_tx.errors import ConfigError
from airflow_tx.lint.dags import FileDags, dags_of
from airflow_tx.lint.hit import Hit
from airflow_tx.lint.plain_checks import plain_hits
from airflow_tx.lint.project import LintedProject, refused
from airflow_tx.lint.report import LintFinding, LintReport
from airflow_tx.lint.rules import RULES
from airflow_tx.lint.transaction_checks import application_hits, transaction_hits


def findings_of(path: Path) -> LintReport:
    """Read a file, or all Python files of a folder.

    :raises ConfigError: there is nothing to read.
    """
    report = LintReport()
    found: set[LintFinding] = set()
    project = LintedProject(path if path.is_dir() else path.parent)
    for file in _files(path):
        try:
            found |= set(_findings(project, file, report))
        except ConfigError as error:
            report.unread.append(str(error))
    report.findings = sorted(found)
    return report


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise refused(path, "No such file or folder: check the path")
    if not path.is_dir():
        return [path]
    files = sorted(_python_files(path))
    if not files:
        raise refused(path, "The folder holds no Python file: name the folder of your DAGs")
    return files


def _python_files(path: Path) -> Iterator[Path]:
    """Give the files of a folder. Hidden folders and virtual environments are left out, and no link is followed."""
    for folder, folders, names in os.walk(path):
        folders[:] = [each for each in folders if _has_dags(Path(folder, each))]
        files = (Path(folder, name) for name in names if name.endswith(".py"))
        yield from (file for file in files if file.is_file() or file.is_symlink())


def _has_dags(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in ("__pycache__", "node_modules")
    return not hidden and not (folder / "pyvenv.cfg").exists()


def _findings(project: LintedProject, file: Path, report: LintReport) -> Iterator[LintFinding]:
    try:
        dags = dags_of(project.read(file))
        hits = list(_hits(project, dags))
    except RecursionError as error:
        raise refused(file, "The code is nested too deeply to be read") from error
    report.files += 1
    report.transactions += len(dags.blocks)
    report.plain += len(dags.plain)
    report.applications += len(dags.applications)
    _check_ignored(project, file)
    for hit in hits:
        yield from _finding(project, hit)


def _hits(project: LintedProject, dags: FileDags) -> Iterator[Hit]:
    for block in dags.blocks:
        yield from transaction_hits(project, block)
    for application in dags.applications:
        yield from application_hits(project, application)
    for dag in dags.plain:
        yield from plain_hits(project, dag)


def _finding(project: LintedProject, hit: Hit) -> Iterator[LintFinding]:
    path = project.path_of(hit.scope)
    ignored = project.ignored[path]
    ends = (hit.node.lineno, hit.node.end_lineno or hit.node.lineno)
    if not any(hit.code in ignored.get(line, ()) for line in ends):
        yield LintFinding(str(path), hit.node.lineno, hit.node.col_offset + 1, hit.code, hit.dag)


def _check_ignored(project: LintedProject, file: Path) -> None:
    """:raises ConfigError: a comment names a code that no rule has."""
    for line, codes in project.ignored[file].items():
        unknown = [code for code in codes if code not in RULES]
        if unknown:
            remedy = f"noqa names {unknown[0]}, which is no rule. The rules: {', '.join(RULES)}"
            raise refused(f"{file}:{line}", remedy)
