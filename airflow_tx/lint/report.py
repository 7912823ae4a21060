"""The findings of `airflow tx lint`, as text, JSON or SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from airflow_tx.lint.rules import RULES


@dataclass(frozen=True, order=True)
class LintFinding:
    """A line of a file that would count twice.

    :param dag: of a DAG without a transaction: its dag_id.
    """

    file: str
    line: int
    column: int
    code: str
    dag: str = ""

    @property
    def message(self) -> str:
        """The reason and the remedy."""
        rule = RULES[self.code]
        return f"{rule.reason_in(self.dag)}. Remedy: {rule.remedy}."

    def __str__(self) -> str:
        page = RULES[self.code].page
        return f"{self.file}:{self.line}:{self.column}: {self.code} {self.message} More: {page}"


@dataclass
class LintReport:
    """The findings, and the number of files, DAGs and applications.

    :param unread: a line for each file that cannot be read.
    """

    findings: list[LintFinding] = field(default_factory=list)
    unread: list[str] = field(default_factory=list)
    files: int = 0
    transactions: int = 0
    plain: int = 0
    applications: int = 0

    @property
    def summary(self) -> str:
        """One line: so many findings, in what."""
        return (
            f"Findings: {len(self.findings)}. Files: {self.files}, transactions: {self.transactions}, "
            f"Spark applications: {self.applications}, DAGs without a transaction: {self.plain}."
        )


def formatted(report: LintReport, form: str) -> str:
    """Give a report as a text in one of the formats."""
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
