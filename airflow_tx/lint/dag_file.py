"""A DAG file as the rules see it: its transactions, the functions of their tasks, the functions these call."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass

from airflow_tx.lint.names import ImportedNames, calls_in

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True)
class TransactionBlock:
    """A `with Transaction(...)`, and the DAG around it, if the file shows it."""

    call: ast.Call
    body: ast.With
    dag: ast.Call | None


class LintedFile:
    """A parsed file."""

    def __init__(self, tree: ast.Module) -> None:
        self.tree = tree
        self.names = ImportedNames(tree)
        self.functions = {
            node.name: node for node in ast.walk(tree) if isinstance(node, FunctionNode)
        }
        self.blocks = list(self._blocks(tree, None))

    def _blocks(self, node: ast.AST, dag: ast.Call | None) -> Iterator[TransactionBlock]:
        if isinstance(node, ast.With):
            for item in node.items:
                call = item.context_expr
                if not isinstance(call, ast.Call):
                    continue
                if self.names.of(call.func).rpartition(".")[2] == "DAG":
                    dag = call
                elif self.names.is_own(call.func, "Transaction"):
                    yield TransactionBlock(call, node, dag)
        for child in ast.iter_child_nodes(node):
            yield from self._blocks(child, dag)

    def processing(self) -> list[FunctionNode]:
        """Give the functions of tasks of a transaction, and the functions that they call."""
        found: dict[str, FunctionNode] = {}
        for block in self.blocks:
            for name in self._called(block.body):
                if self._is_task(self.functions[name]):
                    self._reach(name, found)
        return list(found.values())

    def applications(self) -> list[FunctionNode]:
        """Give the functions of Spark applications, and the functions that they call."""
        found: dict[str, FunctionNode] = {}
        for name, function in self.functions.items():
            if any(self.names.is_own(each, "batch_app") for each in function.decorator_list):
                self._reach(name, found)
        return list(found.values())

    def _reach(self, name: str, found: dict[str, FunctionNode]) -> None:
        if name in found:
            return
        found[name] = self.functions[name]
        for called in self._called(self.functions[name]):
            self._reach(called, found)

    def _called(self, node: ast.AST) -> list[str]:
        return [
            call.func.id
            for call in self._calls_outside_of_phases(node)
            if isinstance(call.func, ast.Name) and call.func.id in self.functions
        ]

    def _calls_outside_of_phases(self, node: ast.AST) -> Iterator[ast.Call]:
        phases = [
            each for each in ast.walk(node) if isinstance(each, ast.With) and self._is_phase(each)
        ]
        inside = {id(call) for phase in phases for call in calls_in(phase)}
        return (call for call in calls_in(node) if id(call) not in inside)

    def _is_phase(self, node: ast.With) -> bool:
        calls = [
            item.context_expr for item in node.items if isinstance(item.context_expr, ast.Call)
        ]
        return any(self.names.is_own(call.func, "commit_phase") for call in calls)

    def _is_task(self, function: FunctionNode) -> bool:
        plain = [
            each.func if isinstance(each, ast.Call) else each for each in function.decorator_list
        ]
        return any(
            self.names.of(each) in ("airflow.sdk.task", "airflow.decorators.task") for each in plain
        )
