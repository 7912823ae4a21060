"""The files that belong together: a DAG file, and the modules beside it that its functions come from."""

from __future__ import annotations

import ast
import io
import re
import tokenize
import warnings
from collections.abc import Iterator
from pathlib import Path

from airflow_tx.errors import ConfigError
from airflow_tx.lint.scope import FunctionNode, Scope, own_attribute, own_nodes, scope_of

_LARGEST = 5_000_000
_FOREIGN = ("airflow", "airflow_tx", "pyspark", "pandas", "numpy")
_CALLBACK = "on_"
_NOQA = re.compile(r"#\s*noqa:[\s\w,]*?\b(TX\w+(?:[\s,]+TX\w+)*)", re.I)


class LintedProject:
    """Parses each file once, and finds what a name of one file means in another one.

    :param root: modules are looked for from here on, and from the folder of the file that imports them.
    """

    def __init__(self, root: Path) -> None:
        self._root = root
        self._scopes: dict[Path, Scope] = {}
        self._paths: dict[int, Path] = {}
        self.ignored: dict[Path, dict[int, list[str]]] = {}

    def read(self, path: Path) -> Scope:
        """:raises ConfigError: the file is no Python that can be read."""
        if path not in self._scopes:
            text = _text_of(path)
            self._scopes[path] = scope = scope_of(_tree_of(path, text))
            self.ignored[path] = ignored_codes(text)
            self._paths[id(scope)] = path
        return self._scopes[path]

    def path_of(self, scope: Scope) -> Path:
        return self._paths[id(scope.module)]

    def reached(self, scope: Scope, roots: list[ast.AST]) -> list[Scope]:
        """Give the functions that code refers to, and the functions that these refer to."""
        found: dict[int, Scope] = {}
        left = [each for root in roots for each in self._referred(scope, own_nodes(root))]
        while left:
            each = left.pop()
            if id(each.node) in found:
                continue
            found[id(each.node)] = each
            left.extend(self._referred(each, own_nodes(each.node)))
        return list(found.values())

    def _referred(self, scope: Scope, nodes: Iterator[ast.AST]) -> Iterator[Scope]:
        everything = list(nodes)
        skipped = {id(each) for node in everything for each in _of_callbacks(node)}
        for node in everything:
            if isinstance(node, ast.Name | ast.Attribute) and isinstance(node.ctx, ast.Load):
                if id(node) not in skipped:
                    yield from self.functions_of(scope, node)

    def functions_of(self, scope: Scope, node: ast.expr) -> Iterator[Scope]:
        """Give the function that an expression names; of a class its `execute`, `__init__` and `__call__`."""
        found = self.definition(scope, node)
        if found is None:
            return
        if isinstance(found.node, FunctionNode):
            yield found
        elif isinstance(found.node, ast.ClassDef):
            for name in ("execute", "__init__", "__call__"):
                if method := self._method(found, name):
                    yield method

    def definition(self, scope: Scope, node: ast.expr, depth: int = 8) -> Scope | None:
        """Give the function or class that an expression names, in this file or in one beside it."""
        if depth == 0:
            return None
        if isinstance(node, ast.Name):
            return self._named(scope, node, depth)
        if not isinstance(node, ast.Attribute):
            return None
        if own_attribute(node):
            return self._method(scope.owner, node.attr)
        for value in (node.value, *scope.values(node.value)):
            called = value.func if isinstance(value, ast.Call) else value
            owner = self.definition(scope, called, depth - 1)
            if owner is not None and isinstance(owner.node, ast.ClassDef):
                return self._method(owner, node.attr)
        full = _imported_name(scope, node)
        return self._elsewhere(scope, full) if full else None

    def _named(self, scope: Scope, node: ast.Name, depth: int) -> Scope | None:
        home = scope.home(node.id)
        if home is None:
            return None
        if node.id in home.inner:
            return home.inner[node.id]
        if node.id in home.imports:
            return self._elsewhere(home, home.imports[node.id])
        for value in home.values(node):
            if isinstance(value, ast.Name | ast.Attribute):
                return self.definition(home, value, depth - 1)
        return None

    def _method(self, owner: Scope | None, name: str, depth: int = 8) -> Scope | None:
        """Find a method in a class or in the classes above it."""
        if owner is None or depth == 0:
            return None
        if name in owner.inner:
            return owner.inner[name]
        assert isinstance(owner.node, ast.ClassDef)
        for base in owner.node.bases:
            above = self.definition(owner.parent or owner, base)
            if above is not None and isinstance(above.node, ast.ClassDef) and above is not owner:
                if method := self._method(above, name, depth - 1):
                    return method
        return None

    def _elsewhere(self, scope: Scope, full: str, depth: int = 8) -> Scope | None:
        """Find a function or class of a module beside the file."""
        names = full.lstrip(".").split(".")
        if names[0] in _FOREIGN or len(names) < 2 or depth == 0:
            return None
        for folder in self._folders(scope, full):
            for end in range(len(names) - 1, 0, -1):
                module = self._module(folder.joinpath(*names[:end]))
                if module is not None:
                    return self._inside(module, names[end:], depth)
        return None

    def _inside(self, scope: Scope, names: list[str], depth: int) -> Scope | None:
        for name in names:
            if name not in scope.inner:
                full = ".".join([scope.imports.get(name, ""), *names[1:]])
                return self._elsewhere(scope, full, depth - 1) if name in scope.imports else None
            scope = scope.inner[name]
        return scope

    def application_of(self, scope: Scope, call: ast.Call) -> Scope | None:
        """Give the module of the Spark application that an operator submits, if it is beside the DAG file."""
        given = scope.argument(call, "application")
        own = self.path_of(scope).parent
        for value in [] if given is None else [given, *scope.values(given)]:
            for node in ast.walk(value):
                if isinstance(node, ast.Constant) and str(node.value).endswith(".py"):
                    for folder in (own, self._root, self._root.parent):
                        if module := self._read(folder / str(node.value)):
                            return module
        return None

    def _folders(self, scope: Scope, full: str) -> list[Path]:
        own = self.path_of(scope).parent
        dots = len(full) - len(full.lstrip("."))
        if dots:
            return [[own, *own.parents][min(dots - 1, len(own.parents))]]
        return [own] if own == self._root else [own, self._root]

    def _module(self, path: Path) -> Scope | None:
        """Read a module. A module that cannot be read is left out here: it is named if its own file is linted."""
        return self._read(path.with_name(f"{path.name}.py")) or self._read(path / "__init__.py")

    def _read(self, file: Path) -> Scope | None:
        try:
            return self.read(file) if file.is_file() else None
        except (ConfigError, OSError):
            return None


def _imported_name(scope: Scope, node: ast.Attribute) -> str:
    names = [node.attr]
    value = node.value
    while isinstance(value, ast.Attribute):
        names.append(value.attr)
        value = value.value
    if not isinstance(value, ast.Name):
        return ""
    home = scope.home(value.id)
    if home is None or value.id not in home.imports:
        return ""
    return ".".join([home.imports[value.id], *reversed(names)])


def _of_callbacks(node: ast.AST) -> Iterator[ast.AST]:
    """Give the nodes of callbacks: they run once a failure, not once a batch."""
    if isinstance(node, ast.Call):
        for keyword in node.keywords:
            if (keyword.arg or "").startswith(_CALLBACK):
                yield from ast.walk(keyword.value)


def _text_of(path: Path) -> str:
    try:
        if path.stat().st_size > _LARGEST:
            raise refused(path, f"The file has more than {_LARGEST:,} bytes: name a DAG file")
        with tokenize.open(path) as file:
            return file.read()
    except (SyntaxError, UnicodeDecodeError) as error:
        raise refused(path, f"The file is not UTF-8: {error}. Save it as UTF-8") from error
    except OSError as error:
        raise refused(path, f"The file cannot be read: {error.strerror}") from error


def _tree_of(path: Path, text: str) -> ast.Module:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ast.parse(text, str(path))
    except (RecursionError, MemoryError) as error:
        raise refused(path, "The code is nested too deeply for Python to parse it") from error
    except (SyntaxError, ValueError) as error:
        line = getattr(error, "lineno", None) or 1
        remedy = f"No Python can be read there: {error}. Mend the file"
        raise refused(f"{path}:{line}", remedy) from error


def ignored_codes(text: str) -> dict[int, list[str]]:
    """Give the codes that `# noqa: TX101` names, by line. A text that looks like such a comment is none."""
    if not _NOQA.search(text):
        return {}
    found: dict[int, list[str]] = {}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        match = _NOQA.search(token.string) if token.type == tokenize.COMMENT else None
        if match:
            found[token.start[0]] = re.split(r"[\s,]+", match[1].upper())
    return found


def refused(value: object, remedy: str) -> ConfigError:
    return ConfigError(option="DAG_FILE|FOLDER", value=str(value), remedy=remedy)
