"""The house keeps its shape: short files named by nouns, one meaning for a public name, no circle of files.

An exception stands in a list below, with its reason.
"""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest

from tests.imports.rulers import (
    LONGEST,
    PACKAGE,
    ROOT,
    RULERS,
    Ruler,
    all_files,
    imports_of,
    lines_of,
    module_name,
    tree_of,
)
from tests.imports.walk import walks

GERUNDS = frozenset({"processing", "reading", "staging", "testing", "sizing", "rotating"})
"""What the glossary, or everybody, calls so; RotatingTransactionalState."""
VERBS = frozenset(
    """
    accept ask begin change check commit connect decide find forget give look make move open pass read rebuild recover
    rename repair replay resolve run say send skip start stop submit tell wait watch write yield
""".split()
)
NOUNS_AS_WELL = frozenset(
    {"begin", "check", "commit", "connect", "move", "rebuild", "repair", "replay", "run", "skip", "submit", "write"}
)
"""The step begin, a check, a commit, a skip, a replay ...; spark-submit and Spark Connect; a run of a DAG."""
FORBIDDEN = frozenset("around asked findings helpers misc seen standing told util utils".split())

SHARED_NAMES = {
    "Misfit": "of a file of a source, and of a file of a table",
    "Batch": "of a source, and what a Spark application reads of it: both are public",
    "rename": "two commands, which the audit log names after their functions",
}
"""Public names with two meanings, and why."""

DOCUMENTS = re.compile(r"\b(PROTOCOL|DESIGN|FACTS|STYLE|FEATURES|HOUSE|TASK|NOTES)\b(\.md|\s*§|[:,] )")
PAGE = re.compile(r"\b([a-z_]+\.md)\b")


BOUNDS = {
    "statements without docstrings": 46_240,
    "syntax nodes": 588_185,
    "files": 314,
    "rooms": 13,
    "names that rooms take from each other": 787,
    "names between rooms that one file takes": 389,
    "functions among 100 names between rooms": 40.9,
    "files that give these names": 25,
    "names that the ledger gives": 196,
    "names that the base gives": 209,
    "names that transaction gives": 118,
    "shapes with five facts of a transaction or more": 19,
    "facts that these shapes spell": 193,
    "files that spell a fact, at the median": 22,
    "dict keys by name in the ledger": 110,
    "dict keys by name": 991,
    "statements that turn objects into JSON and back": 782,
    "places where code reads a sentence": 0,
    "files of sections that do not name each other": 0,
    "imports up inside a room": 0,
    "classes in the six files of a commit": 12,
    "characters a line of code": 36.6,
    "tuple assignments per 1,000 statements": 0.3,
    "functions of more than 5 positional arguments": 0,
    "chained comparisons with is": 0,
    "calls that unpack what was packed for them": 5,
    "files of more than 900 lines": 0,
    "circles of imports, those for types too": 0,
}
"""What each ruler may say at most. `script/house` prints what it says now."""


FILES_OF_A_WALK = {"begin": 23, "processing": 13, "commit": 42, "write": 14}
"""How many files of the package each step of a transaction in memory runs through at most."""


def _short(file: Path) -> str:
    return str(file.relative_to(PACKAGE))


def test_no_file_is_longer_than_the_limit() -> None:
    assert {_short(file) for file in all_files() if lines_of(file) > LONGEST} == set()


@pytest.mark.worth("reads all code once for every ruler of the house")
@pytest.mark.parametrize("ruler", RULERS, ids=lambda ruler: ruler.name.replace(" ", "-"))
def test_each_measured_code_metric_is_within_its_bound(ruler: Ruler) -> None:
    assert ruler.measure() <= BOUNDS[ruler.name]


def test_a_step_of_a_transaction_calls_code_in_only_a_few_files() -> None:
    walked = {step: len(walk.files) for step, walk in walks().items()}
    assert {step: files for step, files in walked.items() if files > FILES_OF_A_WALK[step]} == {}


@pytest.mark.parametrize("file", all_files(), ids=_short)
def test_the_name_of_a_module_is_a_noun(file: Path) -> None:
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
    for node in tree_of(file).body:
        if isinstance(node, (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            found.add(node.name)
        elif isinstance(node, ast.Assign) and not _is_own_business(node.value):
            found |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            found.add(node.target.id)
    return {name for name in found if not name.startswith("_") and name != "main"}


def test_a_public_name_has_one_meaning() -> None:
    where: dict[str, list[str]] = defaultdict(list)
    for file in all_files():
        for name in _public_names(file):
            where[name].append(_short(file))
    twice = {name: files for name, files in where.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in SHARED_NAMES} == {}


# --- imports -----------------------------------------------------------------------------------------------------


def test_no_files_import_each_other_in_a_cycle() -> None:
    """Circles through imports for the type checker have a ruler of their own, which is at 0."""
    modules = frozenset(map(module_name, all_files()))
    left = {module_name(file): imports_of(file, modules, types=False) for file in all_files()}
    while free := {module for module, wanted in left.items() if not wanted & left.keys()}:
        left = {module: wanted for module, wanted in left.items() if module not in free}
    while unused := {module for module in left if not any(module in wanted for wanted in left.values())}:
        left = {module: wanted for module, wanted in left.items() if module not in unused}
    assert left == {}


# --- words -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def pages() -> set[str]:
    """Return the names of all pages, looked for once: .venv has thousands of folders."""
    return {page.name for page in ROOT.glob("**/*.md")}


@pytest.mark.parametrize("file", all_files(), ids=_short)
def test_comments_and_docstrings_refer_only_to_documents_in_the_repository(file: Path, pages: set[str]) -> None:
    text = file.read_text()
    assert not DOCUMENTS.findall(text)
    assert set(PAGE.findall(text)) <= pages


# --- tests -------------------------------------------------------------------------------------------------------


def test_no_test_module_is_imported_by_another_module() -> None:
    """What several of them use is in a module beside them, or in a conftest."""
    imported = re.compile(
        r"^ *(?:from|import) tests\.(?:\w+\.)*test_\w+\b|^ *from tests[\w.]* import .*\btest_\w+", re.M
    )
    folders = [ROOT / name for name in ("tests", "benchmarks", "examples")]
    files = [file for folder in folders for file in sorted(folder.rglob("*.py"))]
    assert [str(file.relative_to(ROOT)) for file in files if imported.search(file.read_text())] == []
