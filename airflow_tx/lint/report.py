"""The findings of `airflow tx lint`, as text, JSON or SARIF 2.1.0."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from airflow_tx.lint.rules import RULES

NO_FINDINGS = "No findings in transactions and Spark applications. DAGs without a transaction are not checked."


@dataclass(frozen=True, order=True)
class LintFinding:
    """A line of a file that would count twice."""

    file: str
    line: int
    column: int
    code: str

    def __str__(self) -> str:
        rule = RULES[self.code]
        return f"{self.file}:{self.line}:{self.column}: {self.code} {rule.reason}. Remedy: {rule.remedy}."


def formatted(found: Sequence[LintFinding], form: str) -> str:
    """Give the findings as a text in one of the formats."""
    if form == "json":
        rules = [
            {"reason": RULES[each.code].reason, "remedy": RULES[each.code].remedy} for each in found
        ]
        return json.dumps(
            [asdict(each) | rule for each, rule in zip(found, rules, strict=True)], indent=2
        )
    if form == "sarif":
        return json.dumps(_sarif(found), indent=2)
    return "\n".join(map(str, found)) or NO_FINDINGS


def _sarif(found: Sequence[LintFinding]) -> dict[str, Any]:
    rules = [
        {"id": rule.code, "shortDescription": {"text": rule.reason}, "help": {"text": rule.remedy}}
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
    place = {"artifactLocation": {"uri": found.file}, "region": region}
    return {
        "ruleId": found.code,
        "level": "warning",
        "message": {"text": f"{RULES[found.code].reason}. Remedy: {RULES[found.code].remedy}."},
        "locations": [{"physicalLocation": place}],
    }
