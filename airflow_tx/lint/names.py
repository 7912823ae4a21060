"""Names in a file, with their imports undone."""

from __future__ import annotations

import ast
from collections.abc import Iterator


class ImportedNames:
    """The full names of the imports of a module."""

    def __init__(self, tree: ast.Module) -> None:
        self._full: dict[str, str] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    top = alias.name.partition(".")[0]
                    self._full[alias.asname or top] = alias.name if alias.asname else top
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    self._full[alias.asname or alias.name] = f"{node.module}.{alias.name}"

    def of(self, node: ast.expr) -> str:
        """Give the dotted name of an expression, from its import on; "" if it has none."""
        if isinstance(node, ast.Name):
            return self._full.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            before = self.of(node.value)
            return f"{before}.{node.attr}" if before else f".{node.attr}"
        return ""

    def is_own(self, node: ast.expr, name: str) -> bool:
        """Tell whether an expression is this public name of airflow_tx."""
        full = self.of(node)
        return full.startswith("airflow_tx.") and full.rpartition(".")[2] == name


def calls_in(nodes: ast.AST) -> Iterator[ast.Call]:
    return (node for node in ast.walk(nodes) if isinstance(node, ast.Call))


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((each.value for each in call.keywords if each.arg == name), None)


def constant(node: ast.expr | None) -> object:
    return node.value if isinstance(node, ast.Constant) else None
