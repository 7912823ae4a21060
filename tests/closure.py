"""Finds the tests that a change meets: those whose modules import a changed file, read from the sources and not run.

A name that a package imports lazily leads to the module that has it. So a test of `from airflow_tx import KafkaSource`
meets a change of the Kafka source, and not one of every source. A test that names a DAG imports that DAG's file.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

FOLDERS = ("airflow_tx", "tests", "dags", "examples", "spark_apps", "benchmarks")
DAGS = ("tests/airflow/dags", "tests/chaos/dags", "dags", "examples")


@dataclass(frozen=True)
class Module:
    """What a source file says of others.

    :ivar imports: names of modules, and of what is taken from them: `airflow_tx.state.Sum`.
    :ivar homes: of a package with lazy names, the module of each name.
    :ivar texts: the texts in it, among them the names of DAGs.
    :ivar dags: names of the DAGs that it makes.
    """

    imports: frozenset[str]
    homes: Mapping[str, str]
    texts: frozenset[str]
    dags: frozenset[str]


class Sources:
    """The Python files of a checkout, and who imports whom.

    :param root: of the checkout.
    """

    def __init__(self, root: Path) -> None:
        self._root = root

    @cached_property
    def modules(self) -> dict[str, Module]:
        """Every file, by its path below the root."""
        files = [file for folder in FOLDERS for file in sorted((self._root / folder).rglob("*.py"))]
        return {str(file.relative_to(self._root)): _read(file) for file in files}

    @cached_property
    def _files(self) -> dict[str, str]:
        """The file of each module's name."""
        return {_name(path): path for path in self.modules}

    @cached_property
    def _dag_files(self) -> dict[str, set[str]]:
        found: dict[str, set[str]] = {}
        for path, module in self.modules.items():
            if path.startswith(DAGS):
                for name in {Path(path).stem, *module.dags}:
                    found.setdefault(name, set()).add(path)
        return found

    def imported(self, path: str) -> set[str]:
        """Return the files that a file imports itself, with the `conftest.py` and the DAGs of a test."""
        module = self.modules[path]
        found = {file for name in module.imports for file in self._resolve(name)}
        if Path(path).name.startswith("test_"):
            folders = [str(folder) for folder in Path(path).parents][:-1]
            found |= {f"{folder}/conftest.py" for folder in folders} & self.modules.keys()
            found |= self._dags_of(path, module)
        return found - {path}

    def _dags_of(self, path: str, module: Module) -> set[str]:
        """Return the files of the DAGs that a test names; of all DAGs of its folder if it names none."""
        named = {file for text in module.texts for file in self._dag_files.get(text, ())}
        folder = f"{Path(path).parent}/dags/"
        return named or {file for file in self.modules if file.startswith(folder)}

    def _resolve(self, name: str) -> set[str]:
        """Return the file of a module's name, or of the module that has this name in a package."""
        if name in self._files:
            return {self._files[name]}
        package, _, last = name.rpartition(".")
        if package not in self._files:
            return set()
        file = self._files[package]
        home = self.modules[file].homes.get(last)
        return {file} if home is None else self._resolve(home)

    def distances(self, changed: Iterable[str]) -> dict[str, int]:
        """Return how many imports lie between each file and the nearest changed one: 0 for a changed file.

        A file that no import leads to a changed one from is missing.
        """
        users: dict[str, set[str]] = {}
        for path in self.modules:
            for used in self.imported(path):
                users.setdefault(used, set()).add(path)
        found = dict.fromkeys((path for path in changed if path in self.modules), 0)
        ring, distance = set(found), 0
        while ring:
            distance += 1
            ring = {user for path in ring for user in users.get(path, ())} - found.keys()
            found |= dict.fromkeys(ring, distance)
        return found


@cache
def _read(file: Path) -> Module:
    tree = ast.parse(file.read_bytes())
    package = _lazy_homes(tree)
    imports: set[str] = set()
    texts: set[str] = set()
    dags: set[str] = set()
    for node in _run_time(tree):
        if isinstance(node, ast.Import):
            imports |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            imports |= {node.module} if package else {f"{node.module}.{each.name}" for each in node.names}
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            texts.add(node.value)
        elif isinstance(node, ast.Call) and _called(node) in ("DAG", "dag", "coordinator_dag"):
            named = [*node.args[:1], *(each.value for each in node.keywords if each.arg == "dag_id")]
            dags |= {each.value for each in named if isinstance(each, ast.Constant) and isinstance(each.value, str)}
    return Module(frozenset(imports), package, frozenset(texts), frozenset(dags))


def _run_time(tree: ast.AST) -> Iterable[ast.AST]:
    """Walk through a tree without what only a type checker reads."""
    for child in ast.iter_child_nodes(tree):
        if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.dump(child.test):
            for other in child.orelse:
                yield other
                yield from _run_time(other)
            continue
        yield child
        yield from _run_time(child)


def _called(node: ast.Call) -> str:
    return node.func.id if isinstance(node.func, ast.Name) else getattr(node.func, "attr", "")


def _lazy_homes(tree: ast.Module) -> dict[str, str]:
    if not any(isinstance(node, ast.Call) and _called(node) == "lazy_names" for node in ast.walk(tree)):
        return {}
    blocks = [node for node in tree.body if isinstance(node, ast.If)]
    lines = [line for block in blocks for line in block.body if isinstance(line, ast.ImportFrom) and line.module]
    return {each.name: f"{line.module}.{each.name}" for line in lines for each in line.names}


def _name(path: str) -> str:
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
