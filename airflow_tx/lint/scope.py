"""The scopes of a file: which function, class, import or value a name means at a place."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
ScopeNode = ast.Module | ast.ClassDef | FunctionNode
_DEPTH = 8
"""A name is followed through so many assignments, so that a circle of names ends."""


@dataclass
class Scope:
    """A module, a class or a function, and the names that it defines.

    :param parent: the scope around it; None: it is a module.
    :param imports: the full name of each import.
    :param inner: the last function or class of each name.
    :param below: every function and class, by the id of its node.
    :param assigned: the values of each name, the last one at the end; None: a value that the file does not show.
    """

    node: ScopeNode
    parent: Scope | None
    imports: dict[str, str] = field(default_factory=dict)
    assigned: dict[str, list[ast.expr | None]] = field(default_factory=dict)
    inner: dict[str, Scope] = field(default_factory=dict)
    below: dict[int, Scope] = field(default_factory=dict)

    @property
    def module(self) -> Scope:
        return self if self.parent is None else self.parent.module

    @property
    def owner(self) -> Scope | None:
        """The class of a method, also for a function inside of the method."""
        if self.parent is None or isinstance(self.node, ast.ClassDef):
            return None
        if isinstance(self.parent.node, ast.ClassDef):
            return self.parent
        return self.parent.owner

    def home(self, name: str) -> Scope | None:
        """Give the scope that defines a name, from here outwards."""
        scope: Scope | None = self
        while scope is not None:
            seen = scope is self or not isinstance(scope.node, ast.ClassDef)
            if seen and (name in scope.imports or name in scope.assigned or name in scope.inner):
                return scope
            scope = scope.parent
        return None

    def values(self, node: ast.expr) -> list[ast.expr]:
        """Give the expressions that a name, or an attribute of self, was assigned."""
        if isinstance(node, ast.Name):
            home = self.home(node.id)
            found = [] if home is None else home.assigned.get(node.id, [])
        elif self.owner is not None:
            found = self.owner.assigned.get(own_attribute(node), [])
        else:
            return []
        return [each for each in found if each is not None]

    def name_of(self, node: ast.expr, depth: int = _DEPTH) -> str:
        """Give the full dotted name of an expression: imports and assignments are undone.

        The name begins with "." where the file does not show the beginning.
        """
        if depth == 0:
            return ""
        if isinstance(node, ast.Call):
            called = self.name_of(node.func, depth)
            return f"{called}()" if called else ""
        if isinstance(node, ast.Name):
            return self._name_of_name(node, depth)
        if isinstance(node, ast.Attribute):
            if values := self.values(node):
                return self.name_of(values[-1], depth - 1)
            return f"{self.name_of(node.value, depth)}.{node.attr}"
        return ""

    def _name_of_name(self, node: ast.Name, depth: int) -> str:
        home = self.home(node.id)
        if home is None:
            return node.id
        if node.id in home.imports:
            return home.imports[node.id]
        for value in reversed(self.values(node)):
            if not mentions(value, node.id):
                return home.name_of(value, depth - 1)
        return node.id if node.id in home.inner else ""

    def constant(self, node: ast.expr | None, depth: int = _DEPTH) -> object:
        """Give the value of a constant, also by its name; None if it is none."""
        if isinstance(node, ast.Constant):
            return node.value
        if node is None or depth == 0:
            return None
        values = self.values(node)
        return self.constant(values[-1], depth - 1) if values else None

    def argument(self, call: ast.Call, name: str) -> ast.expr | None:
        """Give a keyword argument of a call, also one that `**` passes from a dict."""
        for keyword in call.keywords:
            if keyword.arg == name:
                return keyword.value
            for value in self._dicts(keyword):
                for key, each in zip(value.keys, value.values, strict=True):
                    if isinstance(key, ast.Constant) and key.value == name:
                        return each
        return None

    def _dicts(self, keyword: ast.keyword) -> list[ast.Dict]:
        if keyword.arg is not None:
            return []
        found = [keyword.value, *self.values(keyword.value)]
        return [each for each in found if isinstance(each, ast.Dict)]


def scope_of(tree: ast.Module) -> Scope:
    """Read the scopes of a module."""
    scope = Scope(tree, None)
    _fill(scope)
    return scope


def own_nodes(node: ast.AST) -> Iterator[ast.AST]:
    """Give the nodes below a node, except what is inside of functions and classes that it defines."""
    left = list(_children(node))
    while left:
        each = left.pop()
        yield each
        if not isinstance(each, FunctionNode | ast.ClassDef):
            left.extend(ast.iter_child_nodes(each))


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    return (each for each in ast.walk(node) if isinstance(each, ast.Call))


def mentions(node: ast.AST, name: str) -> bool:
    return any(isinstance(each, ast.Name) and each.id == name for each in ast.walk(node))


def own_attribute(node: ast.expr) -> str:
    """Give `self.name` for an attribute of self or of the class; "" for another expression."""
    if not isinstance(node, ast.Attribute) or not isinstance(node.value, ast.Name):
        return ""
    return f"self.{node.attr}" if node.value.id in ("self", "cls") else ""


def _children(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, FunctionNode):
        yield from node.body
    else:
        yield from ast.iter_child_nodes(node)


def _fill(scope: Scope) -> None:
    if isinstance(scope.node, FunctionNode):
        for argument in _arguments(scope.node.args):
            scope.assigned.setdefault(argument.arg, []).append(None)
    nodes = sorted(own_nodes(scope.node), key=lambda each: getattr(each, "lineno", 0))
    for node in nodes:
        if isinstance(node, FunctionNode | ast.ClassDef):
            scope.inner[node.name] = scope.below[id(node)] = inner = Scope(node, scope)
            _fill(inner)
        else:
            _note(scope, node)


def _note(scope: Scope, node: ast.AST) -> None:
    if isinstance(node, ast.Import | ast.ImportFrom):
        scope.imports.update(_imported(node))
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            _assign(scope, target, node.value)
    elif isinstance(node, ast.AnnAssign | ast.NamedExpr) and node.value is not None:
        _assign(scope, node.target, node.value)
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        _assign(scope, node.optional_vars, node.context_expr)
    elif isinstance(node, ast.For | ast.AsyncFor | ast.comprehension):
        _assign(scope, node.target, None)


def _assign(scope: Scope, target: ast.expr, value: ast.expr | None) -> None:
    if isinstance(target, ast.Name):
        scope.assigned.setdefault(target.id, []).append(value)
    elif own_attribute(target) and scope.owner is not None:
        scope.owner.assigned.setdefault(own_attribute(target), []).append(value)
    elif isinstance(target, ast.Tuple | ast.List):
        values = _parts(value, len(target.elts))
        for each, part in zip(target.elts, values, strict=True):
            _assign(scope, each, part)


def _parts(value: ast.expr | None, count: int) -> list[ast.expr | None]:
    if isinstance(value, ast.Tuple | ast.List) and len(value.elts) == count:
        return list(value.elts)
    return [None] * count


def _imported(node: ast.Import | ast.ImportFrom) -> Iterator[tuple[str, str]]:
    for alias in node.names:
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (node.module or "")
            before = module if module.endswith(".") else f"{module}."
            yield alias.asname or alias.name, before + alias.name
        elif alias.asname:
            yield alias.asname, alias.name
        else:
            top = alias.name.partition(".")[0]
            yield top, top


def _arguments(found: ast.arguments) -> list[ast.arg]:
    starred = [each for each in (found.vararg, found.kwarg) if each is not None]
    return [*found.posonlyargs, *found.args, *found.kwonlyargs, *starred]
