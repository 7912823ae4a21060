"""Variables of a module that a function changes: their values depend on earlier runs of the process."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from airflow_tx.lint.scope import FunctionNode, Scope, own_nodes

_CHANGES = frozenset(
    """
    append extend add update insert setdefault pop
    popitem clear remove discard appendleft subtract
    sort
    """.split()
)
_MADE = (ast.List, ast.Dict, ast.Set, ast.ListComp, ast.DictComp, ast.SetComp)
_MAKERS = frozenset(
    """
    list dict set collections.defaultdict
    collections.Counter collections.deque
    collections.OrderedDict itertools.count
    """.split()
)


def changes_in(scope: Scope) -> Iterator[ast.expr | ast.stmt]:
    """Give the nodes of a function that change a variable of its module, or a default of an argument."""
    for node in own_nodes(scope.node):
        if isinstance(node, ast.Global) and _assigned(scope, node.names):
            yield node
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            if node.func.attr in _CHANGES and _outlives(scope, node.func.value):
                yield node
        elif isinstance(node, ast.Call) and scope.name_of(node.func) == "next" and node.args:
            if _outlives(scope, node.args[0]):
                yield node
        elif isinstance(node, ast.Subscript) and not isinstance(node.ctx, ast.Load):
            if _outlives(scope, node.value):
                yield node


def _assigned(scope: Scope, names: list[str]) -> bool:
    """Tell whether a function assigns one of the names, and does not only read it."""
    stored = {
        each.id
        for each in own_nodes(scope.node)
        if isinstance(each, ast.Name) and not isinstance(each.ctx, ast.Load)
    }
    return bool(stored & set(names))


def _outlives(scope: Scope, node: ast.expr) -> bool:
    """Tell whether an expression is a list, dict or set that outlives the call of the function."""
    if not isinstance(node, ast.Name):
        return False
    home = scope.home(node.id)
    if home is None:
        return False
    if home.parent is None:
        return any(_is_container(home, each) for each in home.values(node))
    return home is scope and _is_container(scope, _default(scope, node.id))


def _is_container(scope: Scope, value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return scope.name_of(value.func) in _MAKERS
    return isinstance(value, _MADE)


def _default(scope: Scope, name: str) -> ast.expr | None:
    """Give the default of an argument, if the function assigns the name nothing else."""
    if not isinstance(scope.node, FunctionNode) or scope.assigned.get(name) != [None]:
        return None
    found = scope.node.args
    placed = [*found.posonlyargs, *found.args]
    defaults = dict(
        zip(reversed([each.arg for each in placed]), reversed(found.defaults), strict=False)
    )
    return defaults.get(name)
