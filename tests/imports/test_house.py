"""The house keeps its shape: short files named by nouns, one meaning for a public name, no circle of files.

An exception stands in a list below, with its reason.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_tx"
LONGEST = 400

GERUNDS = frozenset({"processing", "staging", "testing", "sizing", "rotating"})
"""What the glossary, or everybody, calls so; RotatingTransactionalState."""
VERBS = frozenset(
    """
    accept ask begin change check commit connect decide find forget give look make move open pass read rebuild recover
    rename repair replay resolve run say send skip start stop submit tell wait watch write yield
""".split()
)
NOUNS_AS_WELL = frozenset(
    {"begin", "commit", "connect", "move", "rebuild", "repair", "replay", "run", "skip", "submit", "write"}
)
"""The step begin, a commit, a skip, a replay ...; spark-submit and Spark Connect; a run of a DAG."""
FORBIDDEN = frozenset("around asked findings helpers misc seen standing told util utils".split())

SHARED_NAMES = {
    "Batch": "of a source, and what a Spark application reads of it: both are public",
    "rename": "two commands, which the audit log names after their functions",
}
"""Public names with two meanings, and why."""

DOCUMENTS = re.compile(r"\b(PROTOCOL|DESIGN|FACTS|STYLE|FEATURES|HOUSE|TASK|NOTES)\b(\.md|\s*§|[:,] )")
PAGE = re.compile(r"\b([a-z_]+\.md)\b")


def _files() -> list[Path]:
    return sorted(PACKAGE.rglob("*.py"))


def _name(file: Path) -> str:
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


@cache
def _tree(file: Path) -> ast.Module:
    return ast.parse(file.read_text())


def _short(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def test_no_file_is_too_long() -> None:
    assert {_short(file) for file in _files() if len(file.read_text().splitlines()) > LONGEST} == set()


@pytest.mark.parametrize("file", _files(), ids=_short)
def test_a_module_is_named_by_a_noun(file: Path) -> None:
    words = set((file.parent.name if file.stem == "__init__" else file.stem).split("_"))
    assert not {word for word in words if len(word) > 6 and word.endswith("ing")} - GERUNDS
    assert not (words & VERBS) - NOUNS_AS_WELL
    assert not words & FORBIDDEN


# --- names -------------------------------------------------------------------------------------------------------


def _is_own_business(value: ast.expr | None) -> bool:
    """A module's logger or type variable: nobody imports it."""
    if not isinstance(value, ast.Call):
        return False
    called = ast.unparse(value.func)
    return called in ("logging.getLogger", "TypeVar", "ParamSpec")


def _public_names(file: Path) -> set[str]:
    found: set[str] = set()
    for node in _tree(file).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and not _is_own_business(node.value):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_") and name != "main"}


def test_a_public_name_has_one_meaning() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for file in _files():
        for name in _public_names(file):
            where[name].append(_short(file))
    twice = {name: files for name, files in where.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in SHARED_NAMES} == {}


# --- imports -----------------------------------------------------------------------------------------------------


def _imports(file: Path, modules: frozenset[str]) -> set[str]:
    """The modules of the package that a file imports, wherever; those for the type checker alone are no imports."""
    skipped = {
        id(node)
        for block in ast.walk(_tree(file))
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for node in ast.walk(block)
    }
    found: set[str] = set()
    for node in ast.walk(_tree(file)):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            found |= submodules or {node.module}
    return (found & modules) - {_name(file)}


def test_no_files_import_each_other_in_a_circle() -> None:
    modules = frozenset(map(_name, _files()))
    imports = {_name(file): _imports(file, modules) for file in _files()}
    left = dict(imports)
    while free := {module for module, wanted in left.items() if not wanted & left.keys()}:
        left = {module: wanted for module, wanted in left.items() if module not in free}
    while unused := {module for module in left if not any(module in wanted for wanted in left.values())}:
        left = {module: wanted for module, wanted in left.items() if module not in unused}
    assert left == {}


# --- words -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("file", _files(), ids=_short)
def test_texts_name_documents_of_the_repository_alone(file: Path) -> None:
    text = file.read_text()
    assert not DOCUMENTS.findall(text)
    assert {page for page in PAGE.findall(text) if not list(ROOT.glob(f"**/{page}"))} == set()
