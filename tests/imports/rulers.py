"""Rulers of the package without `testing/`: `script/house` prints them, `test_house.py` holds them at a bound."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "airflow_tx"
MOST_POSITIONAL = 5
LONGEST = 900


def all_files() -> list[Path]:
    """Return every module of the package, `testing/` included."""
    return sorted(PACKAGE.rglob("*.py"))


def measured_files() -> list[Path]:
    """Return the modules that the rulers measure."""
    return [file for file in all_files() if "testing" not in file.parts]


@cache
def tree_of(file: Path) -> ast.Module:
    """Parse a module once."""
    return ast.parse(file.read_text())


@cache
def module_name(file: Path) -> str:
    """Return the dotted name of a module."""
    return ".".join(file.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def room_of(file: Path) -> str:
    """Return the folder of the package in which a module is, or its own name."""
    return _room(module_name(file))


def _room(module: str) -> str:
    return module.split(".")[1] if "." in module else "__init__"


def statements_of(file: Path) -> int:
    """Count the statements of a module."""
    return sum(isinstance(node, ast.stmt) for node in ast.walk(tree_of(file)))


def lines_of(file: Path) -> int:
    """Count the lines of a module."""
    return len(file.read_text().splitlines())


def _nodes() -> Iterator[ast.AST]:
    for file in measured_files():
        yield from ast.walk(tree_of(file))


def _statements() -> int:
    return sum(map(statements_of, measured_files()))


# --- density -----------------------------------------------------------------------------------------------------


def _documented_lines(tree: ast.Module) -> set[int]:
    found: set[int] = set()
    for node in ast.walk(tree):
        if not isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)):
            continue
        if ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            found |= set(range(text.lineno, (text.end_lineno or text.lineno) + 1))
    return found


def _code_lines(file: Path) -> list[str]:
    """Return the lines of code without their indentation: no docstrings, comments or empty lines."""
    documented = _documented_lines(tree_of(file))
    numbered = enumerate(file.read_text().splitlines(), 1)
    texts = [text.strip() for number, text in numbered if number not in documented]
    return [text for text in texts if text and not text.startswith("#")]


def _characters_a_line() -> float:
    lines = [line for file in measured_files() for line in _code_lines(file)]
    return round(sum(map(len, lines)) / len(lines), 1)


def _is_tuple_assignment(node: ast.AST) -> bool:
    return isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple) and isinstance(node.value, ast.Tuple)


def _tuple_assignments() -> float:
    return round(1000 * sum(map(_is_tuple_assignment, _nodes())) / _statements(), 1)


def _positional_arguments() -> int:
    def too_many(node: ast.AST) -> bool:
        if not isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return False
        names = [each.arg for each in node.args.posonlyargs + node.args.args]
        return len([name for name in names if name not in ("self", "cls")]) > MOST_POSITIONAL

    return sum(map(too_many, _nodes()))


def _chained_is() -> int:
    def chained(node: ast.AST) -> bool:
        if not isinstance(node, ast.Compare) or len(node.ops) < 2:
            return False
        return any(isinstance(operator, (ast.Is, ast.IsNot)) for operator in node.ops)

    return sum(map(chained, _nodes()))


def _packed_arguments() -> int:
    """Count calls that unpack a tuple which the same function has just packed."""

    def packed(function: ast.AST) -> int:
        if not isinstance(function, (ast.FunctionDef, ast.AsyncFunctionDef)):
            return 0
        names: set[str] = set()
        stars = 0
        for node in ast.walk(function):
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Tuple):
                names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        for node in ast.walk(function):
            if isinstance(node, ast.Call):
                starred = [each.value for each in node.args if isinstance(each, ast.Starred)]
                stars += sum(isinstance(each, ast.Name) and each.id in names for each in starred)
        return stars

    return sum(map(packed, _nodes()))


# --- files -------------------------------------------------------------------------------------------------------


def _long_files() -> int:
    return sum(lines_of(file) > LONGEST for file in all_files())


def _imports(tree: ast.Module, types: bool) -> list[ast.AST]:
    nodes = list(ast.walk(tree))
    if types:
        return nodes
    for_types = [each for each in nodes if isinstance(each, ast.If) and ast.unparse(each.test) == "TYPE_CHECKING"]
    skipped = {id(node) for block in for_types for node in ast.walk(block)}
    return [node for node in nodes if id(node) not in skipped]


def imports_of(file: Path, modules: frozenset[str], *, types: bool = True) -> set[str]:
    """Return the modules of the package that a file imports, wherever.

    :param types: whether imports for the type checker alone count.
    """
    found: set[str] = set()
    for node in _imports(tree_of(file), types):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            submodules = {f"{node.module}.{alias.name}" for alias in node.names} & modules
            found |= submodules or {node.module}
    return (found & modules) - {module_name(file)}


@cache
def circles() -> list[list[str]]:
    """Return the groups of modules that import each other in a circle.

    An `__init__` is left out: for the type checker it imports what it offers.
    """
    files = [file for file in all_files() if file.stem != "__init__"]
    modules = frozenset(map(module_name, files))
    imports = {module_name(file): imports_of(file, modules) for file in files}
    reached = {module: _reached(module, imports) for module in imports}
    groups = {tuple(sorted(each for each in reached[module] if module in reached[each])) for module in imports}
    return sorted(list(group) for group in groups if group)


def _reached(module: str, imports: dict[str, set[str]]) -> set[str]:
    found: set[str] = set()
    left = list(imports[module])
    while left:
        each = left.pop()
        if each not in found:
            found.add(each)
            left += imports[each]
    return found


# --- walls -------------------------------------------------------------------------------------------------------


@cache
def given() -> dict[str, set[str]]:
    """Return the names that rooms take from each other, by the door that gives them; a module itself is `*`."""
    files = measured_files()
    modules = frozenset(map(module_name, files))
    found: dict[str, set[str]] = {}
    for file in files:
        for node in ast.walk(tree_of(file)):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    module, name = (whole, "*") if whole in modules else (node.module, alias.name)
                    if module in modules and _room(module) != room_of(file):
                        found.setdefault(module, set()).add(name)
    return found


@cache
def listed(door: str) -> tuple[dict[str, str], dict[str, str]]:
    """Return the public names that a door lists, and those for other rooms alone; each with its home.

    A room that is not for users has no public names.
    """
    file = PACKAGE.parent.joinpath(*door.split("."), "__init__.py")
    if not file.exists():
        return {}, {}
    blocks = [each for each in tree_of(file).body if isinstance(each, ast.If)]
    homes = [_homes(block) for block in blocks]
    return (homes[0], homes[1]) if len(homes) > 1 else ({}, homes[0] if homes else {})


def _homes(block: ast.If) -> dict[str, str]:
    lines = [line for line in block.body if isinstance(line, ast.ImportFrom)]
    return {alias.name: str(line.module) for line in lines for alias in line.names}


def homes_of(file: Path) -> set[str]:
    """Return the modules whose names a file takes through doors."""
    found: set[str] = set()
    for node in ast.walk(tree_of(file)):
        if isinstance(node, ast.ImportFrom) and node.module:
            public, internal = listed(node.module) if node.module.startswith("airflow_tx.") else ({}, {})
            homes = public | internal
            found |= {homes[alias.name] for alias in node.names if alias.name in homes}
    return found


def _rooms() -> int:
    """Count what stands directly in the package, without what no other room may import, and what every package has."""
    apart = {"__init__", "provider_info", "acks", "example_dags", "lint"}
    return len({room_of(file) for file in measured_files()} - apart)


# --- the table ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ruler:
    """What is measured, and what it should be at most.

    :param aim: the value that is good enough.
    """

    name: str
    aim: float
    measure: Callable[[], float]


RULERS = [
    Ruler("statements", 36_800, _statements),
    Ruler("files", 240, lambda: len(measured_files())),
    Ruler("rooms", 13, _rooms),
    Ruler("names that rooms take from each other", 350, lambda: sum(map(len, given().values()))),
    Ruler("files that give these names", 40, lambda: len(given())),
    Ruler(
        "names that the ledger gives",
        110,
        lambda: sum(len(given()[each]) for each in given() if _room(each) == "ledger"),
    ),
    Ruler("characters a line of code", 38, _characters_a_line),
    Ruler("tuple assignments per 1,000 statements", 2, _tuple_assignments),
    Ruler("functions of more than 5 positional arguments", 0, _positional_arguments),
    Ruler("chained comparisons with is", 0, _chained_is),
    Ruler("calls that unpack what was packed for them", 0, _packed_arguments),
    Ruler(f"files of more than {LONGEST} lines", 0, _long_files),
    Ruler("circles of imports, those for types too", 0, lambda: len(circles())),
]


@dataclass(frozen=True)
class Room:
    """A folder of the package, or a module beside them."""

    name: str
    statements: int
    lines: int
    files: int


def rooms() -> list[Room]:
    """Measure every room, the largest first."""
    statements: Counter[str] = Counter()
    lines: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for file in all_files():
        room = room_of(file)
        statements[room] += statements_of(file)
        lines[room] += lines_of(file)
        files[room] += 1
    return [Room(name, count, lines[name], files[name]) for name, count in statements.most_common()]
