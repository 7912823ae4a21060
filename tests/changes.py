"""Says what a change is: the files and the tests that differ from the newest commit of more than four hours ago.

A change is handed in within hours, so what is older has been tested before.
"""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path

SETTLED = "4 hours ago"
HUNK = re.compile(r"^@@ -\S+ \+(\d+)(?:,(\d+))? @@", re.MULTILINE)


def base(root: Path) -> str | None:
    """Return the id of the newest commit that is over four hours old; None if no such commit is known here."""
    return _git(root, "log", "-1", f"--before={SETTLED}", "--format=%H").strip() or None


def head(root: Path) -> str:
    """Return the id of the commit that is checked out."""
    return _git(root, "rev-parse", "HEAD").strip()


def changed_files(root: Path, since: str | None) -> set[str]:
    """Return the files that differ from a commit, also those that are not committed; None: all files."""
    listed = _git(root, "ls-files") if since is None else _git(root, "diff", "--name-only", "--no-renames", since)
    return {*listed.splitlines(), *_git(root, "ls-files", "--others", "--exclude-standard").splitlines()}


def changed_tests(root: Path, since: str | None) -> list[str]:
    """Return the ids of the tests that are new, or whose lines differ from a commit."""
    files = [file for file in sorted(changed_files(root, since)) if re.fullmatch(r"tests/.*/test_\w+\.py", file)]
    return [test for file in files if (root / file).exists() for test in _tests(root, file, since)]


def _tests(root: Path, file: str, since: str | None) -> list[str]:
    known = since is not None and _git(root, "ls-tree", "--name-only", since, file)
    if not known or since is None:
        return [file]
    hunks = HUNK.findall(_git(root, "diff", "--unified=0", since, "--", file))
    lines = {int(first) + each for first, count in hunks for each in range(int(count or 1))}
    return list(_touched((root / file).read_text(), file, lines))


def _touched(text: str, file: str, lines: set[int]) -> Iterable[str]:
    for node in ast.parse(text).body:
        inner = node.body if isinstance(node, ast.ClassDef) else [node]
        for each in inner:
            if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef) and each.name.startswith("test_"):
                first = min([each.lineno, *(mark.lineno for mark in each.decorator_list)])
                if lines & set(range(first, (each.end_lineno or first) + 1)):
                    owner = f"{node.name}::" if isinstance(node, ast.ClassDef) else ""
                    yield f"{file}::{owner}{each.name}"


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, check=False)
    return done.stdout if done.returncode == 0 else ""
