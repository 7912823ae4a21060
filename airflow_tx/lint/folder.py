"""The files that `airflow tx lint` reads, and their findings."""

from __future__ import annotations

import ast
import re
from pathlib import Path

from airflow_tx.errors import ConfigError
from airflow_tx.lint.checks import hits
from airflow_tx.lint.dag_file import LintedFile
from airflow_tx.lint.report import LintFinding
from airflow_tx.lint.rules import RULES

NOQA = re.compile(r"#\s*noqa:[\s\w,]*?\b(TX\w+(?:[\s,]+TX\w+)*)", re.I)


def findings_of(path: Path) -> list[LintFinding]:
    """:raises ConfigError: there is nothing to read, or a file is no Python."""
    return [finding for file in _files(path) for finding in _findings(file)]


def _files(path: Path) -> list[Path]:
    if not path.exists():
        raise _refused(path, "No such file or folder: check the path")
    if path.is_file():
        return [path]
    files = sorted(path.rglob("*.py"))
    if not files:
        raise _refused(path, "The folder holds no Python file: name the folder of your DAGs")
    return files


def _findings(path: Path) -> list[LintFinding]:
    try:
        text = path.read_text(encoding="utf-8")
        tree = ast.parse(text, str(path))
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        raise _refused(
            f"{path}:{line}", f"No Python can be read there: {error}. Mend the file"
        ) from error
    except OSError as error:
        raise _refused(path, f"The file cannot be read: {error.strerror}") from error
    lines = text.split("\n")
    ignored = {number: _ignored(path, number, line) for number, line in enumerate(lines, 1)}
    found = {
        LintFinding(str(path), node.lineno, node.col_offset + 1, code)
        for code, node in hits(LintedFile(tree))
    }
    return sorted(each for each in found if each.code not in ignored.get(each.line, ()))


def _ignored(path: Path, number: int, line: str) -> list[str]:
    match = NOQA.search(line)
    codes = [code.upper() for code in re.split(r"[\s,]+", match[1])] if match else []
    unknown = [code for code in codes if code not in RULES]
    if unknown:
        known = ", ".join(RULES)
        raise _refused(
            f"{path}:{number}", f"noqa names {unknown[0]}, which is no rule. The rules: {known}"
        )
    return codes


def _refused(value: object, remedy: str) -> ConfigError:
    return ConfigError(option="DAG_FILE|FOLDER", value=str(value), remedy=remedy)
