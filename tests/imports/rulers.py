"""Rulers of the package without `testing/`: `script/house` prints them, `test_house.py` holds them at a bound."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import median

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


@cache
def nodes_of(file: Path) -> tuple[ast.AST, ...]:
    """List the syntax nodes of a module once."""
    return tuple(ast.walk(tree_of(file)))


def _is_text(node: ast.AST) -> bool:
    """Whether a statement is a docstring, of a function or of a value."""
    return isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str)


@cache
def statements_of(file: Path) -> int:
    """Count the statements of a module, without docstrings."""
    return sum(isinstance(node, ast.stmt) and not _is_text(node) for node in nodes_of(file))


def lines_of(file: Path) -> int:
    """Count the lines of a module."""
    return len(file.read_text().splitlines())


def _nodes() -> Iterator[ast.AST]:
    for file in measured_files():
        yield from nodes_of(file)


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
def takers() -> dict[tuple[str, str], set[Path]]:
    """Return who takes each name that rooms give each other, by door and name; a module itself is `*`."""
    files = measured_files()
    modules = frozenset(map(module_name, files))
    found: dict[tuple[str, str], set[Path]] = defaultdict(set)
    for file in files:
        for node in nodes_of(file):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    module, name = (whole, "*") if whole in modules else (node.module, alias.name)
                    if module in modules and _room(module) != room_of(file):
                        found[module, name].add(file)
    return found


def given() -> dict[str, set[str]]:
    """Return the names that rooms take from each other, by the door that gives them."""
    found: dict[str, set[str]] = defaultdict(set)
    for door, name in takers():
        found[door].add(name)
    return found


def _given_by(room: str) -> int:
    return sum(_room(door) == room for door, _ in takers())


def _functions_given() -> float:
    """Return how many of a hundred names that rooms take from each other are functions."""
    taken = [
        (homes.get(name, door), name) for door, name in takers() for homes in [{**listed(door)[0], **listed(door)[1]}]
    ]
    functions = {
        (module_name(file), node.name)
        for file in measured_files()
        for node in tree_of(file).body
        if isinstance(node, ast.FunctionDef)
    }
    return round(100 * len(functions.intersection(taken)) / len(taken), 1)


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


# --- facts -------------------------------------------------------------------------------------------------------

RECORDS = {"TransactionFacts", "TransactionRecord", "Receipt", "Skipped"}
"""What the ledger and the states keep of a transaction: their fields are its facts."""
FEWEST_FACTS = 5


def _fields(node: ast.AST) -> set[str]:
    """Return the fields of a class, or the keys of a dict."""
    if isinstance(node, ast.ClassDef):
        lines = [each.target for each in node.body if isinstance(each, ast.AnnAssign)]
        return {each.id for each in lines if isinstance(each, ast.Name)}
    keys = node.keys if isinstance(node, ast.Dict) else []
    return {str(each.value) for each in keys if isinstance(each, ast.Constant)}


@cache
def _facts() -> set[str]:
    records = {each.name: each for each in _nodes() if isinstance(each, ast.ClassDef) and each.name in RECORDS}
    return set[str]().union(*(_fields(records[name]) for name in RECORDS)) - {"format", "op"}


@cache
def _shapes() -> list[int]:
    """Return how many facts each class and dict has that spells several of a transaction."""
    facts = _facts()
    spelled = (len(_fields(node) & facts) for node in _nodes())
    return [each for each in spelled if each >= FEWEST_FACTS]


def _keys(room: str = "") -> int:
    """Count where a value of a dict is asked for by a name."""

    def key_of(node: ast.AST) -> ast.expr | None:
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            return node.slice
        is_get = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "get"
        return node.args[0] if isinstance(node, ast.Call) and is_get and node.args else None

    keys = [key_of(node) for file in measured_files() if room in ("", room_of(file)) for node in nodes_of(file)]
    return sum(isinstance(each, ast.Constant) and isinstance(each.value, str) for each in keys)


_INTO_JSON = re.compile(r"_?(to|from|as|of)_(json|stored|xcom|dict|text|bytes)|_?(encode|decode)\w*|\w+_(json|stored)")
_CALLS_OF_JSON = set("dumps loads asdict vars to_json from_json as_stored from_stored encode decode".split())


def _json_statements() -> int:
    """Count the statements of functions that turn objects into JSON or back, and the calls of these elsewhere."""
    inside: set[int] = set()
    for node in _nodes():
        if isinstance(node, ast.FunctionDef) and _INTO_JSON.fullmatch(node.name):
            inside |= {id(each) for line in node.body for each in ast.walk(line) if isinstance(each, ast.stmt)}
    outside = [
        node for node in _nodes() if isinstance(node, ast.stmt) and not hasattr(node, "body") and id(node) not in inside
    ]
    return sum(id(node) in inside and not _is_text(node) for node in _nodes()) + sum(
        any(_called(each) in _CALLS_OF_JSON for each in ast.walk(node)) for node in outside
    )


def _called(node: ast.AST) -> str:
    """Return the last name of what a call calls."""
    if not isinstance(node, ast.Call):
        return ""
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


def _files_of_a_fact() -> float:
    """Return in how many files a fact of a transaction is spelled, at the median: a new fact touches about as many."""
    found: dict[str, set[Path]] = {fact: set() for fact in _facts()}
    for file in measured_files():
        for node in nodes_of(file):
            for each in _spelled(node) & found.keys():
                found[each].add(file)
    return median(map(len, found.values()))


def _spelled(node: ast.AST) -> set[str]:
    if isinstance(node, (ast.Attribute, ast.keyword)):
        return {str(node.attr if isinstance(node, ast.Attribute) else node.arg)}
    return {node.value} if isinstance(node, ast.Constant) and isinstance(node.value, str) else _fields(node)


# --- words -------------------------------------------------------------------------------------------------------

WORDS_OF_OTHERS = (
    "base.connections base.rows ledger.store lint outputs.staging plugin.api.redaction plugin.preload sources.api "
    "sources.files.batch sources.files.schema sources.kafka sources.rabbit sources.redis sources.sql "
    "spark.app.jvm_cause spark.app.worker_cause spark.observed state transaction.commit.check "
    "transaction.processing.outputs._of_other"
).split()
"""Modules and functions that read what other programs, files and users say: no other code has a reason to."""
_READS = set("startswith endswith removesuffix removeprefix partition rpartition rsplit splitlines".split())
_PATTERN_READS = set("match search fullmatch findall finditer split".split())
_ERRORS = {"broken", "error", "failure", "refusal"}
_TEXTS = set("cause error problem reason remedy said sentence told waits why".split())
_PAGE_READS = re.compile(
    rf"\b(?:(?:whole|{'|'.join(sorted(_TEXTS))})\??\.(?:includes|indexOf|match|replace|search|slice|split)"
    r"|text\??\.(?:includes|match|replace|search|split)|\w+\??\.(?:startsWith|endsWith))\("
)
"""Where the page looks into a text; a search cuts the text that it has found."""


def _reads_of_words() -> int:
    """Count where code looks into a text for people: of an error, or what is named as a reason is."""
    page = (file for file in (PACKAGE / "plugin/ui/src").rglob("*.ts*") if ".test." not in file.name)
    return _reads_in_package() + sum(len(_PAGE_READS.findall(file.read_text())) for file in page)


def _reads_in_package() -> int:
    others = tuple(f"airflow_tx.{each}" for each in WORDS_OF_OTHERS)
    parts = [
        part
        for file in measured_files()
        for part in tree_of(file).body
        if not f"{module_name(file)}.{getattr(part, 'name', '')}".startswith(others)
    ]
    return sum(_reads_words(node) for part in parts for node in ast.walk(part))


def _reads_words(node: ast.AST) -> bool:
    if isinstance(node, ast.Compare) and isinstance(node.ops[0], (ast.In, ast.NotIn)):
        is_sentence = " " in str(getattr(node.left, "value", "")) or _is_words(node.left)
        return is_sentence and _is_words(node.comparators[0], {"what"})
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return False
    if node.func.attr in _READS:
        # A text of one character ends a sentence, or a list. The first line of an error is what others said.
        signs = [each.value for given in node.args for each in ast.walk(given) if isinstance(each, ast.Constant)]
        is_end = bool(signs) and all(len(str(each)) == 1 for each in signs)
        is_first_line = node.func.attr == "splitlines" and _called(node.func.value) == "strip"
        return not is_end and not is_first_line and _is_words(node.func.value, {"line", "template", "words"})
    return node.func.attr in _PATTERN_READS and any(_is_words(each, {"message", "text"}) for each in node.args)


def _is_words(node: ast.AST, more: Collection[str] = ()) -> bool:
    for each in ast.walk(node):
        if str(getattr(each, "id", getattr(each, "attr", getattr(each, "value", "")))) in {*_TEXTS, *more}:
            return True
        if _called(each) in ("first_line", "str"):
            return bool(_ERRORS & {str(getattr(name, "id", "")) for name in ast.walk(each)})
    return False


# --- sections and folders ----------------------------------------------------------------------------------------

_HEADING = re.compile(r"# --- .* -+")


def _bags() -> int:
    """Count the files whose headings hold sections that do not name each other, not even through a third one."""
    return sum(_groups_of_sections(file) > 1 for file in measured_files())


def _groups_of_sections(file: Path) -> int:
    numbered = enumerate(file.read_text().splitlines(), 1)
    headings = [number for number, line in numbered if _HEADING.fullmatch(line)]
    defined: dict[str, int] = {}
    named: dict[int, set[str]] = defaultdict(set)
    for line in tree_of(file).body:
        if section := sum(number <= line.lineno for number in headings):
            defined |= dict.fromkeys(_defined(line), section)
            names = (getattr(each, "id", getattr(each, "value", None)) for each in ast.walk(line))
            named[section] |= {each for each in names if isinstance(each, str)}
    sections = {each: {each} for each in defined.values()}
    for section, found in named.items():
        for other in {defined[each] for each in found & defined.keys()} & sections.keys():
            joined = sections.get(section, {section}) | sections[other]
            sections |= dict.fromkeys(joined & sections.keys(), joined)
    return len(set(map(frozenset, sections.values())))


def _defined(line: ast.stmt) -> set[str]:
    if isinstance(line, (ast.ClassDef, ast.FunctionDef)):
        return {line.name}
    targets = line.targets if isinstance(line, ast.Assign) else [line.target] if isinstance(line, ast.AnnAssign) else []
    return {each.id for target in targets for each in ast.walk(target) if isinstance(each, ast.Name)}


def _arrows_up() -> int:
    """Count the imports between two parts of a room that go against most imports between the two.

    A part is a folder of a room, what stands beside its folders, or the module that has the room's name.
    """
    modules = frozenset(module_name(file) for file in measured_files() if file.stem != "__init__")
    arrows = Counter(
        (_part(module), _part(other))
        for file in measured_files()
        for module in {module_name(file)} & modules
        for other in imports_of(file, modules)
        if _room(module) == _room(other) and _part(module) != _part(other)
    )
    return sum(min(count, arrows[two, one]) for (one, two), count in arrows.items() if one < two)


def _part(module: str) -> str:
    _, room, *rest = module.split(".")
    return f"{room}.{rest[0]}" if len(rest) > 1 or rest == [room] else room


def _commit_classes() -> int:
    """Count the classes of the files that a commit runs through."""
    files = [PACKAGE / f"transaction/commit/{name}.py" for name in COMMIT.split()]
    return sum(isinstance(node, ast.ClassDef) for file in files for node in tree_of(file).body)


COMMIT = "case committer handoff restatement turn write"


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
    Ruler("statements without docstrings", 36_800, _statements),
    Ruler("syntax nodes", 465_000, lambda: sum(1 for _ in _nodes())),
    Ruler("files", 240, lambda: len(measured_files())),
    Ruler("rooms", 13, _rooms),
    Ruler("names that rooms take from each other", 350, lambda: len(takers())),
    Ruler("names between rooms that one file takes", 200, lambda: sum(len(each) == 1 for each in takers().values())),
    Ruler("functions among 100 names between rooms", 30, _functions_given),
    Ruler("files that give these names", 40, lambda: len(given())),
    Ruler("names that the ledger gives", 100, lambda: _given_by("ledger")),
    Ruler("names that the base gives", 120, lambda: _given_by("base")),
    Ruler("names that transaction gives", 85, lambda: _given_by("transaction")),
    Ruler("shapes with five facts of a transaction or more", 5, lambda: len(_shapes())),
    Ruler("facts that these shapes spell", 150, lambda: sum(_shapes())),
    Ruler("files that spell a fact, at the median", 6, _files_of_a_fact),
    Ruler("dict keys by name in the ledger", 60, lambda: _keys("ledger")),
    Ruler("dict keys by name", 700, _keys),
    Ruler("statements that turn objects into JSON and back", 340, _json_statements),
    Ruler("places where code reads a sentence", 0, _reads_of_words),
    Ruler("files of sections that do not name each other", 0, _bags),
    Ruler("imports up inside a room", 0, _arrows_up),
    Ruler("classes in the six files of a commit", 12, _commit_classes),
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
