"""The report of `airflow tx lint` as text, JSON or SARIF 2.1.0."""

from __future__ import annotations

import ast
import json
import os
import re
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from airflow_tx.base.errors import ConfigError
from airflow_tx.lint.checks import Hit, application_hits, plain_hits, transaction_hits
from airflow_tx.lint.rules import RULES
from airflow_tx.lint.scope import FileDags, LintedProject, dags_of, refused

# --- report -------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, order=True)
class LintFinding:
    """A finding: a line that breaks a rule.

    :param file: path of the file.
    :param line: line number, from 1.
    :param column: column number, from 1.
    :param code: code of the rule.
    :param dag: dag_id of a DAG without a transaction; "" if unknown or inside a transaction.
    """

    file: str
    line: int
    column: int
    code: str
    dag: str = ""

    @property
    def message(self) -> str:
        """Return the reason and the remedy of the rule."""
        rule = RULES[self.code]
        return f"{rule.reason_in(self.dag)}. Remedy: {rule.remedy}."

    def __str__(self) -> str:
        page = RULES[self.code].page
        return f"{self.file}:{self.line}:{self.column}: {self.code} {self.message} More: {page}"


@dataclass
class LintReport:
    """The findings of a lint, and the numbers of checked files, DAGs and applications.

    :param findings: the findings, ordered by file and line.
    :param unread: one error for each file that cannot be read.
    :param unseen: one note for each file whose DAGs the linter cannot see.
    :param files: number of files.
    :param transactions: number of `Transaction` blocks.
    :param plain: number of DAGs without a transaction.
    :param applications: number of Spark applications.
    """

    findings: list[LintFinding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    unseen: list[str] = field(default_factory=list)
    files: int = 0
    transactions: int = 0
    plain: int = 0
    applications: int = 0

    @property
    def summary(self) -> str:
        """Return one line with the numbers of findings, files, DAGs and applications."""
        return (
            f"Findings: {len(self.findings)}. Files: {self.files}, transactions: {self.transactions}, "
            f"Spark applications: {self.applications}, DAGs without a transaction: {self.plain}."
        )


def formatted(report: LintReport, form: str) -> str:
    """Return the report as text in the given format.

    :param form: `text`, `json` or `sarif`.
    """
    if form == "json":
        return json.dumps([_data(each) for each in report.findings], indent=2)
    if form == "sarif":
        return json.dumps(_sarif(report.findings), indent=2)
    return "\n".join([*map(str, report.findings), report.summary])


def _data(found: LintFinding) -> dict[str, Any]:
    rule = RULES[found.code]
    reason = rule.reason_in(found.dag)
    return asdict(found) | {"reason": reason, "remedy": rule.remedy, "page": rule.page}


def _sarif(found: Sequence[LintFinding]) -> dict[str, Any]:
    rules = [
        {
            "id": rule.code,
            "shortDescription": {"text": rule.reason},
            "help": {"text": f"{rule.remedy}. More: {rule.page}"},
        }
        for rule in RULES.values()
    ]
    tool = {"driver": {"name": "airflow tx lint", "rules": rules}}
    return {
        "$schema": "https://json.schemastore.org/sarif-2.1.0.json",
        "version": "2.1.0",
        "runs": [{"tool": tool, "results": [_result(each) for each in found]}],
    }


def _result(found: LintFinding) -> dict[str, Any]:
    region = {"startLine": found.line, "startColumn": found.column}
    place = {"artifactLocation": {"uri": found.file.replace(" ", "%20")}, "region": region}
    return {
        "ruleId": found.code,
        "level": "warning",
        "message": {"text": found.message},
        "locations": [{"physicalLocation": place}],
    }


# --- folder -------------------------------------------------------------------------------------------------------
# The files that `airflow tx lint` reads, and the findings in them.


def findings_of(path: Path) -> LintReport:
    """Check a file, or all Python files in a folder.

    :raises ConfigError: the path does not exist, or the folder contains no Python file.
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
    """Yield the Python files in a folder. Hidden folders, virtual environments and linked folders are left out."""
    for folder, folders, names in os.walk(path):
        folders[:] = [each for each in folders if _has_dags(Path(folder, each))]
        files = (Path(folder, name) for name in names if name.endswith(".py"))
        yield from (file for file in files if file.is_file() or file.is_symlink())


def _has_dags(folder: Path) -> bool:
    hidden = folder.name.startswith(".") or folder.name in ("__pycache__", "node_modules")
    return not hidden and not (folder / "pyvenv.cfg").exists()


def _findings(project: LintedProject, file: Path, report: LintReport) -> Iterator[LintFinding]:
    try:
        module = project.read(file)
        dags = dags_of(module)
        hits = list(_hits(project, dags))
    except RecursionError as error:
        raise refused(file, "The code is nested too deeply to be read") from error
    report.files += 1
    report.transactions += len(dags.blocks)
    report.plain += len(dags.plain)
    report.applications += len(dags.applications)
    if not (dags.blocks or dags.plain or dags.applications) and _loops_over_dags(module.node):
        report.unseen.append(
            f"{file}: a loop creates DAGs with code of another file, so these DAGs were not checked"
        )
    _check_ignored(project, file)
    for hit in hits:
        yield from _finding(project, hit)


def _loops_over_dags(module: ast.AST) -> bool:
    """Return whether a file seems to create DAGs in a loop, with `globals()` or a function with `dag` in its name."""
    loops = [each for each in ast.iter_child_nodes(module) if isinstance(each, ast.For)]
    calls = (node for loop in loops for node in ast.walk(loop) if isinstance(node, ast.Call))
    return any(re.search(r"^globals$|dag", ast.unparse(call.func), re.I) for call in calls)


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
    """Check the codes in the `noqa` comments of the files.

    :raises ConfigError: a comment has a code that is not the code of a rule.
    """
    for line, codes in project.ignored[file].items():
        unknown = [code for code in codes if code not in RULES]
        if unknown:
            remedy = f"noqa names {unknown[0]}, which is no rule. The rules: {', '.join(RULES)}"
            raise refused(f"{file}:{line}", remedy)
